"""HTML page of a forge report: plots, tables and images of one run, without links or scripts.

Rule: only draws what it is given; every figure names the samples it was taken on, and beside the features stands what
compressing the sample costs and what a sealed escalation costs.
"""

import base64
import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from models.bundle.bundle import Bundle
from models.bundle.hub_part import open_hub_part
from models.bundle.measurements import DomainFigures, QualityMetric
from models.forge.evaluation.baselines import encode_png, is_picture, to_pixel_bytes
from models.forge.evaluation.deferral import oracle_curve, pair_curve
from models.forge.export.manifest import ENVELOPE_BYTES
from models.forge.leakage.summary import describe_leakage
from models.forge.partition.cost import CutCost
from models.forge.report.charts import ChartAxis, ChartPoint, ChartSeries, draw_chart
from models.forge.report.frontier_section import FrontierView, render_frontier
from models.forge.report.markup import PAGE_STYLE, format_share, metric_formatter, render_table
from models.forge.report.payoff import Payoff, format_gain, format_range
from models.forge.report.result import CandidateSummary, ForgedBundle
from models.forge.timing import NOTE

_SHOWN = 10  # pictures
_CURVE_POINTS = 101
_MARK = "*"  # behind microseconds that were measured under load
_BUSY = f" ({NOTE})"
_META = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'


class PageFigures(NamedTuple):
    """What the page shows beside bundle and candidate.

    `rows`: cost of every measured cut; `sizes`: compression baselines in bytes; `forge`: the fields of `forge.json`;
    `payoff`: whether asking the hub pays; `frontier`: the code paths that the shipped one was chosen from.
    """

    rows: Sequence[CutCost]
    sizes: dict[str, float]
    forge: Any
    payoff: Payoff
    frontier: FrontierView


def render_page(bundle: Bundle, made: ForgedBundle, told: PageFigures) -> str:
    """The whole page as HTML text."""
    manifest, payoff = bundle.manifest, told.payoff
    parts = [
        f"<h1>{escape(manifest.model)}</h1><small>{escape(manifest.kind)} · bundle {bundle.digest}</small>",
        _render_warnings(payoff),
        _render_cards(bundle, made),
        _render_intervals(bundle, payoff),
        render_frontier(told.frontier, manifest.calibration.metric),
        _render_cuts(told.rows, made),
        _render_bytes(bundle, made, told.sizes),
        _render_deferral(made),
        _render_calibration(made),
        _render_candidates(made),
        _render_leakage(made),
        _render_provenance(bundle, told.forge),
    ]
    head = f'<!doctype html><html lang="en"><head>{_META}<title>{escape(manifest.model)}: forged</title>'
    return f"{head}<style>{PAGE_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"


def _render_cards(bundle: Bundle, made: ForgedBundle) -> str:
    c = bundle.manifest.calibration
    shown = metric_formatter(c.metric)
    cards = (
        (shown(c.edge), "edge alone"),
        (shown(c.pair), f"pair, asking {c.asked:.1%}"),
        (shown(c.hub), "given model"),
        (f"{made.leaving.chosen.payload_bytes} B", f"codes ({bundle.manifest.codec})"),
        (f"{bundle.manifest.fixed_bytes + ENVELOPE_BYTES} B", "a question, sealed"),
        (f"{made.edge.p50_us:.0f} µs", f"edge graph, {made.edge.precision}, here{_BUSY if made.edge.busy else ''}"),
        (f"{len(made.edge.graph) / 1024:.0f} KiB", "edge graph"),
    )
    drawn = "".join(f'<div class="card"><b>{value}</b>{escape(name)}</div>' for value, name in cards)
    damaged = f", {c.corrupted:.0%} of them damaged on purpose" if c.corrupted else ""
    return f'<div class="cards">{drawn}</div><p>Measured on {c.samples} held-out samples{damaged}; {c.metric}.</p>'


def _render_warnings(payoff: Payoff) -> str:
    """What to know before all else: each reason why asking the hub does not pay."""
    return "".join(f'<p class="warning">{escape(line[0].upper() + line[1:])}.</p>' for line in payoff.warnings)


