"""Transitions of the install machine that several events share: to the next state, back, and to an end. Pure.

Rules 1 to 3 of `machine` hold here too.
"""

from typing import Any

from msgspec.structs import replace

from edge_agent.update.types import (
    ActionDone,
    CheckAssignment,
    CleanUpStore,
    FetchBundle,
    InstallCommand,
    InstallLimits,
    InstallRow,
    InstallStatus,
    ReportStatus,
    RollBackModel,
    StopWorker,
    WatchTrial,
    WriteRow,
)
from models.update.slots import Slot
from wire.protocol.rollout import Assignment, InstallFailure, InstallState

S = InstallState
MS_PER_S = 1000
FREE_STATES = frozenset({S.IDLE, S.SAFE_MODE})
EARLY_STATES = frozenset({S.CHECKING, S.ACCEPTED, S.DOWNLOADING, S.PAUSED, S.VERIFYING, S.STAGED, S.SELF_TEST})
_SERVED_STATES = frozenset({S.COMMITTED, S.ROLLED_BACK, S.SAFE_MODE})  # safe mode follows a failed rollback
FETCHING_STATES = frozenset({S.DOWNLOADING, S.VERIFYING, S.STAGED, S.SELF_TEST})


class InstallTransitions:
    """Owner of one device's install row. `row`: what is on disk, or will be once the last `WriteRow` is executed.

    Each method changes the row and returns the commands that must be executed for it, in order.
    """

    __slots__ = ("limits", "row")

    def __init__(self, row: InstallRow, limits: InstallLimits) -> None:
        self.row = row
        self.limits = limits

    def set_fields(self, **changes: Any) -> None:
        """Change fields of the row; they are stored with the next `WriteRow`."""
        self.row = replace(self.row, **changes)

    def write_row(self, **changes: Any) -> WriteRow:
        """Change fields of the row, and store it."""
        self.set_fields(**changes)
        return WriteRow(self.row)

    def enter_state(self, state: InstallState, now_ms: int, **changes: Any) -> WriteRow:
        """Enter a state, and store the row. `since_ms` is kept if the row is in this state already."""
        since_ms = self.row.since_ms if state is self.row.state else now_ms
        return self.write_row(state=state, since_ms=since_ms, **changes)

    def wait_for(self, wait_s: float, now_ms: int, **changes: Any) -> WriteRow:
        """Do not try the state's own action again for `wait_s` seconds."""
        return self.write_row(not_before_ms=now_ms + int(wait_s * MS_PER_S), **changes)

    def retry_later(self, jitter: float, now_ms: int) -> list[InstallCommand]:
        """Retry the state's action after `retry_s` seconds, twice as long each time, with jitter."""
        wait_s = self.limits.retry_s * 2**self.row.tries * (0.5 + jitter)
        return [self.wait_for(wait_s, now_ms, tries=self.row.tries + 1)]

    @property
    def work(self) -> Assignment:
        """The assignment that is being installed. RuntimeError if there is none: then the row is inconsistent."""
        if self.row.work is None:
            raise RuntimeError(f"{self.row.state} without an assignment")
        return self.row.work

    @property
    def target(self) -> Slot:
        """The slot of the bundle that is being installed. RuntimeError if there is none."""
        if self.row.target is None:
            raise RuntimeError(f"{self.row.state} without a target")
        return self.row.target

    def begin_check(self, now_ms: int) -> list[InstallCommand]:
        """Enter `checking`: ask the repository about the assignment."""
        work = self.work
        return [
            self.enter_state(S.CHECKING, now_ms, tries=0),
            ReportStatus(make_status(work, S.CHECKING)),
            CheckAssignment(work),
        ]

    def fetch_bundle(self) -> FetchBundle:
        """The command that lets the worker go on from the row's state."""
        return FetchBundle(self.target, self.row.state)

    # When a process begins

    def retry_self_test(self, now_ms: int) -> list[InstallCommand]:
        """The process ended during a self-test: start it once more, up to `self_tests` times, then end as failed."""
        tries = self.row.tries
        if tries >= self.limits.self_tests:
            why = f"no end after {tries} tries"
            return self.end_install(S.FAILED, now_ms, InstallFailure.SELF_TEST, why, hopeless=True)
        return [self.enter_state(S.SELF_TEST, now_ms, tries=tries + 1)]

    def count_start(self, now_ms: int) -> list[InstallCommand]:
        """Count a start on probation. One after a clean end costs nothing; any other may be the model's fault."""
        row, crashed = self.row, not self.row.clean
        seen = replace(row.seen, starts=row.seen.starts + 1, crashes=row.seen.crashes + crashed)
        written = self.write_row(seen=seen, attempts=row.attempts - crashed, clean=False)
        if self.row.attempts <= 0:
            why = f"{seen.crashes} starts ended in a crash"
            return [written, *self.roll_back(InstallFailure.HEALTH, why, now_ms)]
        return [written]

    # The end

    def roll_back(self, failure: InstallFailure | None, why: str, now_ms: int) -> list[InstallCommand]:
        """Begin a rollback. `failure` None: withdrawn, or never shown to be good; `why`: one line for the report."""
        entered = self.enter_state(S.ROLLING_BACK, now_ms, failure=failure, detail=why, not_before_ms=0)
        return [entered, RollBackModel(self.target)]

    def revert_unknown(self, digest: str, now_ms: int) -> list[InstallCommand]:
        """The store has a bundle on trial that the row knows nothing of: it was never committed, so roll it back."""
        self.set_fields(target=Slot("", 0, digest), withdrawn=False)
        return self.roll_back(InstallFailure.INTERNAL, "its row was lost", now_ms)

    def finish_roll_back(self, now_ms: int) -> list[InstallCommand]:
        """The model before serves again: quarantine the one that failed, report, and become free."""
        row = self.row
        until_ms = now_ms + int(self.limits.quarantine_s * MS_PER_S) if row.failure else 0
        ended = self._end_status(S.ROLLED_BACK, row.failure, row.detail)
        entered = self.enter_state(S.ROLLED_BACK, now_ms, ended=ended)
        cleaned = CleanUpStore(self.target, until_ms)
        return [entered, cleaned, *self.report_end(), WatchTrial(None), *self.become_free(now_ms)]

    def enter_safe_mode(self, event: ActionDone, now_ms: int) -> list[InstallCommand]:
        """No model is left that may serve. Only a new assignment leads out of this state."""
        ended = self._end_status(S.SAFE_MODE, event.failure, event.detail)
        entered = self.enter_state(S.SAFE_MODE, now_ms, ended=ended, work=None, failure=event.failure, safe=True)
        return [entered, WatchTrial(None), *self.report_end()]

    def end_install(
        self, state: InstallState, now_ms: int, failure: InstallFailure | None = None, detail: str = "", *,
        hopeless: bool = False,
    ) -> list[InstallCommand]:  # fmt: skip
        """End an install whose model has not served yet: stop the worker, clean up, report, and become free.

        A bundle that failed in its self-test is quarantined. `hopeless`: the bundle is never tried again.
        """
        tried = self.row.state is S.SELF_TEST and failure in (InstallFailure.SELF_TEST, InstallFailure.INTEGRITY)
        until_ms = now_ms + int(self.limits.quarantine_s * MS_PER_S) if tried else 0
        entered = self.enter_state(
            state, now_ms, ended=self._end_status(state, failure, detail), failure=failure, detail=detail
        )
        cleaned = CleanUpStore(self.row.target, until_ms, hopeless)
        return [StopWorker(), entered, cleaned, *self.report_end(), *self.become_free(now_ms)]

    def _end_status(self, state: InstallState, failure: InstallFailure | None, detail: str) -> InstallStatus | None:
        return make_status(self.row.work, state, failure, detail) if self.row.work else None

    def report_end(self) -> list[InstallCommand]:
        """Report how the last install ended; with figures if its model ever served."""
        ended = self.row.ended
        return [ReportStatus(ended, figures=ended.state in _SERVED_STATES)] if ended else []

    def become_free(self, now_ms: int) -> list[InstallCommand]:
        """Enter `idle`, or `safe_mode` while no model may serve: ready for the next assignment."""
        state = S.SAFE_MODE if self.row.safe else S.IDLE
        return [self.enter_state(state, now_ms, work=None, target=None, tries=0, not_before_ms=0)]


def make_status(
    work: Assignment, state: InstallState, failure: InstallFailure | None = None, detail: str = ""
) -> InstallStatus:
    """The status of an assignment in a state, as it is reported to the hub."""
    return InstallStatus(
        counter=work.counter, rollout=work.rollout, family=work.family, state=state, failure=failure, detail=detail
    )


def is_release(assignment: Assignment, work: Assignment | None) -> bool:
    """Whether an assignment only releases the install under way: the same bundle of the same rollout, to be kept."""
    if work is None or not work.needs_release or assignment.needs_release or assignment.withdraw:
        return False
    same = (assignment.rollout, assignment.cohort, assignment.path, assignment.version, assignment.digest)
    return same == (work.rollout, work.cohort, work.path, work.version, work.digest)
