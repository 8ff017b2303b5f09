"""Plots of a report as plain values for plotly: answers, latency, accuracy, queues, bytes, states, rollouts.

Rule: what is drawn was counted; a bucket without a value is a gap in the line. Every event is marked on every time
axis, by the same letter as in the table of events.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from simulations.report.expectations import ANSWERS, select_source
from simulations.report.outcome import Bins, Outcome, RolloutRecord, Series, TimelineMark, quantile_s

DAY_ZERO = "2001-01-01"  # virtual time 0 on plotly's date axes: a Monday, the first day of its year
_SHOWN = 8  # kinds of answers, rules and hubs with a line of their own; what is left is one more
_LEVELS = 3  # of labels above each other
_NEAR = 0.09  # of the run: labels nearer than that would cover each other
Plain = dict[str, Any]

COLOURS = {
    "local.confident": "#94b8c4", "local.audit": "#5d93a6", "hub.verdict": "#3b4cc0", "local.local_only": "#94b8c4",
    "local.link_down": "#e0a030", "local.budget_elapsed": "#e4632d", "local.hub_quiet": "#a9764f",
    "local.refused": "#c0313b", "local.expired": "#7a2230", "local.outbox_full": "#d18fb5",
    "online": "#5aa88c", "offline": "#e0a030", "cut": "#e0a030", "down": "#c0313b", "other": "#b5b8bd",
}  # fmt: skip
_MORE = ("#3b4cc0", "#2a9d8f", "#e9a23b", "#c8553d", "#7b5ea7", "#6a994e", "#bc4b7d", "#4f6d7a", "#b08968")
_WORDS = {
    "local.confident": "device, sure", "hub.verdict": "hub's answer", "local.link_down": "device, no link",
    "local.budget_elapsed": "device, hub too late", "local.hub_quiet": "device, hub asked it to wait",
    "local.refused": "device, hub refused", "local.audit": "device, audited",
}  # fmt: skip
_BANDS = {
    "partition": "#e0a030",
    "weather": "#e0a030",
    "storm": "#c8553d",
    "surge": "#c8553d",
    "policy": "#6a994e",
    "rollout": "#7b5ea7",
}


class Panel(NamedTuple):
    """One plot. `axis`: what y counts; `note` stands under the title.

    `ticks`: plotly's format of its numbers, "" by their size; `whole`: there are no halves; `reach`: range of y.
    """

    key: str
    title: str
    note: str
    axis: str
    traces: list[Plain]
    logarithmic: bool = False
    ticks: str = ""
    whole: bool = False
    reach: tuple[float, float] | None = None


def build_panels(outcome: Outcome) -> list[Panel]:
    """Build the panels that this outcome has data for."""
    made = [
        _plot_answers(outcome),
        _plot_latency(outcome),
        _plot_accuracy(outcome),
        _plot_queues(outcome),
        _plot_bytes(outcome),
        _plot_states(outcome),
    ]
    return [panel for panel in [*made, *(_plot_rollout(outcome, each) for each in outcome.rollouts)] if panel.traces]


def build_figure(panel: Panel, outcome: Outcome) -> Plain:
    """Build plotly's figure of a panel, with axes and event marks."""
    axis: Plain = {
        "title": {"text": panel.axis, "standoff": 8},
        "rangemode": "tozero",
        "tickformat": panel.ticks or _tick_format(panel),
    }
    axis |= {"type": "log", "tickvals": _DECADES, "ticktext": _DECADE_WORDS} if panel.logarithmic else {}
    axis |= {"range": list(panel.reach)} if panel.reach else {}
    axis |= {"dtick": 1} if panel.whole and _highest_value(panel) < 8 else {}
    shapes, labels = draw_marks(outcome)
    end = format_moment(len(outcome.arrivals) * outcome.step_s)
    layout = {
        "xaxis": {"type": "date", "range": [DAY_ZERO, end]},
        "yaxis": axis,
        "shapes": shapes,
        "annotations": labels,
    }
    return {"key": panel.key, "data": panel.traces, "layout": layout}


def _tick_format(panel: Panel) -> str:
    """Number format of the y axis: SI prefixes from 1000 on."""
    return "~s" if _highest_value(panel) >= 1000 else "~g"


