"""What each event does to a question in each state: the commands, the reasons in them, and the state after it."""

from collections.abc import Callable
from math import nan
from typing import Any

import pytest

from edge_agent.question.commands import (
    Answer,
    Correction,
    Finish,
    MarkState,
    OutboxState,
    Reseal,
    SendAsk,
    SendHello,
    Transmit,
    WakeAt,
)
from edge_agent.question.decide import EdgeCore
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import policy
from tests.edge_agent.question.test_decide import EPOCH, VERDICT, accepted, ask, core, digest, refusal
from wire.protocol.messages import Receipt, RefusalReason, StatusReply

S = OutboxState
NONE = "none"
STATES = (NONE, S.NEW, S.SEALED, S.SENT, S.RECEIPTED)


def core_with(state: OutboxState | str) -> EdgeCore:
    """A device whose question 1 is in this state; but for SEALED, which has no link, its caller waits."""
    edge = core(policy(mode="wait", budget_s=100.0), up=state is not S.SEALED)
    if state is S.NEW:
        ask(edge)
    elif state != NONE:
        accepted(edge)
    if state is S.RECEIPTED:
        edge.on_note(Receipt(EPOCH, (1,)), 0.5)
    return edge


def describe(command: Any) -> str:
    match command:
        case Answer(source=source, why=why):
            return f"answer {source} {why}"
        case Correction(why=why):
            return f"correct {why}"
        case Finish(outcome=outcome, reason=reason):
            return f"finish {outcome} {reason}"
        case MarkState(state=state):
            return f"mark {state.name}"
        case Reseal():
            return "reseal"
        case Transmit():
            return "send"
        case SendHello():
            return "hello"
        case SendAsk():
            return "ask"
    raise AssertionError(command)


