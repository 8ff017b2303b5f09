"""HTML report of a run, one page that needs no network: verdict, figures, plots, events, history, scenario.

Rule: it only draws what it is given. Everything but the plots can be read without scripts, and equal outcomes give
equal pages but for what the run cost.
"""

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from simulations.report.expectations import OutcomeWindow, compute_figure, select_window
from simulations.report.formatting import format_clock, format_duration, format_figure
from simulations.report.outcome import JudgedExpectation, Outcome
from simulations.report.plots import Panel, build_figure, build_panels, list_marks, mark_letter
from simulations.scenario.types import Model, Region, Scenario

_CARDS = (
    ("samples", "samples"), ("hub_share", "from a hub"), ("accuracy", "of all answers right"),
    ("p50_s", "p50"), ("p99_s", "p99"), ("lost", "questions lost"), ("doubled", "questions doubled"),
    ("queue_peak", "longest queue"), ("bytes_per_device_day", "a device and day"),
)  # fmt: skip
_HEAD = (
    '<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" content="'
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    '">'
)  # the page cannot fetch anything
_NEVER = {"lost", "doubled"}  # more than none of it is bad


def render_page(outcome: Outcome, scenario: Scenario | None = None) -> str:
    """Render the HTML report of a run; `scenario`: adds a section on what was simulated."""
    drawn = build_panels(outcome)
    happened, history = _render_events(outcome), _render_history(outcome)
    parts = [
        _render_head(outcome),
        _render_violations(outcome),
        _render_expectations(outcome.expectations),
        _render_cards(select_window(outcome)),
        f'<div class="two">{happened}{history}</div><br>' if happened else history,
        *(_render_plot(panel) for panel in drawn),
        "" if scenario is None else _render_scenario(scenario),
        _render_footer(outcome),
    ]
    figures = [build_figure(panel, outcome) for panel in drawn]
    return render_document(f"{outcome.scenario}: {outcome.question}", "".join(parts), figures)


PAGE_START = '<!doctype html><html lang="en" data-made-by="skerry-sim">'


def render_document(title: str, body: str, figures: Sequence[dict[str, Any]], width: str = "") -> str:
    """Render an HTML page around `body`, with a plot in each element whose id is a figure's key.

    `figures`: as `simulations.report.plots.build_figure` makes them; `width`: a class of the style sheet.
    """
    drawn = json.dumps(figures, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'{PAGE_START}<head><meta charset="utf-8"><title>{escape(title)}</title>{_HEAD}'
        f'<style>{_read_resource("page.css")}</style></head><body><main class="{width}">{body}</main>'
        f'<script type="application/json" id="figures">{drawn}</script>'
        f'<script type="text/plain" id="plotly">{_pack_plotly()}</script>'
        f"<script>{_read_resource('page.js')}</script></body></html>\n"
    )


def _read_resource(name: str) -> str:
    """Text of a file that lies beside this module."""
    return (resources.files("simulations.report") / name).read_text(encoding="utf-8")


@cache
def _pack_plotly() -> str:
    """plotly.js as the package ships it, compressed to a quarter of its size."""
    code = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(code, mtime=0)).decode()


def _render_head(outcome: Outcome) -> str:
    """Head of the page: question, verdict, size and seed."""
    held, words = summarize_verdict(outcome)
    early = f" Stopped at {format_clock(outcome.until_s)} of virtual time." if not outcome.complete else ""
    facts = (
        f"{outcome.devices:,} devices", f"{format_duration(outcome.duration_s)} of virtual time",
        f"seed {outcome.seed}", f"scenario {outcome.digest}",
    )  # fmt: skip
    return (
        f"<header><small>Skerry · simulated fleet · {escape(outcome.scenario)}</small>"
        f"<h1>{escape(outcome.question)}</h1>"
        f'<span class="verdict {held}">{escape(words)}</span>{early}'
        f'<div class="facts">{"".join(f"<span>{escape(fact)}</span>" for fact in facts)}</div></header>'
    )


