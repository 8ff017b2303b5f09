"""Both production cores as a fleet, under bad networks and faults, judged by the history checker."""

import msgspec
import pytest

from edge_agent.question.records import AnswerKind
from policies.model.policy import EscalationMode
from simulations.checking.events import AnswerRecorded, Flaw, HistoryEvent, HistoryReport
from simulations.nodes.device_disk import DeviceDisk
from simulations.nodes.hub_disk import HubDisk
from simulations.nodes.services import CoreClasses
from simulations.regions.coordinator import RegionGroup, iterate_slices
from simulations.regions.region import SimulatedRegion
from simulations.regions.run import run_scenario
from simulations.report.outcome import Outcome
from simulations.scenario.conditions import IDEAL_CONDITIONS, EnvironmentConditions
from simulations.scenario.types import EventKind, Link, Load, Region, Scenario, ScenarioEvent, build_permissive_policy

PARTITION = ScenarioEvent(EventKind.PARTITION, 120.0, 90.0, share=0.3)
KILLED_HUB = ScenarioEvent(EventKind.KILL_HUB, 300.0, 20.0)
KILLED_BROKER = ScenarioEvent(EventKind.KILL_BROKER, 420.0, 10.0)
KILLED_AGENT = ScenarioEvent(EventKind.KILL_AGENTS, 200.0, 60.0, device=3)
USUAL = EnvironmentConditions()
ALL_KINDS = (PARTITION, KILLED_HUB, KILLED_BROKER, KILLED_AGENT)


def fleet(
    devices: int,
    seconds: float,
    *events: ScenarioEvent,
    climate: EnvironmentConditions = USUAL,
    samples_per_s: float = 0.1,
) -> Scenario:
    return Scenario(
        seed=1,
        devices=devices,
        duration_s=seconds,
        regions=(Region(link=Link(climate)),),
        load=Load(samples_per_s=samples_per_s, classes=(("open", 0.98), ("private", 0.02))),
        events=events,
    )


def in_mode(scenario: Scenario, mode: EscalationMode) -> Scenario:
    text = build_permissive_policy(scenario.regions, ("open", "private")).replace('mode = "wait"', f'mode = "{mode}"')
    return msgspec.structs.replace(scenario, policy=text)


def history(scenario: Scenario, cores: CoreClasses | None = None) -> HistoryReport:
    return run_scenario(scenario, cores=cores).history


def facts(outcome: Outcome) -> dict[str, object]:
    return outcome.to_plain(wall=False)


@pytest.mark.further
def test_a_thousand_edges_for_ten_minutes_lose_nothing_and_double_nothing() -> None:
    """Loss, a partition, a killed hub, broker and agent."""
    scenario = fleet(1000, 600.0, *ALL_KINDS, samples_per_s=0.02)
    outcome = run_scenario(scenario)
    assert outcome.history.ok, outcome.history.format_text()
    assert outcome.history.accepted > 1000
    assert outcome.history.late > 0
    assert outcome.counts["air.gone"] > 0


@pytest.mark.further
def test_the_same_faults_twice_have_the_same_outcome() -> None:
    scenario = fleet(100, 600.0, *ALL_KINDS, samples_per_s=0.02)
    assert facts(run_scenario(scenario)) == facts(run_scenario(scenario))


def test_another_seed_is_another_run() -> None:
    scenario = fleet(20, 120.0, KILLED_HUB)
    assert run_scenario(scenario).answers != run_scenario(msgspec.structs.replace(scenario, seed=2)).answers


def test_in_calm_weather_every_caller_who_waits_is_answered_by_the_hub() -> None:
    report = history(fleet(20, 120.0, climate=IDEAL_CONDITIONS))
    assert report.ok
    assert report.late == report.whys["audit"]  # only those who did not wait
    assert report.answered == report.accepted > 20


def test_in_mode_answer_now_every_verdict_is_a_correction() -> None:
    report = history(in_mode(fleet(20, 120.0, climate=IDEAL_CONDITIONS), EscalationMode.ANSWER_NOW))
    assert report.ok
    assert report.late == report.accepted > 20
    assert report.answers_by_hub == 0


def test_while_the_hub_is_dead_callers_get_the_local_answer_and_later_its_correction() -> None:
    report = history(fleet(20, 120.0, ScenarioEvent(EventKind.KILL_HUB, 0.5, 119.0), climate=IDEAL_CONDITIONS))
    assert report.ok, report.format_text()
    assert report.answered == report.accepted
    assert report.whys["budget_elapsed"] > 0
    assert report.late > report.answers_by_hub


def test_a_killed_agent_takes_up_its_open_questions_from_its_database() -> None:
    kills = tuple(ScenarioEvent(EventKind.KILL_AGENTS, 10.0 + 7 * number, 3.0, device=number) for number in range(10))
    report = history(fleet(10, 120.0, *kills, samples_per_s=2.0))
    assert report.ok, report.format_text()


