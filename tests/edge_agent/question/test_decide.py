"""Unit tests of EdgeCore: events and `now` in, commands out. No event loop, no clock, no doubles."""

from datetime import date
from functools import partial
from math import inf, nan
from typing import Any

import msgspec
import pytest

from edge_agent.question.commands import (
    Answer,
    CoreSetup,
    CoreSnapshot,
    Correction,
    Finish,
    MarkState,
    OutboxState,
    RandomDraws,
    SampleAttributes,
    SendAsk,
    SendHello,
    Store,
    StoredQuestion,
    Transmit,
    WakeAt,
)
from edge_agent.question.decide import EdgeCore
from edge_agent.question.limits import OutboxLimits
from edge_agent.question.records import AnswerSource, Outcome
from models.runtime import chain
from models.runtime.runner import echo_manifest
from policies.decisions import egress
from policies.decisions.budget import BudgetSpend
from policies.decisions.leakage import LeakageEvidence
from policies.decisions.routing import HubSite
from policies.language.document import parse_policy
from policies.model.policy import Policy
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import DEFAULTS, POLICY, policy
from wire.protocol.messages import (
    Prediction,
    Receipt,
    Refusal,
    RefusalReason,
    SpendMirror,
    StatusReply,
    Verdict,
    WelcomeNote,
)

SURE = Prediction(1, 0.95, (0.05, 0.95), "echo@1")
UNSURE = Prediction(1, 0.55, (0.45, 0.55), "echo@1")
VERDICT = Verdict(Prediction(0, 0.99, (0.99, 0.01), "big@1"), "hub-1", "local", 0.1, 0.2)
ECHO = echo_manifest(2)
EVIDENCE = LeakageEvidence(ECHO.leakage, partial(chain.digest_chain, ECHO.cut, ECHO.codec))
SETUP = CoreSetup((*ECHO.features, *egress.DERIVED_FIELDS), (HubSite("hub-1", "local"),), 700, evidence=EVIDENCE)
OPEN = SampleAttributes("open")
EPOCH = 5


def core(rules: Policy | None = None, setup: CoreSetup = SETUP, *, up: bool = True) -> EdgeCore:
    edge = EdgeCore(setup, rules or policy())
    edge.restore(CoreSnapshot(EPOCH, 1, BudgetSpend()), 0.0)
    if up:
        edge.on_link(up=True, now=0.0)
        edge.on_note(WelcomeNote(EPOCH, "hub-1", "local"), 0.0)
    return edge


def ask(edge: EdgeCore, number: int = 1, now: float = 0.0, local: Prediction = UNSURE) -> list[Any]:
    return edge.on_prediction(local, OPEN, RandomDraws(f"{number:032x}", 0.9, 0.5), now)


def digest(seq: int) -> bytes:
    return seq.to_bytes(32, "big")


def accepted(edge: EdgeCore, number: int = 1, now: float = 0.0) -> list[Any]:
    (store, *_) = ask(edge, number, now)
    assert isinstance(store, Store)
    return edge.on_stored(store.seq, digest(store.seq), now)


def only(commands: list[Any], kind: type) -> list[Any]:
    return [command for command in commands if isinstance(command, kind)]


def refusal(reason: RefusalReason, seq: int = 1, retry_s: float = 0.0, *, final: bool) -> Refusal:
    return Refusal(EPOCH, seq, digest(seq), reason, retry_s, final)


def test_sure_is_answered_here_and_unsure_is_stored_before_anything_is_said():
    assert [type(c) for c in ask(core(), local=SURE)] == [Answer]
    assert [type(c) for c in ask(core()) if not isinstance(c, WakeAt)] == [Store]


def test_after_the_commit_answer_now_answers_and_sends():
    commands = accepted(core())
    (said,) = only(commands, Answer)
    assert (said.source, said.why, said.seq) == (AnswerSource.LOCAL, DecisionReason.UNSURE, 1)
    assert only(commands, Transmit) == [Transmit(1)]


def test_in_wait_mode_the_caller_hears_the_hub_or_the_clock():
    edge = core(policy(mode="wait", budget_s=2.0))
    assert not only(accepted(edge), Answer)
    (said,) = only(edge.on_verdict(1, VERDICT, 1.0), Answer)
    assert (said.source, said.why, said.queue_s) == (AnswerSource.HUB, DecisionReason.VERDICT, 0.1)
    accepted(edge, 2, 1.0)
    assert not only(edge.on_wake(2.9), Answer)
    (late,) = only(edge.on_wake(3.0), Answer)
    assert late.why is DecisionReason.BUDGET_ELAPSED
    assert [type(c) for c in edge.on_verdict(2, VERDICT, 9.0)] == [Correction, Finish]


