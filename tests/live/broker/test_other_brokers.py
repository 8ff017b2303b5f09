"""Brokers and links that are not the hub's own Mosquitto next door: one of MQTT 3.1.1 alone, one two seconds away."""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness, find_free_port
from tests.live.doubles.fleet import QUICK, judged, policy, samples, settle, the_hub_answers
from tests.live.doubles.fleet import ask as ask_agent
from tests.live.doubles.proxy import proxied
from wire.transport.base import LinkLostError
from wire.transport.mqtt import DeviceMqttTransport, MqttTransport

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
REFUSED_PROTOCOL = b"\x20\x02\x00\x01"  # MQTT 3.1.1, table 3.1: unacceptable protocol version
ONE_WAY_S = 1.0


class OldBroker:
    """Speaks MQTT 3.1.1 and nothing newer: it answers CONNECT of MQTT 5 as that version says, then hangs up."""

    def __init__(self) -> None:
        self.connects = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            kind, length = await reader.readexactly(2)
            assert kind >> 4 == 1, "no CONNECT"
            while length & 0x80:
                length = (await reader.readexactly(1))[0]
            *name, version = await reader.readexactly(7)
            assert (bytes(name), version == 4) == (b"\x00\x04MQTT", False)
            self.connects += 1
            writer.write(REFUSED_PROTOCOL)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def old_broker(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[OldBroker]:
    broker = OldBroker()
    server = await asyncio.start_server(broker.accept, "127.0.0.1", port, ssl=tls)
    try:
        yield broker
    finally:
        server.close()


def as_the_hub(pki: Path) -> ssl.SSLContext:
    """What the hub's own broker shows, and asks of a device."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pki / "trusted.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(pki / "server.pem", pki / "server.key")
    return context


def link_lines(agent: AgentHandle) -> list[dict[str, str]]:
    """The agent's log lines on its link."""
    lines = [json.loads(line) for line in agent.child.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"].startswith("link_")]


async def test_device_and_hub_name_the_version_that_a_broker_lacks():
    port = find_free_port()
    async with old_broker(port):
        for transport in (DeviceMqttTransport, MqttTransport):
            with pytest.raises(LinkLostError, match="this broker does not speak MQTT 5, which is needed") as lost:
                await transport.connect("127.0.0.1", port, "demo--a", None)
            assert "\n" not in str(lost.value)


async def test_a_broker_of_mqtt_3_alone_is_one_clear_line_until_there_is_another(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    hub = await stage.start_hub(bundle.path)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), QUICK)
    await stage.start_agent(agent)
    await hub.child.kill()
    async with old_broker(hub.broker_port, as_the_hub(hub.folder / "pki")) as broker:
        await stage.wait_for(agent, lambda now: "MQTT 3.1.1" in now["link_error"], "the version is not named")
        assert (await ask_agent(stage, agent, bundle, samples(1)[0]))["source"] == "local"
        before = broker.connects
        await stage.wait_for(agent, lambda _: broker.connects > before + 2, "it does not go on trying")
    lost = [line for line in link_lines(agent) if line["event"] != "link_up"]
    assert len(lost) == 1, lost  # not one for each attempt
    await stage.launch_hub()
    await stage.wait_for(agent, lambda now: now["link"] == "up", "no way back")
    assert await the_hub_answers(stage, agent, bundle)
    await settle(stage)


async def test_a_link_over_websocket_with_two_seconds_a_round_trip_connects_with_the_limits_as_they_come(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    port = find_free_port()
    await stage.start_hub(bundle.path, {"broker": {"websocket_port": port}})
    async with proxied(port) as far:
        far.delay_s = ONE_WAY_S
        link = {"websocket": f"wss://127.0.0.1:{far.port}/mqtt"}  # nothing else is set
        agent = await stage.add_agent("a", bundle.path, policy(tmp_path, budget_s=30.0), {"link": link})
        began = time.monotonic()
        await stage.start_agent(agent)
        await stage.wait_for(agent, lambda now: now["link"] == "up", "it does not connect")
        assert time.monotonic() - began > 3 * 2 * ONE_WAY_S  # TLS, WebSocket and CONNECT go there and back
        answers = [await ask_agent(stage, agent, bundle, sample) for sample in samples(2)]
        await settle(stage)
        assert [line["event"] for line in link_lines(agent)] == ["link_up"], "at the first attempt"
    assert {answer["source"] for answer in answers} == {"hub"}
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()
