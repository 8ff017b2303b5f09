"""Benchmark: sealed intake of one hub over MQTT: PostgreSQL over SQLite, and SQLite now over SQLite before.

`python -m benchmarks.region.intake`. The hubs take turns on one broker, with the same devices and keys: the hub of the
last commit before hubs could share a database (from a work tree), today's over a file, today's over PostgreSQL under
leases. Each takes a flood of sealed questions, every device with its window of 32, then single questions one by one.
"""

import asyncio
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import US, Figure, find_median, format_number
from benchmarks.harness.questions import WINDOW, QuestionSender, parse_owned, seal_questions
from benchmarks.harness.rig import ROOT, BenchmarkRig, read_line, run_child
from benchmarks.hub.sealed import read_cpu_s
from benchmarks.region import older
from edge_agent.identity.identity import Identity
from simulations.processes import list_children
from tests.postgres import PostgresServer
from wire.protocol.topics import HUB_NAME, TopicChannel, build_topic
from wire.transport.mqtt import MqttTransport

DEVICES, EACH, ALONE, ROUNDS = 8, 600, 150, 3
FILE, SERVER, BEFORE = "SQLite", "PostgreSQL", "SQLite before"
SERVER_SHARE, BEFORE_SHARE, SLOWER = 0.6, 0.97, 1.05


class Contender(NamedTuple):
    """A hub's program: the module, its words after those of the broker, its state, and the tree that it runs from."""

    module: str
    words: tuple[str, ...]
    state: Path
    tree: Path = ROOT


class IntakeRound(NamedTuple):
    """Questions a second, CPU seconds of hub, broker and server for each, and seconds from a question to its receipt.

    `alone_s`: of one question at a time, p50.
    """

    per_s: float
    hub_s: float
    broker_s: float
    server_s: float
    alone_s: float


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    async with BenchmarkRig(folder, bundle) as rig:
        async with rig.run_hub():
            devices = await rig.enrol_devices(DEVICES)
        with ExitStack() as stack:
            server = stack.enter_context(PostgresServer())
            root = rig.state.root
            contenders = {
                FILE: Contender("benchmarks.intake.hub", ("parked",), root),
                SERVER: Contender("benchmarks.region.hub", ("parked", HUB_NAME, server.create_database()), root),
            }
            try:
                tree = stack.enter_context(older.check_out(folder / "before"))
                state = older.copy_state(root, folder / "state-before")
                contenders[BEFORE] = Contender("benchmarks.intake.hub", ("parked",), state, tree)
                why = ""
            except older.NoHistoryError as error:
                why = str(error)
            seen = await _run_rounds(rig, devices, contenders, server)
    return [_compare_server(seen), *_compare_before(seen, why)]


