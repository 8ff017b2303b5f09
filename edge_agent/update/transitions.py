"""Transitions of the install machine that several events share: to the next state, back, and to an end. Pure.

Rules 1 to 3 of `machine` hold here too.
"""

from typing import Any

from msgspec.structs import replace

from edge_agent.update.types import (
    Check,
    CleanUp,
    Command,
    Done,
    Fetch,
    InstallRow,
    InstallStatus,
    Limits,
    Report,
    RollBack,
    Stop,
    Watch,
    Write,
)
from models.update.slots import Slot
from wire.protocol.rollout import Assignment, Failure, InstallState

S = InstallState
MS = 1000
FREE = frozenset({S.IDLE, S.SAFE_MODE})
EARLY = frozenset({S.CHECKING, S.ACCEPTED, S.DOWNLOADING, S.PAUSED, S.VERIFYING, S.STAGED, S.SELF_TEST})
_SERVED = frozenset({S.COMMITTED, S.ROLLED_BACK})
FETCHING = frozenset({S.DOWNLOADING, S.VERIFYING, S.STAGED, S.SELF_TEST})


class InstallTransitions:
    """Owner of one device's install row. `row`: what is on disk, or will be once the last `Write` is executed.

    Each method changes the row and returns the commands that must be executed for it, in order.
    """

    __slots__ = ("limits", "row")

    def __init__(self, row: InstallRow, limits: Limits) -> None:
        self.row = row
        self.limits = limits

    def keep(self, **changes: Any) -> None:
        """Change fields of the row; they are stored with the next `Write`."""
        self.row = replace(self.row, **changes)

    def write(self, **changes: Any) -> Write:
        """Change fields of the row, and store it."""
        self.keep(**changes)
        return Write(self.row)

    def enter(self, state: InstallState, now_ms: int, **changes: Any) -> Write:
        """Enter a state, and store the row. `since_ms` is kept if the row is in this state already."""
        since_ms = self.row.since_ms if state is self.row.state else now_ms
        return self.write(state=state, since_ms=since_ms, **changes)

    def wait(self, wait_s: float, now_ms: int, **changes: Any) -> Write:
        """Do not try the state's own action again for `wait_s` seconds."""
        return self.write(not_before_ms=now_ms + int(wait_s * MS), **changes)

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

    def check(self, now_ms: int) -> list[Command]:
        """Enter `checking`: ask the repository about the assignment."""
        work = self.work
        return [self.enter(S.CHECKING, now_ms, tries=0), Report(status_of(work, S.CHECKING)), Check(work)]

    def fetch(self) -> Fetch:
        """The command that lets the worker go on from the row's state."""
        return Fetch(self.target, self.row.state)

    # The end

    def roll_back(self, failure: Failure | None, why: str, now_ms: int) -> list[Command]:
        """Begin a rollback. `failure` None: the hub has withdrawn the model; `why`: one line for the report."""
        entered = self.enter(S.ROLLING_BACK, now_ms, failure=failure, detail=why, not_before_ms=0)
        return [entered, RollBack(self.target)]

    def finish_roll_back(self, now_ms: int) -> list[Command]:
        """The model before serves again: quarantine the one that failed, report, and become free."""
        row = self.row
        until_ms = now_ms + int(self.limits.quarantine_s * MS) if row.failure else 0
        ended = self._ended(S.ROLLED_BACK, row.failure, row.detail)
        entered = self.enter(S.ROLLED_BACK, now_ms, ended=ended)
        cleaned = CleanUp(self.target, until_ms)
        return [entered, cleaned, *self.report_end(), Watch(None), *self.become_free(now_ms)]

    def enter_safe_mode(self, event: Done, now_ms: int) -> list[Command]:
        """No model is left that may serve. Only a new assignment leads out of this state."""
        ended = self._ended(S.SAFE_MODE, event.failure, event.detail)
        entered = self.enter(S.SAFE_MODE, now_ms, ended=ended, work=None, failure=event.failure, safe=True)
        return [entered, Watch(None), *self.report_end()]

    def end(
        self, state: InstallState, now_ms: int, failure: Failure | None = None, detail: str = "", *,
        hopeless: bool = False,
    ) -> list[Command]:  # fmt: skip
        """End an install whose model has not served yet: stop the worker, clean up, report, and become free.

        A bundle that failed in its self-test is quarantined. `hopeless`: the bundle is never tried again.
        """
        tried = self.row.state is S.SELF_TEST and failure in (Failure.SELF_TEST, Failure.INTEGRITY)
        until_ms = now_ms + int(self.limits.quarantine_s * MS) if tried else 0
        entered = self.enter(state, now_ms, ended=self._ended(state, failure, detail), failure=failure, detail=detail)
        cleaned = CleanUp(self.row.target, until_ms, hopeless)
        return [Stop(), entered, cleaned, *self.report_end(), *self.become_free(now_ms)]

    def _ended(self, state: InstallState, failure: Failure | None, detail: str) -> InstallStatus | None:
        return status_of(self.row.work, state, failure, detail) if self.row.work else None

    def report_end(self) -> list[Command]:
        """Report how the last install ended; with figures if its model ever served."""
        ended = self.row.ended
        return [Report(ended, figures=ended.state in _SERVED)] if ended else []

    def become_free(self, now_ms: int) -> list[Command]:
        """Enter `idle`, or `safe_mode` while no model may serve: ready for the next assignment."""
        state = S.SAFE_MODE if self.row.safe else S.IDLE
        return [self.enter(state, now_ms, work=None, target=None, tries=0, not_before_ms=0)]


def status_of(work: Assignment, state: InstallState, failure: Failure | None = None, detail: str = "") -> InstallStatus:
    """The status of an assignment in a state, as it is reported to the hub."""
    return InstallStatus(
        counter=work.counter, rollout=work.rollout, family=work.family, state=state, failure=failure, detail=detail
    )
