"""Who is assigned what: each act of the dispatcher upon a fleet with a device of every goal, state and wave at once."""

from collections.abc import Callable, Iterator
from itertools import product
from math import inf
from typing import Any

import msgspec
import pytest

from cloud_hub.rollout.dispatch import RolloutContext, WaveDispatcher
from cloud_hub.rollout.fleet import RolloutFleet
from cloud_hub.rollout.planning import RolloutOrder, build_plan
from cloud_hub.rollout.types import (
    TERMINAL,
    Assign,
    DeviceGoal,
    RolloutCommand,
    RolloutDeviceState,
    RolloutHead,
    RolloutRow,
    RolloutState,
)
from policies.rollout_rules.gate import GateOutcome, GateResult
from policies.rollout_rules.plan import RolloutRules
from tests.cloud_hub.doubles.rollout_bench import NEW, OLD, members
from wire.protocol.rollout import DeviceSignals, InstallFailure, InstallState

S, D, G = RolloutState, RolloutDeviceState, DeviceGoal
WAVES = 3
RULES = RolloutRules(per_minute=50_000, most_per_minute=50_000)
TOLD_MS, NOW_S = 1_000_000, 2_000.0
UNFINISHED = {D.NOTIFIED, D.IN_PROGRESS, D.TIMED_OUT, D.UNREACHED}  # a report may still come, or change the state


def every_row() -> Iterator[RolloutRow]:
    kinds = product(G, D, range(-1, WAVES), (False, True), (False, True), (False, True))
    for number, (goal, state, wave, heard, released, exposed) in enumerate(kinds):
        yield RolloutRow(
            f"acme--d{number:05d}", wave, state=state, goal=goal, counter=5, base=4, told_ms=TOLD_MS, since_ms=TOLD_MS,
            heard=heard, released=released, exposed=exposed, trial_passed=True, excused=True, seq=3,
            sub=InstallState.PROBATION, failure=InstallFailure.HEALTH, signals=DeviceSignals(inferences=number),
        )  # fmt: skip


class DispatchBench:
    """A dispatcher and its fleet: of the rows `wanted`, or of every row."""

    def __init__(
        self, wanted: Callable[[RolloutRow], bool] = lambda _: True, rules: RolloutRules = RULES, **plan: object
    ) -> None:
        rows = [row for row in every_row() if wanted(row)]
        made = build_plan(RolloutOrder("digits", NEW, back=OLD, id="r1"), members(3), "ann", 0)
        in_wave = [tuple(row.device for row in rows if row.wave == wave) for wave in range(-1, WAVES)]
        self.plan = msgspec.structs.replace(made, waves=tuple(in_wave[1:]), spare=in_wave[0], **plan)
        self.fleet = RolloutFleet(self.plan, rules, rows)
        self.before = {row.device: msgspec.structs.replace(row) for row in rows}
        self.out: list[RolloutCommand] = []
        self.told = WaveDispatcher(RolloutContext(self.plan, rules, self.fleet, {}, self.out))

    def take(self) -> list[str]:
        """The devices that were sent an assignment since the last call, each as its row says."""
        sent = [each for each in self.out if isinstance(each, Assign)]
        self.out.clear()
        assert all(each.assignment == self.told.assignment_for(each.device) for each in sent)
        return [each.device for each in sent]

    def those(self, wanted: Callable[[RolloutRow], bool]) -> list[str]:
        """The devices whose row was so before."""
        return [device for device, row in self.before.items() if wanted(row)]

    def assert_changed(self, wanted: Callable[[RolloutRow], bool], **values: object) -> None:
        """Just the rows that were so have these values now, and all else is as it was."""
        for device, row in self.before.items():
            assert self.fleet.rows[device] == (msgspec.structs.replace(row, **values) if wanted(row) else row)


def withdrawn(row: RolloutRow) -> dict[str, object]:
    return {"goal": G.WITHDRAWN, "counter": 2000, "told_ms": 2_000_000}


