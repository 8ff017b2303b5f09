"""A broker that comes back to a fleet: 500 real TLS connections through the production link."""

import asyncio
import functools
import time
from collections import Counter
from pathlib import Path

import pytest

from cloud_hub.security.authority import utc_now
from edge_agent.system.settings import AgentSettings
from edge_agent.uplink.connection import Connection
from tests.live.doubles.own_broker import OwnBroker
from wire.process.logging import JsonLog
from wire.protocol.topics import TopicChannel
from wire.transport.base import IncomingMessage
from wire.transport.mqtt import MqttTransport

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
CLIENTS = 500
SPREAD_S = CLIENTS / 15  # what a hub of this size tells its devices


class Client:
    """Listens to one connection; remembers when it came up."""

    def __init__(self, link: Connection) -> None:
        self.link = link
        self.up_at: list[float] = []

    def on_up(self, line: str) -> None:
        self.up_at.append(time.monotonic())

    def on_down(self, line: str) -> None: ...

    def on_batch(self, batch: list[IncomingMessage], line: str) -> None: ...

    def on_order(self, payload: bytes, line: str) -> None: ...


def clients(broker: OwnBroker, folder: Path) -> list[Client]:
    made = []
    for number in range(CLIENTS):
        device = f"herd--d{number}"
        pair = broker.ground.authorities.ensure_client(device, utc_now())
        dial = functools.partial(MqttTransport.connect, "127.0.0.1", broker.port, device, broker.context(pair))
        settings = AgentSettings(state_dir=folder, connect_timeout_s=60.0)
        connect = functools.partial(dial, timeout_s=60.0)
        made.append(Client(Connection(device, connect, settings, Counter(), log=JsonLog(least="error"))))
    return made


async def until(test: functools.partial[bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not test():
        assert time.monotonic() < end, "not all clients came up"
        await asyncio.sleep(0.05)


def all_up(fleet: list[Client], times: int) -> bool:
    return all(len(client.up_at) >= times for client in fleet)


async def test_five_hundred_clients_come_back_over_half_a_minute_and_none_is_lost(tmp_path: Path):
    broker = OwnBroker(tmp_path)
    broker.start()
    fleet = clients(broker, tmp_path)
    running = [asyncio.create_task(client.link.run(client)) for client in fleet]
    try:
        await until(functools.partial(all_up, fleet, 1), 240)
        for client in fleet:
            client.link.set_reconnect_spread(SPREAD_S)
        broker.kill()
        broker.start()
        back_at = time.monotonic()
        await until(functools.partial(all_up, fleet, 2), 240)
        assert all(client.link.post(TopicChannel.ASK, b"still here") for client in fleet)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        broker.kill()
    came = sorted(client.up_at[-1] - back_at for client in fleet)
    assert came[-1] - came[0] >= 30, (came[0], came[-1])
    busiest = max(sum(start <= at < start + 1 for at in came) for start in came)
    assert busiest < CLIENTS / 5, f"{busiest} of {CLIENTS} within one second"
