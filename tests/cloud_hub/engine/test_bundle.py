"""Engines of bundles in one process (PyTorch and ONNX): batch sizes, predictions, and bundles that do not fit."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from cloud_hub.engine.base import EngineError, EngineState
from cloud_hub.engine.bundle import BundleEngine, choose_batch_size, list_batch_sizes, pad_rows
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.onnx import OnnxEngine
from cloud_hub.engine.torch import TorchEngine, TorchGraphRunner
from cloud_hub.engine.types import EngineOptions, WorkItem, make_bundle_card
from models.bundle.bundle import Bundle
from models.bundle.manifest import (
    EDGE_FILE,
    GOLDEN_FILE,
    HUB_FILE,
    HUB_GRAPH_FILE,
    BundleError,
    HubModel,
    InputSpec,
    Manifest,
    ModelKind,
)
from models.bundle.measurements import DomainFigures, DomainScore, GateFigures
from models.graph.hub_model import encode_graphs, export_graph
from models.runtime.runner import echo_manifest
from policies.serving.computing import ComputeTarget, Precision
from tests.models.bundles import write_bundle
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

CODES = (2, 4, 4)


class Tail(nn.Module):
    """Codes -> outputs, by one matrix."""

    def __init__(self, *shapes: tuple[int, ...], outputs: int = 10) -> None:
        super().__init__()
        self.layer: nn.Module = nn.Linear(sum(math.prod(shape) for shape in shapes), outputs)

    def forward(self, *codes: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([code.flatten(1) for code in codes], 1))  # type: ignore[no-any-return]


class Whole(nn.Module):
    """Pictures in 0..1 -> 2 x 4 x 4 codes of 0..15 -> the tail."""

    def __init__(self, tail: nn.Module) -> None:
        super().__init__()
        self.tail = tail

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(codes_of(x))  # type: ignore[no-any-return]


class Deep(Tail):
    """Codes -> outputs, by layers that are worth narrow numbers."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__(CODES)
        self.layer = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
        self.gain = gain

    def forward(self, *codes: torch.Tensor) -> torch.Tensor:
        return super().forward(*codes) * self.gain


