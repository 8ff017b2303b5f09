"""Answers and corrections that the demo's client received; every figure it shows is computed from this record."""

from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

DENIED = "denied_"


@dataclass(frozen=True, slots=True)
class DigitTruth:
    """One held-out sample: its label, and what each model says of it when it is alone."""

    label: int
    edge_label: int
    hub_label: int
    raw_bytes: int


@dataclass(slots=True)
class ClientAnswer:
    """One answer as a client received it. `corrections` counts, so that a second one would show."""

    agent: str
    truth: DigitTruth
    label: int
    source: str
    why: str
    latency_ms: float
    escalation: str
    corrections: int = 0
    corrected_label: int | None = None

    @property
    def final_label(self) -> int:
        """The corrected label, or that of the answer."""
        return self.label if self.corrected_label is None else self.corrected_label


@dataclass(slots=True)
class AnswerTally:
    """Answers by id. `early` keeps corrections whose answer's reply has not been received yet."""

    seen: dict[str, ClientAnswer] = field(default_factory=dict)
    early: dict[str, list[int]] = field(default_factory=dict)
    first_escalated_at_s: float | None = None
    outage_ids: set[str] = field(default_factory=set)

    def add_answer(self, answer_id: str, seen: ClientAnswer, at_s: float) -> None:
        """Add an answer, with corrections that came before it."""
        self.seen[answer_id] = seen
        if seen.source == "hub" and self.first_escalated_at_s is None:
            self.first_escalated_at_s = at_s
        for label in self.early.pop(answer_id, []):
            self.add_correction(answer_id, label)

    def add_correction(self, answer_id: str, label: int) -> None:
        """Add a correction."""
        seen = self.seen.get(answer_id)
        if seen is None:
            self.early.setdefault(answer_id, []).append(label)
            return
        seen.corrections += 1
        seen.corrected_label = label

    def answers_of(self, agent: str) -> list[ClientAnswer]:
        """Answers of one agent."""
        return [s for s in self.seen.values() if s.agent == agent]


def compute_accuracy(seen: list[ClientAnswer]) -> dict[str, float]:
    """Share of right answers: the edge model alone, what callers finally got, the hub model alone."""
    total = max(len(seen), 1)
    return {
        "edge": sum(s.truth.edge_label == s.truth.label for s in seen) / total,
        "pair": sum(s.final_label == s.truth.label for s in seen) / total,
        "hub": sum(s.truth.hub_label == s.truth.label for s in seen) / total,
    }


def count_answers(seen: list[ClientAnswer]) -> dict[str, int]:
    """Answers by source and reason.

    `late` counts corrections; `denied` are local answers that the policy kept on the device.
    """
    return {
        "local": sum(s.source == "local" for s in seen),
        "hub": sum(s.source == "hub" for s in seen),
        "late": sum(s.corrections for s in seen),
        "denied": sum(s.why.startswith(DENIED) for s in seen),
    }


def compute_percentiles(values_ms: list[float]) -> dict[str, float | None]:
    """p50 and p99 in milliseconds; None where fewer than two answers were seen."""
    if len(values_ms) < 2:
        return {"p50": None, "p99": None}
    cuts = quantiles(values_ms, n=100, method="inclusive")
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3)}


def compute_latency(seen: list[ClientAnswer]) -> dict[str, dict[str, float | None]]:
    """Latency as a caller measured it over HTTP.

    Local: answers made without asking. Hub: answers that came in time.
    """
    return {
        "local": compute_percentiles([s.latency_ms for s in seen if s.source == "local" and not s.escalation]),
        "hub": compute_percentiles([s.latency_ms for s in seen if s.source == "hub"]),
    }


def count_doubled_corrections(seen: list[ClientAnswer]) -> int:
    """Number of answers that were corrected more than once."""
    return sum(s.corrections > 1 for s in seen)


def summarize_outage(tally: AnswerTally) -> dict[str, Any]:
    """What became of the questions that were asked while the broker was dead."""
    asked = [tally.seen[i] for i in tally.outage_ids if i in tally.seen and tally.seen[i].escalation]
    return {
        "asked": len(asked),
        "late": sum(s.corrections == 1 for s in asked),
        "in_time": sum(s.source == "hub" for s in asked),
        "twice": sum(s.corrections > 1 for s in asked),
    }