def summarize_verdict(outcome: Outcome) -> tuple[str, str]:
    """Verdict of a run: a class of the style sheet ("" = good) and one line."""
    missed = [judged for judged in outcome.expectations if not judged.held]
    if outcome.violations or not outcome.history.ok:
        return "no", "No: a law was broken"
    if not outcome.complete:
        return "early", "Not finished"
    if missed:
        return "no", f"No: {len(missed)} of {len(outcome.expectations)} expectations did not hold"
    return (
        "",
        f"Yes: all {len(outcome.expectations)} expectations held" if outcome.expectations else "The history holds",
    )


def _render_violations(outcome: Outcome) -> str:
    """Section of broken rules with the commands that show them again; of flaws without one, the first 20 stories."""
    if not outcome.violations and outcome.history.ok:
        return ""
    told = [f"<p>{escape(v.law)}: {escape(v.story)}</p><pre>{escape(v.replay)}</pre>" for v in outcome.violations]
    stories = [] if outcome.violations else [f"<p>{escape(story)}</p>" for story in outcome.history.stories[:20]]
    return f"<section><h2 class='missed'>Laws that were broken</h2>{''.join([*told, *stories])}</section>"


def _render_expectations(judged: Sequence[JudgedExpectation]) -> str:
    """Table of expectations: held or missed, value, bounds and window."""
    if not judged:
        return ""
    rows = [
        f'<tr><td class="l {"held" if each.held else "missed"}">{"✓ held" if each.held else "✗ missed"}</td>'
        f'<td class="l"><code>{escape(each.figure)}</code></td><td>{format_figure(each.figure, each.value)}</td>'
        f'<td>{escape(format_bounds(each))}</td><td class="l">{escape(each.window)}</td></tr>'
        for each in judged
    ]
    head = '<tr><th class="l"></th><th class="l">figure</th><th>seen</th><th>expected</th><th class="l"></th></tr>'
    return (
        f'<section><h2>What was expected</h2><div class="scroll"><table>{head}{"".join(rows)}</table></div></section>'
    )


def format_bounds(judged: JudgedExpectation) -> str:
    """Format the bounds of an expectation: `0.18 to 0.23`, `at most 2 s`."""
    low, high = (None if b is None else format_figure(judged.figure, b) for b in (judged.at_least, judged.at_most))
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"at most {high}" if high is not None else f"at least {low}"


def _render_cards(seen: OutcomeWindow) -> str:
    """Cards with the main figures; lost and doubled questions are marked as bad."""
    cards = []
    for name, words in _CARDS:
        value = compute_figure(seen, name)
        bad = " bad" if name in _NEVER and value else ""
        cards.append(f'<div class="card{bad}"><b>{format_figure(name, value)}</b><span>{escape(words)}</span></div>')
    return f'<div class="cards">{"".join(cards)}</div>'


def _render_events(outcome: Outcome) -> str:
    """Table of events and rollouts (at most 200), with the letters that mark them in the plots."""
    marks = list_marks(outcome)
    if not marks:
        return ""
    rows = [
        f'<tr><td class="l"><span class="key">{mark_letter(place)}</span>{escape(mark.text or mark.kind)}</td>'
        f"<td>{format_clock(mark.at_s)}</td><td>{format_duration(mark.lasts_s) if mark.lasts_s else '–'}</td></tr>"
        for place, mark in enumerate(marks[:200])
    ]
    head = '<tr><th class="l">what</th><th>at</th><th>for</th></tr>'
    return f'<section><h2>What happened</h2><div class="scroll"><table>{head}{"".join(rows)}</table></div></section>'


