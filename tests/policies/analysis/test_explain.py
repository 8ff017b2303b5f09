"""Explanations of decisions: they agree with the decisions that a device makes."""

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.analysis.explain import NOT_JUDGED, Explanation, explain_sample
from policies.analysis.facts import (
    FactsError,
    SampleFacts,
    SampleField,
    SampleLeakage,
    build_context,
    build_schema,
    parse_facts,
)
from policies.analysis.summary import list_remarks, summarise_layers, summarise_policy
from policies.decisions.budget import MessageCost
from policies.decisions.escalation import EscalationAction, LinkState, decide_escalation
from policies.decisions.permit import Permit, PermitPrice, decide_permit
from policies.decisions.routing import HubSite
from policies.language.document import parse_policy
from policies.model.policy import EscalationMode, FieldRule, LeakageLimits, Policy, Terms, TransformKind, TransformSpec
from policies.model.reasons import DecisionReason
from policies.model.terms import resolve_terms
from tests.policies.doubles.given import DEMO, DEMO_POLICY, MEASURED, TEXT, TODAY, UNSPENT, policy
from wire.protocol.messages import SensitivityLevel

UNSURE = SampleFacts(0.4, "open")


def with_base(**changes: object) -> Policy:
    return msgspec.structs.replace(DEMO_POLICY, base=policy(**changes))


def explain(facts: SampleFacts, **changes: object) -> Explanation:
    return explain_sample(with_base(**changes), facts, TODAY)


def last(explanation: Explanation) -> tuple[str, str, str]:
    step = explanation.steps[-1]
    return step.decision, step.outcome, step.why


def test_a_question_that_leaves_names_each_decision():
    told = explain(UNSURE)
    assert told.leaves
    assert [step.decision for step in told.steps] == ["policy", "escalation", "locality", "egress", "leakage", "budget"]
    text = "\n".join(told.format_lines())
    assert "confidence 0.4 is below the threshold 0.9: ask (unsure)" in text
    assert "hub-1 in local" in text
    assert "features (P2, clipped to 0..15)" in text
    assert "1024 of 10000000 today" in text


STOPS = {
    "confident": (SampleFacts(0.95, "open"), {}, ("escalation", "keep", DecisionReason.CONFIDENT)),
    "no number": (SampleFacts(float("nan"), "open"), {}, ("escalation", "keep", DecisionReason.INVALID_CONFIDENCE)),
    "silence": (SampleFacts(0.4, "open", hub_quiet=True), {}, ("escalation", "keep", DecisionReason.HUB_QUIET)),
    "mode": (UNSURE, {"mode": EscalationMode.LOCAL_ONLY}, ("policy", "denied", DecisionReason.LOCAL_ONLY)),
    "expired": (UNSURE, {"expires_day": TODAY - 1}, ("policy", "denied", DecisionReason.DENIED_POLICY_EXPIRED)),
    "hub": (
        SampleFacts(0.4, "open", hubs=(HubSite("x", "local"),)),
        {},
        ("locality", "denied", DecisionReason.DENIED_HUB),
    ),
    "class": (SampleFacts(0.4, "private"), {}, ("egress", "denied", DecisionReason.DENIED_DATA_CLASS)),
    "no label": (
        SampleFacts(0.4, "open", (SampleField("features"),)),
        {},
        ("egress", "denied", DecisionReason.DENIED_LABEL),
    ),
    "bytes": (UNSURE, {"bytes_per_day": 1023}, ("budget", "denied", DecisionReason.DENIED_BUDGET)),
}


@pytest.mark.parametrize(("facts", "changes", "expected"), STOPS.values(), ids=STOPS.keys())
def test_the_chain_ends_at_the_decision_that_keeps_the_sample(facts, changes, expected):
    told = explain(facts, **changes)
    assert not told.leaves
    assert last(told) == expected
    assert "Nothing leaves." in told.result


def test_each_transform_is_said():
    steps = (TransformSpec(TransformKind.CLIP, low=0, high=9), TransformSpec(TransformKind.QUANTISE, step=3))
    rule = FieldRule("features", SensitivityLevel.P2, steps)
    told = explain(UNSURE, fields={"features": rule})
    assert "features (P2, clipped to 0..9, rounded to multiples of 3)" in told.steps[3].words


