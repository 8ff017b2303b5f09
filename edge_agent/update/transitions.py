"""Transitions of the install machine that more than one event makes: onward, back, and to an end. Pure.

Rules 1 to 3 of `install_core` hold here too.
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
    """Owns the row of one device. `row`: what is on disk, or will be once the last `Write` is obeyed."""

    __slots__ = ("limits", "row")

    def __init__(self, row: InstallRow, limits: Limits) -> None:
        self.row = row
        self.limits = limits

    def keep(self, **changes: Any) -> None:
        """To be written with the next `Write`."""
        self.row = replace(self.row, **changes)

    def write(self, **changes: Any) -> Write:
        self.keep(**changes)
        return Write(self.row)

    def enter(self, state: InstallState, now_ms: int, **changes: Any) -> Write:
        since_ms = self.row.since_ms if state is self.row.state else now_ms
        return self.write(state=state, since_ms=since_ms, **changes)

    def wait(self, wait_s: float, now_ms: int, **changes: Any) -> Write:
        """The state's own action is not tried again for so long."""
        return self.write(not_before_ms=now_ms + int(wait_s * MS), **changes)

    @property
    def work(self) -> Assignment:
        if self.row.work is None:
            raise RuntimeError(f"{self.row.state} without an assignment")
        return self.row.work

    @property
    def target(self) -> Slot:
        if self.row.target is None:
            raise RuntimeError(f"{self.row.state} without a target")
        return self.row.target

    def check(self, now_ms: int) -> list[Command]:
        work = self.work
        return [self.enter(S.CHECKING, now_ms, tries=0), Report(status_of(work, S.CHECKING)), Check(work)]

    def fetch(self) -> Fetch:
        return Fetch(self.target, self.row.state)

    # The end

    def roll_back(self, failure: Failure | None, why: str, now_ms: int) -> list[Command]:
        entered = self.enter(S.ROLLING_BACK, now_ms, failure=failure, detail=why, not_before_ms=0)
        return [entered, RollBack(self.target)]

    def finish_roll_back(self, now_ms: int) -> list[Command]:
        row = self.row
        until_ms = now_ms + int(self.limits.quarantine_s * MS) if row.failure else 0
        ended = self._ended(S.ROLLED_BACK, row.failure, row.detail)
        entered = self.enter(S.ROLLED_BACK, now_ms, ended=ended)
        cleaned = CleanUp(self.target, until_ms)
        return [entered, cleaned, *self.report_end(), Watch(None), *self.become_free(now_ms)]

    def enter_safe_mode(self, event: Done, now_ms: int) -> list[Command]:
        """Nothing is left that may serve. Only a new assignment leads out."""
        ended = self._ended(S.SAFE_MODE, event.failure, event.detail)
        entered = self.enter(S.SAFE_MODE, now_ms, ended=ended, work=None, failure=event.failure, safe=True)
        return [entered, Watch(None), *self.report_end()]

    def end(
        self, state: InstallState, now_ms: int, failure: Failure | None = None, detail: str = "", *,
        hopeless: bool = False,
    ) -> list[Command]:  # fmt: skip
        """Before it served."""
        tried = self.row.state is S.SELF_TEST and failure in (Failure.SELF_TEST, Failure.INTEGRITY)
        until_ms = now_ms + int(self.limits.quarantine_s * MS) if tried else 0
        entered = self.enter(state, now_ms, ended=self._ended(state, failure, detail), failure=failure, detail=detail)
        cleaned = CleanUp(self.row.target, until_ms, hopeless)
        return [Stop(), entered, cleaned, *self.report_end(), *self.become_free(now_ms)]

    def _ended(self, state: InstallState, failure: Failure | None, detail: str) -> InstallStatus | None:
        return status_of(self.row.work, state, failure, detail) if self.row.work else None

    def report_end(self) -> list[Command]:
        """With figures if it ever served."""
        ended = self.row.ended
        return [Report(ended, figures=ended.state in _SERVED)] if ended else []

    def become_free(self, now_ms: int) -> list[Command]:
        """Ready for the next."""
        state = S.SAFE_MODE if self.row.safe else S.IDLE
        return [self.enter(state, now_ms, work=None, target=None, tries=0, not_before_ms=0)]


def status_of(work: Assignment, state: InstallState, failure: Failure | None = None, detail: str = "") -> InstallStatus:
    return InstallStatus(
        counter=work.counter, rollout=work.rollout, family=work.family, state=state, failure=failure, detail=detail
    )
