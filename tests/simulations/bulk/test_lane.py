"""Scenarios through the bulk lane and on the full path: equal where nothing is drawn, else inside the spread."""

import msgspec
import numpy as np
import pytest

from benchmarks.simulator.spread import compare_spreads
from edge_agent.question.commands import Answer, RandomDraws, SampleAttributes
from edge_agent.question.decide import EdgeCore
from edge_agent.question.permissions import ClassPermissions
from policies.decisions.escalation import EscalationDecision
from simulations.checking.events import Flaw
from simulations.nodes.services import CoreClasses
from simulations.regions.coordinator import RegionGroup, iterate_slices
from simulations.regions.run import run_scenario
from simulations.report.outcome import Outcome, RunProgress
from simulations.scenario.conditions import IDEAL_CONDITIONS, EnvironmentConditions
from simulations.scenario.types import (
    EventKind,
    Link,
    Load,
    LoadKind,
    Model,
    Region,
    Rollout,
    Scenario,
    ScenarioEvent,
    build_permissive_policy,
)  # fmt: skip
from tests.examples import further
from wire.protocol.messages import Prediction

CALM = msgspec.structs.replace(IDEAL_CONDITIONS, skew_s=100.0, drift=1e-4, bad_batch=0.0)
CUT = ScenarioEvent(EventKind.PARTITION, 100.0, 60.0, share=0.3)
KILLED_HUB = ScenarioEvent(EventKind.KILL_HUB, 130.0, 20.0)
FAULTS = (CUT, KILLED_HUB, ScenarioEvent(EventKind.KILL_AGENTS, 210.0, 20.0, share=0.1))
SEEDS = range(1, 11)


def fleet(*events: ScenarioEvent, climate: EnvironmentConditions = CALM, devices: int = 150, seed: int = 1) -> Scenario:
    return Scenario(
        seed=seed,
        devices=devices,
        duration_s=300.0,
        step_s=60.0,
        regions=(Region(slots=2, link=Link(climate, metered_share=0.3)),),
        load=Load(samples_per_s=0.1, classes=(("open", 0.9), ("private", 0.1))),
        events=events,
    )


def both_ways(scenario: Scenario) -> tuple[Outcome, Outcome]:
    return run_scenario(scenario), run_scenario(scenario, bulk=True)


def totals(series: dict[str, tuple[int, ...]]) -> dict[str, int]:
    return {name: sum(row) for name, row in series.items()}


def kept_of_devices(scenario: Scenario, *, bulk: bool) -> tuple[list[int], list[int], list[int], list[float]]:
    """Next number, day, bytes spent on it and offset to hub time of each device once the run is over."""
    group = RegionGroup(scenario, (0,), CoreClasses(), bulk=bulk)
    for begin_s, end_s in iterate_slices(scenario):
        group.run_slice(begin_s, end_s)
    herd = group.grounds[0].herd
    for number in [each for each in herd.numbers if each - herd.numbers.start in herd.busy_places()]:
        device, place = herd[number], number - herd.numbers.start
        spend = device.disk.spend
        herd.rest.next_seq[place], herd.rest.offset_s[place] = device.disk.next_seq, device.offset_s
        herd.rest.day[place], herd.rest.spent[place] = spend.day, spend.bytes
    rest = herd.rest
    return rest.next_seq.tolist(), rest.day.tolist(), rest.spent.tolist(), rest.offset_s.tolist()


def test_in_calm_weather_the_lane_gives_every_answer_that_the_full_path_gives() -> None:
    full, lane = both_ways(fleet())
    assert lane.counts["bulk.samples"] > 0.9 * lane.samples
    assert lane.counts["bulk.checked"] > 0
    assert (full.samples, full.arrivals) == (lane.samples, lane.arrivals)
    assert totals(full.answers) == totals(lane.answers)
    assert totals(full.right) == totals(lane.right)
    assert totals(full.bytes_by_rule) == totals(lane.bytes_by_rule)
    assert full.history == lane.history
    assert full.states == lane.states


@pytest.mark.further
def test_devices_hand_over_in_both_directions_with_their_numbers_days_and_spending() -> None:
    """A partition in the middle: struck devices go from the lane to the full path and come back."""
    scenario = fleet(CUT)
    full, lane = (kept_of_devices(scenario, bulk=bulk) for bulk in (False, True))
    assert full[:3] == lane[:3]
    assert max(full[0]) > 3
    assert np.abs(np.array(full[3]) - np.array(lane[3])).max() < 1.0  # a verdict's way, and what the clock drifted