def test_what_stays_behind_is_said():
    fields = (SampleField("features", "P2"), SampleField("confidence", "P1"))
    assert "confidence stays" in explain(SampleFacts(0.4, "open", fields)).steps[3].words


@pytest.mark.parametrize(
    ("facts", "changes", "words"),
    [
        (UNSURE, {"mode": EscalationMode.WAIT}, "waits up to 2 s"),
        (UNSURE, {}, "a correction may follow"),
        (SampleFacts(0.4, "open", link_up=False), {}, "waits for the link"),
        (SampleFacts(0.99, "open", audit_dice=0.0), {}, "local answer now"),
        (UNSURE, {"mode": EscalationMode.DISABLED}, "no answer"),
    ],
    ids=["wait", "answer_now", "link down", "audit", "disabled"],
)
def test_the_result_says_what_the_caller_sees(facts, changes, words):
    assert words in explain(facts, **changes).result


@given(
    st.floats(),
    st.sampled_from(["open", "private", "?"]),
    st.booleans(),
    st.booleans(),
    st.floats(0, 1),
    st.integers(0, 2**20),
)
def test_explanation_and_device_agree(confidence, data_class, up, quiet, dice, size):
    facts = SampleFacts(confidence, data_class, link_up=up, hub_quiet=quiet, audit_dice=dice, size_bytes=size)
    link = LinkState(up, float("inf") if quiet else 0.0)
    asks = decide_escalation(confidence, link, DEMO, dice, 0.0).action is not EscalationAction.KEEP
    price = PermitPrice(UNSPENT, MessageCost(size), TODAY)
    hubs = (HubSite("hub-1", "local"),)
    verdict = decide_permit(DEMO, build_schema(DEMO_POLICY, facts), hubs, data_class, price, MEASURED)
    assert explain(facts).leaves == (asks and isinstance(verdict, Permit))


def test_an_explanation_is_json():
    assert json.loads(json.dumps(explain(UNSURE).as_dict()))["leaves"] is True


def test_facts_come_from_parsed_json():
    values = {
        "confidence": 0.4,
        "data_class": "open",
        "fields": [{"name": "features", "level": "P2", "shape": [32]}],
        "hubs": [{"name": "hub-1", "region": "local"}],
    }
    facts = parse_facts(values)
    assert facts.hubs == (HubSite("hub-1", "local"),)
    assert explain(facts).leaves


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"confidense": 1, "data_class": "open"}, "unknown key 'confidense'; did you mean 'confidence'?"),
        ({"confidence": 1, "data_class": "open", "zzz": 1}, "known are confidence, data_class"),
        ({"confidence": 1}, "data_class"),
        ({"confidence": "high", "data_class": "open"}, "confidence"),
        ({"confidence": 1, "data_class": "open", "fields": [{"name": "x", "level": "P9"}]}, "'P9' is not one of P0"),
        ([], "object"),
    ],
    ids=["misspelt", "unknown", "missing", "type", "level", "list"],
)
def test_wrong_facts_are_one_line_that_names_the_key(values, message):
    with pytest.raises(FactsError, match=message.replace("?", r"\?")):
        parse_facts(values)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner),
    )
)
def test_arbitrary_facts_raise_facts_error_and_nothing_else(values):
    with pytest.raises(FactsError):
        parse_facts(values)


def test_summary_says_what_may_leave_and_where_to():
    text = "\n".join(summarise_policy(with_base(expires="2030-12-31")))
    for word in ("demo@1", "2030-12-31", "answer_now", "features up to P2", "open", "hub-1", "local", "10,000,000"):
        assert word in text
    assert "private" not in text


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"mode": EscalationMode.LOCAL_ONLY}, "audit_share"),
        ({"mode": EscalationMode.HUB_FIRST}, "threshold"),
        ({"fields": {}}, "egress.field"),
        ({"data_classes": {"open": False}}, "egress.data_class"),
        ({"hubs": ()}, "locality.hubs"),
        ({"regions": ()}, "locality.regions"),
        ({"bytes_per_day": 0}, "budget.bytes_per_day"),
        ({"max_open": 0}, "budget.max_open"),
    ],
    ids=str,
)
def test_what_has_no_effect_is_remarked_once(changes, remark):
    assert [remark in each for each in list_remarks(with_base(**changes))] == [True]


def test_the_shipped_document_needs_no_remark():
    assert list_remarks(DEMO_POLICY) == []


