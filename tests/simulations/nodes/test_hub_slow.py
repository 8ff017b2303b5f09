"""A hub that is slower than its callers wait, and a device whose inputs make it ask about everything."""

from collections import Counter

from msgspec.structs import replace

from edge_agent.question.commands import Answer, Correction, Store
from edge_agent.question.records import AnswerSource
from policies.model.policy import EscalationMode
from policies.model.reasons import DecisionReason
from simulations.scenario.conditions import IDEAL_CONDITIONS
from simulations.scenario.types import Link, Region
from tests.edge_agent.doubles.hub_double import policy
from tests.edge_agent.question.test_decide import SURE, UNSURE, VERDICT, ask, core, digest, only
from tests.simulations.nodes.test_fleet import fleet, history, in_mode

SLOW = (Region(cost_base_s=5.0, link=Link(IDEAL_CONDITIONS)),)  # callers wait 2 s


def test_a_hub_slower_than_the_deadline_the_local_answer_stands_and_the_late_one_is_one_correction() -> None:
    report = history(replace(fleet(20, 120.0), regions=SLOW))
    assert report.ok, report.format_text()  # nothing lost, nothing doubled
    assert report.answers_by_hub == 0
    assert report.whys["budget_elapsed"] > 20
    assert report.late == report.answered == report.accepted


def test_in_mode_local_only_a_slow_hub_is_never_asked() -> None:
    report = history(in_mode(replace(fleet(20, 120.0), regions=SLOW), EscalationMode.LOCAL_ONLY))
    assert report.ok, report.format_text()
    assert report.accepted == report.late == 0


def test_a_late_verdict_that_comes_twice_is_applied_once() -> None:
    edge = core(policy(mode="wait", budget_s=2.0))
    (store, *_) = ask(edge)
    edge.on_stored(store.seq, digest(store.seq), 0.0)
    (local,) = only(edge.on_wake(2.0), Answer)
    assert (local.source, local.why) == (AnswerSource.LOCAL, DecisionReason.BUDGET_ELAPSED)
    assert len(only(edge.on_verdict(store.seq, VERDICT, 9.0), Correction)) == 1
    assert edge.on_verdict(store.seq, VERDICT, 9.1) == []


def test_inputs_made_to_ask_spend_the_budget_then_every_answer_is_local_and_other_devices_go_on() -> None:
    attacked, other = (core(policy(bytes_per_day=20 * 1024)) for _ in range(2))
    whys: Counter[str] = Counter()
    for number in range(1, 1001):
        for said in ask(attacked, number):
            if isinstance(said, Answer):
                assert said.source is AnswerSource.LOCAL
                whys[said.why] += 1
            elif isinstance(said, Store):
                whys["asked"] += 1
    assert 0 < whys["asked"] <= 20 * 1024 // 700
    assert whys[DecisionReason.DENIED_BUDGET] == 1000 - whys["asked"]
    (sure,) = ask(attacked, 1001, local=SURE)
    assert sure.why is DecisionReason.CONFIDENT
    assert only(ask(other, 1, local=UNSURE), Store), "another device has a budget of its own"
