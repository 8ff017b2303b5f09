"""What each event does in each state of an install, and that it does nothing in every other one."""

from itertools import product
from typing import Any

import msgspec
import pytest

from edge_agent.update.machine import InstallMachine
from edge_agent.update.types import (
    ActionDone,
    AssignmentChecked,
    BundleFetched,
    CheckAssignment,
    CommitModel,
    FetchBundle,
    GoldenSetChecked,
    HealthObserved,
    InstallEvent,
    InstallRow,
    LoopStarted,
    ModelActivated,
    ProcessStarted,
    ReportStatus,
    RollBackModel,
    StateReached,
    StopWorker,
    WatchTrial,
    WriteRow,
)
from tests.edge_agent.doubles.install_world import (
    DEVICE,
    LIMITS,
    OLD,
    START_MS,
    S,
    device_on_probation,
    make_assignment,
    slot_of_assignment,
    soak_device,
)
from wire.protocol.rollout import DeviceSignals, InstallFailure, InstallState, RolloutCohort

WORK = make_assignment(1, START_MS)
NOW_MS = START_MS + 1000
FREE = {S.IDLE, S.SAFE_MODE}
FETCHING = {S.DOWNLOADING, S.VERIFYING, S.STAGED, S.SELF_TEST}


def machine(state: InstallState, **row: Any) -> InstallMachine:
    facts: dict[str, Any] = {
        "state": state, "since_ms": START_MS, "counter": 1, "newest": WORK, "work": WORK, "begun_ms": START_MS,
        "target": slot_of_assignment(WORK),
    }  # fmt: skip
    return InstallMachine(DEVICE, InstallRow(**(facts | row)), LIMITS)


def acts(made: InstallMachine, event: InstallEvent, now_ms: int = NOW_MS) -> list[type]:
    """The kinds of commands, without the writing of the row."""
    return [type(each) for each in made.handle_event(event, now_ms) if not isinstance(each, WriteRow)]


def expected_of_tick(state: InstallState, tries: int, *, due: bool, download: bool) -> list[type]:
    if state is S.CHECKING and tries and due:
        return [CheckAssignment]
    if state in {S.ACCEPTED, S.DOWNLOADING} and not download:
        return [StopWorker, ReportStatus]
    if state in {S.ACCEPTED, S.PAUSED} and download and due:
        return [ReportStatus, FetchBundle]
    if state is S.DOWNLOADING and tries and due:
        return [FetchBundle]
    if state is S.ROLLING_BACK and due:
        return [RollBackModel]
    return [CommitModel] if state is S.COMMITTED and due else []


@pytest.mark.parametrize("state", [state for state in S if state is not S.PROBATION])
def test_a_tick_goes_on_with_what_the_state_waits_for_once_its_time_has_come(state):
    for tries, due, download in product((0, 1), (False, True), (False, True)):
        made = machine(state, tries=tries, not_before_ms=NOW_MS if due else NOW_MS + 1)
        found = acts(made, HealthObserved(download=download))
        assert found == expected_of_tick(state, tries, due=due, download=download), (tries, due, download)
        if found and found[0] in {CheckAssignment, CommitModel, RollBackModel}:
            assert acts(made, HealthObserved(download=download)) == [], "not again at once"


LATE: list[tuple[InstallEvent, set[InstallState]]] = [
    (AssignmentChecked(slot_of_assignment(WORK), 100), {S.CHECKING}),
    (AssignmentChecked(None, 0, InstallFailure.NETWORK), {S.CHECKING}),
    (StateReached(S.VERIFYING), FETCHING),
    (BundleFetched(slot_of_assignment(WORK)), FETCHING),
    (BundleFetched(None, InstallFailure.SELF_TEST), FETCHING),
    (ModelActivated(), {S.ACTIVATING}),
    (ModelActivated(InstallFailure.INTEGRITY), {S.ACTIVATING}),
    (GoldenSetChecked(same=True), {S.PROBATION}),
    (GoldenSetChecked(same=False), {S.PROBATION}),
    (ActionDone(), {S.COMMITTED, S.ROLLING_BACK}),
    (ActionDone(InstallFailure.DISK), {S.COMMITTED, S.ROLLING_BACK}),
]


@pytest.mark.parametrize(("event", "states"), LATE, ids=lambda each: type(each).__name__)
def test_an_event_that_comes_too_late_changes_nothing(event, states):
    for state in S:
        made = machine(state)
        before = made.row
        commands = made.handle_event(event, NOW_MS)
        assert bool(commands) is (state in states), state
        assert commands or made.row == before, state


@pytest.mark.parametrize("state", S)
def test_an_end_is_reported_with_figures_if_its_model_ever_served(state):
    ended = msgspec.structs.replace(device_on_probation().reports[-1], state=state)
    made = machine(S.IDLE, work=None, target=None, ended=ended)
    (report,) = (each for each in made.handle_event(LoopStarted(OLD), NOW_MS) if isinstance(each, ReportStatus))
    assert report.figures is (state in {S.COMMITTED, S.ROLLED_BACK, S.SAFE_MODE})


def test_a_refusal_of_the_repository_without_a_reason_is_an_internal_failure():
    made = machine(S.CHECKING)
    commands = made.handle_event(AssignmentChecked(None, detail="odd"), NOW_MS)
    (report,) = (each for each in commands if isinstance(each, ReportStatus))
    assert (report.status.state, report.status.failure) == (S.FAILED, InstallFailure.INTERNAL)
    assert report.status.detail == "odd"


def test_what_the_row_knows_nothing_of_goes_back_and_is_held_against_it_whatever_was_withdrawn_before():
    made = machine(S.IDLE, withdrawn=True)
    (written, back) = made.handle_event(ProcessStarted("f" * 64, on_trial=True), NOW_MS)
    assert isinstance(written, WriteRow)
    assert isinstance(back, RollBackModel)
    assert (made.row.state, made.row.failure, made.row.withdrawn) == (S.ROLLING_BACK, InstallFailure.INTERNAL, False)
    assert back.target.digest == "f" * 64


def test_a_control_counts_from_its_assignment_on_and_reports_at_once():
    world = soak_device(device_on_probation())
    world.advance(5.0, DeviceSignals(inferences=77))
    world.assign(cohort=RolloutCohort.CONTROL, report_s=60.0)
    assert world.core.row.seen == DeviceSignals()
    assert [type(each) for each in world.commands[-2:]] == [WatchTrial, ReportStatus]
    reports = len(world.reports)
    world.advance(59.0)
    assert len(world.reports) == reports
    world.advance(1.0)
    assert len(world.reports) == reports + 1
