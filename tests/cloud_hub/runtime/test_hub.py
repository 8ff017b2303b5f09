"""The hub as a whole: real keys, a database on disk, engines in threads, and a broker in memory."""

import asyncio
import json
import shutil
import time

import pytest

from cloud_hub.core.notes import CONNECTS_PER_S
from cloud_hub.engine.base import EchoEngine
from tests.cloud_hub.doubles.devices import CARD, MANIFEST, SimDevice, registry
from tests.cloud_hub.doubles.site import SLOW_S, Ear, Site, serving
from wire.protocol.messages import DownNote, Receipt, Refusal, RefusalReason, StatusReply, Verdict, WelcomeNote
from wire.transport.base import LinkLostError


async def test_a_question_is_answered_and_the_answer_is_sealed_to_its_device(tmp_path):
    device = SimDevice()
    async with serving(tmp_path, device) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(3)
        verdict = (await ear.verdicts(1))[3]
        assert verdict.prediction.model == MANIFEST.model
        assert site.hub.counters()["verdicts"] == 1


@pytest.mark.parametrize("compute_s", [0.0, SLOW_S])
async def test_every_question_of_two_devices_is_answered_inline_and_in_the_engines_thread(tmp_path, compute_s):
    devices = [SimDevice(f"demo--d{n}") for n in range(2)]
    async with serving(tmp_path, *devices, engine=EchoEngine(CARD, compute_s), max_batch=8) as site:
        ears = [await Ear.listen(device, site.broker) for device in devices]
        for ear in ears:
            ear.ask(*range(1, 101))
        for ear in ears:
            assert set(await ear.verdicts(100)) == set(range(1, 101))
        assert site.hub.status()["open"] == 0


async def test_hello_is_welcomed_and_ask_is_answered(tmp_path):
    device = SimDevice()
    async with serving(tmp_path, device) as site:
        ear = await Ear.listen(device, site.broker)
        ear.note(device.hello())
        assert await ear.heard() == [WelcomeNote(device.epoch, "hub-1", "local", 1 / CONNECTS_PER_S)]
        ear.note(device.ask(4))
        assert await ear.heard() == [StatusReply(device.epoch, (), (4,))]
        assert site.hub.status()["devices"] == {device.id: "agent/1"}
        assert {*site.hub.last_heard()} == {device.id}


async def test_a_repeat_after_a_restart_gets_the_stored_answer(tmp_path):
    device = SimDevice()
    site = Site(tmp_path, device)
    await site.start()
    ear = await Ear.listen(device, site.broker)
    frame = device.question(1, time.time())
    ear.transport.post(device.up, frame)
    first = await ear.verdicts(1)
    await site.kill()
    await site.start()
    for _ in range(200):
        ear.transport.post(device.up, frame)
    assert await ear.verdicts(1) == first
    assert "accepted" not in site.hub.counters()
    await site.stop()


async def test_a_hub_killed_with_questions_under_way_answers_them_after_its_restart(tmp_path):
    device = SimDevice()
    site = Site(tmp_path, device, engine=EchoEngine(CARD, compute_s=0.1))
    await site.start()
    ear = await Ear.listen(device, site.broker)
    ear.ask(1, 2, 3)
    while not any(isinstance(reply, Receipt) for reply in await ear.heard()):
        pass
    folder = tmp_path / "after"
    folder.mkdir()
    for name in ("hub.db", "hub.db-wal"):  # what a kill -9 leaves, taken while it lives
        shutil.copy(tmp_path / name, folder / name)
    await site.kill()
    again = Site(folder, device)
    again.broker = site.broker
    await again.start()
    assert set(await ear.verdicts(3)) == {1, 2, 3}
    assert again.hub.counters()["restored"] == 3
    await again.stop()


