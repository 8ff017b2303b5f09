"""Figures and expectations: each figure over its window; an expectation on a missing figure does not hold."""

import msgspec
import pytest
from msgspec.structs import replace

from simulations.report.expectations import (
    FIGURES,
    check_figure_name,
    compute_figure,
    judge_expectations,
    select_window,
)
from simulations.report.outcome import BINS, Outcome, bin_upper_s, find_latency_bin, quantile_s
from simulations.scenario.types import Expectation
from tests.simulations.doubles.outcomes import HISTORY, outcome


def value(name, from_s=0.0, until_s=0.0, **changes):
    return compute_figure(select_window(outcome(**changes), from_s, until_s), name)


def test_every_figure_has_a_value_of_a_whole_run():
    assert {name for name in FIGURES if value(name) is None} == set()


def test_shares_of_answers_sum_to_one():
    assert value("local_share") + value("hub_share") == pytest.approx(1)
    assert value("why.confident") + value("why.verdict") + value("why.link_down") == pytest.approx(1)


def test_a_stretch_sees_its_own_buckets_alone():
    assert value("why.link_down", 0, 180) == 0
    assert value("why.link_down", 180, 300) == pytest.approx(0.1, abs=0.02)
    assert value("online_share_least", 0, 180) == 1.0
    assert value("online_share_least") == 0.6
    assert value("samples", 0, 300) + value("samples", 300) == value("samples")


def test_a_quantile_is_the_upper_edge_of_its_bin():
    assert value("hub_p50_s") == bin_upper_s(find_latency_bin(0.1))
    assert value("hub_p99_s") == bin_upper_s(find_latency_bin(0.4))
    assert quantile_s({}, 0.5) is None
    assert quantile_s({3: 99, 9: 1}, 0.99) == bin_upper_s(3)
    assert quantile_s({3: 98, 9: 2}, 0.99) == bin_upper_s(9)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.001, 0.00100001, 0.25, 1.0, 2.0, 59.9, 1e9])
def test_a_latency_is_never_above_the_edge_of_its_bin_but_in_the_last(seconds):
    number = find_latency_bin(seconds)
    assert seconds <= bin_upper_s(number) or number == BINS - 1
    assert number == 0 or bin_upper_s(number - 1) < max(seconds, 0.001) or number == BINS - 1


def test_what_has_no_value_did_not_hold():
    assert value("p99_s", 700, 800) is None
    found = judge_expectations(
        outcome(), [Expectation("p99_s", at_most=1e9, from_s=700, until_s=800), Expectation("lost", at_most=0)]
    )
    assert [each.held for each in found.expectations] == [False, True]
    assert not found.ok


def test_bounds_are_inclusive_from_both_sides():
    exactly = value("online_share_least")
    bounds = [(exactly, exactly), (None, exactly), (exactly, None), (exactly - 1e-9, None), (None, exactly + 1e-9)]
    found = judge_expectations(outcome(), [Expectation("online_share_least", high, low) for high, low in bounds])
    assert [each.held for each in found.expectations] == [True, True, True, False, False]


def test_a_flaw_of_the_history_is_not_ok_whatever_was_expected():
    assert outcome().ok
    assert not outcome(history=replace(HISTORY, lost=1, flaws={"lost": 1})).ok


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("p99_s", ""), ("why.verdict", ""), ("queue_peak.eu-1", ""), ("count.hub.refused.busy", ""),
        ("p99", "did you mean 'p99_s'?"), ("why.bored", "no reason"),
        ("queue_peak.mars-1", "they are eu-1"), ("x.y", "no figure"),
    ],
)  # fmt: skip
def test_names_of_figures(name, words):
    assert words in check_figure_name(name, ["eu-1"])
    assert bool(check_figure_name(name, ["eu-1"])) == bool(words)


def test_an_outcome_written_as_json_is_read_back_equal():
    made = judge_expectations(outcome(), [Expectation("lost", at_most=0)])
    assert msgspec.json.decode(msgspec.json.encode(made.to_plain()), type=Outcome) == made
    assert "wall" not in made.to_plain(wall=False)
