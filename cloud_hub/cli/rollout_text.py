"""Text output of `skerry rollout`: one line for `--watch`, a page for `status`, tables of rollouts and devices. Pure.

Rule: wherever the gate's result is shown, what it does not know is shown with it: how small the sample is, which
classes were not audited, and what devices reported no figures.
"""

from collections.abc import Iterable, Iterator

from cloud_hub.cli.options import format_time
from cloud_hub.rollout.types import NOT_STARTED, PAUSED, TERMINAL, HistoryEntry, RolloutState
from cloud_hub.rollout.view import RolloutDeviceView, RolloutView, WaveView
from policies.rollout_rules.gate import GateResult
from wire.process.exit_codes import ExitCode

S = RolloutState
_ENDING_TEXTS = {
    S.COMPLETED: "successfully rolled out",
    S.COMPLETED_PARTIAL: "rolled out, except to devices that were not reached in time",
    S.ABORTED: "aborted",
    S.REVERTED: "reverted: what had committed is back",
    S.DENIED: "denied",
    S.EXPIRED: "expired: nobody approved it in time",
}
_WAITING_STATES = PAUSED | {S.WAITING_APPROVAL}


def exit_code_for(view: RolloutView) -> ExitCode:
    """Return the exit code of a status: 0 while the rollout goes on and when it has succeeded."""
    if view.state in _WAITING_STATES:
        return ExitCode.WAITING
    if view.state is S.COMPLETED_PARTIAL:
        return ExitCode.UNFINISHED
    return ExitCode.STOPPED if view.state in TERMINAL - {S.COMPLETED} else ExitCode.OK


def format_line(view: RolloutView) -> str:
    """Return the status in one line; `--watch` prints it when it changes.

    Begins like the lines of `kubectl rollout status`: "Waiting for ...", "Paused: ...", "rollout ... aborted".
    """
    why = f": {view.why}" if view.why else ""
    if view.state in TERMINAL:
        return f"rollout {view.id} {_ENDING_TEXTS[view.state]}{'' if view.state is S.COMPLETED else why}"
    if view.state is S.WAITING_APPROVAL:
        people = f"{len(view.approvals)} of {view.people} people"
        return f"Waiting for approval of {view.id}: {people} have; skerry rollout approve {view.id} --plan {view.plan}"
    if view.state in PAUSED:
        return f"Paused: {view.id}, wave {view.wave} of {len(view.waves)}{why}"
    if view.state in NOT_STARTED:
        return f"Waiting for {view.id} to begin: {view.state}{why}"
    done = view.states.get("succeeded", 0)
    at = f"wave {view.wave} of {len(view.waves)} {_state_verb(view.state)}"
    return f"Waiting for {view.id} to finish: {done} of {view.devices} devices have committed, {at}{why}"


def format_page(view: RolloutView) -> Iterator[str]:
    """Yield the lines of the status page of one rollout.

    State and reason, versions, devices, approvals and plan digest, times, a table of waves, and the gate's result.
    """
    yield f"{view.id}  {view.state}{f', wave {view.wave} of {len(view.waves)}' if view.wave else ''}"
    if view.why:
        yield _format_fact("why", view.why)
    yield _format_fact("version", f"{view.family}@{view.target.version}{_format_previous(view)}")
    yield _format_fact("devices", f"{view.to}: {view.devices} of {view.fleet}; {_count_states(view)}")
    if view.people:
        yield _format_fact(
            "approved", f"by {len(view.approvals)} of {view.people} people: {', '.join(view.approvals) or '-'}"
        )
        yield _format_fact("plan", view.plan)
    yield _format_fact("started", f"{format_time(view.made_ms)} by {view.by}")
    if view.next_step:
        latest = f"; {format_time(view.ends_ms)} UTC at the latest" if view.ends_ms else ""
        yield _format_fact("next", view.next_step + latest)
    if view.aborts:
        yield _format_fact("aborts at", view.aborts)
    if view.waits_for:
        yield _format_fact("waits for", ", ".join(view.waits_for))
    if view.failing:
        yield _format_fact("failed", ", ".join(view.failing))
    yield ""
    head = ("wave", "devices", "told", "trial passed", "committed", "failed", "left", "needed", "")
    yield from _format_table(head, _wave_rows(view))
    yield ""
    yield from _format_gate(view)


