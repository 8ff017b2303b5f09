"""A rollout in words: one line while it is waited for, a page when it is looked at. Pure.

Rule: wherever the gate's word is shown, what it does not know is shown with it: how small the sample is, which classes
were not audited, and what devices reported no figures.
"""

from collections.abc import Iterable, Iterator

from cloud_hub.cli.options import minute
from cloud_hub.rollout.types import BEFORE, PAUSED, TERMINAL, Entry, RolloutState
from cloud_hub.rollout.view import DeviceView, View, WaveView
from policies.rollout.gate import Gate
from wire.process.exit_codes import Exit

S = RolloutState
_ENDS = {
    S.COMPLETED: "successfully rolled out",
    S.COMPLETED_PARTIAL: "rolled out but for devices that were not in reach in time",
    S.ABORTED: "aborted",
    S.REVERTED: "reverted: what had committed is back",
    S.DENIED: "denied",
    S.EXPIRED: "expired: nobody approved it in time",
}
_PEOPLE = PAUSED | {S.WAITING_APPROVAL}


def exit_of(view: View) -> Exit:
    """What a status ends with: 0 while it goes on and when it has succeeded."""
    if view.state in _PEOPLE:
        return Exit.WAITING
    if view.state is S.COMPLETED_PARTIAL:
        return Exit.UNFINISHED
    return Exit.STOPPED if view.state in TERMINAL - {S.COMPLETED} else Exit.OK


def line(view: View) -> str:
    """How it is, in one line: said again when it changes."""
    why = f": {view.why}" if view.why else ""
    if view.state in TERMINAL:
        return f"rollout {view.id} {_ENDS[view.state]}{'' if view.state is S.COMPLETED else why}"
    if view.state is S.WAITING_APPROVAL:
        people = f"{len(view.approvals)} of {view.people} people"
        return f"Waiting for approval of {view.id}: {people} have; skerry rollout approve {view.id} --plan {view.plan}"
    if view.state in PAUSED:
        return f"Paused: {view.id}, wave {view.wave} of {len(view.waves)}{why}"
    if view.state in BEFORE:
        return f"Waiting for {view.id} to begin: {view.state}{why}"
    done = view.states.get("succeeded", 0)
    at = f"wave {view.wave} of {len(view.waves)} {_verb(view.state)}"
    return f"Waiting for {view.id} to finish: {done} of {view.devices} devices have committed, {at}{why}"


def page(view: View) -> Iterator[str]:
    """Everything of one rollout that a person looks for, lines of text."""
    yield f"{view.id}  {view.state}{f', wave {view.wave} of {len(view.waves)}' if view.wave else ''}"
    if view.why:
        yield _fact("why", view.why)
    yield _fact("version", f"{view.family}@{view.target.version}{_before(view)}")
    yield _fact("devices", f"{view.to}: {view.devices} of {view.fleet}; {_states(view)}")
    if view.people:
        yield _fact("approved", f"by {len(view.approvals)} of {view.people} people: {', '.join(view.approvals) or '-'}")
        yield _fact("plan", view.plan)
    yield _fact("started", f"{minute(view.made_ms)} by {view.by}")
    if view.ends_ms and view.state not in TERMINAL:
        yield _fact("next", f"{minute(view.ends_ms)} UTC at the latest")
    yield ""
    yield from _table(("wave", "devices", "told", "succeeded", "failed", "needed", ""), _waves(view))
    yield ""
    yield from _gate(view)


def table(views: Iterable[View]) -> Iterator[str]:
    """All rollouts, a line for each."""
    rows = (
        (v.id, f"{v.family}@{v.target.version}", v.state.value, _wave(v), _ready(v), minute(v.made_ms), v.why)
        for v in views
    )
    yield from _table(("ROLLOUT", "VERSION", "STATE", "WAVE", "COMMITTED", "STARTED", "WHY"), rows)


def devices(found: Iterable[DeviceView]) -> Iterator[str]:
    rows = (
        (d.device, str(d.wave or "-"), d.state.value, d.goal.value or "-", d.sub or "-", d.failure or "-")
        for d in found
    )
    yield from _table(("DEVICE", "WAVE", "STATE", "TOLD", "INSTALL", "FAILURE"), rows)


def history(found: Iterable[Entry]) -> Iterator[str]:
    rows = ((str(e.seq), minute(e.at_ms), e.by, e.what, e.why) for e in found)
    yield from _table(("REVISION", "TIME", "BY", "WHAT", "WHY"), rows)


def _gate(view: View) -> Iterator[str]:
    gate = view.gate
    if gate is None:
        last = view.wave == len(view.waves)
        alone = "in the last wave nobody is left to compare with: its results alone speak"
        yield _fact("gate", alone if last else "nothing looked at yet: devices report in their probation")
    else:
        yield from _judged(gate)
    yield _fact("sample", _sample(view))


def _sample(view: View) -> str:
    """What so few results can say at all."""
    wave = next((each for each in view.waves if each.number == view.wave), None)
    results = wave.succeeded + wave.failed if wave else 0
    if wave is None or not results:
        return "no result of this wave yet: no failure rate is excluded"
    said = f"{wave.failed} failures of {results} results in this wave"
    return f"{said}; 0 would exclude, with 95 % confidence, only failure rates above {view.excluded_above:.1%}"


def _judged(gate: Gate) -> Iterator[str]:
    yield _fact("gate", f"{gate.outcome}: {gate.why}")
    if gate.audits:
        seen = f"{100 * gate.effect:+.1f} points over {gate.audits} audits, between {100 * gate.low:+.1f} and"
        yield _fact("quality", f"{seen} {100 * gate.high:+.1f}; worse by {100 * gate.bound:.1f} at most")
    for words in gate.words:
        yield _fact("", words)
    if gate.unaudited:
        yield _fact("unaudited", f"{', '.join(gate.unaudited)}: only what devices see alone speaks for these")


def _waves(view: View) -> Iterator[tuple[str, ...]]:
    for wave in view.waves:
        numbers = (wave.number, wave.devices, wave.told, wave.succeeded, wave.failed, wave.needed)
        yield (*map(str, numbers), _mark(view, wave))


def _mark(view: View, wave: WaveView) -> str:
    if wave.number == view.wave:
        return view.state.value
    return "" if wave.number > view.wave else "passed"


def _states(view: View) -> str:
    return ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in view.states.items()) or "none told"


def _before(view: View) -> str:
    if view.back is None:
        return ", where nothing ran before: nothing to compare with"
    return f", from {view.family}@{view.back.version}{f' under {view.permit}' if view.permit else ''}"


def _wave(view: View) -> str:
    return f"{view.wave}/{len(view.waves)}"


def _ready(view: View) -> str:
    return f"{view.states.get('succeeded', 0)}/{view.devices}"


def _verb(state: RolloutState) -> str:
    return {S.SOAKING: "is watched", S.EVALUATING: "is judged"}.get(state, f"is {state.value}")


def _fact(name: str, value: str) -> str:
    return f"  {name:<10} {value}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    found = [head, *rows]
    widths = [max(len(row[column]) for row in found) for column in range(len(head))]
    for row in found:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
