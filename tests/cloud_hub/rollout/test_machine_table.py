"""What people may do with a rollout in each of its states, and what becomes of it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cloud_hub.rollout.machine import RolloutCore
from cloud_hub.rollout.planning import RolloutOrder
from cloud_hub.rollout.types import (
    NOT_STARTED,
    PAUSED,
    TERMINAL,
    UNDER_WAY,
    Approval,
    DeviceGoal,
    NotifyOperator,
    RolloutDeviceState,
    RolloutError,
    RolloutState,
)
from policies.rollout_rules.gate import GateOutcome
from policies.rollout_rules.wave_results import ExcusedCounts
from tests.cloud_hub.doubles.rollout_bench import BEGIN_S, FAIL, HOLD, NEW, OLD, PASS, UNSURE, Bench, says

S = RolloutState
NOW_S = BEGIN_S + 60.0
NOW_MS = int(NOW_S * 1000)


def core_in(state: RolloutState, *, rules: dict[str, Any] | None = None, judge: Any = PASS, **head: Any) -> RolloutCore:
    """A rollout that came into this state a minute ago; with `rules` those, damaged or not, in place of its own."""
    record = Bench(20, order=RolloutOrder("digits", NEW, back=OLD, id="r1")).store.read_record("r1")
    facts = {"state": state, "wave_ms": NOW_MS - 60_000, "changed_ms": NOW_MS - 60_000, "inconclusive": 2} | head
    plan = record.plan if rules is None else msgspec.structs.replace(record.plan, rules=rules)
    return RolloutCore(
        msgspec.structs.replace(record, plan=plan, head=msgspec.structs.replace(record.head, **facts)), judge, NOW_S
    )


def do(core: RolloutCore, act: Callable[[RolloutCore], object]) -> RolloutState | str:
    """The state after it, or the code of the refusal; a refusal changes nothing."""
    before = core.head
    try:
        act(core)
    except RolloutError as error:
        assert core.head == before
        assert core.take_changes() is None
        return error.code
    return core.state


ACTS: dict[str, Callable[[RolloutCore], object]] = {
    "pause": lambda core: core.pause("ann", "for lunch", NOW_S),
    "resume": lambda core: core.resume("ann", NOW_S),
    "abort": lambda core: core.abort("ann", "no more", NOW_S),
    "approve": lambda core: core.approve(Approval("bea", core.plan.digest, NOW_MS), NOW_S),
    "validated": lambda core: core.on_validated("", NOW_S),
    "not valid": lambda core: core.on_validated("no such bundle", NOW_S),
}


def expected(act: str, state: RolloutState) -> RolloutState | str:
    match act:
        case "pause":
            return S.PAUSED_MANUAL if state in UNDER_WAY | {S.READY, S.PAUSED_INCONCLUSIVE} else "conflict"
        case "resume":
            after = {S.PAUSED_MANUAL: S.RUNNING, S.PAUSED_INCONCLUSIVE: S.EVALUATING}
            return after.get(state, "conflict")
        case "abort" if state in TERMINAL:
            return "conflict"
        case "abort" if state in NOT_STARTED:
            return S.DENIED
        case "abort":
            return state if state in {S.ABORTING, S.REVERTING} else S.ABORTING
        case "approve":
            return state if state is S.WAITING_APPROVAL else "conflict"
        case "validated":
            return S.READY if state is S.VALIDATING else state
    return S.DENIED if state is S.VALIDATING else state


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("act", ACTS)
def test_a_person_can_do_in_each_state_what_fits_it_and_the_history_says_who_did_it(act, state):
    core = core_in(state)
    found = do(core, ACTS[act])
    assert found == expected(act, state)
    changes = core.take_changes()
    if found == state or found == "conflict":
        return
    assert changes is not None
    last = changes.entries[-1]
    by = "hub" if act in {"validated", "not valid"} else "ann"
    whys = {"pause": "for lunch", "abort": "no more", "resume": "resumed", "not valid": "no such bundle"}
    assert (last.by, last.why, last.what, last.state, last.at_ms) == (by, whys.get(act, ""), found, found, NOW_MS)
    assert (core.head.changed_ms, core.head.why) == (NOW_MS, last.why)


@pytest.mark.parametrize("state", S)
def test_under_damaged_parameters_nothing_goes_on_and_only_an_abort_leads_on(state):
    assert do(core_in(state, rules={"per_minute": -1}), ACTS["resume"]) == (
        "refused" if state in PAUSED else "conflict"
    )
    core = core_in(state, rules={"per_minute": -1})
    commands = core.on_tick(NOW_S)
    stops = {S.READY: S.DENIED} | dict.fromkeys(UNDER_WAY | {S.PAUSED_INCONCLUSIVE}, S.PAUSED_MANUAL)
    if state in stops:
        assert core.state is stops[state]
        assert [each.why for each in commands if isinstance(each, NotifyOperator)] == ["its parameters are damaged"]
    else:
        assert core.state not in UNDER_WAY
    if state in UNDER_WAY | PAUSED:
        assert do(core, ACTS["abort"]) is S.ABORTING


@pytest.mark.parametrize("accept", [False, True])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("state", sorted(PAUSED))
def test_what_a_resume_forgets_and_what_it_keeps(state, held, accept):
    core = core_in(state, held=held, soak_ms=5, look_ms=7, audits=9, passed=0)
    before = core.head
    core.resume("ann", NOW_S, "seen", accept=accept)
    after = S.EVALUATING if state is S.PAUSED_INCONCLUSIVE and not held else S.RUNNING
    why = "accepted without evidence: seen" if accept else "seen"
    assert core.head == msgspec.structs.replace(
        before, state=after, why=why, changed_ms=NOW_MS, held=False, soak_ms=0 if held else 5, accepted=accept,
        inconclusive=0, excused=ExcusedCounts(),
    )  # fmt: skip


@pytest.mark.parametrize("revert", [False, True])
def test_an_abort_goes_back_only_if_it_is_asked_to(revert):
    core = core_in(S.RUNNING)
    core.abort("ann", "", NOW_S, revert=revert)
    assert (core.state, core.head.revert) == (S.ABORTING, revert)


@pytest.mark.parametrize(
    ("before", "state"), [(0, S.PAUSED_INCONCLUSIVE), (1, S.PAUSED_INCONCLUSIVE), (2, S.ABORTING), (3, S.ABORTING)]
)
def test_each_look_that_decides_nothing_is_counted_and_the_third_in_a_row_ends_it(before, state):
    core = core_in(S.EVALUATING, judge=UNSURE, inconclusive=before)
    for row in core.fleet.rows_of_wave(0):
        core.fleet.change_row(row, state=RolloutDeviceState.SUCCEEDED, heard=True)
    core.on_tick(NOW_S)
    assert (core.state, core.head.inconclusive) == (state, before + 1)


@pytest.mark.parametrize(
    ("judge", "accepted", "state"),
    [
        (PASS, False, S.RUNNING),
        (UNSURE, False, S.PAUSED_INCONCLUSIVE),
        (UNSURE, True, S.RUNNING),
        (HOLD, False, S.PAUSED_INCONCLUSIVE),
        (HOLD, True, S.PAUSED_INCONCLUSIVE),
        (FAIL, True, S.ABORTING),
    ],
)
@pytest.mark.parametrize("succeeded", [True, False])
def test_a_wave_passes_on_its_successes_and_a_gate_that_passes_or_a_person_who_answers_for_it(
    judge, accepted, state, succeeded
):
    core = core_in(S.EVALUATING, judge=judge, accepted=accepted, inconclusive=0)
    for row in core.fleet.rows_of_wave(0):
        end = RolloutDeviceState.SUCCEEDED if succeeded else RolloutDeviceState.UNREACHED
        core.fleet.change_row(row, state=end, heard=True, goal=DeviceGoal.CANDIDATE)
    core.on_tick(NOW_S)
    if not succeeded and state is S.RUNNING:
        state = S.PAUSED_MANUAL
    if not succeeded and judge is UNSURE and not accepted:
        state = S.PAUSED_MANUAL
    assert core.state is state
    assert core.head.passed == (state is S.RUNNING)
    assert core.head.wave == (state is S.RUNNING)
    assert core.head.held == (judge is HOLD)


@pytest.mark.parametrize(
    ("outcome", "audits", "prolonged"),
    [
        (GateOutcome.INCONCLUSIVE, 5, True),
        (GateOutcome.INCONCLUSIVE, 4, False),
        (GateOutcome.PASS, 5, False),
        (None, 5, False),
    ],
)
def test_a_soak_goes_on_only_while_the_gate_is_undecided_and_audits_still_come(outcome, audits, prolonged):
    judge = (lambda *_: None) if outcome is None else says(outcome, audits=audits)
    core = core_in(S.SOAKING, judge=judge, soak_ms=NOW_MS - 120_000, audits=4)
    core.on_tick(NOW_S)
    assert core.state is (S.SOAKING if prolonged else S.EVALUATING)
    assert (core.head.audits, core.head.look_ms) == ((5, NOW_MS) if prolonged else (4, 0))
