"""Windows over the steps of a signal, by count or by event time: the same in forge, calibration and agent.

Pure: no clock, no I/O. A stream holds a bounded number of steps, whatever times come, and never raises for what a
sensor sends: what it does not use is counted. Arrays are float32 `[steps, channels]`.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from models.bundle.signal_preparation import SignalPreparation

Steps = npt.NDArray[np.float32]
_AGREEING = 3  # readings in a row that move the clock, forth or back
_FARTHEST_S = 1e11  # of an event time from 1970; beyond it a step's number is not exact


class StepLoss(StrEnum):
    """Why steps of a signal are in no window."""

    LATE = "late"  # came after the windows that they belong to
    CLOCK = "clock"  # a time far from the others, which nothing after it agreed with
    GAP = "gap"  # too many steps around them are missing


def cut_windows(steps: Steps, window: int, hop: int) -> npt.NDArray[np.float32]:
    """All whole windows `[count, window, channels]` of a recording, one every `hop` steps (0: every `window`)."""
    if len(steps) < window:
        return np.empty((0, window, steps.shape[1]), np.float32)
    every = np.lib.stride_tricks.sliding_window_view(steps, window, axis=0)[:: hop or window]
    return np.ascontiguousarray(every.transpose(0, 2, 1))


class CountedWindows:
    """Windows of steps as they come."""

    def __init__(self, preparation: SignalPreparation) -> None:
        self.lost: Counter[StepLoss] = Counter()
        self._window = preparation.window
        self._hop = preparation.hop or preparation.window
        self._held = np.empty((0, preparation.channels), np.float32)
        self._skip = 0  # steps between two windows, where they do not touch

    def add(self, steps: Steps, times_s: Sequence[float] = ()) -> list[Steps]:
        """Take in steps `[n, channels]`; returns the windows that are whole now. Times are not looked at."""
        del times_s
        skipped = min(self._skip, len(steps))
        self._skip -= skipped
        steps = steps[skipped:]
        if not len(self._held) and len(steps) == self._window == self._hop:
            return [steps]  # a message that is a window
        held = np.concatenate((self._held, steps)) if len(self._held) else steps
        found, at = [], 0
        while at + self._window <= len(held):
            found.append(held[at : at + self._window])
            at += self._hop
        self._skip += max(0, at - len(held))
        self._held = held[at:]
        return found

    @property
    def waiting(self) -> int:
        """Steps that are held for a window to come."""
        return len(self._held)


class TimedWindows:
    """Windows on a grid of event time: steps of 1/`rate_hz` seconds, filled by the readings that fall into them.

    A window is given once the newest reading is `lateness_s` behind its last step. A reading whose time is further
    from the newest than a window moves the grid only if those after it agree: a clock that was set, or a sensor that
    was silent for long.
    """

    def __init__(self, preparation: SignalPreparation) -> None:
        p = preparation
        self.lost: Counter[StepLoss] = Counter()
        self._rate_hz, self._window, self._hop = p.rate_hz, p.window, p.hop or p.window
        self._gap = p.gap
        self._lateness = int(np.ceil(p.lateness_s * p.rate_hz))
        self._reach = max(p.window, p.gap + 1, self._lateness + 1)  # steps ahead that need no second opinion
        self._sums: dict[int, tuple[Steps, int]] = {}  # by step: sum of its readings, and their number
        self._start: int | None = None  # first step of the window to come
        self._newest = 0
        self._done = 0  # end of the last window, or the start of the next one if that is earlier
        self._before: Steps | None = None  # the value of the step before `_start`
        self._before_age = 0
        self._suspects: list[tuple[int, Steps]] = []

    def add(self, steps: Steps, times_s: Sequence[float]) -> list[Steps]:
        """Take in readings `[n, channels]` with their event times; returns the windows that are whole now."""
        found: list[Steps] = []
        for values, time_s in zip(steps, times_s, strict=True):
            if not abs(time_s) < _FARTHEST_S:
                self.lost[StepLoss.CLOCK] += 1
                continue
            found += self._add_reading(int(np.floor(time_s * self._rate_hz + 0.5)), values)
        return found

    @property
    def waiting(self) -> int:
        """Steps and suspects that are held."""
        return len(self._sums) + len(self._suspects)

    def _add_reading(self, step: int, values: Steps) -> list[Steps]:
        if self._start is None:
            self._restart(step)
        if not -self._reach <= step - self._newest <= self._reach:
            return self._suspect(step, values)
        self.lost[StepLoss.CLOCK] += len(self._suspects)
        self._suspects.clear()
        return self._place(step, values)

    def _suspect(self, step: int, values: Steps) -> list[Steps]:
        """Hold a reading far from the others; as many in a row that agree are the new time."""
        if self._suspects and not -self._lateness <= step - self._suspects[-1][0] <= self._reach:
            self.lost[StepLoss.CLOCK] += len(self._suspects)
            self._suspects.clear()
        self._suspects.append((step, values))
        if len(self._suspects) < _AGREEING:
            return []
        agreed, self._suspects = self._suspects, []
        found = self._give_windows(self._newest)  # what is whole already, before the jump
        self._restart(min(at for at, _ in agreed))
        return found + [window for at, each in agreed for window in self._place(at, each)]

    def _restart(self, step: int) -> None:
        """Begin anew at a step; what waited can become no window any more."""
        self.lost[StepLoss.GAP] += sum(count for _, count in self._sums.values())
        self._sums.clear()
        self._start = self._done = self._newest = step
        self._before, self._before_age = None, 0

    def _place(self, step: int, values: Steps) -> list[Steps]:
        start = self._start
        self._newest = max(self._newest, step)
        if start is None or step < start:
            self.lost[StepLoss.LATE] += step < self._done  # else it lies between two windows that do not touch
            return []
        total, count = self._sums.get(step, (np.zeros_like(values), 0))
        self._sums[step] = total + values, count + 1
        return self._give_windows(self._newest - self._lateness)

    def _give_windows(self, until: int) -> list[Steps]:
        """The windows whose last step is `until` or earlier."""
        found: list[Steps] = []
        while self._start is not None and self._start + self._window - 1 <= until:
            window = self._fill_window(self._start)
            if window is not None:
                found.append(window)
            self._leave(self._start + self._hop, used=window is not None)
        return found

    def _fill_window(self, start: int) -> Steps | None:
        """The values of a window, short gaps filled; None if one is too long."""
        last, missing, rows = self._before, self._before_age, []
        for step in range(start, start + self._window):
            held = self._sums.get(step)
            if held is not None:
                last, missing = (held[0] / np.float32(held[1])).astype(np.float32), 0
            else:
                missing += 1
            if last is None or missing > self._gap:
                return None
            rows.append(last)
        return np.stack(rows)

    def _leave(self, start: int, *, used: bool) -> None:
        """Go on to the window that begins at `start`; forget the steps before it."""
        for step in sorted(step for step in self._sums if step < start):
            total, count = self._sums.pop(step)
            self._before, self._before_age = (total / np.float32(count)).astype(np.float32), start - 1 - step
            self.lost[StepLoss.GAP] += 0 if used else count
        self._done = min(start, start - self._hop + self._window)
        self._start = start


WindowStream = CountedWindows | TimedWindows


def open_windows(preparation: SignalPreparation) -> WindowStream:
    """The windows of one signal, for a complete preparation."""
    return TimedWindows(preparation) if preparation.rate_hz else CountedWindows(preparation)