@pytest.mark.parametrize("passed", [0, 1])
@pytest.mark.parametrize("everybody", [False, True])
def test_what_is_not_committed_is_withdrawn_and_with_everybody_the_controls_and_those_that_wait(everybody, passed):
    bench = DispatchBench()
    bench.told.begin_wave(1)
    bench.told.withdraw_open(NOW_S, everybody=everybody, passed=passed)

    def is_open(row: RolloutRow) -> bool:
        candidate = row.goal is G.CANDIDATE and row.state in UNFINISHED and row.wave >= passed
        return candidate or (everybody and row.goal is G.CONTROL)

    def waits(row: RolloutRow) -> bool:
        return everybody and row.state is D.QUEUED and row.wave >= 0

    assert bench.take() == bench.those(is_open)
    for device, row in bench.before.items():
        changes = (withdrawn(row) if is_open(row) else {}) | ({"state": D.CANCELLED} if waits(row) else {})
        assert bench.fleet.rows[device] == msgspec.structs.replace(row, **changes)
    assert bench.told.all_assigned
    assert [bench.told.free_at(RolloutHead(state)) for state in S] == [inf] * len(S), "nobody waits any more"


def test_a_withdrawal_ends_what_was_to_be_said_again_after_a_restart():
    bench = DispatchBench()
    bench.told.resume_queues(RolloutHead(S.RUNNING), NOW_S)
    assert bench.told.free_at(RolloutHead(S.SOAKING)) < inf
    bench.told.withdraw_open(NOW_S)
    assert bench.told.free_at(RolloutHead(S.SOAKING)) == inf


def test_when_the_comparison_is_over_every_control_is_released_and_no_other_device():
    bench = DispatchBench()
    bench.told.release_controls(NOW_S)
    assert bench.take() == bench.those(lambda row: row.goal is G.CONTROL)
    bench.assert_changed(lambda row: row.goal is G.CONTROL, goal=G.WITHDRAWN, counter=2000, told_ms=2_000_000)


@pytest.mark.parametrize("permit", ["", "permits/digits/1.json"])
def test_a_wave_that_passed_is_released_once_unless_people_have_permitted_it_beforehand(permit):
    bench = DispatchBench(permit=permit)
    bench.told.release_wave(1, NOW_S)

    def waits(row: RolloutRow) -> bool:
        return not permit and row.wave == 1 and row.goal is G.CANDIDATE and row.state in UNFINISHED and not row.released

    assert bench.take() == bench.those(waits)
    bench.assert_changed(waits, released=True, counter=2000, told_ms=2_000_000, since_ms=2_000_000)
    bench.told.release_wave(1, NOW_S + 9)
    assert bench.take() == []


def test_what_has_committed_goes_back_and_what_is_on_its_way_back_already_does_not_go_twice():
    bench = DispatchBench()

    def committed(row: RolloutRow) -> bool:
        return row.state is D.SUCCEEDED and row.goal is not G.BACK

    assert bench.told.queue_reverts()
    assert bench.told.free_at(RolloutHead(S.REVERTING)) == -inf
    bench.assert_changed(committed, state=D.QUEUED, goal=G.NONE)
    bench.told.assign_reverts(NOW_S)
    assert bench.take() == bench.those(committed)
    assert bench.told.all_assigned
    assert not bench.told.queue_reverts()


def test_where_nothing_has_committed_nothing_goes_back():
    bench = DispatchBench(lambda row: row.state is not D.SUCCEEDED)
    assert not bench.told.queue_reverts()
    assert bench.told.all_assigned


def test_after_a_hold_the_withdrawn_devices_of_the_wave_wait_again_as_if_they_had_never_been_asked():
    bench = DispatchBench()

    def was_withdrawn(row: RolloutRow) -> bool:
        return row.wave == 1 and row.goal is G.WITHDRAWN and row.state in {D.NOTIFIED, D.IN_PROGRESS, D.CANCELLED}

    bench.told.begin_wave(1)
    bench.told.assign_due(NOW_S)
    controls = [device for device in bench.take() if bench.fleet.rows[device].goal is G.CONTROL]
    bench.told.requeue_withdrawn(1)
    asked_again = bench.those(was_withdrawn)
    for device in asked_again:
        before = bench.before[device]
        assert bench.fleet.rows[device] == msgspec.structs.replace(
            before, state=D.QUEUED, goal=G.NONE, base=0, trial_passed=False
        )
    assert not bench.told.all_assigned
    bench.told.assign_due(NOW_S)
    assert bench.take() == asked_again + controls, "those, and anew the controls to compare them with"
    assert bench.told.all_assigned


