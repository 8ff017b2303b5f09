"""Benchmark: processor time of an agent and bytes written to its files, for each escalation that the hub answers.

`python -m benchmarks.agent.escalation [--profile] [--before TREE]`. The agent is a process of its own, hub and broker
are the real ones. Questions are asked one after the other (the judged figures: a verdict's commit is then shared with
the next question's), and again with a pause between them (each commit alone). Bytes are those of write(2) less what the
sockets sent: the write-ahead log and its checkpoints. `--before`: an agent of another source tree takes turns with this
one's, at the same hub. `--profile`: the dearest functions of the event loop's thread, in a run of their own.
"""

import argparse
import asyncio
import cProfile
import io
import json
import pstats
import resource
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import US, Figure, format_number
from benchmarks.harness.rig import POLICY, ROOT, BenchmarkRig, read_line, run_child
from edge_agent.app.agent import Agent
from edge_agent.identity.identity import load_identity
from edge_agent.question.records import AnswerSource, Sample
from edge_agent.system.settings import AgentSettings
from models.bundle.bundle import open_bundle
from models.forge.data.digits import load_heldout
from models.runtime.onnx_runner import OnnxRunner
from policies.language.document import parse_policy
from wire.transport.mqtt import MqttTransport

ROUNDS, TIMES, WARM = 12, 50, 50
PACED_ROUNDS, PACED, PAUSE_S = 3, 20, 0.05
LIMIT_MS, LIMIT_KB = 1.5, 20.0
_SHOWN = 45  # functions of a profile


class AgentCost(NamedTuple):
    """What one escalation cost: CPU seconds of the process and of its loop's thread, bytes, write(2) calls, commits.

    `file_bytes`: passed to write(2); `disk_bytes`: pages that the kernel handed to the block layer. `waits`: how often
    a thread of it went to sleep (voluntary context switches); `inline_commits`: commits that no thread was woken for.
    """

    cpu_s: float
    loop_s: float
    file_bytes: float
    disk_bytes: float
    writes: float
    commits: float
    waits: float = 0.0
    inline_commits: float = 0.0


async def run_benchmark(
    folder: Path, bundle: Path, *, before: Path | None = None, profiled: bool = False
) -> list[Figure]:
    """Median cost of `ROUNDS` rounds of `TIMES` escalations; `before`: a source tree whose agent takes turns."""
    trees = [ROOT, *([before] if before else [])]
    async with BenchmarkRig(folder, bundle) as rig, rig.run_hub(), AsyncExitStack() as stack:
        await rig.enrol_devices(len(trees))
        children = [await stack.enter_async_context(_start_child(rig, at, tree)) for at, tree in enumerate(trees)]
        busy = await _take_turns(children, ROUNDS, f"{TIMES} 0")
        paced = await _take_turns(children, PACED_ROUNDS, f"{PACED} {PAUSE_S}")
        if profiled:
            print(await _order(children[0], "profile"), file=sys.stderr)
    terms = tuple(
        f"{whose}{how}: {_format_cost(costs[at])}"
        for at, whose in enumerate(["", "before: "][: len(trees)])
        for how, costs in (("one after the other", busy), (f"one every {PAUSE_S * 1e3:.0f} ms", paced))
    )
    if before:
        ratios = sorted(now.cpu_s / was.cpu_s for now, was in zip(*busy, strict=True))
        shown = ", ".join(format_number(each) for each in ratios)
        terms += (f"processor time of before's, one after the other: {format_number(median(ratios))} ({shown})",)
    return [
        Figure("agent's processor time for an escalation", _median(busy[0], 0) * 1e3, "ms", LIMIT_MS, terms=terms),
        Figure("written to the agent's files for an escalation", _median(busy[0], 2) / 1e3, "KB", LIMIT_KB),
    ]