def _render_intervals(bundle: Bundle, payoff: Payoff) -> str:
    """The figures' 95 % intervals in one sentence."""
    metric = bundle.manifest.calibration.metric
    named = (("edge alone", payoff.edge), ("pair", payoff.pair), ("given model", payoff.hub))
    ranges = "; ".join(f"{name} {format_range(metric, one)}" for name, one in named if one is not None)
    gained = f"gain by asking {format_gain(metric, payoff.gain)} ({format_range(metric, payoff.gained)})"
    return f"<p>With 95 % probability: {ranges}; {gained}.</p>"


def _render_cuts(rows: Sequence[CutCost], made: ForgedBundle) -> str:
    title = "<h2>Split points</h2>"
    if not rows:
        return f"{title}<p>The cut {escape(made.cut.name)} was given; no other was measured.</p>"
    points = [ChartPoint(r.coded_bytes, r.head_us, r.cut.name, r.cut.name == made.cut.name) for r in rows]
    figures = [ChartPoint(r.coded_bytes, r.accuracy, r.cut.name, r.cut.name == made.cut.name) for r in rows]
    leaking = [
        ChartPoint(r.coded_bytes, r.leakage, r.cut.name, r.cut.name == made.cut.name)
        for r in rows
        if r.leakage is not None
    ]
    size = ChartAxis("bytes of features, coded without training", logarithmic=True)
    metric = "accuracy" if made.judged.calibration.metric == QualityMetric.ACCURACY else "RMSE"
    quality = ChartAxis(f"{metric} after coding")
    plots = [
        draw_chart(size, ChartAxis("head, microseconds", logarithmic=True), [ChartSeries("", tuple(points))]),
        draw_chart(size, quality, [ChartSeries("", tuple(figures))]),
        draw_chart(size, ChartAxis("leakage, quick attack", low=0.0, high=1.0), [ChartSeries("", tuple(leaking))]),
    ]
    body = [
        (
            escape(r.cut.name),
            f"{r.cut.share:.1%}",
            f"{r.head_us:.0f}{_MARK if r.busy else ''}",
            f"{r.tail_us:.0f}{_MARK if r.busy else ''}",
            f"{r.raw_bytes:,}",
            f"{r.coded_bytes:,}",
            f"{r.levels}",
            f"{r.accuracy:.4f}",
            "" if r.leakage is None else f"{r.leakage:.2f}",
        )
        for r in rows
    ]
    marks = [r.cut.name == made.cut.name for r in rows]
    names = ("cut", "work before it", "head µs", "tail µs", "raw B", "coded B", "levels", metric, "leakage")
    note = (
        '<p class="why">Before anything is trained: features clipped, rounded to few levels and entropy coded '
        f"(Cohen, Choi &amp; Bajic 2021); {metric} on calibration samples. The ring marks the chosen cut: there "
        "the edge ends, and there the codes of its features enter the given model again.</p>"
    )
    table = render_table(names, body, marks)
    return title + f'<div class="plots">{"".join(plots)}</div>' + table + note + _note_load(rows)


def _render_bytes(bundle: Bundle, made: ForgedBundle, sizes: dict[str, float]) -> str:
    asked = bundle.manifest.calibration.asked
    question = bundle.manifest.fixed_bytes
    body = [(f"sample: {name}", f"{size:,.0f}", f"{size * asked:,.1f}") for name, size in sizes.items()]
    ways = [(f"codes, {w.name}", f"{w.payload_bytes:,}", f"{w.payload_bytes * asked:,.1f}") for w in made.leaving.ways]
    whole = [
        ("question: codes, answer, ids, padded", f"{question:,}", f"{question * asked:,.1f}"),
        (
            f"sealed: question + {ENVELOPE_BYTES} B envelope",
            f"{question + ENVELOPE_BYTES:,}",
            f"{(question + ENVELOPE_BYTES) * asked:,.1f}",
        ),
    ]
    marks = [False] * len(body) + [w.name == bundle.manifest.codec for w in made.leaving.ways] + [False, False]
    table = render_table(("what", "bytes, if asked", "mean over all samples"), [*body, *ways, *whole], marks)
    return f'<h2>Bytes</h2>{table}<p class="why">Codec {escape(bundle.manifest.codec)}: {escape(made.leaving.why)}.</p>'


