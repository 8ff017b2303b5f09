"""MQTT sensors as a source: messages become windows that are answered, and everything else is counted."""

import asyncio
import io
import json
import random
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_agent.app.config import load_config
from edge_agent.sources import sensor as sensor_module
from edge_agent.sources.counts import SourceCounts
from edge_agent.sources.feed import SampleFeed
from edge_agent.sources.sensor import SensorSource
from edge_agent.sources.sensor_settings import SensorSection, validate_sensors
from edge_agent.sources.source import Intake, Overflow, SourceError
from edge_agent.sources.supervisor import SourceSupervisor
from models.bundle.preparation import parse_preparation
from tests import ROOT
from tests.edge_agent.doubles.api_double import MemoryAgent
from wire.process.exit_codes import ExitError
from wire.process.logging import JsonLog
from wire.transport.base import DeliveryOutcome, IncomingMessage, LinkLostError, MemoryBroker

LIMIT = 10_000


def section(**keys: Any) -> SensorSection:
    given = {"name": "s", "broker": "mqtt://127.0.0.1", "topics": ["plant/#"], **keys}
    return msgspec.convert(given, SensorSection)


class Bench:
    """A sensor in front of the memory agent, whose model takes three numbers."""

    def __init__(self, keys: dict[str, Any] | None = None, **preparation: Any) -> None:
        self.agent = MemoryAgent()
        self.log = io.StringIO()
        prepared = (
            parse_preparation({"kind": "signal", "order": "flat", **preparation})
            if preparation != {"kind": ""}
            else None
        )
        self.feed = SampleFeed(self.agent, "open", prepared)
        self.sensor = SensorSource(section(**(keys or {})), self.feed, "demo--a", JsonLog(self.log))
        self.counts = SourceCounts()
        self.intake = Intake(self.counts, Overflow.NEWEST, LIMIT)

    async def send(self, *payloads: Any, topic: str = "plant/1") -> None:
        for payload in payloads:
            raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            await self.sensor._take_message(IncomingMessage(topic, raw), self.intake)

    async def samples(self) -> list[list[float]]:
        found = []
        while len(self.intake):
            reading = await self.intake.take()
            found.append(self.feed.parse_sample(reading.parse).tolist())
        return found


async def test_messages_of_one_reading_become_windows_of_each_topic():
    bench = Bench(window=3, hop=1)
    for value in range(5):
        await bench.send(value / 10, topic="plant/1")
        await bench.send(0.9, topic="plant/2")
    samples = await bench.samples()
    mine = [[round(each, 1) for each in sample] for sample in samples if sample[0] < 0.85]
    assert mine == [[0.0, 0.1, 0.2], [0.1, 0.2, 0.3], [0.2, 0.3, 0.4]]
    assert len(samples) == 6
    assert bench.sensor.to_json() == {"messages": 10, "topics": 2}


async def test_a_message_that_is_a_window_is_a_sample_at_once():
    bench = Bench({"channels": ["v"]}, window=3)
    await bench.send({"v": [0.5, 0.25, 0.125]})
    assert await bench.samples() == [[0.5, 0.25, 0.125]]


async def test_event_time_orders_readings():
    bench = Bench({"channels": ["v"], "time": "t"}, window=3, rate_hz=1, lateness_s=2)
    for at in (0, 2, 1, 3, 4):
        await bench.send({"v": at / 10, "t": at})
    assert [[round(each, 1) for each in sample] for sample in await bench.samples()] == [[0.0, 0.1, 0.2]]


async def test_a_binary_layout_is_read():
    bench = Bench({"layout": "<3f"}, window=1, channels=3)
    await bench.send(np.array([0.5, 0.25, 0.125], "<f4").tobytes())
    assert await bench.samples() == [[0.5, 0.25, 0.125]]


