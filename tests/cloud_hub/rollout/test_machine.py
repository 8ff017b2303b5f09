"""The rollout state machine: waves, rates, gates, pauses and reports."""

from itertools import count

import pytest
from msgspec.structs import replace

from cloud_hub.rollout.planning import RolloutOrder
from cloud_hub.rollout.types import DeviceGoal, RolloutDeviceState, RolloutState
from policies.rollout_rules.gate import GateOutcome
from tests.cloud_hub.doubles.rollout_bench import COMMITTED, FAIL, HOLD, NEW, OLD, PASS, QUICK, UNSURE, Bench, says
from tests.examples import further
from wire.protocol.rollout import InstallFailure, InstallState, RolloutCohort

S = RolloutState
_SUCCEEDED = RolloutDeviceState.SUCCEEDED


def test_a_sound_version_reaches_the_fleet_wave_by_wave():
    bench = Bench(200)
    exposed = []
    while bench.core.state is not S.COMPLETED:
        bench.step()
        if bench.core.state is S.SOAKING and bench.core.fleet.exposed not in exposed:
            exposed.append(bench.core.fleet.exposed)
    assert exposed == [2, 20, 100, 200]
    assert all(device.runs == NEW for device in bench.devices.values())
    assert bench.core.fleet.states[RolloutDeviceState.SUCCEEDED] == 200
    assert bench.states[:4] == ["draft", "validating", "ready", "running"]
    assert bench.states[-1] == "completed"


def test_a_version_that_answers_worse_is_stopped_in_its_first_wave_and_called_back():
    bench = Bench(200)
    bench.to(S.RUNNING)
    bench.step()
    bench.core._judge = FAIL
    for device in bench.devices.values():
        device.takes_s = 600.0  # probation is still under way when the gate sees it
    assert bench.run() is S.ABORTED
    assert len(bench.candidates) == 2
    assert all(device.runs == OLD for device in bench.devices.values())
    assert bench.alarms == ["worse"]


@pytest.mark.further
def test_each_wave_has_as_many_controls_of_devices_that_were_not_told():
    bench = Bench(200)
    bench.to(S.SOAKING)
    controls = {device for _, device, goal in bench.told if goal is DeviceGoal.CONTROL}
    assert len(controls) == len(bench.candidates) == 2
    assert not controls & set(bench.candidates)
    words = [bench.devices[device].holds for device in controls]
    assert {(word.cohort, word.version) for word in words} == {(RolloutCohort.CONTROL, OLD.version)}
    assert bench.run() is S.COMPLETED


def test_the_gate_is_shown_every_candidate_and_control_of_the_present_wave_also_those_that_say_nothing():
    shown = []

    def judge(canary, control, rules):
        shown.append((len(canary), len(control), sum(each.signals is None for each in canary)))
        return PASS(canary, control, rules)

    bench = Bench(200, judge)
    bench.to(S.RUNNING)
    for device in bench.devices.values():
        device.online = device.name not in bench.plan.waves[0][:1]
    bench.run(until={S.EVALUATING}, seconds=600)
    assert shown[-1] == (2, 2, 1)


def test_a_candidate_that_went_back_without_a_failure_is_not_shown_to_the_gate():
    shown = []

    def judge(canary, control, rules):
        shown.append([each.device for each in canary])
        return UNSURE(canary, control, rules)

    bench = Bench(200, judge)
    first, second = bench.plan.waves[0]
    bench.to(S.SOAKING)
    bench.say(first, InstallState.ROLLED_BACK)
    bench.run(300.0, until={S.PAUSED_INCONCLUSIVE})
    assert shown[-1] == [second]


@pytest.mark.further
def test_the_last_wave_and_a_fleet_of_one_are_judged_by_their_audits_alone():
    looks = {}

    def judge(canary, control, rules):
        looks[len(canary)] = control
        return PASS(canary, control, rules)

    assert Bench(200, judge).run() is S.COMPLETED
    assert looks[100] is None, "nobody is left to be a control"
    looks.clear()
    assert Bench(1, judge).run() is S.COMPLETED
    assert looks[1] is None


