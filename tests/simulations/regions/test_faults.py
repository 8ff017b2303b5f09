"""Fault injector: every kind of fault is acted out and shows in the outcome, and no rule is broken."""

import pytest
from msgspec.structs import replace

from simulations.fault_fuzzing.fuzz import FuzzConfig, search_schedules
from simulations.regions.run import run_scenario
from simulations.report.outcome import Outcome
from simulations.scenario.conditions import IDEAL_CONDITIONS, EnvironmentConditions
from simulations.scenario.types import EventKind, Link, Load, Model, Region, Scenario, ScenarioEvent
from tests.examples import further

CALM_REGION = Region(link=Link(IDEAL_CONDITIONS))
SLOW_ENGINE = Region(link=Link(IDEAL_CONDITIONS), cost_base_s=3.0)


def of(*events: ScenarioEvent, region: Region = CALM_REGION, seconds: float = 120.0, devices: int = 10) -> Scenario:
    return Scenario(
        devices=devices,
        duration_s=seconds,
        regions=(region,),
        load=Load(samples_per_s=0.5),
        model=Model(unsure_share=0.5),
        events=events,
        grace_s=180.0,
    )


def kept(scenario: Scenario) -> Outcome:
    outcome = run_scenario(scenario)
    assert outcome.history.ok, outcome.history.format_text()
    assert outcome.complete
    assert outcome.history.accepted > 0
    return outcome


@pytest.mark.parametrize(
    ("schedules", "members"),
    [
        further(3, 2),
        further(10, 2),
        further(10, 3),
        *(pytest.param(100, many, marks=pytest.mark.heavy) for many in (2, 3)),
    ],
)
def test_random_fault_schedules_over_several_processes_of_a_hub_break_no_law(schedules: int, members: int) -> None:
    found = search_schedules(FuzzConfig(schedules, members=members))
    assert found.ok, "\n".join(f"{each.seed}: {each.story}" for each in found.findings)
    assert {EventKind.PAUSE_HUB, EventKind.STALE_LEASES, EventKind.CUT_DATABASE} <= found.struck.keys()


@pytest.mark.parametrize("schedules", [5, further(15), pytest.param(100, marks=pytest.mark.heavy)])
def test_random_fault_schedules_break_no_law(schedules: int) -> None:
    """0 accepted lost, 0 double effects, nothing beyond policy and budget. `skerry sim fuzz` tries more."""
    found = search_schedules(FuzzConfig(schedules))
    assert found.ok, "\n".join(f"{each.seed}: {each.story}" for each in found.findings)
    assert (found.schedules, found.complete) == (schedules, True)
    assert found.accepted > 25 * schedules
    assert len(found.struck) >= min(15, 2 * schedules)


@pytest.mark.further
def test_a_hub_restored_from_an_hour_ago_doubles_no_effect_after_it_and_reports_the_gap() -> None:
    """No epoch changes: what the hub receipted and does not know any more is asked for and sent again."""
    backup = ScenarioEvent(EventKind.RESTORE, 4000.0, 30.0, amount=3600.0)
    outcome = kept(of(backup, region=replace(SLOW_ENGINE, cost_base_s=20.0), seconds=4100.0, devices=1))
    assert outcome.counts["hub.gaps"] > 0
    assert outcome.history.doubled == 0


def test_what_the_backup_still_owed_is_computed_again_and_answered_once() -> None:
    outcome = kept(of(ScenarioEvent(EventKind.RESTORE, 100.0, 5.0, amount=37.0), region=SLOW_ENGINE))
    assert outcome.history.effects > outcome.history.answered
    assert outcome.history.doubled == 0


def test_a_second_backup_that_is_older_than_the_first_restore_doubles_nothing() -> None:
    """Verdicts that the first restore had undone are back with the second one, and count as stored again."""
    first = ScenarioEvent(EventKind.RESTORE, 40.0, 1.0, amount=29.0)
    second = ScenarioEvent(EventKind.RESTORE, 70.0, 1.0, amount=45.0)
    slow = replace(CALM_REGION, link=Link(EnvironmentConditions(latency_s=0.5, loss=0.2, repeats=0.05)))
    assert kept(of(first, second, region=slow, seconds=75.0)).history.doubled == 0


