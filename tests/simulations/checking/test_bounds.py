"""Bounds checker: byte budgets, open questions and rollout waves, each crossed on purpose and each kept."""

from edge_agent.core.records import Outcome as End
from simulations.checking.bounds import Bounds, Limits
from simulations.checking.events import Accepted, Allowed, Exposed, Flaw, Key, Left, Outcome
from simulations.checking.history import Judge


def accepted(seq: int, size: int = 400, day: int = 1, at_s: float = 100.0, device: str = "d") -> Accepted:
    return Accepted(Key(device, 7, seq), f"id{seq}", at_s, size, day)


def blamed(limits: Limits, *events: Accepted) -> list[Flaw]:
    flaws: list[Flaw] = []
    bounds = Bounds(lambda flaw, _story: flaws.append(flaw))
    bounds.use(limits, 0.0)
    for event in events:
        bounds.charge(event)
    return flaws


def test_a_day_s_bytes_are_spent_to_the_last_and_not_beyond() -> None:
    assert blamed(Limits(bytes_per_day=800), accepted(1), accepted(2)) == []
    assert blamed(Limits(bytes_per_day=799), accepted(1), accepted(2)) == [Flaw.OVERSPENT]


def test_each_device_and_each_day_has_its_own() -> None:
    events = (accepted(1), accepted(1, device="e"), accepted(2, day=2))
    assert blamed(Limits(bytes_per_day=400), *events) == []


def test_a_clock_that_goes_back_opens_no_older_day() -> None:
    assert blamed(Limits(bytes_per_day=800), accepted(1, day=2), accepted(2, day=1)) == [Flaw.OVERSPENT]


def test_more_open_questions_than_allowed_are_found() -> None:
    assert blamed(Limits(max_open=1), accepted(1), accepted(2)) == [Flaw.CROWDED]


def test_a_text_without_limits_sets_none() -> None:
    assert blamed(Limits(), *(accepted(seq) for seq in range(1, 100))) == []


def test_only_what_never_left_is_paid_back() -> None:
    def history(*, sent: bool) -> dict[str, int]:
        judge = Judge()
        judge.bounds.use(Limits(bytes_per_day=400), 0.0)
        judge.see(accepted(1))
        if sent:
            judge.see(Left(Key("d", 7, 1)))
        judge.see(Outcome(Key("d", 7, 1), "id1", End.DENIED))
        judge.see(accepted(2))
        return judge.report(now_s=0.0).flaws

    assert Flaw.OVERSPENT not in history(sent=False)
    assert Flaw.OVERSPENT in history(sent=True)


def test_what_was_under_way_when_the_policy_changed_is_judged_by_the_looser_one() -> None:
    flaws: list[Flaw] = []
    bounds = Bounds(lambda flaw, _story: flaws.append(flaw))
    bounds.use(Limits(bytes_per_day=800), 0.0)
    bounds.charge(accepted(1, at_s=99.0))
    bounds.use(Limits(bytes_per_day=400), 100.0, ["d"])
    bounds.charge(accepted(2, at_s=100.1))
    assert flaws == []
    bounds.charge(accepted(3, at_s=200.0))
    assert flaws == [Flaw.OVERSPENT]


def test_more_devices_than_a_wave_allows_are_found() -> None:
    judge = Judge()
    for event in (Allowed("r", 1), Exposed("r", "a"), Exposed("r", "a"), Allowed("r", 2), Exposed("r", "b")):
        judge.see(event)
    assert judge.report().ok
    judge.see(Exposed("r", "c"))
    assert judge.report().flaws == {Flaw.EXPOSED.value: 1}


def test_a_device_that_no_wave_was_opened_for_is_found() -> None:
    judge = Judge()
    judge.see(Exposed("r", "a"))
    assert judge.report().flaws == {Flaw.EXPOSED.value: 1}