def assigned_as(row: RolloutRow, goal: DeviceGoal) -> RolloutRow:
    """The row after a new assignment: what an earlier install left behind says nothing of this one."""
    row = msgspec.structs.replace(row, goal=goal, counter=2000, told_ms=2_000_000, base=2000, heard=False)
    row = msgspec.structs.replace(row, quality=None, signals=None)
    if goal is G.CONTROL:
        return row
    return msgspec.structs.replace(
        row, state=D.NOTIFIED, since_ms=2_000_000, sub=None, failure=None, exposed=True, trial_passed=False,
        released=False, excused=False,
    )  # fmt: skip


def test_a_wave_is_assigned_to_those_of_it_that_wait_and_its_controls_have_not_been_reached_by_any_wave():
    bench = DispatchBench()
    bench.told.begin_wave(1)
    bench.told.assign_due(NOW_S)
    sent, wave = bench.take(), set(bench.plan.waves[1])
    waiting = bench.those(lambda row: row.wave == 1 and row.state is D.QUEUED)
    assert sent[: len(waiting)] == waiting
    controls = sent[len(waiting) :]
    assert len(set(controls)) == len(controls) == len(wave)
    assert set(controls) <= {*bench.plan.waves[2], *bench.plan.spare}
    for device, row in bench.before.items():
        goal = G.CANDIDATE if device in waiting else G.CONTROL if device in controls else None
        assert bench.fleet.rows[device] == (assigned_as(row, goal) if goal else row)


def test_the_way_back_is_an_install_of_its_own():
    bench = DispatchBench(lambda row: row.state is D.SUCCEEDED and row.goal is G.CANDIDATE)
    bench.told.queue_reverts()
    bench.told.assign_reverts(NOW_S)
    assert set(bench.take()) == set(bench.before)
    for device, row in bench.before.items():
        assert bench.fleet.rows[device] == assigned_as(row, G.BACK)


@pytest.mark.parametrize("state", S)
def test_a_new_process_says_again_what_may_not_have_arrived_and_nothing_that_a_stop_has_overtaken(state):
    bench = DispatchBench(lambda row: row.goal is not G.NONE or row.state is D.QUEUED)
    head = RolloutHead(state, wave=1)
    bench.told.resume_queues(head, NOW_S)
    bench.told.repeat_unanswered(head, NOW_S)

    def may_be_lost(row: RolloutRow) -> bool:
        """Nothing was heard since the assignment; or it was released, and has not said that it committed."""
        is_open = row.state in {D.NOTIFIED, D.IN_PROGRESS}
        unheard = not row.heard and (is_open or row.goal is G.CONTROL)
        return row.goal is not G.NONE and (unheard or (row.released and is_open and row.heard))

    said = bench.those(may_be_lost)
    if state in {S.ABORTING, S.PAUSED_INCONCLUSIVE}:
        said = [device for device in said if bench.before[device].goal is G.WITHDRAWN]
    elif state not in {S.RUNNING, S.SOAKING, S.EVALUATING}:
        said = []
    assert sorted(bench.take()) == sorted(said)
    bench.assert_changed(lambda _: False)
    bench.told.repeat_unanswered(head, NOW_S)
    assert bench.take() == [], "once"


def test_a_new_process_goes_on_with_the_way_back_of_those_that_were_exposed_and_wait():
    bench = DispatchBench()
    head = RolloutHead(S.REVERTING, wave=1)
    bench.told.resume_queues(head, NOW_S)
    bench.told.assign_reverts(NOW_S)
    assert bench.take() == bench.those(lambda row: row.exposed and row.state is D.QUEUED)


@pytest.mark.parametrize("state", S)
def test_a_new_process_counts_as_sent_now_what_may_have_been_sent_just_before_it_began(state):
    bench = DispatchBench()
    bench.told.resume_queues(RolloutHead(state, wave=1), NOW_S)
    installs = bench.those(lambda row: row.exposed and row.goal in {G.CANDIDATE, G.BACK, G.WITHDRAWN})
    assert sorted(bench.told.pace) == [(NOW_S, device) for device in installs]


