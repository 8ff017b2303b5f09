"""Benchmark: 30 kills of hub and agents while questions are under way: none lost, none answered or recorded twice.

`python -m benchmarks.hub.kills`, three to five minutes. One hub with its own broker, four agents that ask about every
sample, eight callers each. By turns the hub and an agent are ended by SIGKILL at a random moment and started again; the
databases are judged when every question has its outcome.
"""

import asyncio
import random
import sys
import time
from pathlib import Path

import aiohttp

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure
from benchmarks.harness.rig import POLICY
from models.bundle.bundle import Bundle, open_bundle
from models.forge.data.digits import load_heldout
from simulations.checking.databases import judge_run
from simulations.checking.events import HistoryReport
from simulations.processes import AgentHandle, HubHandle, ProcessHarness

KILLS, AGENTS, CALLERS = 30, 4, 8
SEED = 30
PAUSES_S = (0.5, 3.0)  # of load between two kills, at least and at most
SETTLE_S = 240.0  # for the rest, once nobody is killed any more
QUICK_LINK = {"link": {"reconnect_base_s": 0.2, "reconnect_cap_s": 1.0}}


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    began = time.monotonic()
    report = await run_kills(folder, open_bundle(bundle), KILLS)
    terms = (
        f"{report.accepted:,} questions accepted, {report.answered:,} answered ({report.answers_by_hub:,} by the hub), "
        f"{report.late:,} of them late, {report.expired:,} expired, {report.open} open",
        f"{KILLS} kills of the hub and of {AGENTS} agents in turn, {time.monotonic() - began:.0f} s in all",
        f"flaws: {report.flaws or 'none'}",
    )
    name = f"{KILLS} kills under load"
    return [
        Figure(f"{name}: questions lost", report.lost, "questions", 0.0, terms=terms),
        Figure(f"{name}: doubled", report.doubled, "answers", 0.0),
        Figure(f"{name}: laws of the record broken", float(sum(report.flaws.values())), "laws", 0.0),
    ]


async def run_kills(folder: Path, bundle: Bundle, kills: int) -> HistoryReport:
    """Kill the hub and agents by turns while all of them work; the judgement of their databases."""
    async with ProcessHarness(folder) as stage:
        hub = await stage.start_hub(bundle.path)
        policy = folder / "kills.policy.toml"
        policy.write_text(POLICY.format(mode="hub_first", threshold=0.9))
        agents = [await stage.add_agent(f"device-{n}", bundle.path, policy, QUICK_LINK) for n in range(AGENTS)]
        await asyncio.gather(*(stage.start_agent(agent) for agent in agents))
        callers = [asyncio.create_task(_ask_on(stage, agent, bundle)) for agent in agents for _ in range(CALLERS)]
        try:
            await _kill_in_turn(stage, hub, kills)
        finally:
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        await _settle(stage)
        return judge_run([agent.database for agent in agents], hub.questions)


async def _kill_in_turn(stage: ProcessHarness, hub: HubHandle, kills: int) -> None:
    """The hub and one agent after the other, by turns, at random moments; each is started again at once."""
    chance = random.Random(SEED)
    for number in range(kills):
        await asyncio.sleep(chance.uniform(*PAUSES_S))
        if number % 2 == 0:
            await hub.child.kill()
            await stage.launch_hub()
        else:
            victim = stage.agents[number // 2 % AGENTS]
            await victim.child.kill()
            await stage.start_agent(victim)


async def _ask_on(stage: ProcessHarness, agent: AgentHandle, bundle: Bundle) -> None:
    """One sample after the other until it is cancelled; while the agent is down it tries again."""
    samples, _ = load_heldout()
    url = f"{agent.url}/v2/models/{bundle.manifest.name}/infer"
    for number in range(sys.maxsize):
        x = samples[number % len(samples)]
        tensor = {"name": bundle.manifest.input.name, "shape": [1, *x.shape], "datatype": "FP32"}
        try:
            async with stage.session.post(url, json={"inputs": [{**tensor, "data": x.ravel().tolist()}]}) as response:
                await response.read()
        except (aiohttp.ClientError, TimeoutError):  # it was killed just now
            await asyncio.sleep(0.1)


async def _settle(stage: ProcessHarness) -> None:
    """Until no agent has an open question. TimeoutError if some stay."""
    async with asyncio.timeout(SETTLE_S):
        while any([(await stage.fetch_status(agent))["open"] for agent in stage.agents]):
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
