"""SVG charts as text for the report: marks, lines and upright rules on two axes, linear or logarithmic.

Rule: no script, no font, no link: a report can be mailed and is readable in ten years. Only measured values are drawn.
Colours are classes of `CHART_STYLE`, so that a page shows its charts light or dark as its reader's screen is.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 460, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 26, 42
_MOST_LABELS = 14  # most marks of one series that are labelled with their names
_MOST_DOTS = 40  # a line of more points is drawn without dots
_LETTER, _LINE = 6.4, 13.0  # width and height of text in units of the chart, at 12 pixels
_LIGHT = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#b0700a", "#4d4d4d")
_DARK = ("#6cb2eb", "#f0857d", "#7fcf8f", "#c79ddb", "#e3b35c", "#bdbdbd")


def _list_colours(colours: Sequence[str]) -> str:
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))


CHART_STYLE = f"""
:root{{{_list_colours(_LIGHT)}--ink:#1a1a1a;--grid:#ddd;--paper:#fff;--rule:#777}}
@media(prefers-color-scheme:dark){{:root{{{_list_colours(_DARK)}--ink:#e6e6e6;--grid:#3a3d42;--paper:#16181b;--rule:#8d9299}}}}
svg.chart{{max-width:100%;height:auto}}svg.chart text{{font:12px system-ui,sans-serif;fill:var(--ink)}}
svg.chart .grid{{stroke:var(--grid)}}svg.chart .rule{{stroke:var(--rule);stroke-dasharray:4 3}}
svg.chart .ring{{fill:none;stroke:var(--ink);stroke-width:2.2}}
svg.chart text.halo{{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}}
"""


class ChartPoint(NamedTuple):
    """A point of a chart. `name` is shown as tooltip or label; `chosen` draws a ring; `hollow` leaves it unfilled."""

    x: float
    y: float
    name: str = ""
    chosen: bool = False
    hollow: bool = False


class ChartSeries(NamedTuple):
    """Points of one colour and shape ("circle", "square" or "diamond"), joined by a line or not."""

    name: str
    points: tuple[ChartPoint, ...]
    line: bool = False
    shape: str = "circle"


class ChartAxis(NamedTuple):
    """Name, scale and fixed ends of an axis; None: an end follows from the values."""

    name: str
    logarithmic: bool = False
    low: float | None = None
    high: float | None = None


class ChartRule(NamedTuple):
    """An upright dashed line at `x` with a name, for what a chart's marks are compared with."""

    x: float
    name: str


class _Box(NamedTuple):
    """A rectangle that is taken: left, top, right, bottom."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "_Box") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


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


def draw_chart(
    x: ChartAxis, y: ChartAxis, series: Sequence[ChartSeries], *, rules: Sequence[ChartRule] = (), width: int = WIDTH
) -> str:
    """One `<svg>` element; "" if there is nothing to draw. Values that are not finite are left out."""
    kept = [s._replace(points=tuple(p for p in s.points if math.isfinite(p.x + p.y))) for s in series]
    if not any(s.points for s in kept):
        return ""
    return _Chart(x, y, kept, [rule for rule in rules if math.isfinite(rule.x)], width).draw()


class _Chart:
    """One chart being drawn; `_taken`: where marks and labels are, so that no label is put over another."""

    def __init__(
        self, x: ChartAxis, y: ChartAxis, series: Sequence[ChartSeries], rules: Sequence[ChartRule], width: int
    ) -> None:
        self._x, self._y, self._series, self._rules, self._width = x, y, series, rules, width
        points = [p for s in series for p in s.points]
        self._right, self._floor = width - _RIGHT, HEIGHT - _BOTTOM
        self._across = _fit_scale(x, [*(p.x for p in points), *(r.x for r in rules)], _LEFT, self._right)
        self._up = _fit_scale(y, [p.y for p in points], self._floor, _TOP)
        self._taken: list[_Box] = []

    def draw(self) -> str:
        body = [*self._draw_grid(), *self._draw_axis_names(), *self._draw_legend(), *self._draw_rules()]
        for number, one in enumerate(self._series):
            body += self._draw_line(one, number) if one.line else self._draw_marks(one, number)
        body += self._draw_labels()
        size = f'viewBox="0 0 {self._width} {HEIGHT}" width="{self._width}" height="{HEIGHT}"'
        return f'<svg class="chart" {size} role="img">{"".join(body)}</svg>'

    def _draw_grid(self) -> list[str]:
        drawn = []
        for value in _list_ticks(self._across):
            at = self._across.position(value)
            drawn += [
                _svg_line("grid", at, _TOP, at, self._floor),
                _svg_text(at, self._floor + 15, f"{value:g}", "middle"),
            ]
        for value in _list_ticks(self._up):
            at = self._up.position(value)
            drawn += [
                _svg_line("grid", _LEFT, at, self._right, at),
                _svg_text(_LEFT - 6, at + 4, f"{value:.6g}", "end"),
            ]
        return drawn

    def _draw_axis_names(self) -> list[str]:
        middle = (_TOP + self._floor) / 2
        turn = f"rotate(-90 14 {middle:.1f})"
        return [
            _svg_text((_LEFT + self._right) / 2, HEIGHT - 8, self._x.name, "middle"),
            f'<text x="14" y="{middle:.1f}" text-anchor="middle" transform="{turn}">{escape(self._y.name)}</text>',
        ]

    def _draw_rules(self) -> list[str]:
        """Upright lines, each with its name along it; a name that has no room is a tooltip only."""
        drawn = []
        for rule in sorted(self._rules):
            at = self._across.position(rule.x)
            drawn.append(f"<g><title>{escape(rule.name)}</title>{_svg_line('rule', at, _TOP, at, self._floor)}</g>")
            length = _LETTER * len(rule.name)
            box = _Box(at - _LINE, self._floor - 6 - length, at, self._floor - 6)
            if box.top >= _TOP and not any(box.overlaps(other) for other in self._taken):
                self._taken.append(box)
                place = f'x="{at - 4:.1f}" y="{self._floor - 6}" transform="rotate(-90 {at - 4:.1f} {self._floor - 6})"'
                drawn.append(f'<text class="halo" {place}>{escape(rule.name)}</text>')
        return drawn

    def _draw_line(self, series: ChartSeries, number: int) -> list[str]:
        places = [(self._across.position(p.x), self._up.position(p.y), p) for p in series.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        drawn = [f'<polyline points="{path}" fill="none" stroke="var(--c{_colour(number)})" stroke-width="1.6"/>']
        if len(places) <= _MOST_DOTS:
            drawn += [_svg_mark("circle", (x, y), 1.6, number, p) for x, y, p in places]
        return drawn + [_svg_ring(x, y) for x, y, p in places if p.chosen]

    def _draw_marks(self, series: ChartSeries, number: int) -> list[str]:
        drawn = []
        for point in series.points:
            x, y = self._across.position(point.x), self._up.position(point.y)
            self._taken.append(_Box(x - 5, y - 5, x + 5, y + 5))
            drawn.append(_svg_mark(series.shape, (x, y), 4.2, number, point))
            drawn += [_svg_ring(x, y)] if point.chosen else []
        return drawn

    def _draw_labels(self) -> list[str]:
        """Names of marks where they have room, the chosen mark's first; the others are tooltips only."""
        named = [p for s in self._series if not s.line and len(s.points) <= _MOST_LABELS for p in s.points if p.name]
        chosen = [p for s in self._series if not s.line for p in s.points if p.chosen and p.name]
        drawn = []
        for point in dict.fromkeys([*chosen, *named]):
            drawn += self._place_label(point)
        return drawn

    def _place_label(self, point: ChartPoint) -> list[str]:
        x, y, length = self._across.position(point.x), self._up.position(point.y), _LETTER * len(point.name)
        gap = 12 if point.chosen else 8
        sides = ((x + gap, y + 4, "start"), (x - gap, y + 4, "end"), (x, y - gap, "middle"), (x, y + gap + 9, "middle"))
        for at, base, anchor in sides:
            left = at - length * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
            box = _Box(left, base - 10, left + length, base + 3)
            inside = box.left >= _LEFT and box.right <= self._right and box.top >= _TOP and box.bottom <= self._floor
            if inside and not any(box.overlaps(other) for other in self._taken):
                self._taken.append(box)
                return [_svg_text(at, base, point.name, anchor, "halo")]
        return []

    def _draw_legend(self) -> list[str]:
        """One row above the plot, where nothing is drawn."""
        drawn, left = [], float(_LEFT)
        for number, series in enumerate(self._series):
            if series.name and series.points:
                drawn.append(_svg_mark(series.shape, (left + 5, 9), 4.5, number, ChartPoint(0, 0)))
                drawn.append(_svg_text(left + 15, 13, series.name, "start"))
                left += 30 + _LETTER * len(series.name)
        return drawn


def _fit_scale(axis: ChartAxis, values: list[float], start: float, end: float) -> _AxisScale:
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    logarithmic = axis.logarithmic and low > 0
    if logarithmic:
        factor = max((high / low) ** 0.06, 1.05 if high > low else 1.3)
        return _AxisScale(low / factor, high * factor, start, end, logarithmic=True)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return _AxisScale(
        low - room if axis.low is None else low, high + room if axis.high is None else high, start, end, False
    )


def _list_ticks(scale: _AxisScale) -> list[float]:
    if scale.logarithmic and scale.high / scale.low > 4:
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


def _colour(number: int) -> int:
    return number % len(_LIGHT)


def _svg_mark(shape: str, at: tuple[float, float], radius: float, number: int, point: ChartPoint) -> str:
    x, y = at
    colour = f"var(--c{_colour(number)})"
    paint = f'fill="{"var(--paper)" if point.hollow else colour}" stroke="{colour}" stroke-width="1.8"'
    title = f"<title>{escape(point.name)}</title>" if point.name else ""
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" {paint}>{title}</circle>'
    turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if shape == "diamond" else ""
    side = 2 * radius * 0.9
    corner = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side:.1f}" height="{side:.1f}"'
    return f"<rect {corner} {paint}{turned}>{title}</rect>"


def _svg_ring(x: float, y: float) -> str:
    return f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="8"/>'


def _svg_line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _svg_text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f'class="{kind}" ' if kind else ""
    return f'<text {named}x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
