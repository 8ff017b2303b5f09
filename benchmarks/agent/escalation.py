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
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import US, Figure, format_number
from benchmarks.harness.rig import POLICY, ROOT, BenchmarkRig, read_line, run_child
from edge_agent.app.agent import Agent
from edge_agent.core.records import AnswerSource, Sample
from edge_agent.identity.identity import load_identity
from edge_agent.system.settings import AgentSettings
from models.bundle.bundle import open_bundle
from models.forge.data.digits import load_heldout
from models.runtime.onnx_runner import OnnxRunner
from policies.language.document import parse_policy
from wire.transport.mqtt import MqttTransport

ROUNDS, TIMES, WARM = 3, 200, 50
PACED, PAUSE_S = 60, 0.05
LIMIT_MS, LIMIT_KB = 1.5, 20.0
_SHOWN = 45  # functions of a profile


class AgentCost(NamedTuple):
    """What one escalation cost: CPU seconds of the process and of its loop's thread, bytes, write(2) calls, commits.

    `file_bytes`: passed to write(2); `disk_bytes`: pages that the kernel handed to the block layer.
    """

    cpu_s: float
    loop_s: float
    file_bytes: float
    disk_bytes: float
    writes: float
    commits: float


class AgentRound(NamedTuple):
    """Costs in one process, one question after the other and with pauses between them."""

    busy: AgentCost
    paced: AgentCost


async def run_benchmark(
    folder: Path, bundle: Path, *, before: Path | None = None, profiled: bool = False
) -> list[Figure]:
    """Median cost of `ROUNDS` agents, each of `TIMES` escalations; `before`: a source tree to compare with."""
    trees = [each for each in (before, ROOT) if each]
    rounds: dict[Path, list[AgentRound]] = {tree: [] for tree in trees}
    async with BenchmarkRig(folder, bundle) as rig, rig.run_hub():
        await rig.enrol_devices(len(trees))
        for _ in range(ROUNDS):
            for at, tree in enumerate(trees):
                rounds[tree].append(await _run_round(rig, folder / f"device-{at}", tree))
        if profiled:
            print(await _run_child(rig, folder / "device-0", ROOT, "profile"), file=sys.stderr)
    terms = tuple(term for tree in trees for term in _describe("" if tree is ROOT else "before: ", rounds[tree]))
    cpu_ms = median(each.busy.cpu_s for each in rounds[ROOT]) * 1e3
    size_kb = median(each.busy.file_bytes for each in rounds[ROOT]) / 1e3
    return [
        Figure("agent's processor time for an escalation", cpu_ms, "ms", LIMIT_MS, terms=terms),
        Figure("written to the agent's files for an escalation", size_kb, "KB", LIMIT_KB),
    ]


async def _run_round(rig: BenchmarkRig, state: Path, tree: Path) -> AgentRound:
    return AgentRound(*(AgentCost(*each) for each in json.loads(await _run_child(rig, state, tree, "cost"))))


async def _run_child(rig: BenchmarkRig, state: Path, tree: Path, word: str) -> str:
    words = (str(state), str(rig.bundle), str(rig.broker.port), word)
    async with run_child(
        "benchmarks.agent.escalation", "--child", *words, log=rig.folder / "agent.log", tree=tree
    ) as child:
        return str(json.loads(await read_line(child, 300)))


def _describe(whose: str, rounds: list[AgentRound]) -> list[str]:
    busy, paced = [each.busy for each in rounds], [each.paced for each in rounds]
    cpu = ", ".join(format_number(each.cpu_s * US) for each in busy)
    return [
        f"{whose}one after the other: {_format_cost(busy)} (rounds: {cpu} us)",
        f"{whose}one every {PAUSE_S * 1e3:.0f} ms: {_format_cost(paced)}",
    ]


def _format_cost(costs: list[AgentCost]) -> str:
    cpu, loop, size, disk, writes, commits = (median(each[at] for each in costs) for at in range(6))
    spent = f"{format_number(cpu * US)} us, of it the loop's thread {format_number(loop * US)}"
    written = f"{format_number(size / 1e3)} KB in {format_number(writes)} writes and {format_number(commits)} commits"
    return f"{spent}; {written}, {format_number(disk / 1e3)} KB to the disk"


# In the agent's process

_SAMPLES = [np.ascontiguousarray(x) for x in load_heldout()[0]]


async def run_agent(state: Path, bundle: Path, port: int, word: str) -> str:
    """Run an agent, ask, and return what it cost as JSON, or its profile."""
    identity = load_identity(state)
    policy = parse_policy(POLICY.format(mode="hub_first", threshold=0.9)).compile()

    async def connect() -> MqttTransport:
        return await MqttTransport.connect("127.0.0.1", port, identity.device, identity.tls_context())

    agent = Agent(AgentSettings(state_dir=state), identity, OnnxRunner(open_bundle(bundle)), policy, connect)
    running = asyncio.create_task(agent.run())
    while agent.status()["link"] != "up":
        await asyncio.sleep(0.05)
    await _ask(agent, WARM, 0.0)
    if word == "profile":
        told = await _profile(agent)
    else:
        told = json.dumps([await _measure(agent, TIMES, 0.0), await _measure(agent, PACED, PAUSE_S)])
    agent.stop()
    await running
    return told


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
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        state, bundle, port, word = asked.child
        print(json.dumps(asyncio.run(run_agent(Path(state), Path(bundle), int(port), word))))
        return 0

    async def benchmark(folder: Path, bundle: Path) -> list[Figure]:
        return await run_benchmark(folder, bundle, before=asked.before, profiled=asked.profile)

    return run_alone(benchmark)


if __name__ == "__main__":
    sys.exit(main())
