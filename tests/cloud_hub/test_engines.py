"""Engines, the threads that own them, and who goes into which batch."""

import asyncio
import math
import time
from collections import Counter
from functools import cache
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

from cloud_hub.batcher import RECHECK_CAP_S, Batcher
from cloud_hub.commands import Check, Item, Key
from cloud_hub.engine.base import EchoEngine, EngineError
from cloud_hub.engine.lane import INLINE_BELOW_S, Lane
from cloud_hub.engine.local import LocalEngine
from cloud_hub.work import Work
from models.bundle import Bundle, write_bundle
from models.figures import Gate
from models.graph import encode_graphs, exported
from models.manifest import EDGE_FILE, GOLDEN_FILE, HUB_FILE, HUB_GRAPH_FILE, BundleError, InputSpec, Kind, Manifest
from models.runner import echo_manifest
from tests.cloud_hub.devices import CARD
from wire.messages import DType, FieldSpec, Level


def item(device: str, seq: int) -> Item:
    return Item(Key(device, 1, seq), Work(), 0.0)


def batcher(max_batch: int = 4) -> Batcher:
    return Batcher([CARD], max_batch)


def test_an_idle_engine_never_waits_and_a_busy_one_gets_nothing():
    lanes = batcher()
    assert lanes.next(0.0) == []
    lanes.add(CARD.name, item("a", 1))
    (first,) = lanes.next(0.0)
    lanes.add(CARD.name, item("a", 2))
    assert lanes.next(0.0) == []
    lanes.done(first.ticket)
    (second,) = lanes.next(0.0)
    assert [i.key.seq for i in second.items] == [2]


def test_devices_take_turns():
    lanes = batcher()
    for seq in range(10):
        lanes.add(CARD.name, item("noisy", seq))
    lanes.add(CARD.name, item("quiet", 1))
    batch, _second = lanes.next(0.0)
    assert Counter(i.key.device for i in batch.items) == {"noisy": 3, "quiet": 1}


def test_only_a_full_batch_waits_at_the_engines_door():
    lanes = batcher()
    for seq in range(4):
        lanes.add(CARD.name, item("a", seq))
    assert [len(batch.items) for batch in lanes.next(0.0)] == [4]
    for seq in range(4, 7):
        lanes.add(CARD.name, item("a", seq))
    assert lanes.next(0.0) == []  # it may still grow
    for seq in range(7, 20):
        lanes.add(CARD.name, item("a", seq))
    assert [len(batch.items) for batch in lanes.next(0.0)] == [4]
    assert lanes.next(0.0) == []


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_every_item_comes_out_once_in_the_order_of_its_device(added):
    lanes = batcher()
    items = [item(device, n) for n, device in enumerate(added)]
    for each in items:
        lanes.add(CARD.name, each)
    out: list[Item] = []
    while batches := lanes.next(0.0):
        for batch in batches:
            assert 1 <= len(batch.items) <= 4
            out += lanes.done(batch.ticket).items
    assert set(out) == set(items)
    assert len(out) == len(items)
    for device in "abc":
        seqs = [i.key.seq for i in out if i.key.device == device]
        assert seqs == sorted(seqs)


def test_a_broken_engine_is_checked_ever_more_seldom_and_keeps_its_items():
    lanes = batcher()
    suspect = item("a", 1)
    lanes.add(CARD.name, suspect)
    for _ in range(2):
        (batch,) = lanes.next(0.0)
        checks = lanes.failed(batch.ticket)
    assert checks == [Check(CARD.name)]
    now, waits = 0.0, []
    for _ in range(8):
        assert lanes.checked(CARD.name, False, now) == ()
        assert lanes.next(now) == []
        start = now
        while not lanes.wake(now):
            now += 0.25
        waits.append(now - start)
    assert waits == sorted(waits)
    assert waits[-1] == RECHECK_CAP_S
    # It works again: the suspect is tried, fails alone, and now it is the question's fault.
    assert lanes.checked(CARD.name, True, now) == ()
    (batch,) = lanes.next(now)
    assert lanes.failed(batch.ticket) == [Check(CARD.name)]
    assert lanes.checked(CARD.name, True, now) == (suspect,)