def test_a_process_that_was_overtaken_counts_what_it_sent_itself_when_it_sent_it_and_the_rest_as_sent_now():
    def is_install(row: RolloutRow) -> bool:
        return row.exposed and row.goal is G.CANDIDATE and row.wave == 1 and row.state is D.NOTIFIED

    before, after = DispatchBench(is_install), DispatchBench(is_install)
    own, unknown, newer, *others = before.fleet.rows
    del before.fleet.rows[unknown]
    after.fleet.rows[newer].base += 1
    for device in (own, newer, "acme--gone"):
        before.told.pace.record_sent(device, NOW_S - 5)
    after.told.resume_queues(RolloutHead(S.RUNNING, wave=1), NOW_S, before.told)
    assert others
    assert sorted(after.told.pace) == [(NOW_S - 5, own), (NOW_S, unknown), (NOW_S, newer)]
    after.told.repeat_unanswered(RolloutHead(S.RUNNING, wave=1), NOW_S)
    unheard = after.those(lambda row: not row.heard or row.released)
    assert after.take() == [device for device in unheard if device in {unknown, newer}], "the rest was sent before"


@pytest.mark.parametrize("state", [S.DRAFT, S.VALIDATING, S.WAITING_APPROVAL, S.READY, *sorted(TERMINAL)])
def test_of_a_rollout_that_has_not_begun_or_has_ended_a_new_process_sends_nothing(state):
    bench = DispatchBench()
    bench.told.resume_queues(RolloutHead(state, wave=1), NOW_S)
    assert bench.told.all_assigned
    assert [bench.told.free_at(RolloutHead(each)) for each in S] == [inf] * len(S)


@pytest.mark.parametrize("state", [S.RUNNING, S.SOAKING])
def test_a_new_process_goes_on_with_the_controls_that_the_present_wave_has_not_got_yet(state):
    bench = DispatchBench(lambda row: row.wave in {0, 2} and row.state is not D.QUEUED)
    head = RolloutHead(state, wave=0, wave_ms=TOLD_MS)
    bench.told.resume_queues(head, NOW_S)
    bench.told.assign_due(NOW_S)
    sent = bench.take()
    assert sent
    assert all(bench.before[device].wave == 2 for device in sent)
    assert not [d for d in sent if bench.before[d].goal is G.CONTROL and bench.before[d].state is not D.LEFT]


@pytest.mark.parametrize(
    ("state", "waiting", "waits"),
    [
        (S.RUNNING, "candidates", True),
        (S.SOAKING, "candidates", False),
        (S.PAUSED_MANUAL, "candidates", False),
        (S.RUNNING, "heard", False),
        (S.SOAKING, "heard", False),
        (S.RUNNING, "controls", True),
        (S.SOAKING, "controls", False),
        (S.RUNNING, "unheard", True),
        (S.SOAKING, "unheard", True),
        (S.EVALUATING, "unheard", True),
        (S.PAUSED_MANUAL, "unheard", False),
        (S.REVERTING, "unheard", False),
        (S.REVERTING, "way back", True),
        (S.ABORTING, "way back", False),
        (S.RUNNING, "way back", False),
    ],
)
def test_a_rollout_is_woken_for_a_queue_only_in_the_states_in_which_the_queue_is_served(state, waiting, waits):
    bench = DispatchBench(
        {
            "candidates": lambda row: row.state is D.QUEUED and row.goal is G.NONE and row.wave == 1,
            "controls": lambda row: row.state is D.LEFT and row.goal is G.NONE,
            "heard": lambda row: row.state is D.NOTIFIED and row.heard and not row.released and row.wave == 1,
            "unheard": lambda row: row.state is D.NOTIFIED and row.goal is G.CANDIDATE and row.wave == 1,
            "way back": lambda row: row.state is D.SUCCEEDED and row.goal is G.CANDIDATE and row.wave == 1,
        }[waiting]
    )
    if waiting in {"heard", "unheard"}:
        bench.told.resume_queues(RolloutHead(S.SOAKING, wave=1), NOW_S)
    elif waiting == "way back":
        bench.told.queue_reverts()
    else:
        bench.told.begin_wave(1)
    assert bench.told.free_at(RolloutHead(state, wave=1)) == (-inf if waits else inf)


def test_the_gate_is_shown_the_candidates_of_the_wave_and_the_controls_that_it_was_given():
    shown: list[Any] = []

    def judge(wave, controls, rules):
        shown.extend((wave, controls, rules))
        return GateResult(GateOutcome.PASS, "")

    bench = DispatchBench()
    bench.told.begin_wave(1)
    bench.told.assign_due(NOW_S)
    assert bench.told.compare_cohorts(RolloutHead(S.RUNNING, wave=1, wave_ms=2_000_000), judge) is not None
    wave, controls, rules = shown
    rows = bench.fleet.rows
    judged = [
        row for row in rows.values()
        if row.wave == 1 and row.goal is G.CANDIDATE and row.state not in {D.CANCELLED, D.LEFT}
    ]  # fmt: skip
    given = [
        row for row in rows.values()
        if row.goal is G.CONTROL and row.counter == 2000 and row.state is not D.LEFT
    ]  # fmt: skip
    assert rules == RULES.gate
    assert [(each.device, each.quality, each.signals) for each in wave] == [
        (row.device, row.quality, row.signals) for row in judged
    ]
    assert {each.device for each in controls} == {row.device for row in given}