@pytest.mark.further
async def test_a_hundred_thousand_shapes_of_json_are_counted_one_by_one_and_logged_once():
    bench = Bench({"channels": ["v"]}, window=3)
    shapes = random.Random(7)

    def shape(depth: int) -> Any:
        kind = shapes.randrange(6 if depth else 4)
        if kind < 4:
            return [None, True, "x", "21"][kind]
        inner = [shape(depth - 1) for _ in range(shapes.randrange(4))]
        return inner if kind == 4 else {f"k{shapes.randrange(1000)}": each for each in inner}

    for number in range(100_000):
        content = {f"k{number}": shape(3)} if number % 2 else {"v": shape(2) or None}
        await bench.sensor._take_message(IncomingMessage("plant/1", msgspec.json.encode(content)), bench.intake)
    assert dict(bench.counts.dropped) == {"garbled": 100_000}
    assert bench.counts.received == bench.sensor.messages == 100_000
    assert len(bench.log.getvalue().splitlines()) == 1


async def test_topics_are_bounded_and_a_silent_one_gives_its_place(monkeypatch):
    bench = Bench({"max_topics": 2}, window=3)
    for topic in ("a", "b", "c", "a"):
        await bench.send(0.5, topic=topic)
    assert dict(bench.counts.dropped) == {"topics": 1}
    monkeypatch.setattr(sensor_module, "_IDLE_S", 0.0)
    await bench.send(0.5, topic="c")
    assert bench.sensor.to_json()["topics"] == 2
    assert dict(bench.counts.dropped) == {"topics": 1}


async def test_what_is_too_large_late_or_of_another_time_is_counted():
    bench = Bench({"channels": ["v"], "time": "t", "max_bytes": 64}, window=3, rate_hz=1)
    await bench.send(b" " * 65)
    for at in (0, 1, 2, 1, 10**9, 3):
        await bench.send({"v": 0.5, "t": at})
    assert dict(bench.counts.dropped) == {"too_large": 1, "late": 1, "clock": 1}


@pytest.mark.parametrize(
    ("preparation", "mode", "reason"),
    [
        ({"window": 3}, "no model", "no_model"),
        ({"window": 4}, "answer_now", "unprepared"),
        ({"kind": "picture", "order": "chw"}, "answer_now", "unprepared"),
    ],
)
async def test_without_a_model_or_a_way_to_prepare_nothing_is_guessed(preparation, mode, reason):
    bench = Bench(**preparation)
    bench.agent.mode = mode
    await bench.send(0.5)
    assert dict(bench.counts.dropped) == {reason: 1}


async def test_nobody_says_how_a_window_becomes_a_sample():
    bench = Bench()
    bench.sensor._feed = SampleFeed(bench.agent, "open")
    await bench.send(0.5)
    assert dict(bench.counts.dropped) == {"unprepared": 1}


async def publish(broker: MemoryBroker, payload: bytes) -> None:
    """Publish a message once somebody has subscribed to it."""
    while broker.publish(IncomingMessage("plant/7", payload)) is DeliveryOutcome.NOBODY:
        await asyncio.sleep(0)


async def test_a_broker_that_is_away_or_hangs_up_is_the_supervisors_to_try_again(monkeypatch):
    broker = MemoryBroker()
    broker.up = False

    async def connect(_section, _client_id, *, wants_retained: bool = True):
        return broker.connect()

    monkeypatch.setattr(sensor_module, "connect_broker", connect)
    bench = Bench({"topics": ["plant/+"]}, window=3)
    with pytest.raises(SourceError, match="broker down"):
        await bench.sensor.run(bench.intake)
    broker.up = True
    running = asyncio.create_task(bench.sensor.run(bench.intake))
    await publish(broker, b"[0.1, 0.2, 0.3]")
    while not len(bench.intake):
        await asyncio.sleep(0)
    assert len(await bench.samples()) == 1
    broker.kill()
    with pytest.raises(SourceError):
        await running