def test_the_first_wake_is_at_the_budget():
    edge = core(policy(mode="wait", budget_s=2.0))
    assert only(ask(edge, now=10.0), WakeAt) == [WakeAt(12.0)]


def test_no_alarm_of_an_ended_question_wakes_the_device():
    edge = core(policy(mode="wait", budget_s=2.0))
    accepted(edge, 1, 0.0)
    for number in range(1, 4):
        edge.on_verdict(number, VERDICT, number + 0.1)
        accepted(edge, number + 1, number + 0.2)
    assert only(edge.on_wake(3.3), WakeAt) == [WakeAt(5.2)]  # of the one that is open; the third's was at 4.2


def test_a_repeated_verdict_does_nothing():
    edge = core()
    accepted(edge)
    assert only(edge.on_verdict(1, VERDICT, 1.0), Finish) == [
        Finish(1, f"{1:032x}", Outcome.ANSWERED, DecisionReason.VERDICT)
    ]
    assert edge.on_verdict(1, VERDICT, 1.1) == []


def test_a_failed_store_answers_here_refunds_and_names_no_question():
    edge = core()
    ask(edge)
    assert edge.spend.bytes == 700
    (said,) = only(edge.on_store_failed(1, DecisionReason.NO_DISK, 0.1), Answer)
    assert (said.why, said.seq) == (DecisionReason.NO_DISK, None)
    assert edge.spend.bytes == 0
    assert len(edge.open_questions) == 0
    assert edge.on_stored(1, digest(1), 0.2) == []


def test_without_a_database_nothing_is_asked():
    edge = EdgeCore(SETUP, policy())
    (said,) = ask(edge)
    assert (said.why, said.seq) == (DecisionReason.NO_DISK, None)


@pytest.mark.parametrize("confidence", [nan, inf, -0.1, 1.5])
def test_a_confidence_that_is_none_never_asks(confidence):
    (said,) = ask(core(), local=Prediction(1, confidence, (), "echo@1"))
    assert said.why is DecisionReason.INVALID_CONFIDENCE


def test_the_window_holds_32_and_a_receipt_lets_the_next_one_go():
    edge = core()
    sent = [c.seq for n in range(40) for c in only(accepted(edge, n), Transmit)]
    assert sent == list(range(1, 33))
    commands = edge.on_note(Receipt(EPOCH, (1, 2)), 0.1)
    assert only(commands, Transmit) == [Transmit(33), Transmit(34)]
    assert only(commands, MarkState) == [
        MarkState(1, OutboxState.RECEIPTED, 0.0, 1),
        MarkState(2, OutboxState.RECEIPTED, 0.0, 1),
    ]
    assert len(edge.open_questions) == 40


def test_who_waits_is_sent_before_who_was_answered():
    edge = core(up=False)
    accepted(edge, 1)  # queued while the link is down: answered
    edge.on_link(up=True, now=1.0)
    edge = core(policy(mode="wait"), up=False)
    accepted(edge, 1)
    home = edge.connections.get("")
    home.up, home.quiet_until = True, 10.0  # the hub wants silence, so nothing goes yet
    home.quiet_until = 0.0
    (store, *_) = ask(edge, 2)
    home.up = False
    edge.on_stored(store.seq, digest(2), 0.0)
    assert [c.seq for c in only(edge.on_link(up=True, now=1.0), Transmit)] == [2, 1]


def test_a_receipt_stops_the_fast_retry_only():
    edge = core()
    accepted(edge)
    assert only(edge.on_wake(10.0), Transmit) == [Transmit(1)]
    edge.on_receipt((1,), 11.0)
    assert not only(edge.on_wake(40.0), Transmit)
    assert only(edge.on_wake(72.0), SendAsk) == [SendAsk((1,))]
    assert not only(edge.on_wake(73.0), SendAsk)
    assert only(edge.on_wake(133.0), SendAsk) == [SendAsk((1,))]


def test_unknown_means_the_same_bytes_again_and_pending_means_patience():
    edge = core()
    accepted(edge)
    edge.on_receipt((1,), 0.1)
    assert only(edge.on_statuses(StatusReply(EPOCH, (1,), ()), 60.0), Transmit) == []
    assert only(edge.on_statuses(StatusReply(EPOCH, (), (1, 99)), 60.0), Transmit) == [Transmit(1)]


