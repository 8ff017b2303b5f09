"""Compares two runs: every figure with its difference, and every plot beside the other's on the same scale (HTML).

Rule: reads outcomes alone. Nothing is called better or worse: what differs is stated, and by how much.
"""

from collections.abc import Sequence
from html import escape
from math import log10
from typing import Any, NamedTuple

from policies.model.reasons import Why
from simulations.report.expectations import FIGURES, view
from simulations.report.expectations import figure as value_of
from simulations.report.formatting import difference, shown, span
from simulations.report.outcome import Outcome
from simulations.report.page import document, verdict
from simulations.report.plots import Panel, figure, happened, letter, panels


class Row(NamedTuple):
    """One figure of both runs; None where a run does not have it."""

    name: str
    first: float | None
    second: float | None

    @property
    def differs(self) -> bool:
        """Whether the two values differ."""
        return self.first != self.second

    @property
    def words(self) -> tuple[str, str, str]:
        """Both values as text, and the second less the first ("" if equal or not comparable)."""
        values = shown(self.name, self.first), shown(self.name, self.second)
        if self.first is None or self.second is None or not self.differs:
            return *values, ""
        return *values, difference(self.name, self.second - self.first)

    def plain(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return {"figure": self.name, "first": self.first, "second": self.second}


def rows(first: Outcome, second: Outcome) -> list[Row]:
    """Compare every figure that one of the runs has, and the answer reasons that one of them has."""
    whys = [f"why.{why}" for why in Why if any(_has(outcome, why) for outcome in (first, second))]
    views = view(first), view(second)
    found = [Row(name, value_of(views[0], name), value_of(views[1], name)) for name in (*FIGURES, *whys)]
    return [row for row in found if row.first is not None or row.second is not None]


def comparison(first: Outcome, second: Outcome) -> str:
    """Render the HTML page that shows two runs side by side."""
    both = first, second
    heads = "".join(f"<section>{_head(side, outcome)}</section>" for side, outcome in zip("AB", both, strict=True))
    names = ("figure", "A", "B", "B less A")
    head = "".join(f'<th class="{"l" if name == "figure" else ""}">{name}</th>' for name in names)
    table = "".join(_cells(row) for row in rows(*both))
    body = (
        f"<header><small>Skerry · two simulated runs</small><h1>{escape(_title(*both))}</h1></header>"
        f'<div class="pair">{heads}</div><section><h2>Figures</h2><table><tr>{head}</tr>{table}</table></section>'
    )
    plots, figures = _plots(*both)
    return document(_title(*both), body + plots, figures, "wide")


def _title(first: Outcome, second: Outcome) -> str:
    """Title of the page: the scenario run twice, or two scenarios."""
    if first.scenario == second.scenario:
        return f"{first.scenario}, twice"
    return f"{first.scenario} beside {second.scenario}"


def _head(side: str, outcome: Outcome) -> str:
    """Summary of one side: question, verdict, size, seed and events."""
    held, words = verdict(outcome)
    events = ", ".join(
        f"<b>{letter(at)}</b> {escape(mark.text or mark.kind)}" for at, mark in enumerate(happened(outcome))
    )
    return (
        f"<h2>{side} · {escape(outcome.scenario)}</h2><p>{escape(outcome.question)}</p>"
        f'<span class="verdict {held}">{escape(words)}</span>'
        f'<div class="facts"><span>{outcome.devices:,} devices</span>'
        f"<span>{span(outcome.duration_s)}</span><span>seed {outcome.seed}</span>"
        f"<span>scenario {escape(outcome.digest)}</span></div><p>{events}</p>"
    )


def _cells(row: Row) -> str:
    """Table row of one figure; the second value is bold where the two differ."""
    first, second, more = row.words
    strong = ("<b>", "</b>") if row.differs else ("", "")
    name = f'<td class="l"><code>{escape(row.name)}</code></td>'
    return f"<tr>{name}<td>{first}</td><td>{strong[0]}{second}{strong[1]}</td><td>{more}</td></tr>"


def _plots(first: Outcome, second: Outcome) -> tuple[str, list[dict[str, Any]]]:
    """Each panel of one run beside that of the other, on the same scale; an empty place where one has none."""
    sides = {panel.key: panel for panel in panels(first)}, {panel.key: panel for panel in panels(second)}
    body, figures = "", []
    for key in [*sides[0], *(key for key in sides[1] if key not in sides[0])]:
        pair = [side.get(key) for side in sides]
        named = next(panel for panel in pair if panel is not None)
        cells = ""
        for number, (panel, outcome) in enumerate(zip(pair, (first, second), strict=True)):
            cells += f'<div class="plot" id="{escape(key)}-{number}"></div>'
            figures += [] if panel is None else [_scaled(panel, pair, outcome, number)]
        head = f"<h2>{escape(named.title)}</h2><p>{escape(named.note)}</p>"
        body += f'<section>{head}<div class="pair">{cells}</div></section>'
    return body, figures


def _scaled(panel: Panel, pair: Sequence[Panel | None], outcome: Outcome, number: int) -> dict[str, Any]:
    """Plotly figure of one panel, with the y range of both runs' panels together."""
    made = figure(panel, outcome)
    made["key"] = f"{panel.key}-{number}"
    reached = [each.reach for each in pair if each is not None and each.reach is not None]
    if reached:
        made["layout"]["yaxis"]["range"] = [min(low for low, _ in reached), max(high for _, high in reached)]
    elif panel.logarithmic:
        drawn = [value for each in pair if each is not None for value in _drawn(each) if value]
        made["layout"]["yaxis"]["range"] = [log10(min(drawn)) - 0.1, log10(max(drawn)) + 0.1]
    else:
        made["layout"]["yaxis"]["range"] = [0, max(_top(each) for each in pair if each is not None) * 1.06 or 1]
    return made


def _drawn(panel: Panel) -> list[float]:
    """All y values of a panel, gaps as 0."""
    return [value or 0 for trace in panel.traces for value in trace["y"]]


def _top(panel: Panel) -> float:
    """Highest value that is drawn; for stacked traces, of their sum."""
    stacked = [trace["y"] for trace in panel.traces if "stackgroup" in trace]
    single = [value or 0 for trace in panel.traces if "stackgroup" not in trace for value in trace["y"]]
    return max([*(sum(value or 0 for value in values) for values in zip(*stacked, strict=True)), *single, 0])


def _has(outcome: Outcome, why: str) -> bool:
    """Whether any answer of this outcome has this reason."""
    return any(name.endswith(f".{why}") and any(series) for name, series in outcome.answers.items())