def _highest_value(panel: Panel) -> float:
    """Highest y value of a panel."""
    return max((value or 0 for trace in panel.traces for value in trace["y"]), default=0)


_DECADES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 21_600, 86_400]
_DECADE_WORDS = [
    "1 ms", "3 ms", "10 ms", "30 ms", "0.1 s", "0.3 s", "1 s", "3 s", "10 s", "30 s", "100 s", "5 min", "17 min",
    "1 h", "6 h", "1 d",
]  # fmt: skip


def format_moment(seconds: float) -> str:
    """Format a virtual time (s) as plotly's date axes take it."""
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    year, day = 2001 + int(days) // 365, int(days) % 365
    month = next(number for number in range(12, 0, -1) if _DAYS_BEFORE[number - 1] <= day)
    date = f"{year}-{month:02d}-{day - _DAYS_BEFORE[month - 1] + 1:02d}"
    return f"{date}T{int(hours):02d}:{int(minutes):02d}:{rest:06.3f}"


_DAYS_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def list_marks(outcome: Outcome) -> list[TimelineMark]:
    """List the scenario's events and its rollouts as marks, in order of time."""
    rollouts = [
        TimelineMark(r.began_s, r.ended_s - r.began_s, "rollout", f"rollout {r.name}: {r.end}")
        for r in outcome.rollouts
    ]
    return sorted([*outcome.marks, *rollouts], key=lambda mark: mark.at_s)


def mark_letter(place: int) -> str:
    """Letter of the mark at `place`: A to Z, then numbers."""
    return chr(ord("A") + place) if place < 26 else str(place + 1)


def draw_marks(outcome: Outcome) -> tuple[list[Plain], list[Plain]]:
    """Shapes and labels of all marks: a band (a line for what is over at once) and a letter each."""
    whole = len(outcome.arrivals) * outcome.step_s
    levels = [-whole] * _LEVELS
    shapes, labels = [], []
    for place, mark in enumerate(list_marks(outcome)):
        free = next((n for n in range(_LEVELS) if mark.at_s - levels[n] > _NEAR * whole), 0)
        levels[free] = mark.at_s
        shapes.append(_draw_band(mark, whole))
        labels.append(
            {
                "x": format_moment(mark.at_s),
                "y": 1,
                "yref": "paper",
                "text": f"<b>{mark_letter(place)}</b> {mark.kind}",
                "showarrow": False,
                "xanchor": "left",
                "yanchor": "bottom",
                "yshift": 1 + 13 * free,
                "hovertext": mark.text,
                "font": {"size": 11, "color": "#4a4f57"},
            }
        )
    return shapes, labels


def _draw_band(mark: TimelineMark, whole: float) -> Plain:
    """Plotly shape of one mark: a dotted line for a moment, a translucent band for a while."""
    colour = _BANDS.get(mark.kind, "#c0313b")
    place = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below", "x0": format_moment(mark.at_s)}
    if not mark.lasts_s:
        return {
            "type": "line",
            **place,
            "x1": format_moment(mark.at_s),
            "line": {"color": colour, "width": 1.5, "dash": "dot"},
        }
    until = format_moment(min(mark.at_s + mark.lasts_s, whole))
    return {"type": "rect", **place, "x1": until, "fillcolor": colour, "opacity": 0.13, "line": {"width": 0}}


def _plot_answers(outcome: Outcome) -> Panel:
    """Answers per second by source and reason, stacked, over the samples taken."""
    rates = _per_second(
        {name: series for name, series in outcome.answers.items() if _source_of(name) in ANSWERS}, outcome
    )
    traces = [_area_trace(outcome, name, values) for name, values in _keep_largest(rates)]
    traces.append(
        _line_trace(outcome, "samples taken", [n / outcome.step_s for n in outcome.arrivals], "#30343a", "dot")
    )
    note = "Answers by source and reason. The dotted line is the samples taken."
    return Panel("answers", "Answers by source", note, "a second", traces)


