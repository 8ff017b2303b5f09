"""A device with several hubs, each on its own connection: which is asked, what is re-routed, and what never is."""

from typing import Any

import msgspec

from edge_agent.question.commands import (
    Answer,
    Finish,
    RandomDraws,
    Reseal,
    SampleAttributes,
    SendAsk,
    SendHello,
    Store,
    Transmit,
)
from edge_agent.question.decide import EdgeCore
from edge_agent.question.questions import HubConnections
from policies.decisions.routing import HubSite
from policies.language.document import parse_policy
from policies.model.policy import Policy
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import DEFAULTS, POLICY
from tests.edge_agent.question import test_decide
from wire.protocol.messages import Receipt, RefusalReason, StatusReply

NORTH, SOUTH = HubSite("hub-n", "north", 1), HubSite("hub-s", "south", 5)
SETUP = msgspec.structs.replace(test_decide.SETUP, hubs=(NORTH, SOUTH), lines={"hub-s": "hub-s"})
RULE = '[[rule]]\nname = "stays"\nwhen = { data_class = ["restricted"] }\nregions = ["north"]\n'
HOME, AWAY = "", "hub-s"


def rules(mode: str = "answer_now") -> Policy:
    text = POLICY.format(**{**DEFAULTS, "mode": mode, "budget_s": 2.0}) + RULE
    more = "open = true\nrestricted = true"
    wider = (('"hub-1"', '"hub-n", "hub-s"'), ('"local"', '"north", "south"'), ("open = true", more))
    for narrow, wide in wider:
        text = text.replace(narrow, wide)
    return parse_policy(text).compile()


def core(mode: str = "answer_now", home: bool = True, away: bool = True) -> EdgeCore:
    edge = test_decide.core(rules(mode), SETUP, up=False)
    for line, up in ((HOME, home), (AWAY, away)):
        if up:
            edge.on_link(True, 0.0, line)
    return edge


def ask(edge: EdgeCore, number: int, data_class: str = "open", now: float = 0.0) -> list[Any]:
    return edge.on_prediction(
        test_decide.UNSURE, SampleAttributes(data_class), RandomDraws(f"{number:032x}", 0.9, 0.5), now
    )


def accepted(edge: EdgeCore, number: int = 1, data_class: str = "open", now: float = 0.0) -> list[Any]:
    (store, *_) = ask(edge, number, data_class, now)
    assert isinstance(store, Store)
    return edge.on_stored(store.seq, test_decide.digest(store.seq), now)


def test_each_line_has_its_own_hello():
    edge = test_decide.core(rules(), SETUP, up=False)
    assert test_decide.only(edge.on_link(True, 0.0, AWAY), SendHello) == [SendHello(AWAY)]
    assert test_decide.only(edge.on_link(True, 0.0, HOME), SendHello) == [SendHello(HOME)]


def test_the_cheaper_hub_is_asked_while_it_can_be_reached():
    assert test_decide.only(accepted(core()), Transmit) == [Transmit(1, HOME)]
    assert test_decide.only(accepted(core(home=False)), Transmit) == [Transmit(1, AWAY)]


def test_a_class_that_may_not_leave_its_region_is_answered_here_while_that_is_down():
    edge = core("hub_first", home=False)
    commands = accepted(edge, 1, "restricted")
    assert not test_decide.only(commands, Transmit)
    assert not test_decide.only(commands, Reseal)
    (said,) = test_decide.only(commands, Answer)
    assert said.why is DecisionReason.LINK_DOWN
    for now in (40.0, 80.0):  # whatever alarm rings: there is nowhere else for it
        assert not test_decide.only(edge.on_wake(now), Reseal)
    assert test_decide.only(edge.on_link(True, 90.0, HOME), Transmit) == [Transmit(1, HOME)]


def test_what_was_sent_and_not_receipted_is_sealed_anew_for_another_hub_that_may_have_it():
    edge = core()
    accepted(edge, 1)
    accepted(edge, 2, "restricted")
    commands = edge.on_link(False, 1.0, HOME)
    assert test_decide.only(commands, Reseal) == [Reseal(1, SOUTH)]
    assert test_decide.only(edge.on_stored(1, b"anew", 1.1), Transmit) == [Transmit(1, AWAY)]


