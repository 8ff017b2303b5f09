"""Progress of long commands on standard error: bars on a terminal, lines elsewhere.

Rule: nothing is silent for longer than half a minute. Without a terminal (a batch job, a container, a pipe) each stage
has a line when it starts, one every tenth of the work, one every 30 seconds, and one when it is done.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SILENCE_S = 30.0  # longest time without a line
_TENTH = 0.1
_QUICK_S = 1.0  # tenths of a stage that follow one another faster than this get no line each
_TOLD_S = 2.0  # shorter times say nothing of what is left
ProgressCallback = Callable[[str, float], None]


@contextmanager
def stage_progress(console: Console | None = None) -> Iterator[ProgressCallback]:
    """Show the stages of a run; yields the function (stage, share done in 0..1) that updates them.

    `console`: standard error unless another is given.
    """
    console = console or Console(stderr=True)
    shown = _draw_bars(console) if console.is_terminal else _print_lines(console.file)
    with shown as tell:
        yield tell


@contextmanager
def _draw_bars(console: Console) -> Iterator[ProgressCallback]:
    """One bar for each stage."""
    columns = (
        TextColumn("{task.description:<15}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, share: float) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=1.0)
            bar.update(tasks[stage], completed=share)

        yield tell


@contextmanager
def _print_lines(out: IO[str]) -> Iterator[ProgressCallback]:
    """One line at a time, written at once; a thread writes one when nothing was told for long."""
    lines, lock, ended = ProgressLines(time.monotonic()), threading.Lock(), threading.Event()

    def write(line: str) -> None:
        if line:
            print(line, file=out, flush=True)

    def tell(stage: str, share: float) -> None:
        with lock:
            write(lines.tell_share(stage, share, time.monotonic()))

    def break_silence() -> None:
        while not ended.wait(1.0):
            with lock:
                write(lines.break_silence(time.monotonic()))

    watch = threading.Thread(target=break_silence, name="progress", daemon=True)
    watch.start()
    try:
        yield tell
    finally:
        ended.set()
        watch.join()


class ProgressLines:
    """Decides when a line of progress is due, and words it. Times are seconds of one monotonic clock."""

    def __init__(self, now: float) -> None:
        self._stage = ""
        self._share = self._said_share = 0.0
        self._begun = self._said_at = now

    def tell_share(self, stage: str, share: float, now: float) -> str:
        """Line that a new share of a stage is worth, "" if none."""
        if stage != self._stage or share < self._share:
            return self._start_stage(stage, share, now)
        if self._share >= 1.0:
            return ""
        self._share = share
        further = share - self._said_share >= _TENTH - 1e-9 and now - self._said_at >= _QUICK_S
        return self._word_line(now) if share >= 1.0 or further else self.break_silence(now)

    def break_silence(self, now: float) -> str:
        """Line that is due because the last one was long ago, "" if it was not or nothing is under way."""
        silent = self._stage and self._share < 1.0 and now - self._said_at >= SILENCE_S
        return self._word_line(now) if silent else ""

    def _start_stage(self, stage: str, share: float, now: float) -> str:
        self._stage, self._share, self._begun = stage, share, now
        self._said_share, self._said_at = share, now
        return f"{stage}: done" if share >= 1.0 else f"{stage}: started"

    def _word_line(self, now: float) -> str:
        self._said_share, self._said_at = self._share, now
        took_s = now - self._begun
        if self._share >= 1.0:
            return f"{self._stage}: done in {_format_seconds(took_s)}"
        left = took_s * (1 - self._share) / self._share if self._share > 0 and took_s >= _TOLD_S else None
        told = "" if left is None else f", about {_format_seconds(left)} left"
        return f"{self._stage}: {self._share:.0%} after {_format_seconds(took_s)}{told}"


def _format_seconds(seconds: float) -> str:
    """Format a duration as `0.4 s`, `12 s` or `3 min 05 s`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"
