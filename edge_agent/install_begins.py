"""The install machine when a process begins, and when it ends: where the row says to go on. Pure.

Rules 1 to 3 of `install_core` hold here too.
"""

from msgspec.structs import replace

from edge_agent.install_moves import ERRAND, FREE, Moves, S, word_of
from edge_agent.install_words import (
    Closing,
    Command,
    Commit,
    Report,
    Resumed,
    RollBack,
    Started,
    Watch,
)  # fmt: skip
from models.store import Slot
from wire.rollout import Failure, Signals

SERVING = frozenset({S.ACTIVATING, S.PROBATION, S.ROLLING_BACK, S.COMMITTED})  # the store may be on trial


class Begins(Moves):
    """`_reported_ms`: when figures were told last."""

    __slots__ = ("_reported_ms",)

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
        return self._tried_again(now_ms) if state is S.SELF_TEST else []

    def _tried_again(self, now_ms: int) -> list[Command]:
        """The self-test, or what follows it, has not ended before: perhaps it never will."""
        tries = self.row.tries
        if tries >= self.limits.self_tests:
            return self._end(S.FAILED, now_ms, Failure.SELF_TEST, f"no end after {tries} tries", hopeless=True)
        return [self._go(S.SELF_TEST, now_ms, tries=tries + 1)]

    def _orphaned(self, event: Started, now_ms: int) -> list[Command]:
        """What would serve was never committed, and nobody remembers why: the model before is the safe one."""
        self._keep(target=Slot("", 0, event.current), withdrawn=False)
        return self._roll_back(Failure.INTERNAL, "its row was lost", now_ms)

    def _torn(self, now_ms: int, *, flipped: bool) -> list[Command]:
        if not flipped:
            self._keep(state=S.SELF_TEST)
            return self._tried_again(now_ms)
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
        return [*self._last_word(), *self._gone_on(event, now_ms)]

    def _gone_on(self, event: Resumed, now_ms: int) -> list[Command]:  # noqa: PLR0911 - a state a line
        state, row = self.row.state, self.row
        if state in FREE:
            return [Watch(row.control, row.seen, row.quality)] if row.control else []
        if state is S.PROBATION:
            return self._resume_trial(event, now_ms)
        if state in (S.CHECKING, S.ACCEPTED):
            return self._check(now_ms)
        if state is S.STAGED:
            return [self._go(S.VERIFYING, now_ms), self._fetch()]
        if state in ERRAND:
            return [self._fetch()]
        if state is S.ROLLING_BACK:
            return [RollBack(self._target())]
        if state is S.COMMITTED:
            return [Commit(self._target())]
        return [] if state is S.PAUSED else self._rest(now_ms)  # an end that was not put away

    def _resume_trial(self, event: Resumed, now_ms: int) -> list[Command]:
        row, work = self.row, self._work()
        if event.serving != self._target().digest:
            return self._roll_back(Failure.HEALTH, "it does not open", now_ms)
        self._reported_ms = now_ms
        return [Watch(work, row.seen, row.quality), Report(word_of(work, S.PROBATION), figures=True)]

    def _closing(self, event: Closing, now_ms: int) -> list[Command]:
        del now_ms
        counts = self.row.state is S.PROBATION or self.row.control is not None
        figures = {"seen": event.seen, "quality": event.quality} if counts else {}
        return [self._write(clean=True, **figures)]
