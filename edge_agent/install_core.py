"""The device's install machine: what is done next with an assigned bundle, and when it is taken back.

Rule 1: every change of the row is decided here, and written before it is acted on; after any end of the process the row
alone says where to go on.
Rule 2: no I/O, no clock, no dice here: events and `now_ms` come in, commands go out.
Rule 3: what is committed stays, whatever becomes of its report; what is not committed needs nobody to be taken back.
"""

from collections.abc import Callable
from typing import Any

from edge_agent.install_begins import Begins
from edge_agent.install_moves import EARLY, ERRAND, FREE, MS, S, word_of
from edge_agent.install_words import (
    Activate,
    Activated,
    Check,
    Checked,
    Closing,
    Command,
    Commit,
    Done,
    Event,
    Examine,
    Examined,
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
)  # fmt: skip
from models.assigned import Held, heard
from policies.probation import broken, ripe
from wire.rollout import Assignment, Cohort, Failure, InstallState, Quality, Signals

_PASSING = frozenset({Failure.NETWORK, Failure.SLOW_RETRIEVAL})  # may be over in a while
_NOT_FOR_US = frozenset({Failure.INCOMPATIBLE, Failure.QUARANTINED, Failure.ROLLBACK, Failure.POLICY})


class InstallCore(Begins):
    """Of one device. Events of an errand that was stopped are no events: whoever obeys lets none through."""

    __slots__ = ("_device", "_examining", "_on")

    def __init__(self, device: str, row: Row, limits: Limits) -> None:
        super().__init__(row, limits)
        self._device = device
        self._reported_ms = 0
        self._examining = False
        self._on: dict[type, Callable[[Any, int], list[Command]]] = {
            Heard: self._heard, Started: self._started, Resumed: self._resumed, Checked: self._checked,
            Reached: self._reached, Fetched: self._fetched, Activated: self._activated, Observed: self._observed,
            Examined: self._examined, Done: self._done, Closing: self._closing,
        }  # fmt: skip

    def on(self, event: Event, now_ms: int) -> list[Command]:
        """One event; its commands are obeyed in order, and none after a `Write` that the disk refuses."""
        commands = self._on[type(event)](event, now_ms)
        queued = self.row.queued
        if queued is None or self.row.state not in FREE:
            return commands
        self._keep(queued=None)
        return [*commands, *(self._take(queued, now_ms) if now_ms < queued.expires_ms else [self._write()])]

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
        self._keep(control=None, work=assignment, target=None, ended=None, failure=None, detail="")
        self._keep(withdrawn=False, begun_ms=0)
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
        written = self._write(control=assignment, ended=None, seen=Signals(), quality=Quality())
        return [written, Watch(assignment), Report(word_of(assignment, S.IDLE), figures=True)]

    # Before it serves

    def _checked(self, event: Checked, now_ms: int) -> list[Command]:
        if self.row.state is not S.CHECKING:
            return []
        if event.target is None:
            failure = event.failure or Failure.INTERNAL
            if failure in _PASSING and self.row.tries < self.limits.retries:
                return self._later(event.jitter, now_ms)
            ended = S.REJECTED if failure in _NOT_FOR_US else S.FAILED
            return self._end(ended, now_ms, failure, event.detail)
        wait_ms = int(event.jitter * self.limits.spread_s * MS)
        earliest_ms = self.row.activated_ms + int(self.limits.interval_s * MS) if self.row.activated_ms else 0
        self._keep(target=event.target, length=event.length, not_before_ms=max(now_ms + wait_ms, earliest_ms))
        return [self._go(S.ACCEPTED, now_ms, tries=0), *self._download(now_ms)]

    def _download(self, now_ms: int) -> list[Command]:
        """If its time has come."""
        if now_ms < self.row.not_before_ms:
            return []
        begun_ms = self.row.begun_ms or now_ms
        gone = self._go(S.DOWNLOADING, now_ms, begun_ms=begun_ms)
        return [gone, Report(word_of(self._work(), S.DOWNLOADING)), self._fetch()]

    def _later(self, jitter: float, now_ms: int) -> list[Command]:
        """The same once more, from a minute on, each time twice as long."""
        wait_s = self.limits.retry_s * 2**self.row.tries * (0.5 + jitter)
        return [self._write(tries=self.row.tries + 1, not_before_ms=now_ms + int(wait_s * MS))]

    def _reached(self, event: Reached, now_ms: int) -> list[Command]:
        if self.row.state not in ERRAND:
            return []
        if event.state is self.row.state:
            return [Proceed()]
        gone = self._go(event.state, now_ms, tries=int(event.state is S.SELF_TEST))
        told = [Report(word_of(self._work(), event.state))] if event.state is S.SELF_TEST else []
        return [gone, *told, Proceed()]

    def _fetched(self, event: Fetched, now_ms: int) -> list[Command]:
        if self.row.state not in ERRAND:
            return []
        failure = event.failure
        if failure is None:
            attempts = self.limits.attempts
            gone = self._go(S.ACTIVATING, now_ms, target=event.slot, attempts=attempts, activated_ms=now_ms)
            return [gone, Activate(self._target())]
        in_time = now_ms - self.row.begun_ms < self.limits.downloading_s * MS
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
        return [gone, Watch(work, seen), Report(word_of(work, S.PROBATION), figures=True)]

    def _observed(self, event: Observed, now_ms: int) -> list[Command]:
        """Time has passed, and something may have been seen."""
        state, row = self.row.state, self.row
        if state is S.PROBATION:
            return self._judged(event, now_ms)
        if state is S.IDLE and row.control:
            return self._controlled(event, now_ms)
        due = now_ms >= row.not_before_ms
        if state is S.CHECKING and row.tries and due:
            return [self._write(not_before_ms=now_ms + int(self.limits.checking_s * MS)), Check(self._work())]
        if state is S.ROLLING_BACK and due:
            return [self._write(not_before_ms=now_ms + int(self.limits.retry_s * MS)), RollBack(self._target())]
        if state is S.COMMITTED and due:
            return [self._write(not_before_ms=now_ms + int(self.limits.retry_s * MS)), Commit(self._target())]
        return self._waited(event, now_ms)

    def _waited(self, event: Observed, now_ms: int) -> list[Command]:
        """States before it serves: for their time, for power, for a link that costs nothing."""
        state, row, limits = self.row.state, self.row, self.limits
        if state is S.ACCEPTED and now_ms - row.since_ms > limits.accepted_s * MS:
            return self._end(S.CANCELLED, now_ms, Failure.INTERNAL, "its time never came")
        if state is S.PAUSED and now_ms - row.since_ms > limits.paused_s * MS:
            return self._end(S.CANCELLED, now_ms, Failure.INTERNAL, "paused for too long")
        if state in (S.ACCEPTED, S.DOWNLOADING) and not event.download:
            return [Stop(), self._go(S.PAUSED, now_ms), Report(word_of(self._work(), S.PAUSED))]
        if state is S.ACCEPTED or (state is S.PAUSED and event.download):
            return self._download(now_ms)
        if state is S.DOWNLOADING and row.tries and now_ms >= row.not_before_ms:
            again = self._write(not_before_ms=now_ms + int(limits.downloading_s * MS))
            return [again, self._fetch()]
        return []

    def _judged(self, event: Observed, now_ms: int) -> list[Command]:
        self._keep(seen=event.seen, quality=event.quality)
        row, work = self.row, self._work()
        why = broken(event.seen, row.before, row.declared_bytes)
        if event.serving != self._target().digest:
            why = why or "it does not serve any more"
        if work.strict and now_ms - max(event.hub_ms, row.since_ms) > work.strict_s * MS:
            why = why or f"no hub for {work.strict_s:g} s"
        if why:
            return self._roll_back(Failure.HEALTH, why, now_ms)
        if ripe(event.seen, (now_ms - row.begun_ms) / MS, work) and not self._examining:
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
        if now_ms - self._reported_ms < assignment.report_s * MS:
            return []
        self._reported_ms = now_ms
        return [self._write(), Report(word_of(assignment, state), figures=True)]

    def _examined(self, event: Examined, now_ms: int) -> list[Command]:
        if self.row.state is not S.PROBATION:
            return []
        if not event.same:
            return self._roll_back(Failure.HEALTH, "answers its golden set otherwise than in its self-test", now_ms)
        ended = word_of(self._work(), S.COMMITTED)
        return [self._go(S.COMMITTED, now_ms, ended=ended, not_before_ms=0, safe=False), Commit(self._target())]

    def _done(self, event: Done, now_ms: int) -> list[Command]:
        state = self.row.state
        if state is S.COMMITTED:
            if event.failure:  # the disk does not take the floor now: what is committed stays
                return [self._write(not_before_ms=now_ms + int(self.limits.retry_s * MS))]
            return [*self._last_word(), Watch(None), *self._rest(now_ms)]
        if state is not S.ROLLING_BACK:
            return []
        if event.failure is Failure.DISK:
            return [self._write(not_before_ms=now_ms + int(self.limits.retry_s * MS))]
        return self._safe_mode(event, now_ms) if event.failure else self._rolled_back(now_ms)
