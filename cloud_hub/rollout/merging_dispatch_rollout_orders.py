"""The word that a device is given: from its row and the plan, the same bytes whenever and by whichever hub it is said.

Rule: pure, and no content without a counter of its own: what is said under a counter is a function of what is on disk.
"""

from cloud_hub.rollout.types import Goal, Plan, Row, Target
from policies.rollout.merging_plan_rollout import Rules
from wire.protocol.rollout import Assignment, Cohort

LONGEST_MS = 40 * 86_400_000  # devices believe no assignment that is to hold for longer
_NOTHING = Target("", 0, "")


def next_counter(last: int, ms: int) -> int:
    """Above all that this device was told before; also above what a hub told whose memory was lost since."""
    return max(last + 1, ms // 1000)


def assignment(plan: Plan, rules: Rules, row: Row) -> Assignment | None:
    """The newest word to the device of this row; None before there is one."""
    if row.goal is Goal.NONE:
        return None
    target = _target(plan, row.goal)
    life_ms = min(LONGEST_MS, int((rules.wave_deadline_s + rules.max_soak_s) * 1000))
    return Assignment(
        epoch=0,
        device=row.device,
        counter=row.counter,
        issued_ms=row.told_ms,
        expires_ms=row.told_ms + (LONGEST_MS if row.goal is Goal.WITHDRAWN else max(1000, life_ms)),
        rollout=plan.id,
        family=plan.family,
        path=target.path,
        version=target.version,
        digest=target.digest,
        cohort=Cohort.CONTROL if row.goal is Goal.CONTROL else Cohort.CANDIDATE,
        withdraw=row.goal is Goal.WITHDRAWN,
        audit_share=rules.audit_share if row.goal in {Goal.CANDIDATE, Goal.CONTROL} else 0.0,
        soak_s=rules.probation_s,
        min_inferences=rules.min_inferences,
        max_soak_s=max(rules.max_soak_s, rules.probation_s),
        strict=rules.strict,
        report_s=rules.report_s,
    )


def _target(plan: Plan, goal: Goal) -> Target:
    if goal is Goal.WITHDRAWN:
        return _NOTHING
    return plan.target if goal is Goal.CANDIDATE else plan.back or plan.target
