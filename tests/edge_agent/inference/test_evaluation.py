"""Statistics and agreement counts of a candidate: the sums are right, and nothing of a sample is kept."""

import math

import pytest

from edge_agent.inference.evaluation import (
    MAX_PENDING,
    AuditedAnswer,
    CandidateEvaluation,
    ServingStatistics,
    matches_truth,
    predictions_agree,
)
from tests.edge_agent.doubles.install_world import make_assignment
from wire.protocol.messages import Prediction
from wire.protocol.rollout import MAX_AUDIT_CELLS, DeviceSignals, RolloutCohort

ZERO, ONE = Prediction(0, 0.9, (0.9, 0.1), "m@1"), Prediction(1, 0.9, (0.1, 0.9), "m@1")


def value(number: float) -> Prediction:
    return Prediction(-1, 0.9, (number,), "m@1")


def watched(cohort: RolloutCohort = RolloutCohort.CANDIDATE, share: float = 0.02) -> CandidateEvaluation:
    trial = CandidateEvaluation()
    trial.start_evaluation(make_assignment(1, 0, cohort=cohort, audit_share=share))
    return trial


def test_sums_are_what_was_added_and_a_confidence_that_is_no_number_is_an_error():
    seen = ServingStatistics()
    for confidence in (0.5, 1.0, math.nan, 1.5):
        seen.add_answer("a", confidence, 0.001, unsure=confidence < 0.8)
    seen.add_failure()
    found = seen.make_signals(77)
    assert (found.inferences, found.errors, found.escalated, found.rss_bytes) == (5, 3, 1, 77)
    assert (found.confidence, found.confidence_sq) == (1.5, 1.25)
    assert [(each.data_class, each.answers, each.escalated) for each in found.classes] == [("a", 2, 1)]


@pytest.mark.parametrize("spent_s", [0.0, 1e-7, 1e-4, 0.003, 1.0, 3600.0])
def test_p95_is_never_below_what_was_spent_and_at_most_a_tenth_above(spent_s):
    seen = ServingStatistics()
    for _ in range(95):
        seen.add_answer("a", 0.5, spent_s, unsure=False)
    for _ in range(5):
        seen.add_answer("a", 0.5, 2 * spent_s, unsure=False)
    most = min(spent_s * 1e6, 60e6)
    assert most - 1 <= seen.p95_us() <= max(2.0, spent_s * 1.1e6)


def test_what_an_earlier_process_counted_is_where_the_next_goes_on():
    already = DeviceSignals(
        inferences=10, errors=1, escalated=2, confidence=8.0, confidence_sq=7.0, crashes=1, starts=2
    )
    seen = ServingStatistics(already)
    seen.add_answer("a", 0.5, 0.001, unsure=True)
    found = seen.make_signals(0)
    assert (found.inferences, found.errors, found.escalated, found.crashes, found.starts) == (11, 1, 3, 1, 2)


def test_more_classes_than_a_report_holds_are_counted_in_the_whole_alone():
    seen = ServingStatistics()
    for number in range(MAX_AUDIT_CELLS + 5):
        seen.add_answer(f"class-{number}", 0.5, 0.001, unsure=False)
    assert (seen.make_signals(0).inferences, len(seen.make_signals(0).classes)) == (
        MAX_AUDIT_CELLS + 5,
        MAX_AUDIT_CELLS,
    )


@pytest.mark.parametrize(
    ("served", "committed", "counts"),
    [(ZERO, ZERO, (1, 1, 0, 0)), (ONE, ZERO, (1, 0, 1, 0)), (ZERO, ONE, (1, 1, 0, 1)), (ONE, ONE, (1, 0, 0, 0))],
)
def test_a_pair_is_better_worse_or_equal_before_the_committed_models_verdict(served, committed, counts):
    trial = watched()
    trial.on_audit_stored(7, "id", AuditedAnswer("a", 0.02, served, committed, 0.0))
    trial.on_verdict(7, ZERO)
    trial.on_verdict(7, ZERO)
    (cell,) = trial.make_quality().cells
    assert (cell.audited, cell.agreed, cell.worse, cell.better) == counts


def test_the_share_is_never_more_than_the_policys_or_the_assignments_and_none_without_one():
    assert [watched(share=0.02).limit_audit_share(share) for share in (0.0, 0.01, 0.5)] == [0.0, 0.01, 0.02]
    assert CandidateEvaluation().limit_audit_share(1.0) == 0.0


def test_cells_are_bounded_and_what_found_no_room_is_counted():
    trial = watched()
    for number in range(MAX_AUDIT_CELLS + 3):
        trial.on_audit_stored(number, f"id-{number}", AuditedAnswer(f"class-{number}", 0.02, ZERO, ZERO, 0.0))
        trial.on_verdict(number, ZERO)
    assert (len(trial.make_quality().cells), trial.make_quality().dropped) == (MAX_AUDIT_CELLS, 3)


def test_what_no_verdict_ever_comes_for_is_forgotten():
    trial = watched()
    for number in range(MAX_PENDING + 1):
        trial.on_audit_stored(number, f"id-{number}", AuditedAnswer("a", 0.02, ZERO, ZERO, 0.0))
    trial.on_verdict(0, ZERO)
    assert trial.make_quality().cells == ()
    trial.on_verdict(1, ZERO)
    assert trial.make_quality().cells[0].audited == 1


def test_a_new_assignment_counts_from_nothing_and_the_verdicts_of_the_old_one_count_no_more():
    trial = watched()
    trial.on_audit_stored(1, "id", AuditedAnswer("a", 0.02, ONE, ZERO, 0.0))
    trial.start_evaluation(make_assignment(2, 0))
    trial.on_verdict(1, ZERO)
    assert (trial.make_quality().cells, trial.seen.inferences) == ((), 0)


def test_a_person_is_counted_once_for_each_answer_and_knows_both_models_where_both_are_known():
    trial = watched()
    trial.on_audit_stored(1, "id", AuditedAnswer("a", 0.02, ONE, ZERO, 0.0))
    alone = AuditedAnswer("a", 0.02, ONE, None, 0.0)
    trial.on_feedback("id", alone, 0)
    trial.on_feedback("id", alone, 0)
    trial.on_feedback("other", alone, 1)
    (cell,) = trial.make_quality().cells
    assert (cell.told, cell.told_wrong, cell.told_worse, cell.told_better) == (2, 1, 1, 0)


def test_values_agree_within_the_tolerance():
    assert predictions_agree(value(1.0), value(1.5), 0.5)
    assert not predictions_agree(value(1.0), value(1.6), 0.5)
    assert not predictions_agree(value(math.nan), value(1.0), 0.5)
    assert not predictions_agree(ZERO, value(0.0), 9.0)
    assert matches_truth(value(1.0), 1.5, 0.5)
    assert not matches_truth(value(math.inf), 1.5, 0.5)
    assert matches_truth(ONE, 1.0, 0.0)