def _render_history(outcome: Outcome) -> str:
    """Table of how questions ended, by the history checker."""
    seen = outcome.history
    ends = (("answered", seen.answered), ("expired", seen.expired), ("refused", seen.refused), ("denied", seen.denied))
    rows = [("questions accepted", seen.accepted), *((f"… {end}", count) for end, count in ends if count)]
    rows += [("… open at the end", seen.open)] if seen.open else []
    rows += [("late answers, as corrections", seen.late), ("verdicts stored by hubs", seen.effects)]
    rows += [(flaw, count) for flaw, count in seen.flaws.items()]
    cells = "".join(f'<tr><td class="l">{escape(name)}</td><td>{count:,}</td></tr>' for name, count in rows)
    note = "Every accepted question ends exactly once; the history checker saw every commit of devices and hubs."
    return f"<section><h2>What became of questions</h2><p>{note}</p><table>{cells}</table></section>"


def _render_plot(panel: Panel) -> str:
    """Section with the place of one plot; page.js draws into it."""
    return (
        f"<section><h2>{escape(panel.title)}</h2><p>{escape(panel.note)}</p>"
        f'<div class="plot" id="{escape(panel.key)}"></div></section>'
    )


def _render_scenario(scenario: Scenario) -> str:
    """Section on the scenario: load, model, regions and policy."""
    names = ("devices", "hubs", "batches at once", "a batch of n takes", "one way", "lost on the way")
    head = '<th class="l">region</th>' + "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(
        f"<tr>{_render_region(scenario, number, region)}</tr>" for number, region in enumerate(scenario.regions)
    )
    load = scenario.load
    every = f"every {format_duration(1 / load.samples_per_s)}" if load.kind != "trace" else f"{len(load.trace)} steps"
    return (
        f"<section><h2>What was simulated</h2><p>Load: {load.kind}, a sample of each device {every}. "
        f'{_describe_model(scenario.model)}</p><div class="scroll"><table><tr>{head}</tr>{rows}</table></div><br>'
        f"<details><summary>The policy</summary><pre>{escape(scenario.policy_text.strip())}</pre></details></section>"
    )


def _describe_model(model: Model) -> str:
    """What the model of the scenario answers, in one sentence."""
    if model.replay is not None:
        return f"Answers: {len(model.replay.confidence):,} samples of a recorded run, drawn again."
    if model.deciles:
        return f"Confidences are drawn from a bundle's calibration; the hub is right in {model.accuracy_hub:.1%}."
    return (
        f"{model.unsure_share:.0%} of the samples are unsure. Right are {model.accuracy_edge:.1%} of the sure answers, "
        f"{model.accuracy_unsure:.1%} of the unsure, {model.accuracy_hub:.1%} of the hub's."
    )


def _render_region(scenario: Scenario, number: int, region: Region) -> str:
    """Table cells of one region: devices, hubs, engines, latency and loss."""
    climate = region.link.climate
    cells: Iterable[str] = (
        f"{len(scenario.devices_of(number)):,}", f"{region.hubs}", f"{region.slots} of {region.max_batch}",
        f"{region.cost_base_s * 1000:g} + n · {region.cost_item_s * 1000:g} ms", f"{climate.latency_s * 1000:g} ms",
        f"{climate.loss:.1%}",
    )  # fmt: skip
    return f'<td class="l">{escape(region.name)}</td>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells)


def _render_footer(outcome: Outcome) -> str:
    """Footer with the cost of the run; "" if it is not known."""
    wall = outcome.wall
    if not wall.seconds:
        return ""
    speed = f"{outcome.samples / wall.seconds:,.0f} samples and {outcome.events / wall.seconds:,.0f} events a second"
    memory = f", {wall.peak_rss_bytes / 2**20:,.0f} MiB" if wall.peak_rss_bytes else ""
    return (
        "<footer>Drag over a plot to zoom in on all of them, double-click to see the whole again. "
        f"Devices and hubs ran their production cores and policies over virtual time; only their loops were "
        f"replaced. It took {wall.seconds:,.1f} s on {wall.processes} process{'es' if wall.processes > 1 else ''}"
        f"{memory}: {speed}. The same seed gives the same figures.</footer>"
    )
