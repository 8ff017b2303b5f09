"""The pure install machine: what it accepts, what survives a power cut in each state, what it never takes back."""

import pytest
from msgspec.structs import replace

from edge_agent.update.types import (
    ActivateModel,
    AssignmentReceived,
    CleanUpStore,
    CommitModel,
    HealthObserved,
    RefuseAssignment,
    ReportStatus,
    RollBackModel,
)
from tests.edge_agent.doubles.install_world import (
    FINE,
    OLD,
    S,
    SimulatedDevice,
    device_in_state,
    device_on_probation,
    make_assignment,
    reported_states,
    soak_device,
)
from wire.protocol.rollout import DeviceSignals, InstallFailure, RolloutCohort

DAY_S = 86_400.0


# What it accepts


def test_the_same_assignment_a_hundred_times_is_one_install():
    world = SimulatedDevice()
    order = world.assign()
    world.finish_worker()
    for _ in range(100):
        world.handle_event(AssignmentReceived(order))
    soak_device(world)
    for _ in range(100):
        world.handle_event(AssignmentReceived(order))
    assert (world.state, world.serving) == (S.IDLE, order.digest)
    assert sum(isinstance(command, ActivateModel) for command in world.commands) == 1


@pytest.mark.parametrize("counter", [1, 0])
def test_a_counter_that_was_used_before_changes_nothing(counter):
    world = device_on_probation()
    before = world.core.row
    world.handle_event(AssignmentReceived(make_assignment(counter, world.now_ms, digest="f" * 64)))
    assert isinstance(world.commands[-1], RefuseAssignment)
    assert world.core.row == before


def test_an_assignment_for_another_device_changes_nothing():
    world = SimulatedDevice()
    world.assign(device="demo--d2")
    assert (world.state, world.core.row.counter) == (S.IDLE, 0)


@pytest.mark.parametrize("state", [S.CHECKING, S.DOWNLOADING, S.VERIFYING, S.STAGED, S.SELF_TEST])
def test_before_it_serves_a_newer_assignment_takes_the_place_of_the_older(state):
    world = device_in_state(state)
    newer = world.assign()
    assert world.core.row.work == newer
    assert [status.state for status in world.reports if status.counter == 1][-1] is S.SUPERSEDED
    world.finish_worker()
    assert (world.state, world.serving) == (S.PROBATION, newer.digest)


def test_while_one_is_on_trial_a_newer_assignment_waits_its_turn():
    world = device_on_probation()
    first = world.work
    newer = world.assign()
    assert (world.core.row.work, world.core.row.queued) == (first, newer)
    assert world.serving == first.digest
    soak_device(world)
    assert (world.core.row.work, world.committed) == (newer, first.digest)
    world.finish_worker()
    assert (world.state, world.serving) == (S.PROBATION, newer.digest)


def test_what_waited_for_its_turn_until_it_expired_is_let_go():
    world = device_on_probation(max_soak_s=90 * DAY_S, min_inferences=2000)
    world.assign(expires_ms=world.now_ms + 1000)
    soak_device(world, seconds=91 * DAY_S)
    assert (world.state, world.core.row.work, world.core.row.queued) == (S.IDLE, None, None)


@pytest.mark.parametrize("state", [S.CHECKING, S.DOWNLOADING, S.SELF_TEST])
def test_withdrawn_before_it_serves_it_is_cancelled(state):
    world = device_in_state(state)
    world.assign(withdraw=True)
    assert (world.state, world.errand, reported_states(world)[-1]) == (S.IDLE, None, S.CANCELLED)
    assert world.reports[-1].counter == 2


def test_withdrawn_on_trial_it_goes_back_and_is_not_held_against_it():
    world = device_on_probation()
    world.assign(withdraw=True)
    assert (world.state, world.serving, world.disk.banned) == (S.IDLE, OLD, set())
    assert world.reports[-1].state is S.ROLLED_BACK
    assert world.reports[-1].failure is None


def test_withdrawn_after_its_commit_it_stays():
    world = soak_device(device_on_probation())
    assert world.state is S.IDLE
    world.assign(withdraw=True)
    assert (world.serving, world.committed) == (world.committed, world.disk.current)
    assert world.serving != OLD


