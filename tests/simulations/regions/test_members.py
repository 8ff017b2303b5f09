"""Processes of one hub over one store: whatever befalls one of them, every question is answered once by another."""

import pytest
from msgspec.structs import replace

from simulations.regions.run import run_scenario
from simulations.report.outcome import Outcome
from simulations.scenario.conditions import IDEAL_CONDITIONS
from simulations.scenario.types import EventKind, Link, Load, Model, Region, Scenario, ScenarioEvent
from tests.examples import further, mark_further

LEASE_S = 6.0
REGION = Region(members=3, cost_base_s=0.2, link=Link(IDEAL_CONDITIONS))


def share(*events: ScenarioEvent, region: Region = REGION) -> Scenario:
    return Scenario(
        seed=7,
        devices=30,
        duration_s=90.0,
        regions=(region,),
        load=Load(samples_per_s=0.5),
        model=Model(unsure_share=0.6),
        events=events,
    )


def kept(scenario: Scenario) -> Outcome:
    outcome = run_scenario(scenario)
    assert outcome.history.ok, outcome.history.format_text()
    assert outcome.history.accepted == outcome.history.answered > 300
    return outcome


@pytest.mark.parametrize("members", [further(2), further(3), further(16)])
def test_processes_that_nothing_befalls_answer_all_and_refuse_no_write(members: int) -> None:
    outcome = kept(share(region=replace(REGION, members=members)))
    assert outcome.history.effects == outcome.history.accepted
    assert outcome.counts.get("hub.handed_over", 0) <= members, "once each has its share nothing moves"


@pytest.mark.parametrize(
    "kind",
    mark_further(
        [EventKind.KILL_HUB, EventKind.PAUSE_HUB, EventKind.CUT_DATABASE, EventKind.STALE_LEASES],
        [EventKind.KILL_HUB],
    ),
)
@pytest.mark.parametrize("member", [1, further(2), further(3)])
def test_what_befalls_one_of_three_costs_no_question(kind: EventKind, member: int) -> None:
    kept(share(ScenarioEvent(kind, 20.3, 4 * LEASE_S, member=member)))


@pytest.mark.further
def test_what_a_killed_process_owed_another_one_answers_once_its_leases_have_ended() -> None:
    outcome = kept(
        share(ScenarioEvent(EventKind.KILL_HUB, 20.3, 60.0, member=1), region=replace(REGION, cost_base_s=1))
    )
    assert outcome.counts["hub.restored"] > 0


@pytest.mark.further
def test_a_process_that_is_told_to_stop_answers_what_it_has_and_gives_its_shards_away() -> None:
    outcome = kept(share(ScenarioEvent(EventKind.PREEMPT, 20.3, 40.0, amount=20.0, member=2)))
    assert outcome.counts["hub.refused.draining"] > 0


@pytest.mark.further
def test_a_process_that_two_believe_in_forgets_once_a_write_of_its_own_is_refused() -> None:
    event = ScenarioEvent(EventKind.STALE_LEASES, 20.3, 30.0, member=1)
    outcome = kept(share(event, region=replace(REGION, cost_base_s=1)))
    assert outcome.counts["hub.handed_over"] > 0


@pytest.mark.further
def test_all_processes_at_once_are_stopped_past_their_leases_and_woken() -> None:
    kept(share(ScenarioEvent(EventKind.PAUSE_HUB, 20.3, 2 * LEASE_S)))


@pytest.mark.further
def test_a_store_restored_from_a_backup_brings_its_leases_back_too() -> None:
    kept(share(ScenarioEvent(EventKind.RESTORE, 50.0, 5.0, amount=20.0)))


@pytest.mark.further
def test_two_runs_of_one_scenario_are_one() -> None:
    scenario = share(ScenarioEvent(EventKind.PAUSE_HUB, 20.3, 20.0, member=1))
    one, two = run_scenario(scenario), run_scenario(scenario)
    assert (one.events, one.counts, one.history) == (two.events, two.counts, two.history)