def test_a_new_connection_says_hello_asks_and_sends_again():
    edge = core()
    accepted(edge, 1)
    accepted(edge, 2)
    edge.on_receipt((1,), 0.1)
    edge.on_link(up=False, now=1.0)
    commands = edge.on_link(up=True, now=2.0)
    assert [c for c in commands if not isinstance(c, WakeAt)] == [SendHello(), SendAsk((1,)), Transmit(2)]
    assert only(edge.on_wake(63.0), SendHello)  # nobody answered the first
    edge.on_note(WelcomeNote(EPOCH, "hub-1", "local"), 64.0)
    assert not only(edge.on_wake(200.0), SendHello)


def test_what_is_owed_is_asked_for_in_pieces_of_64():
    edge = core(policy(max_open=1000))
    for number in range(1, 101):
        accepted(edge, number)
        edge.on_receipt((number,), 0.0)
    asks = only(edge.on_link(up=True, now=1.0), SendAsk)
    assert [len(a.seqs) for a in asks] == [64, 36]


def test_an_ask_that_brought_a_verdict_is_soon_followed_by_the_next():
    edge = core()
    for number in (1, 2, 3):
        accepted(edge, number)
    edge.on_receipt((1, 2, 3), 0.0)
    assert only(edge.on_wake(60.0), SendAsk) == [SendAsk((1, 2, 3))]
    assert WakeAt(66.0) in edge.on_verdict(2, VERDICT, 61.0)
    assert only(edge.on_wake(66.0), SendAsk) == [SendAsk((1, 3))]
    assert not only(edge.on_wake(125.0), SendAsk)  # it brought nothing: the whole interval
    assert only(edge.on_wake(126.0), SendAsk) == [SendAsk((1, 3))]


def test_a_verdict_that_nobody_asked_for_hurries_no_ask():
    edge = core()
    for number in (1, 2):
        accepted(edge, number)
    edge.on_receipt((1, 2), 0.0)
    edge.on_verdict(2, VERDICT, 1.0)
    assert not only(edge.on_wake(59.0), SendAsk)


def test_receipts_that_keep_coming_do_not_postpone_the_request_for_what_is_owed():
    edge = core()
    asked_at = []
    for second in range(1, 100):
        accepted(edge, second, float(second))
        edge.on_receipt((second,), float(second))
        if only(edge.on_wake(float(second)), SendAsk):
            asked_at.append(second)
    assert asked_at == [61]  # a minute after the first receipt, though another came each second


def test_a_stored_question_is_not_sent_once_the_hub_remembers_that_its_account_is_spent():
    edge = core(policy(bytes_per_day=10_000), up=False)
    accepted(edge)
    edge.on_mirror(SpendMirror(EPOCH, (("bytes", 0, 10_001),)), 1.0)
    commands = edge.on_link(up=True, now=2.0)
    assert not only(commands, Transmit)
    assert [(end.outcome, end.reason) for end in only(commands, Finish)] == [
        (Outcome.DENIED, DecisionReason.DENIED_BUDGET)
    ]


def test_a_stored_question_is_sent_while_the_hub_remembers_no_more_than_the_limit():
    edge = core(policy(bytes_per_day=10_000), up=False)
    accepted(edge)
    edge.on_mirror(SpendMirror(EPOCH, (("bytes", 0, 10_000),)), 1.0)
    assert only(edge.on_link(up=True, now=2.0), Transmit) == [Transmit(1)]


def test_seven_days_end_a_question_before_it_is_sent():
    edge = core(up=False)
    accepted(edge, 1, 0.0)
    commands = edge.on_wake(7 * 86_400.0)
    assert only(commands, Finish) == [Finish(1, f"{1:032x}", Outcome.EXPIRED, DecisionReason.EXPIRED)]
    assert not only(edge.on_link(up=True, now=7 * 86_400.0 + 1), Transmit)


def test_a_verdict_under_a_policy_that_was_taken_away_is_delivered_all_the_same():
    edge = core()
    accepted(edge)
    edge.on_policy(None, 1.0)
    assert only(edge.on_verdict(1, VERDICT, 1.0), Correction)


@pytest.mark.parametrize(("before", "after"), [("high = 15", "high = 14"), ('hubs = ["hub-1"]', 'hubs = ["hub-2"]')])
def test_a_policy_that_transforms_otherwise_or_names_other_hubs_does_not_send_what_was_sealed_before(before, after):
    edge = core(up=False)
    accepted(edge)
    text = POLICY.format(**DEFAULTS | {"version": 2}).replace(before, after)
    edge.on_policy(parse_policy(text).compile(), 1.0)
    commands = edge.on_link(up=True, now=1.0)
    assert [c.reason for c in only(commands, Finish)] == [DecisionReason.DENIED_POLICY_CHANGED]
    assert not only(commands, Transmit)