async def test_a_quick_engine_runs_inline_and_a_slow_one_does_not():
    loop = asyncio.get_running_loop()
    for compute_s, inline in ((0.0, True), (10 * INLINE_BELOW_S, False)):
        lane = Lane(EchoEngine(CARD, compute_s), loop)
        assert lane.inline([Work()]) is None  # not measured yet
        await lane.warm_up()
        assert (lane.inline([Work()]) is not None) is inline
        await lane.close()


async def test_nothing_runs_inline_while_the_thread_is_at_work():
    lane = Lane(EchoEngine(CARD), asyncio.get_running_loop())
    await lane.warm_up()
    running = asyncio.create_task(lane.run([Work()]))
    await asyncio.sleep(0)
    assert lane.inline([Work()]) is None
    await running
    assert lane.inline([Work()]) is not None
    await lane.close()


async def test_a_failing_engine_is_a_result_and_too_few_predictions_are_one_too():
    class Short(EchoEngine):
        def infer(self, batch):
            return super().infer(batch)[1:]

    engine = EchoEngine(CARD)
    engine.broken = True
    for failing, says in ((engine, "EngineError"), (Short(CARD), "1 predictions for 2 items")):
        lane = Lane(failing, asyncio.get_running_loop())
        assert (await lane.run([Work(), Work()])).error == says
        await lane.close()


async def test_an_engine_that_hangs_holds_up_neither_loop_nor_probe_for_ever():
    lane = Lane(EchoEngine(CARD, compute_s=0.3), asyncio.get_running_loop())
    started = time.perf_counter()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lane.probe(), 0.02)
    assert time.perf_counter() - started < 0.2
    await lane.close()


CODES = (2, 4, 4)


class Tail(nn.Module):
    """Codes -> outputs, by one matrix."""

    def __init__(self, *shapes: tuple[int, ...], outputs: int = 10) -> None:
        super().__init__()
        self.layer = nn.Linear(sum(math.prod(shape) for shape in shapes), outputs)

    def forward(self, *codes: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([code.flatten(1) for code in codes], 1))  # type: ignore[no-any-return]


class Whole(nn.Module):
    """Pictures in 0..1 -> 2 x 4 x 4 codes of 0..15 -> the tail."""

    def __init__(self, tail: nn.Module) -> None:
        super().__init__()
        self.tail = tail

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(codes_of(x))  # type: ignore[no-any-return]


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
    tail = Tail(CODES, (3,)) if kind == "two features" else Tail(CODES, outputs=1 if kind == "regressor" else 10)
    parts: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
        "tail": (tail, (codes, torch.zeros(2, 3)) if kind == "two features" else (codes,)),
        "whole": (Words(), (torch.zeros(2, 6, dtype=torch.int64),)) if kind == "words" else (Whole(tail), (picture,)),
    }
    if kind == "two features":
        parts["whole"] = (Tail((1, 8, 8)), (picture,))
    graph, weights = encode_graphs({name: exported(*part) for name, part in parts.items()})
    return {HUB_GRAPH_FILE: graph, HUB_FILE: weights}


def a_manifest(**changes) -> Manifest:
    base = msgspec.structs.replace(
        echo_manifest(),
        name="digits",
        input=InputSpec("image", DType.FP32, (1, 8, 8), 0.0, 1.0),
        features=(FieldSpec("features", DType.UINT8, CODES, 0, 15, Level.P2, "features"),),
        hub_temperature=1.5,
    )
    return msgspec.structs.replace(base, **changes)


def bundle(folder: Path, files: str = "classifier", **changes) -> Bundle:
    contents = {**hub_files(files), EDGE_FILE: b"edge", GOLDEN_FILE: b"golden"}
    return write_bundle(folder / "bundle", a_manifest(**changes), contents)


def started(opened: Bundle) -> LocalEngine:
    engine = LocalEngine(opened)
    engine.start()
    return engine


def picture() -> np.ndarray:
    return np.random.default_rng(1).random((1, 8, 8), np.float32)