async def _run_rounds(
    rig: BenchmarkRig, devices: list[Identity], contenders: Mapping[str, Contender], server: PostgresServer
) -> dict[str, list[IntakeRound]]:
    """Rounds of each; who begins changes."""
    seen: dict[str, list[IntakeRound]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(ROUNDS):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seen[name].append(await _measure(rig, devices, contenders[name], server))
    return seen


async def _measure(rig: BenchmarkRig, devices: list[Identity], asked: Contender, server: PostgresServer) -> IntakeRound:
    words = (str(asked.state), *rig.as_hub, *asked.words)
    async with run_child(asked.module, *words, log=rig.folder / "intake.log", tree=asked.tree) as hub:
        await read_line(hub)
        senders = [await _connect(rig, device, EACH) for device in devices]
        pids = ([hub.pid], [rig.broker.pid or 0], list_children(server.pid, "postgres"))
        before, began = [sum(map(read_cpu_s, each)) for each in pids], time.perf_counter()
        done = sum(map(len, await asyncio.gather(*(_send(sender, WINDOW) for sender in senders))))
        took = time.perf_counter() - began
        spent = [(sum(map(read_cpu_s, each)) - was) / done for each, was in zip(pids, before, strict=True)]
        alone = await _send(one := await _connect(rig, devices[0], ALONE, senders[0]), 1)
        for sender in (one, *senders[1:]):
            await sender.link.close()
    return IntakeRound(done / took, spent[0], spent[1], spent[2], find_median(alone))


async def _connect(
    rig: BenchmarkRig, identity: Identity, count: int, earlier: QuestionSender | None = None
) -> QuestionSender:
    frames = seal_questions(identity, secrets.randbits(63), count)
    if earlier is not None:
        return earlier._replace(frames=frames)
    link = await MqttTransport.connect("127.0.0.1", rig.broker.port, identity.device, identity.tls_context())
    await link.subscribe((build_topic(identity.device, TopicChannel.REPLY),))
    return QuestionSender(identity, link, frames)


async def _send(sender: QuestionSender, window: int) -> list[float]:
    """Send everything in a closed loop; seconds from each question to its receipt."""
    up, posted, taken = build_topic(sender.identity.device, TopicChannel.QUESTION), list[float](), dict[int, float]()
    while len(taken) < len(sender.frames):
        while len(posted) < len(sender.frames) and len(posted) - len(taken) < window:
            sender.link.post(up, sender.frames[len(posted)])
            posted.append(time.perf_counter())
        for message in await asyncio.wait_for(sender.link.receive(), 20):
            now = time.perf_counter()
            for seq in parse_owned(message.payload):  # the first question has seq 1
                taken.setdefault(seq, now - posted[seq - 1])
    return list(taken.values())


def _compare_server(seen: Mapping[str, list[IntakeRound]]) -> Figure:
    ratios = [theirs.per_s / ours.per_s for ours, theirs in zip(seen[FILE], seen[SERVER], strict=True)]
    hub, broker, server = (median(each[at] for each in seen[SERVER]) * US for at in (1, 2, 3))
    whole = median(each.per_s for each in seen[SERVER]) * hub / US
    terms = (
        *(_describe(name, found) for name, found in seen.items()),
        f"rounds: {', '.join(map(format_number, ratios))}",
        f"bound by the hub's one event loop and the cores that all share: over {SERVER} its process is busy "
        f"{whole * 100:.0f} % of a core, broker {broker / hub:.2f} and server {server / hub:.2f} of that beside it",
    )
    name = "sealed intake over MQTT, one hub: PostgreSQL under leases over SQLite"
    return Figure(name, median(ratios), "x", SERVER_SHARE, more_is_better=True, terms=terms)


def _compare_before(seen: Mapping[str, list[IntakeRound]], why: str) -> list[Figure]:
    faster = "SQLite hub now over before hubs could share a database: sealed intake"
    slower = "the same: p50 of one question at a time, to its receipt"
    nan = float("nan")
    if why:
        return [Figure(faster, nan, "x", BEFORE_SHARE, True, (why,)), Figure(slower, nan, "x", SLOWER, terms=(why,))]
    pairs = list(zip(seen[BEFORE], seen[FILE], strict=True))
    rates = [now.per_s / before.per_s for before, now in pairs]
    alone = [now.alone_s / before.alone_s for before, now in pairs]
    cpu = median(now.hub_s / before.hub_s for before, now in pairs)
    terms = (
        f"before is commit {older.COMMIT}; rounds: {', '.join(map(format_number, rates))}",
        f"processor time of the hub a question: {cpu:.2f} x",
    )
    both = ", ".join(
        f"{name} {format_number(median(each.alone_s for each in seen[name]) * 1000)} ms" for name in (BEFORE, FILE)
    )
    told = f"{both}; rounds: {', '.join(map(format_number, alone))}"
    return [
        Figure(faster, median(rates), "x", BEFORE_SHARE, more_is_better=True, terms=terms),
        Figure(slower, median(alone), "x", SLOWER, terms=(told, "5 % is what two runs of one program differ by")),
    ]


def _describe(name: str, found: list[IntakeRound]) -> str:
    hub, broker, server = (format_number(median(each[at] for each in found) * US) for at in (1, 2, 3))
    return (
        f"{name}: {format_number(median(each.per_s for each in found))} questions/s; of processors for each: "
        f"hub {hub} us, broker {broker} us" + (f", server {server} us" if name == SERVER else "")
    )


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
