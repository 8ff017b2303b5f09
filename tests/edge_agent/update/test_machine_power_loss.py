"""Power loss in each state of the install machine, and where the next process goes on."""

import pytest
from msgspec.structs import replace

from edge_agent.update.machine import InstallMachine
from edge_agent.update.types import (
    AssignmentChecked,
    CheckAssignment,
    CommitModel,
    FetchBundle,
    LoopStarted,
    ProcessStarted,
    RollBackModel,
)
from models.update.slots import Slot
from tests.edge_agent.doubles.install_world import (
    DEVICE,
    FINE,
    LIMITS,
    OLD,
    START_MS,
    S,
    SimulatedDevice,
    device_in_state,
    device_on_probation,
    reported_states,
    soak_device,
)
from wire.protocol.rollout import InstallFailure


@pytest.mark.parametrize(
    ("state", "goes_on"),
    [
        (S.CHECKING, S.CHECKING),
        (S.DOWNLOADING, S.DOWNLOADING),
        (S.VERIFYING, S.VERIFYING),
        (S.STAGED, S.VERIFYING),
        (S.SELF_TEST, S.SELF_TEST),
        (S.PROBATION, S.PROBATION),
    ],
)
def test_power_loss_in_each_state_goes_on_as_its_row_says(state, goes_on):
    world = device_in_state(state)
    world.crash_process()
    world.start_process()
    assert world.core.row.state is goes_on
    world.finish_worker()
    assert world.core.row.state is S.PROBATION
    soak_device(world)
    assert (world.core.row.state, world.serving) == (S.IDLE, world.committed)


def test_power_loss_before_the_switch_is_tested_again_and_after_it_is_on_trial():
    for deeds, goes_on in ((1, S.SELF_TEST), (2, S.PROBATION)):
        world = device_in_state(S.SELF_TEST)
        world.fuse = deeds
        world.step_worker()
        assert not world.alive
        world.start_process()
        assert world.core.row.state is goes_on
        world.finish_worker()
        assert world.core.row.state is S.PROBATION


def test_a_self_test_that_never_ends_is_tried_twice():
    world = device_in_state(S.SELF_TEST)
    for _ in range(2):
        world.crash_process()
        world.start_process()
    assert (world.core.row.state, reported_states(world)[-1], world.serving) == (S.IDLE, S.FAILED, OLD)


def test_power_loss_while_it_goes_back_goes_on_going_back():
    for deeds in range(6):
        world = device_on_probation()
        world.fuse = deeds
        world.advance(1.0, replace(FINE, crashes=3))
        if not world.alive:
            world.start_process()
        for _ in range(3):
            world.advance(61.0, replace(FINE, crashes=3))
        assert (world.core.row.state, world.serving, world.disk.trial) == (S.IDLE, OLD, False), deeds


def test_a_row_that_is_lost_takes_back_what_was_never_committed():
    world = device_on_probation()
    world.crash_process()
    world.disk.row = b'{"state":"idle"}'
    world.start_process()
    assert (world.core.row.state, world.serving, world.disk.trial) == (S.IDLE, OLD, False)


def test_another_model_on_trial_than_the_row_names_is_taken_back():
    world = device_on_probation()
    world.crash_process()
    world.disk.current, world.disk.whole = "f" * 64, world.disk.whole | {"f" * 64}
    world.start_process()
    assert (world.serving, world.disk.current, world.disk.trial) == (OLD, OLD, False)


def test_a_download_goes_on_where_it_was_told_to():
    world = device_in_state(S.VERIFYING)
    world.crash_process()
    world.start_process()
    assert isinstance(world.errand, FetchBundle)
    assert world.errand.state is S.VERIFYING


def test_an_answer_of_an_errand_that_nobody_waits_for_changes_nothing():
    world = SimulatedDevice()
    world.handle_event(AssignmentChecked(None, failure=InstallFailure.NETWORK))
    assert world.core.row.state is S.IDLE


def test_a_rollback_that_the_disk_refused_before_the_loop_is_tried_again_as_soon_as_the_loop_runs():
    world = device_on_probation()
    bad = world.serving
    world.fails[RollBackModel] = InstallFailure.DISK
    world.advance(1.0, replace(FINE, crashes=3))
    assert world.state is S.ROLLING_BACK
    world.crash_process()
    world.fails[RollBackModel] = InstallFailure.DISK
    world.start_process()
    assert (world.state, world.serving, world.disk.trial) == (S.IDLE, OLD, False)
    assert (reported_states(world)[-1], world.disk.banned) == (S.ROLLED_BACK, {bad})


@pytest.mark.parametrize("state", [S.ACTIVATING, S.PROBATION, S.ROLLING_BACK, S.COMMITTED])
def test_another_model_on_trial_than_the_row_names_goes_back_before_any_model_is_loaded(state):
    row = replace(device_on_probation().core.row, state=state)
    machine = InstallMachine(DEVICE, row, LIMITS)
    commands = machine.handle_event(ProcessStarted("f" * 64, on_trial=True), START_MS)
    assert [command for command in commands if isinstance(command, RollBackModel)] == [
        RollBackModel(Slot("", 0, "f" * 64))
    ]
    assert (machine.row.state, machine.row.failure) == (S.ROLLING_BACK, InstallFailure.INTERNAL)


@pytest.mark.parametrize("state", [S.IDLE, S.CHECKING, S.DOWNLOADING, S.STAGED, S.SELF_TEST])
def test_a_model_on_trial_whose_row_says_it_was_never_activated_goes_back_before_any_model_is_loaded(state):
    row = replace(device_on_probation().core.row, state=state)
    assert row.target
    commands = InstallMachine(DEVICE, row, LIMITS).handle_event(ProcessStarted(row.target.digest, True), START_MS)
    assert any(isinstance(command, RollBackModel) for command in commands)


@pytest.mark.parametrize(
    ("state", "goes_on"),
    [(S.ACTIVATING, S.PROBATION), (S.PROBATION, S.PROBATION), (S.COMMITTED, S.COMMITTED)],
)
def test_the_model_on_trial_that_the_row_names_stays_at_the_start(state, goes_on):
    row = replace(device_on_probation().core.row, state=state)
    assert row.target
    machine = InstallMachine(DEVICE, row, LIMITS)
    commands = machine.handle_event(ProcessStarted(row.target.digest, on_trial=True), START_MS)
    assert not any(isinstance(command, RollBackModel) for command in commands)
    assert machine.row.state is goes_on


def test_each_state_goes_on_with_its_own_action_once_the_loop_runs():
    row = device_on_probation().core.row
    expected = {
        S.CHECKING: CheckAssignment, S.ACCEPTED: CheckAssignment, S.DOWNLOADING: FetchBundle, S.VERIFYING: FetchBundle,
        S.STAGED: FetchBundle, S.SELF_TEST: FetchBundle, S.ROLLING_BACK: RollBackModel, S.COMMITTED: CommitModel,
    }  # fmt: skip
    for state, action in expected.items():
        machine = InstallMachine(DEVICE, replace(row, state=state), LIMITS)
        assert isinstance(machine.handle_event(LoopStarted("0" * 64), START_MS)[-1], action), state
    paused = InstallMachine(DEVICE, replace(row, state=S.PAUSED), LIMITS)
    assert paused.handle_event(LoopStarted("0" * 64), START_MS) == []
    assert paused.row.state is S.PAUSED
    ended = InstallMachine(DEVICE, replace(row, state=S.FAILED), LIMITS)
    ended.handle_event(LoopStarted("0" * 64), START_MS)
    assert (ended.row.state, ended.row.work) == (S.IDLE, None)
