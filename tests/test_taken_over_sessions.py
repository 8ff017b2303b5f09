"""Two clients of one id at one broker: whoever is taken over leaves the other one alone for a minute or two.

Every part that keeps a connection to a broker is tried, and a rule over the source finds those parts.
"""

import asyncio
import contextlib
import io
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloud_hub.runtime.link import HubLink
from edge_agent.outputs import mqtt as output_module
from edge_agent.outputs.announced import AnnouncedTopics
from edge_agent.outputs.mqtt import MqttOutput, MqttOwner
from edge_agent.outputs.settings import OutputSection
from edge_agent.sources import sensor as sensor_module
from edge_agent.sources.feed import SampleFeed
from edge_agent.sources.sensor import SensorSource
from edge_agent.sources.sensor_settings import SensorSection
from edge_agent.sources.supervisor import RestartPauses, SourceSupervisor
from edge_agent.system.settings import AgentSettings
from edge_agent.uplink.connection import Connection
from policies.monitoring import backoff
from tests import ROOT
from tests.edge_agent.doubles.api_double import MemoryAgent
from wire.process.logging import JsonLog
from wire.transport.base import IncomingMessage, LinkLostError, MemoryBroker, MemoryTransport, SessionTakenOverError

PAUSE_S = 0.1  # in place of a minute
CONNECTIONS = 3
Connect = Callable[..., Awaitable[MemoryTransport]]


class Ended(MemoryTransport):
    """A connection that the broker ends as soon as it stands."""

    error: LinkLostError = LinkLostError("connection ended")

    async def receive(self) -> list[IncomingMessage]:
        raise self.error


class TakenOver(Ended):
    """One whose client id another client has connected with."""

    error = SessionTakenOverError("session taken over, 0x8e")


class Silent:
    """A listener of a device's connection."""

    def on_up(self, line: str) -> None: ...

    def on_down(self, line: str) -> None: ...

    def on_batch(self, batch: list[IncomingMessage], line: str) -> None: ...

    def on_order(self, payload: bytes, line: str) -> None: ...


class Bench:
    """`connect` makes connections of one kind, and notes when."""

    def __init__(self, kind: type[Ended], monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self.patch = kind, monkeypatch
        self.at: list[float] = []
        self.stream = io.StringIO()
        self.log = JsonLog(self.stream)
        self._broker = MemoryBroker()

    async def connect(self, *_given: Any, **_more: Any) -> MemoryTransport:
        self.at.append(asyncio.get_running_loop().time())
        return self.kind(self._broker)

    async def count_gaps(self, keep: Coroutine[Any, Any, None], connections: int) -> list[float]:
        """Seconds between one connection and the next."""
        keeping = asyncio.create_task(keep)
        async with asyncio.timeout(30):
            while len(self.at) < connections and not keeping.done():
                await asyncio.sleep(0.001)
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        return [after - before for before, after in itertools.pairwise(self.at)]


def keep_device_link(bench: Bench, folder: Path) -> Coroutine[Any, Any, None]:
    settings = AgentSettings(state_dir=folder, reconnect_base_s=0.001, reconnect_cap_s=0.001)
    return Connection("demo--a", bench.connect, settings, Counter(), log=bench.log).run(Silent())


def keep_sensor(bench: Bench, _folder: Path) -> Coroutine[Any, Any, None]:
    bench.patch.setattr(sensor_module, "connect_broker", bench.connect)
    given = {"name": "s", "broker": "mqtt://127.0.0.1", "topics": ["plant/#"]}
    feed = SampleFeed(MemoryAgent(), "open")
    source = SensorSource(msgspec.convert(given, SensorSection), feed, "demo--a", bench.log)
    supervisor = SourceSupervisor(bench.log, pauses=RestartPauses(0.001, 0.001))
    supervisor.add(source, feed)
    return supervisor.run()


def keep_output(bench: Bench, folder: Path) -> Coroutine[Any, Any, None]:
    bench.patch.setattr(output_module, "connect_broker", bench.connect)
    bench.patch.setattr(output_module, "_RETRY_BASE_S", 0.001)
    bench.patch.setattr(output_module, "_RETRY_CAP_S", 0.001)
    given = {"name": "o", "kind": "mqtt", "broker": "mqtt://127.0.0.1", "topic": "t"}
    owner = MqttOwner("demo--a", "demo--a-1", "0", lambda: None, AnnouncedTopics(folder / "announced.json"))
    return MqttOutput(msgspec.convert(given, OutputSection), owner, bench.log).run()


def keep_hub_link(bench: Bench, _folder: Path) -> Coroutine[Any, Any, None]:
    return HubLink(bench.connect, lambda _: None, lambda: 0.0, bench.log).run()


KEEPERS = {
    "edge_agent/uplink/connection.py": keep_device_link,
    "edge_agent/sources/sensor.py": keep_sensor,
    "edge_agent/outputs/mqtt.py": keep_output,
    "cloud_hub/runtime/link.py": keep_hub_link,
}


def test_these_are_all_that_keep_a_connection_to_a_broker():
    files = [path for folder in ("edge_agent", "cloud_hub") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if ".receive()" in path.read_text(encoding="utf-8")}
    assert found == set(KEEPERS)


@pytest.mark.parametrize("place", KEEPERS)
async def test_after_a_session_is_taken_over_the_pause_is_one_to_two_of_its_units_and_the_log_says_why(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(backoff, "TAKEN_OVER_S", PAUSE_S)
    bench = Bench(TakenOver, monkeypatch)
    gaps = await bench.count_gaps(KEEPERS[place](bench, tmp_path), CONNECTIONS)
    assert len(gaps) >= CONNECTIONS - 1
    assert min(gaps) >= PAUSE_S
    assert "session taken over" in bench.stream.getvalue()


@pytest.mark.parametrize("place", KEEPERS)
async def test_a_connection_that_merely_ends_is_made_anew_without_that_pause(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bench = Bench(Ended, monkeypatch)  # a minute as it comes
    assert len(await bench.count_gaps(KEEPERS[place](bench, tmp_path), CONNECTIONS)) >= CONNECTIONS - 1


def test_the_pause_is_a_minute_to_two_and_differs_between_two_that_were_taken_over_at_once():
    assert [backoff.compute_taken_over_pause(dice) for dice in (0.0, 0.5, 1.0)] == [60.0, 90.0, 120.0]
