"""First section of a report: the frontier of code paths, bytes of a question against what of the hub's gain they keep.

Rule: figures of the calibration part only, for the path was chosen by them; beside the paths stands what a question
would weigh that carries the sample compressed by usual means.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from models.bundle.measurements import QualityMetric
from models.forge.report.charts import ChartAxis, ChartPoint, ChartRule, ChartSeries, draw_chart
from models.forge.report.markup import format_share, metric_formatter, render_table
from models.forge.report.trades import RouteTrade
from models.forge.routes.frontier import RoutePoint
from models.forge.training.code_path import Route

_WIDTH = 760
_LOWEST, _HIGHEST = -20.0, 110.0  # percent that the plot shows; what is beyond stands at its edge
_FAR = 4.0  # a compressed sample is drawn while it weighs at most so many times the largest path
_LOOK = {
    Route.SAMPLE: ("the sample itself", "diamond"),
    Route.EARLY: ("early features", "square"),
    Route.LEARNED: ("learned codes", "circle"),
}


class FrontierView(NamedTuple):
    """What the section shows.

    `sealed_samples`: bytes of a question that carries the sample compressed by a method; `share`: of the calibration
    samples that the hub is asked for, 0..1. `keep`: share of the gain that is enough, 0..1.
    """

    points: tuple[RoutePoint, ...]
    trades: tuple[RouteTrade, ...]
    sealed_samples: Mapping[str, int]
    share: float
    keep: float = 0.9


def render_frontier(view: FrontierView, metric: QualityMetric) -> str:
    """Plot, best trades, table and words of a frontier; "" if it has no points."""
    points = view.points
    if not points:
        return ""
    judged = f"{points[0].samples:,} calibration samples, of which {view.share:.0%} are asked"
    words = (
        f"{_describe_gain(points[0], metric)} Each mark is one way to code a question over the same edge, judged on "
        f"{judged}. Hollow marks carry the sample itself and may only ship where <code>--sample-level</code> says so; "
        "dashed lines are questions with the compressed sample. The ring marks what ships."
    )
    parts = [
        f"<h2>What a question may carry</h2><p>{words}</p>",
        f'<div class="scroll wide">{_draw_frontier(points, view.sealed_samples, metric)}</div>',
        _render_trades(view.trades, metric),
        _render_points(points, metric, view.keep),
    ]
    return "".join(parts)


def _describe_gain(point: RoutePoint, metric: QualityMetric) -> str:
    shown = metric_formatter(metric)
    figures = f"{shown(point.edge)} alone, {shown(point.lossless)} with lossless features"
    if math.isnan(point.recovered):
        return f"Lossless features gain nothing over the edge here ({figures}): no code can."
    return f"The edge reaches {figures}; kept is the share of that gain which a code leaves."


def _draw_frontier(points: Sequence[RoutePoint], sealed_samples: Mapping[str, int], metric: QualityMetric) -> str:
    gap = not math.isnan(points[0].recovered)
    series = []
    for route, (name, shape) in _LOOK.items():
        found = (p for p in points if p.route is route)
        marks = tuple(
            ChartPoint(p.sealed_bytes, _height(p, metric, gap=gap), p.name, p.chosen, route is Route.SAMPLE)
            for p in found
        )
        series.append(ChartSeries(name, marks, shape=shape))
    most = max(p.sealed_bytes for p in points) * _FAR
    weights = sorted({size for size in sealed_samples.values() if size <= most})
    rules = [ChartRule(size, ", ".join(n for n, found in sealed_samples.items() if found == size)) for size in weights]
    heights = [mark.y for one in series for mark in one.points]
    up = ChartAxis("kept of the gain, %", low=min(0.0, *heights), high=max(100.0, *heights) + 5) if gap else None
    across = ChartAxis("bytes of a question, sealed", logarithmic=True)
    return draw_chart(across, up or ChartAxis(f"pair, {_unit(metric)}"), series, rules=rules, width=_WIDTH)


def _height(point: RoutePoint, metric: QualityMetric, *, gap: bool) -> float:
    if gap:
        return min(_HIGHEST, max(_LOWEST, 100 * point.recovered))
    return point.quality if metric == QualityMetric.RMSE else 100 * point.quality


def _unit(metric: QualityMetric) -> str:
    return "RMSE" if metric == QualityMetric.RMSE else "accuracy in %"


def _render_trades(trades: Sequence[RouteTrade], metric: QualityMetric) -> str:
    shown = metric_formatter(metric)
    rows = [
        (
            escape(trade.best),
            escape(trade.point.name),
            f"{trade.point.sealed_bytes:,}",
            format_share(trade.point.recovered),
            shown(trade.point.quality),
            _format_leakage(trade.point),
            f"<code>{escape(trade.flags)}</code>" if trade.flags else "ships",
        )
        for trade in trades
    ]
    names = ("best trades", "path", "sealed B", "kept", "pair", "leakage", "take it by")
    return render_table(names, rows, [trade.point.chosen for trade in trades]) if rows else ""


def _render_points(points: Sequence[RoutePoint], metric: QualityMetric, keep: float) -> str:
    shown = metric_formatter(metric)
    order = sorted(points, key=lambda p: (p.sealed_bytes, p.payload_bytes, p.name))
    rows = [
        (
            escape(p.name),
            _LOOK[p.route][0],
            escape(p.label),
            f"{p.payload_bytes:,}",
            f"{p.sealed_bytes:,}",
            format_share(p.recovered),
            shown(p.quality),
            f"{p.lost_asked:.2%}",
            f"{p.lost:.2%}",
            f"{p.device_share:.1%}",
            _format_leakage(p),
            escape(p.reason or ("ships" if p.chosen else "")),
        )
        for p in order
    ]
    names = (
        *("path", "what leaves", "label", "codes B", "sealed B", "kept", "pair", "lost if asked", "lost if all asked"),
        *("work on device", "leakage", ""),
    )
    note = (
        '<p class="why">Kept: share of what lossless features gain over the edge at the asked share; '
        f"{keep:.0%}, less one standard error, are enough, and of what keeps so much the fewest bytes ship. Lost: "
        "against lossless features, a share of accuracy or of the RMSE. Leakage: upper bound of a quick reconstruction "
        "attack, run on the paths that could ship; the strong attacks below are on what ships.</p>"
    )
    return render_table(names, rows, [p.chosen for p in order]) + note


def _format_leakage(point: RoutePoint) -> str:
    return "" if point.leakage is None else f"{point.leakage:.2f}"
