"""What the rollout controller is given: the hub around it, and a clock."""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cloud_hub.rollout.types import RolloutPlan
from policies.rollout_rules.plan import FleetMember
from wire.process.logging import JsonLog
from wire.protocol.rollout import Assignment


class SteadyClock:
    """Hub time that reads the wall clock once, at its start: setting that neither ends a soak nor frees a place."""

    def __init__(
        self, floor_s: float, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._began_s = max(floor_s, wall()) - monotonic()

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return self._began_s + self._monotonic()


class RolloutDependencies(NamedTuple):
    """What the rollouts need of the hub.

    `tell` sends an assignment, `seen` acknowledges a report, `members` lists the active devices, and `check` says why a
    plan's targets cannot be assigned, "" if they can. `decides`: whether this hub decides for its region at present;
    None for a hub that is alone.
    """

    tell: Callable[[str, Assignment], None]
    seen: Callable[[str, int], None]
    members: Callable[[], Iterable[FleetMember]]
    check: Callable[[RolloutPlan], str]
    words: JsonLog
    decides: Callable[[], bool] | None = None