def test_a_policy_that_is_narrowed_ends_what_waits_as_denied() -> None:
    outage = ScenarioEvent(EventKind.KILL_BROKER, 10.0, 60.0)
    report = history(fleet(20, 120.0, outage, ScenarioEvent(EventKind.RECALL, 40.0, 60.0), climate=IDEAL_CONDITIONS))
    assert report.ok, report.format_text()
    assert report.denied > 0
    assert report.denied + report.answered == report.accepted


def test_devices_that_rest_and_wake_do_what_devices_do_that_never_rest() -> None:
    """The same scenario with cores that never rest: the same history, but for what their own dice made of it."""

    class Restless(CoreClasses().edge):  # type: ignore[misc]
        def idle_snapshot(self, now: float) -> None:
            del now

    climate = msgspec.structs.replace(IDEAL_CONDITIONS, latency_s=0.1, skew_s=1000.0, drift=1e-3)
    scenario = fleet(50, 300.0, PARTITION, KILLED_HUB, climate=climate, samples_per_s=0.05)
    one, other = facts(run_scenario(scenario, cores=CoreClasses(edge=Restless))), facts(run_scenario(scenario))
    assert one.pop("events") != other.pop("events")  # of the kernel: the first never gives up its cores
    assert one == other


# The simulation must be able to fail: products with a defect, and what the checker says of them.


def test_a_hub_that_forgets_what_it_computed_is_caught() -> None:
    """Devices that never heard their verdict ask, hear `unknown`, and have it computed a second time."""
    scenario = fleet(
        20,
        120.0,
        ScenarioEvent(EventKind.KILL_HUB, 60.0, 5.0),
        climate=EnvironmentConditions(loss=0.3),
        samples_per_s=1.0,
    )

    class Forgetful(HubDisk):
        def open_questions(self) -> list[object]:  # type: ignore[override]
            self._rows.clear()
            self._highest.clear()
            return []

    assert history(scenario, CoreClasses(hub_disk=Forgetful)).flaws.keys() == {Flaw.DOUBLED_EFFECT.value}


def test_a_device_that_forgets_its_outbox_at_a_restart_is_caught() -> None:
    outage = ScenarioEvent(EventKind.KILL_BROKER, 10.0, 60.0), ScenarioEvent(EventKind.KILL_AGENTS, 40.0, 5.0, device=0)

    class Forgetful(DeviceDisk):
        def load_memory(self, clock: object) -> object:  # type: ignore[override]
            self.rows.clear()
            return super().load_memory(clock)  # type: ignore[arg-type]

    report = history(fleet(5, 120.0, *outage, climate=IDEAL_CONDITIONS, samples_per_s=1.0), CoreClasses(disk=Forgetful))
    assert report.flaws.keys() == {Flaw.LOST.value}


@pytest.mark.parametrize("kind", [AnswerKind.ANSWER, AnswerKind.CORRECTION])
def test_a_device_that_says_something_twice_is_caught(kind: AnswerKind) -> None:
    class Twice(DeviceDisk):
        def __init__(self, device: str, epoch: int, tell: object) -> None:
            def twice(event: HistoryEvent) -> None:
                tell(event)  # type: ignore[operator]
                if type(event) is AnswerRecorded and event.kind is kind:
                    tell(event)  # type: ignore[operator]

            super().__init__(device, epoch, twice)

    flaw = Flaw.DOUBLED_ANSWER if kind is AnswerKind.ANSWER else Flaw.DOUBLED_CORRECTION
    report = history(
        in_mode(fleet(20, 60.0, climate=IDEAL_CONDITIONS), EscalationMode.ANSWER_NOW), CoreClasses(disk=Twice)
    )
    assert report.flaws.keys() == {flaw.value}
    assert report.doubled == report.accepted


def test_a_device_that_keeps_a_correction_to_itself_is_caught() -> None:
    class Discreet(DeviceDisk):
        def __init__(self, device: str, epoch: int, tell: object) -> None:
            def some(event: HistoryEvent) -> None:
                if not (isinstance(event, AnswerRecorded) and event.kind is AnswerKind.CORRECTION):
                    tell(event)  # type: ignore[operator]

            super().__init__(device, epoch, some)

    report = history(
        in_mode(fleet(5, 60.0, climate=IDEAL_CONDITIONS), EscalationMode.ANSWER_NOW), CoreClasses(disk=Discreet)
    )
    assert report.flaws.keys() == {Flaw.UNSAID.value}


@pytest.mark.further
def test_what_has_ended_is_forgotten_by_device_hub_and_checker() -> None:
    """Memory grows with what is open, not with the samples."""
    scenario = fleet(50, 1200.0, climate=IDEAL_CONDITIONS)
    team = RegionGroup(scenario, (0,), CoreClasses())
    for begin_s, end_s in iterate_slices(scenario):
        team.run_slice(begin_s, end_s)
    ground: SimulatedRegion = team.grounds[0]
    assert ground.recorder.samples > 5000
    assert (ground.herd.awake, ground.judge.held, sum(len(hub.disk) for hub in ground.hubs.values())) == (0, 0, 0)
