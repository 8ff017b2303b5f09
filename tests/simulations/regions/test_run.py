"""Regions side by side, in one process or in several, with the same outcome."""

import msgspec
import pytest

from simulations.regions.coordinator import iterate_slices
from simulations.regions.run import run_scenario
from simulations.report.outcome import RunProgress
from simulations.scenario.conditions import EnvironmentConditions
from simulations.scenario.types import EventKind, Link, Load, Region, Scenario, ScenarioEvent

TWO = (Region("eu", 0.5, failover=("us",)), Region("us", 0.5, failover=("eu",)))
LOST = ScenarioEvent(EventKind.KILL_REGION, 20.0, 30.0, region="eu")


def two_regions(*events: ScenarioEvent) -> Scenario:
    return Scenario(
        seed=3, devices=30, duration_s=60.0, step_s=30.0, regions=TWO, load=Load(samples_per_s=0.2), events=events
    )


@pytest.mark.further
def test_one_process_or_two_give_the_same_report_even_while_a_region_is_lost() -> None:
    scenario = two_regions(LOST)
    one, two = run_scenario(scenario), run_scenario(scenario, processes=2)
    assert one.to_plain(wall=False) == two.to_plain(wall=False)
    assert (one.wall.processes, two.wall.processes) == (1, 2)


def test_devices_of_a_lost_region_are_answered_by_the_other_one() -> None:
    lost = two_regions(msgspec.structs.replace(LOST, at_s=5.0, lasts_s=55.0))
    alone = tuple(msgspec.structs.replace(region, failover=()) for region in TWO)
    outcome, helpless = run_scenario(lost), run_scenario(msgspec.structs.replace(lost, regions=alone))
    assert outcome.history.ok, outcome.history.format_text()
    assert outcome.answers["hub.verdict"][1] > 1.4 * helpless.answers["hub.verdict"][1]  # eu has no hub then


def test_a_run_that_is_stopped_says_how_far_it_came_and_loses_nothing_for_it() -> None:
    heard: list[RunProgress] = []

    def stop(passed: RunProgress) -> bool:
        heard.append(passed)
        return passed.until_s < 30.0

    outcome = run_scenario(two_regions(), progress=stop)
    assert (outcome.complete, outcome.until_s) == (False, 30.0)
    assert outcome.history.lost == 0
    assert outcome.samples == heard[-1].samples > 0


@pytest.mark.parametrize("ends_s", [30.0, 47.5, 1000.0])
def test_slices_cover_the_run_without_a_gap_and_none_lies_in_two_buckets(ends_s: float) -> None:
    scenario = Scenario(duration_s=ends_s, heal_s=0.0, step_s=7.0, regions=TWO)
    cut = list(iterate_slices(scenario))
    assert (cut[0][0], cut[-1][1]) == (0.0, ends_s)
    assert [end for _, end in cut[:-1]] == pytest.approx([begin for begin, _ in cut[1:]])
    assert all(begin // 7.0 == (end - 1e-6) // 7.0 for begin, end in cut)


def test_bytes_take_their_time_on_a_thin_link() -> None:
    calm = EnvironmentConditions(latency_s=0.01, loss=0.0, repeats=0.0, bad_disk=0.0, bad_batch=0.0)
    wide, thin = (
        run_scenario(
            Scenario(devices=10, duration_s=60.0, regions=(Region(link=Link(calm, bandwidth_bytes_per_s=each)),))
        )
        for each in (0.0, 1000.0)
    )
    wide_bin, thin_bin = (
        min(bin_ for each in one.latency if each.source == "hub" for bins in each.bins for bin_ in bins)
        for one in (wide, thin)
    )
    assert thin_bin > wide_bin + 8  # a frame of half a kilobyte takes half a second
