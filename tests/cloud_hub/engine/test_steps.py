"""Quicker steps of graphs: one for each batch size, checked on the golden set, and never waited for."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx

from cloud_hub.engine.bundle import TAIL, WHOLE
from cloud_hub.engine.steps import GraphStep, StepCheck, StepRefusedError, StepTable
from cloud_hub.engine.torch import TorchEngine
from cloud_hub.engine.types import WorkItem
from models.bundle.bundle import Bundle
from models.graph.hub_model import open_hub_graphs
from models.graph.precision import GraphNumbers
from policies.serving.computing import ComputeOptions, DeviceChoice, Precision
from tests.cloud_hub.engine.test_bundle import bundle
from tests.cloud_hub.engine.test_precision import SAMPLES, golden

CPU = GraphNumbers(torch.device("cpu"))


def table_of(opened: Bundle, make: object) -> StepTable:
    found = open_hub_graphs(opened)
    graphs = {TAIL: found.tail.graph, WHOLE: found.whole.graph}
    return StepTable(graphs, StepCheck(opened, CPU), make, behind=False)  # type: ignore[arg-type]


def take_whole(table: StepTable, rows: int) -> Tensor:
    with torch.inference_mode():
        return table.graphs[WHOLE](torch.from_numpy(SAMPLES[:rows]))


class Recorder:
    """A double of a card's recordings: results of one batch size always lie in one place."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> GraphStep:
        place: Tensor = graph(*inputs)
        self.made.append(len(inputs[0]))
        return lambda *given: place.copy_(graph(*given))


def test_each_batch_size_is_made_once_and_gives_what_the_graph_gives(tmp_path: Path) -> None:
    opened = bundle(tmp_path, golden=golden())
    recorder = Recorder()
    table = table_of(opened, recorder)
    plain = open_hub_graphs(opened).whole
    with torch.inference_mode():
        for rows in (1, 4, 1, 4, 8):
            assert torch.equal(take_whole(table, rows), plain(torch.from_numpy(SAMPLES[:rows])))
    assert recorder.made == [1, 4, 8]
    assert table.describe() == "3 of 3 batch sizes"


def test_a_step_that_answers_otherwise_never_serves(tmp_path: Path) -> None:
    opened = bundle(tmp_path, golden=golden())

    def make_wrong(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> GraphStep:
        return lambda *given: graph(*given).roll(1, dims=1)

    table, plain = table_of(opened, make_wrong), open_hub_graphs(opened).whole
    with torch.inference_mode():
        assert torch.equal(take_whole(table, 4), plain(torch.from_numpy(SAMPLES[:4])))
    assert table.describe().startswith("0 of 1 batch sizes, the others as they are: a score moves by")


def test_what_no_compiler_takes_is_computed_as_it_is_and_the_reason_told(tmp_path: Path) -> None:
    def refuse(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> GraphStep:
        raise StepRefusedError("no compiler is here")

    table = table_of(bundle(tmp_path, golden=golden()), refuse)
    assert len(take_whole(table, 2)) == 2
    assert table.describe() == "0 of 1 batch sizes, the others as they are: no compiler is here"


@pytest.mark.further
@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16])
async def test_a_model_serves_at_once_and_is_compiled_meanwhile(tmp_path: Path, precision: Precision) -> None:
    opened = bundle(tmp_path, "large", golden=golden())
    engine = TorchEngine(opened, 2, options=ComputeOptions(DeviceChoice.CPU, precision, compile=True))
    plain = TorchEngine(opened, 2, options=ComputeOptions(DeviceChoice.CPU, precision))
    for each in (engine, plain):
        each.start()
        each.warm()
    batch = [WorkItem(raw=sample) for sample in SAMPLES[:2]]
    assert engine.infer(batch) == plain.infer(batch)  # before anything is compiled
    async with asyncio.timeout(300):
        while engine.setup.steps != "4 of 4 batch sizes":
            assert "as they are" not in engine.setup.steps, "this test needs a compiler for C++"
            await asyncio.sleep(0.1)
    pairs = zip(engine.infer(batch), plain.infer(batch), strict=True)
    moved = max(abs(a - b) for one, other in pairs for a, b in zip(one.scores, other.scores, strict=True))
    assert moved <= 0.01
    engine.stop()