def test_a_policy_that_lists_a_field_less_does_not_send_what_was_sealed_with_it():
    narrow = POLICY.format(**DEFAULTS | {"version": 2})
    field = f'[[egress.field]]\nname = "{egress.CONFIDENCE_FIELD}"\nlevel = "P1"\n'
    wide = narrow.replace("[egress.data_class]", f"{field}[egress.data_class]")
    for first, then, sent in ((wide, narrow, False), (narrow, wide, True)):
        edge = core(parse_policy(first).compile(), up=False)
        accepted(edge)
        edge.on_policy(parse_policy(then).compile(), 1.0)
        assert bool(only(edge.on_link(up=True, now=1.0), Transmit)) is sent


def test_who_waits_without_a_link_is_answered_for_the_reason_that_the_link_has():
    edge = core(policy(mode="wait"), up=False)
    (said,) = only(accepted(edge), Answer)
    assert said.why is DecisionReason.LINK_DOWN


def test_a_changed_policy_judges_again_before_each_sending():
    edge = core(up=False)
    accepted(edge, 1)
    accepted(edge, 2)
    edge.on_policy(policy(version=2), 1.0)
    assert [c.seq for c in only(edge.on_link(up=True, now=1.0), Transmit)] == [1, 2]
    edge.on_policy(policy(version=3, level="P0"), 2.0)
    commands = edge.on_wake(30.0)
    assert [(c.outcome, c.reason) for c in only(commands, Finish)] == [
        (Outcome.DENIED, DecisionReason.DENIED_POLICY_CHANGED)
    ] * 2
    assert not only(commands, Transmit)


@pytest.mark.parametrize(("days", "sent"), [(0, True), (1, False)])
def test_a_question_that_waited_for_the_link_is_sent_on_the_last_day_of_its_policy_and_not_after(days, sent):
    edge = core(up=False)
    accepted(edge)
    edge.on_day((date(2099, 12, 31) - date(1970, 1, 1)).days + days)
    commands = edge.on_link(up=True, now=1.0)
    assert [c.seq for c in only(commands, Transmit)] == [1] * sent
    assert [c.reason for c in only(commands, Finish)] == [DecisionReason.DENIED_POLICY_EXPIRED] * (not sent)


def test_no_policy_lets_nothing_go():
    edge = core(up=False)
    accepted(edge)
    edge.on_policy(None, 1.0)
    (said,) = ask(edge, 2, 1.0)
    assert said.why is DecisionReason.DENIED_POLICY_ERROR
    assert only(edge.on_link(up=True, now=1.0), Finish)[0].outcome is Outcome.DENIED


def test_a_full_outbox_refuses_the_new_and_keeps_the_old():
    setup = msgspec.structs.replace(SETUP, limits=OutboxLimits(max_rows=2))
    edge = core(setup=setup)
    accepted(edge, 1)
    accepted(edge, 2)
    (said,) = ask(edge, 3)
    assert (said.why, said.seq) == (DecisionReason.OUTBOX_FULL, None)
    assert len(edge.open_questions) == 2
    by_bytes = core(setup=msgspec.structs.replace(SETUP, limits=OutboxLimits(max_bytes=1000)))
    accepted(by_bytes, 1)
    assert ask(by_bytes, 2)[0].why is DecisionReason.OUTBOX_FULL


@pytest.mark.parametrize(("epoch", "kinds"), [(-1, [Answer]), (0, [Store])])
def test_a_device_stores_from_its_first_epoch_on_and_nothing_without_a_database(epoch, kinds):
    edge = EdgeCore(SETUP, policy())
    edge.restore(CoreSnapshot(epoch, 1, BudgetSpend()), 0.0)
    assert [type(command) for command in ask(edge) if not isinstance(command, WakeAt)] == kinds


def test_audits_fill_half_the_outbox_at_most_and_stay_confident_answers():
    edge = core(policy(audit=1.0), msgspec.structs.replace(SETUP, limits=OutboxLimits(max_rows=4)))
    for number in range(2):
        assert isinstance(ask(edge, number, local=SURE)[0], Store)
    (said,) = ask(edge, 3, local=SURE)
    assert (said.why, said.seq) == (DecisionReason.CONFIDENT, None)
    assert isinstance(ask(edge, 4)[0], Store)