class Words(nn.Module):
    """Places in a table of 50 -> outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).mean(1)  # type: ignore[no-any-return]


def codes_of(x: torch.Tensor) -> torch.Tensor:
    small = torch.nn.functional.avg_pool2d(x, 2)
    return torch.round(15 * torch.cat([small, 1 - small], 1))


@cache
def hub_files(kind: str) -> dict[str, bytes]:
    """Graph and weights by name of file; tracing takes a second, so each kind is traced once."""
    torch.manual_seed(5)
    picture, codes = torch.rand(2, 1, 8, 8), torch.zeros(2, *CODES)
    tails = {
        "two features": lambda: Tail(CODES, (3,)),
        "regressor": lambda: Tail(CODES, outputs=1),
        "large": Deep,
        "fragile": lambda: Deep(1000.0),  # what bfloat16 rounds becomes another answer
    }
    tail = tails.get(kind, lambda: Tail(CODES))()
    parts: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
        "tail": (tail, (codes, torch.zeros(2, 3)) if kind == "two features" else (codes,)),
        "whole": (Words(), (torch.zeros(2, 6, dtype=torch.int64),)) if kind == "words" else (Whole(tail), (picture,)),
    }
    if kind == "two features":
        parts["whole"] = (Tail((1, 8, 8)), (picture,))
    graph, weights = encode_graphs({name: export_graph(*part) for name, part in parts.items()})
    return {HUB_GRAPH_FILE: graph, HUB_FILE: weights}


def a_manifest(**changes) -> Manifest:
    base = msgspec.structs.replace(
        echo_manifest(),
        name="digits",
        input=InputSpec("image", TensorDType.FP32, (1, 8, 8), 0.0, 1.0),
        features=(FieldSpec("features", TensorDType.UINT8, CODES, 0, 15, SensitivityLevel.P2, "features"),),
        hub_temperature=1.5,
    )
    return msgspec.structs.replace(base, **changes)


def bundle(folder: Path, files: str = "classifier", golden: bytes = b"golden", **changes: Any) -> Bundle:
    contents = {**hub_files(files), EDGE_FILE: b"edge", GOLDEN_FILE: golden}
    return write_bundle(folder / "bundle", a_manifest(**changes), contents)


def started(opened: Bundle) -> TorchEngine:
    engine = TorchEngine(opened)
    engine.start()
    return engine


def picture() -> np.ndarray:
    return np.random.default_rng(1).random((1, 8, 8), np.float32)


def test_the_tail_on_codes_and_the_whole_model_on_pictures_are_one_batch_each(tmp_path):
    engine = started(bundle(tmp_path))
    raw = picture()
    codes = codes_of(torch.from_numpy(raw[None])).numpy().astype(np.uint8)[0]
    sample = engine.sample()
    found = engine.infer([WorkItem({"features": codes}), sample, WorkItem(raw=raw), sample])
    assert found[0].label == found[2].label
    assert found[0].scores == pytest.approx(found[2].scores, abs=1e-5)
    assert found[1].scores == pytest.approx(found[3].scores)
    assert found[0].scores != pytest.approx(found[1].scores)
    for prediction in found:
        assert prediction.model == "digits@1"
        assert sum(prediction.scores) == pytest.approx(1.0)
        assert prediction.confidence == max(prediction.scores) == prediction.scores[prediction.label]


def test_a_batch_does_not_change_an_answer(tmp_path):
    engine = started(bundle(tmp_path))
    batch = [WorkItem(raw=picture() * np.float32(share)) for share in (0.2, 0.6, 1.0)]
    alone = [engine.infer([work])[0].scores for work in batch]
    for together, single in zip(engine.infer(batch), alone, strict=True):
        assert together.scores == pytest.approx(single, abs=1e-6)


@pytest.mark.further
def test_several_features_are_several_inputs_in_the_order_of_the_manifest(tmp_path):
    second = FieldSpec("a_second", TensorDType.UINT8, (3,), 0, 15, SensitivityLevel.P2, "features")
    engine = started(bundle(tmp_path, "two features", features=(*a_manifest().features, second)))
    chance = np.random.default_rng(2)
    codes = {"a_second": chance.integers(0, 16, 3, np.uint8), "features": chance.integers(0, 16, CODES, np.uint8)}
    (found,) = engine.infer([WorkItem(codes)])
    torch.manual_seed(5)
    torch.rand(2, 1, 8, 8)  # as the file's weights were drawn
    tail = Tail(CODES, (3,))
    with torch.inference_mode():
        logits = tail(*(torch.from_numpy(codes[name][None].astype(np.float32)) for name in ("features", "a_second")))
    assert found.scores == pytest.approx(torch.softmax(logits / 1.5, 1)[0].tolist(), abs=1e-5)
    assert engine.infer([engine.sample()])[0].label >= 0


def test_whole_numbers_go_in_as_whole_numbers_and_never_beyond_the_table(tmp_path):
    engine = started(bundle(tmp_path, "words", input=InputSpec("ids", TensorDType.INT64, (6,), 0, 49)))
    (found,) = engine.infer([WorkItem(raw=np.array([3, 49, 0, 7, 7, 1]))])
    assert sum(found.scores) == pytest.approx(1.0)
    for wrong in (50, -1):
        with pytest.raises(ValueError, match=r"0\.\.49"):
            engine.infer([WorkItem(raw=np.array([3, 4, wrong, 7, 7, 1]))])


def test_scores_are_tempered_by_the_hubs_own_temperature(tmp_path):
    cool, hot = (started(bundle(tmp_path / str(t), hub_temperature=t)) for t in (0.5, 50.0))
    work = WorkItem(raw=picture())
    (first,), (second,) = cool.infer([work]), hot.infer([work])
    assert first.label == second.label
    assert first.confidence > second.confidence
    assert second.confidence == pytest.approx(0.1, abs=0.02)


def test_the_hub_says_by_its_own_logits_what_is_out_of_domain(tmp_path):
    domain = DomainFigures(DomainScore.PEAK, -1e9, 0.05, 0.0, 0.0, 1.0, 0)  # no logit is as high: nothing is in domain
    usual = msgspec.structs.replace(domain, threshold=1e9)
    for limit, known in ((domain, False), (usual, True)):
        engine = started(bundle(tmp_path / str(known), gate=GateFigures(hub_domain=limit)))
        found = engine.infer([WorkItem(raw=picture()), engine.sample()])
        assert [each.in_domain for each in found] == [known, known]
    assert started(bundle(tmp_path / "none")).infer([engine.sample()])[0].in_domain is None


@pytest.mark.further
def test_a_regressor_has_values_and_no_label(tmp_path):
    rest: dict[str, Any] = {"kind": ModelKind.REGRESSOR, "labels": (), "outputs": 1, "gate": GateFigures(tolerance=1.0)}
    engine = started(bundle(tmp_path, "regressor", **rest))
    (prediction,) = engine.infer([engine.sample()])
    assert (prediction.label, prediction.confidence, len(prediction.scores)) == (-1, 1.0, 1)


def test_a_sample_that_overflows_is_an_error_and_no_answer(tmp_path):
    engine = started(bundle(tmp_path))
    with pytest.raises(EngineError):
        engine.infer([WorkItem(raw=np.full((1, 8, 8), np.nan, np.float32))])


def test_a_sample_of_another_shape_is_an_error(tmp_path):
    engine = started(bundle(tmp_path))
    with pytest.raises(EngineError):
        engine.infer([WorkItem(raw=np.zeros((1, 8, 9), np.float32))])


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("classifier", {"input": InputSpec("image", TensorDType.FP32, (1, 7, 8), 0.0, 1.0)}, "graph whole: takes"),
        ("classifier", {"input": InputSpec("image", TensorDType.INT64, (1, 8, 8), 0.0, 1.0)}, "graph whole: takes"),
        ("two features", {}, "graph tail: takes"),
        ("regressor", {}, "gives"),
    ],
)
def test_graphs_that_are_not_what_the_manifest_says_are_refused(tmp_path, kind, changes, says):
    with pytest.raises(BundleError, match=says) as caught:
        started(bundle(tmp_path, kind, **changes))
    assert str(caught.value).startswith("digits@1: ")


def test_a_bundle_made_for_a_graphics_card_runs_where_there_is_none(tmp_path):
    target = msgspec.structs.replace(echo_manifest().target, providers=("CUDAExecutionProvider",))
    engine = started(bundle(tmp_path, target=target))
    assert engine.setup.device.startswith("cuda" if torch.cuda.is_available() else "cpu")
    assert engine.infer([engine.sample()])


def test_whoever_asks_an_engine_computes_with_its_number_of_threads(tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        made = open_engine(bundle(tmp_path).path, EngineOptions(threads=1))  # started by a thread of its own
        made.infer([made.sample()])
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


# -- buckets


@given(st.integers(1, 300), st.data())
def test_a_batch_is_filled_up_by_a_third_at_most(most, data):
    steps = list_batch_sizes(most)
    count = data.draw(st.integers(1, most))
    size = choose_batch_size(count, steps)
    assert steps[0] == 1
    assert steps[-1] == most
    assert count <= size <= max(count, 1.5 * count)


def test_a_batch_is_filled_with_its_last_row_and_a_larger_one_than_any_is_refused():
    column = np.arange(6).reshape(3, 2)
    assert pad_rows(column, 4).tolist() == [[0, 1], [2, 3], [4, 5], [4, 5]]
    assert pad_rows(column, 3) is column
    with pytest.raises(ValueError, match="a batch of 5, the largest bucket is 4"):
        choose_batch_size(5, list_batch_sizes(4))


def test_no_request_pays_for_the_first_of_its_shape(tmp_path):
    opened = bundle(tmp_path)
    runner = TorchGraphRunner(opened, ComputeTarget(cuda=False, precision=Precision.FLOAT32))
    engine = BundleEngine(opened.manifest, make_bundle_card(opened), runner)
    engine.start()
    engine.warm()
    assert runner._served is not None
    tail = runner._served.checks["tail"]
    before = set(tail._rehearsed)
    for count in range(1, 33):
        engine.infer([engine.sample()] * count)
    assert tail._rehearsed == before


def test_a_drained_engine_takes_no_more(tmp_path):
    engine = started(bundle(tmp_path))
    engine.drain()
    with pytest.raises(EngineError, match="digits@1: draining"):
        engine.infer([engine.sample()])
    assert engine.health().state is EngineState.DRAINING


# -- hub models in ONNX


def onnx_linear(outputs: int, *shape: int) -> bytes:
    """`[n, *shape]` float32 -> `[n, outputs]`: everything flat, times a matrix of which the first column counts."""
    size = math.prod(shape)
    matrix = np.zeros((size, outputs), np.float32)
    matrix[:, 0] = 1.0
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"], axis=1),
        helper.make_node("MatMul", ["flat", "matrix"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", outputs])],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def onnx_bundle(folder: Path, tail: bytes, whole: bytes) -> Path:
    files = {"tail.onnx": tail, "whole.onnx": whole, EDGE_FILE: b"edge", GOLDEN_FILE: b"golden"}
    manifest = a_manifest(hub=HubModel("tail.onnx", (), "whole.onnx"))
    return write_bundle(folder / "onnx", manifest, files).path


def test_a_hub_model_in_onnx_answers_codes_and_pictures(tmp_path):
    path = onnx_bundle(tmp_path, onnx_linear(10, *CODES), onnx_linear(10, 1, 8, 8))
    engine = open_engine(path, EngineOptions(max_batch=4))
    assert isinstance(engine, OnnxEngine)
    engine.warm()
    ones = WorkItem({"features": np.full(CODES, 1, np.uint8)})
    found = engine.infer([ones, WorkItem(raw=picture()), engine.sample()])
    assert [one.label for one in found] == [0, 0, 0]
    assert found[0].scores[0] == pytest.approx(1 / (1 + 9 * math.exp(-32 / 1.5)), abs=1e-6)
    assert found[2].scores == pytest.approx([0.1] * 10)


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (onnx_linear(7, *CODES), "graph tail: gives [7], the manifest says 10 outputs"),
        (onnx_linear(10, 3), "graph tail: does not run: "),
        (b"no graph", "tail.onnx: "),
    ],
)
def test_onnx_graphs_that_do_not_fit_the_manifest_are_refused(tmp_path, tail, says):
    path = onnx_bundle(tmp_path, tail, onnx_linear(10, 1, 8, 8))
    with pytest.raises(BundleError) as caught:
        open_engine(path, EngineOptions(max_batch=4))
    assert str(caught.value).startswith(f"digits@1: {says}")
    assert "\n" not in str(caught.value)