EVENTS: dict[str, Callable[[EdgeCore], list[Any]]] = {
    "stored": lambda edge: edge.on_stored(1, digest(1), 1.0),
    "store failed": lambda edge: edge.on_store_failed(1, DecisionReason.NO_DISK, 1.0),
    "unsendable": lambda edge: edge.on_unsendable(1, DecisionReason.DENIED_TOO_BIG, 1.0),
    "erased": lambda edge: edge.on_erased([1], 1.0),
    "outdated": lambda edge: edge.on_outdated_frame(1, 1.0),
    "verdict": lambda edge: edge.on_verdict(1, VERDICT, 1.0),
    "refused": lambda edge: edge.on_note(refusal(RefusalReason.SCHEMA, final=True), 1.0),
    "expired": lambda edge: edge.on_note(refusal(RefusalReason.EXPIRED, final=True), 1.0),
    "busy": lambda edge: edge.on_note(refusal(RefusalReason.BUSY, retry_s=0.5, final=False), 1.0),
    "old key": lambda edge: edge.on_note(refusal(RefusalReason.KEY_EXPIRED, final=False), 1.0),
    "of another epoch": lambda edge: edge.on_note(Receipt(EPOCH + 1, (1,)), 1.0),
    "receipt": lambda edge: edge.on_note(Receipt(EPOCH, (1,)), 1.0),
    "pending": lambda edge: edge.on_note(StatusReply(EPOCH, (1,), ()), 1.0),
    "unknown": lambda edge: edge.on_note(StatusReply(EPOCH, (), (1,)), 1.0),
    "up": lambda edge: edge.on_link(True, 1.0),
    "down": lambda edge: edge.on_link(False, 1.0),
    "wake": lambda edge: edge.on_wake(1.0),
    "wake after its budget": lambda edge: edge.on_wake(101.0),
}
# By event and state: the commands, and the state after them. Where nothing is said, nothing happens.
TABLE: dict[tuple[str, OutboxState | str], tuple[list[str], OutboxState | str]] = {
    ("stored", S.NEW): (["send"], S.SENT),
    ("store failed", S.NEW): (["answer local no_disk"], NONE),
    ("unsendable", S.NEW): (["answer local denied_too_big", "finish denied denied_too_big"], NONE),
    ("unsendable", S.SEALED): (["finish denied denied_too_big"], NONE),
    ("unsendable", S.SENT): (["answer local denied_too_big", "finish denied denied_too_big"], NONE),
    ("unsendable", S.RECEIPTED): (["answer local denied_too_big", "finish denied denied_too_big"], NONE),
    ("erased", S.NEW): (["answer local erased", "finish expired erased"], NONE),
    ("erased", S.SEALED): (["finish expired erased"], NONE),
    ("erased", S.SENT): (["answer local erased", "finish expired erased"], NONE),
    ("erased", S.RECEIPTED): (["answer local erased", "finish expired erased"], NONE),
    ("outdated", S.SEALED): (["reseal"], S.NEW),
    ("outdated", S.SENT): (["reseal"], S.NEW),
    ("outdated", S.RECEIPTED): (["reseal"], S.NEW),
    ("verdict", S.SEALED): (["correct verdict", "finish answered verdict"], NONE),
    ("verdict", S.SENT): (["answer hub verdict", "finish answered verdict"], NONE),
    ("verdict", S.RECEIPTED): (["answer hub verdict", "finish answered verdict"], NONE),
    ("refused", S.SEALED): (["finish refused schema"], NONE),
    ("refused", S.SENT): (["answer local refused", "finish refused schema"], NONE),
    ("refused", S.RECEIPTED): (["answer local refused", "finish refused schema"], NONE),
    ("expired", S.SEALED): (["finish expired expired"], NONE),
    ("expired", S.SENT): (["answer local expired", "finish expired expired"], NONE),
    ("expired", S.RECEIPTED): (["answer local expired", "finish expired expired"], NONE),
    ("busy", S.SEALED): (["mark SEALED"], S.SEALED),
    ("busy", S.SENT): (["mark SEALED"], S.SEALED),
    ("busy", S.RECEIPTED): (["mark SEALED"], S.SEALED),
    ("old key", S.SEALED): (["reseal"], S.NEW),
    ("old key", S.SENT): (["reseal"], S.NEW),
    ("old key", S.RECEIPTED): (["reseal"], S.NEW),
    ("receipt", S.SEALED): (["mark RECEIPTED"], S.RECEIPTED),
    ("receipt", S.SENT): (["mark RECEIPTED"], S.RECEIPTED),
    ("pending", S.SEALED): (["mark RECEIPTED"], S.RECEIPTED),
    ("pending", S.SENT): (["mark RECEIPTED"], S.RECEIPTED),
    ("unknown", S.SENT): (["send"], S.SENT),
    ("unknown", S.RECEIPTED): (["send"], S.SENT),
    ("up", NONE): (["hello"], NONE),
    ("up", S.NEW): (["hello"], S.NEW),
    ("up", S.SEALED): (["hello", "send"], S.SENT),
    ("up", S.SENT): (["hello", "send"], S.SENT),
    ("up", S.RECEIPTED): (["hello", "ask"], S.RECEIPTED),
    ("down", S.SENT): ([], S.SEALED),
    ("wake after its budget", S.NEW): (["answer local budget_elapsed"], S.NEW),
    ("wake after its budget", S.SENT): (["answer local budget_elapsed", "send"], S.SENT),
    ("wake after its budget", S.RECEIPTED): (["answer local budget_elapsed", "ask"], S.RECEIPTED),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_does_to_a_question_what_its_state_allows_and_nothing_more(event, state):
    edge = core_with(state)
    found = [describe(each) for each in EVENTS[event](edge) if not isinstance(each, WakeAt)]
    after = [question.state for question in edge.open_questions]
    commands, expected = TABLE.get((event, state), ([], state))
    assert (found, after) == (commands, [] if expected == NONE else [expected])


@pytest.mark.parametrize(("wish_s", "until"), [(0.5, 1.5), (0.0, 1.0), (-5.0, 1.0), (nan, 1.0), (1e9, 3601.0)])
def test_a_hub_gets_the_pause_that_it_asks_for_up_to_an_hour_and_never_a_shorter_one_than_before(wish_s, until):
    edge = core_with(S.SENT)
    edge.on_note(refusal(RefusalReason.BUSY, retry_s=wish_s, final=False), 1.0)
    assert edge.connections.get("").quiet_until == until
    edge.on_note(refusal(RefusalReason.BUSY, retry_s=0.25, final=False), 1.0)
    assert edge.connections.get("").quiet_until == max(until, 1.25)


def test_a_question_whose_caller_waited_long_enough_is_not_sent_again_before_its_time():
    edge = core(policy(mode="wait", budget_s=1.0))
    accepted(edge)
    commands = [describe(each) for each in edge.on_wake(1.0) if not isinstance(each, WakeAt)]
    assert commands == ["answer local budget_elapsed"]
    (question,) = edge.open_questions
    assert (question.state, question.queued, question.attempts) == (S.SENT, False, 1)