def format_rollouts(views: Iterable[RolloutView]) -> Iterator[str]:
    """Yield a table of all rollouts, a line for each."""
    rows = (
        (
            v.id,
            f"{v.family}@{v.target.version}",
            v.state.value,
            _wave_progress(v),
            _commit_progress(v),
            format_time(v.made_ms),
            v.why,
        )
        for v in views
    )
    yield from _format_table(("ROLLOUT", "VERSION", "STATE", "WAVE", "COMMITTED", "STARTED", "WHY"), rows)


def format_devices(found: Iterable[RolloutDeviceView]) -> Iterator[str]:
    """Yield a table of a rollout's devices."""
    rows = (
        (d.device, str(d.wave or "-"), d.state.value, d.goal.value or "-", d.sub or "-", d.failure or "-")
        for d in found
    )
    yield from _format_table(("DEVICE", "WAVE", "STATE", "TOLD", "INSTALL", "FAILURE"), rows)


def format_history(found: Iterable[HistoryEntry]) -> Iterator[str]:
    """Yield a table of a rollout's history."""
    rows = ((str(e.seq), format_time(e.at_ms), e.by, e.what, e.why) for e in found)
    yield from _format_table(("REVISION", "TIME", "BY", "WHAT", "WHY"), rows)


def _format_gate(view: RolloutView) -> Iterator[str]:
    """Yield the gate's result and the size of the sample."""
    gate = view.gate
    if gate is None:
        none = "no comparison: no version before" if view.back is None else "no comparison yet"
        yield _format_fact("gate", f"{none}; devices report in their probation")
    else:
        yield from _format_outcome(gate)
    yield _format_fact("sample", _format_sample(view))


def _format_sample(view: RolloutView) -> str:
    """Return what so few results can exclude at all."""
    wave = next((each for each in view.waves if each.number == view.wave), None)
    results = wave.succeeded + wave.proven + wave.failed if wave else 0
    if wave is None or not results:
        return "no result of this wave yet: no failure rate is excluded"
    said = f"{wave.failed} failures of {results} results in this wave"
    return f"{said}; 0 would exclude, with 95 % confidence, only failure rates above {view.excluded_above:.1%}"


def _format_outcome(gate: GateResult) -> Iterator[str]:
    """Yield the outcome of a comparison: audits, confidence interval, worst case, and classes without audits."""
    yield _format_fact("gate", f"{gate.outcome}: {gate.why}")
    if gate.audits:
        seen = f"{100 * gate.effect:+.1f} points over {gate.audits} audits, between {100 * gate.low:+.1f} and"
        yield _format_fact("quality", f"{seen} {100 * gate.high:+.1f}; worse by {100 * gate.bound:.1f} at most")
    for words in gate.words:
        yield _format_fact("", words)
    if gate.unaudited:
        yield _format_fact("unaudited", f"{', '.join(gate.unaudited)}: for these only the devices' own signals count")


def _wave_rows(view: RolloutView) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of waves."""
    for wave in view.waves:
        passed = (wave.proven, wave.succeeded, wave.failed, wave.left, wave.needed)
        numbers = (wave.number, wave.devices, wave.told, *passed)
        yield (*map(str, numbers), _wave_mark(view, wave))


def _wave_mark(view: RolloutView, wave: WaveView) -> str:
    """Return what became of a wave: its state now, "passed", or ""."""
    if wave.number == view.wave:
        return view.state.value
    return "" if wave.number > view.wave else "passed"


def _count_states(view: RolloutView) -> str:
    return ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in view.states.items()) or "none told"


def _format_previous(view: RolloutView) -> str:
    """Return the version before, and the permit it needs, as text."""
    if view.back is None:
        return ", with no version before: no comparison"
    return f", from {view.family}@{view.back.version}{f' under {view.permit}' if view.permit else ''}"


def _wave_progress(view: RolloutView) -> str:
    return f"{view.wave}/{len(view.waves)}"


def _commit_progress(view: RolloutView) -> str:
    return f"{view.states.get('succeeded', 0)}/{view.devices}"


def _state_verb(state: RolloutState) -> str:
    return {S.SOAKING: "is watched", S.EVALUATING: "is judged"}.get(state, f"is {state.value}")


def _format_fact(name: str, value: str) -> str:
    return f"  {name:<10} {value}"


def _format_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table with left-aligned columns, two spaces apart."""
    found = [head, *rows]
    widths = [max(len(row[column]) for row in found) for column in range(len(head))]
    for row in found:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