@asynccontextmanager
async def _start_child(rig: BenchmarkRig, number: int, tree: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A device's agent of a source tree, connected and warm."""
    words = ("--child", str(rig.folder / f"device-{number}"), str(rig.bundle), str(rig.broker.port))
    log = rig.folder / f"agent-{number}.log"
    async with run_child("benchmarks.agent.escalation", *words, log=log, tree=tree, stdin=PIPE) as child:
        await read_line(child)
        yield child


async def _take_turns(children: list[asyncio.subprocess.Process], rounds: int, words: str) -> list[list[AgentCost]]:
    """What each child told of each round; in every second round the last one begins."""
    costs: list[list[AgentCost]] = [[] for _ in children]
    for round_ in range(rounds):
        pairs = list(zip(children, costs, strict=True))
        for child, told in reversed(pairs) if round_ % 2 else pairs:
            told.append(AgentCost(*json.loads(await _order(child, words))))
    return costs


async def _order(child: asyncio.subprocess.Process, words: str) -> str:
    assert child.stdin is not None
    child.stdin.write(f"{words}\n".encode())
    return str(json.loads(await read_line(child, 300)))


def _median(costs: list[AgentCost], at: int) -> float:
    return median(each[at] for each in costs)


def _format_cost(costs: list[AgentCost]) -> str:
    cpu, loop, size, disk, writes, commits, waits, inline = (_median(costs, at) for at in range(8))
    least = format_number(min(each.cpu_s for each in costs) * US)
    spent = f"{format_number(cpu * US)} us (least {least}), of it the loop's thread {format_number(loop * US)}"
    written = f"{format_number(size / 1e3)} KB in {format_number(writes)} writes and {format_number(commits)} commits"
    slept = f"{format_number(waits)} sleeps of a thread, {format_number(inline)} commits on the event loop"
    return f"{spent}; {written}, {format_number(disk / 1e3)} KB to the disk; {slept}"


# In the agent's process

_SAMPLES = [np.ascontiguousarray(x) for x in load_heldout()[0]]


async def run_agent(state: Path, bundle: Path, port: int) -> None:
    """Run an agent; for each line of stdin ("TIMES PAUSE" or "profile") print what it cost, as JSON, until it ends."""
    identity = load_identity(state)
    policy = parse_policy(POLICY.format(mode="hub_first", threshold=0.9)).compile()

    async def connect() -> MqttTransport:
        return await MqttTransport.connect("127.0.0.1", port, identity.device, identity.tls_context())

    agent = Agent(AgentSettings(state_dir=state), identity, OnnxRunner(open_bundle(bundle)), policy, connect)
    running = asyncio.create_task(agent.run())
    while agent.status()["link"] != "up":
        await asyncio.sleep(0.05)
    await _ask(agent, WARM, 0.0)
    print("ready", flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if line == "profile":
            told = await _profile(agent)
        else:
            times, pause_s = line.split()
            told = json.dumps(await _measure(agent, int(times), float(pause_s)))
        print(json.dumps(told), flush=True)
    agent.stop()
    await running


async def _measure(agent: Agent, times: int, pause_s: float) -> AgentCost:
    before = _read_counters(agent)
    await _ask(agent, times, pause_s)
    return AgentCost(*((now - was) / times for now, was in zip(_read_counters(agent), before, strict=True)))


async def _ask(agent: Agent, times: int, pause_s: float) -> None:
    for number in range(times):
        answer = await agent.infer(Sample(_SAMPLES[number % len(_SAMPLES)], "open"))
        if answer.source is not AnswerSource.HUB:
            raise RuntimeError(f"asked the hub, got {answer.source}: {answer.why}")
        if pause_s:
            await asyncio.sleep(pause_s)


def _read_counters(agent: Agent) -> AgentCost:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
    sent = agent._connections.sent_bytes  # noqa: SLF001 - no status says it
    return AgentCost(
        time.process_time_ns() / 1e9,
        time.thread_time_ns() / 1e9,
        int(counts["wchar"]) - sent,
        int(counts["write_bytes"]),
        int(counts["syscw"]),
        agent._db.commits,  # noqa: SLF001
        resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw,
        agent._db.inline_commits,  # noqa: SLF001
    )


async def _profile(agent: Agent) -> str:
    """The dearest functions of this thread by processor time, alone and with what they call; calls are counted."""
    profile, shown = cProfile.Profile(time.thread_time), io.StringIO()
    profile.enable()
    await _ask(agent, TIMES, 0.0)
    profile.disable()
    for order in ("tottime", "cumtime"):
        pstats.Stats(profile, stream=shown).sort_stats(order).print_stats(_SHOWN)
    return shown.getvalue()


def main() -> int:
    """1 if an aim was not held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent.escalation", description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print the event loop's dearest functions too")
    parser.add_argument("--before", type=Path, help="another source tree with this file, whose agent takes turns")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        state, bundle, port = asked.child
        asyncio.run(run_agent(Path(state), Path(bundle), int(port)))
        return 0

    async def benchmark(folder: Path, bundle: Path) -> list[Figure]:
        return await run_benchmark(folder, bundle, before=asked.before, profiled=asked.profile)

    return run_alone(benchmark)


if __name__ == "__main__":
    sys.exit(main())