def test_explain_takes_what_was_measured():
    rows = [{"kind": "reconstruction", "metric": "ssim", "upper95": 0.25}]
    facts = parse_facts({"confidence": 0.4, "data_class": "open", "leakage": rows})
    assert facts.leakage == (SampleLeakage("reconstruction", "ssim", 0.25),)
    told = explain(facts, privacy=(LeakageLimits(max_leakage=0.2),))
    assert not told.leaves
    assert told.steps[-1].why == DecisionReason.DENIED_LEAKAGE
    with pytest.raises(FactsError):
        parse_facts({"confidence": 0.4, "data_class": "open", "leakage": [{"kind": "reconstruction"}]})


# Rules

NIGHT = """
[[rule]]
name = "night"
when = { time = { from = "22:00", to = "06:00", zone = "Europe/Berlin" } }
threshold = 0.5
[[rule]]
name = "abroad"
unless = { region = ["eu"] }
deny = true
"""
RULED = parse_policy(TEXT + NIGHT).compile()


def ruled(**more: object) -> Explanation:
    return explain_sample(RULED, parse_facts({"confidence": 0.6, "data_class": "open", **more}), TODAY)


def test_the_rules_that_apply_are_said_first():
    told = ruled(region="eu", time="wed 23:30")
    assert (told.rules, told.unknown) == (("night",), ())
    assert told.format_lines()[0] == "rules       night applies"
    assert told.why == DecisionReason.CONFIDENT


def test_what_is_not_known_is_said():
    told = ruled(time="wed 12:00")
    assert told.rules == ("abroad",)
    assert "not known, so counted as narrower: region" in told.format_lines()[0]
    assert told.why == DecisionReason.DENIED_RULE


def test_the_clock_is_used_where_the_sample_names_no_time():
    facts = parse_facts({"confidence": 0.6, "data_class": "open", "region": "eu"})
    assert explain_sample(RULED, facts, TODAY, {"Europe/Berlin": 12 * 60}).rules == ()
    assert explain_sample(RULED, facts, TODAY).unknown == ("time",)


@pytest.mark.parametrize("time", ["23:30", "wed 24:00", "wed 9:30", "xyz 10:00", "wed 10:60", "wed 10-30", "wed"])
def test_a_time_that_is_none_is_named(time):
    with pytest.raises(FactsError, match="no time of the week"):
        ruled(time=time)


def test_what_leaves_and_where_to_can_be_read_by_a_program():
    told = ruled(confidence=0.4, region="eu", time="wed 12:00")
    assert told.leaves
    assert (told.fields, told.hubs) == (("features",), (HubSite("hub-1", "local"),))


def test_each_key_says_who_narrowed_it():
    facts = parse_facts({"confidence": 0.6, "data_class": "open", "region": "us", "time": "wed 23:30"})
    found = resolve_terms(RULED, build_context(RULED, facts))
    assert isinstance(found, Terms)
    keys = {key.key: key for key in summarise_layers(RULED, found)}
    assert keys["threshold"].said == (("site demo@1", "0.9"), ("rule night", "0.5"))
    assert keys["threshold"].format_line() == "site demo@1: 0.9; rule night: 0.5  ->  0.5"
    assert keys["deny"].format_line() == "denied by abroad  (rule abroad)"
    assert keys["mode"].format_line() == "answer_now  (site demo@1)"


def test_the_summary_says_where_each_rule_applies():
    text = "\n".join(summarise_policy(RULED))
    assert "rule night where time 22:00 to 06:00 in Europe/Berlin: threshold 0.5" in text
    assert "rule abroad unless region eu: nothing leaves" in text


@pytest.mark.parametrize("limit", [None, 0.2, 1.0])
@pytest.mark.parametrize("confidence", [0.0, 0.4, 0.99])
def test_without_measurements_nothing_is_claimed_of_leakage(limit: float | None, confidence: float) -> None:
    facts = parse_facts({"confidence": confidence, "data_class": "open"})
    told = explain(facts, privacy=() if limit is None else (LeakageLimits(max_leakage=limit),))
    words = "\n".join([*told.format_lines()])
    assert not re.search(r"measured for|within (the|its) limits", words)
    asked = [step for step in told.steps if step.decision == "leakage"]
    assert all(step.outcome == NOT_JUDGED and "no measurements were given" in step.words for step in asked)
    assert told.result.startswith("If the bundle's measured leakage allows it") == bool(asked)
