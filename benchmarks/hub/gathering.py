"""Benchmark: what gathering questions into rounds saves and costs: processor time and latency at steady rates.

`python -m benchmarks.hub.gathering`. Devices ask at random times (Poisson), whatever has been answered. Two hubs take
turns at each rate: one that gathers as it is shipped, one whose `gather_s` is 0.
"""

import asyncio
import random
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import US, Figure, find_median, find_percentile, format_number
from benchmarks.harness.questions import QuestionSender, seal_questions
from benchmarks.harness.rig import BenchmarkRig, read_line, run_child
from benchmarks.hub.sealed import read_cpu_s
from cloud_hub.system.settings import HubSettings
from edge_agent.identity.identity import Identity
from wire.protocol.codec import split_frame
from wire.protocol.messages import CipherSuite
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.mqtt import MqttTransport

DEVICES, RATES_PER_S, SECONDS, ROUNDS = 16, (50, 200, 500), 4.0, 3
LIMIT = 0.8  # of the processor time of a verdict at the middle rate


class SteadyLoad(NamedTuple):
    """Of one run: the hub's processor time for a verdict, and seconds from a question to its verdict."""

    hub_s: float
    taken_s: list[float]


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    found: dict[tuple[int, bool], list[SteadyLoad]] = {}
    async with BenchmarkRig(folder, bundle) as rig:
        async with rig.run_hub():
            devices = await rig.enrol_devices(DEVICES)
        for gathers, rate in _order_turns():
            found.setdefault((rate, gathers), []).append(await _run_hub(rig, devices, rate, gathers=gathers))
    ratios = {rate: _compare(found[rate, True], found[rate, False]) for rate in RATES_PER_S}
    terms = tuple(_describe(rate, found[rate, True], found[rate, False]) for rate in RATES_PER_S)
    middle = RATES_PER_S[1]
    name = f"gathered rounds at {middle} questions/s: hub's processor time for a verdict over that without"
    return [Figure(name, ratios[middle], "x", LIMIT, terms=terms)]


def _order_turns() -> Iterator[tuple[bool, int]]:
    """Which hub is asked at which rate when: each comes first in every other round."""
    for turn in range(ROUNDS):
        pair = (True, False) if turn % 2 else (False, True)
        yield from ((gathers, rate) for gathers in pair for rate in RATES_PER_S)


def _compare(with_rounds: list[SteadyLoad], without: list[SteadyLoad]) -> float:
    return median(a.hub_s / b.hub_s for a, b in zip(with_rounds, without, strict=True))


def _describe(rate: int, with_rounds: list[SteadyLoad], without: list[SteadyLoad]) -> str:
    told = []
    for loads in (with_rounds, without):
        taken = [second for load in loads for second in load.taken_s]
        cpu = format_number(median(load.hub_s for load in loads) * US)
        p50, p99 = find_median(taken) * 1000, find_percentile(taken, 0.99) * 1000
        told.append(f"{cpu} us, p50 {format_number(p50)} ms, p99 {format_number(p99)} ms")
    return f"{rate}/s: gathered {told[0]}; at once {told[1]} ({_compare(with_rounds, without):.2f} x)"


async def _run_hub(rig: BenchmarkRig, devices: list[Identity], rate: int, *, gathers: bool) -> SteadyLoad:
    gather_s = HubSettings().gather_s if gathers else 0.0
    words = (str(rig.state.root), *rig.as_hub, str(gather_s))
    async with run_child("benchmarks.hub.server", *words, log=rig.folder / "gathering.log") as hub:
        await read_line(hub)
        each = int(rate * SECONDS / len(devices)) + 8
        senders = [await _connect_sender(rig, device, each) for device in devices]
        await _ask_at_random(senders, rate, 0.5, first=0)
        before, first = read_cpu_s(hub.pid), 1 + int(rate * 0.5 / len(devices))
        taken = await _ask_at_random(senders, rate, SECONDS - 1.0, first=first)
        spent = (read_cpu_s(hub.pid) - before) / len(taken)
        for sender in senders:
            await sender.link.close()
    return SteadyLoad(spent, taken)


async def _connect_sender(rig: BenchmarkRig, identity: Identity, count: int) -> QuestionSender:
    frames = seal_questions(identity, secrets.randbits(63), count)
    link = await MqttTransport.connect("127.0.0.1", rig.broker.port, identity.device, identity.tls_context())
    await link.subscribe((build_topic(identity.device, TopicChannel.REPLY),))
    return QuestionSender(identity, link, frames)


async def _ask_at_random(senders: list[QuestionSender], rate: int, seconds: float, first: int) -> list[float]:
    """Seconds of each question from when it was due to its verdict."""
    count = int(rate * seconds / len(senders))
    dice, began = random.Random(7), time.perf_counter()
    due = [sorted(began + dice.random() * seconds for _ in range(count)) for _ in senders]
    asked = zip(senders, due, strict=True)
    return [each for taken in await asyncio.gather(*(_ask(*each, first) for each in asked)) for each in taken]


async def _ask(sender: QuestionSender, due: list[float], first: int) -> list[float]:
    up, taken = build_topic(sender.identity.device, TopicChannel.QUESTION), dict[int, float]()

    async def post() -> None:
        for at, when in enumerate(due, first):
            await asyncio.sleep(max(0.0, when - time.perf_counter()))
            sender.link.post(up, sender.frames[at])

    posting = asyncio.create_task(post())
    while len(taken) < len(due):
        for message in await asyncio.wait_for(sender.link.receive(), 20):
            frame = split_frame(message.payload)
            seq = frame.header.seq - 1 - first
            if frame.suite is CipherSuite.SEALED and 0 <= seq < len(due):
                taken[seq] = time.perf_counter() - due[seq]
    await posting
    return list(taken.values())


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
