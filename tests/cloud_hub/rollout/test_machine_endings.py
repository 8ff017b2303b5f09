"""Endings of a rollout: completion, abort, revert, timeouts and late reports."""

from typing import Any

import pytest
from msgspec.structs import replace

from cloud_hub.rollout.machine import RolloutCore
from cloud_hub.rollout.planning import RolloutOrder, build_plan
from cloud_hub.rollout.types import DeviceGoal, RolloutError, RolloutState
from cloud_hub.rollout.view import build_view
from policies.rollout_rules.gate import GateOutcome, GateResult
from tests.cloud_hub.doubles.rollout_bench import COMMITTED, FAIL, HOLD, NEW, OLD, PASS, UNSURE, Bench, members
from wire.protocol.rollout import InstallFailure, InstallState

S = RolloutState


def test_a_wave_that_nothing_could_be_concluded_of_ends_in_an_abort_when_its_time_is_up():
    bench = Bench(1, UNSURE, soak_first_s=3000.0)
    bench.to(S.PAUSED_INCONCLUSIVE)
    began_s = bench.core.head.wave_ms / 1000
    assert bench.run(step=10.0) is S.ABORTED
    assert "the wave's time was up before anything could be concluded: too few" in bench.core.head.why
    assert 7200.0 <= bench.now - began_s < 7500.0


def test_a_way_back_ends_with_the_number_of_devices_that_did_not_answer():
    bench = Bench(20, order=RolloutOrder("digits", NEW, back=OLD, permit="permits/digits/1.json", id="r1"))
    bench.to(S.SOAKING)
    bench.core._judge = FAIL
    for device in bench.devices.values():
        device.online = False
    assert bench.run(until={S.REVERTING}) is S.REVERTING
    assert bench.run() is S.REVERTED
    assert bench.core.head.why.startswith("1 devices did not answer; ")


def test_one_that_is_paused_before_its_first_wave_assigns_nothing_until_it_is_resumed():
    bench = Bench(20)
    bench.to(S.READY)
    bench.do(lambda core: core.pause("ann", "lunch", bench.now))
    assert (bench.core.state, bench.core.head.wave) == (S.PAUSED_MANUAL, 0)
    bench.run(600.0, until=set())
    assert bench.candidates == []
    bench.do(lambda core: core.resume("ann", bench.now))
    assert bench.run() is S.COMPLETED


def test_an_abort_while_a_wave_is_told_wins_and_nobody_new_is_told_after_it():
    bench = Bench(1000)
    bench.to(S.SOAKING)
    bench.run(until={S.RUNNING})
    bench.step()
    assert 10 < len(bench.candidates) < 100
    told, at = len(bench.candidates), bench.now
    bench.do(lambda core: core.abort("ann", "smells", bench.now))
    withdrawn = {device for when, device, goal in bench.told if goal is DeviceGoal.WITHDRAWN and when == at}
    assert withdrawn >= {row.device for row in bench.core.fleet.open_rows()}
    assert bench.run() is S.ABORTED
    assert len(bench.candidates) == told
    assert bench.core.head.why == "smells"


@pytest.mark.parametrize("state", [S.RUNNING, S.SOAKING, S.EVALUATING, S.PAUSED_INCONCLUSIVE, S.PAUSED_MANUAL])
def test_an_abort_beats_every_state(state):
    bench = Bench(200, UNSURE if state is S.PAUSED_INCONCLUSIVE else PASS)
    bench.to(S.RUNNING if state is S.PAUSED_MANUAL else state)
    if state is S.PAUSED_MANUAL:
        bench.do(lambda core: core.pause("ann", "look", bench.now))
    bench.do(lambda core: core.abort("ann", "no", bench.now))
    assert bench.core.state is S.ABORTING
    for wish in (lambda core: core.pause("ann", "", bench.now), lambda core: core.resume("ann", bench.now)):
        with pytest.raises(RolloutError):
            bench.do(wish)
    assert bench.run() is S.ABORTED


def test_before_it_has_begun_an_abort_denies_it():
    bench = Bench(200)
    bench.tick()
    bench.do(lambda core: core.abort("ann", "typo", bench.now))
    assert bench.core.state is S.DENIED
    assert bench.told == []


def test_what_cannot_be_carried_out_is_denied():
    bench = Bench(200)
    bench.tick()
    bench.do(lambda core: core.on_validated("digits@2 is not published", bench.now))
    assert bench.core.state is S.DENIED


@pytest.mark.parametrize(("judge", "state"), [(PASS, S.COMPLETED), (UNSURE, S.ABORTED)])
def test_terminal_states_never_open_again(judge, state):
    bench = Bench(20, judge)
    assert bench.run() is state
    for wish in (
        lambda core: core.abort("ann", "", bench.now),
        lambda core: core.pause("ann", "", bench.now),
        lambda core: core.resume("ann", bench.now),
    ):
        with pytest.raises(RolloutError):
            bench.do(wish)
    for device in bench.devices:
        if bench.devices[device].holds:
            bench.say(device, InstallState.FAILED, InstallFailure.HEALTH)
    bench.run(10_000.0, until=set(), step=500.0)
    assert bench.core.state is state


def test_an_abort_under_a_permit_brings_back_also_those_who_had_committed():
    bench = Bench(200, order=RolloutOrder("digits", NEW, back=OLD, permit="permits/digits/1.json", id="r1"))
    bench.to(S.SOAKING)
    bench.core._judge = FAIL
    assert bench.run() is S.REVERTED
    assert all(device.runs == OLD for device in bench.devices.values())
    assert [goal for _, _, goal in bench.told].count(DeviceGoal.BACK) == 2
    back = bench.devices[bench.plan.waves[0][0]]
    assert back.holds.version == OLD.version
    assert back.holds.counter == max(back.contents)


