"""Run of `skerry demo --template`: three devices under a shipped policy; what left, what stayed and by which rule.

Rule: what is shown as left is read from the ledgers, what stayed from the answers, why from the device's own decisions.
"""

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from edge_agent.ledger.summary import By, Shown, show
from edge_agent.ledger.verify import reading
from models.bundle.bundle import Bundle
from policies.analysis.explain import explain_sample
from policies.model.policy import Policy
from simulations.demo import policy_tour_screen
from simulations.demo.acts import background
from simulations.demo.casts import Cast, Scene
from simulations.demo.client import Client, Digit, digits
from simulations.demo.leakage import facts_of_cast
from simulations.demo.results import Seen, Tally, accuracy, counts
from simulations.processes import AgentHandle, Stage

FEED_S = 7.0
EVERY_S = 0.02  # between two samples of one device
SETTLE_TIMEOUT_S = 20.0
_MS_A_DAY = 86_400_000


@dataclass
class Tour:
    """One run. `began`: the start of the command (monotonic seconds). `keep`: the devices go on afterwards."""

    console: Console
    stage: Stage
    bundle: Bundle
    scene: Scene
    policy: Policy
    began: float
    keep: bool = False
    tally: Tally = field(default_factory=Tally)
    classes: dict[str, str] = field(default_factory=dict)  # of each answer

    def __post_init__(self) -> None:
        self.client = Client(self.stage.session, self.tally, self.bundle.manifest, self.began)

    async def run(self) -> dict[str, Any]:
        """Feed samples, wait for what is open, then add up; returns the figures as one JSON object."""
        found = await digits(self.stage, self.bundle)
        async with background(self.client.follow(agent) for agent in self.stage.agents):
            with self.console.status(f"  three devices answer for {FEED_S:g} s under {self.policy.name}"):
                pairs = zip(self.stage.agents, self.scene.cast, strict=True)
                await asyncio.gather(*(self._feed(agent, cast, found) for agent, cast in pairs))
                await self._settle()
                await self._stop()
            figures = self._figures()
        policy_tour_screen.tour(self.console, figures)
        return figures

    async def _feed(self, agent: AgentHandle, cast: Cast, found: list[Digit]) -> None:
        ends = time.monotonic() + FEED_S
        queue = sorted(found, key=lambda digit: digit.confidence) if cast.hard else found
        for digit, data_class in zip(itertools.cycle(queue), itertools.cycle(cast.classes), strict=False):
            if time.monotonic() > ends:
                return
            answer, _ = await self.client.ask(agent, digit, data_class)
            self.classes[answer] = data_class
            await asyncio.sleep(EVERY_S)

    async def _settle(self) -> None:
        """Wait until no device has an open question."""
        ends = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < ends:
            states = [await self.stage.status(agent) for agent in self.stage.agents]
            if not any(state["open"] for state in states):
                return
            await asyncio.sleep(0.2)

    async def _stop(self) -> None:
        """Stop the agents, which write down last what their sockets sent."""
        if not self.keep:
            await asyncio.gather(*(agent.child.stop() for agent in self.stage.agents))

    def _figures(self) -> dict[str, Any]:
        seen = list(self.tally.seen.values())
        ledgers = {agent.name: _left(agent) for agent in self.stage.agents}
        return {
            "template": self.scene.template,
            "policy": self.policy.hash,
            "agents": len(self.stage.agents),
            "answers": counts(seen),
            "accuracy": {name: round(value, 4) for name, value in accuracy(seen).items()},
            "cases": [self._case(cast, name) for cast in self.scene.cast for name in dict.fromkeys(cast.classes)],
            "left": [_row(agent, row) for agent, shown in ledgers.items() for row in shown.rows],
            "overhead": {agent: shown.overhead for agent, shown in ledgers.items()},
            "raw": sum(each.truth.raw_bytes for each in seen),
            "seconds": round(time.monotonic() - self.began, 1),
        }

    def _case(self, cast: Cast, data_class: str) -> dict[str, Any]:
        """Figures of one device and one data class: answers, reasons, and what the policy says of a doubtful sample."""
        seen = self._of(cast.name, data_class)
        told = explain_sample(self.policy, facts_of_cast(cast, data_class), self.policy.expires_day, _now(self.policy))
        kept = Counter(each.why for each in seen if not each.escalation)
        return {
            "device": cast.name,
            "data_class": data_class,
            "answers": len(seen),
            "asked": sum(bool(each.escalation) for each in seen),
            "stayed": dict(kept),
            "rules": list(told.rules),
            "doubtful": "leaves" if told.leaves else told.why,
            "because": told.steps[-1].words,
        }

    def _of(self, device: str, data_class: str) -> list[Seen]:
        seen = self.tally.seen.items()
        return [each for id_, each in seen if each.agent == device and self.classes.get(id_) == data_class]


def _now(policy: Policy) -> dict[str, int]:
    from edge_agent.cli.policy_files import clock  # noqa: PLC0415

    return clock(policy.zones)


def _left(agent: AgentHandle) -> Shown:
    now_ms = time.time_ns() // 1_000_000
    with reading(agent.folder) as db:
        return show(db, now_ms - _MS_A_DAY, now_ms, By.RULE)


def _row(agent: str, row: Any) -> dict[str, Any]:
    return {"device": agent, **row._asdict(), "regions": list(row.regions)}
