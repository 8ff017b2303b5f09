"""The whole hub in one event loop under web requests and overload; the link is in memory."""

import asyncio
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from cloud_hub.core.web_requests import InferRefusedError
from cloud_hub.engine.base import EchoEngine
from cloud_hub.engine.types import WorkItem
from cloud_hub.storage.jobs import StoreJob
from cloud_hub.storage.store import Store
from tests.cloud_hub.doubles.devices import CARD, Enrolled, SimDevice
from tests.cloud_hub.doubles.site import SLOW_S, Ear, Site, effects_in, serving
from tests.cloud_hub.storage.test_store import ending, question
from wire.protocol.messages import DownNote, Refusal, RefusalReason, Verdict


async def test_infer_answers_whole_samples_in_order_through_the_same_batches(tmp_path):
    async with serving(tmp_path, engine=EchoEngine(CARD, SLOW_S), max_batch=4) as site:
        inputs = np.arange(100, dtype=np.float32).reshape(10, 10) / 100
        expected = EchoEngine(CARD).infer([WorkItem(raw=row) for row in inputs])
        assert await site.hub.inference.infer("echo", inputs) == expected
        both = await asyncio.gather(
            site.hub.inference.infer("echo@1", inputs[:1]), site.hub.inference.infer("echo@1", inputs[1:2])
        )
        assert [found for answers in both for found in answers] == expected[:2]
        assert max(site.engine.batches[1:]) <= CARD.max_batch  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "inputs", "reason"),
    [
        ("nobody", np.zeros((1, 10), np.float32), RefusalReason.MODEL_GONE),
        ("echo@2", np.zeros((1, 10), np.float32), RefusalReason.MODEL_GONE),
        ("echo", np.zeros((1, 11), np.float32), RefusalReason.SCHEMA),
        ("echo", np.zeros((0, 10), np.float32), RefusalReason.SCHEMA),
        ("echo", np.zeros((1, 10), np.float64), RefusalReason.SCHEMA),
        ("echo", np.full((1, 10), np.nan, np.float32), RefusalReason.SCHEMA),
        ("echo", np.zeros((5, 10), np.float32), RefusalReason.BUSY),
        ("echo", np.float32(1.0), RefusalReason.SCHEMA),
    ],
)
async def test_infer_refuses_with_a_reason(tmp_path, model, inputs, reason):
    async with serving(tmp_path, max_queued=4) as site:
        with pytest.raises(InferRefusedError) as refused:
            await site.hub.inference.infer(model, inputs)
        assert refused.value.reason is reason


async def test_statistics_count_a_request_once_though_its_samples_need_three_batches(tmp_path):
    async with serving(tmp_path, engine=EchoEngine(CARD), max_batch=4) as site:
        for rows in (10, 1):
            await site.hub.inference.infer("echo", np.zeros((rows, 10), np.float32))
        with pytest.raises(InferRefusedError):
            await site.hub.inference.infer("echo", np.zeros((1, 11), np.float32))
        found = site.hub.observer.timings.timings_for("echo@1")
        assert found.items == 11
        assert sum(batches.count for batches in found.batches.values()) >= 4
        assert (found.succeeded.count, found.waited.count, found.computed.count, found.refused.count) == (2, 2, 2, 1)
        assert found.succeeded.seconds >= found.computed.seconds > 0


async def test_infer_refuses_a_poisoned_sample_and_a_caller_that_leaves_is_forgotten(tmp_path):
    async with serving(tmp_path, engine=EchoEngine(CARD, 0.05, poison=b"\x0d" * 8)) as site:
        with pytest.raises(InferRefusedError) as refused:
            await site.hub.inference.infer("echo", np.frombuffer(b"\x0d" * 40, np.float32).reshape(1, 10))
        assert refused.value.reason is RefusalReason.ENGINE
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(site.hub.inference.infer("echo", np.zeros((2, 10), np.float32)), 0.01)
        assert site.hub.status()["open"] == 0
        assert len(await site.hub.inference.infer("echo", np.zeros((2, 10), np.float32))) == 2


async def test_probe_makes_a_round_trip_now_and_tells_a_broken_engine(tmp_path):
    engine = EchoEngine(CARD)
    async with serving(tmp_path, engine=engine) as site:
        before = len(engine.batches)
        (probe,) = await site.hub.engines.probe()
        assert probe.ok
        assert probe.model == "echo@1"
        assert len(engine.batches) == before + 1
        engine.broken = True
        (probe,) = await site.hub.engines.probe()
        assert not probe.ok


@pytest.mark.further
async def test_stop_answers_what_is_under_way_and_refuses_what_is_new(tmp_path):
    device = SimDevice()
    async with serving(tmp_path, device, engine=EchoEngine(CARD, 0.2)) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(1)
        await ear.heard()
        site.hub.stop()
        ear.ask(2)
        heard = await ear.heard()
        while not any(isinstance(reply, tuple) for reply in heard):
            heard += await ear.heard()
        refusal = next(reply for reply in heard if isinstance(reply, Refusal))
        assert (refusal.seq, refusal.reason) == (2, RefusalReason.DRAINING)
        with pytest.raises(InferRefusedError):
            await site.hub.inference.infer("echo", np.zeros((1, 10), np.float32))