def test_without_a_permit_a_committed_version_stays_and_it_is_said_how_many_have_it():
    bench = Bench(200)
    bench.to(S.EVALUATING)
    bench.to(S.SOAKING)
    bench.core._judge = FAIL
    assert bench.run() is S.ABORTED
    assert bench.core.fleet.succeeded_count == 2  # of the wave that had passed


def test_a_person_with_a_permit_at_hand_takes_it_back_as_well():
    bench = Bench(200)
    bench.to(S.EVALUATING)
    bench.to(S.SOAKING)
    bench.do(lambda core: core.abort("ann", "undo", bench.now, revert=True))
    assert bench.run() is S.REVERTED
    assert all(device.runs == OLD for device in bench.devices.values())


def test_who_commits_a_version_after_it_was_called_back_raises_an_alarm():
    bench = Bench(200)
    for device in bench.devices.values():
        device.takes_s = 600.0
    bench.to(S.RUNNING)
    bench.step()
    late = bench.devices[bench.plan.waves[0][0]]
    old_word = late.holds
    bench.do(lambda core: core.abort("ann", "no", bench.now))
    late.online = False
    assert bench.run() is S.ABORTED
    late.online, late.holds, late.runs = True, old_word, NEW
    bench.say(late.name, COMMITTED)
    assert bench.alarms[-1] == f"{late.name} has committed a version that was called back"


@pytest.mark.parametrize("value", ["abc", None, -1, 101])
def test_damaged_parameters_of_a_rollout_that_runs_pause_it_and_only_an_abort_leads_on(value):
    bench = Bench(200)
    bench.to(S.RUNNING)
    bench.step()
    record = bench.store.read_record("r1")
    record.plan = replace(record.plan, rules=record.plan.rules | {"success_share": value})
    core: Any = RolloutCore(record, PASS, bench.now)
    core.on_tick(bench.now)
    assert core.state is S.PAUSED_MANUAL
    with pytest.raises(RolloutError, match="damaged"):
        core.resume("ann", bench.now)
    assert core.on_tick(bench.now + 60) == []
    core.abort("ann", "start anew", bench.now)
    assert str(core.state) == "aborting"


def test_what_nobody_could_roll_out_is_refused_when_it_is_made():
    fleet = members(200)
    order = RolloutOrder("digits", NEW, back=OLD)
    for wrong, words in (
        ({"to": "class=robot"}, "no device"),
        ({"to": "nonsense"}, "nonsense"),
        ({"rules": {"success_share": "abc"}}, "success_share"),
        ({"rules": {"waves": ["50%", "100%"]}}, "at most 2"),
        ({"id": "No/Id"}, "id"),
        ({"target": OLD, "back": NEW}, "permit"),
    ):
        with pytest.raises(RolloutError, match=words):
            build_plan(replace(order, **wrong), fleet, "ann", 0)


def test_a_look_costs_the_same_however_many_reports_came_before():
    """A report touches its own row and the sums of its wave, nothing else."""
    bench = Bench(200)
    bench.to(S.RUNNING)
    bench.step()
    device = bench.plan.waves[0][0]
    bench.core.take_changes()
    bench.core.on_report(device, bench.devices[device].report(InstallState.DOWNLOADING), bench.now)
    assert list(bench.core.fleet.changed) == [device]


def test_the_view_says_what_people_need():
    bench = Bench(200, lambda *_: GateResult(GateOutcome.PASS, "no worse", bound=0.02))
    bench.to(S.SOAKING)
    seen: Any = build_view(bench.core)
    assert (seen.state, seen.wave, seen.exposed, seen.controls) == (S.SOAKING, 1, 2, 2)
    assert seen.waves[0].proven == seen.waves[0].needed == 2
    assert round(seen.excluded_above, 2) == 0.78  # two results exclude hardly anything
    assert seen.gate.bound == 0.02
    assert seen.ends_ms == bench.core.head.soak_ms + 120_000


def partial(bench):
    for device in bench.devices.values():
        device.online = device.name in bench.plan.waves[0][:1]
    bench.run()


def held(bench):
    bench.core._judge = HOLD
    bench.to(S.PAUSED_INCONCLUSIVE)


@pytest.mark.parametrize(
    "end",
    [
        partial,
        held,
        lambda bench: bench.do(lambda core: core.abort("ann", "stop", bench.now)),
        lambda bench: bench.run(),
    ],
    ids=["partial", "held", "aborted", "completed"],
)
def test_every_assignment_of_a_rollout_is_of_the_time_when_it_was_made(end):
    bench = Bench(20)
    began_ms = bench.ms
    bench.to(S.RUNNING)
    bench.step()
    end(bench)
    told = [row.told_ms for row in bench.core.fleet.rows.values() if row.goal is not DeviceGoal.NONE]
    assert told
    assert all(began_ms <= each <= bench.ms for each in told)


def test_a_hold_withdraws_the_candidates_and_leaves_their_controls():
    bench = Bench(200)
    bench.to(S.SOAKING)
    controls = {device for _, device, goal in bench.told if goal is DeviceGoal.CONTROL}
    held(bench)
    goals = {row.device: row.goal for row in bench.core.fleet.rows.values()}
    assert controls
    assert {goals[device] for device in controls} == {DeviceGoal.CONTROL}
    assert {goals[device] for device in bench.plan.waves[0]} == {DeviceGoal.WITHDRAWN}
