"""Every parameter of a rollout at its bounds, and what its rules compute just at a limit and just beyond it."""

import re
from math import inf, nan

import msgspec
import pytest

from policies.rollout_rules.plan import (
    FleetMember,
    RolloutRules,
    RolloutRulesError,
    compute_rate,
    compute_wave_sizes,
    count_approvals,
    default_steps,
    parse_rules,
    validate_rules,
)
from policies.rollout_rules.wave_results import (
    WaveAction,
    WaveCounts,
    check_results,
    check_success,
    count_required_results,
)

LONG = 1e8
BOUNDS = {
    "soak_first_s": (0, LONG), "soak_s": (0, LONG), "probation_s": (0, LONG), "max_soak_s": (0, LONG),
    "min_inferences": (0, LONG), "audit_share": (0, 1), "report_s": (1, LONG), "look_s": (1, LONG),
    "minimum": (0, LONG), "max_failures": (1, LONG), "per_minute": (1, 100_000), "double_each": (1, LONG),
    "most_per_minute": (1, 100_000), "in_progress_s": (1, LONG), "download_s": (1, LONG),
    "wave_deadline_s": (1, LONG), "withdraw_s": (0, LONG), "inconclusive": (1, LONG), "approvals": (0, 10),
    "approval_s": (1, LONG), "min_share": (0, 100), "success_share": (0, 100), "max_failure_share": (0, 100),
    "rejected_share": (0, 100),
}  # fmt: skip


def with_rule(name: str, value: float) -> RolloutRules:
    free = msgspec.structs.replace(RolloutRules(), per_minute=1, most_per_minute=100_000)
    if name == "per_minute":
        free = msgspec.structs.replace(free, most_per_minute=100_001 if value > 100_000 else 100_000)
    return msgspec.structs.replace(free, **{name: value})


@pytest.mark.parametrize(("name", "bounds"), BOUNDS.items(), ids=BOUNDS)
def test_every_number_is_taken_at_its_bounds_and_refused_by_name_beyond_them(name, bounds):
    low, high = bounds
    for value in (low, high):
        assert validate_rules(with_rule(name, value)) == with_rule(name, value)
    for value in (low - 1, low - 1e-6, high * 1.001, nan, inf, -inf):
        with pytest.raises(
            RolloutRulesError, match=rf"^{name} = .*: write a number from {low:g} to {re.escape(f'{high:g}')}$"
        ):
            validate_rules(with_rule(name, value))


def test_every_number_of_the_rules_has_bounds():
    numbers = {name for name in RolloutRules.__struct_fields__ if type(getattr(RolloutRules(), name)) in (int, float)}
    assert numbers == set(BOUNDS)


@pytest.mark.parametrize(
    ("value", "shown"), [(1 << 63, str(1 << 63)), ((1 << 64) - 1, str((1 << 64) - 1)), (1 << 64, "far beyond it")]
)
def test_a_number_that_fills_a_page_is_not_written_out(value, shown):
    with pytest.raises(RolloutRulesError, match=f"^minimum = {shown}:"):
        validate_rules(msgspec.structs.replace(RolloutRules(), minimum=value))
    with pytest.raises(RolloutRulesError, match=r"^minimum = (-\d|far beyond it)"):
        validate_rules(msgspec.structs.replace(RolloutRules(), minimum=-value))


def test_the_most_of_a_minute_is_no_less_than_its_beginning():
    validate_rules(RolloutRules(per_minute=5, most_per_minute=5))
    with pytest.raises(RolloutRulesError, match="most_per_minute = 4 is below per_minute = 5"):
        validate_rules(RolloutRules(per_minute=5, most_per_minute=4))


def test_a_lab_has_at_most_a_thousand_devices_and_a_rollout_a_hundred_waves():
    lab = tuple(f"d{number}" for number in range(1001))
    validate_rules(RolloutRules(lab=lab[:1000]))
    waves = tuple(str(number) for number in range(1, 102))
    validate_rules(RolloutRules(waves=waves[:100]))
    for beyond in (RolloutRules(lab=lab), RolloutRules(waves=waves)):
        with pytest.raises(RolloutRulesError, match="at most 1000 devices in lab, at most 100 waves"):
            validate_rules(beyond)


@pytest.mark.parametrize("waves", [["1", "1"], ["2", "1"], ["10%", "10%"], ["50%", "10%"], ["10%", "5"]])
def test_waves_that_do_not_reach_further_are_refused(waves):
    with pytest.raises(RolloutRulesError, match="waves"):
        parse_rules({"waves": waves})