def test_a_control_device_installs_nothing_and_tells_its_figures_until_the_end_of_it():
    world = SimulatedDevice()
    order = world.assign(cohort=RolloutCohort.CONTROL, report_s=10.0, expires_ms=world.now_ms + 60_000)
    told = len(world.reports)
    (joined,) = [command for command in world.commands if isinstance(command, ReportStatus)]
    assert (joined.status.state, joined.figures) == (S.IDLE, True)
    for _ in range(5):
        world.advance(10.0, FINE)
    assert [status.state for status in world.reports[told:]] == [S.IDLE] * 5
    assert (world.core.row.control, world.serving) == (order, OLD)
    world.advance(10.0, FINE)
    assert world.core.row.control is None


# Refused, or not fetched


def test_what_is_not_for_this_device_is_rejected_and_what_cannot_be_fetched_now_is_tried_again():
    world = SimulatedDevice()
    world.assign()
    world.step_worker(InstallFailure.INCOMPATIBLE)
    assert (world.state, reported_states(world)[-1]) == (S.IDLE, S.REJECTED)
    world.assign()
    for _ in range(10):
        world.step_worker(InstallFailure.NETWORK)
        assert world.state is S.CHECKING
        world.advance(DAY_S)
    world.step_worker(InstallFailure.NETWORK)
    assert (world.state, reported_states(world)[-1]) == (S.IDLE, S.FAILED)


def test_a_download_that_is_tried_again_has_one_time_limit_from_its_first_beginning():
    world = SimulatedDevice(replace(SimulatedDevice().limits, downloading_s=7200.0, retries=1000))
    world.assign()
    world.step_worker()
    assert world.core.row.state is S.DOWNLOADING
    began_ms = world.now_ms
    while world.state is not S.IDLE and world.now_ms < began_ms + int(DAY_S * 1000):
        world.advance(600.0)
        if world.state is S.DOWNLOADING:
            world.step_worker(InstallFailure.NETWORK)
    assert world.reports[-1].failure is InstallFailure.NETWORK
    assert 7_200_000 <= world.now_ms - began_ms < 14_400_000


@pytest.mark.parametrize("state", [S.DOWNLOADING, S.VERIFYING, S.STAGED])
def test_a_full_disk_is_failed_disk_and_what_was_taken_is_given_back(state):
    world = device_in_state(state)
    world.step_worker(InstallFailure.DISK)
    assert (world.state, world.serving) == (S.IDLE, OLD)
    assert (world.reports[-1].state, world.reports[-1].failure) == (S.FAILED, InstallFailure.DISK)
    assert any(isinstance(command, CleanUpStore) for command in world.commands)
    assert world.disk.banned == set()


def test_what_turns_out_incompatible_once_it_is_here_is_rejected_and_not_held_against_it():
    world = device_in_state(S.SELF_TEST)
    world.step_worker(InstallFailure.INCOMPATIBLE)
    assert (world.state, reported_states(world)[-1], world.disk.banned) == (S.IDLE, S.REJECTED, set())


def test_a_failed_self_test_is_not_tried_again_for_a_week():
    world = device_in_state(S.SELF_TEST)
    world.step_worker(InstallFailure.SELF_TEST)
    assert world.disk.banned == {f"{1:064x}"}
    assert world.reports[-1].failure is InstallFailure.SELF_TEST


def test_an_activation_that_comes_too_soon_after_another_waits():
    world = SimulatedDevice(replace(SimulatedDevice().limits, interval_s=600.0))
    world.assign(soak_s=0.0, min_inferences=0)
    world.finish_worker()
    soak_device(world, seconds=1.0)
    world.assign()
    world.finish_worker()
    assert (world.state, world.errand) == (S.ACCEPTED, None)
    world.advance(600.0)
    world.finish_worker()
    assert world.state is S.PROBATION


def test_over_a_link_that_costs_a_download_waits_and_after_a_week_it_is_cancelled():
    world = device_in_state(S.DOWNLOADING)
    world.handle_event(HealthObserved(download=False))
    assert (world.state, world.errand) == (S.PAUSED, None)
    world.handle_event(HealthObserved(download=True))
    assert world.state is S.DOWNLOADING
    world.handle_event(HealthObserved(download=False))
    world.now_ms += 8 * 86_400_000
    world.handle_event(HealthObserved(download=False))
    assert (world.state, reported_states(world)[-1]) == (S.IDLE, S.CANCELLED)


