"""Refusals of the hub: temporary ones, final ones, and that each counts for exactly the bytes it names."""

from math import nan

import pytest

from edge_agent.question.commands import Answer, Finish, MarkState, OutboxState, Reseal, Transmit
from edge_agent.question.records import Outcome
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import policy
from tests.edge_agent.question.test_decide import EPOCH, VERDICT, accepted, ask, core, digest, only, refusal
from wire.protocol.messages import Refusal, RefusalReason


def test_a_refusal_for_now_keeps_the_row_and_the_hubs_quiet():
    edge = core()
    accepted(edge)
    commands = edge.on_refusal(refusal(RefusalReason.BUSY, retry_s=5.0, final=False), 1.0)
    (mark,) = only(commands, MarkState)
    assert mark.state is OutboxState.SEALED
    assert mark.not_before >= 6.0
    (said,) = ask(edge, 2, 2.0)
    assert said.why is DecisionReason.HUB_QUIET
    assert not only(edge.on_wake(5.9), Transmit)
    assert only(edge.on_wake(mark.not_before), Transmit) == [Transmit(1)]


def test_who_cannot_be_served_in_time_is_answered_at_once():
    edge = core(policy(mode="wait", budget_s=2.0))
    accepted(edge)
    (said,) = only(edge.on_refusal(refusal(RefusalReason.BUSY, retry_s=9.0, final=False), 0.5), Answer)
    assert said.why is DecisionReason.HUB_QUIET


def test_a_hub_may_not_ask_for_silence_for_ever():
    edge = core()
    accepted(edge)
    edge.on_refusal(refusal(RefusalReason.BUSY, retry_s=1e12, final=False), 0.0)
    assert edge.link.quiet_until == 3600.0
    edge.on_refusal(refusal(RefusalReason.BUSY, retry_s=nan, final=False), 0.0)
    assert edge.link.quiet_until == 3600.0


@pytest.mark.parametrize(
    ("reason", "outcome"), [(RefusalReason.POLICY, Outcome.REFUSED), (RefusalReason.EXPIRED, Outcome.EXPIRED)]
)
def test_a_final_refusal_ends_the_question_with_its_reason(reason, outcome):
    edge = core(policy(mode="wait"))
    accepted(edge)
    commands = edge.on_refusal(refusal(reason, final=True), 0.5)
    assert only(commands, Finish) == [Finish(1, f"{1:032x}", outcome, reason)]
    assert len(only(commands, Answer)) == 1
    assert edge.on_verdict(1, VERDICT, 1.0) == []


def test_a_refusal_of_other_bytes_is_not_ours():
    edge = core()
    accepted(edge)
    assert edge.on_refusal(Refusal(EPOCH, 1, digest(2), RefusalReason.POLICY, 0.0, True), 0.5) == []
    assert edge.on_note(Refusal(EPOCH + 1, 1, digest(1), RefusalReason.POLICY, 0.0, True), 0.5) == []


def test_key_expired_seals_anew_once_per_refusal_and_charges_nothing():
    edge = core()
    accepted(edge)
    spent = edge.spend
    assert only(edge.on_refusal(refusal(RefusalReason.KEY_EXPIRED, final=True), 1.0), Reseal) == [Reseal(1)]
    assert edge.on_refusal(refusal(RefusalReason.KEY_EXPIRED, final=True), 1.1) == []
    commands = edge.on_stored(1, b"new digest", 1.2)
    assert only(commands, Transmit) == [Transmit(1)]
    assert not only(commands, Answer)
    assert edge.spend == spent
    assert edge.on_refusal(refusal(RefusalReason.KEY_EXPIRED, final=True), 1.3) == []  # of the old bytes


def test_a_frame_of_a_former_version_is_sealed_anew_once_and_one_whose_question_has_ended_not_at_all():
    edge = core()
    accepted(edge)
    assert edge.on_outdated_frame(1, 0.0) == [Reseal(1)]
    assert edge.on_outdated_frame(1, 0.0) == []
    edge.on_verdict(1, VERDICT, 1.0)
    assert edge.on_outdated_frame(1, 1.0) == []


def test_a_row_that_cannot_be_sealed_anew_yet_waits_and_is_not_lost():
    edge = core()
    accepted(edge)
    edge.on_refusal(refusal(RefusalReason.KEY_EXPIRED, final=True), 1.0)
    (mark,) = only(edge.on_store_failed(1, DecisionReason.NO_DISK, 1.1), MarkState)
    assert mark.not_before == pytest.approx(61.1)
    assert only(edge.on_wake(61.2), Transmit) == [Transmit(1)]


@pytest.mark.parametrize("reason", [RefusalReason.KEY_EXPIRED, RefusalReason.CREATED_AHEAD])
def test_a_question_is_sealed_again_three_times_and_the_fourth_final_refusal_ends_it(reason):
    edge = core()
    accepted(edge)
    sealed = digest(1)
    for number in range(3):
        refused = Refusal(EPOCH, 1, sealed, reason, 0.0, True)
        assert only(edge.on_refusal(refused, 1.0 + number), Reseal) == [Reseal(1)], number
        sealed = digest(100 + number)
        edge.on_stored(1, sealed, 1.5 + number)
    commands = edge.on_refusal(Refusal(EPOCH, 1, sealed, reason, 0.0, True), 9.0)
    assert [(c.outcome, c.reason) for c in only(commands, Finish)] == [(Outcome.REFUSED, reason)]


def test_a_frame_of_a_former_version_counts_as_one_of_the_three_seals_and_a_seal_that_failed_as_none():
    edge = core()
    accepted(edge)
    edge.on_outdated_frame(1, 0.0)
    sealed = digest(99)
    edge.on_stored(1, sealed, 0.5)
    for number in range(2):
        edge.on_refusal(Refusal(EPOCH, 1, sealed, RefusalReason.KEY_EXPIRED, 0.0, True), 1.0 + 200 * number)
        edge.on_store_failed(1, DecisionReason.NO_DISK, 1.1 + 200 * number)
        edge.on_wake(100.0 + 200 * number)
    for number in range(2):
        refused = Refusal(EPOCH, 1, sealed, RefusalReason.KEY_EXPIRED, 0.0, True)
        assert only(edge.on_refusal(refused, 500.0 + number), Reseal) == [Reseal(1)], number
        sealed = digest(100 + number)
        edge.on_stored(1, sealed, 500.5 + number)
    commands = edge.on_refusal(Refusal(EPOCH, 1, sealed, RefusalReason.KEY_EXPIRED, 0.0, True), 600.0)
    assert [c.outcome for c in only(commands, Finish)] == [Outcome.REFUSED]
