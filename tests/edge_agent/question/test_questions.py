"""The table of open questions and the state of connections: counts, order of sending, alarms, latencies."""

import ast
from itertools import pairwise
from math import inf

import pytest

from edge_agent.question.commands import OutboxState, RandomDraws, StoredQuestion
from edge_agent.question.limits import LinkEnergy, OutboxLimits
from edge_agent.question.questions import (
    TRANSITIONS,
    HubConnection,
    HubConnections,
    OpenQuestion,
    OpenQuestions,
    QuestionEvent,
    TransitionError,
)
from edge_agent.question.seal import PendingVerdicts
from policies.decisions.budget import BudgetSpend
from policies.decisions.egress import EgressPlan
from policies.decisions.permit import Permit
from policies.decisions.routing import HubSite
from policies.model.reasons import DecisionReason
from tests import ROOT
from tests.edge_agent.question.test_decide import UNSURE

S = OutboxState
LIMITS = OutboxLimits()


def question(seq: int, *, size: int = 10, line: str = "", deadline: float = inf, expires: float = inf) -> OpenQuestion:
    """Its hub is called as the connection it is reached on."""
    permit = Permit("hash", (HubSite(line or "home", "local"),), None, BudgetSpend(), terms="key")  # type: ignore[arg-type]
    draws = RandomDraws(f"{seq:032x}", 0.0, 0.25)
    made = OpenQuestion(seq, draws, UNSURE, permit, "open", size=size, expires=expires)
    made.wait_until(deadline)
    return made


def table(*questions: OpenQuestion) -> OpenQuestions:
    made = OpenQuestions(HubConnections({"a": "a", "b": "b"}))
    for each in questions:
        made.admit(each)
    return made


def restored(seq: int, state: OutboxState, *, attempts: int = 0) -> OpenQuestion:
    plan: EgressPlan = None  # type: ignore[assignment]
    row = StoredQuestion(
        seq,
        f"{seq:032x}",
        state,
        UNSURE,
        answered=True,
        policy="hash",
        data_class="open",
        egress=plan,
        target=HubSite("home", "local"),
        digest=b"digest",
        size=10,
        expires=inf,
        attempts=attempts,
        jitter=0.25,
    )
    return OpenQuestion.from_stored(row)


def send(rows: OpenQuestions, question: OpenQuestion) -> None:
    rows.record_stored(question, b"digest")
    rows.record_sent(question, 0.0, LIMITS)


def test_bytes_sent_and_receipted_are_counted_as_questions_come_change_and_go():
    first, second = question(1, size=10), question(2, size=7)
    rows = table(first, second)
    seen = [(rows.bytes, rows.sent, rows.receipted)]
    for happens in (
        lambda: rows.record_stored(first, b"1"),
        lambda: rows.record_sent(first, 0.0, LIMITS),
        lambda: rows.record_stored(second, b"2"),
        lambda: rows.record_sent(second, 0.0, LIMITS),
        lambda: rows.record_receipt(first, 1.0),
        lambda: rows.record_receipt(second, 1.0),
        lambda: rows.record_unknown(first),
        lambda: rows.end(first),
        lambda: rows.end(second),
    ):
        happens()
        seen.append((rows.bytes, rows.sent, rows.receipted))
    assert seen[:5] == [(17, 0, 0), (17, 0, 0), (17, 1, 0), (17, 1, 0), (17, 2, 0)]
    assert seen[5:] == [(17, 1, 1), (17, 0, 2), (17, 0, 1), (7, 0, 1), (0, 0, 0)]
    assert table(restored(3, S.RECEIPTED)).receipted == 1


def test_those_whose_caller_waits_are_sent_first_then_the_oldest_and_each_on_its_own_connection():
    rows = table(question(1), question(2), question(3, deadline=5.0), question(4, line="b"), question(5, deadline=6.0))
    for each in rows:
        rows.record_stored(each, b"digest")
    taken = []
    while (found := rows.next_ready()) is not None:
        taken.append(found.seq)
    assert taken == [3, 5, 1, 2]
    other = rows.next_ready("b")
    assert other is not None
    assert (other.seq, other.queued, rows.next_ready("b"), rows.next_ready("c")) == (4, False, None, None)


