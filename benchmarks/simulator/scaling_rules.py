"""Rules that say how many replicas a model gets: Skerry's own, a fixed pool, and requests under way per replica."""

from math import ceil
from typing import Protocol

from policies.serving.batching import BatchCost
from policies.serving.scaling import ModelLoad, ScalingRules, ScalingState, plan_replicas, rate_in_time


class ReplicaRule(Protocol):
    """How many replicas are wanted, asked once a second."""

    def look(self, load: ModelLoad, now: float) -> int:
        """Replicas wanted under this load."""
        ...


class FixedPool:
    """Always the same number."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def look(self, _load: ModelLoad, _now: float) -> int:
        return self._replicas


class OngoingRequestsRule:
    """Requests under way over a target for each replica: the default policy of Ray Serve (2.60, `autoscaling_policy`).

    A number counts once it was wanted for `up_s`, or `down_s`, without a break.
    """

    def __init__(self, target: float, floor: int, ceiling: int, up_s: float = 30.0, down_s: float = 600.0) -> None:
        self._target, self._floor, self._ceiling = target, floor, ceiling
        self._up_s, self._down_s = up_s, down_s
        self._now_wanted = floor
        self._since: float | None = None
        self._rising = False

    def look(self, load: ModelLoad, now: float) -> int:
        found = min(self._ceiling, max(self._floor, ceil((load.waiting + load.running) / self._target)))
        if found == self._now_wanted:
            self._since = None
            return found
        rising = found > self._now_wanted
        if self._since is None or rising != self._rising:
            self._since, self._rising = now, rising
        if now - self._since >= (self._up_s if rising else self._down_s):
            self._now_wanted, self._since = found, None
        return self._now_wanted


class LoadRule:
    """Skerry's rule (`policies.serving.scaling`): what arrives and waits, over what a replica answers in time."""

    def __init__(self, rules: ScalingRules, cost: BatchCost, max_batch: int, deadline_s: float) -> None:
        self._rules = rules
        self._rate = rate_in_time(cost, max_batch, deadline_s)
        self._state: ScalingState | None = None

    def look(self, load: ModelLoad, now: float) -> int:
        before = self._state or ScalingState.start(self._rules, now)
        self._state = plan_replicas(self._rules, before, load, self._rate, now)
        return self._state.wanted