def _plot_latency(outcome: Outcome) -> Panel:
    """Latency quantiles per bucket: p50 and p99 of hub answers and corrections, p99 of all answers."""
    shown = {"hub": ("#3b4cc0", "the hub's answer"), "correction": ("#bc4b7d", "a correction")}
    traces = []
    for latency in outcome.latency:
        if latency.source in shown and any(latency.bins):
            colour, words = shown[latency.source]
            traces.append(_line_trace(outcome, f"{words}, p50", _compute_quantiles(latency.bins, 0.5), colour, "dot"))
            traces.append(_line_trace(outcome, f"{words}, p99", _compute_quantiles(latency.bins, 0.99), colour))
    whole = [
        _merge_bins(bins)
        for bins in zip(*(each.bins for each in outcome.latency if each.source in ANSWERS), strict=True)
    ]
    traces += (
        [_line_trace(outcome, "any answer, p99", _compute_quantiles(whole, 0.99), "#30343a", "dash")] if whole else []
    )
    note = "Latency from sample to answer, as a caller measures it; upper edges of bins that are 19 % wide."
    return Panel("latency", "How long an answer takes", note, "seconds", traces, logarithmic=True)


def _plot_accuracy(outcome: Outcome) -> Panel:
    """Share of right answers per bucket: all, the device's, the hub's.

    The scale ignores buckets with hardly an answer.
    """
    shown = {
        "all answers": (ANSWERS, "#30343a"),
        "the device's": (("local",), "#5d93a6"),
        "the hub's": (("hub",), "#3b4cc0"),
    }
    traces, lowest = [], 1.0
    for words, (sources, colour) in shown.items():
        right = _sum_series(select_source(outcome.right, *sources))
        given = _sum_series(select_source(outcome.answers, *sources))
        shares = [r / g if g else None for r, g in zip(right, given, strict=True)]
        usual = sum(given) / max(1, sum(n > 0 for n in given))  # a moment with hardly an answer sets no scale
        lowest = min([lowest, *(r / g for r, g in zip(right, given, strict=True) if g > usual / 5)])
        traces += [_line_trace(outcome, words, shares, colour)] if any(given) else []
    reach = (max(0.0, lowest - 0.02), 1.005)
    note = "Share of right answers in each bucket; corrections not included."
    return Panel("right", "How many answers are right", note, "", traces, ticks=".0%", reach=reach)


def _plot_queues(outcome: Outcome) -> Panel:
    """Most questions waiting per bucket, a line per hub."""
    traces = [
        _line_trace(outcome, name, list(series), colour)
        for (name, series), colour in zip(_keep_largest(outcome.queues), _MORE, strict=False)
    ]
    return Panel(
        "queues",
        "Questions waiting at each hub",
        "Most questions waiting in each bucket.",
        "questions",
        traces,
        whole=True,
    )


def _plot_bytes(outcome: Outcome) -> Panel:
    """Bytes per second that left, stacked by the rule that permitted them."""
    rates = _per_second(outcome.bytes_by_rule, outcome)
    traces = [
        _area_trace(outcome, name, values, colour)
        for (name, values), colour in zip(_keep_largest(rates), _MORE, strict=False)
    ]
    return Panel(
        "bytes", "What leaves, by the rule that lets it", "Whole messages, as they are on the link.", "bytes/s", traces
    )


def _plot_states(outcome: Outcome) -> Panel:
    """Devices by state at the end of each bucket, stacked."""
    named = sorted(
        outcome.states.items(),
        key=lambda item: ("online", "offline", "cut", "down").index(item[0]) if item[0] in COLOURS else 9,
    )
    traces = [_area_trace(outcome, name, list(series)) for name, series in named if any(series)]
    return Panel("states", "Devices", "Devices by state at the end of each bucket.", "devices", traces, whole=True)