def test_a_question_that_ended_or_moved_since_it_was_ready_is_not_sent():
    ended, moved, held = question(1), question(2), question(3)
    rows = table(ended, moved, held)
    for each in (ended, moved, held):
        rows.record_stored(each, b"digest")
    rows.end(ended)
    rows.start_reroute(moved, HubSite("b", "local"))
    rows.record_stored(moved, b"sealed again")
    rows.defer_until(held, 9.0)
    assert rows.next_ready() is None
    assert rows.next_ready("b") is moved
    assert (held.state, held.at, rows.next_wake()) == (S.SEALED, 9.0, 9.0)


def test_a_question_waits_on_a_connection_only_while_it_is_sent_there():
    first, second = question(1, line="a"), question(2, line="b")
    rows = table(first, second)
    assert not rows.waits_on("a")
    send(rows, first)
    assert (rows.waits_on("a"), rows.waits_on("b")) == (True, False)
    send(rows, second)
    assert (rows.waits_on("a"), rows.waits_on("b")) == (True, True)
    rows.record_receipt(first, 1.0)
    assert not rows.waits_on("a")
    assert [each.seq for each in rows.unreceipted_on("b")] == [2]


def test_a_question_that_no_hub_can_take_is_sent_again_when_its_connection_changes_but_not_after_a_receipt():
    parked = question(1, line="a")
    rows = table(parked)
    rows.record_stored(parked, b"digest")
    rows.park_until(parked, 60.0)
    assert rows.unreceipted_on("a") == [parked]
    rows.record_receipt(parked, 1.0)
    assert rows.unreceipted_on("a") == []


def test_a_parked_question_that_is_sealed_again_is_not_sent_with_its_old_frame_when_its_connection_changes():
    parked = question(1, line="a")
    rows = table(parked)
    rows.record_stored(parked, b"old frame")
    rows.park_until(parked, 60.0)
    rows.start_reseal(parked)
    assert rows.unreceipted_on("a") == []


def test_an_event_that_the_state_does_not_allow_is_a_defect():
    new = question(1)
    rows = table(new)
    with pytest.raises(TransitionError, match="sent in state NEW"):
        rows.record_sent(new, 0.0, LIMITS)
    assert (new.state, rows.sent) == (S.NEW, 0)


def test_every_state_says_what_each_event_leads_to_and_every_question_can_end():
    assert set(TRANSITIONS) == set(S)
    assert {event for events in TRANSITIONS.values() for event in events} == set(QuestionEvent)
    assert all(events[QuestionEvent.ENDED] is None for events in TRANSITIONS.values())


def test_a_question_that_could_not_be_sealed_for_another_hub_stays_with_its_own():
    moved = question(1, line="a")
    rows = table(moved)
    rows.record_stored(moved, b"digest")
    rows.start_reroute(moved, HubSite("b", "local"))
    assert (moved.target.name, moved.line) == ("b", "b")
    rows.record_reseal_failed(moved)
    assert (moved.target.name, moved.line, moved.reseals, moved.former) == ("a", "a", 0, None)
    rows.start_reseal(moved)
    assert moved.reseals == 1
    rows.record_reseal_failed(moved)
    assert (moved.line, moved.reseals) == ("a", 0), "an attempt that failed here does not count"


def test_the_next_alarm_is_the_earliest_of_deadline_expiry_and_retry_that_still_counts():
    each = question(1, deadline=5.0, expires=3.0)
    rows = table(each)
    assert each.next_alarm() == 5.0, "nothing of a new one expires"
    rows.record_stored(each, b"digest")
    assert each.next_alarm() == 3.0
    rows.defer_until(each, 2.0)
    assert each.next_alarm() == 2.0
    rows.record_receipt(each, 0.0)
    assert each.next_alarm() == 3.0
    late = question(2, deadline=5.0, expires=9.0)
    rows = table(late)
    send(rows, late)
    rows.record_receipt(late, 0.0)
    assert late.next_alarm() == 5.0
    late.answer_locally(DecisionReason.BUDGET_ELAPSED)
    assert late.next_alarm() == 9.0


def test_each_alarm_rings_once_at_its_time_and_a_stale_one_never():
    first, second = question(1, deadline=5.0), question(2, deadline=7.0)
    rows = table(first, second)
    assert rows.next_wake() == 5.0
    assert rows.next_wake() is None, "the earliest alarm is set already"
    assert list(rows.pop_due(4.999)) == []
    assert list(rows.pop_due(5.0)) == [first]
    assert rows.next_wake() == 7.0
    assert list(rows.pop_due(6.0)) == []
    rows.end(second)
    assert rows.next_wake() is None
    assert list(rows.pop_due(100.0)) == []