def test_a_device_asks_for_nothing_that_has_ended() -> None:
    outcome = kept(of(ScenarioEvent(EventKind.RESTORE, 400.0, 5.0, amount=300.0), seconds=410.0, devices=1))
    assert outcome.history.effects - outcome.history.answered <= 2, "what was on its way when the backup was made"


@pytest.mark.further
@pytest.mark.parametrize("whose", [{"device": 0}, further({"hub": "local-1"})])
def test_the_power_may_go_between_any_two_commits_of_a_device_and_of_its_hub(whose: dict[str, object]) -> None:
    for commits in range(24):
        cut = replace(ScenarioEvent(EventKind.POWER_LOSS, 10.0, 60.0, amount=float(commits)), **whose)
        report = run_scenario(of(cut, devices=1, seconds=90.0)).history
        assert report.ok, f"after {commits} more commits: {report.format_text()}"


@pytest.mark.further
def test_a_preempted_hub_takes_nothing_new_and_the_next_one_finishes() -> None:
    outcome = kept(of(ScenarioEvent(EventKind.PREEMPT, 30.0, 20.0, amount=8.0)))
    assert outcome.counts["hub.refused.draining"] > 0


@pytest.mark.further
def test_devices_whose_certificates_ended_come_back_one_by_one() -> None:
    outcome = kept(of(ScenarioEvent(EventKind.CERTIFICATES, 30.0, 60.0), seconds=150.0))
    offline = outcome.states["offline"]
    assert max(offline) >= 5
    assert offline[-1] == 0


def test_a_lost_region_is_dark_and_comes_back() -> None:
    outcome = kept(of(ScenarioEvent(EventKind.KILL_REGION, 30.0, 30.0)))
    assert max(outcome.states["offline"]) == 10
    assert outcome.states["offline"][-1] == 0


def test_lying_devices_cost_the_hub_nothing_but_a_count() -> None:
    outcome = kept(of(ScenarioEvent(EventKind.POISONED, 10.0, 100.0, share=0.3, amount=2.0)))
    assert sum(count for name, count in outcome.counts.items() if name.startswith("hub.dropped.")) > 10


@pytest.mark.further
def test_a_storm_makes_everyone_unsure_and_the_budget_of_no_device_is_passed() -> None:
    calm, storm = run_scenario(of()), kept(of(ScenarioEvent(EventKind.STORM, 30.0, 30.0, amount=10.0)))
    assert storm.history.accepted > 2 * calm.history.accepted


def test_a_recall_ends_what_waits_as_denied_and_nothing_leaves_while_it_lasts() -> None:
    outcome = kept(of(ScenarioEvent(EventKind.KILL_BROKER, 10.0, 60.0), ScenarioEvent(EventKind.RECALL, 40.0, 60.0)))
    assert outcome.history.denied > 0


@pytest.mark.further
def test_bad_weather_that_outlasts_the_samples_is_a_fault_like_any_other() -> None:
    lossy = EnvironmentConditions(loss=0.5)
    kept(of(ScenarioEvent(EventKind.WEATHER, 60.0, 120.0, climate=lossy)))


@pytest.mark.further
def test_connections_that_are_reset_again_and_again_lose_nothing() -> None:
    kept(of(ScenarioEvent(EventKind.RESETS, 10.0, 100.0, amount=6.0)))


def right_share(outcome: Outcome) -> float:
    return sum(map(sum, outcome.right.values())) / sum(map(sum, outcome.answers.values()))


@pytest.mark.parametrize(
    ("mild", "worse"),
    [
        further({"amount": 0.05}, {"amount": 0.5}),
        further({"amount": 1.0, "label": 3}, {"amount": 1.0}),
        further({"amount": 0.5}, {"amount": 0.5, "tail": True}),
    ],
    ids=["severe", "one class", "head and tail"],
)
def test_a_regressed_model_answers_worse_the_worse_it_is(mild: dict[str, object], worse: dict[str, object]) -> None:
    event = ScenarioEvent(EventKind.REGRESSED, 0.0, 200.0)
    sound, bad, terrible = (
        right_share(kept(of(*events, seconds=200.0)))
        for events in ((), (replace(event, **mild),), (replace(event, **worse),))
    )
    assert sound > bad + 0.01 > terrible + 0.05
