"""The rollout database: crashes around every write, two hubs at once, clocks and assignment counters."""

import itertools
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from sqlalchemy.exc import IntegrityError

from cloud_hub.database.connection import IN_MEMORY
from cloud_hub.rollout.machine import RolloutCore
from cloud_hub.rollout.planning import RolloutOrder, build_plan, build_record
from cloud_hub.rollout.store import RolloutStore, raise_counters
from cloud_hub.rollout.types import TERMINAL, Assign, DeviceGoal, RolloutDeviceState, RolloutError, RolloutState
from models.update.assignments import HeldAssignment, check_assignment
from tests.cloud_hub.doubles.rollout_bench import BEGIN_S, FAIL, HOLD, NEW, OLD, PASS, QUICK, UNSURE, Bench, members
from tests.examples import further
from wire.protocol.rollout import InstallState

S = RolloutState


@pytest.fixture
def store(urls):
    opened = RolloutStore.open(urls.rollouts)
    yield opened
    opened.close()


def made(name, count=20, **changes):
    return build_record(
        build_plan(replace(RolloutOrder("digits", NEW, back=OLD, id=name), **changes), members(count), "ann", 0)
    )


@pytest.mark.parametrize("when", ["before", further("after")])
@pytest.mark.parametrize(("judge", "end"), [(PASS, S.COMPLETED), (UNSURE, S.ABORTED), (FAIL, S.ABORTED)])
def test_a_hub_killed_at_each_change_goes_on_and_tells_nobody_two_things(judge, end, when):
    """The hub is killed around every write of a whole rollout; devices check every assignment they get."""
    bench = Bench(20, judge)
    kills = 0
    while bench.core.state not in TERMINAL and kills < 5000:
        bench.now += 5.0
        bench.tick(when)  # this one dies
        kills += 1
        bench.tick()
        for device in bench.devices.values():
            for report in device.step(bench.now):
                bench.hear(device.name, report, when)
                bench.hear(device.name, report)  # it was not acknowledged: the device says it again
    assert bench.core.state is end
    assert bench.deaths > 2
    if end is S.COMPLETED:
        assert all(device.runs == NEW for device in bench.devices.values())
        assert bench.core.fleet.states[RolloutDeviceState.SUCCEEDED] == 20
        for device in bench.devices.values():
            installs = [word for word in device.contents.values() if word.version == NEW.version]
            assert [word.needs_release for word in installs] == [True, False]


@pytest.mark.parametrize("goal", [DeviceGoal.BACK, DeviceGoal.WITHDRAWN])
def test_a_hub_killed_while_it_takes_back_takes_back_all_the_same(goal):
    permit = "permits/digits/1.json" if goal is DeviceGoal.BACK else ""
    bench = Bench(20, order=RolloutOrder("digits", NEW, back=OLD, permit=permit, id="r1"))
    for device in bench.devices.values():
        device.takes_s = 30.0 if goal is DeviceGoal.BACK else 500.0
    bench.to(S.SOAKING if goal is DeviceGoal.BACK else S.RUNNING)
    bench.step()
    bench.judge = bench.core._judge = FAIL
    while bench.core.state not in TERMINAL:
        bench.now += 5.0
        bench.tick("after")
        bench.tick("before")
        bench.step()
    assert bench.core.state is (S.REVERTED if goal is DeviceGoal.BACK else S.ABORTED)
    assert all(device.runs == OLD for device in bench.devices.values())


def test_a_word_that_was_written_but_never_sent_is_sent_by_the_next_process():
    bench = Bench(20)
    bench.to(S.READY)
    bench.tick()
    bench.now += 5
    bench.tick("after")
    assert bench.candidates == []
    assert bench.core.fleet.exposed == 1
    bench.now += 5
    bench.tick()
    assert len(bench.candidates) == 1
    assert bench.devices[bench.candidates[0]].holds == bench.core.assignment_for(bench.candidates[0])


def test_two_hubs_that_decide_at_once_make_one_transition():
    bench = Bench(200)
    bench.to(S.EVALUATING)
    other = RolloutCore(bench.store.read_record("r1"), PASS, bench.now)
    both = [bench.core, other]
    for core in both:
        core.on_tick(bench.now + 1)
        assert core.state is S.RUNNING
        assert core.head.wave == 1
    before = bench.store.read_history("r1")
    assert [bench.store.apply_changes(core.take_changes()) for core in both] == [True, False]
    after = bench.store.read_history("r1")
    assert [entry.what for entry in after[len(before) :]] == ["running"]
    assert bench.store.list_revisions()["r1"] == bench.core.head.revision


