"""Bounds checker: byte budgets, open questions and rollout waves, each crossed on purpose and each kept."""

from edge_agent.question.records import Outcome
from simulations.checking.bounds import BoundsChecker, PolicyLimits
from simulations.checking.events import (
    CandidateCommitted,
    CandidateServed,
    Flaw,
    FrameSent,
    QuestionAccepted,
    QuestionEnded,
    QuestionKey,
    WaveAllowed,
)
from simulations.checking.history import HistoryChecker


def accepted(seq: int, size: int = 400, day: int = 1, at_s: float = 100.0, device: str = "d") -> QuestionAccepted:
    return QuestionAccepted(QuestionKey(device, 7, seq), f"id{seq}", at_s, size, day)


def blamed(limits: PolicyLimits, *events: QuestionAccepted) -> list[Flaw]:
    flaws: list[Flaw] = []
    bounds = BoundsChecker(lambda flaw, _story: flaws.append(flaw))
    bounds.set_limits(limits, 0.0)
    for event in events:
        bounds.on_accepted(event)
    return flaws


def test_a_day_s_bytes_are_spent_to_the_last_and_not_beyond() -> None:
    assert blamed(PolicyLimits(bytes_per_day=800), accepted(1), accepted(2)) == []
    assert blamed(PolicyLimits(bytes_per_day=799), accepted(1), accepted(2)) == [Flaw.OVERSPENT]


def test_each_device_and_each_day_has_its_own() -> None:
    events = (accepted(1), accepted(1, device="e"), accepted(2, day=2))
    assert blamed(PolicyLimits(bytes_per_day=400), *events) == []


def test_a_clock_that_goes_back_opens_no_older_day() -> None:
    assert blamed(PolicyLimits(bytes_per_day=800), accepted(1, day=2), accepted(2, day=1)) == [Flaw.OVERSPENT]


def test_more_open_questions_than_allowed_are_found() -> None:
    assert blamed(PolicyLimits(max_open=1), accepted(1), accepted(2)) == [Flaw.CROWDED]


def test_a_text_without_limits_sets_none() -> None:
    assert blamed(PolicyLimits(), *(accepted(seq) for seq in range(1, 100))) == []


def test_only_what_never_left_is_paid_back() -> None:
    def history(*, sent: bool) -> dict[str, int]:
        judge = HistoryChecker()
        judge.bounds.set_limits(PolicyLimits(bytes_per_day=400), 0.0)
        judge.on_event(accepted(1))
        if sent:
            judge.on_event(FrameSent(QuestionKey("d", 7, 1)))
        judge.on_event(QuestionEnded(QuestionKey("d", 7, 1), "id1", Outcome.DENIED))
        judge.on_event(accepted(2))
        return judge.make_report(now_s=0.0).flaws

    assert Flaw.OVERSPENT not in history(sent=False)
    assert Flaw.OVERSPENT in history(sent=True)


def test_what_was_under_way_when_the_policy_changed_is_judged_by_the_looser_one() -> None:
    flaws: list[Flaw] = []
    bounds = BoundsChecker(lambda flaw, _story: flaws.append(flaw))
    bounds.set_limits(PolicyLimits(bytes_per_day=800), 0.0)
    bounds.on_accepted(accepted(1, at_s=99.0))
    bounds.set_limits(PolicyLimits(bytes_per_day=400), 100.0, ["d"])
    bounds.on_accepted(accepted(2, at_s=100.1))
    assert flaws == []
    bounds.on_accepted(accepted(3, at_s=200.0))
    assert flaws == [Flaw.OVERSPENT]


def test_more_devices_than_a_wave_allows_are_found() -> None:
    judge = HistoryChecker()
    for event in (
        WaveAllowed("r", 1),
        CandidateServed("r", "a"),
        CandidateServed("r", "a"),
        WaveAllowed("r", 2),
        CandidateServed("r", "b"),
    ):
        judge.on_event(event)
    assert judge.make_report().ok
    judge.on_event(CandidateServed("r", "c"))
    assert judge.make_report().flaws == {Flaw.EXPOSED.value: 1}


def test_a_device_that_no_wave_was_opened_for_is_found() -> None:
    judge = HistoryChecker()
    judge.on_event(CandidateServed("r", "a"))
    assert judge.make_report().flaws == {Flaw.EXPOSED.value: 1}


def test_a_version_that_is_clearly_worse_is_kept_by_nobody() -> None:
    judge = HistoryChecker()
    judge.on_event(CandidateCommitted("r", "a", 0.0))
    assert judge.make_report().ok
    judge.on_event(CandidateCommitted("r", "b", 0.4))
    assert judge.make_report().flaws == {Flaw.WORSE_KEPT.value: 1}