# On trial


def test_it_is_committed_after_its_soak_and_enough_answers():
    world = device_on_probation()
    world.advance(1801.0, replace(FINE, inferences=199))
    assert world.state is S.PROBATION
    world.advance(1.0, replace(FINE, inferences=200))
    assert (world.state, world.disk.trial, world.disk.floor) == (S.IDLE, False, 2)
    assert reported_states(world)[-1] is S.COMMITTED


def test_without_a_hub_a_tolerant_site_commits_by_its_own_gates():
    world = device_on_probation()
    world.now_ms += 1_801_000
    world.handle_event(HealthObserved(FINE, hub_ms=0, serving=world.serving))
    assert (world.state, reported_states(world)[-1]) == (S.IDLE, S.COMMITTED)


def test_without_a_hub_a_strict_site_goes_back_after_half_an_hour():
    world = device_on_probation(strict=True, soak_s=3600.0)
    world.now_ms += 1_799_000
    world.handle_event(HealthObserved(FINE, hub_ms=0, serving=world.serving))
    assert world.state is S.PROBATION
    world.now_ms += 2_000
    world.handle_event(HealthObserved(FINE, hub_ms=0, serving=world.serving))
    assert (world.state, world.serving) == (S.IDLE, OLD)
    assert world.reports[-1].failure is InstallFailure.HEALTH


@pytest.mark.parametrize(
    "seen",
    [
        replace(FINE, errors=40),
        replace(FINE, escalated=400),
        replace(FINE, p95_us=7000),
        replace(FINE, confidence=float("nan")),
        replace(FINE, crashes=3),
        replace(FINE, inferences=200, crashes=1),
    ],
)
def test_any_one_gate_takes_it_back_and_keeps_it_away_for_a_week(seen):
    world = SimulatedDevice()
    world.before = DeviceSignals(inferences=1000, p95_us=1000, escalated=100)
    world.assign()
    world.finish_worker()
    world.advance(1.0, seen)
    assert (world.state, world.serving, world.disk.banned) == (S.IDLE, OLD, {f"{1:064x}"})
    assert (world.reports[-1].state, world.reports[-1].failure) == (S.ROLLED_BACK, InstallFailure.HEALTH)


def test_cases_38_and_39_three_starts_that_end_in_a_crash_and_the_model_before_serves_with_no_hub():
    world = device_on_probation()
    candidate = world.serving
    for _ in range(2):
        world.crash_process()
        world.start_process()
        assert world.serving == candidate
    world.crash_process()
    world.start_process()
    assert (world.serving, world.state) == (OLD, S.IDLE)


def test_a_start_after_a_clean_end_costs_no_attempt():
    world = device_on_probation()
    for _ in range(20):
        world.stop_process()
        world.start_process()
    assert (world.state, world.core.row.attempts, world.core.row.seen.crashes) == (S.PROBATION, 3, 0)
    assert world.core.row.seen.starts == 21


# What is committed stays


def test_once_committed_nothing_that_becomes_of_its_report_takes_it_back():
    world = soak_device(device_on_probation())
    candidate = world.committed
    for _ in range(7):  # nobody hears of it for a week, and the device starts again and again
        world.advance(DAY_S)
        world.crash_process()
        world.start_process()
        assert (world.serving, world.state) == (candidate, S.IDLE)
    assert not any(isinstance(command, RollBackModel) for command in world.commands)
    assert reported_states(world).count(S.COMMITTED) == 8, "said again at each start, until it is heard"


def test_a_floor_that_the_disk_does_not_take_now_is_raised_later_and_nothing_goes_back():
    world = device_on_probation()
    world.fails[CommitModel] = InstallFailure.DISK
    soak_device(world)
    assert (world.state, world.serving != OLD) == (S.COMMITTED, True)
    world.advance(3600.0)
    assert (world.state, world.disk.trial, world.disk.floor) == (S.IDLE, False, 2)


# Nothing is left