@pytest.mark.parametrize("order", list(itertools.permutations(["abort", "promote"])))
def test_case_56_an_abort_here_and_a_promotion_there_end_in_the_abort(order):
    bench = Bench(200)
    bench.to(S.EVALUATING)
    other = RolloutCore(bench.store.read_record("r1"), PASS, bench.now)
    acts = {
        "abort": (bench.core, lambda core: core.abort("ann", "no", bench.now)),
        "promote": (other, lambda core: core.on_tick(bench.now)),
    }
    for name in order:
        core, act = acts[name]
        act(core)
        changes = core.take_changes()
        if changes is not None and not bench.store.apply_changes(changes):
            core = RolloutCore(bench.store.read_record("r1"), PASS, bench.now, core)  # look again, and judge again
            act(core)
            again = core.take_changes()
            assert again is None or bench.store.apply_changes(again)
    bench.pick_up()
    assert bench.core.state in {S.ABORTING, S.ABORTED}
    told = len(bench.candidates)
    assert bench.run() is S.ABORTED
    assert len(bench.candidates) == told


def test_two_hubs_that_take_turns_keep_one_pace_and_come_to_the_end():
    """Two hubs at once: every write of one makes the other read anew."""
    bench = Bench(200, per_minute=20)
    bench.to(S.READY)
    hubs = [RolloutCore(bench.store.read_record("r1"), PASS, bench.now) for _ in range(2)]
    while hubs[0].state not in TERMINAL and bench.now < BEGIN_S + 40_000:
        bench.now += 2.0
        reports = [(box.name, report) for box in bench.devices.values() for report in box.step(bench.now)]
        for number in (0, 1, 0):  # both hear every report
            bench.core = hubs[number]
            commands = bench.core.on_tick(bench.now)
            for name, report in reports:
                commands += bench.core.on_report(name, report, bench.now)
            changes = bench.core.take_changes()
            if changes is None or bench.store.apply_changes(changes):
                bench.obey(commands)
            else:
                hubs[number] = RolloutCore(bench.store.read_record("r1"), PASS, bench.now, hubs[number])
    assert hubs[0].state is S.COMPLETED
    times = [at for at, _, goal in bench.told if goal is DeviceGoal.CANDIDATE]
    assert all(later - first >= 60.0 for first, later in zip(times, times[20:], strict=False))


def _restart_with_unanswered(bench):
    """A hub that restarts while a wave goes on: of each device that it assigned it has heard nothing."""
    bench.to(S.SOAKING)
    bench.run(until={S.RUNNING})
    assigned_before = len(bench.told)
    for device in bench.devices.values():
        device.online = False
    bench.run(150.0, until=set())
    assigned = [device for _, device, goal in bench.told[assigned_before:] if goal is DeviceGoal.CANDIDATE]
    bench.pick_up()
    bench.told.clear()
    return assigned


def test_after_a_restart_devices_that_answer_before_their_turn_are_not_assigned_again():
    bench = Bench(200, per_minute=10, most_per_minute=10)
    assigned = _restart_with_unanswered(bench)
    answering, silent = assigned[::2], assigned[1::2]
    for device in answering:
        bench.devices[device].holds = bench.core.assignment_for(device)
        bench.say(device, InstallState.DOWNLOADING)
    bench.run(240.0, until=set())
    told = [device for _, device, _ in bench.told]
    assert not set(answering) & set(told)
    assert sorted(set(silent) & set(told)) == sorted(silent)


def test_after_a_restart_a_control_that_leaves_and_comes_again_before_its_turn_is_assigned_nothing():
    bench = Bench(200)
    bench.to(S.RUNNING)
    controls = frozenset(bench.devices) - set(bench.plan.waves[0])
    for device in controls:
        bench.devices[device].online = False
    bench.to(S.SOAKING)
    gone = next(device for _, device, goal in bench.told if goal is DeviceGoal.CONTROL)
    bench.pick_up()
    bench.do(lambda core: core.on_members(frozenset(bench.devices) - {gone}, bench.now))
    bench.do(lambda core: core.on_members(frozenset(bench.devices), bench.now))
    bench.told.clear()
    bench.run(60.0, until=set())
    assert gone not in [device for _, device, _ in bench.told]
    assert [goal for _, _, goal in bench.told] == [DeviceGoal.CONTROL], "the other control, which has not answered"


