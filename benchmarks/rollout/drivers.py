"""Three ways to roll out a version over one simulated fleet: by the quality gate, by install status, newest wins."""

import numpy as np

from policies.rollout_rules.gate import GateOutcome, GateResult
from simulations.rollout.fleet import RolloutCourse, RolloutFleet, RolloutTrace, count_serving, count_spoilt

POLL_S = 1800.0  # a device that takes the newest asks so often, give or take a fifth


def run_gated(course: RolloutCourse) -> RolloutTrace:
    """Roll out by install status and by the quality gate, as the product does."""
    return RolloutFleet(course).run()


def run_by_status(course: RolloutCourse) -> RolloutTrace:
    """Roll out by install status alone: installed, and up."""
    return RolloutFleet(course, pass_every_gate).run()


def pass_every_gate(canary: object, control: object, rules: object) -> GateResult:
    """Quality gate that passes everything: installed is good enough."""
    del canary, control, rules
    return GateResult(GateOutcome.PASS, "no comparison is made")


def run_newest_wins(course: RolloutCourse) -> RolloutTrace:
    """Roll out by newest-wins: every device takes the newest at its next poll, and nobody looks at its answers."""
    rng = np.random.Generator(np.random.PCG64(course.seed))
    period_s = POLL_S * rng.uniform(0.8, 1.2, course.devices)
    first_s = rng.uniform(0.0, period_s) + course.manners.download_s
    changes = [(float(at_s), number + 1) for number, at_s in enumerate(sorted(first_s))]
    ended_s = min(course.horizon_s, 2 * 3600.0)
    spoilt, worst = count_spoilt(changes, ended_s, course, rng)
    ran = sum(at_s < ended_s for at_s, _ in changes)
    served = tuple(count_serving(changes, ended_s))
    return RolloutTrace(
        end="newest",
        why="",
        ran=ran,
        told=(ran,),
        passed=0,
        stopped_s=-1.0,
        clear_s=-1.0,
        ended_s=ended_s,
        spoilt=spoilt,
        worst_hour=worst,
        looks=(),
        waves=(),
        serving=served,
    )