def test_without_a_way_back_it_is_safe_mode_with_an_alarm_and_no_loop():
    world = device_on_probation()
    world.disk.whole.discard(OLD)
    world.advance(1.0, replace(FINE, crashes=3))
    assert (world.state, world.serving, world.core.row.safe) == (S.SAFE_MODE, "", True)
    done = len(world.commands)
    for _ in range(100):
        world.advance(DAY_S)
    assert len(world.commands) == done
    world.crash_process()
    world.start_process()
    assert (world.state, world.serving) == (S.SAFE_MODE, "")


def test_only_an_assignment_that_proves_itself_leads_out_of_safe_mode():
    world = device_on_probation()
    world.disk.whole.discard(OLD)
    world.advance(1.0, replace(FINE, crashes=3))
    world.assign()
    world.step_worker(InstallFailure.QUARANTINED)
    assert world.state is S.SAFE_MODE
    world.assign()
    world.finish_worker()
    assert (world.state, world.core.row.safe) == (S.PROBATION, True)
    soak_device(world)
    assert (world.state, world.core.row.safe, world.serving) == (S.IDLE, False, world.committed)


def test_a_model_on_trial_that_was_taken_out_of_service_by_others_is_taken_back():
    world = device_on_probation()
    world.serving = OLD  # its family's signers revoked it, and the look for updates has left it
    world.advance(1.0, FINE)
    assert (world.state, world.serving, world.disk.trial) == (S.IDLE, OLD, False)
    assert world.reports[-1].failure is InstallFailure.HEALTH


# Only what the hub has released is kept


def release(world):
    return world.assign(**{name: getattr(world.work, name) for name in ("rollout", "path", "version", "digest")})


def test_what_needs_a_release_stays_on_trial_until_it_comes_and_is_kept_then():
    world = soak_device(device_on_probation(needs_release=True))
    assert (world.state, world.disk.trial) == (S.PROBATION, True)
    assert [status.trial_passed for status in world.reports if status.state is S.PROBATION] == [False, True]
    counter = release(world).counter
    world.advance(1.0, FINE)
    assert (world.state, world.committed, world.disk.trial) == (S.IDLE, world.serving, False)
    assert (world.reports[-1].state, world.reports[-1].counter) == (S.COMMITTED, counter)


def test_a_model_that_is_never_released_goes_back_when_its_assignment_expires_and_is_not_held_against_it():
    world = device_on_probation(needs_release=True)
    world.advance(DAY_S, FINE)
    assert world.state is S.PROBATION
    world.advance(10 * DAY_S, FINE)
    assert (world.state, world.serving, world.committed, world.disk.banned) == (S.IDLE, OLD, OLD, set())
    assert (world.reports[-1].state, world.reports[-1].failure) == (S.ROLLED_BACK, None)
    assert "release" in world.reports[-1].detail


def test_a_release_outlives_a_power_cut_and_one_that_comes_before_the_probation_counts():
    world = SimulatedDevice()
    world.assign(needs_release=True)
    world.step_worker()
    release(world)
    assert (world.state, len(world.reports)) == (S.DOWNLOADING, 2), "it goes on, and nothing is fetched again"
    world.crash_process()
    world.start_process()
    world.finish_worker()
    soak_device(world)
    assert (world.state, world.serving) == (S.IDLE, world.committed)
    assert world.committed != OLD


def test_an_idle_device_does_not_keep_a_model_that_never_answered():
    world = device_on_probation(soak_s=60.0, max_soak_s=3600.0)
    world.advance(3599.0, DeviceSignals(starts=1))
    assert world.state is S.PROBATION
    world.advance(2.0, DeviceSignals(starts=1))
    assert (world.state, world.serving, world.disk.banned) == (S.IDLE, OLD, set())
    assert (world.reports[-1].state, world.reports[-1].failure) == (S.ROLLED_BACK, None)
    assert "no answer" in world.reports[-1].detail


def test_an_assignment_of_another_rollout_or_bundle_releases_nothing():
    world = soak_device(device_on_probation(needs_release=True))
    first = world.work
    for change in ({"rollout": "other"}, {"digest": "f" * 64}, {"needs_release": True}):
        named = {name: getattr(first, name) for name in ("rollout", "path", "version", "digest")}
        world.assign(**{**named, **change})
        world.advance(1.0, FINE)
        assert (world.state, world.core.row.work) == (S.PROBATION, first)
