"""Devices of a rollout: those that leave, those that only went quiet, and failures that a person has seen."""

from itertools import count

import pytest

from cloud_hub.rollout.types import DeviceGoal, RolloutDeviceState, RolloutState
from policies.rollout_rules.gate import GateOutcome, GateResult
from tests.cloud_hub.doubles.rollout_bench import NEW, OLD, Bench
from wire.protocol.rollout import InstallFailure, InstallState

S = RolloutState
D = RolloutDeviceState


def leave(bench, devices):
    present = frozenset(bench.devices) - frozenset(devices)
    for device in devices:
        bench.devices[device].online = False
    bench.do(lambda core: core.on_members(present, bench.now))


@pytest.mark.further
def test_five_of_a_first_wave_of_ten_are_revoked_and_the_rollout_goes_on_with_the_others():
    bench = Bench(1000)
    gone = bench.plan.waves[0][:5]
    for device in gone:
        bench.devices[device].online = False
    bench.to(S.RUNNING)
    bench.step()
    leave(bench, gone)
    assert bench.core.fleet.counts_of_wave(0).left == 5
    assert bench.run() is S.COMPLETED
    assert (bench.core.fleet.succeeded_count, bench.core.fleet.states[D.LEFT]) == (995, 5)
    assert bench.core.head.changed_ms - bench.core.plan.made_ms < 3_600_000


@pytest.mark.further
def test_a_device_that_was_moved_is_called_back_and_nothing_it_did_before_is_forgotten():
    bench = Bench(200)
    bench.to(S.EVALUATING)
    first, second = bench.plan.waves[0]
    bench.do(lambda core: core.on_members(frozenset(bench.devices) - {first}, bench.now))
    assert (bench.now, first, DeviceGoal.WITHDRAWN) in bench.told
    assert bench.run() is S.COMPLETED
    assert (bench.devices[first].runs, bench.devices[second].runs) == (OLD, NEW)
    assert bench.core.fleet.rows[first].state is D.LEFT
    failed = Bench(200)
    failed.breaks(failed.plan.waves[1][:1])
    failed.run(until={S.PAUSED_MANUAL})
    leave(failed, failed.plan.waves[1][:1])
    assert failed.core.fleet.rows[failed.plan.waves[1][0]].state is D.ROLLED_BACK, (
        "a failure says something of the version"
    )


@pytest.mark.further
def test_who_comes_back_while_its_wave_lasts_gets_the_version_and_later_it_does_not():
    bench = Bench(200)
    back, late = bench.plan.waves[3][:2]
    leave(bench, [back, late])
    bench.run(until={S.RUNNING})
    while bench.core.head.wave < 3:
        bench.step()
    bench.devices[back].online = True
    bench.do(lambda core: core.on_members(frozenset(bench.devices) - {late}, bench.now))
    assert bench.run() is S.COMPLETED
    assert (bench.devices[back].runs, bench.devices[late].runs) == (NEW, OLD)


def test_a_wave_that_all_its_devices_left_proves_nothing():
    bench = Bench(200)
    bench.to(S.RUNNING)
    leave(bench, bench.plan.waves[0])
    bench.to(S.PAUSED_INCONCLUSIVE)
    assert "no device of wave 1 is left" in bench.core.head.why
    assert bench.run() is S.ABORTED
    assert not bench.released


def test_a_last_wave_that_nobody_is_left_for_ends_the_rollout():
    bench = Bench(200)
    leave(bench, bench.plan.waves[3])
    assert bench.run() is S.COMPLETED
    assert {state: n for state, n in bench.core.fleet.states.items() if n} == {D.SUCCEEDED: 100, D.LEFT: 100}


@pytest.mark.further
def test_one_failure_of_ten_waits_for_a_person_who_excuses_just_that_one():
    bench = Bench(1000)
    bench.breaks(bench.plan.waves[0][:1], InstallState.FAILED, InstallFailure.DISK)
    bench.to(S.PAUSED_MANUAL)
    assert "9 of 10 succeeded" in bench.core.head.why
    bench.run(3000.0, step=100.0)
    assert bench.core.state is S.PAUSED_MANUAL, "it does not abort by itself"
    bench.do(lambda core: core.resume("ann", bench.now))
    assert bench.run() is S.COMPLETED
    assert bench.core.fleet.succeeded_count == 999


def test_another_failure_after_the_excused_one_counts_again():
    bench = Bench(1000)
    first, second = bench.plan.waves[0][:2]
    bench.breaks([first], InstallState.FAILED, InstallFailure.DISK)
    bench.devices[second].takes_s = 500.0
    bench.to(S.PAUSED_MANUAL)
    bench.do(lambda core: core.resume("ann", bench.now))
    bench.breaks([second], InstallState.FAILED, InstallFailure.DISK)
    bench.say(second, InstallState.FAILED, InstallFailure.DISK)
    bench.to(S.PAUSED_MANUAL)
    assert "8 of 9 succeeded" in bench.core.head.why


@pytest.mark.parametrize("report_s", [10.0, 300.0])
def test_no_two_looks_are_closer_than_the_devices_report(report_s):
    audits = count()
    bench = Bench(3, soak_first_s=1.0, soak_s=1.0, look_s=1.0, report_s=report_s)
    bench.core._judge = bench.judge = lambda *_: _unsure(next(audits))
    bench.to(S.SOAKING)
    began = bench.now
    bench.core._judge = lambda *_: _unsure(0)
    assert bench.run(step=1.0) is S.ABORTED
    assert bench.now - began >= 3 * report_s


def _unsure(audits):
    return GateResult(GateOutcome.INCONCLUSIVE, "too few", audits=audits)


def test_a_fleet_of_one_whose_device_left_is_no_success():
    bench = Bench(1)
    leave(bench, bench.plan.waves[0])
    bench.to(S.PAUSED_INCONCLUSIVE)
    assert bench.run() is S.ABORTED
