"""Results of a wave: what stops it, how many it needs, when it has succeeded."""

from policies.rollout_rules.plan import RolloutRules
from policies.rollout_rules.wave_results import (
    ExcusedCounts,
    WaveAction,
    WaveCounts,
    WaveStatus,
    check_results,
    check_stop,
    check_success,
    count_required_results,
    excluded_failure_rate,
    judge_waves,
)

RULES = RolloutRules()


def wave(size=100, **counts):
    return WaveCounts(size=size, told=size, reachable=size, **counts)


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


def test_a_wave_of_nobody_is_never_enough_and_never_a_success():
    for counts in (WaveCounts(), wave(size=5, incompatible=5), wave(size=5, left=5)):
        assert check_results(counts, RULES, small=True).word is (WaveAction.GO if counts.size else WaveAction.WAIT)
        assert check_success(counts, RULES).word is not WaveAction.GO


def test_results_are_needed_of_most_who_are_in_reach():
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


def test_what_no_failure_excludes_is_stated_honestly():
    stated = {10: 0.259, 20: 0.139, 59: 0.050, 299: 0.010}
    assert {n: round(excluded_failure_rate(n), 3) for n in stated} == stated
    assert excluded_failure_rate(0) == 1.0