def _render_deferral(made: ForgedBundle) -> str:
    outcomes, calibration = made.judged.measured_on, made.judged.calibration
    ours, best = pair_curve(outcomes), oracle_curve(outcomes)
    count = len(outcomes)
    places = np.unique(np.linspace(0, count, _CURVE_POINTS).astype(int))
    lines = [
        ChartSeries("this gate", tuple(ChartPoint(k / count, float(ours[k])) for k in places), line=True),
        ChartSeries("oracle", tuple(ChartPoint(k / count, float(best[k])) for k in places), line=True),
        ChartSeries("random", (ChartPoint(0.0, float(ours[0])), ChartPoint(1.0, float(ours[-1]))), line=True),
        ChartSeries(
            "threshold", (ChartPoint(calibration.asked, calibration.pair, f"{calibration.threshold:g}", chosen=True),)
        ),
    ]
    plot = draw_chart(ChartAxis("share asked", low=0.0, high=1.0), ChartAxis(str(calibration.metric)), lines)
    body = [
        (f"{p.share:.0%}", f"{p.threshold:.4f}", f"{p.value:.4f}", f"{p.oracle:.4f}", format_share(p.recovered))
        for p in made.judged.deferral.points
    ]
    table = render_table(("asked", "threshold", "pair", "oracle", "gap recovered"), body)
    d = made.judged.deferral
    half, most = ("never" if math.isnan(share) else f"at {share:.1%} asked" for share in (d.cpt50, d.cpt80))
    note = f"the gap is that to the given model; mean recovered {format_share(d.apgr)}, half {half}, four fifths {most}"
    title = "<h2>Which samples to escalate</h2>"
    return f'{title}<div class="plots">{plot}{table}</div><p class="why">Held-out samples; {note}.</p>'


def _render_calibration(made: ForgedBundle) -> str:
    points = tuple(ChartPoint(sure, right, f"{count} samples") for sure, right, count in made.judged.bins)
    plot = draw_chart(
        ChartAxis("confidence", low=0.0, high=1.0),
        ChartAxis("share right", low=0.0, high=1.0),
        [
            ChartSeries("edge", points, line=True),
            ChartSeries("perfectly calibrated", (ChartPoint(0, 0), ChartPoint(1, 1)), line=True),
        ],
    )
    lines = "".join(f"<p>{escape(line)}</p>" for line in _describe_calibration(made))
    return f'<h2>Confidence and novelty</h2><div class="plots">{plot}</div>{lines}'


def _describe_calibration(made: ForgedBundle) -> list[str]:
    judged, c = made.judged, made.judged.calibration
    change = f"{c.ece_before:.4f} before, {c.ece_after:.4f} after"
    lines = [f"Expected calibration error {change} (temperature {judged.temperature:g})."]
    if judged.gate.tolerance:
        lines.append(f"An answer counts as right if its error is at most {judged.gate.tolerance:g}.")
    if judged.guarantee:
        g = judged.guarantee
        kept = f"at most {g.max_risk:.1%} of kept answers wrong, with probability {g.confidence:.0%}"
        lines.append(f"Guarantee: {kept} ({g.method}).")
    if judged.scope:
        s = judged.scope
        areas = f"ROC AUC of novelty {s.novelty_auc:.3f}, of low confidence {s.confidence_auc:.3f}"
        lines.append(f"Out of scope: {s.samples} samples; {areas}.")
    halves = (("the device", judged.gate.domain), ("the hub", judged.gate.hub_domain))
    return lines + [describe_domain(half, found) for half, found in halves if found is not None]


def describe_domain(half: str, found: DomainFigures) -> str:
    """What one half calls out of domain, and what its threshold did on held-out samples."""
    alarms = f"{found.false_alarm:.1%} of {found.samples} samples in scope ({found.low95:.1%} to {found.high95:.1%})"
    outside = f", and {found.recall:.1%} of {found.outside} out of scope" if found.outside else ""
    aim = f"chosen for {found.aim:.1%} of those in scope"
    return f"Out of domain for {half}: {found.score} above {found.threshold:.4g}, {aim}; held out: {alarms}{outside}."


