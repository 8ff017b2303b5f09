"""Results of a wave: what stops it, how many it needs, when it has succeeded."""

import pytest

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


def test_every_stop_says_its_numbers():
    abort, pause = WaveAction.ABORT, WaveAction.PAUSE
    assert check_stop(wave(integrity=2), RULES) == (abort, "2 devices refused what they were sent (integrity)")
    assert check_stop(wave(crashed=3), RULES, first=True) == (
        abort, "the new version did not stay up on 3 devices of the first wave",
    )  # fmt: skip
    assert check_stop(wave(failed=10, excused=1, left=20, incompatible=5), RULES) == (
        abort, "9 of 75 devices that were told have failed (12 %)",
    )  # fmt: skip
    assert check_stop(wave(integrity=1), RULES) == (pause, "a device refused what it was sent (integrity)")
    assert check_stop(wave(incompatible=6), RULES) == (pause, "6 of 100 devices cannot run it (6 %)")
    assert check_stop(wave(), RULES) == (WaveAction.GO, "")


def test_a_wave_is_aborted_by_failures_only_if_they_are_enough_in_number_and_in_share():
    rules = RolloutRules(max_failures=3, max_failure_share=5.0)
    rows = {(20, 2): False, (20, 3): True, (60, 3): False, (59, 3): True, (2, 2): True, (2, 1): False, (0, 0): False}
    for (size, failed), aborts in rows.items():
        assert (check_stop(wave(size=size, failed=failed), rules).word is WaveAction.ABORT) == aborts, (size, failed)
    assert check_stop(WaveCounts(size=0, told=1, failed=3), rules).word is WaveAction.GO  # of a wave of nobody
    excused = wave(size=20, failed=3, excused=1)
    assert check_stop(excused, rules).word is WaveAction.GO


def test_what_was_excused_counts_for_the_present_wave_alone_and_a_wave_that_passed_pauses_nothing():
    odd = wave(failed=1, integrity=1)
    seen = ExcusedCounts(integrity=1)
    assert judge_waves([wave(), odd], RULES, seen).word is WaveAction.GO
    assert judge_waves([odd, wave()], RULES, ExcusedCounts()).word is WaveAction.GO
    assert judge_waves([wave(), odd], RULES, ExcusedCounts()).word is WaveAction.PAUSE
    assert judge_waves([wave(incompatible=60), wave()], RULES, ExcusedCounts()).word is WaveAction.GO
    crashed = wave(failed=2, crashed=2, succeeded=90)
    assert judge_waves([crashed, wave()], RULES, ExcusedCounts()).word is WaveAction.ABORT
    assert judge_waves([wave(), crashed], RULES, ExcusedCounts()).word is WaveAction.GO
    assert judge_waves([odd, wave(integrity=2)], RULES, ExcusedCounts()).why.startswith("2 devices")


def test_what_is_missing_is_said_in_numbers():
    waits = check_results(wave(succeeded=60, proven=3, failed=4, excused=2)._replace(told=99), RULES, small=False)
    assert waits == (WaveAction.WAIT, "65 of 80 results needed, 99 of 100 told")
    assert check_results(wave(succeeded=80), RULES, small=False) == (WaveAction.GO, "")
    few = check_success(wave(succeeded=2, failed=1), RolloutRules(success_share=66.7))
    assert few == (WaveAction.PAUSE, "2 of 3 succeeded, 66.7 % needed")
    assert check_success(wave(succeeded=2, failed=1), RolloutRules(success_share=66.6)) == (WaveAction.GO, "")
    assert check_success(wave(), RolloutRules(success_share=0.0)) == (WaveAction.PAUSE, "0 of 0 succeeded, 0 % needed")


def test_counts_of_a_wave_are_computed_from_what_was_reported():
    counts = WaveCounts(50, 45, 40, succeeded=20, failed=8, incompatible=3, left=2, proven=4, excused=1)
    assert (counts.good, counts.terminal, counts.able) == (24, 31, 44)
    assert WaveCounts() == (0,) * 11


def test_excluded_rates_follow_from_how_unlikely_no_failure_would_be():
    for results in (1, 2, 10, 299):
        assert (1 - excluded_failure_rate(results)) ** results == pytest.approx(0.05)
    assert excluded_failure_rate(-1) == 1.0


def test_the_share_of_who_is_in_reach_is_counted_to_the_device():
    large = WaveCounts(size=10_000, told=10_000, reachable=9_999)
    assert count_required_results(large, RULES, small=False) == 8_000  # 80 % of them, rounded up
    assert count_required_results(large._replace(reachable=1001), RolloutRules(min_share=99.9), small=False) == 1000