def test_restore_takes_up_every_row_and_answers_who_was_waiting():
    edge = core()
    accepted(edge, 1)
    question = edge.open_questions.get(1)
    assert question is not None

    def row(seq: int, state: OutboxState, *, answered: bool, not_before: float = 0.0) -> StoredQuestion:
        q = question
        return StoredQuestion(
            seq, f"{seq:032x}", state, UNSURE, answered, q.policy, "open", q.egress, q.target, digest(seq), 700,
            1e6, not_before,
        )  # fmt: skip

    again = EdgeCore(SETUP, policy())
    rows = (
        row(3, OutboxState.SENT, answered=True),
        row(4, OutboxState.RECEIPTED, answered=False),
        row(5, OutboxState.SEALED, answered=True, not_before=50.0),
    )
    said = only(again.restore(CoreSnapshot(EPOCH, 6, BudgetSpend.spent_bytes(3, 2100), rows), 10.0), Answer)
    assert [(a.seq, a.why) for a in said] == [(4, DecisionReason.BUDGET_ELAPSED)]
    commands = again.on_link(up=True, now=11.0)
    assert (only(commands, Transmit), only(commands, SendAsk)) == ([Transmit(3)], [SendAsk((4,))])
    assert only(again.on_wake(50.0), Transmit) == [Transmit(3), Transmit(5)]
    assert only(again.on_verdict(4, VERDICT, 51.0), Correction)
    assert ask(again, 9, 51.0)[0].seq == 6
    assert again.spend == BudgetSpend.spent_bytes(3, 2800)


def test_a_message_that_the_link_will_never_take_ends_as_denied():
    edge = core()
    accepted(edge)
    assert only(edge.on_unsendable(1, DecisionReason.DENIED_TOO_BIG, 1.0), Finish)[0].outcome is Outcome.DENIED
    assert edge.on_unsendable(1, DecisionReason.DENIED_TOO_BIG, 1.0) == []


def test_hub_first_asks_whatever_the_confidence():
    edge = core(policy(mode="hub_first"))
    assert isinstance(ask(edge, local=SURE)[0], Store)


def test_other_hubs_stop_what_was_meant_for_the_old_one_only_after_a_new_policy():
    edge = core(up=False)
    accepted(edge)
    edge.on_hubs((HubSite("hub-9", "moon"),), 1.0)
    edge.on_policy(policy(version=2), 1.0)
    assert only(edge.on_link(up=True, now=2.0), Finish)[0].reason is DecisionReason.DENIED_POLICY_CHANGED


def test_a_row_is_stored_once():
    edge = core()
    accepted(edge)
    assert edge.on_stored(1, b"other", 0.1) == []
    assert edge.on_refusal(refusal(RefusalReason.POLICY, final=True), 0.2)


NOVEL = msgspec.structs.replace(SURE, in_domain=False)
STRANGE = msgspec.structs.replace(VERDICT, prediction=msgspec.structs.replace(VERDICT.prediction, in_domain=False))


def test_a_novel_sample_is_flagged_asked_or_rejected_as_the_policy_says():
    (flagged,) = ask(core(), local=NOVEL)
    assert (flagged.why, flagged.prediction.in_domain) == (DecisionReason.CONFIDENT, False)
    (rejected,) = ask(core(policy(novel="reject")), local=NOVEL)
    assert (rejected.why, rejected.source, rejected.seq) == (DecisionReason.OUT_OF_DOMAIN, AnswerSource.LOCAL, None)
    edge = core(policy(novel="ask"))
    (store, *_) = ask(edge, local=NOVEL)
    (early,) = only(edge.on_stored(store.seq, digest(store.seq), 0.0), Answer)
    assert early.why is DecisionReason.NOVEL


def test_asking_about_novelty_lets_nothing_leave_that_the_policy_keeps():
    (kept,) = ask(core(policy(novel="ask", level="P1")), local=NOVEL)
    assert (kept.why, kept.prediction.in_domain) == (DecisionReason.DENIED_LABEL, False)


def test_a_verdict_that_says_out_of_domain_rejects_under_reject_alone():
    for action, why in (("reject", DecisionReason.OUT_OF_DOMAIN), ("flag", DecisionReason.VERDICT)):
        edge = core(policy(novel=action, mode="wait", budget_s=2.0))
        accepted(edge)
        (said,) = only(edge.on_verdict(1, STRANGE, 1.0), Answer)
        assert (said.source, said.why, said.prediction.in_domain) == (AnswerSource.HUB, why, False)
        late = core(policy(novel=action))
        accepted(late)
        (corrected,) = only(late.on_verdict(1, STRANGE, 1.0), Correction)
        assert corrected.why is why
