"""Report writer of a forge run: an HTML page, its figures as JSON, and the outcomes as .npz, beside the bundle.

Rule: it is not part of the bundle, and nothing reads it but people and `calibrate`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from models.bundle.bundle import Bundle
from models.bundle.replacement import PlaceError
from models.forge.evaluation.baselines import measure_baselines
from models.forge.evaluation.outcomes import OUTCOMES_FILE, encode_outcomes
from models.forge.evaluation.threshold_choice import ASK_SHARE
from models.forge.export.manifest import ENVELOPE_BYTES, FEATURE, measure_question_bytes
from models.forge.leakage.summary import describe_leakage
from models.forge.partition.cost import CutCost, cost_fields
from models.forge.partition.cuts import PreparedModel
from models.forge.report.frontier_section import FrontierView
from models.forge.report.page import PageFigures, render_page
from models.forge.report.payoff import judge_payoff
from models.forge.report.payoff_evidence import collect_evidence
from models.forge.report.result import ForgedBundle
from models.forge.report.trades import describe_trade, list_trades
from models.forge.routes.frontier import RoutePoint
from models.forge.spec import ForgeSpec
from wire.protocol.codec import MAX_FRAME_BYTES
from wire.protocol.messages import ModelRef

HTML_FILE, FACTS_FILE, HELDOUT_FILE = "report.html", "report.json", "outcomes-heldout.npz"


def locate_report(bundle: Path) -> Path:
    """Folder of a bundle's report: `digits-1.report` beside `digits-1`.

    A bundle's own folder holds nothing that its manifest does not name.
    """
    return bundle.with_name(bundle.name + ".report")


def check_report_place(bundle: Path) -> None:
    """Check that the report of a bundle at this path would overwrite nothing but an older report. PlaceError if not."""
    folder = locate_report(bundle)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise PlaceError(f"{folder} is no folder, and the report goes there: name another folder")
    for name in (HTML_FILE, FACTS_FILE, OUTCOMES_FILE, HELDOUT_FILE):
        if (folder / name).exists() and "digest" not in read_facts(bundle):
            raise PlaceError(f"{folder / name} is there already and no report's: name another folder, or move it away")


def read_facts(bundle: Path) -> dict[str, Any]:
    """The figures in the report beside a bundle; {} if there is none that can be read."""
    try:
        return msgspec.json.decode((locate_report(bundle) / FACTS_FILE).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def write_report(
    bundle: Bundle,
    found: PreparedModel,
    made: ForgedBundle,
    rows: Sequence[CutCost],
    wish: ForgeSpec,
    *,
    own_edge: bool,
) -> Path:
    """Write page, figures and outcomes into `locate_report`; returns the page's path.

    `own_edge`: the device's half is a small model of the user's own.
    """
    folder = locate_report(bundle.path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OUTCOMES_FILE).write_bytes(encode_outcomes(made.judged.chosen_on))
    (folder / HELDOUT_FILE).write_bytes(encode_outcomes(made.judged.measured_on))
    sizes = {one.name: round(one.mean_bytes, 1) for one in measure_baselines(found.data.heldout.x[0])}
    frontier = _view_frontier(bundle, made.points, sizes, wish)
    evidence = collect_evidence(bundle.manifest, found.data, made, frontier.sealed_samples, own_edge=own_edge)
    payoff = judge_payoff(bundle.manifest, made.judged.measured_on, found.data.heldout.x[0][0].nbytes, evidence)
    told: dict[str, Any] = {
        "payoff": payoff._asdict(),
        "frontier": made.points,
        "trades": [describe_trade(trade) for trade in frontier.trades],
        "model": bundle.manifest.model,
        "digest": bundle.digest,
        "wish": wish.as_fields(),
        "calibration": bundle.manifest.calibration,
        "cuts": [cost_fields(row) for row in rows],
        "candidates": made.edge.candidates,
        "leakage": made.leaked.rows,
        "leakage_void": made.leaked.void,
        "leakage_absent": made.leaked.absent,
        "leakage_cost": made.leaked.cost._asdict(),
        "leakage_summary": describe_leakage(made.leaked),
        "bytes": {**sizes, **_message_bytes(bundle, made)},
        "deferral": made.judged.deferral._asdict(),
        "scope": made.judged.scope._asdict() if made.judged.scope else None,
        "forge": msgspec.json.decode(bundle.report) if bundle.report else {},
    }
    (folder / FACTS_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1))
    path = folder / HTML_FILE
    figures = PageFigures(rows, sizes, told["forge"], payoff, frontier)
    path.write_text(render_page(bundle, made, figures), encoding="utf-8")
    return path


def _view_frontier(
    bundle: Bundle, points: tuple[RoutePoint, ...], sizes: Mapping[str, float], wish: ForgeSpec
) -> FrontierView:
    """The frontier with its best trades, beside questions that carry the sample compressed by usual means."""
    m = bundle.manifest
    ref = ModelRef(m.name, m.version, m.cut, m.codec)
    sealed = {
        name: measure_question_bytes(ref, {FEATURE: math.ceil(size)}) + ENVELOPE_BYTES
        for name, size in sizes.items()
        if size <= MAX_FRAME_BYTES
    }
    return FrontierView(points, list_trades(points, wish), sealed, wish.max_share or ASK_SHARE, wish.keep)


def _message_bytes(bundle: Bundle, made: ForgedBundle) -> dict[str, float]:
    manifest = bundle.manifest
    sealed = manifest.fixed_bytes + ENVELOPE_BYTES
    return {
        "codes": made.leaving.chosen.payload_bytes,
        "question": manifest.fixed_bytes,
        "sealed": sealed,
        "sealed, mean over all samples": round(sealed * manifest.calibration.asked, 1),
        "codes, mean over all samples": round(made.leaving.chosen.payload_bytes * manifest.calibration.asked, 2),
    }
