"""What a live run has left on its disks, as an outcome: the fleet's agent.db and the hub's database, read and judged.

Law: answers, latencies, bytes and the history come from what was committed, by the clock of its records; nothing that
an agent says of itself counts here. The hub's rows are read after it has stopped.
"""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from edge_agent.records import Kind, Source
from edge_agent.records import Outcome as End
from simulations.check import Judge
from simulations.evidence import key_of, read_hub
from simulations.facts import Accepted, AnswerSeen, Event, Key, Outcome, Report
from simulations.outcome import Bins, Latency, Series, bin_of
from simulations.scenario import Scenario
from wire.chain import Kind as Entry

_ANSWERS = "select device, id, kind, source, why, at_ms, total_s, label, seq from all_answers order by event"
_ENTRIES = (
    "select e.device, m.value, e.seq, e.kind, e.id, e.at_ms, e.size, f.rule from all_entries e "
    "join all_forms f on f.device=e.device and f.form=e.form "
    "join all_meta m on m.device=e.device and m.key='epoch' order by e.device, e.entry"
)
_OUTCOMES = "select device, epoch, seq, id, outcome, reason, at_ms from all_outcomes order by device, seq"


class Records(NamedTuple):
    """What the records of a fleet say, in buckets of the scenario's step. Names are those of `Outcome`."""

    answers: dict[str, Series]
    right: dict[str, Series]
    latency: tuple[Latency, ...]
    bytes_by_rule: dict[str, Series]
    history: Report


class Where(NamedTuple):
    """The files of a run, what the devices are called, and when it began, in milliseconds since 1970."""

    fleet: Path
    hub: Path
    names: tuple[str, ...]
    began_ms: int


class Reader:
    """Reads the files of one run. `truth`: of an answer's id, as far as the driver knows."""

    def __init__(self, where: Where, scenario: Scenario, truth: dict[str, int]) -> None:
        self._where = where
        self._scenario = scenario
        self._truth = truth
        self._seqs: dict[str, int] = {}  # the highest question read, by device: what the hub has beyond is later

    def read(self, until_s: float) -> Records:
        """`until_s`: of the run; what is open then and older than its grace is lost."""
        last_fault_s = max(self._scenario.duration_s, self._scenario.last_fault_ended_s)
        judge = Judge(last_fault_s, grace_s=self._scenario.grace_s)
        with closing(sqlite3.connect(f"{self._where.fleet.absolute().as_uri()}?mode=ro", uri=True)) as db:
            left = self._ledger(db, judge)
            answers, right, latency = self._answers(db, judge)
            for row in db.execute(_OUTCOMES):
                judge.see(self._outcome(row))
        for effect in read_hub(self._where.hub):
            if effect.key.seq <= self._seqs.get(effect.key.device, 0):
                judge.see(effect)
        return Records(answers, right, latency, left, judge.report(until_s))

    def _ledger(self, db: sqlite3.Connection, judge: Judge) -> dict[str, Series]:
        """Questions become history; of every entry whose bytes left, the size counts under its rule."""
        left: dict[str, Counter[int]] = {}
        for device, epoch, seq, kind, id_, at_ms, size, rule in db.execute(_ENTRIES):
            sign = -1 if kind == Entry.WITHHELD else 1
            left.setdefault(rule, Counter())[self._bucket(at_ms)] += sign * size
            if kind == Entry.QUESTION:
                key = Key(self._where.names[device], epoch, seq)
                self._seqs[key.device] = max(seq, self._seqs.get(key.device, 0))
                judge.see(Accepted(key, id_, self._at_s(at_ms)))
        return {rule: self._series(found) for rule, found in sorted(left.items())}

    def _answers(
        self, db: sqlite3.Connection, judge: Judge
    ) -> tuple[dict[str, Series], dict[str, Series], tuple[Latency, ...]]:
        said: dict[str, Counter[int]] = {}
        right: dict[str, Counter[int]] = {}
        took: dict[str, list[Counter[int]]] = {}
        for device, id_, kind, source, why, at_ms, total_s, label, seq in db.execute(_ANSWERS):
            name = self._where.names[device]
            key = key_of(name, seq)
            judge.see(AnswerSeen(name, id_, Kind(kind), hub=source == Source.HUB, why=why, key=key))
            bucket, correction = self._bucket(at_ms), kind == Kind.CORRECTION
            who = "correction" if correction else source
            said.setdefault(f"{who}.{why}", Counter())[bucket] += 1
            right.setdefault(f"{who}.{why}", Counter())[bucket] += self._truth.get(id_) == label
            took.setdefault(who, [Counter() for _ in range(self._scenario.buckets)])[bucket][bin_of(total_s)] += 1
        latency = tuple(Latency(who, tuple(map(_bins, bins))) for who, bins in sorted(took.items()))
        return self._all(said), self._all(right), latency

    def _outcome(self, row: tuple[Any, ...]) -> Event:
        device, epoch, seq, id_, outcome, reason, at_ms = row
        return Outcome(Key(self._where.names[device], epoch, seq), id_, End(outcome), reason, self._at_s(at_ms))

    def _at_s(self, at_ms: int) -> float:
        return (at_ms - self._where.began_ms) / 1000

    def _bucket(self, at_ms: int) -> int:
        """What came before the first sample (hellos) counts in the first bucket."""
        return min(max(0, int(self._at_s(at_ms) // self._scenario.step_s)), self._scenario.buckets - 1)

    def _series(self, found: Counter[int]) -> Series:
        return series(found, self._scenario)

    def _all(self, found: dict[str, Counter[int]]) -> dict[str, Series]:
        return {name: self._series(found[name]) for name in sorted(found)}


def series(found: Counter[int], scenario: Scenario) -> Series:
    """One number a bucket."""
    return tuple(found[bucket] for bucket in range(scenario.buckets))


def hub_times(fleet: Path) -> dict[str, int]:
    """Medians of what the hub says of its answers, in microseconds: how long each waited for its batch, and it took."""
    with closing(sqlite3.connect(f"{fleet.absolute().as_uri()}?mode=ro", uri=True)) as db:
        found = db.execute("select queue_s, compute_s from all_answers where source='hub'").fetchall()
    return {
        f"hub.{name}_us": round(median(column) * 1e6)
        for name, column in zip(("queue", "compute"), zip(*found, strict=True), strict=bool(found))
    }


def _bins(found: Counter[int]) -> Bins:
    return dict(sorted(found.items()))
