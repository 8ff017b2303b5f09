"""The explanation is made of the device's own decisions, so it may never say something else than they do."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.escalation import Action, Link, decide
from policies.explain import (
    Explanation,
    Facts,
    FactsError,
    SampleField,
    explain_sample,
    facts_of,
    remarks,
    schema_of,
    summary,
)
from policies.judge import Permit, Price, judge
from policies.locality import HubSite
from policies.policy import FieldRule, Mode, Policy, TransformKind, TransformSpec
from policies.reasons import Why
from tests.policies.given import DEMO, MEASURED, TODAY, UNSPENT, policy
from wire.messages import Level

UNSURE = Facts(0.4, "open")


def explain(facts: Facts, under: Policy = DEMO) -> Explanation:
    return explain_sample(under, schema_of(under, facts), facts, TODAY)


def last(explanation: Explanation) -> tuple[str, str, str]:
    step = explanation.steps[-1]
    return step.decision, step.outcome, step.why


def test_a_question_that_leaves_names_each_decision():
    told = explain(UNSURE)
    assert told.leaves
    assert [step.decision for step in told.steps] == ["policy", "escalation", "locality", "egress", "leakage", "budget"]
    text = "\n".join(told.lines())
    assert "confidence 0.4 is below the threshold 0.9: ask (unsure)" in text
    assert "hub-1 in local" in text
    assert "features (P2, clipped to 0..15)" in text
    assert "1024 of 10000000 today" in text


STOPS = {
    "confident": (Facts(0.95, "open"), {}, ("escalation", "keep", Why.CONFIDENT)),
    "no number": (Facts(float("nan"), "open"), {}, ("escalation", "keep", Why.INVALID_CONFIDENCE)),
    "silence": (Facts(0.4, "open", hub_quiet=True), {}, ("escalation", "keep", Why.HUB_QUIET)),
    "mode": (UNSURE, {"mode": Mode.LOCAL_ONLY}, ("policy", "denied", Why.LOCAL_ONLY)),
    "expired": (UNSURE, {"expires_day": TODAY - 1}, ("policy", "denied", Why.DENIED_POLICY_EXPIRED)),
    "hub": (Facts(0.4, "open", hubs=(HubSite("x", "local"),)), {}, ("locality", "denied", Why.DENIED_HUB)),
    "class": (Facts(0.4, "private"), {}, ("egress", "denied", Why.DENIED_DATA_CLASS)),
    "no label": (Facts(0.4, "open", (SampleField("features"),)), {}, ("egress", "denied", Why.DENIED_LABEL)),
    "bytes": (UNSURE, {"bytes_per_day": 1023}, ("budget", "denied", Why.DENIED_BUDGET)),
}


@pytest.mark.parametrize(("facts", "changes", "expected"), STOPS.values(), ids=STOPS.keys())
def test_the_chain_ends_at_the_decision_that_keeps_the_sample(facts, changes, expected):
    told = explain(facts, policy(**changes))
    assert not told.leaves
    assert last(told) == expected
    assert "Nothing leaves." in told.result


def test_each_transform_is_said():
    steps = (TransformSpec(TransformKind.CLIP, low=0, high=9), TransformSpec(TransformKind.QUANTISE, step=3))
    rule = FieldRule("features", Level.P2, steps)
    told = explain(UNSURE, policy(fields={"features": rule}))
    assert "features (P2, clipped to 0..9, rounded to multiples of 3)" in told.steps[3].words


def test_what_stays_behind_is_said():
    fields = (SampleField("features", "P2"), SampleField("confidence", "P1"))
    assert "confidence stays: not listed" in explain(Facts(0.4, "open", fields)).steps[3].words


@pytest.mark.parametrize(
    ("facts", "changes", "words"),
    [
        (UNSURE, {"mode": Mode.WAIT}, "waits up to 2 s"),
        (UNSURE, {}, "a correction may follow"),
        (Facts(0.4, "open", link_up=False), {}, "waits for the link"),
        (Facts(0.99, "open", audit_dice=0.0), {}, "local answer now"),
        (UNSURE, {"mode": Mode.DISABLED}, "no answer"),
    ],
    ids=["wait", "answer_now", "link down", "audit", "disabled"],
)
def test_the_result_says_what_the_caller_sees(facts, changes, words):
    assert words in explain(facts, policy(**changes)).result


@given(
    st.floats(),
    st.sampled_from(["open", "private", "?"]),
    st.booleans(),
    st.booleans(),
    st.floats(0, 1),
    st.integers(0, 2**20),
)
def test_explanation_and_device_agree(confidence, data_class, up, quiet, dice, size):
    facts = Facts(confidence, data_class, link_up=up, hub_quiet=quiet, audit_dice=dice, size_bytes=size)
    link = Link(up, float("inf") if quiet else 0.0)
    asks = decide(confidence, link, DEMO, dice, 0.0).action is not Action.KEEP
    price = Price(UNSPENT, size, TODAY)
    verdict = judge(DEMO, schema_of(DEMO, facts), (HubSite("hub-1", "local"),), data_class, price, MEASURED)
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
    facts = facts_of(values)
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
        facts_of(values)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner),
    )
)
def test_arbitrary_facts_raise_facts_error_and_nothing_else(values):
    with pytest.raises(FactsError):
        facts_of(values)


def test_summary_says_what_may_leave_and_where_to():
    text = "\n".join(summary(policy(expires="2030-12-31")))
    for word in ("demo@1", "2030-12-31", "answer_now", "features up to P2", "open", "hub-1", "local", "10000000"):
        assert word in text
    assert "private" not in text


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"mode": Mode.LOCAL_ONLY}, "audit_share"),
        ({"mode": Mode.HUB_FIRST}, "threshold"),
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
    assert [remark in each for each in remarks(policy(**changes))] == [True]


def test_the_shipped_document_needs_no_remark():
    assert remarks(DEMO) == []
