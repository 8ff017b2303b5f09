"""Terminal output of a run: progress while it goes on, and a summary when it is over."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from simulations.report.expectations import compute_figure, select_window
from simulations.report.formatting import format_clock, format_duration, format_figure
from simulations.report.outcome import JudgedExpectation, Outcome, RunProgress
from simulations.report.page import format_bounds, summarize_verdict
from simulations.scenario.types import Scenario
from wire.process.terminal import open_console

_LINE_S = 10.0  # between two lines where nobody watches
_FIGURES = ("asked_share", "hub_share", "correction_share", "accuracy", "p50_s", "p99_s", "hub_p99_s", "queue_peak")


class ProgressTicker:
    """Progress of a job in the terminal; called with how far it is, and False is the answer that ends it.

    The first Ctrl-C asks for that, the second breaks off.
    """

    def __init__(self, progress: Progress, name: str, total: float) -> None:
        self.stopped = False
        self.began = self._said = time.monotonic()
        self._total = total
        self._progress = progress
        self._task = progress.add_task(name, total=total, words="")

    def __call__(self, done: float, words: str) -> bool:
        now = time.monotonic()
        left_s = (now - self.began) * (self._total / done - 1) if done else 0.0
        words = f"{words}, {format_duration(max(0.0, left_s))} left"
        if self._progress.console.is_terminal:
            self._progress.update(self._task, completed=done, words=words)
        elif now - self._said >= _LINE_S:
            self._said = now
            self._progress.console.print(f"{done / self._total:.0%}  {words}", highlight=False)
        return not self.stopped

    def print_line(self, words: str) -> None:
        """Print a line about what is done before anything can be counted."""
        self._progress.console.print(words, highlight=False)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Ask the job to stop; a second signal interrupts it."""
        self.stopped = True
        signal.signal(number, signal.default_int_handler)


@contextmanager
def show_progress(name: str, total: float) -> Iterator[ProgressTicker]:
    """Progress bar on stderr, with Ctrl-C as a request to write down what there is."""
    console = Console(stderr=True)
    done = TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.fields[words]}")
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), *done)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        ticker = ProgressTicker(progress, name, total)
        before = {number: signal.signal(number, ticker.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield ticker
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def make_progress_callback(ticker: ProgressTicker, scenario: Scenario) -> Callable[[RunProgress], bool]:
    """Make the progress callback of a run."""

    def steer(passed: RunProgress) -> bool:
        took_s = time.monotonic() - ticker.began
        rate = passed.samples / took_s if took_s else 0.0
        return ticker(
            passed.until_s, f"{format_clock(passed.until_s)} of {format_clock(scenario.ends_s)}, {rate:,.0f} samples/s"
        )

    return steer


def print_summary(console: Console, outcome: Outcome) -> None:
    """Print the question, the verdict, what was expected, and a few figures."""
    held, words = summarize_verdict(outcome)
    console.print(f"[bold]{outcome.question}[/bold]", highlight=False)
    console.print(f"[bold {'red' if held else 'green'}]{words}[/]", highlight=False)
    if outcome.expectations:
        console.print(_expectations_table(outcome.expectations))
    seen = select_window(outcome)
    figures = ", ".join(f"{name} {format_figure(name, compute_figure(seen, name))}" for name in _FIGURES)
    console.print(f"{outcome.samples:,} samples of {outcome.devices:,} devices: {figures}", highlight=False)
    console.print("accuracy is of all answers that callers got, before corrections", highlight=False)
    if "bulk.samples" in outcome.counts:
        share = outcome.counts["bulk.samples"] / max(1, outcome.samples)
        checked = f"{outcome.counts['bulk.checked']:,} of these by the cores too, and equal"
        console.print(f"in bulk: {share:.1%} of the samples; {checked}", highlight=False)
    console.print(outcome.history.format_text(), highlight=False, markup=False)
    for violation in outcome.violations:
        console.print(
            f"{violation.law}: {violation.story}\n  {violation.replay}", highlight=False, markup=False, style="red"
        )
    wall = outcome.wall
    if wall.seconds:
        rate = f"{outcome.samples / wall.seconds:,.0f} samples/s, {outcome.events / wall.seconds:,.0f} events/s"
        console.print(
            f"{wall.seconds:.1f} s on {wall.processes} process{'es' if wall.processes > 1 else ''}: {rate}",
            highlight=False,
        )


def _expectations_table(judged: tuple[JudgedExpectation, ...]) -> Table:
    """Table of expectations: held or missed, figure, value, bounds and window."""
    table = Table("", "figure", "seen", "expected", "", box=None, pad_edge=False, header_style="dim")
    table.columns[2].justify = table.columns[3].justify = "right"
    for each in judged:
        mark = "[green]held[/]" if each.held else "[bold red]missed[/]"
        table.add_row(mark, each.figure, format_figure(each.figure, each.value), format_bounds(each), each.window)
    return table


def print_report(outcome: Outcome, page: Path, *, as_json: bool) -> None:
    """Print the result of a run: JSON for a program, or a summary and the path of its page for a person."""
    if as_json:
        print(json.dumps(outcome.to_plain(), indent=1))
        return
    console = open_console()
    print_summary(console, outcome)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
