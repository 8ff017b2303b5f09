"""The assignment that a device gets, for each goal: what it runs, for how long it is on trial, when it expires."""

import msgspec
import pytest

from cloud_hub.rollout.dispatch import LONGEST_MS, build_assignment, next_counter
from cloud_hub.rollout.planning import RolloutOrder, build_plan
from cloud_hub.rollout.types import DeviceGoal, RolloutPlan, RolloutRow
from policies.rollout_rules.plan import RolloutRules
from tests.cloud_hub.doubles.rollout_bench import NEW, OLD, members
from wire.protocol.rollout import Assignment, RolloutCohort

RULES = RolloutRules(probation_s=100.0, max_soak_s=500.0, wave_deadline_s=1000.0, min_inferences=7, audit_share=0.5)
TOLD_MS = 1_000_000


def plan(**changes: object) -> RolloutPlan:
    made = build_plan(RolloutOrder("digits", NEW, back=OLD, id="r1"), members(3), "ann", 0)
    return msgspec.structs.replace(made, **changes)


def assigned(goal: DeviceGoal, rules: RolloutRules = RULES, **changes: object) -> Assignment:
    row = RolloutRow("acme--d1", 0, goal=goal, counter=9, told_ms=TOLD_MS)
    found = build_assignment(plan(**changes), rules, row)
    assert found is not None
    return found


def test_a_device_without_a_goal_has_no_assignment():
    assert build_assignment(plan(), RULES, RolloutRow("acme--d1", 0)) is None


@pytest.mark.parametrize(
    ("goal", "target", "cohort", "audits", "least_answers", "withdraw"),
    [
        (DeviceGoal.CANDIDATE, NEW, RolloutCohort.CANDIDATE, 0.5, 7, False),
        (DeviceGoal.CONTROL, OLD, RolloutCohort.CONTROL, 0.5, 7, False),
        (DeviceGoal.BACK, OLD, RolloutCohort.CANDIDATE, 0.0, 0, False),
        (DeviceGoal.WITHDRAWN, None, RolloutCohort.CANDIDATE, 0.0, 7, True),
    ],
)
def test_each_goal_names_its_bundle_its_cohort_and_its_trial(goal, target, cohort, audits, least_answers, withdraw):
    found = assigned(goal)
    assert (found.path, found.version, found.digest) == (
        (target.path, target.version, target.digest) if target else ("", 0, "")
    )
    assert (found.cohort, found.audit_share, found.min_inferences, found.withdraw) == (
        cohort, audits, least_answers, withdraw,
    )  # fmt: skip
    assert (found.epoch, found.device, found.counter, found.issued_ms) == (0, "acme--d1", 9, TOLD_MS)
    assert (found.soak_s, found.max_soak_s, found.report_s) == (100.0, 500.0, RULES.report_s)


def test_where_nothing_is_compared_a_control_stays_with_the_new_bundle():
    assert assigned(DeviceGoal.CONTROL, back=None).digest == NEW.digest
    assert assigned(DeviceGoal.BACK, back=None).digest == NEW.digest


def test_an_install_expires_after_the_waves_deadline_and_the_longest_soak_and_a_withdrawal_after_forty_days():
    assert LONGEST_MS == 40 * 86_400_000
    assert assigned(DeviceGoal.CANDIDATE).expires_ms == TOLD_MS + 1_500_000
    assert assigned(DeviceGoal.WITHDRAWN).expires_ms == TOLD_MS + LONGEST_MS
    longest = msgspec.structs.replace(RULES, wave_deadline_s=1e9)
    assert assigned(DeviceGoal.CANDIDATE, longest).expires_ms == TOLD_MS + LONGEST_MS
    shortest = msgspec.structs.replace(RULES, wave_deadline_s=0.001, max_soak_s=0.0)
    assert assigned(DeviceGoal.CANDIDATE, shortest).expires_ms == TOLD_MS + 1000


def test_the_longest_soak_is_never_shorter_than_the_probation():
    assert assigned(DeviceGoal.CANDIDATE, msgspec.structs.replace(RULES, probation_s=900.0)).max_soak_s == 900.0


def test_a_candidate_alone_waits_for_its_release_and_only_until_it_came():
    needing = plan()
    for goal in (DeviceGoal.CANDIDATE, DeviceGoal.CONTROL, DeviceGoal.BACK, DeviceGoal.WITHDRAWN):
        row = RolloutRow("acme--d1", 0, goal=goal, counter=1)
        found = build_assignment(needing, RULES, row)
        assert found is not None
        assert found.needs_release is (needing.needs_release and goal is DeviceGoal.CANDIDATE)
        row.released = True
        found = build_assignment(needing, RULES, row)
        assert found is not None
        assert not found.needs_release
    assert needing.needs_release


def test_a_counter_is_above_the_last_one_and_never_below_the_time_in_seconds():
    assert next_counter(0, 5_000_999) == 5000
    assert next_counter(4999, 5_000_000) == 5000
    assert next_counter(5000, 5_000_000) == 5001
    assert next_counter(0, 0) == 1