@pytest.mark.parametrize("size", [1, 3, further(200)])
def test_a_worse_version_is_committed_by_no_device_of_any_fleet_in_any_wave(size):
    for bad_from in range(len(Bench(size).plan.waves)):
        bench = Bench(size)
        while bench.core.head.wave < bad_from or bench.core.state is not S.SOAKING:
            bench.step()
        bench.judge = bench.core._judge = UNSURE if size == 1 else FAIL
        bad = set(bench.plan.waves[bad_from])
        assert bench.run() is S.ABORTED
        assert not {row.device for row in bench.core.fleet.rows.values() if row.state is _SUCCEEDED} & bad
        assert all(bench.devices[device].runs == OLD for device in bad)


def test_nothing_is_committed_before_its_wave_has_passed_and_everything_then():
    bench = Bench(200)
    bench.to(S.EVALUATING)
    assert (bench.core.fleet.succeeded_count, bench.core.fleet.counts_of_wave(0).proven) == (0, 2)
    bench.run(60.0)
    assert (bench.core.head.wave, bench.core.fleet.succeeded_count) == (1, 2)
    assert {device for _, device, _ in bench.released} == set(bench.plan.waves[0])


def test_no_evidence_waits_for_a_person_who_may_answer_for_it_and_not_for_evidence_of_harm():
    bench = Bench(1, UNSURE)
    bench.to(S.PAUSED_INCONCLUSIVE)
    assert not bench.released
    bench.core._judge = HOLD
    bench.do(lambda core: core.resume("ann", bench.now, accept=True))
    bench.to(S.PAUSED_INCONCLUSIVE)
    assert not bench.released
    bench.core._judge = UNSURE
    bench.do(lambda core: core.resume("ann", bench.now))
    bench.to(S.PAUSED_INCONCLUSIVE)
    bench = Bench(1, UNSURE)
    bench.to(S.PAUSED_INCONCLUSIVE)
    bench.do(lambda core: core.resume("ann", bench.now, accept=True))
    assert bench.run() is S.COMPLETED
    assert "accepted without evidence" in [entry.why for entry in bench.store.read_history("r1")]


def test_a_rollout_that_was_held_for_likely_harm_is_held_no_more_once_it_is_resumed():
    bench = Bench(20, HOLD)
    bench.to(S.PAUSED_INCONCLUSIVE)
    assert bench.core.head.held
    bench.core._judge = PASS
    bench.do(lambda core: core.resume("ann", bench.now))
    assert (bench.core.state, bench.core.head.held) == (S.RUNNING, False)
    assert bench.run() is S.COMPLETED


def test_a_new_wave_begins_without_the_finding_of_the_one_before():
    bench = Bench(200)
    bench.to(S.EVALUATING)
    bench.run(until={S.RUNNING})
    assert (bench.core.head.wave, bench.core.gate) == (1, None)


def test_a_soak_goes_on_while_audits_still_come():
    audits = count(1)
    bench = Bench(1, lambda *_: replace(UNSURE(*_), audits=next(audits)), max_soak_s=7200.0)
    bench.to(S.SOAKING)
    bench.run(1000.0, until=set())
    assert bench.core.state is S.SOAKING
    bench.core._judge = UNSURE
    bench.to(S.PAUSED_INCONCLUSIVE, 300.0)


def test_a_released_device_that_does_not_say_that_it_committed_runs_out_of_time():
    bench = Bench(1)
    bench.to(S.EVALUATING)
    (device,) = bench.devices.values()
    device.online = False
    bench.step()
    assert bench.released
    assert bench.run(step=60.0) in {S.ABORTED, S.COMPLETED, S.PAUSED_MANUAL}
    (row,) = bench.core.fleet.rows.values()
    assert row.state is not RolloutDeviceState.IN_PROGRESS


def test_a_released_device_has_the_time_of_a_probation_from_its_release_on_to_say_that_it_committed():
    bench = Bench(1, in_progress_s=100.0, probation_s=60.0, max_soak_s=300.0, download_s=7000.0)
    bench.to(S.EVALUATING)
    (device,) = bench.devices.values()
    device.online = False
    bench.step()
    assert bench.released
    assert bench.core.fleet.due_at == bench.now + 400.0
    bench.core.fleet.expire_due(bench.ms + 399_999)
    assert bench.core.fleet.states[RolloutDeviceState.TIMED_OUT] == 0
    bench.core.fleet.expire_due(bench.ms + 400_000)
    assert bench.core.fleet.states[RolloutDeviceState.TIMED_OUT] == 1