async def test_the_broker_killed_and_back_again_is_found_again(tmp_path):
    device = SimDevice()
    async with serving(tmp_path, device) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(1)
        await ear.verdicts(1)
        site.broker.kill()
        with pytest.raises(LinkLostError):
            await ear.heard()
        while site.hub.status()["link_up"]:
            await asyncio.sleep(0.001)
        site.broker.up = True
        await site.link_up()
        ear = await Ear.listen(device, site.broker)
        ear.ask(2)
        assert set(await ear.verdicts(1)) == {2}
        assert site.hub.counters()["link.lost"] == 1


async def test_an_answer_lost_with_the_link_is_healed_by_ask(tmp_path):
    device = SimDevice()
    async with serving(tmp_path, device, engine=EchoEngine(CARD, compute_s=0.1)) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(1)
        await ear.heard()
        site.broker.kill()
        while not site.hub.counters().get("verdicts"):
            await asyncio.sleep(0.01)
        site.broker.up = True
        await site.link_up()
        ear = await Ear.listen(device, site.broker)
        ear.note(device.ask(1))
        assert set(await ear.verdicts(1)) == {1}
        assert site.hub.counters()["link.unsent"] == 1


async def test_a_lost_link_and_its_return_stand_in_the_log_once_each(tmp_path):
    async with serving(tmp_path, SimDevice()) as site:
        site.broker.kill()
        while site.hub.status()["link_up"]:
            await asyncio.sleep(0)
        site.broker.up = True
        await site.link_up()
        said = [json.loads(line)["event"] for line in site.log.getvalue().splitlines()]
        assert [event for event in said if event.startswith("link")] == ["link_up", "link_lost", "link_up"]


async def test_a_message_that_trips_a_defect_costs_itself_alone(tmp_path):
    """A registry that raises stands for any defect of ours behind one message."""

    class Tripping:
        def device(self, name: str, /):
            if name == "demo--cursed":
                raise ZeroDivisionError("secret-payload")
            return known.device(name)

    device, cursed = SimDevice(), SimDevice("demo--cursed")
    known = registry(device)
    site = Site(tmp_path, device)
    site.devices = Tripping()  # type: ignore[assignment]
    await site.start()
    ear = await Ear.listen(device, site.broker)
    site.broker.connect().post(cursed.up, cursed.question(1, time.time()))
    ear.ask(1)
    assert set(await ear.verdicts(1)) == {1}
    assert site.hub.counters()["defects"] == 1
    assert "ZeroDivisionError" in site.log.getvalue()
    assert "secret-payload" not in site.log.getvalue()
    await site.stop()


async def test_a_hub_whose_database_is_damaged_begins_anew_and_the_alarm_stays(tmp_path):
    (tmp_path / "hub.db").write_bytes(b"rubbish" * 1000)
    device = SimDevice()
    async with serving(tmp_path, device) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(1)
        assert set(await ear.verdicts(1)) == {1}
        (kept,) = site.hub.status()["stores_damaged"]
        assert site.hub.counters()["store_damaged"] == 1
        assert f'"event":"store_damaged","kept_as":"{kept}"' in site.log.getvalue()
    async with serving(tmp_path, device) as site:
        assert site.hub.status()["stores_damaged"] == [kept]
        assert "store_damaged" not in site.hub.counters()
        (tmp_path / kept).unlink()
        assert site.hub.status()["stores_damaged"] == []


async def test_a_poisoned_question_is_refused_and_its_neighbours_are_answered(tmp_path):
    device = SimDevice()
    engine = EchoEngine(CARD, SLOW_S, poison=b"\x0d" * 10)
    async with serving(tmp_path, device, engine=engine) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(12, 13, 14)
        heard: list[DownNote | tuple[int, Verdict]] = []
        async with asyncio.timeout(60):
            while len([r for r in heard if not isinstance(r, Receipt)]) < 3:
                heard += await ear.heard()
        assert {reply[0] for reply in heard if isinstance(reply, tuple)} == {12, 14}
        assert [(r.seq, r.reason, r.final) for r in heard if isinstance(r, Refusal)] == [
            (13, RefusalReason.ENGINE, True)
        ]