async def test_windows_are_answered_and_every_message_is_accounted_for(monkeypatch):
    broker = MemoryBroker()

    async def connect(_section, _client_id, *, wants_retained: bool = True):
        if not broker.up:
            raise LinkLostError("down")
        return broker.connect()

    monkeypatch.setattr(sensor_module, "connect_broker", connect)
    bench = Bench({"topics": ["plant/+"]}, window=3)
    supervisor = SourceSupervisor(JsonLog(bench.log))
    supervisor.add(bench.sensor, bench.feed)
    running = asyncio.create_task(supervisor.run())
    for number in range(1000):
        await publish(broker, b"[0.1, 0.2, 0.3]" if number % 10 else b"{}")
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        while (shown := supervisor.status_fields()["sources"]["sensor-s"])["messages"] < 1000 or shown["waiting"]:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert shown["answered"] + sum(shown["dropped"].values()) == shown["received"] == 1000
    assert shown["dropped"]["garbled"] == 100


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"topics": []}, "topics"),
        ({"topics": ["a/#/b"]}, "no topic filter"),
        ({"topics": ["a+"]}, "no topic filter"),
        ({"topics": ["a#"]}, "no topic filter"),
        ({"topics": ["$share/g/a"]}, "no topic filter"),
        ({"broker": ""}, "needs broker"),
        ({"channels": ["a..b"]}, "is no path"),
        ({"time": "["}, "is no path"),
        ({"time_field": 0}, "belongs to a layout"),
        ({"layout": "abc"}, "is no layout"),
        ({"layout": "<f", "time_field": 0}, "time_field"),
        ({"layout": "<ff", "time_field": 2}, "time_field"),
        ({"layout": "<ff", "time": "t"}, "a layout has time_field"),
        ({"layout": "<ff", "channels": ["a"]}, "a layout has time_field"),
    ],
)
def test_what_cannot_be_meant_is_refused(keys, line):
    with pytest.raises(msgspec.ValidationError, match=line):
        section(**keys)


def test_what_the_page_shows_is_a_sound_configuration(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "sensors.md").read_text(), re.DOTALL)
    (tmp_path / "agent.toml").write_text('bundle = "b"\n' + block)
    config = load_config(tmp_path / "agent.toml", {})
    assert config.sensor[0].password_file == str(tmp_path / "broker.password")
    assert config.preparation() is not None


def test_an_air_gapped_device_listens_to_this_machine_alone():
    validate_sensors([section()], airgap=True)
    with pytest.raises(ExitError, match="airgap"):
        validate_sensors([section(broker="mqtts://broker.example")], airgap=True)
    with pytest.raises(ExitError, match="has to be mqtts"):
        validate_sensors([section(broker="mqtt://broker.example")], airgap=False)
    with pytest.raises(ExitError, match="two are named"):
        validate_sensors([section(), section()], airgap=False)


async def test_a_reading_that_the_broker_had_kept_is_answered_only_where_asked_for():
    kept = IncomingMessage("plant/1", b"[0.1, 0.2, 0.3]", retained=True)
    plain, asked = Bench({"topics": ["plant/+"]}, window=3), Bench({"topics": ["plant/+"], "retained": True}, window=3)
    for bench in (plain, asked):
        await bench.sensor._take_message(kept, bench.intake)
    assert dict(plain.counts.dropped) == {"retained": 1}
    assert dict(asked.counts.dropped) == {}
    broker = MemoryBroker()
    listening = asyncio.create_task(asked.sensor._listen(broker.connect(), asked.intake))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert asked.sensor._listened


async def test_what_a_broker_has_kept_is_taken_with_the_first_connection_that_stands_and_no_later_one(monkeypatch):
    broker, wanted = MemoryBroker(), []

    async def connect(_section, _client_id, *, wants_retained: bool = True):
        wanted.append(wants_retained)
        return broker.connect()

    monkeypatch.setattr(sensor_module, "connect_broker", connect)
    bench = Bench({"topics": ["plant/+"], "retained": True}, window=3)
    broker.up = False
    with pytest.raises(SourceError):
        await bench.sensor.run(bench.intake)
    for connection in range(1, 4):
        broker.up = True
        running = asyncio.create_task(bench.sensor.run(bench.intake))
        kept = IncomingMessage("plant/7", b"[0.1, 0.2, 0.3]", retained=True)  # the broker knows no Retain Handling
        while broker.publish(kept) is DeliveryOutcome.NOBODY:
            await asyncio.sleep(0)
        while bench.sensor.messages < connection:
            await asyncio.sleep(0)
        broker.kill()
        with pytest.raises(SourceError):
            await running
    assert wanted == [True, True, False, False]  # the first attempt did not reach the broker
    assert len(await bench.samples()) == 1
    assert dict(bench.counts.dropped) == {"retained": 2}
