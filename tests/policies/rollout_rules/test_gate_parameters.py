"""Gate parameters: bounds and refusals by name."""

from math import inf, nan

import pytest

from policies.rollout_rules.gate_parameters import GateRules
from policies.rollout_rules.plan import RolloutRulesError, parse_rules


def gate(table: dict[str, object]) -> GateRules:
    return parse_rules({"gate": table}).gate


def test_nothing_given_is_the_default():
    assert gate({}) == GateRules()


def test_every_default_lies_within_its_bounds():
    assert gate({"harm": 0.02, "signals": {"p95": 1.5}}).signals.p95 == 1.5


@pytest.mark.parametrize("value", ["abc", nan, inf, -1.0, 101.0, None, [], {}])
def test_a_number_that_is_none_is_refused_by_name(value: object):
    with pytest.raises(RolloutRulesError, match="harm"):
        gate({"harm": value})


def test_unknown_keys_are_refused():
    with pytest.raises(RolloutRulesError, match="harmm"):
        gate({"harmm": 0.01})


def test_liars_may_not_be_the_half():
    with pytest.raises(RolloutRulesError, match="liars"):
        gate({"liars": 0.5})


def test_the_margin_shrinks_as_the_cohort_grows():
    margins = [GateRules().margin_for(devices) for devices in (1, 5, 30, 300, 5000)]
    assert margins == sorted(margins, reverse=True)
    assert gate({"margin": 0.04}).margin_for(1) == 0.04


def test_the_margin_is_narrower_from_five_thirty_and_three_hundred_devices_on():
    margins = [GateRules().margin_for(devices) for devices in (1, 4, 5, 29, 30, 299, 300, 10_000)]
    assert margins == [0.25, 0.25, 0.15, 0.15, 0.08, 0.08, 0.03, 0.03]
