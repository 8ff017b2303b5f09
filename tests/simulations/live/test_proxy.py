"""Proxy of live runs: what a lane does to the bytes that pass, and that it never changes them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from random import Random
from typing import NamedTuple

import pytest

from simulations.live.proxy import LaneConditions, ProxyLane, ProxySide
from tests.examples import further

COUNTS = ("connections", "unreached", "stalled", "sliced", "reset", "up_bytes", "down_bytes")


class Road(NamedTuple):
    """A lane to a server that says everything back, and the port where it begins."""

    lane: ProxyLane
    port: int
    writers: list[asyncio.StreamWriter]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer


@pytest.fixture
async def road() -> AsyncIterator[Road]:
    ended = asyncio.Semaphore(0)
    begun: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.append(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()
        ended.release()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    lane = ProxyLane(server.sockets[0].getsockname()[1], Random(1), dict.fromkeys(COUNTS, 0))
    front = await asyncio.get_running_loop().create_server(lambda: ProxySide(lane), "127.0.0.1", 0)
    road = Road(lane, front.sockets[0].getsockname()[1], [])
    yield road
    for writer in road.writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    lane.set_conditions(LaneConditions(refuse=True))
    front.close()
    server.close()
    async with asyncio.timeout(60):
        for _ in begun:
            await ended.acquire()


async def said_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    async with asyncio.timeout(60):
        return await reader.readexactly(len(data))


@pytest.mark.parametrize(
    "conditions",
    [
        LaneConditions(),
        further(LaneConditions(latency_s=0.02)),
        further(LaneConditions(slice_bytes=7)),
        further(LaneConditions(latency_s=0.005, slice_bytes=100, loss=0.02)),
    ],
)
async def test_whatever_the_weather_the_bytes_arrive_unchanged_and_in_order(road: Road, conditions: LaneConditions):
    road.lane.set_conditions(conditions)
    reader, writer = await road.connect()
    data = bytes(range(256)) * 8
    assert await said_back(reader, writer, data) == data
    assert (road.lane.counts["up_bytes"], road.lane.counts["down_bytes"]) == (len(data), len(data))


async def test_latency_is_paid_both_ways(road: Road):
    road.lane.set_conditions(LaneConditions(latency_s=0.1))
    reader, writer = await road.connect()
    began = time.monotonic()
    await said_back(reader, writer, b"x")
    assert time.monotonic() - began >= 0.1  # half of it is certain, each way


@pytest.mark.further
async def test_a_lost_segment_is_a_stall_and_nothing_is_missing(road: Road):
    road.lane.set_conditions(LaneConditions(loss=1.0))
    reader, writer = await road.connect()
    began = time.monotonic()
    assert await said_back(reader, writer, b"hello") == b"hello"
    assert time.monotonic() - began >= 0.4
    assert road.lane.counts["stalled"] == 2


async def test_what_was_said_during_a_partition_arrives_after_it(road: Road):
    reader, writer = await road.connect()
    await said_back(reader, writer, b"before")
    road.lane.set_conditions(LaneConditions(up=False, down=False))
    writer.write(b"during")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await reader.readexactly(6)
    road.lane.set_conditions(LaneConditions())
    async with asyncio.timeout(60):
        assert await reader.readexactly(6) == b"during"


async def test_a_half_open_link_carries_one_way_alone(road: Road):
    reader, writer = await road.connect()
    await said_back(reader, writer, b"before")
    road.lane.set_conditions(LaneConditions(down=False))
    writer.write(b"up")
    while road.lane.counts["up_bytes"] < len(b"beforeup"):
        await asyncio.sleep(0.01)
    assert road.lane.counts["down_bytes"] == len(b"before")
    road.lane.set_conditions(LaneConditions())
    async with asyncio.timeout(60):
        assert await reader.readexactly(2) == b"up"


async def test_resets_hang_up_on_both_sides_and_a_new_connection_gets_through(road: Road):
    reader, writer = await road.connect()
    await said_back(reader, writer, b"before")
    road.lane.set_conditions(LaneConditions(resets_per_s=1000.0))
    road.lane.reset_connections(1.0)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await said_back(reader, writer, b"after")
    road.lane.set_conditions(LaneConditions())
    assert await said_back(*await road.connect(), b"again") == b"again"
    assert road.lane.counts["reset"] == 1


async def test_while_it_refuses_nobody_gets_through_and_nobody_stays(road: Road):
    held = await road.connect()
    await said_back(*held, b"before")
    road.lane.set_conditions(LaneConditions(refuse=True))
    for reader, writer in (held, await road.connect()):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await said_back(reader, writer, b"anybody?")
    assert not road.lane.pairs
