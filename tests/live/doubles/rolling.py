"""Drives rollouts of a stage as people do: samples flow, words are typed, and what they print is what is believed."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests import ROOT
from tests.live.doubles.fleet import POLICY, QUICK, ask, samples
from wire.process.exit_codes import ExitCode

SUMS = "".join(f'[[egress.field]]\nname = "{name}"\nlevel = "P1"\n' for name in ("quality", "signals"))
# Seconds in place of an hour; `margin`: what a handful of devices can show in that time. However slow the machine is, a
# device in probation has said more than once what its audits were before it has answered often enough to commit.
SHORT = {
    "soak_first_s": 3, "soak_s": 2, "probation_s": 5, "max_soak_s": 60, "min_inferences": 100, "look_s": 1,
    "report_s": 1, "audit_share": 0.9, "withdraw_s": 10, "gate.margin": 0.25, "gate.wide": 0.5,
    "gate.signals.p95": 1000,
}  # fmt: skip
AGENT: dict[str, dict[str, Any]] = {**QUICK, "updates": {"interval_s": 0, "every_s": 600}}
PAUSE_S = 0.01  # of each agent's caller between two samples


def policy(folder: Path) -> Path:
    """Answers at once, asks about what is unsure, and lets nearly all answers be audited if a rollout wants it."""
    path = folder / "policy.toml"
    text = POLICY.format(mode="answer_now", budget_s=0.5).replace("audit_share = 0.0", "audit_share = 0.9")
    path.write_text(text.replace("[egress.data_class]", SUMS + "[egress.data_class]"))
    return path


async def fleet(
    stage: ProcessHarness, bundle: Bundle, candidates: list[Bundle], count: int, extra: dict[str, Any] | None = None
) -> list[AgentHandle]:
    """A hub that serves all of them and has published `bundle`, and agents that run it; `extra`: its settings."""
    rules = policy(stage.folder)
    await stage.start_hub(bundle.path, extra, policies=[rules], also=[each.path for each in candidates])
    agents = [await stage.add_agent(f"a{n:02d}", "tuf:digits", "tuf:live", AGENT) for n in range(count)]
    for begin in range(0, count, 4):
        await asyncio.gather(*(stage.start_agent(agent) for agent in agents[begin : begin + 4]))
    for agent in agents:
        await stage.wait_for(agent, lambda s: s["updates"]["model"] == bundle.manifest.model, "it has no model")
    return agents


class Typed:
    """What a person sees after typing something."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = ExitCode(code), out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def typed(stage: ProcessHarness, *words: str) -> Typed:
    """`skerry rollout ...` at the hub."""
    assert stage.hub is not None
    command = (sys.executable, "-m", "skerry", "rollout", *words, "--config", str(stage.hub.child.config))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=pipe)
    out, err = await child.communicate()
    return Typed(child.returncode or 0, out.decode(), err.decode())


def sets(**more: object) -> list[str]:
    """--set for each parameter of a short rollout."""
    return [word for key, value in {**SHORT, **more}.items() for word in ("--set", f"{key}={value}")]


class Feed:
    """Callers of all agents. `versions`: which answered, by agent."""

    def __init__(self, stage: ProcessHarness, bundle: Bundle, agents: list[AgentHandle], pause_s: float) -> None:
        self._stage, self._bundle, self._pause_s = stage, bundle, pause_s
        self.versions: dict[str, Counter[str]] = {agent.name: Counter() for agent in agents}

    def ran(self, version: int) -> set[str]:
        """Agents that ever answered with it."""
        return {name for name, seen in self.versions.items() if seen[str(version)]}

    async def run(self, agent: AgentHandle) -> None:
        """Until cancelled."""
        xs = samples(500)
        while True:
            for x in xs:
                found = await ask(self._stage, agent, self._bundle, x)
                self.versions[agent.name][found["model_version"]] += 1
                await asyncio.sleep(self._pause_s)


@asynccontextmanager
async def feeding(
    stage: ProcessHarness, bundle: Bundle, agents: list[AgentHandle], pause_s: float = PAUSE_S
) -> AsyncIterator[Feed]:
    feed = Feed(stage, bundle, agents, pause_s)
    tasks = [asyncio.create_task(feed.run(agent)) for agent in agents]
    try:
        yield feed
        assert not any(task.done() for task in tasks), "a caller was refused an answer"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def all_run(stage: ProcessHarness, agents: list[AgentHandle], model: str) -> None:
    """Until every agent says that it runs `model`: what it reported to the hub may be ahead of its status."""
    for agent in agents:
        await stage.wait_for(agent, lambda s: s["updates"]["model"] == model, f"it does not run {model}")


async def models(stage: ProcessHarness, agents: list[AgentHandle]) -> set[str]:
    """What the agents run now."""
    return {(await stage.fetch_status(agent))["updates"]["model"] for agent in agents}
