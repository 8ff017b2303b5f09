"""Rules of the gate: read totally, refused by name."""

from math import inf, nan

import pytest

from policies.gate_rules import GateRules, GateRulesError, parse_gate


def test_nothing_given_is_the_default():
    assert parse_gate({}) == GateRules()


def test_every_default_lies_within_its_bounds():
    assert parse_gate({"harm": 0.02, "signals": {"p95": 1.5}}).signals.p95 == 1.5


@pytest.mark.parametrize("value", ["abc", nan, inf, -1.0, 101.0, None, [], {}])
def test_case_48_a_number_that_is_none_is_refused_by_name(value: object):
    with pytest.raises(GateRulesError, match="harm"):
        parse_gate({"harm": value})


def test_unknown_keys_are_refused():
    with pytest.raises(GateRulesError, match="harmm"):
        parse_gate({"harmm": 0.01})


def test_liars_may_not_be_the_half():
    with pytest.raises(GateRulesError, match="liars"):
        parse_gate({"liars": 0.5})


def test_the_margin_shrinks_as_the_cohort_grows():
    margins = [GateRules().margin_of(devices) for devices in (1, 5, 30, 300, 5000)]
    assert margins == sorted(margins, reverse=True)
    assert parse_gate({"margin": 0.04}).margin_of(1) == 0.04