@pytest.mark.parametrize("step", ["0", "0%", "101%", "100.1%", "1.5", "-1", "x", "", "1" * 13, "1.2.3%", "²"])
def test_a_wave_that_is_neither_devices_nor_a_percentage_is_refused(step):
    with pytest.raises(RolloutRulesError, match="waves"):
        RolloutRules(waves=(step,)).steps()


def test_the_rate_doubles_with_each_thousand_successes_up_to_its_most():
    rules = RolloutRules(per_minute=50, double_each=1000, most_per_minute=1000)
    assert [compute_rate(rules, count) for count in (0, 999, 1000, 1999, 2000, 4000, 4999, 5000, 10**9)] == [
        50, 50, 100, 100, 200, 800, 800, 1000, 1000,
    ]  # fmt: skip


def test_two_people_approve_what_reaches_more_than_a_tenth_of_a_hundred_devices_or_more():
    def count(reached: int, fleet: int, *, permit: bool = False, approvals: int = 0) -> int:
        return count_approvals(RolloutRules(approvals=approvals), reached=reached, fleet=fleet, permit=permit)

    assert [count(10, 100), count(11, 100), count(99, 99), count(100, 1000), count(101, 1000)] == [0, 2, 0, 0, 2]
    assert [count(1, 100, permit=True), count(1, 99, permit=True)] == [2, 0]
    assert [count(11, 100, approvals=3), count(11, 100, approvals=1), count(1, 100, approvals=1)] == [3, 2, 1]


def test_a_small_fleet_begins_with_one_device_and_any_other_with_one_percent_rounded_down():
    sizes = {fleet: compute_wave_sizes(fleet, default_steps(fleet)) for fleet in (0, 1, 2, 99, 100, 199, 200, 1000)}
    assert sizes == {
        0: (), 1: (1,), 2: (1, 1), 99: (1, 24, 74), 100: (1, 9, 40, 50), 199: (1, 19, 80, 99),
        200: (2, 18, 80, 100), 1000: (10, 90, 400, 500),
    }  # fmt: skip


def test_a_first_wave_of_more_than_one_percent_is_refused():
    steps = RolloutRules(waves=("11", "100%")).steps()
    with pytest.raises(RolloutRulesError, match="the first would be 11 of 1000 devices, at most 10"):
        compute_wave_sizes(1000, steps)
    assert compute_wave_sizes(1100, steps) == (11, 1089)


def test_a_selector_reads_each_attribute_by_its_key():
    member = FleetMember("acme--d1", "camera", "eu", "acme")
    assert [member.attribute_value(key) for key in ("class", "region", "tenant", "device")] == [
        "camera", "eu", "acme", "acme--d1",
    ]  # fmt: skip


def wave(size: int = 100, **counts: int) -> WaveCounts:
    return WaveCounts(**{"size": size, "told": size, "reachable": size} | counts)


def test_a_wave_needs_ten_results_or_its_share_of_who_is_in_reach_and_never_more_than_may_come():
    def needed(rules: RolloutRules, *, small: bool = False, **counts: int) -> int:
        return count_required_results(wave(**counts), rules, small=small)

    rules = RolloutRules(min_share=80.0)
    assert needed(rules) == 80
    assert needed(rules, reachable=12) == 10
    assert needed(rules, reachable=13) == 11
    assert needed(rules, reachable=0) == 10
    assert needed(rules, reachable=0, small=True) == 1
    assert needed(rules, size=5, reachable=0) == 5
    assert needed(rules, size=5, left=3, incompatible=2) == 1
    assert needed(RolloutRules(minimum=3), reachable=0) == 3


def test_a_soak_begins_with_the_last_result_that_is_needed_and_once_all_were_told():
    rules = RolloutRules(min_share=80.0)
    assert check_results(wave(succeeded=79), rules, small=False).word is WaveAction.WAIT
    assert check_results(wave(succeeded=80), rules, small=False).word is WaveAction.GO
    assert check_results(wave(succeeded=80, told=99), rules, small=False).word is WaveAction.WAIT
    assert check_results(wave(left=100), rules, small=False).word is WaveAction.GO


def test_a_wave_succeeded_with_just_the_share_that_is_needed():
    rules = RolloutRules(success_share=95.0)
    assert check_success(wave(succeeded=90, proven=5, failed=5), rules).word is WaveAction.GO
    assert check_success(wave(succeeded=94, failed=6), rules).word is WaveAction.PAUSE
    assert check_success(wave(succeeded=94, failed=6, excused=2), rules).word is WaveAction.GO
