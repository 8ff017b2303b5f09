"""Lane conditions of a live run at each time, and which scenarios real processes can run."""

import msgspec
import pytest

from simulations.live import events as live_events
from simulations.live.links import (
    ProxyProcesses,
    compute_conditions,
    has_link_conditions,
    list_change_times,
    plan_lanes,
)
from simulations.live.proxy import LaneConditions
from simulations.scenario.conditions import IDEAL_CONDITIONS, EnvironmentConditions
from simulations.scenario.schema import ScenarioError
from simulations.scenario.types import EventKind, Link, Region, Scenario, ScenarioEvent

USUAL = EnvironmentConditions(latency_s=0.02, loss=0.01)


def scenario(*events: ScenarioEvent, devices: int = 10) -> Scenario:
    region = Region(link=Link(climate=USUAL))
    return Scenario(devices=devices, duration_s=100.0, regions=(region,), events=events)


def at(wanted: Scenario, at_s: float) -> dict[int, LaneConditions]:
    """Conditions of each device."""
    lanes = plan_lanes(wanted)
    told = compute_conditions(wanted, lanes, at_s)
    return {number: told[lane] for number, lane in enumerate(lanes.lane_of)}


def test_without_events_all_devices_share_one_lane_with_the_regions_weather():
    assert plan_lanes(scenario()).lanes == ((),)
    assert set(at(scenario(), 5.0).values()) == {LaneConditions(0.02, 0.01)}


def test_after_the_last_sample_nothing_is_lost_any_more():
    assert at(scenario(), 100.0)[0] == LaneConditions(0.02, 0.0)


def test_a_partition_strikes_its_share_while_it_lasts_and_nobody_else():
    wanted = scenario(ScenarioEvent(EventKind.PARTITION, 10.0, 5.0, share=0.3))
    before, during, after = (at(wanted, moment) for moment in (9.9, 10.0, 15.0))
    assert [number for number, each in during.items() if not (each.up or each.down)] == [0, 1, 2]
    assert all(each.up and each.down for told in (before, after) for each in told.values())


def test_devices_struck_by_the_same_events_share_a_lane():
    wanted = scenario(
        ScenarioEvent(EventKind.PARTITION, 10, 5, share=0.3),
        ScenarioEvent(EventKind.RESETS, 12, 9, share=0.5, amount=6),
    )
    assert len(plan_lanes(wanted).lanes) == 3
    told = at(wanted, 13.0)
    assert (told[0].up, told[0].resets_per_s) == (False, 0.1)
    assert (told[4].up, told[4].resets_per_s) == (True, 0.1)
    assert told[9] == LaneConditions(0.02, 0.01)


@pytest.mark.parametrize(("amount", "harm"), [(1.0, {"up": False}), (2.0, {"down": False})])
def test_a_half_open_link_is_deaf_one_way(amount: float, harm: dict[str, bool]):
    told = at(scenario(ScenarioEvent(EventKind.HALF_OPEN, 10, 5, amount=amount)), 11.0)[0]
    assert told == LaneConditions(0.02, 0.01, **harm)


def test_slices_are_of_whole_bytes():
    assert at(scenario(ScenarioEvent(EventKind.SLICES, 10, 5, amount=20)), 11.0)[0].slice_bytes == 20


def test_a_spell_of_weather_replaces_the_usual_one():
    wanted = scenario(ScenarioEvent(EventKind.WEATHER, 10, 5, climate=EnvironmentConditions(latency_s=0.5, loss=0.2)))
    assert at(wanted, 12.0)[0] == LaneConditions(0.5, 0.2)
    assert at(wanted, 15.0)[0] == LaneConditions(0.02, 0.01)


@pytest.mark.parametrize("kind", [EventKind.KILL_BROKER, EventKind.KILL_REGION])
def test_while_a_broker_is_gone_everybody_is_hung_up_on(kind: EventKind):
    wanted = scenario(ScenarioEvent(kind, 10, 5))
    assert all(each.refuse for each in at(wanted, 10.0).values())
    assert not any(each.refuse for each in at(wanted, 15.0).values())


def test_every_moment_at_which_links_change_is_known_in_order():
    wanted = scenario(
        ScenarioEvent(EventKind.PARTITION, 30, 5),
        ScenarioEvent(EventKind.SURGE, 1, 2),
        ScenarioEvent(EventKind.KILL_BROKER, 20),
    )
    assert list_change_times(wanted) == [0.0, 20.0, 30.0, 35.0, 100.0]


@pytest.mark.parametrize("kind", [EventKind.REGRESSED, EventKind.POWER_LOSS, EventKind.RESTORE, EventKind.CERTIFICATES])
def test_what_cannot_be_done_to_real_processes_is_refused_in_one_line(kind: EventKind):
    with pytest.raises(ScenarioError, match=f"{kind.value} cannot be done"):
        live_events.check_live_events(scenario(ScenarioEvent(kind, 10, 5)))


def test_two_regions_are_refused_in_one_line():
    two = Scenario(regions=(Region("eu", 0.5), Region("us", 0.5)))
    with pytest.raises(ScenarioError, match="one region"):
        live_events.check_live_events(two)


@pytest.mark.parametrize(
    "event",
    [
        ScenarioEvent(EventKind.PARTITION, 1.0, 1.0, share=0.1),
        ScenarioEvent(EventKind.RESETS, 1.0, 1.0, amount=60),
        ScenarioEvent(EventKind.SLICES, 1.0, 1.0, amount=9),
        ScenarioEvent(EventKind.KILL_BROKER, 1.0, 1.0),
        ScenarioEvent(EventKind.WEATHER, 1.0, 1.0, climate=USUAL),
        None,
    ],
)
def test_devices_need_no_proxy_where_nothing_ever_happens_on_their_links(event: ScenarioEvent | None):
    ideal = Region(link=Link(climate=msgspec.structs.replace(IDEAL_CONDITIONS, latency_s=0.0)))
    wanted = Scenario(devices=10, duration_s=100.0, regions=(ideal,), events=(event,) if event else ())
    assert has_link_conditions(wanted) is (event is not None)
    assert has_link_conditions(scenario(*([event] if event else [])))
    proxies = ProxyProcesses(plan_lanes(wanted), 1883, needed=has_link_conditions(wanted))
    assert (proxies.port_of(3) == 1883) is (event is None)
