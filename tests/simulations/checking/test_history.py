"""History checker: every rule is broken on purpose, one at a time, and must be reported."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.question.records import AnswerKind, Outcome
from simulations.checking.events import (
    AnswerRecorded,
    Flaw,
    FrameSent,
    HistoryEvent,
    HistoryReport,
    QuestionAccepted,
    QuestionEnded,
    QuestionKey,
    VerdictStored,
    VerdictUndone,
)
from simulations.checking.history import HistoryChecker

KEY = QuestionKey("demo--a", 7, 1)
ACCEPTED = QuestionAccepted(KEY, "id1", 10.0)
LOCAL = AnswerRecorded("demo--a", "id1", AnswerKind.ANSWER, hub=False, why="budget_elapsed", key=KEY)
HUB = AnswerRecorded("demo--a", "id1", AnswerKind.ANSWER, hub=True, why="verdict", key=KEY)
CORRECTION = AnswerRecorded("demo--a", "id1", AnswerKind.CORRECTION, hub=True, why="verdict", key=KEY)
EFFECT = VerdictStored(KEY)
ANSWERED = QuestionEnded(KEY, "id1", Outcome.ANSWERED, "verdict", 11.0)
IN_TIME: list[HistoryEvent] = [ACCEPTED, EFFECT, HUB, ANSWERED]
LATE: list[HistoryEvent] = [ACCEPTED, LOCAL, EFFECT, CORRECTION, ANSWERED]


def check_history(
    history: Iterable[HistoryEvent], last_fault_ended_s: float | None = None, now_s: float | None = None
) -> HistoryReport:
    """Check a finished history at once."""
    checker = HistoryChecker(last_fault_ended_s)
    for event in history:
        checker.on_event(event)
    return checker.make_report(now_s)


def flaws(*events: HistoryEvent, **limits: float) -> dict[str, int]:
    return check_history(events, **limits).flaws


def test_an_answer_in_time_is_a_whole_history() -> None:
    report = check_history(IN_TIME)
    assert report.ok
    assert (report.accepted, report.answered, report.answers_by_hub, report.late, report.effects) == (1, 1, 1, 0, 1)


def test_a_late_verdict_counts_as_late_and_as_nothing_worse() -> None:
    report = check_history(LATE)
    assert report.ok
    assert (report.late, report.answers, report.answers_by_hub) == (1, 1, 0)


@given(st.permutations(IN_TIME[1:]))
def test_the_order_in_which_two_databases_are_read_does_not_matter(rest: list[HistoryEvent]) -> None:
    assert check_history([ACCEPTED, *rest]).ok
    assert check_history([EFFECT, ACCEPTED, *(each for each in rest if each is not EFFECT)]).ok


@pytest.mark.parametrize("end", [Outcome.EXPIRED, Outcome.REFUSED, Outcome.DENIED])
def test_a_question_may_end_without_the_hub_if_the_device_answered_it(end: Outcome) -> None:
    report = check_history([ACCEPTED, LOCAL, QuestionEnded(KEY, "id1", end, "why", 11.0)])
    assert report.ok
    assert getattr(report, end) == 1


def test_a_local_answer_alone_is_nothing_to_judge() -> None:
    report = check_history([AnswerRecorded("demo--a", "id9", AnswerKind.ANSWER, hub=False, why="confident")])
    assert report.ok
    assert report.whys == {"confident": 1}


def test_an_accepted_question_without_an_outcome_is_lost() -> None:
    report = check_history([ACCEPTED, LOCAL, EFFECT])
    assert report.lost == 1
    assert "demo--a 7-1" in report.format_text()


def test_nothing_is_lost_until_its_time_is_up() -> None:
    events: list[HistoryEvent] = [ACCEPTED, LOCAL]
    early = check_history(events, last_fault_ended_s=100.0, now_s=159.0)
    assert (early.lost, early.open, early.ok) == (0, 1, True)
    assert check_history(events, last_fault_ended_s=100.0, now_s=161.0).lost == 1


def test_a_question_accepted_after_the_last_fault_has_its_own_minute() -> None:
    young = QuestionAccepted(KEY, "id1", 150.0)
    assert check_history([young, LOCAL], last_fault_ended_s=100.0, now_s=200.0).lost == 0
    assert check_history([young, LOCAL], last_fault_ended_s=100.0, now_s=211.0).lost == 1


def test_an_outcome_after_the_time_was_up_is_lost_too() -> None:
    late = QuestionEnded(KEY, "id1", Outcome.ANSWERED, "verdict", 161.0)
    assert flaws(ACCEPTED, EFFECT, HUB, late, last_fault_ended_s=100.0) == {"lost": 1}
    assert flaws(ACCEPTED, EFFECT, HUB, late) == {}


def test_two_answers_are_doubled() -> None:
    report = check_history([*IN_TIME, LOCAL])
    assert (report.doubled, report.flaws) == (1, {Flaw.DOUBLED_ANSWER.value: 1})


def test_two_corrections_are_doubled() -> None:
    report = check_history([*LATE, CORRECTION])
    assert (report.doubled, report.flaws) == (1, {Flaw.DOUBLED_CORRECTION.value: 1})


def test_two_effects_of_one_question_are_doubled_before_and_after_it_is_known() -> None:
    assert check_history([*IN_TIME, EFFECT]).doubled == 1
    assert check_history([EFFECT, EFFECT, *IN_TIME]).doubled == 2


def test_the_same_seq_of_another_epoch_or_device_is_another_question() -> None:
    whole: list[HistoryEvent]
    for other in (QuestionKey("demo--b", 7, 1), QuestionKey("demo--a", 8, 1), QuestionKey("demo--a", 7, 2)):
        answer = AnswerRecorded(other.device, "id2", AnswerKind.ANSWER, hub=True, key=other)
        whole = [
            *IN_TIME,
            QuestionAccepted(other, "id2"),
            VerdictStored(other),
            answer,
            QuestionEnded(other, "id2", Outcome.ANSWERED),
        ]
        assert check_history(whole).ok


def test_two_outcomes_are_caught() -> None:
    assert flaws(*IN_TIME, QuestionEnded(KEY, "id1", Outcome.EXPIRED)) == {"ended twice": 1}


def test_two_acceptances_are_caught() -> None:
    assert flaws(*IN_TIME, ACCEPTED) == {"accepted twice": 1}


def test_an_outcome_of_nothing_is_caught() -> None:
    assert flaws(ANSWERED, HUB) == {"never accepted": 1}


def test_an_effect_of_what_the_device_never_accepted_is_caught() -> None:
    assert flaws(*IN_TIME, VerdictStored(QuestionKey("demo--a", 7, 2))) == {"never accepted": 1}


def test_effects_of_an_epoch_whose_database_is_gone_are_not_judged() -> None:
    assert flaws(*IN_TIME, VerdictStored(QuestionKey("demo--a", 6, 2))) == {}


def test_a_correction_of_nothing_is_caught() -> None:
    assert flaws(ACCEPTED, EFFECT, CORRECTION, LOCAL, ANSWERED) == {"correction without answer": 1}


def test_an_outcome_that_nobody_was_told_is_caught() -> None:
    assert flaws(ACCEPTED, EFFECT, ANSWERED) == {"ended unsaid": 1}
    assert flaws(ACCEPTED, EFFECT, LOCAL, ANSWERED) == {"ended unsaid": 1}  # the hub's word is missing
    assert flaws(ACCEPTED, QuestionEnded(KEY, "id1", Outcome.DENIED)) == {"ended unsaid": 1}


def test_an_answer_behind_which_no_verdict_stands_is_caught() -> None:
    assert flaws(ACCEPTED, HUB, ANSWERED) == {"answered without effect": 1}


def test_after_a_restored_backup_of_the_hub_missing_effects_prove_nothing() -> None:
    lenient = HistoryChecker(hub_complete=False)
    for event in (ACCEPTED, HUB, ANSWERED):
        lenient.on_event(event)
    assert lenient.make_report().ok


@given(st.integers(0, len(LATE) - 1))
def test_a_history_with_any_one_event_missing_does_not_hold(missing: int) -> None:
    assert not check_history([event for at, event in enumerate(LATE) if at != missing]).ok


def test_a_thousand_flaws_are_counted_and_the_first_hundred_told() -> None:
    report = check_history([QuestionAccepted(QuestionKey("demo--a", 7, seq), f"id{seq}") for seq in range(1000)])
    assert report.lost == 1000
    assert len(report.stories) == 100


def test_the_report_may_be_asked_for_at_any_moment() -> None:
    checker = HistoryChecker()
    for event in IN_TIME:
        checker.on_event(event)
        checker.make_report()
    assert checker.make_report() == check_history(IN_TIME)
    assert "history holds: 0 lost, 0 doubled, 0 late" in checker.make_report().format_text()


def test_a_question_that_moved_may_have_an_effect_at_each_hub_it_was_sent_to_and_one_only() -> None:
    moved: list[HistoryEvent] = [
        ACCEPTED,
        FrameSent(KEY, "eu-1"),
        FrameSent(KEY, "us-1"),
        VerdictStored(KEY, "us-1"),
        HUB,
        ANSWERED,
    ]
    assert check_history([*moved, VerdictStored(KEY, "eu-1")]).ok
    assert check_history([*moved, VerdictStored(KEY, "us-1")]).flaws == {"doubled effect": 1}
    assert check_history([*moved, VerdictStored(KEY, "eu-1"), VerdictStored(KEY, "eu-1")]).flaws == {
        "doubled effect": 1
    }
    assert check_history([*moved, VerdictStored(KEY, "ap-1")]).flaws == {"doubled effect": 1}, "it was never sent there"


@pytest.mark.parametrize("over", [True, False])
def test_an_effect_that_a_restored_backup_undid_may_be_had_once_more_and_not_twice(over: bool) -> None:
    begun: list[HistoryEvent] = [
        ACCEPTED,
        FrameSent(KEY, "eu-1"),
        VerdictStored(KEY, "eu-1"),
        HUB,
        *([ANSWERED] if over else []),
    ]
    again: list[HistoryEvent] = [VerdictUndone(KEY, "eu-1"), VerdictStored(KEY, "eu-1"), *([] if over else [ANSWERED])]
    assert check_history([*begun, *again]).ok
    assert check_history([*begun, *again, VerdictStored(KEY, "eu-1")]).flaws == {"doubled effect": 1}


def test_an_answered_question_whose_effect_was_undone_was_backed_once() -> None:
    assert check_history(
        [ACCEPTED, FrameSent(KEY, "eu-1"), VerdictStored(KEY, "eu-1"), VerdictUndone(KEY, "eu-1"), HUB, ANSWERED]
    ).ok


def test_what_leaves_before_it_is_on_record_or_after_its_end_is_caught() -> None:
    assert flaws(FrameSent(KEY), *IN_TIME) == {"left off the record": 1}
    assert flaws(*IN_TIME, FrameSent(KEY)) == {"left off the record": 1}
    assert flaws(ACCEPTED, FrameSent(KEY), FrameSent(KEY), EFFECT, HUB, ANSWERED) == {}


def test_a_seq_that_was_passed_over_was_never_accepted() -> None:
    third = QuestionKey(KEY.device, KEY.epoch, 3)
    whole: list[HistoryEvent] = [*IN_TIME, QuestionAccepted(third, "id3"), QuestionEnded(third, "id3", Outcome.DENIED)]
    whole.append(AnswerRecorded(third.device, "id3", AnswerKind.ANSWER, hub=False, key=third))
    assert check_history(whole).ok
    second = QuestionKey(KEY.device, KEY.epoch, 2)
    answered_here = AnswerRecorded(second.device, "id2", AnswerKind.ANSWER, hub=False, key=second)
    assert check_history([*whole, answered_here]).ok, "its store failed after its caller was answered"
    assert check_history([*whole, answered_here, answered_here]).flaws == {"doubled answer": 1}
    assert check_history([*whole, QuestionEnded(second, "id2", Outcome.DENIED)]).flaws == {"never accepted": 1}


def test_what_has_ended_is_forgotten() -> None:
    checker = HistoryChecker()
    for seq in range(1, 1001):
        key = QuestionKey("demo--a", 7, seq)
        for event in (
            QuestionAccepted(key, f"id{seq}"),
            VerdictStored(key),
            AnswerRecorded(key.device, f"id{seq}", AnswerKind.ANSWER, hub=True, key=key),
            QuestionEnded(key, f"id{seq}", Outcome.ANSWERED),
        ):
            checker.on_event(event)
    checker.count_local("confident", 5)
    assert (checker.held, checker.make_report().answers, checker.make_report().ok) == (0, 1005, True)
