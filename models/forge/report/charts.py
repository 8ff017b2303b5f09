"""SVG charts as text for the report: lines and points on two axes, linear or logarithmic.

Rule: no script, no font, no link: a report can be mailed and is readable in ten years. Only measured values are drawn.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 460, 280
_MOST_LABELS = 14  # most points that are labelled with their names
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 12, 42
COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#bf812d", "#4d4d4d")


class ChartPoint(NamedTuple):
    """A point of a chart. `name` is shown as tooltip or label; `chosen` draws a ring."""

    x: float
    y: float
    name: str = ""
    chosen: bool = False


class ChartSeries(NamedTuple):
    """Points of one colour, joined by a line or not."""

    name: str
    points: tuple[ChartPoint, ...]
    line: bool = False


class ChartAxis(NamedTuple):
    """Name, scale and fixed ends of an axis; None: an end follows from the values."""

    name: str
    logarithmic: bool = False
    low: float | None = None
    high: float | None = None


class _AxisScale(NamedTuple):
    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def position(self, value: float) -> float:
        if self.logarithmic:
            low, high, value = (math.log10(max(v, 1e-12)) for v in (self.low, self.high, value))
        else:
            low, high = self.low, self.high
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def draw_chart(x: ChartAxis, y: ChartAxis, series: Sequence[ChartSeries]) -> str:
    """One `<svg>` element; "" if there is nothing to draw. Values that are not finite are left out."""
    kept = [ChartSeries(s.name, tuple(p for p in s.points if math.isfinite(p.x + p.y)), s.line) for s in series]
    points = [p for s in kept for p in s.points]
    if not points:
        return ""
    across = _fit_scale(x, [p.x for p in points], _LEFT, WIDTH - _RIGHT)
    up = _fit_scale(y, [p.y for p in points], HEIGHT - _BOTTOM, _TOP)
    body = [*_draw_grid(across, up), *_draw_axis_names(x, y)]
    for number, one in enumerate(kept):
        body += _draw_series(one, across, up, COLOURS[number % len(COLOURS)])
    body += _draw_legend([s.name for s in kept])
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">{"".join(body)}</svg>'


def _fit_scale(axis: ChartAxis, values: list[float], start: float, end: float) -> _AxisScale:
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    logarithmic = axis.logarithmic and low > 0
    if logarithmic:
        return _AxisScale(low / 1.3, high * 1.3, start, end, logarithmic=True)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return _AxisScale(
        low - room if axis.low is None else low, high + room if axis.high is None else high, start, end, False
    )


def _list_ticks(scale: _AxisScale) -> list[float]:
    if scale.logarithmic:
        first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
        steps = (1, 2, 5) if last - first <= 2 else (1,)
        found = [factor * 10.0**power for power in range(first, last + 1) for factor in steps]
        return [value for value in found if scale.low <= value <= scale.high]
    step = _tick_step((scale.high - scale.low) / 5)
    first = math.ceil(scale.low / step)
    return [number * step for number in range(first, math.floor(scale.high / step + 1e-9) + 1)]


def _tick_step(raw: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= raw), 10 * power)


def _draw_grid(across: _AxisScale, up: _AxisScale) -> list[str]:
    drawn = []
    for value in _list_ticks(across):
        at = across.position(value)
        drawn += [
            _svg_line(at, _TOP, at, HEIGHT - _BOTTOM),
            _svg_text(at, HEIGHT - _BOTTOM + 15, f"{value:g}", "middle"),
        ]
    for value in _list_ticks(up):
        at = up.position(value)
        drawn += [_svg_line(_LEFT, at, WIDTH - _RIGHT, at), _svg_text(_LEFT - 6, at + 4, f"{value:.6g}", "end")]
    return drawn


def _draw_axis_names(x: ChartAxis, y: ChartAxis) -> list[str]:
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    turn = f"rotate(-90 14 {middle:.1f})"
    return [
        _svg_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, x.name, "middle"),
        f'<text x="14" y="{middle:.1f}" text-anchor="middle" transform="{turn}">{escape(y.name)}</text>',
    ]


def _draw_series(series: ChartSeries, across: _AxisScale, up: _AxisScale, colour: str) -> list[str]:
    places = [(across.position(p.x), up.position(p.y), p) for p in series.points]
    drawn = []
    if series.line and len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    radius = 2.2 if series.line else 3.6
    named = not series.line and len(places) <= _MOST_LABELS
    for x, y, point in places:
        ring = ' stroke="#000" stroke-width="2.2"' if point.chosen else ""
        size = 6.0 if point.chosen else radius
        title = f"<title>{escape(point.name)}</title>" if point.name else ""
        drawn += _draw_label(x, y, point.name) if named else []
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}"{ring}>{title}</circle>')
    return drawn


def _draw_label(x: float, y: float, name: str) -> list[str]:
    """A point's label, on the side that has room."""
    right = x < (_LEFT + WIDTH) / 2
    return [_svg_text(x + 8 if right else x - 8, y + 4, name, "start" if right else "end")]


def _draw_legend(names: list[str]) -> list[str]:
    """On a background of its own in the lower right corner, where curves that rise leave room."""
    shown = [(number, name) for number, name in enumerate(names) if name]
    if not shown:
        return []
    left, top = WIDTH - _RIGHT - 96, HEIGHT - _BOTTOM - 15 * len(shown) - 10
    drawn = [f'<rect x="{left}" y="{top}" width="92" height="{15 * len(shown) + 6}" fill="#fff" fill-opacity=".85"/>']
    for row, (number, name) in enumerate(shown):
        y = top + 14 + 15 * row
        colour = COLOURS[number % len(COLOURS)]
        drawn.append(f'<rect x="{left + 6}" y="{y - 8}" width="9" height="9" fill="{colour}"/>')
        drawn.append(_svg_text(left + 20, y, name, "start"))
    return drawn


def _svg_line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def _svg_text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
