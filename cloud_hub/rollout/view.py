"""Status of a rollout as the API and the CLI show it: state, waves, devices, gate result."""

from itertools import islice
from math import isfinite

import msgspec

from cloud_hub.rollout.machine import RolloutCore
from cloud_hub.rollout.types import (
    FAILED_STATES,
    NOT_STARTED,
    OPEN,
    PAUSED,
    TERMINAL,
    UNDER_WAY,
    BundleTarget,
    DeviceGoal,
    RolloutDeviceState,
    RolloutRow,
    RolloutState,
)
from policies.rollout_rules.gate import GateResult
from policies.rollout_rules.plan import compute_rate
from policies.rollout_rules.wave_results import count_required_results, excluded_failure_rate


class WaveView(msgspec.Struct, frozen=True):
    """Totals of one wave. `needed`: results before its soak begins; `failed`: also rolled back, timed out, refused.

    `proven`: passed their own trial and wait for the wave's gate; `left`: taken out, they count for nothing.
    """

    number: int
    devices: int
    told: int
    reachable: int
    succeeded: int
    failed: int
    incompatible: int
    needed: int
    proven: int = 0
    left: int = 0


class RolloutDeviceView(msgspec.Struct, frozen=True):
    """Status of one device. `sub`: the state of its install; `wave` from 1, 0 = it is a control only."""

    device: str
    wave: int
    state: RolloutDeviceState
    goal: DeviceGoal
    sub: str
    failure: str
    counter: int
    told_ms: int


class RolloutView(msgspec.Struct, frozen=True):
    """Status of one rollout. `wave` from 1, 0 before the first.

    `ends_ms`: when time alone leads on from here, 0 = never.

    `excluded_above`: if not one of the wave's results was a failure, then with 95 % confidence only failure rates above
    this share (0..1) are excluded. `plan`: the digest that people approve. `exposed`: devices ever assigned an install.
    `next_step`: what happens next by itself, `aborts`: when it aborts by itself, `waits_for`, `failing`: devices of the
    present wave without a result, and failed ones with the reason; at most `MAX_NAMED` of either.
    """

    id: str
    family: str
    target: BundleTarget
    back: BundleTarget | None
    permit: str
    to: str
    by: str
    plan: str
    state: RolloutState
    why: str
    made_ms: int
    changed_ms: int
    ends_ms: int
    wave: int
    waves: tuple[WaveView, ...]
    states: dict[str, int]
    devices: int
    fleet: int
    exposed: int
    controls: int
    gone_back: int
    per_minute: int
    approvals: tuple[str, ...]
    people: int
    inconclusive: int
    held: bool
    excluded_above: float
    gate: GateResult | None
    rules: dict[str, object]
    next_step: str = ""
    aborts: str = ""
    waits_for: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()


def build_view(core: RolloutCore) -> RolloutView:
    """Build the present status of a rollout."""
    plan, head, fleet = core.plan, core.head, core.fleet
    rows = fleet.rows.values()
    wave = fleet.rows_of_wave(head.wave) if plan.waves and head.state not in TERMINAL | NOT_STARTED else []
    failed = (row for row in wave if row.state in FAILED_STATES and not row.excused)
    waited = (row.device for row in wave if row.state in OPEN and not row.trial_passed)
    begun = head.state not in NOT_STARTED and head.wave_ms > 0
    return RolloutView(
        id=plan.id,
        family=plan.family,
        target=plan.target,
        back=plan.back,
        permit=plan.permit,
        to=plan.to,
        by=plan.by,
        plan=core.course.digest,
        state=head.state,
        why=head.why,
        made_ms=plan.made_ms,
        changed_ms=head.changed_ms,
        ends_ms=int(core.course.ends_ms) if isfinite(core.course.ends_ms) else 0,
        wave=head.wave + 1 if begun else 0,
        waves=tuple(_build_wave_view(core, number) for number in range(len(plan.waves))),
        states={state.value: count for state, count in fleet.states.items() if count},
        devices=plan.size,
        fleet=plan.fleet,
        exposed=fleet.exposed,
        controls=sum(row.goal is DeviceGoal.CONTROL for row in rows),
        gone_back=sum(row.goal is DeviceGoal.BACK and row.state is RolloutDeviceState.SUCCEEDED for row in rows),
        per_minute=compute_rate(core.rules, fleet.succeeded_count),
        approvals=tuple(each.by for each in head.approvals if each.digest == core.course.digest),
        people=plan.people,
        inconclusive=head.inconclusive,
        held=head.held,
        excluded_above=excluded_failure_rate(fleet.counts_of_wave(head.wave).terminal if plan.waves else 0),
        gate=core.gate,
        rules=plan.rules,
        next_step=_NEXT_STEPS.get(head.state, ""),
        aborts=_describe_abort(core),
        waits_for=tuple(islice(waited, MAX_NAMED)),
        failing=tuple(f"{row.device} ({row.failure or row.state})" for row in islice(failed, MAX_NAMED)),
    )


MAX_NAMED = 10
_NEXT_STEPS = {
    RolloutState.WAITING_APPROVAL: "it begins once enough people have approved",
    RolloutState.RUNNING: "devices install it and pass their own trial, then the wave is watched",
    RolloutState.SOAKING: "the wave is watched, then judged; if it passes, its devices commit and the next wave begins",
    RolloutState.EVALUATING: "the wave is judged now",
    RolloutState.PAUSED_INCONCLUSIVE: "the wave is judged again; a person may let it pass: resume --accept, or abort",
    RolloutState.PAUSED_MANUAL: "a person: resume (excuses the failures seen so far), or abort",
    RolloutState.ABORTING: "what has not committed goes back",
    RolloutState.REVERTING: "what has committed goes back to the version before",
}


def _describe_abort(core: RolloutCore) -> str:
    """When the rollout aborts by itself; "" where it cannot any more, or has not begun."""
    head, rules = core.head, core.rules
    if head.state not in UNDER_WAY | PAUSED:
        return ""
    able = core.fleet.counts_of_wave(head.wave).able
    said = f"{max(1, min(rules.max_failures, able))} failures and more than {rules.max_failure_share:g} % of a wave"
    left = rules.inconclusive - head.inconclusive
    return f"{said}; evidence of harm; {left} more looks in a row that do not decide"


def build_device_view(row: RolloutRow) -> RolloutDeviceView:
    """Build the status of one device from its row."""
    sub, failure = (row.sub or "", row.failure or "")
    return RolloutDeviceView(
        row.device,
        row.wave + 1,
        row.state,
        goal=row.goal,
        sub=sub,
        failure=failure,
        counter=row.counter,
        told_ms=row.told_ms,
    )


def _build_wave_view(core: RolloutCore, number: int) -> WaveView:
    counts = core.fleet.counts_of_wave(number)
    needed = count_required_results(counts, core.rules, small=core.plan.is_small)
    told = (counts.told, counts.reachable, counts.succeeded, counts.failed, counts.incompatible)
    return WaveView(number + 1, counts.size, *told, needed, proven=counts.proven, left=counts.left)
