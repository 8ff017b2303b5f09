"""How many replicas a model needs, from how much arrives, what waits and what one replica can do in time. Pure.

Rule: up at once, down late. More replicas are wanted the moment fewer would not hold the target; fewer only after the
highest need of the last `down_after_s` seconds left room for one less. On constant load the number does not move.
Rule: from zero, what arrives waits in a room that has a size and an end, so that nobody waits for a replica that never
comes.
"""

from math import ceil, inf, isfinite
from typing import Self

import msgspec

from policies.serving.batching import BatchCost

MAX_RATE_ITEMS = 1e9  # beyond it a figure is a fault of whoever measured
_HELD_PEAKS = 16  # parts that the time before a step down is divided into


class ScalingRules(msgspec.Struct, frozen=True):
    """Limits and times of a model's replicas.

    - `floor`, `ceiling`: fewest and most replicas. With a floor of 0 the last one goes after `idle_s` without work.
    - `busy_share`: share (0..1) of what replicas can do in time that may be in use, so that bursts find room.
    - `deadline_s`: of an answer; what one replica can do in time is counted by it.
    - `drain_s`: what waits is to be gone after so long, and after `backlog_s` what nobody waits for.
    - `down_after_s`: how long less has to be enough before one goes.
    - `room_items`, `room_s`: how many may wait for the first replica, and for how long.
    """

    floor: int = 1
    ceiling: int = 8
    busy_share: float = 0.8
    deadline_s: float = 1.0
    drain_s: float = 10.0
    backlog_s: float = 900.0
    down_after_s: float = 600.0
    idle_s: float = 900.0
    room_items: int = 1000
    room_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise ValueError for limits that contradict one another."""
        if not 0 <= self.floor <= self.ceiling or self.ceiling < 1:
            raise ValueError(f"floor {self.floor} and ceiling {self.ceiling}: 0 <= floor <= ceiling and ceiling >= 1")
        if not 0 < self.busy_share <= 1:
            raise ValueError(f"busy_share {self.busy_share}: above 0, at most 1")
        for name in ("deadline_s", "drain_s", "backlog_s", "down_after_s", "idle_s", "room_s"):
            if not 0 < (value := getattr(self, name)) < inf:
                raise ValueError(f"{name} {value}: above 0")


class ModelLoad(msgspec.Struct, frozen=True):
    """Load of one model: items that arrive a second, that wait for a replica, and that are being computed.

    `backlog`: what waits elsewhere and has time, as jobs in the database do.
    """

    rate: float
    waiting: float = 0.0
    running: float = 0.0
    backlog: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot have been measured."""
        for name in ("rate", "waiting", "running", "backlog"):
            if not 0 <= (value := getattr(self, name)) <= MAX_RATE_ITEMS:
                raise ValueError(f"no model has a {name} of {value}")


class ScalingState(msgspec.Struct, frozen=True):
    """What a model's scaling remembers. `wanted`: replicas; times in seconds, of the caller's clock.

    `began_at`: of the first look; `worked_at`: when there last was work; `peaks`: the highest need in each part of the
    time that counts before a step down, as (end of the part, need).
    """

    wanted: int
    began_at: float
    worked_at: float
    peaks: tuple[tuple[float, int], ...] = ()

    @classmethod
    def start(cls, rules: ScalingRules, now: float) -> Self:
        """The state of a model nothing is known of."""
        return cls(rules.floor, now, now)


def rate_in_time(cost: BatchCost, max_batch: int, deadline_s: float) -> float:
    """Items a second that one replica answers in full batches, each within `deadline_s`; 0 if not even one is in time.

    An item may arrive as a batch begins: it waits for that one and is computed in the next, so two have to fit.
    """
    left_s = deadline_s / 2 - cost.base_s
    most = int(min(max_batch, max(0.0, left_s / cost.item_s))) if cost.item_s > 0 else max_batch * (left_s >= 0)
    return cost.predict_rate(most) if most >= 1 else 0.0


def measure_need(rules: ScalingRules, load: ModelLoad, replica_rate: float) -> float:
    """What the load takes, in replicas and parts of one: of several hubs it is added up before it is rounded.

    `replica_rate`: items a second of one replica; 0 = no number of them is in time, and one more does not help.
    """
    demand = load.rate + load.waiting / rules.drain_s + load.backlog / rules.backlog_s
    if demand <= 0:
        return 0.0
    if not isfinite(replica_rate) or replica_rate <= 0:
        return 1.0
    return demand / (replica_rate * rules.busy_share)


def count_needed(rules: ScalingRules, load: ModelLoad, replica_rate: float) -> int:
    """Replicas that hold the target under this load, floor and ceiling not counted; see `measure_need`."""
    need = measure_need(rules, load, replica_rate)
    return max(1, ceil(need - 1e-9)) if need > 0 else 0


def plan_replicas(
    rules: ScalingRules, before: ScalingState, load: ModelLoad, replica_rate: float, now: float
) -> ScalingState:
    """The state after a look at the load: as many more replicas as are needed, or one fewer.

    `replica_rate`: items a second of one replica, see `rate_in_time`. Look about once a second.
    """
    needed = count_needed(rules, load, replica_rate)
    worked_at = now if max(load.rate, load.waiting, load.running, load.backlog) > 0 else before.worked_at
    peaks = _add_peak(rules, before.peaks, needed, now)
    kept = 1 if before.wanted and now - worked_at < rules.idle_s else 0  # one stays until there was no work for long
    wanted = min(rules.ceiling, max(rules.floor, kept, needed))
    if wanted < before.wanted:
        enough = max(rules.floor, kept, *(need for _, need in peaks))
        watched = now - before.began_at >= rules.down_after_s
        wanted = before.wanted - 1 if watched and enough < before.wanted else before.wanted
    return ScalingState(wanted, before.began_at, worked_at, peaks)


def may_wait(rules: ScalingRules, waiting: int, waited_s: float) -> bool:
    """Whether an item may wait for the first replica of a model that has none: the room has a place, and an end."""
    return waiting < rules.room_items and waited_s < rules.room_s


def _part_s(rules: ScalingRules) -> float:
    return rules.down_after_s / _HELD_PEAKS


def _add_peak(
    rules: ScalingRules, peaks: tuple[tuple[float, int], ...], needed: int, now: float
) -> tuple[tuple[float, int], ...]:
    """The peaks with one more need; parts that ended before the time that counts are forgotten."""
    kept = [peak for peak in peaks if peak[0] > now - rules.down_after_s]
    if kept and now < kept[-1][0]:
        kept[-1] = (kept[-1][0], max(kept[-1][1], needed))
        return tuple(kept)
    return (*kept, (now + _part_s(rules), needed))
