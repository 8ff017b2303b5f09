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

from edge_agent.ledger_audit.summary import GroupBy, LedgerSummary, summarise_ledger
from edge_agent.ledger_audit.verify import open_for_reading
from models.bundle.bundle import Bundle
from policies.analysis.explain import explain_sample
from policies.model.policy import Policy
from simulations.demo import policy_tour_screen
from simulations.demo.acts import run_background
from simulations.demo.casts import DemoDevice, DemoScene
from simulations.demo.client import DemoClient, Digit, load_digits
from simulations.demo.leakage import build_facts
from simulations.demo.results import AnswerTally, ClientAnswer, compute_accuracy, count_answers
from simulations.processes import AgentHandle, ProcessHarness

FEED_S = 7.0
EVERY_S = 0.02  # between two samples of one device
SETTLE_TIMEOUT_S = 20.0
_MS_A_DAY = 86_400_000


@dataclass
class PolicyTour:
    """One run. `began`: the start of the command (monotonic seconds). `keep`: the devices go on afterwards."""

    console: Console
    stage: ProcessHarness
    bundle: Bundle
    scene: DemoScene
    policy: Policy
    began: float
    keep: bool = False
    tally: AnswerTally = field(default_factory=AnswerTally)
    classes: dict[str, str] = field(default_factory=dict)  # of each answer

    def __post_init__(self) -> None:
        self.client = DemoClient(self.stage.session, self.tally, self.bundle.manifest, self.began)

    async def run(self) -> dict[str, Any]:
        """Feed samples, wait for what is open, then add up; returns the figures as one JSON object."""
        found = await load_digits(self.stage, self.bundle)
        async with run_background(self.client.follow_events(agent) for agent in self.stage.agents):
            with self.console.status(f"  three devices answer for {FEED_S:g} s under {self.policy.name}"):
                pairs = zip(self.stage.agents, self.scene.cast, strict=True)
                await asyncio.gather(*(self._feed_device(agent, cast, found) for agent, cast in pairs))
                await self._wait_settled()
                await self._stop_agents()
            figures = self._collect_figures()
        policy_tour_screen.show_tour(self.console, figures)
        return figures

    async def _feed_device(self, agent: AgentHandle, cast: DemoDevice, found: list[Digit]) -> None:
        ends = time.monotonic() + FEED_S
        queue = sorted(found, key=lambda digit: digit.confidence) if cast.hard else found
        for digit, data_class in zip(itertools.cycle(queue), itertools.cycle(cast.classes), strict=False):
            if time.monotonic() > ends:
                return
            answer, _ = await self.client.ask(agent, digit, data_class)
            self.classes[answer] = data_class
            await asyncio.sleep(EVERY_S)

    async def _wait_settled(self) -> None:
        """Wait until no device has an open question."""
        ends = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < ends:
            states = [await self.stage.fetch_status(agent) for agent in self.stage.agents]
            if not any(state["open"] for state in states):
                return
            await asyncio.sleep(0.2)

    async def _stop_agents(self) -> None:
        """Stop the agents, which write down last what their sockets sent."""
        if not self.keep:
            await asyncio.gather(*(agent.child.stop() for agent in self.stage.agents))

    def _collect_figures(self) -> dict[str, Any]:
        seen = list(self.tally.seen.values())
        ledgers = {agent.name: _read_ledger(agent) for agent in self.stage.agents}
        return {
            "template": self.scene.template,
            "policy": self.policy.hash,
            "agents": len(self.stage.agents),
            "answers": count_answers(seen),
            "accuracy": {name: round(value, 4) for name, value in compute_accuracy(seen).items()},
            "cases": [
                self._collect_case(cast, name) for cast in self.scene.cast for name in dict.fromkeys(cast.classes)
            ],
            "left": [_format_ledger_row(agent, row) for agent, shown in ledgers.items() for row in shown.rows],
            "overhead": {agent: shown.overhead for agent, shown in ledgers.items()},
            "raw": sum(each.truth.raw_bytes for each in seen),
            "seconds": round(time.monotonic() - self.began, 1),
        }

    def _collect_case(self, cast: DemoDevice, data_class: str) -> dict[str, Any]:
        """Figures of one device and one data class: answers, reasons, and what the policy says of a doubtful sample."""
        seen = self._answers_of(cast.name, data_class)
        told = explain_sample(
            self.policy, build_facts(cast, data_class), self.policy.expires_day, _local_times(self.policy)
        )
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

    def _answers_of(self, device: str, data_class: str) -> list[ClientAnswer]:
        seen = self.tally.seen.items()
        return [each for id_, each in seen if each.agent == device and self.classes.get(id_) == data_class]


def _local_times(policy: Policy) -> dict[str, int]:
    from edge_agent.cli.policy_files import read_local_times  # noqa: PLC0415

    return read_local_times(policy.zones)


def _read_ledger(agent: AgentHandle) -> LedgerSummary:
    now_ms = time.time_ns() // 1_000_000
    with open_for_reading(agent.folder) as db:
        return summarise_ledger(db, now_ms - _MS_A_DAY, now_ms, GroupBy.RULE)


def _format_ledger_row(agent: str, row: Any) -> dict[str, Any]:
    return {"device": agent, **row._asdict(), "regions": list(row.regions)}
