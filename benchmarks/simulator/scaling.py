"""Benchmark: replicas by Skerry's rule on a day's curve and in a storm, beside a fixed pool and requests under way.

`python -m benchmarks.simulator.scaling`. Virtual time: the figures do not depend on the machine.
"""

import sys
from pathlib import Path

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure
from benchmarks.simulator.scaling_curves import DAY_S, day_curve, storm_curve
from benchmarks.simulator.scaling_replay import RateCurve, ReplayReport, ReplicaModel, replay
from benchmarks.simulator.scaling_rules import FixedPool, LoadRule, OngoingRequestsRule, ReplicaRule
from policies.serving.batching import BatchCost
from policies.serving.scaling import ScalingRules, rate_in_time

COST, MAX_BATCH, DEADLINE_S = BatchCost(0.05, 0.02), 16, 1.0
STARTS_S = (5.0, 30.0, 120.0)
POOL, CEILING = 8, 32
TARGETS = (4.0, 8.0, 16.0)  # requests under way for each replica: the best of these is compared
HOUR_S = 3600


async def run_benchmark(_folder: Path, _bundle: Path) -> list[Figure]:
    busiest = POOL * ScalingRules().busy_share * rate_in_time(COST, MAX_BATCH, DEADLINE_S)
    day = [_run_all(start_s, day_curve(busiest / 10, busiest), DAY_S) for start_s in STARTS_S]
    storm = [_run_all(start_s, storm_curve(busiest / 8, busiest), HOUR_S) for start_s in STARTS_S]
    hours = max(scaled.replica_s / pool.replica_s for scaled, pool, _ in day)
    late = max(scaled.late_share for scaled, _, _ in day)
    beside = [max(scaled.late_share / plain.late_share for scaled, _, plain in found) for found in (day, storm)]
    rule = "late items over the best rule of requests under way"
    return [
        Figure("day: replica-hours over a pool for the peak", hours, "x", 0.7, terms=_describe(day)),
        Figure("day: items later than their deadline", 100 * late, "%", 1.0),
        Figure(f"day: {rule}", beside[0], "x", 1.0),
        Figure(f"storm: {rule}", beside[1], "x", 1.0, terms=_describe(storm)),
    ]


def _run_all(start_s: float, curve: RateCurve, length_s: int) -> tuple[ReplayReport, ReplayReport, ReplayReport]:
    """Skerry's rule, the fixed pool, and the rule of requests under way whose target was late least often."""
    model = ReplicaModel(COST, MAX_BATCH, start_s, DEADLINE_S)
    rules = ScalingRules(ceiling=CEILING)

    def run(rule: ReplicaRule) -> ReplayReport:
        return replay(rule, model, curve, length_s)

    plain = [run(OngoingRequestsRule(target, 1, CEILING)) for target in TARGETS]
    scaled = run(LoadRule(rules, COST, MAX_BATCH, DEADLINE_S))
    return scaled, run(FixedPool(POOL)), min(plain, key=lambda found: found.late)


def _describe(found: list[tuple[ReplayReport, ReplayReport, ReplayReport]]) -> tuple[str, ...]:
    names = ("by load", f"pool of {POOL}", "by requests under way")
    return tuple(
        f"replicas start in {start_s:g} s: "
        + "; ".join(
            f"{name}: {100 * each.late_share:.3f} % late, {each.replica_s / HOUR_S:.1f} hours, at most {each.most}"
            for name, each in zip(names, three, strict=True)
        )
        for start_s, three in zip(STARTS_S, found, strict=True)
    )


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
