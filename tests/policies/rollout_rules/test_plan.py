"""Rollout parameters and the stop rules of a wave."""

import json
from math import inf, nan

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rollout_rules.plan import (
    ExcusedCounts,
    RolloutRules,
    RolloutRulesError,
    WaveAction,
    WaveCounts,
    WaveStatus,
    check_results,
    check_stop,
    check_success,
    compute_rate,
    count_approvals,
    count_required_results,
    excluded_failure_rate,
    judge_waves,
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


def wave(size=100, **counts):
    return WaveCounts(size=size, told=size, reachable=size, **counts)


@pytest.mark.parametrize("key", ["success_share", "min_share", "max_failure_share", "rejected_share"])
@pytest.mark.parametrize("value", ["abc", nan, -1, 101])
def test_case_48_a_threshold_that_is_none_is_refused_when_the_rollout_is_made(key, value):
    with pytest.raises(RolloutRulesError, match=key):
        parse_rules({key: value})


@settings(max_examples=EXAMPLES)
@given(key=st.sampled_from(NUMBERS), value=st.sampled_from(ODD))
def test_case_48_no_odd_number_is_ever_taken_for_any_parameter(key, value):
    with pytest.raises(RolloutRulesError):
        parse_rules({key: value})


@settings(max_examples=EXAMPLES)
@given(st.dictionaries(st.sampled_from([*RolloutRules.__struct_fields__, "x"]), JSON) | JSON)
def test_the_parser_is_total(value):
    rules = parse_stored_rules(value)
    assert rules is None or parse_stored_rules(json.loads(msgspec.json.encode(rules))) == rules


NO_WAVES = ["abc", "nan", "-1", "0", "101%", "0%", "10%,5%", "10%,10%", "10%,5", "1.5", "", "%", "1e3", "٣", "5,3"]


@pytest.mark.parametrize("waves", NO_WAVES)
def test_case_48_a_wave_that_is_none_is_refused(waves):
    with pytest.raises(RolloutRulesError):
        parse_rules({"waves": waves.split(",")})


def test_two_rates_that_contradict_each_other_are_refused():
    with pytest.raises(RolloutRulesError, match="below"):
        parse_rules({"per_minute": 100, "most_per_minute": 10})


def test_what_stops_a_wave():
    assert check_stop(wave(succeeded=20), RULES).word is WaveAction.GO
    assert check_stop(wave(failed=1), RULES).word is WaveAction.GO
    assert check_stop(wave(failed=2), RULES).word is WaveAction.GO  # of 100 that were told: the others are still at it
    assert check_stop(wave(failed=5, succeeded=20), RULES).word is WaveAction.GO
    assert check_stop(wave(failed=6, succeeded=20), RULES).word is WaveAction.ABORT
    assert check_stop(WaveCounts(size=100, told=20, reachable=20, failed=2), RULES).word is WaveAction.ABORT
    assert check_stop(wave(failed=2, integrity=2, succeeded=90), RULES).word is WaveAction.ABORT
    assert check_stop(wave(failed=1, integrity=1, succeeded=90), RULES).word is WaveAction.PAUSE
    assert check_stop(wave(failed=2, crashed=2, succeeded=90), RULES, first=True).word is WaveAction.ABORT
    assert check_stop(wave(failed=2, crashed=2, succeeded=90), RULES).word is WaveAction.GO
    assert check_stop(wave(incompatible=6), RULES).word is WaveAction.PAUSE
    assert check_stop(wave(incompatible=5), RULES).word is WaveAction.GO
    assert check_stop(wave(size=1, failed=1), RULES).word is WaveAction.ABORT  # all there is has failed


def test_what_a_person_let_pass_pauses_only_when_there_is_more_of_it():
    seen = ExcusedCounts(integrity=1, incompatible=6)
    assert (
        check_stop(wave(failed=1, integrity=1, succeeded=90, incompatible=6), RULES, excused=seen).word is WaveAction.GO
    )
    assert check_stop(wave(succeeded=90, incompatible=7), RULES, excused=seen).word is WaveAction.PAUSE
    assert check_stop(wave(failed=2, integrity=2, succeeded=90), RULES, excused=seen).word is WaveAction.ABORT


def test_an_abort_in_any_wave_comes_before_a_pause_in_another():
    waves = [wave(failed=10, succeeded=10), wave(failed=1, integrity=1)]
    assert judge_waves(waves, RULES, ExcusedCounts()).word is WaveAction.ABORT
    assert judge_waves([], RULES, ExcusedCounts()) == WaveStatus(WaveAction.GO)


def test_case_47_a_wave_of_nobody_is_never_enough_and_never_a_success():
    for counts in (WaveCounts(), wave(size=5, incompatible=5), wave(size=5, left=5)):
        assert check_results(counts, RULES, small=True).word is WaveAction.WAIT
        assert check_success(counts, RULES).word is not WaveAction.GO


def test_case_52_results_are_needed_of_most_who_are_in_reach():
    dark = WaveCounts(size=100, told=100, reachable=40)
    assert count_required_results(dark, RULES, small=False) == 32
    assert count_required_results(dark._replace(reachable=3), RULES, small=False) == 10
    assert count_required_results(WaveCounts(size=4, told=4, reachable=4), RULES, small=False) == 4
    assert check_results(dark._replace(succeeded=31), RULES, small=False).word is WaveAction.WAIT
    assert check_results(dark._replace(succeeded=32), RULES, small=False).word is WaveAction.GO
    assert check_results(dark._replace(succeeded=32, told=99), RULES, small=False).word is WaveAction.WAIT


def test_nineteen_of_twenty_have_to_succeed():
    assert check_success(wave(succeeded=19, failed=1), RULES).word is WaveAction.GO
    assert check_success(wave(succeeded=18, failed=1), RULES).word is WaveAction.PAUSE


def test_the_rate_doubles_with_every_thousand_successes_up_to_its_cap():
    assert [compute_rate(RULES, done) for done in (0, 999, 1000, 4000, 10**9)] == [50, 50, 100, 800, 1000]


def test_case_118_two_people_are_needed_above_ten_percent_and_for_a_permit_but_not_in_a_small_fleet():
    assert count_approvals(RULES, reached=1000, fleet=10_000, permit=False) == 0
    assert count_approvals(RULES, reached=1001, fleet=10_000, permit=False) == 2
    assert count_approvals(RULES, reached=1, fleet=10_000, permit=True) == 2
    assert count_approvals(RULES, reached=99, fleet=99, permit=True) == 0
    assert count_approvals(RolloutRules(approvals=1), reached=99, fleet=99, permit=False) == 1
    # nobody can ask for fewer
    assert count_approvals(RolloutRules(approvals=0), reached=200, fleet=200, permit=False) == 2


def test_what_no_failure_excludes_is_stated_honestly():
    stated = {10: 0.259, 20: 0.139, 59: 0.050, 299: 0.010}
    assert {n: round(excluded_failure_rate(n), 3) for n in stated} == stated
    assert excluded_failure_rate(0) == 1.0
