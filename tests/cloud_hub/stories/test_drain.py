"""Draining of a hub: work in progress is finished, new work is refused with a retry time.

What is left waits for the next process.
"""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cloud_hub.core.web_requests import InferOptions, InferRefusedError
from cloud_hub.engine.types import make_model_card
from models.runtime.runner import echo_manifest
from tests.cloud_hub.doubles.devices import CARD, SimDevice
from tests.cloud_hub.doubles.site import Ear
from tests.cloud_hub.doubles.swapper import SAMPLES, Swapper
from wire.protocol.messages import RefusalReason


@pytest.mark.further
async def test_a_drain_finishes_what_is_under_way_refuses_what_comes_and_gives_up_what_takes_too_long(tmp_path: Path):
    swapper = Swapper(tmp_path, drain_s=0.3)
    swapper.engine.compute_s = 0.1
    async with swapper as hub:
        quick = asyncio.create_task(hub.inference.infer("echo", SAMPLES))
        await asyncio.sleep(0.02)
        slow = [asyncio.create_task(hub.inference.infer("echo", np.zeros((32, 10), np.float32))) for _ in range(20)]
        await asyncio.sleep(0)
        hub.drain()
        assert hub.status()["draining"] is True
        with pytest.raises(InferRefusedError) as refused:
            await hub.inference.infer("echo", SAMPLES)
        assert (refused.value.reason, refused.value.retry_after_s) == (RefusalReason.DRAINING, 5.0)
        await hub.wait_drained()
        assert len(await quick) == 1
        ends = await asyncio.gather(*slow, return_exceptions=True)
        given_up = [end for end in ends if isinstance(end, InferRefusedError)]
        assert given_up
        assert {(end.reason, end.retry_after_s) for end in given_up} == {(RefusalReason.DRAINING, 5.0)}
        assert len(given_up) < 20


async def test_questions_that_a_drain_leaves_are_answered_after_the_restart(tmp_path: Path):
    device = SimDevice()
    first = Swapper(tmp_path, device, drain_s=0.05, max_batch=1)
    first.engine.compute_s = 0.2
    async with first as hub:
        ear = await Ear.listen(device, first.broker)
        ear.ask(*range(1, 13))
        while hub.counters().get("accepted", 0) < 12:
            await asyncio.sleep(0.01)
    second = Swapper(tmp_path, device)
    second.broker = first.broker
    async with second as hub:
        while hub.status()["open"]:
            await asyncio.sleep(0.01)
        ear.note(device.ask(*range(1, 13)))  # whose verdict was lost on the way is told again
        found = await ear.verdicts(12)
        assert hub.counters()["restored"] > 0
    assert sorted(found) == list(range(1, 13))


async def test_a_caller_with_a_key_is_answered_once_and_alike(tmp_path: Path):
    swapper = Swapper(tmp_path)
    swapper.engine.compute_s = 0.05
    async with swapper as hub:
        wish = InferOptions(tenant="acme", idempotency="k1", fingerprint=b"a")
        first = asyncio.create_task(hub.inference.infer("echo", SAMPLES, wish))
        await asyncio.sleep(0)
        with pytest.raises(InferRefusedError, match="busy"):
            await hub.inference.infer("echo", SAMPLES, wish)
        answer = await first
        batches = len(swapper.engine.batches)
        assert await hub.inference.infer("echo", SAMPLES, wish) == answer
        assert len(swapper.engine.batches) == batches
        with pytest.raises(InferRefusedError, match="conflict"):
            await hub.inference.infer("echo", SAMPLES, msgspec.structs.replace(wish, fingerprint=b"b"))
        other = msgspec.structs.replace(wish, tenant="umbrella", fingerprint=b"b")
        assert await hub.inference.infer("echo", SAMPLES, other) == answer  # another tenant's key is another key


@pytest.mark.further
async def test_a_caller_whose_time_is_over_in_the_queue_is_told_so_and_not_computed_for(tmp_path: Path):
    swapper = Swapper(tmp_path, max_batch=1)
    swapper.engine.compute_s = 0.1
    async with swapper as hub:
        busy = [asyncio.create_task(hub.inference.infer("echo", SAMPLES)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(InferRefusedError) as late:
            await hub.inference.infer("echo", SAMPLES, InferOptions(timeout_s=0.15))
        assert late.value.reason in (RefusalReason.EXPIRED, RefusalReason.BUSY)
        assert late.value.retry_after_s >= 1.0
        await asyncio.gather(*busy)
        assert sum(swapper.engine.batches) < 40


def test_the_card_of_the_double_is_the_bundles_card():
    assert make_model_card(echo_manifest()) == CARD