@pytest.mark.parametrize(
    ("back", "permit", "has_controls", "compared"),
    [
        (OLD, "", True, True),
        (OLD, "", False, True),
        (OLD, "permits/digits/1.json", True, True),
        (OLD, "permits/digits/1.json", False, False),
        (None, "", True, False),
        (None, "", False, False),
    ],
)
def test_a_wave_is_compared_where_there_is_a_version_before_and_controls_or_a_release_to_decide(
    back, permit, has_controls, compared
):
    bench = DispatchBench(lambda row: row.wave >= 0 and row.state is D.QUEUED, permit=permit, back=back)
    bench.told.begin_wave(1 if has_controls else WAVES - 1)
    controls: list[object] = []

    def judge(_wave, given, _rules):
        controls.append(given)
        return GateResult(GateOutcome.PASS, "")

    assert (
        bench.told.compare_cohorts(RolloutHead(S.RUNNING, wave=1, wave_ms=2_000_000), judge) is not None
    ) is compared
    assert controls == ([() if has_controls else None] if compared else [])


@pytest.mark.parametrize(("wave_ms", "some"), [(TOLD_MS, True), (TOLD_MS + 1, False)])
def test_a_control_of_an_earlier_wave_or_one_that_left_is_none_of_this_wave(wave_ms, some):
    bench, shown = DispatchBench(), list[Any]()
    head = RolloutHead(S.RUNNING, wave=1, wave_ms=wave_ms)
    bench.told.resume_queues(head, NOW_S)

    def judge(_wave, controls, _rules):
        shown.extend(bench.before[each.device] for each in controls)
        return GateResult(GateOutcome.PASS, "")

    bench.told.compare_cohorts(head, judge)
    assert bool(shown) is some
    assert all(row.goal is G.CONTROL and row.state is not D.LEFT for row in shown)


@pytest.mark.parametrize("state", [S.RUNNING, S.PAUSED_MANUAL])
def test_who_left_loses_its_candidate_and_who_came_back_to_the_present_wave_is_queued(state):
    bench = DispatchBench()
    left = {device for number, device in enumerate(bench.before) if number % 3 == 0}
    bench.told.follow_members(frozenset(bench.before) - left, RolloutHead(state, wave=1), NOW_S)

    def leaves(row: RolloutRow) -> bool:
        return row.device in left and row.state in UNFINISHED | {D.QUEUED}

    def comes_back(row: RolloutRow) -> bool:
        return row.device not in left and row.state is D.LEFT and row.wave != 0

    assert bench.take() == bench.those(lambda row: leaves(row) and row.goal is G.CANDIDATE)
    for device, row in bench.before.items():
        changes: dict[str, Any] = {}
        if leaves(row):
            changes = {"state": D.LEFT} | (withdrawn(row) if row.goal is G.CANDIDATE else {})
        if comes_back(row):
            changes = {"state": D.QUEUED, "goal": G.NONE, "base": 0, "trial_passed": False}
        assert bench.fleet.rows[device] == msgspec.structs.replace(row, **changes)
    assert bench.told.all_assigned is (state is S.PAUSED_MANUAL)


def test_the_time_of_a_device_runs_from_its_assignment_on():
    bench = DispatchBench(lambda row: row.wave == 1 and row.state is D.QUEUED)
    bench.told.begin_wave(1)
    assert bench.fleet.due_at == inf
    bench.told.assign_due(NOW_S)
    assert bench.fleet.due_at == NOW_S + RULES.wave_deadline_s


def test_without_spare_devices_the_controls_are_those_of_later_waves():
    bench = DispatchBench(lambda row: row.wave >= 0 and row.state is D.SUCCEEDED)
    bench.told.begin_wave(1)
    bench.told.assign_due(NOW_S)
    assert set(bench.take()) == set(bench.plan.waves[2])
