"""Replays a curve of arrivals against a number of replicas that a rule changes once a second, in virtual time.

Rule: a replica takes `start_s` until it serves, and finishes its batch before it goes. Items wait in one queue, in the
order of their arrival, and none is ever turned away: what is late is counted.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from benchmarks.simulator.scaling_rules import ReplicaRule
from policies.serving.batching import BatchCost
from policies.serving.scaling import ModelLoad

RateCurve = Callable[[float], float]  # seconds since the begin -> arrivals a second
_RATE_S = 10.0  # arrivals are counted over so long


class ReplicaModel(msgspec.Struct, frozen=True):
    """What a replica can do: cost and size of its batches, how long it takes to start; and when an answer is late."""

    cost: BatchCost
    max_batch: int
    start_s: float
    deadline_s: float


class ReplayReport(NamedTuple):
    """What a replay gave. `replica_s`: replicas times seconds, while they start too; `most`, `changes`: of the wish."""

    items: int
    late: int
    replica_s: float
    most: int
    changes: int

    @property
    def late_share(self) -> float:
        """Share (0..1) of the items that missed their deadline."""
        return self.late / self.items if self.items else 0.0


def replay(rule: ReplicaRule, model: ReplicaModel, curve: RateCurve, length_s: int, seed: int = 1) -> ReplayReport:
    """Replay `length_s` seconds of Poisson arrivals, and what is left then."""
    return _Replay(rule, model, random.Random(seed)).run(curve, length_s)


class _Replay:
    def __init__(self, rule: ReplicaRule, model: ReplicaModel, dice: random.Random) -> None:
        self._rule, self._model, self._dice = rule, model, dice
        self._queue: deque[float] = deque()
        self._busy: list[tuple[float, int]] = []  # (end of the batch, its items)
        self._starting: list[float] = []
        self._idle = self._wanted = self._most = rule.look(ModelLoad(0), 0.0)
        self._computing = self._items = self._late = self._changes = 0
        self._arrived: deque[int] = deque(maxlen=int(_RATE_S))
        self._leaving = 0  # replicas that go once their batch is done
        self._replica_s = 0.0

    def run(self, curve: RateCurve, length_s: int) -> ReplayReport:
        second = 0
        while second < length_s or self._queue or self._busy:
            times = self._draw_arrivals(second, curve(second)) if second < length_s else []
            self._arrived.append(len(times))
            for at in times:
                self._advance(at)
                self._queue.append(at)
                self._begin_batches(at)
            self._advance(second + 1.0)
            self._look(second + 1.0)
            second += 1
        return ReplayReport(self._items, self._late, self._replica_s, self._most, self._changes)

    def _draw_arrivals(self, second: int, rate: float) -> list[float]:
        times, at = [], self._dice.expovariate(rate) if rate > 0 else 1.0
        while at < 1.0:
            times.append(second + at)
            at += self._dice.expovariate(rate)
        return times

    def _look(self, now: float) -> None:
        load = ModelLoad(sum(self._arrived) / len(self._arrived), len(self._queue), self._computing)
        wanted = self._rule.look(load, now)
        self._changes += wanted != self._wanted
        self._wanted = wanted
        here = self._idle + len(self._busy) - self._leaving + len(self._starting)
        for _ in range(here, wanted):
            if self._leaving:
                self._leaving -= 1
            else:
                heapq.heappush(self._starting, now + self._model.start_s)
        for _ in range(wanted, here):
            self._remove_one()
        self._most = max(self._most, wanted)
        self._replica_s += self._idle + len(self._busy) + len(self._starting)

    def _remove_one(self) -> None:
        """What has not started yet goes first, then what is idle, then what is done first."""
        if self._starting:
            self._starting.pop()
            heapq.heapify(self._starting)
        elif self._idle:
            self._idle -= 1
        else:
            self._leaving += 1

    def _advance(self, until: float) -> None:
        """End batches and starts up to a moment, in their order; each free replica takes the next batch."""
        while True:
            done = self._busy[0][0] if self._busy else until + 1.0
            ready = self._starting[0] if self._starting else until + 1.0
            at = min(done, ready)
            if at > until:
                return
            if done <= ready:
                self._computing -= heapq.heappop(self._busy)[1]
            else:
                heapq.heappop(self._starting)
            if self._leaving:
                self._leaving -= 1
            else:
                self._idle += 1
            self._begin_batches(at)

    def _begin_batches(self, now: float) -> None:
        while self._idle and self._queue:
            size = min(self._model.max_batch, len(self._queue))
            end = now + self._model.cost.predict_seconds(size)
            for _ in range(size):
                self._items += 1
                self._late += end - self._queue.popleft() > self._model.deadline_s
            self._idle -= 1
            self._computing += size
            heapq.heappush(self._busy, (end, size))