def test_what_another_hub_was_faster_to_assign_counts_once_in_the_minute():
    """The second wave is sent within a minute of the first, by the other hub; this one could not write its sending."""
    bench = Bench(200, per_minute=20, waves=("2", "20", "100%"), soak_first_s=10.0)
    for device in bench.devices.values():
        device.takes_s = 1.0
    bench.to(S.SOAKING)
    bench.run(until={S.RUNNING}, step=1.0)
    slower = RolloutCore(bench.store.read_record("r1"), PASS, bench.now, bench.core)
    bench.tick()
    bench.now += 2.0
    slower.on_tick(bench.now)
    assert not bench.store.apply_changes(slower.take_changes())
    slower = RolloutCore(bench.store.read_record("r1"), PASS, bench.now, slower)
    (first_s, *_), (last_s, *_) = bench.told[0], bench.told[-1]
    assert slower.told.free_at(slower.head) == first_s + 60.0 < last_s + 60.0


def test_after_an_abort_a_new_rollout_is_allowed_and_the_same_id_is_refused():
    bench = Bench(20, FAIL)
    with pytest.raises(RolloutError, match="under way"):
        bench.create(made("r2")[0].plan)
    assert bench.run() is S.ABORTED
    with pytest.raises(RolloutError, match="r1 already"):
        bench.create(bench.plan)
    bench.create(made("r2")[0].plan)
    again = RolloutCore(bench.store.read_record("r2"), PASS, bench.now)
    assert again.state is S.DRAFT


def test_two_rollouts_of_a_family_may_run_on_different_devices_and_two_families_on_the_same(store):
    fleet = members(20) + members(0)
    one = build_plan(RolloutOrder("digits", NEW, "device=acme--d00001", id="one"), fleet, "ann", 0)
    two = build_plan(RolloutOrder("digits", NEW, "device=acme--d00002", id="two"), fleet, "ann", 0)
    third = build_plan(RolloutOrder("other", NEW, id="third"), fleet, "ann", 0)
    fourth = build_plan(RolloutOrder("digits", NEW, id="fourth"), fleet, "ann", 0)
    for plan in (one, two, third):
        store.create_rollout(*_with_entry(plan))
    with pytest.raises(RolloutError, match="under way"):
        store.create_rollout(*_with_entry(fourth))
    assert store.read_record("fourth") is None
    assert store.read_history("fourth") == []


def _with_entry(plan):
    record, entry = build_record(plan)
    return record, (entry,)


def test_no_restart_frees_a_place_in_the_minute():
    bench = Bench(1000, per_minute=50, waves=("10", "100%"))
    bench.to(S.SOAKING)
    bench.run(until={S.RUNNING})
    while len(bench.candidates) < 400:
        for seconds in (3.0, 1.0, 61.0, 20.0):
            bench.now += seconds
            bench.tick()
        bench.pick_up()
    _hold_the_rate(bench, 50)


def test_a_clock_that_was_set_ahead_during_a_restart_frees_no_place_either():
    """Clock an hour ahead after a restart: assignments of the old process count as sent now."""
    bench = Bench(1000, per_minute=50, waves=("10", "100%"))
    bench.to(S.SOAKING)
    bench.run(until={S.RUNNING})
    bench.tick()
    told = len(bench.candidates)
    for jump in (3600.0, -7200.0, 86_400.0):
        bench.now += jump
        bench.pick_up()
        for _ in range(59):
            bench.now += 1.0
            bench.tick()
        assert len([d for d in bench.candidates if bench.devices[d].contents]) - told <= 0
        bench.now += 2.0
        bench.tick()
        told = len(bench.candidates)


def _hold_the_rate(bench, most):
    times = [at for at, _, goal in bench.told if goal is DeviceGoal.CANDIDATE]
    assert len(times) > most
    assert all(later - first >= 60.0 for first, later in zip(times, times[most:], strict=False))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_assign_cancel_assign_in_any_order_of_arrival_end_at_the_highest_counter(order):
    """Assignments of a rollout that was held, resumed and aborted, checked as devices check them."""
    bench = Bench(20)
    for device in bench.devices.values():
        device.online = False
    bench.to(S.RUNNING)
    bench.step()
    bench.judge = bench.core._judge = HOLD
    bench.to(S.PAUSED_INCONCLUSIVE)
    bench.judge = bench.core._judge = PASS
    bench.do(lambda core: core.resume("ann", bench.now))
    bench.step()
    device = bench.devices[bench.plan.waves[0][0]]
    bench.do(lambda core: core.abort("ann", "", bench.now))
    words = [device.contents[counter] for counter in sorted(device.contents)]
    assert [word.withdraw for word in words] == [False, True, False, True]
    held = HeldAssignment(device.name)
    for number in order:
        if check_assignment(words[number], held, bench.ms) is None:
            held = HeldAssignment(device.name, words[number].counter, words[number])
    assert held.assignment == words[-1] == bench.core.assignment_for(device.name)


