"""Benchmark: verdicts a second of two and three hubs over one hub, each with an engine of 50 ms + 2 ms a question.

`python -m benchmarks.region.goodput`. One PostgreSQL, one broker, leases; the engines wait as accelerators do,
in batches of 16, so that processors are not what bounds them. Devices keep eight questions under way each. The second
and the third hub come while the others run, and are measured once each has its share of the shards.
"""

import asyncio
import secrets
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import sqlalchemy as sa

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, format_number
from benchmarks.harness.questions import QuestionSender, seal_questions
from benchmarks.harness.rig import BenchmarkRig, read_line, run_child
from benchmarks.hub.sealed import read_cpu_s
from benchmarks.region.hub import BASE_S, ITEM_S, MOST
from cloud_hub.security.authority import Authority, utc_now
from edge_agent.identity.identity import Identity
from tests.postgres import PostgresServer
from wire.protocol.codec import split_frame
from wire.protocol.messages import CipherSuite
from wire.protocol.topics import HUB_NAMES, TopicChannel, build_topic
from wire.transport.mqtt import MqttTransport

HUBS, DEVICES, WINDOW = 3, 32, 8
WARM_S, SPAN_S, SPANS = 2.0, 4.0, 3
LIMITS = {2: 1.9, 3: 2.7}
SHARE_S = 60.0  # until the shards are divided


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    rates: dict[int, list[float]] = {}
    busy: dict[int, float] = {}
    async with BenchmarkRig(folder, bundle) as rig, AsyncExitStack() as stack:
        async with rig.run_hub():
            devices = await rig.enrol_devices(DEVICES)
        server = stack.enter_context(PostgresServer())
        url, pids = server.create_database(), list[int]()
        for count in range(1, HUBS + 1):
            pids.append(await _start_hub(stack, rig, HUB_NAMES[count - 1], url))
            await _wait_shared(url, count)
            before = sum(map(read_cpu_s, pids))
            rates[count] = await _measure(rig, devices, count)
            busy[count] = (sum(map(read_cpu_s, pids)) - before) / (WARM_S + SPAN_S * SPANS)
    one = median(rates[1])
    bound = MOST / (BASE_S + ITEM_S * MOST)
    terms = tuple(
        f"{count} hubs: {format_number(median(found))} verdicts/s ({', '.join(map(format_number, found))}), "
        f"{median(found) / count / bound * 100:.0f} % of what their engines give, "
        f"hubs' processes {busy[count] * 100:.0f} % of a core"
        for count, found in rates.items()
    )
    said = f"bound by the engines, {format_number(bound)} questions/s each"
    return [
        Figure(
            f"goodput of {count} hubs over 1, engines of 50 ms + 2 ms n", median(rates[count]) / one, "x", limit,
            more_is_better=True, terms=(*terms, said) if count == HUBS else (),
        )
        for count, limit in LIMITS.items()
    ]  # fmt: skip


async def _start_hub(stack: AsyncExitStack, rig: BenchmarkRig, member: str, url: str) -> int:
    pki = rig.state.certificates
    pair = Authority.open(pki, utc_now()).ensure_client(pki, member, utc_now())
    files = (str(rig.ca), str(pair.certificate), str(pair.key))
    words = (str(rig.state.root), str(rig.broker.port), *files, "waits", member, url)
    hub = await stack.enter_async_context(run_child("benchmarks.region.hub", *words, log=rig.folder / "hubs.log"))
    await read_line(hub)
    return hub.pid


async def _wait_shared(url: str, hubs: int) -> None:
    """Wait until so many hubs have equal shares of the shards."""
    query = "select count(*) from region.leases where kind = 'shard' and hub <> '' group by hub"
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    async with asyncio.timeout(SHARE_S):
        while True:
            with engine.connect() as connection:
                shares = [int(row[0]) for row in connection.exec_driver_sql(query)]
            if len(shares) == hubs and sum(shares) == 256 and max(shares) - min(shares) <= 1:
                return
            await asyncio.sleep(0.2)


async def _measure(rig: BenchmarkRig, devices: list[Identity], hubs: int) -> list[float]:
    """Verdicts a second in each span."""
    span_s = WARM_S + SPAN_S * SPANS
    enough = int(MOST / (BASE_S + ITEM_S * MOST) * hubs * span_s / DEVICES * 2.5) + WINDOW
    senders = [await _connect(rig, device, enough) for device in devices]
    answered = [0]
    loops = [asyncio.create_task(_ask(sender, answered)) for sender in senders]
    await asyncio.sleep(WARM_S)
    rates = []
    for _ in range(SPANS):
        before, began = answered[0], time.perf_counter()
        await asyncio.sleep(SPAN_S)
        rates.append((answered[0] - before) / (time.perf_counter() - began))
    for each in loops:
        each.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    for sender in senders:
        await sender.link.close()
    await asyncio.sleep(WINDOW * DEVICES / MOST * (BASE_S + ITEM_S * MOST))  # what is under way is computed
    return rates


async def _connect(rig: BenchmarkRig, identity: Identity, count: int) -> QuestionSender:
    frames = await asyncio.to_thread(seal_questions, identity, secrets.randbits(63), count)
    link = await MqttTransport.connect("127.0.0.1", rig.broker.port, identity.device, identity.tls_context())
    await link.subscribe((build_topic(identity.device, TopicChannel.REPLY),))
    return QuestionSender(identity, link, frames)


async def _ask(sender: QuestionSender, answered: list[int]) -> None:
    """Keep so many questions without a verdict under way, until cancelled. A verdict that comes again counts once."""
    up, posted, seen = build_topic(sender.identity.device, TopicChannel.QUESTION), 0, set[int]()
    while len(seen) < len(sender.frames):
        while posted < len(sender.frames) and posted - len(seen) < WINDOW:
            sender.link.post(up, sender.frames[posted])
            posted += 1
        for message in await sender.link.receive():
            frame = split_frame(message.payload)
            if frame.suite is CipherSuite.SEALED and frame.header.seq not in seen:
                seen.add(frame.header.seq)
                answered[0] += 1


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