def _plot_rollout(outcome: Outcome, seen: RolloutRecord) -> Panel:
    """Exposure under the staircase of its waves; each decision of the gate as a point."""
    allowed: list[int | None] = [0] * len(seen.exposed)
    for wave in seen.waves:
        first = int(wave.from_s // outcome.step_s)
        allowed[first:] = [wave.allowed] * len(allowed[first:])
    over = int(seen.ended_s // outcome.step_s) + 1
    allowed[over:] = [None] * len(allowed[over:])
    traces = [
        _area_trace(outcome, "run the candidate", list(seen.exposed), "#7b5ea7"),
        _line_trace(outcome, "allowed by its waves", allowed, "#30343a", "dash"),
    ]
    for verdict, colour in (("pass", "#2a9d8f"), ("inconclusive", "#e9a23b"), ("fail", "#c0313b")):
        looks = [look for look in seen.looks if look.verdict.lower() == verdict]
        if looks:
            traces.append(_scatter_trace(f"gate: {verdict}", looks, seen, outcome, colour))
    note = f"{seen.name}: {seen.end}. Waves open only when the gate passes."
    return Panel(f"rollout-{seen.name}", "Rollout waves and exposure", note, "devices", traces, whole=True)


def _scatter_trace(name: str, looks: Iterable[Any], seen: RolloutRecord, outcome: Outcome, colour: str) -> Plain:
    """Gate decisions as points at the exposure of their bucket."""
    at = [(look, min(len(seen.exposed) - 1, int(look.at_s // outcome.step_s))) for look in looks]
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": [format_moment(look.at_s) for look, _ in at],
        "y": [seen.exposed[bucket] for _, bucket in at], "text": [look.why for look, _ in at],
        "marker": {"color": colour, "size": 8, "line": {"color": "#fff", "width": 1}},
    }  # fmt: skip


# Series


def _source_of(name: str) -> str:
    """Source of a series named `source.why`."""
    return name.partition(".")[0]


def _per_second(series: Mapping[str, Series], outcome: Outcome) -> dict[str, list[float]]:
    """Counts per bucket as rates per second."""
    return {name: [n / outcome.step_s for n in values] for name, values in series.items()}


def _keep_largest(series: Mapping[str, Iterable[float]]) -> list[tuple[str, list[float]]]:
    """The largest series first; beyond `_SHOWN` of them, the others summed."""
    ranked = sorted(
        ((name, list(values)) for name, values in series.items()), key=lambda item: (-sum(item[1]), item[0])
    )
    kept, others = ranked[:_SHOWN], ranked[_SHOWN:]
    return [*kept, *([("other", _sum_series(values for _, values in others))] if others else [])]


def _sum_series(series: Iterable[Iterable[float]]) -> list[float]:
    """Sum of several series, bucket by bucket."""
    return [sum(values) for values in zip(*series, strict=True)]


def _merge_bins(parts: Iterable[Bins]) -> Bins:
    """Sum of several latency histograms."""
    found: Bins = {}
    for bins in parts:
        for number, count in bins.items():
            found[number] = found.get(number, 0) + count
    return found


def _compute_quantiles(bins: Iterable[Bins], share: float) -> list[float | None]:
    """Quantile of each bucket's histogram in seconds; None for an empty one."""
    return [quantile_s(each, share) for each in bins]


# Traces


def _line_trace(outcome: Outcome, name: str, values: list[Any], colour: str, dash: str = "solid") -> Plain:
    """Plotly trace of one line in steps."""
    line = {"color": colour, "width": 1.8, "shape": "hv", "dash": dash}
    return {"type": "scatter", "mode": "lines", "name": name, "line": line, **_over_time(outcome, values)}


def _area_trace(outcome: Outcome, name: str, values: list[float], colour: str = "") -> Plain:
    """Plotly trace of one layer of a stack; its colour is that of its name, or derived from it."""
    fill = colour or COLOURS.get(name) or _MORE[sum(map(ord, name)) % len(_MORE)]
    look = {"stackgroup": "all", "fillcolor": fill, "line": {"width": 0.6, "color": fill, "shape": "hv"}}
    words = _WORDS.get(name, name.replace("local.", "device, ").replace("hub.", "hub, ").replace("_", " "))
    return {"type": "scatter", "mode": "lines", "name": words, **look, **_over_time(outcome, values)}


def _over_time(outcome: Outcome, values: list[Any]) -> Plain:
    """Values as steps from bucket to bucket; the last one has a width too."""
    rounded = [None if v is None else float(f"{v:.5g}") for v in values]
    return {"x0": DAY_ZERO, "dx": outcome.step_s * 1000, "y": [*rounded, *rounded[-1:]]}