def _render_candidates(made: ForgedBundle) -> str:
    body = [
        (
            c.precision,
            f"{c.size_bytes:,}" if c.size_bytes else "",
            "" if c.p50_us is None else f"{c.p50_us:.1f}{_MARK if c.busy else ''}",
            f"{c.rss_bytes / 1024:,.0f}" if c.rss_bytes else "",
            "" if c.accuracy is None else f"{c.accuracy:.4f}",
            escape(c.why or "ships"),
        )
        for c in made.edge.candidates
    ]
    marks = [c.precision == made.edge.precision for c in made.edge.candidates]
    names = ("precision", "bytes", "p50 µs", "memory KiB", "score", "")
    return f"<h2>Precisions of the edge graph</h2>{render_table(names, body, marks)}{_note_load(made.edge.candidates)}"


def _note_load(rows: Sequence[CutCost] | Sequence[CandidateSummary]) -> str:
    """What the mark behind microseconds means, if any of these rows has it."""
    return f'<p class="why">{_MARK}: {NOTE}, at another time it may be less.</p>' if any(r.busy for r in rows) else ""


def _render_leakage(made: ForgedBundle) -> str:
    body = [
        (
            escape(f"{row.kind} {row.subject}".strip()),
            escape(row.attack),
            escape(row.metric),
            f"{row.pairs:,}",
            f"{row.floor:.3f}",
            f"{row.score:.3f}",
            f"{row.upper95:.3f}",
            f"{row.ceiling:.3f}",
        )
        for row in made.leaked.rows
    ]
    names = ("what", "attack", "metric", "pairs", "without features", "with codes", "95 % bound", "with the sample")
    words = "".join(f"<li>{escape(line)}</li>" for line in describe_leakage(made.leaked))
    table = render_table(names, body) if body else ""
    return f"<h2>Privacy leakage of the codes</h2><ul>{words}</ul>{table}{_render_reconstructions(made)}"


def _render_reconstructions(made: ForgedBundle) -> str:
    pictures = made.leaked.pictures
    if pictures is None or not is_picture(np.clip(pictures.originals, 0, 1)):
        return ""
    named = (("sample", pictures.originals), ("attacker", pictures.rebuilt))
    kept = [(name, np.clip(values[:_SHOWN], 0, 1)) for name, values in named]
    lines = "".join(f"<tr><td>{name}</td>{''.join(map(_render_image, values))}</tr>" for name, values in kept)
    return f'<table class="faces">{lines}</table>'


def _render_image(picture: Any) -> str:
    data = base64.b64encode(encode_png(to_pixel_bytes(picture))).decode()
    return f'<td><img alt="" src="data:image/png;base64,{data}"></td>'


def _render_provenance(bundle: Bundle, forge: Any) -> str:
    p, t = bundle.manifest.provenance, bundle.manifest.target
    stages = [(escape(str(name)), f"{seconds} s") for name, seconds in forge.get("stage_s", {}).items()]
    files = [(name, f"{len(bundle.read_file(name)):,}", digest[:16]) for name, digest in bundle.manifest.files.items()]
    hub = open_hub_part(bundle.path, bundle.manifest).manifest.files
    files += [(f"hub/{name}", f"{file.size_bytes:,}", file.sha256[:16]) for name, file in hub.items()]
    origin = f"weights {p.weights_digest[:16]}, data {p.data_digest[:16]}, seed {p.seed}, torch {p.torch}"
    target = f"made for {t.runtime} opset {t.opset} on {t.machine}: {', '.join(t.providers)}"
    named = f"model {p.model or 'given in Python'}, {origin}; {target}"
    said = f"<p>{escape(named)}.</p>"
    tables = render_table(("file", "bytes", "SHA-256"), files) + render_table(("stage", ""), stages)
    return f"<h2>Provenance and files</h2>{said}{tables}"