def test_what_a_hub_has_receipted_stays_with_it():
    edge = core()
    accepted(edge)
    edge.on_note(Receipt(test_decide.EPOCH, (1,)), 0.1, HOME)
    assert not test_decide.only(edge.on_link(False, 1.0, HOME), Reseal)
    assert test_decide.only(edge.on_link(True, 2.0, HOME), SendAsk) == [SendAsk((1,), HOME)]


def test_a_sealing_that_fails_leaves_the_question_with_its_first_hub():
    edge = core()
    accepted(edge)
    edge.on_link(False, 1.0, HOME)
    edge.on_store_failed(1, DecisionReason.NO_DISK, 1.1)
    question = edge.open_questions.get(1)
    assert question is not None
    assert (question.target, question.line) == (NORTH, HOME)


def test_a_hub_cannot_speak_for_the_questions_of_another():
    edge = core()
    accepted(edge)
    edge.on_note(Receipt(test_decide.EPOCH, (1,)), 0.1, AWAY)
    assert edge.open_questions.receipted == 0
    assert edge.on_note(test_decide.refusal(RefusalReason.POLICY, final=True), 0.2, AWAY) == []
    assert not test_decide.only(edge.on_note(StatusReply(test_decide.EPOCH, (), (1,)), 0.3, AWAY), Transmit)
    assert test_decide.only(edge.on_note(test_decide.refusal(RefusalReason.POLICY, final=True), 0.4, HOME), Finish)


def test_silence_that_one_hub_asks_for_is_its_own():
    edge = core()
    accepted(edge, 1)
    edge.on_note(test_decide.refusal(RefusalReason.BUSY, retry_s=60.0, final=False), 0.1, HOME)
    assert test_decide.only(accepted(edge, 2, now=0.2), Transmit) == [Transmit(2, AWAY)]


def test_a_slow_hub_is_left_and_tried_again_after_a_minute():
    lines = HubConnections({"hub-s": "hub-s"})
    for line in lines:
        line.set_up(0.0, up=True)
    lines.get(HOME).record_latency(3.0, 10.0)
    assert lines.rank_targets((NORTH, SOUTH), 2.0, 11.0) == (SOUTH, NORTH)
    assert lines.rank_targets((NORTH, SOUTH), 2.0, 71.0) == (NORTH, SOUTH)


def test_a_hub_slower_than_a_retry_is_left_too():
    edge = core()
    accepted(edge, 1)
    edge.on_wake(60.0)
    assert test_decide.only(accepted(edge, 2, now=60.1), Transmit) == [Transmit(2, AWAY)]


def test_the_time_of_a_reply_counts_for_a_question_that_was_sent_once():
    edge = core()
    accepted(edge, 1)
    edge.on_receipt((1,), 0.5)
    assert edge.connections.get(HOME).latency_s == 0.5
    accepted(edge, 2, now=1.0)
    edge.on_wake(60.0)
    before = edge.connections.get(HOME).latency_s
    edge.on_receipt((2,), 60.0)
    assert edge.connections.get(HOME).latency_s == before, "which of its sendings was answered is not known"


def test_one_line_is_what_it_always_was():
    edge = test_decide.core()
    assert (edge.link.up, [line.name for line in edge.connections]) == (True, [HOME])


def test_a_question_is_moved_to_the_cheapest_hub_that_answers_within_its_callers_patience():
    east, west = HubSite("hub-e", "south", 3), HubSite("hub-w", "south", 4)
    setup = msgspec.structs.replace(
        SETUP, hubs=(NORTH, SOUTH, east, west), lines={"hub-s": "s", "hub-e": "e", "hub-w": "w"}
    )
    policy = parse_policy(
        POLICY.format(**{**DEFAULTS, "mode": "wait", "budget_s": 2.0})
        .replace('"hub-1"', '"hub-n", "hub-s", "hub-e", "hub-w"')
        .replace('"local"', '"north", "south"')
    ).compile()
    edge = test_decide.core(policy, setup, up=False)
    for name in (HOME, "s", "e", "w"):
        edge.on_link(True, 0.0, name)
    for name, latency_s in (("s", 0.5), ("e", 3.0), ("w", 1.0)):
        edge.connections.get(name).record_latency(latency_s, 0.0)
    accepted(edge)
    moved = edge.on_link(False, 1.0, HOME)
    assert test_decide.only(moved, Reseal) == [Reseal(1, west)], "the south hub costs more, the east one is too slow"
