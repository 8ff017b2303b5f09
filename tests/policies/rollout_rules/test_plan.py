"""Rollout parameters, rates and approvals."""

import json
from math import inf, nan

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rollout_rules.plan import (
    RolloutRules,
    RolloutRulesError,
    compute_rate,
    count_approvals,
    parse_rules,
    parse_stored_rules,
)
from tests.examples import count_examples

EXAMPLES = count_examples(80)
RULES = RolloutRules()
JSON = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.text(max_size=4), max_size=3)
)
NUMBERS = [field.name for field in msgspec.structs.fields(RolloutRules) if field.type in {int, float}]
ODD = ["abc", nan, -1, -0.5, inf, -inf, None, True, [], {}, "50", "95%", 10**400]


@pytest.mark.parametrize("key", ["success_share", "min_share", "max_failure_share", "rejected_share"])
@pytest.mark.parametrize("value", ["abc", nan, -1, 101])
def test_a_threshold_that_is_none_is_refused_when_the_rollout_is_made(key, value):
    with pytest.raises(RolloutRulesError, match=key):
        parse_rules({key: value})


@settings(max_examples=EXAMPLES)
@given(key=st.sampled_from(NUMBERS), value=st.sampled_from(ODD))
def test_no_odd_number_is_ever_taken_for_any_parameter(key, value):
    with pytest.raises(RolloutRulesError):
        parse_rules({key: value})


@settings(max_examples=EXAMPLES)
@given(st.dictionaries(st.sampled_from([*RolloutRules.__struct_fields__, "x"]), JSON) | JSON)
def test_the_parser_is_total(value):
    rules = parse_stored_rules(value)
    assert rules is None or parse_stored_rules(json.loads(msgspec.json.encode(rules))) == rules


NO_WAVES = ["abc", "nan", "-1", "0", "101%", "0%", "10%,5%", "10%,10%", "10%,5", "1.5", "", "%", "1e3", "٣", "5,3"]


@pytest.mark.parametrize("waves", NO_WAVES)
def test_a_wave_that_is_none_is_refused(waves):
    with pytest.raises(RolloutRulesError):
        parse_rules({"waves": waves.split(",")})


def test_two_rates_that_contradict_each_other_are_refused():
    with pytest.raises(RolloutRulesError, match="below"):
        parse_rules({"per_minute": 100, "most_per_minute": 10})


def test_the_rate_doubles_with_every_thousand_successes_up_to_its_cap():
    assert [compute_rate(RULES, done) for done in (0, 999, 1000, 4000, 10**9)] == [50, 50, 100, 800, 1000]


def test_two_people_are_needed_above_ten_percent_and_for_a_permit_but_not_in_a_small_fleet():
    assert count_approvals(RULES, reached=1000, fleet=10_000, permit=False) == 0
    assert count_approvals(RULES, reached=1001, fleet=10_000, permit=False) == 2
    assert count_approvals(RULES, reached=1, fleet=10_000, permit=True) == 2
    assert count_approvals(RULES, reached=99, fleet=99, permit=True) == 0
    assert count_approvals(RolloutRules(approvals=1), reached=99, fleet=99, permit=False) == 1
    # nobody can ask for fewer
    assert count_approvals(RolloutRules(approvals=0), reached=200, fleet=200, permit=False) == 2