@pytest.mark.further
def test_with_faults_in_the_middle_the_lane_leaves_what_they_strike_and_nothing_is_lost() -> None:
    full, lane = both_ways(fleet(*FAULTS))
    assert lane.history.ok, lane.history.format_text()
    assert 0.3 * lane.samples < lane.counts["bulk.samples"] < 0.95 * lane.samples
    assert full.history.accepted == lane.history.accepted
    assert full.history.answered == lane.history.answered
    assert totals(full.answers)["local.link_down"] == totals(lane.answers)["local.link_down"] > 0


@pytest.mark.further
def test_a_device_near_its_budget_goes_the_full_path_and_is_refused_by_the_core() -> None:
    scenario = fleet()
    text = build_permissive_policy(scenario.regions, ("open", "private")).replace("1_000_000_000", "3_000")
    full, lane = both_ways(msgspec.structs.replace(scenario, policy=text))
    assert totals(full.answers) == totals(lane.answers)
    assert totals(lane.answers)["local.denied_budget"] > 0
    assert full.history == lane.history
    assert lane.counts["bulk.questions"] > 0


@pytest.mark.further
def test_over_midnight_each_day_has_its_own_account() -> None:
    scenario = msgspec.structs.replace(fleet(), begins_minute=24 * 60 - 2)
    full, lane = (kept_of_devices(scenario, bulk=bulk) for bulk in (False, True))
    assert full[:3] == lane[:3]
    assert len(set(lane[1])) > 1


@pytest.mark.further
def test_rules_that_speak_of_the_time_are_asked_again_every_minute() -> None:
    busy = '{ from = "08:02", to = "08:04", zone = "UTC" }'
    rule = f'\n[[rule]]\nname = "busy"\nwhen = {{ time = {busy} }}\nmode = "answer_now"\n'
    scenario = fleet()
    text = build_permissive_policy(scenario.regions, ("open", "private")) + rule
    full, lane = both_ways(msgspec.structs.replace(scenario, policy=text, begins_minute=8 * 60))
    assert totals(full.answers) == totals(lane.answers)
    assert totals(lane.answers)["correction.verdict"] > 100
    assert lane.counts["bulk.questions"] > 300


@pytest.mark.further
def test_frames_that_come_twice_change_no_answer_and_add_what_was_measured() -> None:
    full, lane = both_ways(fleet(climate=msgspec.structs.replace(CALM, repeats=0.5)))
    assert totals(full.answers) == totals(lane.answers)
    assert full.history == lane.history
    assert lane.counts["bulk.questions"] > 0.7 * lane.history.accepted
    for name in ("hub.duplicates", "hub.receipts", "air.carried"):
        assert lane.counts[name] == pytest.approx(full.counts[name], rel=0.15)


def mean_bin(outcomes: list[Outcome]) -> float:
    """Mean latency bin of the hub's answers."""
    bins = [
        each for outcome in outcomes for latency in outcome.latency if latency.source == "hub" for each in latency.bins
    ]
    pairs = [pair for each in bins for pair in each.items()]
    return sum(number * count for number, count in pairs) / sum(count for _, count in pairs)


@pytest.mark.further
def test_every_figure_of_ten_seeds_is_inside_the_spread_of_the_full_path() -> None:
    """Losses, repeats and failures as they are by default, and a partition."""
    runs = [both_ways(fleet(CUT, climate=EnvironmentConditions(), seed=seed)) for seed in SEEDS]
    found = compare_spreads([full for full, _ in runs], [lane for _, lane in runs])
    assert [each for each in found if not each.is_inside] == []
    assert mean_bin([full for full, _ in runs]) == pytest.approx(mean_bin([lane for _, lane in runs]), abs=0.1)
    assert {"p50_s", "hub_p99_s", "asked_share", "count.hub.receipts", "count.air.gone"} <= {
        each.name for each in found
    }
    assert all(lane.history.ok and lane.counts["bulk.questions"] > 300 for _, lane in runs)