def test_a_device_that_is_queued_again_after_a_hold_has_no_assignment_left():
    bench = Bench(200)
    for device in bench.devices.values():
        device.takes_s = 6000.0
    bench.to(S.RUNNING)
    bench.step()
    (name, *_) = bench.plan.waves[0]
    bench.core._judge = HOLD
    bench.to(S.PAUSED_INCONCLUSIVE)
    bench.core._judge = PASS
    bench.do(lambda core: core.resume("ann", bench.now))
    row = bench.core.fleet.rows[name]
    assert (row.state, row.goal, row.base, row.trial_passed) == (
        RolloutDeviceState.QUEUED, DeviceGoal.NONE, 0, False,
    )  # fmt: skip


def test_a_release_that_was_lost_with_the_hub_is_sent_again():
    bench = Bench(1)
    bench.to(S.EVALUATING)
    bench.now += 5.0
    bench.tick("after")  # the hub dies between writing the release and sending it
    assert not bench.released
    assert bench.run() is S.COMPLETED
    assert bench.devices["acme--d00000"].runs == NEW


def test_a_rollout_with_nothing_to_compare_with_rests_on_reports_alone():
    bench = Bench(20, FAIL, RolloutOrder("digits", NEW, id="r1"))
    assert bench.run() is S.COMPLETED
    assert not [goal for _, _, goal in bench.told if goal is DeviceGoal.CONTROL]


@pytest.mark.parametrize("why", ["no metrics", "NaN", "a gauge that does not move", "1 of 20 devices reported"])
def test_an_inconclusive_gate_pauses_and_the_third_in_a_row_aborts(why):
    bench = Bench(200, says(GateOutcome.INCONCLUSIVE, why))
    bench.to(S.PAUSED_INCONCLUSIVE)
    told = len(bench.candidates)
    assert bench.run() is S.ABORTED
    assert len(bench.candidates) == told == 2
    assert bench.states.count("paused_inconclusive") == 2
    assert bench.core.head.why == f"inconclusive 3 times in a row: {why}"


def test_a_gate_that_has_made_up_its_mind_starts_counting_anew():
    bench = Bench(200, UNSURE)
    bench.to(S.PAUSED_INCONCLUSIVE)
    bench.core._judge = PASS
    bench.to(S.RUNNING)
    assert bench.core.head.wave == 1
    assert bench.core.head.inconclusive == 0


@pytest.mark.further
def test_likely_harm_that_a_few_could_have_invented_calls_back_but_neither_aborts_nor_goes_on():
    bench = Bench(200)
    for device in bench.devices.values():
        device.takes_s = 600.0
    bench.to(S.RUNNING)
    bench.step()
    bench.core._judge = HOLD
    bench.to(S.PAUSED_INCONCLUSIVE)
    bench.run(3000.0, step=20.0)
    assert bench.core.state is S.PAUSED_INCONCLUSIVE  # nothing new can be learnt: people have to look
    assert all(device.runs == OLD for device in bench.devices.values())
    assert bench.alarms == ["likely harm"]
    bench.core._judge = PASS
    before = {name: dict(bench.devices[name].contents) for name in bench.plan.waves[0]}
    bench.do(lambda core: core.resume("ann", bench.now))
    assert bench.run() is S.COMPLETED
    for name, said in before.items():
        assert max(bench.devices[name].contents) > max(said)  # told once more, under a counter of its own


def test_likely_harm_while_people_have_paused_it_calls_back_as_well():
    bench = Bench(200)
    for device in bench.devices.values():
        device.takes_s = 6000.0
    bench.to(S.RUNNING)
    bench.step()
    bench.do(lambda core: core.pause("ann", "lunch", bench.now))
    bench.core._judge = HOLD
    bench.run(60.0)
    assert bench.core.state is S.PAUSED_MANUAL
    assert bench.core.head.held
    assert not bench.core.fleet.open_rows()


