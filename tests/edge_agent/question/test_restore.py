"""Idle snapshots: a core resumed from one behaves as the core that it was taken from."""

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.question.commands import CoreSnapshot, IdleSnapshot, RandomDraws, SampleAttributes, Store, WakeAt
from edge_agent.question.decide import EdgeCore
from policies.decisions.budget import BudgetSpend
from tests.edge_agent.doubles.hub_double import policy
from tests.edge_agent.question.test_decide import EPOCH, SETUP, SURE, UNSURE, VERDICT, ask, core, digest, refusal
from tests.examples import count_examples
from wire.protocol.messages import RefusalReason, SpendMirror

AWAY_S = 100.0  # longer than anything is waited for
steps = st.lists(st.sampled_from(["sure", "unsure", "refused", "unanswered"]), max_size=12)


def life(edge: EdgeCore, step: str, number: int, now: float) -> list[object]:
    """All commands from one sample until its end, without alarms: waking early or twice does no harm."""
    said = ask(edge, number, now, SURE if step == "sure" else UNSURE)
    for store in [command for command in said if isinstance(command, Store)]:
        said += edge.on_stored(store.seq, digest(store.seq), now)
        if step == "refused":
            said += edge.on_refusal(refusal(RefusalReason.POLICY, store.seq, final=True), now + 1.0)
        elif step == "unanswered":
            said += edge.on_receipt((store.seq,), now + 1.0)
            said += edge.on_wake(now + 3.0)
        said += edge.on_verdict(store.seq, VERDICT, now + 4.0)
    said += edge.on_wake(now + AWAY_S - 1.0)
    return [command for command in said if not isinstance(command, WakeAt)]


@settings(max_examples=count_examples(50))
@given(steps)
def test_a_core_that_rests_between_samples_says_what_one_says_that_never_does(taken: list[str]) -> None:
    awake, now = core(), 0.0
    rested: IdleSnapshot | None = IdleSnapshot(EPOCH, 1, awake.spend, 0)
    for number, step in enumerate(taken, 1):
        other = core()
        life(other, "unsure", 99, 1e9)  # it was somebody else, whose clock shows another time
        assert rested is not None
        other.resume_from(rested)
        assert life(other, step, number, now) == life(awake, step, number, now)
        rested, now = other.idle_snapshot(now + AWAY_S), now + AWAY_S


def test_what_is_open_or_waited_for_cannot_rest() -> None:
    edge = core()
    assert edge.idle_snapshot(0.0) is not None
    (store, *_) = ask(edge)
    assert edge.idle_snapshot(0.0) is None  # open
    edge.on_stored(store.seq, digest(store.seq), 0.0)
    edge.on_receipt((store.seq,), 1.0)
    edge.on_verdict(store.seq, VERDICT, 2.0)
    assert edge.idle_snapshot(2.0) is None  # no Ask may be sent for a minute
    assert edge.idle_snapshot(62.0) is not None


def test_a_core_under_a_deny_all_notice_or_before_the_report_of_its_spending_cannot_rest() -> None:
    edge = core()
    edge.on_notice(1)
    assert edge.idle_snapshot(0.0) is None
    edge = EdgeCore(SETUP, policy())
    edge.restore(CoreSnapshot(EPOCH, 1, BudgetSpend(), mirrored=False), 0.0)
    assert edge.idle_snapshot(0.0) is None
    edge.on_mirror(SpendMirror(EPOCH, ()), 0.0)
    assert edge.idle_snapshot(0.0) is not None


def test_a_core_that_looks_changes_nothing() -> None:
    edge = core()
    before = edge.idle_snapshot(0.0)
    for local in (SURE, UNSURE):
        edge.evaluate_sample(local, SampleAttributes("open", 20_000), RandomDraws("1", 0.0), 0.0)
    assert edge.idle_snapshot(0.0) == before
