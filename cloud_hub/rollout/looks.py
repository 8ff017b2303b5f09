"""What each look of a rollout's gate saw, in the order of the looks, for a plot of the evidence; since this start.

Rule: for people alone; it decides nothing, and a hub that was started anew begins with an empty list.
"""

from collections import deque
from math import isfinite

import msgspec

from cloud_hub.rollout.machine import RolloutCore
from policies.rollout_rules.gate import GateOutcome

MAX_LOOKS = 500  # of one rollout: the oldest go first


class GateLook(msgspec.Struct, frozen=True):
    """One look. `wave` from 1; `effect`, `low`, `high`, `bound`, `audits`: as in `GateResult`.

    `margin`: what a pass has to rule out, `harm`: what chance may cost; shares of answers.
    """

    at_ms: int
    wave: int
    outcome: GateOutcome
    effect: float
    low: float
    high: float
    bound: float
    audits: int
    margin: float
    harm: float


class GateLooks:
    """The looks of all rollouts."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[GateLook]] = {}

    def record(self, core: RolloutCore) -> None:
        """Record the last look of a rollout, unless it is recorded already."""
        gate = core.gate
        if gate is None or not isfinite(core.looked_s):  # nothing yet, or another hub decides
            return
        known, at_ms = self._looks.setdefault(core.plan.id, deque(maxlen=MAX_LOOKS)), int(core.looked_s * 1000)
        if known and known[-1].at_ms == at_ms:
            return
        rules = core.rules.gate
        margin = rules.margin_for(core.fleet.counts_of_wave(core.head.wave).told)
        known.append(
            GateLook(
                at_ms=at_ms,
                wave=core.head.wave + 1,
                outcome=gate.outcome,
                effect=gate.effect,
                low=gate.low,
                high=gate.high,
                bound=gate.bound,
                audits=gate.audits,
                margin=margin,
                harm=rules.harm,
            )
        )

    def of_rollout(self, rollout: str) -> tuple[GateLook, ...]:
        """Return the looks of a rollout, oldest first."""
        return tuple(self._looks.get(rollout, ()))
