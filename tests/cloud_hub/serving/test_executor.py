"""Batch scheduling and execution: batching, failing engines, inline and threaded runs."""

import asyncio
import threading
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from cloud_hub.core.commands import BatchItem, CheckEngine, QuestionKey, RunBatch
from cloud_hub.core.scheduler import RECHECK_CAP_S, Batcher
from cloud_hub.engine.base import EchoEngine
from cloud_hub.engine.types import WorkItem
from cloud_hub.engine.worker import INLINE_BELOW_S, EngineWorker
from tests.cloud_hub.doubles.devices import CARD


def item(device: str, seq: int) -> BatchItem:
    return BatchItem(QuestionKey(device, 1, seq), WorkItem(), 0.0)


def batcher(max_batch: int = 4) -> Batcher:
    return Batcher([CARD], max_batch)


def infers(lanes: Batcher, now: float) -> list[RunBatch]:
    return [found for found in lanes.next_commands(now) if isinstance(found, RunBatch)]


def infer_of(lanes: Batcher, now: float) -> RunBatch:
    (found,) = infers(lanes, now)
    return found


def test_an_idle_engine_never_waits_and_a_busy_one_gets_nothing():
    lanes = batcher()
    assert lanes.next_commands(0.0) == []
    lanes.add_item(CARD.name, item("a", 1))
    first = infer_of(lanes, 0.0)
    lanes.add_item(CARD.name, item("a", 2))
    assert lanes.next_commands(0.0) == []
    lanes.finish_batch(first.ticket)
    second = infer_of(lanes, 0.0)
    assert [i.key.seq for i in second.items] == [2]


def test_devices_take_turns():
    lanes = batcher()
    for seq in range(10):
        lanes.add_item(CARD.name, item("noisy", seq))
    lanes.add_item(CARD.name, item("quiet", 1))
    batch, _second = infers(lanes, 0.0)
    assert Counter(i.key.device for i in batch.items) == {"noisy": 3, "quiet": 1}


def test_only_a_full_batch_waits_at_the_engines_door():
    lanes = batcher()
    for seq in range(4):
        lanes.add_item(CARD.name, item("a", seq))
    assert [len(batch.items) for batch in infers(lanes, 0.0)] == [4]
    for seq in range(4, 7):
        lanes.add_item(CARD.name, item("a", seq))
    assert lanes.next_commands(0.0) == []  # it may still grow
    for seq in range(7, 20):
        lanes.add_item(CARD.name, item("a", seq))
    assert [len(batch.items) for batch in infers(lanes, 0.0)] == [4]
    assert lanes.next_commands(0.0) == []


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_every_item_comes_out_once_in_the_order_of_its_device(added):
    lanes = batcher()
    items = [item(device, n) for n, device in enumerate(added)]
    for each in items:
        lanes.add_item(CARD.name, each)
    out: list[BatchItem] = []
    while batches := infers(lanes, 0.0):
        for batch in batches:
            assert 1 <= len(batch.items) <= 4
            out += lanes.finish_batch(batch.ticket).items
    assert set(out) == set(items)
    assert len(out) == len(items)
    for device in "abc":
        seqs = [i.key.seq for i in out if i.key.device == device]
        assert seqs == sorted(seqs)


def test_a_broken_engine_is_checked_ever_more_seldom_and_keeps_its_items():
    lanes = batcher()
    suspect = item("a", 1)
    lanes.add_item(CARD.name, suspect)
    for _ in range(2):
        batch = infer_of(lanes, 0.0)
        checks = lanes.on_batch_failed(batch.ticket)
    assert checks == [CheckEngine(CARD.name)]
    now, waits = 0.0, []
    for _ in range(8):
        assert lanes.on_checked(CARD.name, False, now) == ()
        assert lanes.next_commands(now) == []
        start = now
        while not lanes.on_wake(now):
            now += 0.25
        waits.append(now - start)
    assert waits == sorted(waits)
    assert waits[-1] == RECHECK_CAP_S
    # The engine works again: the suspect is retried, fails alone, and is refused for good.
    assert lanes.on_checked(CARD.name, True, now) == ()
    batch = infer_of(lanes, now)
    assert lanes.on_batch_failed(batch.ticket) == [CheckEngine(CARD.name)]
    assert lanes.on_checked(CARD.name, True, now) == (suspect,)


async def test_a_quick_engine_runs_inline_and_a_slow_one_does_not():
    loop = asyncio.get_running_loop()
    for compute_s, inline in ((0.0, True), (10 * INLINE_BELOW_S, False)):
        lane = EngineWorker(EchoEngine(CARD, compute_s), loop)
        assert lane.run_inline([WorkItem()]) is None  # not measured yet
        await lane.warm_up()
        assert (lane.run_inline([WorkItem()]) is not None) is inline
        await lane.close()


async def test_nothing_runs_inline_while_the_thread_is_at_work():
    lane = EngineWorker(EchoEngine(CARD), asyncio.get_running_loop())
    await lane.warm_up()
    running = asyncio.create_task(lane.run_batch([WorkItem()]))
    await asyncio.sleep(0)
    assert lane.run_inline([WorkItem()]) is None
    await running
    assert lane.run_inline([WorkItem()]) is not None
    await lane.close()


async def test_a_failing_engine_is_a_result_and_too_few_predictions_are_one_too():
    class Short(EchoEngine):
        def infer(self, batch):
            return super().infer(batch)[1:]

    engine = EchoEngine(CARD)
    engine.broken = True
    for failing, says in ((engine, "EngineError@base.py:"), (Short(CARD), "1 predictions for 2 items")):
        lane = EngineWorker(failing, asyncio.get_running_loop())
        assert (await lane.run_batch([WorkItem(), WorkItem()])).error.startswith(says)
        await lane.close()


async def test_an_engine_that_hangs_holds_up_neither_loop_nor_probe_for_ever():
    released = threading.Event()

    class Hanging(EchoEngine):
        def infer(self, batch):
            assert released.wait(60)
            return super().infer(batch)

    lane = EngineWorker(Hanging(CARD), asyncio.get_running_loop())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lane.probe(), 0.02)
    released.set()  # by the loop, which was not held up
    await lane.close()
