"""Moves of the install machine that more than one event makes: onward, back, and to an end. Pure.

Rules 1 to 3 of `install_core` hold here too.
"""

from typing import Any

from msgspec.structs import replace

from edge_agent.install_words import (
    Check,
    CleanUp,
    Command,
    Done,
    Fetch,
    Limits,
    Report,
    RollBack,
    Row,
    Stop,
    Watch,
    Word,
    Write,
)  # fmt: skip
from models.store import Slot
from wire.rollout import Assignment, Failure, InstallState

S = InstallState
MS = 1000
FREE = frozenset({S.IDLE, S.SAFE_MODE})
EARLY = frozenset({S.CHECKING, S.ACCEPTED, S.DOWNLOADING, S.PAUSED, S.VERIFYING, S.STAGED, S.SELF_TEST})
_SERVED = frozenset({S.COMMITTED, S.ROLLED_BACK})
ERRAND = frozenset({S.DOWNLOADING, S.VERIFYING, S.STAGED, S.SELF_TEST})


class Moves:
    """`row` is what is on disk, or will be once the last `Write` is obeyed."""

    __slots__ = ("limits", "row")

    def __init__(self, row: Row, limits: Limits) -> None:
        self.row = row
        self.limits = limits

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

    def _check(self, now_ms: int) -> list[Command]:
        work = self._work()
        return [self._go(S.CHECKING, now_ms, tries=0), Report(word_of(work, S.CHECKING)), Check(work)]

    def _fetch(self) -> Fetch:
        return Fetch(self._target(), self.row.state)

    # The end

    def _roll_back(self, failure: Failure | None, why: str, now_ms: int) -> list[Command]:
        gone = self._go(S.ROLLING_BACK, now_ms, failure=failure, detail=why, not_before_ms=0)
        return [gone, RollBack(self._target())]

    def _rolled_back(self, now_ms: int) -> list[Command]:
        row = self.row
        until_ms = now_ms + int(self.limits.quarantine_s * MS) if row.failure else 0
        ended = self._ended(S.ROLLED_BACK, row.failure, row.detail)
        gone = self._go(S.ROLLED_BACK, now_ms, ended=ended)
        cleaned = CleanUp(self._target(), until_ms)
        return [gone, cleaned, *self._last_word(), Watch(None), *self._rest(now_ms)]

    def _safe_mode(self, event: Done, now_ms: int) -> list[Command]:
        """Nothing is left that may serve. Only a new assignment leads out."""
        ended = self._ended(S.SAFE_MODE, event.failure, event.detail)
        gone = self._go(S.SAFE_MODE, now_ms, ended=ended, work=None, failure=event.failure, safe=True)
        return [gone, Watch(None), *self._last_word()]

    def _end(
        self, state: InstallState, now_ms: int, failure: Failure | None = None, detail: str = "", *,
        hopeless: bool = False,
    ) -> list[Command]:  # fmt: skip
        """Before it served."""
        tried = self.row.state is S.SELF_TEST and failure in (Failure.SELF_TEST, Failure.INTEGRITY)
        until_ms = now_ms + int(self.limits.quarantine_s * MS) if tried else 0
        gone = self._go(state, now_ms, ended=self._ended(state, failure, detail), failure=failure, detail=detail)
        cleaned = CleanUp(self.row.target, until_ms, hopeless)
        return [Stop(), gone, cleaned, *self._last_word(), *self._rest(now_ms)]

    def _ended(self, state: InstallState, failure: Failure | None, detail: str) -> Word | None:
        return word_of(self.row.work, state, failure, detail) if self.row.work else None

    def _last_word(self) -> list[Command]:
        """With figures if it ever served."""
        ended = self.row.ended
        return [Report(ended, figures=ended.state in _SERVED)] if ended else []

    def _rest(self, now_ms: int) -> list[Command]:
        """Ready for the next."""
        state = S.SAFE_MODE if self.row.safe else S.IDLE
        return [self._go(state, now_ms, work=None, target=None, tries=0, not_before_ms=0)]


def word_of(work: Assignment, state: InstallState, failure: Failure | None = None, detail: str = "") -> Word:
    return Word(work.counter, work.rollout, work.family, state, failure, detail)