def test_every_word_of_a_whole_story_is_one_that_devices_take():
    """Candidates, controls, withdrawals, and the revert."""
    bench = Bench(200, order=RolloutOrder("digits", NEW, back=OLD, permit="permits/digits/1.json", id="r1"))
    bench.to(S.SOAKING)
    bench.core._judge = FAIL
    assert bench.run() is S.REVERTED
    said = [word for device in bench.devices.values() for word in device.contents.values()]
    kinds = {(word.cohort.value, word.withdraw) for word in said}
    assert kinds == {("candidate", False), ("control", False), ("candidate", True)}
    for word in said:
        assert check_assignment(word, HeldAssignment(word.device), word.issued_ms) is None


def test_a_counter_is_above_whatever_a_lost_store_may_have_told():
    bench = Bench(20)
    assert bench.run() is S.COMPLETED
    highest = {name: max(device.contents) for name, device in bench.devices.items()}
    new: Any = RolloutStore.open(IN_MEMORY)
    record, entry = build_record(build_plan(RolloutOrder("digits", OLD, id="r9"), members(20), "ann", bench.ms))
    new.create_rollout(record, (entry,))
    core = RolloutCore(new.read_record("r9"), PASS, bench.now)
    words = []
    while core.state is not S.SOAKING and core.fleet.exposed < 1:
        bench.now += 1
        words += core.on_tick(bench.now)
        core.on_validated("", bench.now)
    said = [x.assignment for x in words if isinstance(x, Assign)]
    assert all(word.counter > highest[word.device] for word in said)
    assert said


def write_counters(store: Any, counters: list[tuple[str, int]]) -> None:
    with store._engine.begin() as connection:
        raise_counters(connection, "digits", counters)


def test_counters_only_grow_and_are_of_the_family_not_of_the_rollout():
    bench = Bench(20)
    bench.to(S.SOAKING)
    bench.core._judge = FAIL
    assert bench.run() is S.ABORTED
    told = bench.store.read_record("r1").counters
    assert told
    write_counters(bench.store, [(device, 1) for device in told])
    assert bench.store.read_record("r1").counters == told
    bench.create(made("r2")[0].plan)
    assert bench.store.read_record("r2").counters == told


def test_everything_is_read_back_as_it_was_written(store, urls):
    record, entry = made("r1", 40)
    store.create_rollout(record, (entry,))
    other = RolloutStore.open(urls.rollouts)
    again: Any = other.read_record("r1")
    assert (other.list_ids(), other.list_revisions(), other.read_history("r1")) == (["r1"], {"r1": 0}, [entry])
    assert other.newest_ms() == entry.at_ms
    other.close()
    assert (again.plan, again.head, again.entries) == (record.plan, record.head, 1)
    assert {row.device: row.wave for row in again.rows} == {row.device: row.wave for row in record.rows}


def test_of_two_hubs_that_decide_at_once_one_is_right_and_writes_all_of_it(store, urls):
    other = RolloutStore.open(urls.rollouts)
    record, entry = made("r1")
    store.create_rollout(record, (entry,))
    told: list[Any] = []
    hubs: list[Any] = [store, other]
    for each, at in zip(hubs, (100.0, 200.0), strict=True):
        core = RolloutCore(each.read_record("r1"), PASS, at)
        core.on_tick(at)
        told.append(core.take_changes())
    assert [each.apply_changes(changes) for each, changes in zip(hubs, told, strict=True)] == [True, False]
    assert store.read_history("r1") == [entry, *told[0].entries]
    write_counters(store, [("acme--d00001", 7), ("acme--d00002", 3)])
    write_counters(other, [("acme--d00002", 5), ("acme--d00001", 6)])
    assert store.read_record("r1").counters == {"acme--d00001": 7, "acme--d00002": 5}
    other.close()


def test_a_change_that_cannot_be_written_whole_is_not_written_at_all(store):
    bench = Bench(20)
    record, entry = made("r1")
    store.create_rollout(record, (entry,))
    bench.store = store
    bench.core.on_tick(bench.now)
    changes = bench.core.take_changes()
    twice = changes._replace(entries=(*changes.entries, *changes.entries))
    with pytest.raises(IntegrityError):
        bench.store.apply_changes(twice)
    assert bench.store.read_record("r1").head.state is S.DRAFT
    assert bench.store.apply_changes(changes)


def test_the_plan_on_disk_is_what_people_approve():
    record, _ = made("r1")
    stored = msgspec.json.decode(msgspec.json.encode(record.plan, order="deterministic"), type=type(record.plan))
    assert stored.digest == record.plan.digest
    assert QUICK
