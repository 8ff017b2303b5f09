"""Install state machine of a device: decides the next step with an assigned bundle, and when it is rolled back. Pure.

The path is checking, accepted, downloading, verifying, staged, self-test, activating, probation, committed; every state
may end in failed, cancelled, superseded or rolled back. It follows A/B updates with a trial boot and a boot counter.

Rule 1: every change of the row is decided here and in `transitions`, and written before it is acted on; after any end
of the process the row alone says where to go on.
Rule 2: no I/O, no clock, no randomness: events and `now_ms` (hub time) come in, commands go out.
Rule 3: what is committed stays, whatever becomes of its report; what is not committed is rolled back without a hub.
Rule 4: where the assignment says so, a model is committed only once the hub has released it; until then it is on trial.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from edge_agent.update.transitions import (
    EARLY_STATES,
    FETCHING_STATES,
    FREE_STATES,
    MS_PER_S,
    InstallTransitions,
    S,
    is_release,
    make_status,
)
from edge_agent.update.types import (
    ActionDone,
    ActivateModel,
    AssignmentChecked,
    AssignmentReceived,
    BundleFetched,
    CheckAssignment,
    CheckGoldenSet,
    CommitModel,
    GoldenSetChecked,
    HealthObserved,
    InstallCommand,
    InstallEvent,
    InstallLimits,
    InstallRow,
    InstallStatus,
    LoopStarted,
    ModelActivated,
    ProceedWorker,
    ProcessClosing,
    ProcessStarted,
    RefuseAssignment,
    ReportStatus,
    RollBackModel,
    StateReached,
    StopWorker,
    WatchTrial,
)
from models.update.assignments import HeldAssignment, check_assignment
from policies.rollout_rules.probation import find_breach, find_end, is_soak_over
from wire.protocol.rollout import Assignment, AuditQuality, DeviceSignals, InstallFailure, InstallState, RolloutCohort

_SERVING = frozenset({S.ACTIVATING, S.PROBATION, S.ROLLING_BACK, S.COMMITTED})  # the store may be on trial
_PASSING = frozenset({InstallFailure.NETWORK, InstallFailure.SLOW_RETRIEVAL})  # may be over in a while
_NOT_FOR_US = frozenset(
    {InstallFailure.INCOMPATIBLE, InstallFailure.QUARANTINED, InstallFailure.ROLLBACK, InstallFailure.POLICY}
)


class InstallMachine:
    """The state machine of one device's installs.

    `row`: the stored state it goes on from. Whoever executes its commands must not pass on events of a worker that it
    has stopped.
    """

    __slots__ = ("_device", "_examining", "_moves", "_on", "_reported_ms", "_told_passed", "limits")

    def __init__(self, device: str, row: InstallRow, limits: InstallLimits) -> None:
        self._device = device
        self._moves = InstallTransitions(row, limits)
        self.limits = limits
        self._reported_ms = 0  # when figures were last reported
        self._examining = self._told_passed = False
        self._on: dict[type, Callable[[Any, int], list[InstallCommand]]] = {
            AssignmentReceived: self._on_assignment, ProcessStarted: self._on_started, LoopStarted: self._on_resumed,
            AssignmentChecked: self._on_checked, StateReached: self._on_reached, BundleFetched: self._on_fetched,
            ModelActivated: self._on_activated, HealthObserved: self._on_observed, GoldenSetChecked: self._on_examined,
            ActionDone: self._on_done, ProcessClosing: self._on_closing,
        }  # fmt: skip

    @property
    def row(self) -> InstallRow:
        """The row on disk, or the row that will be there once the last `WriteRow` is executed."""
        return self._moves.row

    def handle_event(self, event: InstallEvent, now_ms: int) -> list[InstallCommand]:
        """Take one event and return the commands that follow from it, to be executed in order.

        `now_ms`: hub time. None of the commands after a `WriteRow` may be executed if the disk refuses it. A queued
        assignment is taken up as soon as the machine is free, unless it has expired.
        """
        commands = self._on[type(event)](event, now_ms)
        queued = self.row.queued
        if queued is None or self.row.state not in FREE_STATES:
            return commands
        self._moves.set_fields(queued=None)
        if now_ms >= queued.expires_ms:
            return [*commands, self._moves.write_row()]
        return [*commands, *self._begin_assignment(queued, now_ms)]

    # What the hub wants

    def _on_assignment(self, event: AssignmentReceived, now_ms: int) -> list[InstallCommand]:
        """An assignment or a withdrawal: refuse it, ignore a repeat, supersede an early install, or take it up."""
        assignment = event.assignment
        refusal = check_assignment(assignment, HeldAssignment(self._device, self.row.counter, self.row.newest), now_ms)
        if refusal:
            return [RefuseAssignment(refusal)]
        if assignment == self.row.newest:
            return []
        self._moves.set_fields(counter=assignment.counter, newest=assignment, queued=None)
        if is_release(assignment, self.row.work):
            return [self._moves.write_row(work=assignment)]
        if self.row.state in EARLY_STATES:
            ended = S.CANCELLED if assignment.withdraw else S.SUPERSEDED
            return [*self._moves.end_install(ended, now_ms), *self._begin_assignment(assignment, now_ms)]
        return self._begin_assignment(assignment, now_ms)

    def _begin_assignment(self, assignment: Assignment, now_ms: int) -> list[InstallCommand]:
        """Begin with an assignment, or queue it until what is under way has ended."""
        if assignment.withdraw:
            return self._withdraw_install(assignment, now_ms)
        if self.row.state not in FREE_STATES:
            return [self._moves.write_row(queued=assignment)]
        if assignment.cohort is RolloutCohort.CONTROL:
            return self._watch_control(assignment, now_ms)
        self._moves.set_fields(control=None, work=assignment, target=None, ended=None, failure=None, detail="")
        self._moves.set_fields(withdrawn=False, begun_ms=0)
        return [WatchTrial(None), *self._moves.begin_check(now_ms)]

    def _withdraw_install(self, assignment: Assignment, now_ms: int) -> list[InstallCommand]:
        """The hub withdraws its assignment: a model on trial goes back, an activation goes back once it is done."""
        if self.row.state is S.PROBATION:
            return self._moves.roll_back(None, "withdrawn", now_ms)
        if self.row.state is S.ACTIVATING:
            return [self._moves.write_row(withdrawn=True)]
        self._moves.set_fields(control=None)
        ended = InstallStatus(assignment.counter, assignment.rollout, assignment.family, S.CANCELLED)
        return [self._moves.write_row(ended=ended), WatchTrial(None), ReportStatus(ended)]

    def _watch_control(self, assignment: Assignment, now_ms: int) -> list[InstallCommand]:
        """Join a rollout's control group: nothing is installed, and the serving model's figures are counted."""
        self._reported_ms = now_ms
        written = self._moves.write_row(control=assignment, ended=None, seen=DeviceSignals(), quality=AuditQuality())
        return [written, WatchTrial(assignment), ReportStatus(make_status(assignment, S.IDLE), figures=True)]

    # Before it serves

    def _on_checked(self, event: AssignmentChecked, now_ms: int) -> list[InstallCommand]:
        """The repository's answer: accept with a random delay, retry a network failure, or end the install."""
        if self.row.state is not S.CHECKING:
            return []
        if event.target is None:
            failure = event.failure or InstallFailure.INTERNAL
            if failure in _PASSING and self.row.tries < self.limits.retries:
                return self._moves.retry_later(event.jitter, now_ms)
            ended = S.REJECTED if failure in _NOT_FOR_US else S.FAILED
            return self._moves.end_install(ended, now_ms, failure, event.detail)
        wait_ms = int(event.jitter * self.limits.spread_s * MS_PER_S)
        earliest_ms = self.row.activated_ms + int(self.limits.interval_s * MS_PER_S) if self.row.activated_ms else 0
        begin_ms = max(now_ms + wait_ms, earliest_ms)
        self._moves.set_fields(target=event.target, length=event.length, not_before_ms=begin_ms)
        return [self._moves.enter_state(S.ACCEPTED, now_ms, tries=0), *self._start_download(now_ms)]

    def _start_download(self, now_ms: int) -> list[InstallCommand]:
        """Begin the download if its time has come: after the random delay and the pause between activations."""
        if now_ms < self.row.not_before_ms:
            return []
        begun_ms = self.row.begun_ms or now_ms
        entered = self._moves.enter_state(S.DOWNLOADING, now_ms, begun_ms=begun_ms)
        return [entered, ReportStatus(make_status(self._moves.work, S.DOWNLOADING)), self._moves.fetch_bundle()]

    def _on_reached(self, event: StateReached, now_ms: int) -> list[InstallCommand]:
        """The worker announces its next state: write it, then let the worker go on."""
        if self.row.state not in FETCHING_STATES:
            return []
        if event.state is self.row.state:
            return [ProceedWorker()]
        entered = self._moves.enter_state(event.state, now_ms, tries=int(event.state is S.SELF_TEST))
        told = [ReportStatus(make_status(self._moves.work, event.state))] if event.state is S.SELF_TEST else []
        return [entered, *told, ProceedWorker()]

    def _on_fetched(self, event: BundleFetched, now_ms: int) -> list[InstallCommand]:
        """The worker's result: activate, retry a passing failure in time, or end as failed."""
        if self.row.state not in FETCHING_STATES:
            return []
        failure = event.failure
        if failure is None:
            self._moves.set_fields(target=event.slot, attempts=self.limits.attempts, activated_ms=now_ms)
            return [self._moves.enter_state(S.ACTIVATING, now_ms), ActivateModel(self._moves.target)]
        in_time = now_ms - self.row.begun_ms < self.limits.downloading_s * MS_PER_S
        if failure in _PASSING and self.row.tries < self.limits.retries and in_time:
            return self._moves.retry_later(0.5, now_ms)
        again = self.row.state is S.SELF_TEST and self.row.tries < self.limits.self_tests
        if failure is InstallFailure.INTERNAL and again:
            return [self._moves.write_row(tries=self.row.tries + 1), self._moves.fetch_bundle()]
        ended = S.REJECTED if failure in _NOT_FOR_US else S.FAILED
        return self._moves.end_install(ended, now_ms, failure, event.detail, hopeless=event.hopeless)

    # While it serves

    def _on_activated(self, event: ModelActivated, now_ms: int) -> list[InstallCommand]:
        """The new model serves: begin its probation, or end as failed."""
        if self.row.state is not S.ACTIVATING:
            return []
        if event.failure:
            return self._moves.end_install(S.FAILED, now_ms, event.failure, event.detail)
        self._moves.set_fields(before=event.before, declared_bytes=event.declared_bytes)
        return self._enter_probation(DeviceSignals(starts=1), now_ms)

    def _enter_probation(self, seen: DeviceSignals, now_ms: int) -> list[InstallCommand]:
        """Begin counting for the model on trial; a withdrawal that came meanwhile rolls it back at once."""
        work = self._moves.work
        self._reported_ms, self._examining, self._told_passed = now_ms, False, False
        self._moves.set_fields(seen=seen, quality=AuditQuality(), clean=False, begun_ms=now_ms)
        entered = self._moves.enter_state(S.PROBATION, now_ms)
        if self.row.withdrawn:
            return [entered, *self._moves.roll_back(None, "withdrawn", now_ms)]
        return [entered, WatchTrial(work, seen), ReportStatus(make_status(work, S.PROBATION), figures=True)]

    def _on_observed(self, event: HealthObserved, now_ms: int) -> list[InstallCommand]:
        """A tick: judge a probation, report a control device's figures, retry what is due, or wait on."""
        state, row = self.row.state, self.row
        if state is S.PROBATION:
            return self._judge_probation(event, now_ms)
        if state is S.IDLE and row.control:
            return self._observe_control(event, now_ms)
        due = now_ms >= row.not_before_ms
        if state is S.CHECKING and row.tries and due:
            return [self._moves.wait_for(self.limits.checking_s, now_ms), CheckAssignment(self._moves.work)]
        if state is S.ROLLING_BACK and due:
            return [self._moves.wait_for(self.limits.retry_s, now_ms), RollBackModel(self._moves.target)]
        if state is S.COMMITTED and due:
            return [self._moves.wait_for(self.limits.retry_s, now_ms), CommitModel(self._moves.target)]
        return self._observe_waiting(event, now_ms)

    def _observe_waiting(self, event: HealthObserved, now_ms: int) -> list[InstallCommand]:
        """Before activation: time limits, and pausing while battery or link do not allow a download."""
        state, row, limits = self.row.state, self.row, self.limits
        if state is S.ACCEPTED and now_ms - row.since_ms > limits.accepted_s * MS_PER_S:
            return self._moves.end_install(S.CANCELLED, now_ms, InstallFailure.INTERNAL, "its time never came")
        if state is S.PAUSED and now_ms - row.since_ms > limits.paused_s * MS_PER_S:
            return self._moves.end_install(S.CANCELLED, now_ms, InstallFailure.INTERNAL, "paused for too long")
        if state in (S.ACCEPTED, S.DOWNLOADING) and not event.download:
            entered = self._moves.enter_state(S.PAUSED, now_ms)
            return [StopWorker(), entered, ReportStatus(make_status(self._moves.work, S.PAUSED))]
        if state is S.ACCEPTED or (state is S.PAUSED and event.download):
            return self._start_download(now_ms)
        if state is S.DOWNLOADING and row.tries and now_ms >= row.not_before_ms:
            return [self._moves.wait_for(limits.downloading_s, now_ms), self._moves.fetch_bundle()]
        return []

    def _judge_probation(self, event: HealthObserved, now_ms: int) -> list[InstallCommand]:
        """Judge a model on trial: roll back on broken signals, commit when it has served long and well enough.

        A strict rollout is rolled back too after `strict_s` seconds without a hub. A probation that is over waits for
        the hub's release if it needs one, and still has to pass its golden set in the very session that serves.
        """
        self._moves.set_fields(seen=event.seen, quality=event.quality)
        row, work = self.row, self._moves.work
        elapsed_s = (now_ms - row.begun_ms) / MS_PER_S
        why = find_breach(event.seen, row.before, row.declared_bytes)
        if event.serving != self._moves.target.digest:
            why = why or "it does not serve any more"
        if work.strict and now_ms - max(event.hub_ms, row.since_ms) > work.strict_s * MS_PER_S:
            why = why or f"no hub for {work.strict_s:g} s"
        if why:
            return self._moves.roll_back(InstallFailure.HEALTH, why, now_ms)
        end = find_end(event.seen, elapsed_s, now_ms, work)
        if end:
            return self._moves.roll_back(None, end, now_ms)
        passed = is_soak_over(event.seen, elapsed_s, work)
        if passed and not work.needs_release and not self._examining:
            self._examining = True
            return [CheckGoldenSet()]
        return self._report_figures(work, S.PROBATION, now_ms, passed=passed)

    def _observe_control(self, event: HealthObserved, now_ms: int) -> list[InstallCommand]:
        """Report a control device's figures until its assignment expires."""
        control = self.row.control
        if control is None or now_ms >= control.expires_ms:
            return [self._moves.write_row(control=None), WatchTrial(None)]
        self._moves.set_fields(seen=event.seen, quality=event.quality)
        return self._report_figures(control, S.IDLE, now_ms)

    def _report_figures(
        self, assignment: Assignment, state: InstallState, now_ms: int, *, passed: bool = False
    ) -> list[InstallCommand]:
        """Report the figures every `report_s` seconds, at once when the trial has `passed`; store what was reported."""
        if now_ms - self._reported_ms < assignment.report_s * MS_PER_S and passed <= self._told_passed:
            return []
        self._reported_ms, self._told_passed = now_ms, passed
        status = replace(make_status(assignment, state), trial_passed=passed)
        return [self._moves.write_row(), ReportStatus(status, figures=True)]

    def _on_examined(self, event: GoldenSetChecked, now_ms: int) -> list[InstallCommand]:
        """The golden set of the serving session: commit if it answers as in its self-test, else roll back."""
        if self.row.state is not S.PROBATION:
            return []
        if not event.same:
            why = "answers its golden set otherwise than in its self-test"
            return self._moves.roll_back(InstallFailure.HEALTH, why, now_ms)
        ended = make_status(self._moves.work, S.COMMITTED)
        entered = self._moves.enter_state(S.COMMITTED, now_ms, ended=ended, not_before_ms=0, safe=False)
        return [entered, CommitModel(self._moves.target)]

    def _on_done(self, event: ActionDone, now_ms: int) -> list[InstallCommand]:
        """A commit or rollback has ended: report and become free, retry after a disk failure, or enter safe mode."""
        state = self.row.state
        if state is S.COMMITTED:
            if event.failure:  # the disk does not take the floor now: what is committed stays
                return [self._moves.wait_for(self.limits.retry_s, now_ms)]
            return [*self._moves.report_end(), WatchTrial(None), *self._moves.become_free(now_ms)]
        if state is not S.ROLLING_BACK:
            return []
        if event.failure is InstallFailure.DISK:
            return [self._moves.wait_for(self.limits.retry_s, now_ms)]
        return self._moves.enter_safe_mode(event, now_ms) if event.failure else self._moves.finish_roll_back(now_ms)

    # When a process begins, and when it ends

    def _on_started(self, event: ProcessStarted, now_ms: int) -> list[InstallCommand]:
        """Resume at the start of a process, before any model is loaded.

        Only `WriteRow`, `RollBackModel` and `CleanUpStore` are executed now; the rest follows from `LoopStarted`.
        """
        state, row = self.row.state, self.row
        flipped = row.target is not None and event.current == row.target.digest
        if event.on_trial and (state not in _SERVING or not flipped):
            return self._moves.revert_unknown(event.current, now_ms)
        if state is S.ACTIVATING:
            return self._resume_activation(now_ms, flipped=flipped)
        if state is S.PROBATION:
            return self._moves.count_start(now_ms)
        if state is S.ROLLING_BACK:
            return [RollBackModel(self._moves.target)]
        return self._moves.retry_self_test(now_ms) if state is S.SELF_TEST else []

    def _resume_activation(self, now_ms: int, *, flipped: bool) -> list[InstallCommand]:
        """The process ended while activating: on to probation if the store has flipped, else back to the self-test."""
        if not flipped:
            self._moves.set_fields(state=S.SELF_TEST)
            return self._moves.retry_self_test(now_ms)
        self._moves.set_fields(seen=DeviceSignals(), clean=False)
        return [self._moves.enter_state(S.PROBATION, now_ms, begun_ms=now_ms), *self._moves.count_start(now_ms)]

    def _on_resumed(self, event: LoopStarted, now_ms: int) -> list[InstallCommand]:
        """The event loop runs: report how the last install ended, and go on with what the row says."""
        return [*self._moves.report_end(), *self._resume_state(event, now_ms)]

    def _resume_state(self, event: LoopStarted, now_ms: int) -> list[InstallCommand]:  # noqa: PLR0911 - a state a line
        state, row = self.row.state, self.row
        if state in FREE_STATES:
            return [WatchTrial(row.control, row.seen, row.quality)] if row.control else []
        if state is S.PROBATION:
            return self._resume_trial(event, now_ms)
        if state in (S.CHECKING, S.ACCEPTED):
            return self._moves.begin_check(now_ms)
        if state is S.STAGED:
            return [self._moves.enter_state(S.VERIFYING, now_ms), self._moves.fetch_bundle()]
        if state in FETCHING_STATES:
            return [self._moves.fetch_bundle()]
        if state is S.ROLLING_BACK:
            return [RollBackModel(self._moves.target)]
        if state is S.COMMITTED:
            return [CommitModel(self._moves.target)]
        return [] if state is S.PAUSED else self._moves.become_free(now_ms)  # an end that was not put away

    def _resume_trial(self, event: LoopStarted, now_ms: int) -> list[InstallCommand]:
        """Go on with a probation, or roll back if the model on trial is not the one that serves."""
        row, work = self.row, self._moves.work
        if event.serving != self._moves.target.digest:
            return self._moves.roll_back(InstallFailure.HEALTH, "it does not open", now_ms)
        self._reported_ms = now_ms
        return [WatchTrial(work, row.seen, row.quality), ReportStatus(make_status(work, S.PROBATION), figures=True)]

    def _on_closing(self, event: ProcessClosing, now_ms: int) -> list[InstallCommand]:
        """A clean end of the process: store that it was clean, and the figures."""
        del now_ms
        counts = self.row.state is S.PROBATION or self.row.control is not None
        figures = {"seen": event.seen, "quality": event.quality} if counts else {}
        return [self._moves.write_row(clean=True, **figures)]