@pytest.mark.further
@pytest.mark.parametrize("kind", [LoadKind.DIURNAL, LoadKind.BURSTY])
def test_every_figure_is_inside_the_spread_with_loads_that_swing_and_hubs_that_die(kind: LoadKind) -> None:
    def scenario(seed: int) -> Scenario:
        load = Load(kind, 0.1, swing=0.5, burst_every_s=100.0, burst_lasts_s=10.0)
        struck = fleet(*FAULTS, climate=EnvironmentConditions(), devices=60, seed=seed)
        return msgspec.structs.replace(
            struck, load=load, model=Model(deciles=tuple(each / 10 for each in range(1, 10)))
        )

    runs = [both_ways(scenario(seed)) for seed in SEEDS]
    found = compare_spreads([full for full, _ in runs], [lane for _, lane in runs])
    assert [each for each in found if not each.is_inside] == []


def test_a_core_that_decides_otherwise_than_the_lane_ends_the_run_loudly() -> None:
    class Fickle(EdgeCore):
        """After two minutes it is half as sure as it was."""

        doubts = False

        def evaluate_sample(
            self, local: Prediction, facts: SampleAttributes, dice: RandomDraws, now: float
        ) -> Answer | tuple[ClassPermissions, EscalationDecision]:
            sure = local.confidence / 2 if self.doubts else local.confidence
            return super().evaluate_sample(Prediction(0, sure, (sure,), ""), facts, dice, now)

    def change(passed: RunProgress) -> bool:
        Fickle.doubts = passed.until_s > 120.0
        return True

    outcome = run_scenario(fleet(devices=1000), progress=change, cores=CoreClasses(edge=Fickle), bulk=True)
    assert not outcome.complete
    assert outcome.history.flaws == {Flaw.DEFECT: 1}
    assert "LaneError" in outcome.history.stories[0]


def test_a_run_that_is_stopped_has_counted_what_had_happened_and_what_is_open() -> None:
    slow = msgspec.structs.replace(CALM, latency_s=0.5)

    def stop(passed: RunProgress) -> bool:
        return passed.until_s < 120.0

    outcome = run_scenario(fleet(climate=slow), progress=stop, bulk=True)
    history = outcome.history
    assert not outcome.complete
    assert history.ok, history.format_text()
    assert history.open > 0
    assert history.accepted == history.answered + history.open


@pytest.mark.further
def test_one_process_or_two_give_the_same_report_of_the_lane_too() -> None:
    regions = tuple(Region(name, 0.5, link=Link(EnvironmentConditions())) for name in ("eu", "us"))
    scenario = msgspec.structs.replace(fleet(CUT, devices=60), regions=regions)
    one, two = run_scenario(scenario, bulk=True), run_scenario(scenario, processes=2, bulk=True)
    assert one.to_plain(wall=False) == two.to_plain(wall=False)
    assert one.counts["bulk.samples"] > 0


@pytest.mark.further
def test_a_hub_that_is_asked_for_more_than_half_of_what_it_can_do_is_left_to_the_full_path() -> None:
    slow = Region(slots=1, cost_base_s=1.0, link=Link(CALM))
    lane = run_scenario(msgspec.structs.replace(fleet(), regions=(slow,)), bulk=True)
    assert lane.counts["bulk.questions"] < 0.1 * lane.history.accepted  # in the short portion before the end
    assert lane.counts["bulk.samples"] > lane.counts["bulk.questions"]
    assert lane.history.ok


@pytest.mark.parametrize(
    "change",
    [
        {"rollout": Rollout(at_s=10.0)},
        {"regions": (Region(members=2),)},
        {"regions": (Region("eu", 0.5, failover=("us",)), Region("us", 0.5))},
    ],
)
def test_rollouts_leases_and_failover_have_no_lane(change: dict[str, object]) -> None:
    scenario = msgspec.structs.replace(fleet(devices=10), duration_s=20.0, heal_s=30.0, **change)
    outcome = run_scenario(scenario, bulk=True)
    eu = len(outcome.queues) == 2
    assert ("bulk.samples" in outcome.counts) == eu  # only the region without failover has one


@pytest.mark.parametrize("step_s", [50.0, *map(further, (60.0, 90.0, 100.0))])
def test_no_sample_is_lost_between_slices_whatever_the_step(step_s: float) -> None:
    outcome = run_scenario(Scenario(devices=50, duration_s=600.0, step_s=step_s))
    assert outcome.samples == pytest.approx(3000, rel=0.1)