def test_the_tail_on_codes_and_the_whole_model_on_pictures_are_one_batch_each(tmp_path):
    engine = started(bundle(tmp_path))
    raw = picture()
    codes = codes_of(torch.from_numpy(raw[None])).numpy().astype(np.uint8)[0]
    sample = engine.sample()
    found = engine.infer([Work({"features": codes}), sample, Work(raw=raw), sample])
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
    batch = [Work(raw=picture() * np.float32(share)) for share in (0.2, 0.6, 1.0)]
    alone = [engine.infer([work])[0].scores for work in batch]
    for together, single in zip(engine.infer(batch), alone, strict=True):
        assert together.scores == pytest.approx(single, abs=1e-6)


def test_several_features_are_several_inputs_in_the_order_of_the_manifest(tmp_path):
    second = FieldSpec("a_second", DType.UINT8, (3,), 0, 15, Level.P2, "features")
    engine = started(bundle(tmp_path, "two features", features=(*a_manifest().features, second)))
    chance = np.random.default_rng(2)
    codes = {"a_second": chance.integers(0, 16, 3, np.uint8), "features": chance.integers(0, 16, CODES, np.uint8)}
    (found,) = engine.infer([Work(codes)])
    torch.manual_seed(5)
    torch.rand(2, 1, 8, 8)  # as the file's weights were drawn
    tail = Tail(CODES, (3,))
    with torch.inference_mode():
        logits = tail(*(torch.from_numpy(codes[name][None].astype(np.float32)) for name in ("features", "a_second")))
    assert found.scores == pytest.approx(torch.softmax(logits / 1.5, 1)[0].tolist(), abs=1e-5)
    assert engine.infer([engine.sample()])[0].label >= 0


def test_whole_numbers_go_in_as_whole_numbers_and_never_beyond_the_table(tmp_path):
    engine = started(bundle(tmp_path, "words", input=InputSpec("ids", DType.INT64, (6,), 0, 49)))
    (found,) = engine.infer([Work(raw=np.array([3, 49, 0, 7, 7, 1]))])
    assert sum(found.scores) == pytest.approx(1.0)
    for wrong in (50, -1):
        with pytest.raises(ValueError, match=r"0\.\.49"):
            engine.infer([Work(raw=np.array([3, 4, wrong, 7, 7, 1]))])


def test_scores_are_tempered_by_the_hubs_own_temperature(tmp_path):
    cool, hot = (started(bundle(tmp_path / str(t), hub_temperature=t)) for t in (0.5, 50.0))
    work = Work(raw=picture())
    (first,), (second,) = cool.infer([work]), hot.infer([work])
    assert first.label == second.label
    assert first.confidence > second.confidence
    assert second.confidence == pytest.approx(0.1, abs=0.02)


def test_a_regressor_has_values_and_no_label(tmp_path):
    rest = {"kind": Kind.REGRESSOR, "labels": (), "outputs": 1, "gate": Gate(tolerance=1.0)}
    engine = started(bundle(tmp_path, "regressor", **rest))
    (prediction,) = engine.infer([engine.sample()])
    assert (prediction.label, prediction.confidence, len(prediction.scores)) == (-1, 1.0, 1)


def test_a_sample_that_overflows_is_an_error_and_no_answer(tmp_path):
    engine = started(bundle(tmp_path))
    with pytest.raises(EngineError):
        engine.infer([Work(raw=np.full((1, 8, 8), np.nan, np.float32))])


def test_a_sample_of_another_shape_is_an_error(tmp_path):
    engine = started(bundle(tmp_path))
    with pytest.raises(EngineError):
        engine.infer([Work(raw=np.zeros((1, 8, 9), np.float32))])


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("classifier", {"input": InputSpec("image", DType.FP32, (1, 7, 8), 0.0, 1.0)}, "graph whole: takes"),
        ("classifier", {"input": InputSpec("image", DType.INT64, (1, 8, 8), 0.0, 1.0)}, "graph whole: takes"),
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
    assert engine.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert engine.infer([engine.sample()])
    assert started(bundle(tmp_path)).device.type == "cpu"
