"""Figures of a benchmark (value, unit, limit), their table in Markdown, and timing helpers.

Rule: every figure stands beside its limit, in one unit, with its parts.
"""

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

US = 1e6


class Figure(NamedTuple):
    """One row. `limit` holds if `value <= limit` (or `>=` where more is better). `terms` are shown, not judged."""

    name: str
    value: float
    unit: str
    limit: float
    more_is_better: bool = False
    terms: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        if not math.isfinite(self.value):
            return False
        return self.value >= self.limit if self.more_is_better else self.value <= self.limit

    @property
    def aim(self) -> str:
        if math.isnan(self.limit):
            return "its aims"
        return f"{'>=' if self.more_is_better else '<='} {self.limit:g} {self.unit}".rstrip()


def format_number(value: float) -> str:
    if not math.isfinite(value):
        return "not measured:"
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def format_amount(figure: Figure) -> str:
    return f"{format_number(figure.value)} {figure.unit}".rstrip()


def format_line(figure: Figure) -> str:
    if not math.isfinite(figure.value):
        return f"{figure.name}: not measured (aim {figure.aim})"
    verdict = "held" if figure.held else "NOT HELD"
    return f"{figure.name}: {format_amount(figure)} (aim {figure.aim}: {verdict})"


def render_markdown(figures: Sequence[Figure]) -> str:
    rows = ["| figure | measured | aim | |", "|---|---|---|---|"]
    rows += [f"| {f.name} | **{format_amount(f)}** | {f.aim} | {_judge(f)} |" for f in figures]
    return "\n".join(rows)


def _judge(figure: Figure) -> str:
    if not math.isfinite(figure.value):
        return "not measured"
    return "held" if figure.held else "**not held**"


def find_percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile; NaN of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else math.nan


def find_median(values: Sequence[float]) -> float:
    return median(values) if values else math.nan


def time_each(call: Callable[[], object], times: int, warm: int = 100) -> list[float]:
    """Seconds of each of `times` calls, after `warm` that do not count."""
    for _ in range(warm):
        call()
    clock, taken = time.perf_counter, []
    for _ in range(times):
        began = clock()
        call()
        taken.append(clock() - began)
    return taken
