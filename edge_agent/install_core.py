"""The device's install machine: what is done next with an assigned bundle, and when it is taken back.

Rule 1: every change of the row is decided here, and written before it is acted on; after any end of the process the row
alone says where to go on.
Rule 2: no I/O, no clock, no dice here: events and `now_ms` come in, commands go out.
Rule 3: what is committed stays, whatever becomes of its report; what is not committed needs nobody to be taken back.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from edge_agent.install_words import (
    Activate,
    Activated,
    Check,
    Checked,
    CleanUp,
    Closing,
    Command,
    Commit,
    Done,
    Event,
    Examine,
    Examined,
    Fetch,
    Fetched,
    Heard,
    Limits,
    Observed,
    Proceed,
    Reached,
    Refused,
    Report,
    Resumed,
    RollBack,
    Row,
    Started,
    Stop,
    Watch,
    Word,
    Write,
)  # fmt: skip
from models.assigned import Held, heard
from models.store import Slot
from policies.probation import broken, ripe
from wire.rollout import Assignment, Cohort, Failure, InstallState, Quality, Signals

S = InstallState
FREE = frozenset({S.IDLE, S.SAFE_MODE})
EARLY = frozenset({S.CHECKING, S.ACCEPTED, S.DOWNLOADING, S.PAUSED, S.VERIFYING, S.STAGED, S.SELF_TEST})
ERRAND = frozenset({S.DOWNLOADING, S.VERIFYING, S.STAGED, S.SELF_TEST})
SERVING = frozenset({S.ACTIVATING, S.PROBATION, S.ROLLING_BACK, S.COMMITTED})  # the store may be on trial
_PASSING = frozenset({Failure.NETWORK, Failure.SLOW_RETRIEVAL})  # may be over in a while
_NOT_FOR_US = frozenset({Failure.INCOMPATIBLE, Failure.QUARANTINED, Failure.ROLLBACK, Failure.POLICY})
_S = 1000


class InstallCore:
    """Of one device. `row` is what is on disk, or will be once the last `Write` is obeyed."""

    __slots__ = ("_device", "_examining", "_on", "_reported_ms", "limits", "row")

    def __init__(self, device: str, row: Row, limits: Limits) -> None:
        self.row = row
        self._device = device
        self.limits = limits
        self._reported_ms = 0
        self._examining = False
        self._on: dict[type, Callable[[Any, int], list[Command]]] = {
            Heard: self._heard, Started: self._started, Resumed: self._resumed, Checked: self._checked,
            Reached: self._reached, Fetched: self._fetched, Activated: self._activated, Observed: self._observed,
            Examined: self._examined, Done: self._done, Closing: self._closing,
        }  # fmt: skip

    def on(self, event: Event, now_ms: int) -> list[Command]:
        """One event; its commands are obeyed in order, and none after a `Write` that the disk refuses."""
        return self._on[type(event)](event, now_ms)

    # What the hub wants

    def _heard(self, event: Heard, now_ms: int) -> list[Command]:
        assignment = event.assignment
        refusal = heard(assignment, Held(self._device, self.row.counter, self.row.newest), now_ms)
        if refusal:
            return [Refused(refusal)]
        if assignment == self.row.newest:
            return []
        self._keep(counter=assignment.counter, newest=assignment, queued=None)
        if self.row.state in EARLY:
            ended = S.CANCELLED if assignment.withdraw else S.SUPERSEDED
            return [*self._end(ended, now_ms), *self._take(assignment, now_ms)]
        return self._take(assignment, now_ms)

    def _take(self, assignment: Assignment, now_ms: int) -> list[Command]:
        """Begin with it, or keep it until what is under way has ended."""
        if assignment.withdraw:
            return self._withdraw(assignment, now_ms)
        if self.row.state not in FREE:
            return [self._write(queued=assignment)]
        if assignment.cohort is Cohort.CONTROL:
            return self._watch(assignment, now_ms)
        self._keep(control=None, work=assignment, target=None, failure=None, detail="", withdrawn=False, begun_ms=0)
        return [Watch(None), *self._check(now_ms)]

    def _withdraw(self, assignment: Assignment, now_ms: int) -> list[Command]:
        if self.row.state is S.PROBATION:
            self._keep(withdrawn=True)
            return self._roll_back(None, "withdrawn", now_ms)
        if self.row.state is S.ACTIVATING:
            return [self._write(withdrawn=True)]
        self._keep(control=None)
        ended = Word(assignment.counter, assignment.rollout, assignment.family, S.CANCELLED)
        return [self._write(ended=ended), Watch(None), Report(ended)]

    def _watch(self, assignment: Assignment, now_ms: int) -> list[Command]:
        """A control device: nothing is installed, and everything is counted."""
        self._reported_ms = now_ms
        written = self._write(control=assignment, seen=Signals(), quality=Quality())
        return [written, Watch(assignment), Report(_word(assignment, S.IDLE), figures=True)]

    # Before it serves

    def _check(self, now_ms: int) -> list[Command]:
        work = self._work()
        return [self._go(S.CHECKING, now_ms, tries=0), Report(_word(work, S.CHECKING)), Check(work)]

    def _checked(self, event: Checked, now_ms: int) -> list[Command]:
        if self.row.state is not S.CHECKING:
            return []
        if event.target is None:
            failure = event.failure or Failure.INTERNAL
            if failure in _PASSING and self.row.tries < self.limits.retries:
                return self._later(event.jitter, now_ms)
            ended = S.REJECTED if failure in _NOT_FOR_US else S.FAILED
            return self._end(ended, now_ms, failure, event.detail)
        wait_ms = int(event.jitter * self.limits.spread_s * _S)
        earliest_ms = self.row.activated_ms + int(self.limits.interval_s * _S) if self.row.activated_ms else 0
        self._keep(target=event.target, length=event.length, not_before_ms=max(now_ms + wait_ms, earliest_ms))
        return [self._go(S.ACCEPTED, now_ms, tries=0), *self._download(now_ms)]

    def _download(self, now_ms: int) -> list[Command]:
        """If its time has come."""
        if now_ms < self.row.not_before_ms:
            return []
        begun_ms = self.row.begun_ms or now_ms
        gone = self._go(S.DOWNLOADING, now_ms, begun_ms=begun_ms)
        return [gone, Report(_word(self._work(), S.DOWNLOADING)), self._fetch()]

    def _fetch(self) -> Fetch:
        return Fetch(self._target(), self.row.state)

    def _later(self, jitter: float, now_ms: int) -> list[Command]:
        """The same once more, from a minute on, each time twice as long."""
        wait_s = self.limits.retry_s * 2**self.row.tries * (0.5 + jitter)
        return [self._write(tries=self.row.tries + 1, not_before_ms=now_ms + int(wait_s * _S))]

    def _reached(self, event: Reached, now_ms: int) -> list[Command]:
        if self.row.state not in ERRAND:
            return []
        if event.state is self.row.state:
            return [Proceed()]
        gone = self._go(event.state, now_ms, tries=int(event.state is S.SELF_TEST))
        told = [Report(_word(self._work(), event.state))] if event.state is S.SELF_TEST else []
        return [gone, *told, Proceed()]

    def _fetched(self, event: Fetched, now_ms: int) -> list[Command]:
        if self.row.state not in ERRAND:
            return []
        failure = event.failure
        if failure is None:
            attempts = self.limits.attempts
            gone = self._go(S.ACTIVATING, now_ms, target=event.slot, attempts=attempts, activated_ms=now_ms)
            return [gone, Activate(self._target())]
        in_time = now_ms - self.row.begun_ms < self.limits.downloading_s * _S
        if failure in _PASSING and self.row.tries < self.limits.retries and in_time:
            return self._later(0.5, now_ms)
        if failure is Failure.INTERNAL and self.row.state is S.SELF_TEST and self.row.tries < self.limits.self_tests:
            return [self._write(tries=self.row.tries + 1), self._fetch()]
        return self._end(S.FAILED, now_ms, failure, event.detail, hopeless=event.hopeless)

    # While it serves

    def _activated(self, event: Activated, now_ms: int) -> list[Command]:
        if self.row.state is not S.ACTIVATING:
            return []
        if event.failure:
            return self._end(S.FAILED, now_ms, event.failure, event.detail)
        self._keep(before=event.before, declared_bytes=event.declared_bytes)
        return self._probation(Signals(starts=1), now_ms)

    def _probation(self, seen: Signals, now_ms: int) -> list[Command]:
        work = self._work()
        self._reported_ms, self._examining = now_ms, False
        gone = self._go(S.PROBATION, now_ms, seen=seen, quality=Quality(), clean=False, begun_ms=now_ms)
        if self.row.withdrawn:
            return [gone, *self._roll_back(None, "withdrawn", now_ms)]
        return [gone, Watch(work, seen), Report(_word(work, S.PROBATION), figures=True)]

    def _observed(self, event: Observed, now_ms: int) -> list[Command]:
        """Time has passed, and something may have been seen."""
        state, row = self.row.state, self.row
        if state is S.PROBATION:
            return self._judged(event, now_ms)
        if state is S.IDLE and row.control:
            return self._controlled(event, now_ms)
        due = now_ms >= row.not_before_ms
        if state is S.CHECKING and row.tries and due:
            return [self._write(not_before_ms=now_ms + int(self.limits.checking_s * _S)), Check(self._work())]
        if state is S.ROLLING_BACK and due:
            return [self._write(not_before_ms=now_ms + int(self.limits.retry_s * _S)), RollBack(self._target())]
        if state is S.COMMITTED and due:
            return [self._write(not_before_ms=now_ms + int(self.limits.retry_s * _S)), Commit(self._target())]
        return self._waited(event, now_ms)

    def _waited(self, event: Observed, now_ms: int) -> list[Command]:
        """States before it serves: for their time, for power, for a link that costs nothing."""
        state, row, limits = self.row.state, self.row, self.limits
        if state is S.ACCEPTED and now_ms - row.since_ms > limits.accepted_s * _S:
            return self._end(S.CANCELLED, now_ms, Failure.INTERNAL, "its time never came")
        if state is S.PAUSED and now_ms - row.since_ms > limits.paused_s * _S:
            return self._end(S.CANCELLED, now_ms, Failure.INTERNAL, "paused for too long")
        if state in (S.ACCEPTED, S.DOWNLOADING) and not event.download:
            return [Stop(), self._go(S.PAUSED, now_ms), Report(_word(self._work(), S.PAUSED))]
        if state is S.ACCEPTED or (state is S.PAUSED and event.download):
            return self._download(now_ms)
        if state is S.DOWNLOADING and row.tries and now_ms >= row.not_before_ms:
            again = self._write(not_before_ms=now_ms + int(limits.downloading_s * _S))
            return [again, self._fetch()]
        return []

    def _judged(self, event: Observed, now_ms: int) -> list[Command]:
        self._keep(seen=event.seen, quality=event.quality)
        row, work = self.row, self._work()
        why = broken(event.seen, row.before, row.declared_bytes)
        if event.serving != self._target().digest:
            why = why or "it does not serve any more"
        if work.strict and now_ms - max(event.hub_ms, row.since_ms) > work.strict_s * _S:
            why = why or f"no hub for {work.strict_s:g} s"
        if why:
            return self._roll_back(Failure.HEALTH, why, now_ms)
        if ripe(event.seen, (now_ms - row.begun_ms) / _S, work) and not self._examining:
            self._examining = True
            return [Examine()]
        return self._told(work, S.PROBATION, now_ms)

    def _controlled(self, event: Observed, now_ms: int) -> list[Command]:
        control = self.row.control
        if control is None or now_ms >= control.expires_ms:
            return [self._write(control=None), Watch(None)]
        self._keep(seen=event.seen, quality=event.quality)
        return self._told(control, S.IDLE, now_ms)

    def _told(self, assignment: Assignment, state: InstallState, now_ms: int) -> list[Command]:
        """The figures, now and then; what was told is remembered."""
        if now_ms - self._reported_ms < assignment.report_s * _S:
            return []
        self._reported_ms = now_ms
        return [self._write(), Report(_word(assignment, state), figures=True)]

    def _examined(self, event: Examined, now_ms: int) -> list[Command]:
        if self.row.state is not S.PROBATION:
            return []
        if not event.same:
            return self._roll_back(Failure.HEALTH, "answers its golden set otherwise than in its self-test", now_ms)
        ended = _word(self._work(), S.COMMITTED)
        return [self._go(S.COMMITTED, now_ms, ended=ended, not_before_ms=0), Commit(self._target())]

    # The end

    def _done(self, event: Done, now_ms: int) -> list[Command]:
        state = self.row.state
        if state is S.COMMITTED:
            if event.failure:  # the disk does not take the floor now: what is committed stays
                return [self._write(not_before_ms=now_ms + int(self.limits.retry_s * _S))]
            return [*self._last_word(figures=True), Watch(None), *self._rest(now_ms)]
        if state is not S.ROLLING_BACK:
            return []
        if event.failure is Failure.DISK:
            return [self._write(not_before_ms=now_ms + int(self.limits.retry_s * _S))]
        return self._safe_mode(event, now_ms) if event.failure else self._rolled_back(now_ms)

    def _roll_back(self, failure: Failure | None, why: str, now_ms: int) -> list[Command]:
        gone = self._go(S.ROLLING_BACK, now_ms, failure=failure, detail=why, not_before_ms=0)
        return [gone, RollBack(self._target())]

    def _rolled_back(self, now_ms: int) -> list[Command]:
        row = self.row
        until_ms = now_ms + int(self.limits.quarantine_s * _S) if row.failure else 0
        ended = self._ended(S.ROLLED_BACK, row.failure, row.detail)
        gone = self._go(S.ROLLED_BACK, now_ms, ended=ended)
        return [
            gone,
            CleanUp(self._target(), until_ms),
            *self._last_word(figures=True),
            Watch(None),
            *self._rest(now_ms),
        ]

    def _safe_mode(self, event: Done, now_ms: int) -> list[Command]:
        """Nothing is left that may serve. Only a new assignment leads out."""
        ended = self._ended(S.SAFE_MODE, event.failure, event.detail)
        gone = self._go(S.SAFE_MODE, now_ms, ended=ended, work=None, failure=event.failure)
        queued = self.row.queued
        return [gone, Watch(None), *self._last_word(), *(self._dequeue(queued, now_ms) if queued else [])]

    def _end(  # noqa: PLR0913 - how, and why
        self, state: InstallState, now_ms: int, failure: Failure | None = None, detail: str = "", *,
        hopeless: bool = False,
    ) -> list[Command]:  # fmt: skip
        """Before it served."""
        tried = failure in (Failure.SELF_TEST, Failure.INTEGRITY)
        until_ms = now_ms + int(self.limits.quarantine_s * _S) if tried else 0
        gone = self._go(state, now_ms, ended=self._ended(state, failure, detail), failure=failure, detail=detail)
        cleaned = CleanUp(self.row.target, until_ms, hopeless)
        return [Stop(), gone, cleaned, *self._last_word(), *self._rest(now_ms)]

    def _ended(self, state: InstallState, failure: Failure | None, detail: str) -> Word | None:
        return _word(self.row.work, state, failure, detail) if self.row.work else None

    def _last_word(self, *, figures: bool = False) -> list[Command]:
        return [Report(self.row.ended, figures)] if self.row.ended else []

    def _rest(self, now_ms: int) -> list[Command]:
        """IDLE, or what has waited."""
        queued = self.row.queued
        idle = self._go(S.IDLE, now_ms, work=None, target=None, tries=0, not_before_ms=0)
        return [idle, *(self._dequeue(queued, now_ms) if queued else [])]

    def _dequeue(self, queued: Assignment, now_ms: int) -> list[Command]:
        self._keep(queued=None)
        return self._take(queued, now_ms) if now_ms < queued.expires_ms else [self._write()]

    # A process begins, and ends

    def _started(self, event: Started, now_ms: int) -> list[Command]:
        """Before any model is loaded: only `Write`, `RollBack` and `CleanUp` are obeyed now, the rest by `Resumed`."""
        state, row = self.row.state, self.row
        flipped = row.target is not None and event.current == row.target.digest
        if event.on_trial and (state not in SERVING or not flipped):
            return self._orphaned(event, now_ms)
        if state is S.ACTIVATING:
            return self._torn(now_ms, flipped=flipped)
        if state is S.PROBATION:
            return self._counted_down(now_ms)
        if state is S.ROLLING_BACK:
            return [RollBack(self._target())]
        if state is S.SELF_TEST and row.tries >= self.limits.self_tests:
            return self._end(S.FAILED, now_ms, Failure.SELF_TEST, f"no end after {row.tries} tries", hopeless=True)
        return [self._write(tries=row.tries + 1)] if state is S.SELF_TEST else []

    def _orphaned(self, event: Started, now_ms: int) -> list[Command]:
        """What would serve was never committed, and nobody remembers why: the model before is the safe one."""
        self._keep(target=Slot("", 0, event.current), withdrawn=False)
        return self._roll_back(Failure.INTERNAL, "its row was lost", now_ms)

    def _torn(self, now_ms: int, *, flipped: bool) -> list[Command]:
        if not flipped:
            return [self._go(S.SELF_TEST, now_ms, tries=1)]
        self._keep(seen=Signals(), clean=False)
        return [self._go(S.PROBATION, now_ms, begun_ms=now_ms), *self._counted_down(now_ms)]

    def _counted_down(self, now_ms: int) -> list[Command]:
        """A start that follows a clean end costs nothing; any other may have been the model's doing."""
        row, crashed = self.row, not self.row.clean
        seen = replace(row.seen, starts=row.seen.starts + 1, crashes=row.seen.crashes + crashed)
        written = self._write(seen=seen, attempts=row.attempts - crashed, clean=False)
        if self.row.attempts <= 0:
            return [written, *self._roll_back(Failure.HEALTH, f"{seen.crashes} starts ended in a crash", now_ms)]
        return [written]

    def _resumed(self, event: Resumed, now_ms: int) -> list[Command]:
        """The loop is there: go on with what the row says."""
        said = self._last_word()
        state, row = self.row.state, self.row
        if state is S.PROBATION:
            return [*said, *self._resume_trial(event, now_ms)]
        if state is S.IDLE and row.control:
            return [*said, Watch(row.control, row.seen, row.quality)]
        if state in (S.CHECKING, S.ACCEPTED):
            return [*said, *self._check(now_ms)]
        if state is S.STAGED:
            return [*said, self._go(S.VERIFYING, now_ms), self._fetch()]
        if state in ERRAND:
            return [*said, self._fetch()]
        ends: dict[InstallState, list[Command]] = {
            S.ROLLING_BACK: [RollBack(self._target())] if row.target else [],
            S.COMMITTED: [Commit(self._target())] if row.target else [],
        }
        if state not in FREE and state not in ends and state is not S.PAUSED:  # an end that was not put away
            return [*said, *self._rest(now_ms)]
        return [*said, *ends.get(state, [])]

    def _resume_trial(self, event: Resumed, now_ms: int) -> list[Command]:
        row, work = self.row, self._work()
        if event.serving != self._target().digest:
            return self._roll_back(Failure.HEALTH, "it does not open", now_ms)
        self._reported_ms = now_ms
        return [Watch(work, row.seen, row.quality), Report(_word(work, S.PROBATION), figures=True)]

    def _closing(self, event: Closing, now_ms: int) -> list[Command]:
        del now_ms
        counts = self.row.state is S.PROBATION or self.row.control is not None
        figures = {"seen": event.seen, "quality": event.quality} if counts else {}
        return [self._write(clean=True, **figures)]

    # The row

    def _keep(self, **changes: Any) -> None:
        self.row = replace(self.row, **changes)

    def _write(self, **changes: Any) -> Write:
        self._keep(**changes)
        return Write(self.row)

    def _go(self, state: InstallState, now_ms: int, **changes: Any) -> Write:
        since_ms = self.row.since_ms if state is self.row.state else now_ms
        return self._write(state=state, since_ms=since_ms, **changes)

    def _work(self) -> Assignment:
        if self.row.work is None:
            raise RuntimeError(f"{self.row.state} without an assignment")
        return self.row.work

    def _target(self) -> Slot:
        if self.row.target is None:
            raise RuntimeError(f"{self.row.state} without a target")
        return self.row.target


def _word(work: Assignment, state: InstallState, failure: Failure | None = None, detail: str = "") -> Word:
    return Word(work.counter, work.rollout, work.family, state, failure, detail)
