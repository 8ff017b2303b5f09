"""Rollout parameters and the stop rules of a wave."""

import json
import os
from math import inf, nan

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rollout.plan import (
    Counts,
    Excused,
    Rules,
    RulesError,
    Status,
    Word,
    approvals,
    enough,
    excluded_above,
    judged,
    known,
    minimum,
    parse,
    per_minute,
    stops,
    succeeds,
)

EXAMPLES = int(os.environ.get("SKERRY_EXAMPLES", "80"))
RULES = Rules()
JSON = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.text(max_size=4), max_size=3)
)
NUMBERS = [field.name for field in msgspec.structs.fields(Rules) if field.type in {int, float}]
ODD = ["abc", nan, -1, -0.5, inf, -inf, None, True, [], {}, "50", "95%", 10**400]


def wave(size=100, **counts):
    return Counts(size=size, told=size, reachable=size, **counts)


@pytest.mark.parametrize("key", ["success_share", "min_share", "max_failure_share", "rejected_share"])
@pytest.mark.parametrize("value", ["abc", nan, -1, 101])
def test_case_48_a_threshold_that_is_none_is_refused_when_the_rollout_is_made(key, value):
    with pytest.raises(RulesError, match=key):
        parse({key: value})


@settings(max_examples=EXAMPLES)
@given(key=st.sampled_from(NUMBERS), value=st.sampled_from(ODD))
def test_case_48_no_odd_number_is_ever_taken_for_any_parameter(key, value):
    with pytest.raises(RulesError):
        parse({key: value})


@settings(max_examples=EXAMPLES)
@given(st.dictionaries(st.sampled_from([*Rules.__struct_fields__, "x"]), JSON) | JSON)
def test_the_parser_is_total(value):
    rules = known(value)
    assert rules is None or known(json.loads(msgspec.json.encode(rules))) == rules


NO_WAVES = ["abc", "nan", "-1", "0", "101%", "0%", "10%,5%", "10%,10%", "10%,5", "1.5", "", "%", "1e3", "٣", "5,3"]


@pytest.mark.parametrize("waves", NO_WAVES)
def test_case_48_a_wave_that_is_none_is_refused(waves):
    with pytest.raises(RulesError):
        parse({"waves": waves.split(",")})


def test_two_rates_that_contradict_each_other_are_refused():
    with pytest.raises(RulesError, match="below"):
        parse({"per_minute": 100, "most_per_minute": 10})


def test_what_stops_a_wave():
    assert stops(wave(succeeded=20), RULES).word is Word.GO
    assert stops(wave(failed=1), RULES).word is Word.GO
    assert stops(wave(failed=2), RULES).word is Word.GO  # of 100 that were told: the others are still at it
    assert stops(wave(failed=5, succeeded=20), RULES).word is Word.GO
    assert stops(wave(failed=6, succeeded=20), RULES).word is Word.ABORT
    assert stops(Counts(size=100, told=20, reachable=20, failed=2), RULES).word is Word.ABORT
    assert stops(wave(failed=2, integrity=2, succeeded=90), RULES).word is Word.ABORT
    assert stops(wave(failed=1, integrity=1, succeeded=90), RULES).word is Word.PAUSE
    assert stops(wave(failed=2, crashed=2, succeeded=90), RULES, first=True).word is Word.ABORT
    assert stops(wave(failed=2, crashed=2, succeeded=90), RULES).word is Word.GO
    assert stops(wave(incompatible=6), RULES).word is Word.PAUSE
    assert stops(wave(incompatible=5), RULES).word is Word.GO
    assert stops(wave(size=1, failed=1), RULES).word is Word.ABORT  # all there is has failed


def test_what_a_person_let_pass_pauses_only_when_there_is_more_of_it():
    seen = Excused(integrity=1, incompatible=6)
    assert stops(wave(failed=1, integrity=1, succeeded=90, incompatible=6), RULES, excused=seen).word is Word.GO
    assert stops(wave(succeeded=90, incompatible=7), RULES, excused=seen).word is Word.PAUSE
    assert stops(wave(failed=2, integrity=2, succeeded=90), RULES, excused=seen).word is Word.ABORT


def test_an_abort_in_any_wave_comes_before_a_pause_in_another():
    waves = [wave(failed=10, succeeded=10), wave(failed=1, integrity=1)]
    assert judged(waves, RULES, Excused()).word is Word.ABORT
    assert judged([], RULES, Excused()) == Status(Word.GO)


def test_case_47_a_wave_of_nobody_is_never_enough_and_never_a_success():
    for counts in (Counts(), wave(size=5, incompatible=5), wave(size=5, left=5)):
        assert enough(counts, RULES, small=True).word is Word.WAIT
        assert succeeds(counts, RULES).word is not Word.GO


def test_case_52_results_are_needed_of_most_who_are_in_reach():
    dark = Counts(size=100, told=100, reachable=40)
    assert minimum(dark, RULES, small=False) == 32
    assert minimum(dark._replace(reachable=3), RULES, small=False) == 10
    assert minimum(Counts(size=4, told=4, reachable=4), RULES, small=False) == 4
    assert enough(dark._replace(succeeded=31), RULES, small=False).word is Word.WAIT
    assert enough(dark._replace(succeeded=32), RULES, small=False).word is Word.GO
    assert enough(dark._replace(succeeded=32, told=99), RULES, small=False).word is Word.WAIT


def test_nineteen_of_twenty_have_to_succeed():
    assert succeeds(wave(succeeded=19, failed=1), RULES).word is Word.GO
    assert succeeds(wave(succeeded=18, failed=1), RULES).word is Word.PAUSE


def test_the_rate_doubles_with_every_thousand_successes_up_to_its_cap():
    assert [per_minute(RULES, done) for done in (0, 999, 1000, 4000, 10**9)] == [50, 50, 100, 800, 1000]


def test_case_118_two_people_are_needed_above_ten_percent_and_for_a_permit_but_not_in_a_small_fleet():
    assert approvals(RULES, reached=1000, fleet=10_000, permit=False) == 0
    assert approvals(RULES, reached=1001, fleet=10_000, permit=False) == 2
    assert approvals(RULES, reached=1, fleet=10_000, permit=True) == 2
    assert approvals(RULES, reached=99, fleet=99, permit=True) == 0
    assert approvals(Rules(approvals=1), reached=99, fleet=99, permit=False) == 1
    assert approvals(Rules(approvals=0), reached=200, fleet=200, permit=False) == 2  # nobody can ask for fewer


def test_what_no_failure_excludes_is_stated_honestly():
    stated = {10: 0.259, 20: 0.139, 59: 0.050, 299: 0.010}
    assert {n: round(excluded_above(n), 3) for n in stated} == stated
    assert excluded_above(0) == 1.0