@pytest.mark.usefixtures("quick_rechecks")
async def test_a_broken_engine_loses_nothing_and_recovers(tmp_path):
    device = SimDevice()
    engine = EchoEngine(CARD)
    async with serving(tmp_path, device, engine=engine) as site:
        engine.broken = True
        ear = await Ear.listen(device, site.broker)
        ear.ask(1, 2)
        while not site.hub.status()["engines_down"]:
            await asyncio.sleep(0.01)
        engine.broken = False
        assert set(await ear.verdicts(2)) == {1, 2}
        assert "engine_down" in site.log.getvalue()


async def test_neither_logs_nor_status_hold_anything_of_a_sample(tmp_path):
    device = SimDevice()
    async with serving(tmp_path, device, engine=EchoEngine(CARD, poison=b"\x0d" * 10)) as site:
        ear = await Ear.listen(device, site.broker)
        ear.transport.post(device.up, device.question(13, time.time(), trace="canary-trace"))
        ear.transport.post(device.up, b"canary-garbage" * 100)
        async with asyncio.timeout(60):
            while not any(isinstance(reply, Refusal) for reply in await ear.heard()):
                pass
        seen = site.log.getvalue() + repr(site.hub.status())
        assert "engine_failed" in seen
        assert "canary" not in seen


async def test_a_device_with_a_key_that_nobody_can_seal_to_costs_no_other_device_its_answer(tmp_path):
    """X25519 points of low order are keys to read, but no secret can be agreed with them."""
    bad, good = SimDevice("demo--bad"), SimDevice("demo--good")
    site = Site(tmp_path, good, engine=EchoEngine(CARD, SLOW_S))
    weak = X25519PublicKey.from_public_bytes(bytes(32))
    site.devices.put(Enrolled(bad.id, bad.signing.public_key(), weak))
    await site.start()
    ears = [await Ear.listen(device, site.broker) for device in (bad, good)]
    for ear in ears:
        ear.ask(1, 2, 3)
    assert set(await ears[1].verdicts(3)) == {1, 2, 3}
    refusals: list[Refusal] = []
    async with asyncio.timeout(60):
        while len(refusals) < 3:
            refusals += [reply for reply in await ears[0].heard() if isinstance(reply, Refusal)]
    assert {(r.reason, r.final) for r in refusals} == {(RefusalReason.ENGINE, True)}
    assert site.hub.status()["open"] == 0
    assert "defects" not in site.hub.counters()
    await site.stop()


async def test_a_verdict_too_big_for_a_frame_ends_its_question(tmp_path):
    device = SimDevice()
    card = msgspec.structs.replace(CARD, labels=tuple(map(str, range(20_000))))
    async with serving(tmp_path, device, engine=EchoEngine(card)) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(1)
        async with asyncio.timeout(60):
            heard = await ear.heard()
            while not any(isinstance(reply, Refusal) for reply in heard):
                heard += await ear.heard()
        assert site.hub.status()["open"] == 0


async def test_a_full_disk_owes_nothing_and_the_hub_goes_on_when_there_is_room(tmp_path):
    device = SimDevice()
    async with serving(tmp_path, device, engine=EchoEngine(CARD, SLOW_S)) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(1)
        await ear.verdicts(1)
        database: Any = site.hub.store._writer._store._engine.raw_connection().driver_connection  # type: ignore[union-attr]
        database.execute(f"pragma max_page_count = {database.execute('pragma page_count').fetchone()[0]}")
        for seq in range(2, 200):
            ear.ask(seq)
        heard: list[DownNote | tuple[int, Verdict]] = []
        async with asyncio.timeout(60):
            while not any(isinstance(reply, Refusal) for reply in heard):
                heard += await ear.heard()
        refusal = next(reply for reply in heard if isinstance(reply, Refusal))
        assert (refusal.reason, refusal.final) == (RefusalReason.BUSY, False)
        assert "SQLITE_FULL" in site.log.getvalue()
        database.execute("pragma max_page_count = 1000000")
        ear.ask(refusal.seq)
        async with asyncio.timeout(60):
            while refusal.seq not in await ear.verdicts(1):
                pass
            while not site.hub.status()["store_ok"]:
                await asyncio.sleep(0.01)


async def test_old_rows_are_pruned_in_chunks_while_the_hub_serves(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/hub.db")
    store.apply_jobs([StoreJob(keeps=[question(seq) for seq in range(1, 6002)])])
    store.apply_jobs([StoreJob(endings=[ending(seq) for seq in range(1, 6002)])])
    store.close()
    async with serving(tmp_path):
        async with asyncio.timeout(60):
            while effects_in(tmp_path):
                await asyncio.sleep(0.05)
