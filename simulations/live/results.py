"""Results of a live run: answers, latencies, bytes and history, read from every agent.db and the hub's database.

Rule: everything comes from what was committed, by the clock of its records; nothing that an agent reports of itself
counts here. The hub's rows are read after it has stopped.
"""

import sqlite3
from collections import Counter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from edge_agent.question.records import AnswerKind, AnswerSource
from simulations.checking.databases import judge_run, open_snapshot
from simulations.checking.events import HistoryReport
from simulations.report.outcome import Bins, Latency, Series, find_latency_bin
from simulations.scenario.types import Scenario

_ANSWERS = "select id, kind, source, why, at_ms, total_s, label, queue_s, compute_s from answers order by event"
_ENTRIES = "select kind, at_ms, size, rule from ledger order by entry"


class LiveRecords(NamedTuple):
    """Records of a fleet in buckets of the scenario's step. Names are those of `Outcome`."""

    answers: dict[str, Series]
    right: dict[str, Series]
    latency: tuple[Latency, ...]
    bytes_by_rule: dict[str, Series]
    hub_times: dict[str, int]
    history: HistoryReport


class RunFiles(NamedTuple):
    """Files of a run, and when it began, in milliseconds since 1970."""

    agents: tuple[Path, ...]
    hub: Path
    began_ms: int


class RecordReader:
    """Reader of the files of one run. `truth`: right label by answer id, as far as the load driver knows."""

    def __init__(self, where: RunFiles, scenario: Scenario, truth: dict[str, int]) -> None:
        self._where = where
        self._scenario = scenario
        self._truth = truth
        self._said: dict[str, Counter[int]] = {}
        self._right: dict[str, Counter[int]] = {}
        self._took: dict[str, list[Counter[int]]] = {}
        self._left: dict[str, Counter[int]] = {}
        self._waits: list[tuple[float, float]] = []  # of the hub's answers, s: for their batch, and in it

    def read_records(self, until_s: float) -> LiveRecords:
        """Read and judge all files.

        `until_s`: of the run; what is open then and older than its grace is lost.
        """
        scenario, began_s = self._scenario, self._where.began_ms / 1000
        history = judge_run(
            self._where.agents,
            self._where.hub,
            last_fault_ended_s=began_s + max(scenario.duration_s, scenario.last_fault_ended_s),
            now_s=began_s + until_s,
            grace_s=scenario.grace_s,
        )
        for path in self._where.agents:
            with open_snapshot(path) as db:
                self._count_database(db)
        latency = tuple(Latency(who, tuple(map(_sort_bins, bins))) for who, bins in sorted(self._took.items()))
        return LiveRecords(
            answers=self._build_all_series(self._said),
            right=self._build_all_series(self._right),
            latency=latency,
            bytes_by_rule=self._build_all_series(self._left),
            hub_times=_median_times(self._waits),
            history=history,
        )

    def _count_database(self, db: sqlite3.Connection) -> None:
        """Count answers, and of every ledger entry whose bytes left the size under its rule."""
        for kind, at_ms, size, rule in db.execute(_ENTRIES):
            sign = -1 if kind == "withheld" else 1
            self._left.setdefault(rule, Counter())[self._bucket_of(at_ms)] += sign * size
        for id_, kind, source, why, at_ms, total_s, label, *waits in db.execute(_ANSWERS):
            bucket = self._bucket_of(at_ms)
            who = "correction" if kind == AnswerKind.CORRECTION else source
            self._said.setdefault(f"{who}.{why}", Counter())[bucket] += 1
            self._right.setdefault(f"{who}.{why}", Counter())[bucket] += self._truth.get(id_) == label
            bins = self._took.setdefault(who, [Counter() for _ in range(self._scenario.buckets)])
            bins[bucket][find_latency_bin(total_s)] += 1
            if source == AnswerSource.HUB:
                self._waits.append((waits[0], waits[1]))

    def _bucket_of(self, at_ms: int) -> int:
        """Bucket of a time; what came before the first sample (hellos) counts in the first one."""
        at_s = (at_ms - self._where.began_ms) / 1000
        return min(max(0, int(at_s // self._scenario.step_s)), self._scenario.buckets - 1)

    def _build_all_series(self, found: dict[str, Counter[int]]) -> dict[str, Series]:
        return {name: build_series(found[name], self._scenario) for name in sorted(found)}


def build_series(found: Counter[int], scenario: Scenario) -> Series:
    """Series with one number per bucket."""
    return tuple(found[bucket] for bucket in range(scenario.buckets))


def _median_times(waits: list[tuple[float, float]]) -> dict[str, int]:
    """Medians of the hub's timings in microseconds: how long answers waited for their batch, and took in it."""
    return {
        f"hub.{name}_us": round(median(column) * 1e6)
        for name, column in zip(("queue", "compute"), zip(*waits, strict=True), strict=bool(waits))
    }


def _sort_bins(found: Counter[int]) -> Bins:
    return dict(sorted(found.items()))
