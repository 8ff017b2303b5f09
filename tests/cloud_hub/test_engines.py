"""Engines, the threads that own them, and who goes into which batch."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given

from cloud_hub.batcher import RECHECK_CAP_S, Batcher
from cloud_hub.commands import Check, Item, Key
from cloud_hub.engine.base import EchoEngine, EngineError
from cloud_hub.engine.lane import INLINE_BELOW_S, Lane
from cloud_hub.engine.local import LocalEngine
from cloud_hub.work import Work
from models.bundle import Bundle, BundleError, write_bundle
from models.manifest import EDGE_FILE, GOLDEN_FILE, HUB_FILE, HubModel, InputSpec, Kind, Manifest
from models.runner import echo_manifest
from models.zoo import ARCHITECTURES, build_whole, pack_weights
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
    (batch,) = lanes.next(0.0)
    assert Counter(i.key.device for i in batch.items) == {"noisy": 3, "quiet": 1}


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_every_item_comes_out_once_in_the_order_of_its_device(added):
    lanes = batcher()
    items = [item(device, n) for n, device in enumerate(added)]
    for each in items:
        lanes.add(CARD.name, each)
    out: list[Item] = []
    while batches := lanes.next(0.0):
        assert 1 <= len(batches[0].items) <= 4
        out += lanes.done(batches[0].ticket).items
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
        def run(self, batch):
            return super().run(batch)[1:]

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


def digits_manifest(**changes) -> Manifest:
    base = echo_manifest()
    return msgspec.structs.replace(
        base,
        name="digits",
        input=InputSpec("image", DType.FP32, (1, 8, 8), 0.0, 1.0),
        features=(FieldSpec("features", DType.UINT8, (2, 4, 4), 0, 15, Level.P2, "features"),),
        temperature=1.5,
        hub=HubModel("zoo/digits", HUB_FILE),
        **changes,
    )


def bundle(folder: Path, manifest: Manifest) -> Bundle:
    torch.manual_seed(5)
    weights = pack_weights(ARCHITECTURES["zoo/digits"](manifest))
    return write_bundle(folder / "bundle", manifest, {HUB_FILE: weights, EDGE_FILE: b"edge", GOLDEN_FILE: b"golden"})


def test_the_tail_on_codes_and_the_whole_model_on_pictures_are_one_batch_each(tmp_path):
    opened = bundle(tmp_path, digits_manifest())
    engine = LocalEngine(opened)
    picture = np.random.default_rng(1).random((1, 8, 8), np.float32)
    whole = build_whole(opened.manifest, opened.read(HUB_FILE))
    with torch.inference_mode():
        codes = whole.head(torch.from_numpy(picture[None]))[1].numpy().astype(np.uint8)[0]  # type: ignore[operator]
    sample = engine.sample()
    found = engine.run([Work({"features": codes}), sample, Work(raw=picture), sample])
    assert found[0].label == found[2].label
    assert found[0].scores == pytest.approx(found[2].scores, abs=1e-5)
    assert found[1].scores == pytest.approx(found[3].scores)
    assert found[0].scores != pytest.approx(found[1].scores)
    for prediction in found:
        assert prediction.model == "digits@1"
        assert sum(prediction.scores) == pytest.approx(1.0)
        assert prediction.confidence == max(prediction.scores) == prediction.scores[prediction.label]


def test_scores_are_tempered_by_the_manifest(tmp_path):
    cool, hot = (
        LocalEngine(bundle(tmp_path, msgspec.structs.replace(digits_manifest(), temperature=t))) for t in (0.5, 50.0)
    )
    (first,), (second,) = cool.run([cool.sample()]), hot.run([hot.sample()])
    assert first.label == second.label
    assert first.confidence > second.confidence
    assert second.confidence == pytest.approx(0.1, abs=0.01)


def test_a_regressor_has_values_and_no_label(tmp_path):
    engine = LocalEngine(bundle(tmp_path, digits_manifest(kind=Kind.REGRESSOR)))
    (prediction,) = engine.run([engine.sample()])
    assert (prediction.label, prediction.confidence, len(prediction.scores)) == (-1, 1.0, 10)


def test_a_sample_that_overflows_is_an_error_and_no_answer(tmp_path):
    engine = LocalEngine(bundle(tmp_path, digits_manifest()))
    with pytest.raises(EngineError):
        engine.run([Work(raw=np.full((1, 8, 8), np.nan, np.float32))])


def test_an_unknown_architecture_is_refused(tmp_path):
    manifest = msgspec.structs.replace(digits_manifest(), hub=HubModel("os/system", HUB_FILE))
    with pytest.raises(BundleError):
        LocalEngine(bundle(tmp_path, manifest))


def test_a_gradient_is_never_kept(tmp_path):
    engine = LocalEngine(bundle(tmp_path, digits_manifest()))
    engine.run([engine.sample()])
    assert not any(p.requires_grad for p in engine._tail.parameters())  # type: ignore[attr-defined]
