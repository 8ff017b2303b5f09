"""Drawn schedules are readable and repeatable; the shrinker leaves what it takes to break a rule, and nothing more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simulations.fault_fuzzing.schedules import draw_scenario
from simulations.fault_fuzzing.shrink import ScenarioShrinker
from simulations.scenario.conditions import IDEAL_CONDITIONS
from simulations.scenario.types import EventKind, Link, Scenario, ScenarioEvent
from simulations.scenario.writer import format_scenario
from simulations.scenario_files import parse_scenario

seeds = st.integers(0, 2**32)


@given(seeds)
def test_a_drawn_schedule_is_one_that_a_file_may_hold_and_it_reads_back_equal(seed: int) -> None:
    scenario = draw_scenario(seed)
    assert parse_scenario(format_scenario(scenario)) == scenario


@given(seeds)
def test_the_same_seed_draws_the_same_and_nothing_outlasts_the_samples(seed: int) -> None:
    scenario = draw_scenario(seed)
    assert scenario == draw_scenario(seed)
    assert scenario.events
    assert all(0 <= event.at_s <= event.ends_s <= scenario.duration_s + 0.1 for event in scenario.events)


def test_every_kind_of_fault_is_drawn() -> None:
    kinds = {event.kind for seed in range(300) for event in draw_scenario(seed).events}
    of_the_proxy = {EventKind.RESETS, EventKind.HALF_OPEN, EventKind.SLICES}
    assert kinds == set(EventKind) - {EventKind.ROLLOUT, EventKind.SURGE} - of_the_proxy


@given(seeds, st.integers(1, 3))
def test_a_schedule_of_so_many_processes_reads_back_equal_and_the_rest_of_its_draws_stays(
    seed: int, members: int
) -> None:
    scenario = draw_scenario(seed, members)
    assert parse_scenario(format_scenario(scenario)) == scenario
    assert {region.members for region in scenario.regions} == {members}
    assert (scenario.rollout, scenario.seed) == (None, seed)
    assert {event.member for event in scenario.events} <= set(range(members + 1))


def test_a_part_of_the_schedules_has_two_processes_and_a_part_three() -> None:
    drawn = [draw_scenario(seed).regions[0].members for seed in range(300)]
    assert all(drawn.count(members) > 10 for members in (2, 3))
    assert drawn.count(1) > 200


@pytest.mark.parametrize("seed", range(8))
def test_a_law_that_two_events_break_is_shrunk_to_these_two(seed: int) -> None:
    wanted = {EventKind.KILL_HUB, EventKind.RESTORE}
    big = draw_scenario(seed)
    events = (*big.events, ScenarioEvent(EventKind.KILL_HUB, 3.0, 2.0), ScenarioEvent(EventKind.RESTORE, 9.0, 1.0))

    def broken(scenario: Scenario) -> frozenset[str]:
        return frozenset({"lost"}) if wanted <= {event.kind for event in scenario.events} else frozenset()

    small = ScenarioShrinker(broken, frozenset({"lost"})).shrink(replace(big, events=events))
    assert sorted(event.kind for event in small.events) == sorted(wanted)
    assert (small.devices, len(small.regions), small.regions[0].link) == (1, 1, Link(climate=IDEAL_CONDITIONS))
    assert small.duration_s <= 10.0
    assert parse_scenario(format_scenario(small)) == small


def test_a_law_that_needs_two_devices_keeps_two() -> None:
    def broken(scenario: Scenario) -> frozenset[str]:
        return frozenset({"lost"}) if scenario.devices >= 2 else frozenset()

    small = ScenarioShrinker(broken, frozenset({"lost"})).shrink(replace(draw_scenario(1), devices=9))
    assert (small.devices, small.events) == (2, ())


def test_another_law_does_not_count_as_the_same() -> None:
    big = draw_scenario(3)

    def broken(scenario: Scenario) -> frozenset[str]:
        return frozenset({"lost"} if scenario == big else {"doubled answer"})

    assert ScenarioShrinker(broken, frozenset({"lost"})).shrink(big) == big


def test_a_flaw_that_one_seed_in_three_shows_is_still_shrunk() -> None:
    def broken(scenario: Scenario) -> frozenset[str]:
        return frozenset({"lost"}) if scenario.seed % 3 == 0 else frozenset()

    assert ScenarioShrinker(broken, frozenset({"lost"})).shrink(replace(draw_scenario(3), seed=3)).events == ()


def test_shrinking_ends_when_its_tries_are_used_up() -> None:
    shrinker = ScenarioShrinker(lambda _: frozenset({"lost"}), frozenset({"lost"}), tries_at_most=5)
    shrinker.shrink(draw_scenario(1))
    assert shrinker.tries == 5