def test_a_tick_of_the_core_is_set_again_once_it_has_rung():
    rows = table()
    rows.arm_tick(5.0)
    rows.arm_tick(6.0)  # later than the one that is set
    assert rows.next_wake() == 5.0
    assert list(rows.pop_due(5.0)) == []
    assert rows.next_wake() is None
    rows.arm_tick(6.0)
    assert rows.next_wake() == 6.0
    rows.arm_tick(5.5)
    assert rows.next_wake() == 5.5
    assert list(rows.pop_due(5.5)) == []
    assert rows.next_wake() is None, "the later one was replaced"


def test_retries_are_spread_by_one_draw_and_never_beyond_the_cap():
    limits = OutboxLimits()
    pauses = [restored(1, S.SEALED, attempts=attempts).retry_pause_s(limits) for attempts in range(12)]
    assert all(0 < pause <= limits.resend_cap_s * 1.5 for pause in pauses)
    assert len(set(pauses)) == len(pauses)
    assert max(pauses) > 10.0


def test_each_attempt_moves_the_draw_of_a_question_on_by_the_golden_ratio():
    limits = OutboxLimits(resend_base_s=1.0, resend_cap_s=1.0)
    pauses = [restored(1, S.SEALED, attempts=attempts).retry_pause_s(limits) for attempts in range(4)]
    steps = [(later - earlier) % 1.0 for earlier, later in pairwise(pauses)]
    assert steps == pytest.approx([0.618] * 3, abs=0.001)


def test_the_states_of_the_outbox_are_stored_as_these_numbers():
    assert {state.name: state.value for state in OutboxState} == {"NEW": 0, "SEALED": 1, "SENT": 2, "RECEIPTED": 3}


def test_the_defaults_of_the_outbox_are_these():
    limits = OutboxLimits()
    assert (limits.max_rows, limits.max_bytes, limits.max_age_s) == (10_000, 64 * 1024 * 1024, 7 * 86_400.0)
    assert (limits.window, limits.resend_base_s, limits.resend_cap_s) == (32, 2.0, 30.0)
    assert (limits.ask_interval_s, limits.quiet_cap_s) == (60.0, 3600.0)
    assert LinkEnergy().count_mj(10**6) == 0
    assert LinkEnergy(message_j=0.5, byte_uj=20.0).count_mj(700) == 514
    assert LinkEnergy(byte_uj=1.0).count_mj(1) == 1, "rounded up"


def test_a_connection_is_idle_once_nothing_is_awaited_on_it():
    line = HubConnection("a")
    assert line.is_idle(0.0, measured=True)
    line.pause_until(10.0)
    assert (line.is_idle(9.9, measured=False), line.is_idle(10.0, measured=False)) == (False, True)
    line.set_up(0.0, up=True)
    line.record_welcome()
    line.schedule_ask(20.0)
    assert (line.is_idle(19.9, measured=False), line.is_idle(20.0, measured=False)) == (False, True)
    line.record_hello(1.0)
    assert not line.is_idle(100.0, measured=False), "its hello is still to be sent"
    line.set_up(100.0, up=False)
    assert line.is_idle(100.0, measured=False), "a connection that is down awaits nothing"
    line.record_latency(0.5, 100.0)
    assert (line.is_idle(159.9, measured=True), line.is_idle(160.0, measured=True)) == (False, True)
    assert line.is_idle(159.9, measured=False)


def test_a_connection_is_open_when_up_and_past_its_pause_and_says_why_not():
    line = HubConnection("a")
    assert (line.is_open(0.0), line.unavailable_reason) == (False, DecisionReason.LINK_DOWN)
    line.set_up(0.0, up=True)
    line.pause_until(10.0)
    assert (line.is_open(9.9), line.is_open(10.0), line.unavailable_reason) == (False, True, DecisionReason.HUB_QUIET)