def test_likely_harm_while_nothing_could_be_concluded_calls_back_as_well():
    bench = Bench(200, UNSURE)
    bench.to(S.PAUSED_INCONCLUSIVE)
    bench.core._judge = HOLD
    bench.run(60.0)
    assert bench.core.state is S.PAUSED_INCONCLUSIVE
    assert bench.core.head.held
    assert not bench.core.fleet.open_rows()


@pytest.mark.further
def test_paused_as_soon_as_it_was_started_it_tells_nobody_before_it_is_resumed():
    bench = Bench(200)
    bench.to(S.READY)
    bench.do(lambda core: core.pause("ann", "not yet", bench.now))
    bench.run(300.0)
    assert (bench.core.state, len(bench.candidates)) == (S.PAUSED_MANUAL, 0)
    bench.do(lambda core: core.resume("ann", bench.now))
    assert bench.run() is S.COMPLETED


def test_failures_abort_at_once_and_a_single_one_of_the_only_device_too():
    bench = Bench(200)
    bench.breaks(bench.plan.waves[0])
    assert bench.run() is S.ABORTED
    assert "did not stay up on 2 devices" in bench.core.head.why
    one = Bench(20)
    one.breaks(one.plan.waves[0])
    assert one.run() is S.ABORTED
    assert len(one.candidates) == 1


@pytest.mark.further
def test_a_failure_of_integrity_pauses_until_a_person_lets_it_pass():
    bench = Bench(200)
    bench.breaks(bench.plan.waves[1][:1], InstallState.FAILED, InstallFailure.INTEGRITY)
    bench.to(S.PAUSED_MANUAL)
    told = len(bench.candidates)
    bench.run(300.0)
    assert len(bench.candidates) == told
    bench.do(lambda core: core.resume("ann", bench.now))
    bench.run(400.0)
    assert bench.core.state is not S.PAUSED_MANUAL
    two = Bench(200)
    two.breaks(two.plan.waves[1][:2], InstallState.FAILED, InstallFailure.INTEGRITY)
    assert two.run() in {S.ABORTED, S.PAUSED_MANUAL}


def test_a_failure_that_only_pauses_does_not_pause_again_what_is_paused():
    bench = Bench(200)
    bench.breaks(bench.plan.waves[1][:1], InstallState.FAILED, InstallFailure.INTEGRITY)
    bench.to(S.PAUSED_MANUAL)
    alarms, head = list(bench.alarms), bench.core.head
    bench.say(bench.plan.waves[1][0], InstallState.FAILED, InstallFailure.INTEGRITY)
    bench.tick()
    assert (bench.alarms, bench.core.head.state, bench.core.head.why) == (alarms, head.state, head.why)


@pytest.mark.further
def test_devices_that_cannot_run_it_are_left_out_but_many_of_them_pause():
    few = Bench(1000)
    few.breaks(few.plan.waves[1][:4], InstallState.REJECTED, InstallFailure.INCOMPATIBLE)
    assert few.run() is S.COMPLETED
    many = Bench(1000)
    many.breaks(many.plan.waves[1][:8], InstallState.REJECTED, InstallFailure.INCOMPATIBLE)
    assert many.run(until={S.PAUSED_MANUAL, S.COMPLETED}) is S.PAUSED_MANUAL


def test_failed_after_succeeded_moves_the_counters_and_the_wave_is_judged_again():
    bench = Bench(200)
    bench.to(S.EVALUATING)
    bench.run(30.0)
    first, second = bench.plan.waves[0]
    assert bench.core.fleet.counts_of_wave(0).succeeded == 2
    bench.say(first, InstallState.FAILED, InstallFailure.HEALTH)
    assert bench.core.fleet.counts_of_wave(0)[3:5] == (1, 1)
    bench.say(second, InstallState.SAFE_MODE, InstallFailure.HEALTH)
    bench.tick()
    assert bench.core.state is S.ABORTING


