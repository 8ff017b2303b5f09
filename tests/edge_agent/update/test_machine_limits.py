"""Times and numbers of an install at their edges, and events that come too late."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from edge_agent.update.types import (
    ActionDone,
    AssignmentChecked,
    BundleFetched,
    CheckGoldenSet,
    CommitModel,
    GoldenSetChecked,
    HealthObserved,
    InstallLimits,
    LoopStarted,
    ModelActivated,
    ReportStatus,
    StateReached,
    StopWorker,
    WatchTrial,
)
from tests.edge_agent.doubles.install_world import (
    FINE,
    LIMITS,
    OLD,
    S,
    SimulatedDevice,
    device_in_state,
    device_on_probation,
    reported_states,
    soak_device,
)
from wire.protocol.rollout import InstallFailure, RolloutCohort

DAY_MS = 86_400_000


def test_the_limits_of_an_install_are_these():
    assert InstallLimits() == InstallLimits(
        checking_s=120.0, accepted_s=86_400.0, downloading_s=86_400.0, paused_s=604_800.0, retry_s=60.0, retries=10,
        self_tests=2, attempts=3, spread_s=0.0, interval_s=600.0, quarantine_s=604_800.0,
    )  # fmt: skip


def test_an_install_whose_time_does_not_come_within_a_day_is_cancelled():
    world = SimulatedDevice(replace(LIMITS, interval_s=3 * 86_400.0))
    world.assign(soak_s=0.0, min_inferences=0)
    world.finish_worker()
    soak_device(world, seconds=1.0)
    world.assign()
    world.step_worker()
    assert world.state is S.ACCEPTED
    world.now_ms += DAY_MS
    world.handle_event(HealthObserved(hub_ms=world.now_ms))
    assert world.state is S.ACCEPTED
    world.advance(0.001)
    assert (world.state, reported_states(world)[-1]) == (S.IDLE, S.CANCELLED)
    assert (world.reports[-1].failure, world.reports[-1].detail) == (InstallFailure.INTERNAL, "its time never came")


def test_a_download_that_is_paused_for_a_week_goes_on_and_after_that_is_cancelled():
    for late_ms, state in ((0, S.DOWNLOADING), (1, S.IDLE)):
        world = device_in_state(S.DOWNLOADING)
        world.handle_event(HealthObserved(download=False))
        assert any(isinstance(command, StopWorker) for command in world.commands)
        world.now_ms += 7 * DAY_MS + late_ms
        world.handle_event(HealthObserved(download=True))
        assert world.state is state


@pytest.mark.parametrize(("paused_s", "tried_again"), [(7199.0, True), (7200.0, False)])
def test_a_pause_counts_in_the_time_limit_of_a_download(paused_s, tried_again):
    world = SimulatedDevice(replace(LIMITS, downloading_s=7200.0))
    world.assign()
    world.step_worker()
    world.handle_event(HealthObserved(download=False))
    world.advance(paused_s)
    assert world.state is S.DOWNLOADING
    world.step_worker(InstallFailure.NETWORK)
    assert (world.state is S.DOWNLOADING) is tried_again


def test_each_install_has_the_whole_time_limit_of_a_download_whenever_the_one_before_began():
    world = SimulatedDevice(replace(LIMITS, downloading_s=7200.0))
    for _ in range(2):
        world.now_ms += DAY_MS
        world.assign()
        world.step_worker()
        world.step_worker(InstallFailure.NETWORK)
        assert world.state is S.DOWNLOADING
        world.step_worker(InstallFailure.DISK)
        world.advance(7201.0)
        while world.state is S.DOWNLOADING:
            world.step_worker(InstallFailure.DISK)


def test_a_check_that_fails_is_tried_again_after_times_that_double():
    world = SimulatedDevice()
    world.assign()
    waits = []
    for _ in range(4):
        world.step_worker(InstallFailure.NETWORK)
        failed_ms = world.now_ms
        while world.errand is None:
            world.advance(1.0)
        waits.append((world.now_ms - failed_ms) // 1000)
    assert [later / earlier for earlier, later in pairwise(waits)] == [2.0, 2.0, 2.0]


def test_a_check_that_is_never_answered_is_not_begun_a_second_time():
    world = SimulatedDevice()
    world.assign()
    errand = world.errand
    for _ in range(10):
        world.advance(600.0)
    assert world.errand is errand
    assert world.state is S.CHECKING


def test_a_control_device_that_starts_again_reports_its_figures_at_once_and_then_in_its_turn():
    world = SimulatedDevice()
    order = world.assign(cohort=RolloutCohort.CONTROL, report_s=600.0)
    world.advance(600.0, FINE)
    world.stop_process()
    world.commands.clear()
    world.start_process()
    assert world.commands == [WatchTrial(order, FINE, world.core.row.quality)], "it counts on"
    told = len(world.reports)
    world.advance(1.0, FINE)
    assert len(world.reports) == told + 1
    world.advance(599.0, FINE)
    assert len(world.reports) == told + 1
    world.advance(1.0, FINE)
    assert len(world.reports) == told + 2


def test_a_control_device_that_is_withdrawn_counts_no_more():
    world = SimulatedDevice()
    world.assign(cohort=RolloutCohort.CONTROL)
    world.assign(withdraw=True)
    assert (world.core.row.control, reported_states(world)[-1]) == (None, S.CANCELLED)


def test_a_model_that_answers_its_golden_set_otherwise_goes_back():
    world = device_on_probation()
    world.handle_event(GoldenSetChecked(same=False))
    assert (world.state, world.serving, world.reports[-1].failure) == (S.IDLE, OLD, InstallFailure.HEALTH)
    assert world.disk.banned


def test_a_self_test_that_breaks_off_is_begun_as_often_as_the_limits_say():
    world = SimulatedDevice(replace(LIMITS, self_tests=3))
    world.assign()
    while world.state is not S.SELF_TEST:
        world.step_worker()
    for begun in (2, 3):
        world.step_worker(InstallFailure.INTERNAL)
        assert (world.core.row.state, world.core.row.tries) == (S.SELF_TEST, begun)
        assert world.errand is not None
    world.step_worker(InstallFailure.INTERNAL)
    assert (world.core.row.state, world.reports[-1].failure) == (S.IDLE, InstallFailure.INTERNAL)


def test_the_figures_of_a_trial_are_those_last_observed():
    world = device_on_probation()
    world.advance(10.0, replace(FINE, inferences=77))
    assert world.core.row.seen == replace(FINE, inferences=77)


def test_a_golden_set_is_asked_for_once_while_its_result_is_awaited():
    world = device_on_probation(soak_s=0.0, min_inferences=0)
    asked = []
    for _ in range(3):
        world.now_ms += 1000
        asked += world.core.handle_event(HealthObserved(FINE, hub_ms=world.now_ms, serving=world.serving), world.now_ms)
    assert [command for command in asked if isinstance(command, CheckGoldenSet)] == [CheckGoldenSet()]


@pytest.mark.parametrize(
    "late",
    [
        AssignmentChecked(None, 0, InstallFailure.INCOMPATIBLE),
        StateReached(S.VERIFYING),
        BundleFetched(None, InstallFailure.DISK),
        ModelActivated(InstallFailure.SELF_TEST),
        GoldenSetChecked(same=False),
        ActionDone(InstallFailure.INTEGRITY),
        HealthObserved(download=False),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_comes_after_the_install_has_ended_changes_nothing(late):
    world = soak_device(device_on_probation())
    assert world.state is S.IDLE
    row, commands = world.core.row, len(world.commands)
    world.handle_event(late)
    assert world.core.row == row
    assert len(world.commands) == commands


def test_a_worker_that_announces_a_state_twice_goes_on_and_is_reported_once():
    world = device_in_state(S.VERIFYING)
    reports = len(world.reports)
    world.handle_event(StateReached(S.VERIFYING))
    assert (world.state, len(world.reports)) == (S.VERIFYING, reports)


def test_an_activation_that_fails_ends_the_install():
    world = device_in_state(S.SELF_TEST)
    world.step_worker(sound=False)
    assert (world.state, world.serving, reported_states(world)[-1]) == (S.IDLE, OLD, S.FAILED)


def test_a_trial_whose_model_does_not_open_at_the_next_start_goes_back():
    world = device_on_probation()
    world.stop_process()
    world.start_process()
    assert world.state is S.PROBATION
    world.handle_event(LoopStarted(OLD))
    assert (world.state, world.reports[-1].failure) == (S.IDLE, InstallFailure.HEALTH)
    assert world.reports[-1].detail == "it does not open"


def test_a_trial_that_goes_on_after_a_start_is_reported_at_once():
    world = device_on_probation()
    world.stop_process()
    reports = len(world.reports)
    world.start_process()
    assert [status.state for status in world.reports[reports:]] == [S.PROBATION]
    last = [command for command in world.commands if isinstance(command, ReportStatus)][-1]
    assert last.figures


def test_a_floor_that_the_disk_does_not_take_is_tried_again_after_a_minute_and_not_before():
    world = device_on_probation(soak_s=0.0, min_inferences=0)
    world.fails[CommitModel] = InstallFailure.DISK
    world.advance(1.0, FINE)
    assert world.core.row.state is S.COMMITTED
    commits = sum(isinstance(command, CommitModel) for command in world.commands)
    world.advance(59.999, FINE)
    assert sum(isinstance(command, CommitModel) for command in world.commands) == commits
    world.advance(0.001, FINE)
    assert world.state is S.IDLE