def test_a_latency_is_a_moving_mean_that_a_gap_of_a_minute_replaces():
    line = HubConnection("a")
    line.set_up(0.0, up=True)
    assert line.routing_view(0.0).latency_s is None
    line.record_latency(1.0, 0.0)
    assert line.latency_s == 1.0
    line.record_latency(2.0, 59.9)
    assert line.latency_s == pytest.approx(1.2)
    assert line.routing_view(119.8).latency_s == pytest.approx(1.2)
    assert line.routing_view(119.9).latency_s is None
    line.record_latency(5.0, 119.9)
    assert line.latency_s == 5.0


def test_connections_are_stuck_when_down_or_paused_for_longer_unless_all_are():
    lines = HubConnections({"south": "south"})
    home, south = lines.get(""), lines.for_hub("south")
    assert lines.for_hub("any other") is home
    assert (lines.stuck_connections(0.0, 5.0), lines.link.up) == ([], False)
    home.set_up(0.0, up=True)
    assert lines.stuck_connections(0.0, 5.0) == [south]
    south.set_up(0.0, up=True)
    south.pause_until(5.0)
    assert lines.stuck_connections(0.0, 5.0) == []
    south.pause_until(5.1)
    assert lines.stuck_connections(0.0, 5.0) == [south]
    assert (lines.link.up, lines.link.quiet_until) == (True, 0.0)
    home.set_up(0.0, up=False)
    assert lines.link.quiet_until == 5.1
    only = HubConnections({})
    assert only.stuck_connections(0.0, 5.0) == []


def test_the_cache_of_sealed_frames_drops_the_oldest_beyond_its_bytes_and_not_before():
    cache = PendingVerdicts(10)
    cache.keep_frame(1, b"aaaa")
    cache.keep_frame(2, b"bbbbbb")
    assert (cache.cached_frame(1), cache.cached_frame(2)) == (b"aaaa", b"bbbbbb")
    cache.keep_frame(2, b"cccccc")  # sealed again: it replaces its own
    assert cache.cached_frame(1) == b"aaaa"
    cache.keep_frame(3, b"d")
    assert [cache.cached_frame(seq) for seq in (1, 2, 3)] == [None, b"cccccc", b"d"]
    cache.keep_frame(4, b"eee")
    assert cache.cached_frame(2) == b"cccccc"
    cache.drop_frame(2)
    cache.drop_frame(2)
    cache.keep_frame(5, b"ffffff")
    assert [cache.cached_frame(seq) for seq in (3, 4, 5)] == [b"d", b"eee", b"ffffff"]
    cache.keep_frame(6, b"g" * 11)
    assert [cache.cached_frame(seq) for seq in range(7)] == [None] * 7


def test_no_other_file_of_the_folder_writes_a_field_of_a_question_or_of_a_connection():
    fields = {*OpenQuestion.__slots__, *HubConnection.__slots__}
    writes = [
        f"{path.name}:{node.lineno} {node.attr}"
        for path in sorted((ROOT / "edge_agent" / "question").glob("*.py"))
        if path.name != "questions.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in fields
    ]
    assert writes == []


@pytest.mark.parametrize(
    ("sent", "up", "event", "latency_s"),
    [
        (1, True, "receipt", 4.0),
        (1, True, "verdict", 4.0),
        (1, True, "retry", 4.0),
        (2, True, "receipt", None),  # which of both was answered is unknown
        (2, True, "verdict", None),
        (2, True, "retry", 4.0),
        (1, False, "receipt", 4.0),
        (1, False, "retry", None),  # the silence of a connection that is down says nothing of its speed
        (0, True, "receipt", None),
        (0, True, "retry", None),
    ],
)
def test_how_fast_a_connection_is_shows_in_replies_and_in_their_absence(sent, up, event, latency_s):
    lines = HubConnections({"b": "b"})
    rows, asked = OpenQuestions(lines), question(1, line="b")
    rows.admit(asked)
    rows.record_stored(asked, b"digest")
    for number in range(sent):
        rows.record_sent(asked, 10.0 if number == sent - 1 else 0.0, LIMITS)
        if number < sent - 1:
            rows.record_connection_change(asked)
    lines.get("b").set_up(10.0, up=up)
    events = {"receipt": rows.record_receipt, "verdict": rows.record_verdict, "retry": rows.record_retry_due}
    events[event](asked, 14.0)
    assert lines.get("b").routing_view(14.0).latency_s == latency_s
    assert lines.get("").routing_view(14.0).latency_s is None
