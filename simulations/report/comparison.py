"""Compares two runs: every figure with its difference, and every plot beside the other's on the same scale (HTML).

Rule: reads outcomes alone. Nothing is called better or worse: what differs is stated, and by how much.
"""

from collections.abc import Sequence
from html import escape
from math import log10
from typing import Any, NamedTuple

from policies.model.reasons import DecisionReason
from simulations.report.expectations import FIGURES, compute_figure, select_window
from simulations.report.formatting import format_difference, format_duration, format_figure
from simulations.report.outcome import Outcome
from simulations.report.page import render_document, summarize_verdict
from simulations.report.plots import Panel, build_figure, build_panels, list_marks, mark_letter


class FigureComparison(NamedTuple):
    """One figure of both runs; None where a run does not have it."""

    name: str
    first: float | None
    second: float | None

    @property
    def differs(self) -> bool:
        """Whether the two values differ."""
        return self.first != self.second

    @property
    def formatted(self) -> tuple[str, str, str]:
        """Both values as text, and the second less the first ("" if equal or not comparable)."""
        values = format_figure(self.name, self.first), format_figure(self.name, self.second)
        if self.first is None or self.second is None or not self.differs:
            return *values, ""
        return *values, format_difference(self.name, self.second - self.first)

    def to_plain(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return {"figure": self.name, "first": self.first, "second": self.second}


def compare_figures(first: Outcome, second: Outcome) -> list[FigureComparison]:
    """Compare every figure that one of the runs has, and the answer reasons that one of them has."""
    whys = [f"why.{why}" for why in DecisionReason if any(_has_answers(outcome, why) for outcome in (first, second))]
    views = select_window(first), select_window(second)
    found = [
        FigureComparison(name, compute_figure(views[0], name), compute_figure(views[1], name))
        for name in (*FIGURES, *whys)
    ]
    return [row for row in found if row.first is not None or row.second is not None]


def render_comparison(first: Outcome, second: Outcome) -> str:
    """Render the HTML page that shows two runs side by side."""
    both = first, second
    heads = "".join(
        f"<section>{_render_head(side, outcome)}</section>" for side, outcome in zip("AB", both, strict=True)
    )
    names = ("figure", "A", "B", "B less A")
    head = "".join(f'<th class="{"l" if name == "figure" else ""}">{name}</th>' for name in names)
    table = "".join(_render_row(row) for row in compare_figures(*both))
    body = (
        f"<header><small>Skerry · two simulated runs</small><h1>{escape(_page_title(*both))}</h1></header>"
        f'<div class="pair">{heads}</div><section><h2>Figures</h2><table><tr>{head}</tr>{table}</table></section>'
    )
    plots, figures = _render_plots(*both)
    return render_document(_page_title(*both), body + plots, figures, "wide")


def _page_title(first: Outcome, second: Outcome) -> str:
    """Title of the page: the scenario run twice, or two scenarios."""
    if first.scenario == second.scenario:
        return f"{first.scenario}, twice"
    return f"{first.scenario} beside {second.scenario}"


def _render_head(side: str, outcome: Outcome) -> str:
    """Summary of one side: question, verdict, size, seed and events."""
    held, words = summarize_verdict(outcome)
    events = ", ".join(
        f"<b>{mark_letter(at)}</b> {escape(mark.text or mark.kind)}" for at, mark in enumerate(list_marks(outcome))
    )
    return (
        f"<h2>{side} · {escape(outcome.scenario)}</h2><p>{escape(outcome.question)}</p>"
        f'<span class="verdict {held}">{escape(words)}</span>'
        f'<div class="facts"><span>{outcome.devices:,} devices</span>'
        f"<span>{format_duration(outcome.duration_s)}</span><span>seed {outcome.seed}</span>"
        f"<span>scenario {escape(outcome.digest)}</span></div><p>{events}</p>"
    )


def _render_row(row: FigureComparison) -> str:
    """Table row of one figure; the second value is bold where the two differ."""
    first, second, more = row.formatted
    strong = ("<b>", "</b>") if row.differs else ("", "")
    name = f'<td class="l"><code>{escape(row.name)}</code></td>'
    return f"<tr>{name}<td>{first}</td><td>{strong[0]}{second}{strong[1]}</td><td>{more}</td></tr>"


def _render_plots(first: Outcome, second: Outcome) -> tuple[str, list[dict[str, Any]]]:
    """Each panel of one run beside that of the other, on the same scale; an empty place where one has none."""
    sides = {panel.key: panel for panel in build_panels(first)}, {panel.key: panel for panel in build_panels(second)}
    body, figures = "", []
    for key in [*sides[0], *(key for key in sides[1] if key not in sides[0])]:
        pair = [side.get(key) for side in sides]
        named = next(panel for panel in pair if panel is not None)
        cells = ""
        for number, (panel, outcome) in enumerate(zip(pair, (first, second), strict=True)):
            cells += f'<div class="plot" id="{escape(key)}-{number}"></div>'
            figures += [] if panel is None else [_scale_figure(panel, pair, outcome, number)]
        head = f"<h2>{escape(named.title)}</h2><p>{escape(named.note)}</p>"
        body += f'<section>{head}<div class="pair">{cells}</div></section>'
    return body, figures


def _scale_figure(panel: Panel, pair: Sequence[Panel | None], outcome: Outcome, number: int) -> dict[str, Any]:
    """Plotly figure of one panel, with the y range of both runs' panels together."""
    made = build_figure(panel, outcome)
    made["key"] = f"{panel.key}-{number}"
    reached = [each.reach for each in pair if each is not None and each.reach is not None]
    if reached:
        made["layout"]["yaxis"]["range"] = [min(low for low, _ in reached), max(high for _, high in reached)]
    elif panel.logarithmic:
        drawn = [value for each in pair if each is not None for value in _plotted_values(each) if value]
        made["layout"]["yaxis"]["range"] = [log10(min(drawn)) - 0.1, log10(max(drawn)) + 0.1]
    else:
        made["layout"]["yaxis"]["range"] = [
            0,
            max(_highest_value(each) for each in pair if each is not None) * 1.06 or 1,
        ]
    return made


def _plotted_values(panel: Panel) -> list[float]:
    """All y values of a panel, gaps as 0."""
    return [value or 0 for trace in panel.traces for value in trace["y"]]


def _highest_value(panel: Panel) -> float:
    """Highest value that is drawn; for stacked traces, of their sum."""
    stacked = [trace["y"] for trace in panel.traces if "stackgroup" in trace]
    single = [value or 0 for trace in panel.traces if "stackgroup" not in trace for value in trace["y"]]
    return max([*(sum(value or 0 for value in values) for values in zip(*stacked, strict=True)), *single, 0])


def _has_answers(outcome: Outcome, why: str) -> bool:
    """Whether any answer of this outcome has this reason."""
    return any(name.endswith(f".{why}") and any(series) for name, series in outcome.answers.items())