def test_a_failure_after_its_wave_had_passed_still_counts():
    bench = Bench(200)
    bench.to(S.SOAKING)
    bench.run(200.0, {S.RUNNING})
    bench.run(200.0, {S.SOAKING})
    assert bench.core.head.wave == 1
    for device in bench.plan.waves[0]:
        bench.say(device, InstallState.SAFE_MODE, InstallFailure.HEALTH)
    bench.tick()
    assert bench.core.state is S.ABORTING


def test_an_old_success_that_is_said_again_changes_nothing():
    bench = Bench(200)
    bench.to(S.RUNNING)
    bench.step()
    device = bench.plan.waves[0][0]
    box = bench.devices[device]
    box.runs = NEW
    success = box.report(COMMITTED)
    box.runs = OLD
    rolled_back = box.report(InstallState.ROLLED_BACK, InstallFailure.SELF_TEST)
    bench.hear(device, rolled_back)
    bench.hear(device, success)
    assert bench.core.fleet.rows[device].state is RolloutDeviceState.ROLLED_BACK


@pytest.mark.parametrize(
    "lie", [{"running": OLD.digest}, {"running": ""}, {"version": 3}, {"counter": 7}, {"counter": 10**9}, {"seq": 0}]
)
def test_a_success_is_only_believed_with_the_right_bytes_counter_and_seq(lie):
    bench = Bench(200)
    bench.to(S.RUNNING)
    bench.step()
    device = bench.plan.waves[0][0]
    bench.devices[device].runs = NEW
    bench.say(device, COMMITTED, **lie)
    assert bench.core.fleet.counts_of_wave(0).succeeded == 0


def test_a_device_cannot_report_for_another_nor_one_outside_for_the_rollout():
    bench = Bench(200)
    bench.to(S.RUNNING)
    bench.step()
    mine, other = bench.plan.waves[0]
    bench.devices[mine].runs = NEW
    report = bench.devices[mine].report(COMMITTED)
    bench.hear("acme--stranger", report)
    bench.hear(bench.plan.waves[3][0], report)
    bench.hear(other, replace(report, counter=0))
    assert bench.core.fleet.states[RolloutDeviceState.SUCCEEDED] == 0


def test_with_most_of_a_wave_offline_it_does_not_advance_and_is_partial_after_its_time():
    bench = Bench(1000)
    dark = bench.plan.waves[1][:54]  # of 90
    for device in dark:
        bench.devices[device].online = False
    for device in bench.plan.waves[1][54:72]:
        bench.devices[device].takes_s = 10_000.0  # ... and half of the rest never get ready
    bench.run(until={S.COMPLETED_PARTIAL}, step=20.0)
    assert bench.core.state is S.COMPLETED_PARTIAL
    assert bench.core.head.wave == 1
    assert len(bench.candidates) == 100
    waited = bench.core.head.changed_ms - bench.core.head.wave_ms
    assert waited >= QUICK["wave_deadline_s"] * 1000


@pytest.mark.further
def test_who_was_offline_is_told_when_it_comes_and_counts_as_unreached_until_then():
    bench = Bench(200)
    late = bench.plan.waves[3][0]
    bench.devices[late].online = False
    assert bench.run(step=20.0) is S.COMPLETED_PARTIAL
    assert bench.core.fleet.states[RolloutDeviceState.UNREACHED] == 1
    box = bench.devices[late]
    box.online = True
    box.hear(bench.core.assignment_for(late), bench.now)
    for _ in range(10):
        bench.step()
    assert box.runs == NEW
    assert bench.core.fleet.states[RolloutDeviceState.UNREACHED] == 0
    assert bench.core.state is S.COMPLETED_PARTIAL  # what is known grows; what has ended stays so


@pytest.mark.further
def test_who_does_not_get_ready_in_time_has_failed_until_it_says_otherwise():
    bench = Bench(200, in_progress_s=300.0, download_s=300.0)
    slow = bench.plan.waves[1][0]
    bench.devices[slow].takes_s = 1000.0
    bench.run(until={S.COMPLETED, S.ABORTED, S.PAUSED_INCONCLUSIVE}, step=20.0)
    assert bench.core.fleet.rows[slow].state is RolloutDeviceState.TIMED_OUT
    bench.run(2000.0, until=set(), step=20.0)
    assert bench.core.fleet.rows[slow].state is RolloutDeviceState.SUCCEEDED
