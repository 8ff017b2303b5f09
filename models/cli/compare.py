"""Comparison of two bundles: every figure, every size, and what a device would have to download.

Rule: verified bundles only; nothing is measured here. What differs is marked, and nothing is called better or worse.
"""

import math
from typing import Any

import msgspec

from models.bundle.archive import pack_bundle
from models.bundle.bundle import Bundle
from models.bundle.hub_part import HubManifest, open_hub_part
from models.bundle.manifest import EDGE_FILE, HUB_FOLDER, JOINT_FORMAT, BundleError, Manifest
from models.bundle.measurements import CalibrationFigures, DomainFigures, LeakageRow, LeakKind, QualityMetric
from models.runtime.feature_codec import NUMPY_DTYPES, CodecError, open_codec
from wire.protocol.messages import SensitivityLevel

_ROUTES = {"sample": "the sample itself", "early": "early features", "learned": "learned codes"}
ENVELOPE_BYTES = 196  # clear header, HPKE and signature around every sealed escalation


def bundle_fields(bundle: Bundle) -> dict[str, Any]:
    """Return manifest, sizes in bytes and the forge's report as plain values, for `--json`.

    `payload_bytes`: codes of one escalation; `sealed_bytes`: what travels for it; `raw_bytes`: the sample itself.
    """
    manifest = bundle.manifest
    return {
        "path": str(bundle.path),
        "digest": bundle.digest,
        "payload_bytes": count_payload_bytes(bundle),
        "raw_bytes": math.prod(manifest.input.shape) * NUMPY_DTYPES[manifest.input.dtype].itemsize,
        "sealed_bytes": manifest.fixed_bytes + ENVELOPE_BYTES,
        "file_bytes": count_file_bytes(bundle),
        "manifest": msgspec.to_builtins(manifest),
        "hub": msgspec.to_builtins(read_hub_manifest(bundle)),
        "forge": read_report(bundle),
    }


def read_hub_manifest(bundle: Bundle) -> HubManifest | None:
    """Read the description of the hub part, None where the edge part lies alone. BundleError if it does not fit."""
    manifest = bundle.manifest
    if manifest.format != JOINT_FORMAT and not (bundle.path / HUB_FOLDER).exists():
        return None
    return open_hub_part(bundle.path, manifest).manifest


def count_file_bytes(bundle: Bundle) -> dict[str, int]:
    """Sizes of all files by name, the edge part's first; those of a hub part of its own begin with `hub/`."""
    part, edge = read_hub_manifest(bundle), {name: len(bundle.read_file(name)) for name in bundle.manifest.files}
    if part is None or bundle.manifest.format == JOINT_FORMAT:
        return edge
    return edge | {f"{HUB_FOLDER}/{name}": file.size_bytes for name, file in part.files.items()}


def read_report(bundle: Bundle) -> Any:
    """Decode the forge's report, {} if there is none. It is not verified and nothing depends on it."""
    try:
        return msgspec.json.decode(bundle.report) if bundle.report else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def count_payload_bytes(bundle: Bundle) -> int:
    """Count the bytes of the codes of one escalation. BundleError if the codec's tables do not fit."""
    try:
        return open_codec(bundle.manifest, bundle.read_file).total_bytes
    except CodecError as error:
        raise BundleError(f"{bundle.manifest.model}: {error}") from None


_ON_HELDOUT = " on held-out samples"


def format_figures(bundle: Bundle) -> dict[str, str]:
    """Format the figures a person wants first: name to text, in the order of display."""
    manifest = bundle.manifest
    c, form = manifest.calibration, figure_format(manifest)
    part = read_hub_manifest(bundle)
    return {
        "model": manifest.model,
        "digest": bundle.digest[:16],
        "kind": f"{manifest.kind} of {len(manifest.labels)}" if manifest.labels else str(manifest.kind),
        "cut": manifest.cut,
        **_format_path(read_report(bundle)),
        "edge alone": form(c.edge) + _ON_HELDOUT,
        "pair": f"{form(c.pair)}{_ON_HELDOUT}, {format_asking(manifest)}",
        "given model": form(c.hub) + _ON_HELDOUT,
        "best gate": form(c.oracle) + _ON_HELDOUT,
        "held-out samples": f"{c.samples}",
        "calibration error": f"{c.ece_before:.4f} -> {c.ece_after:.4f}",
        "promised": _format_promise(c),
        "guarantee": format_guarantee(manifest),
        "out of domain": format_domain(manifest.gate.domain),
        "out of domain, hub": format_domain(manifest.gate.hub_domain),
        "codes": f"{count_payload_bytes(bundle)} B, {manifest.codec}",
        "question": f"{manifest.fixed_bytes} B, sealed {manifest.fixed_bytes + ENVELOPE_BYTES} B",
        "leakage": "; ".join(map(format_leakage, strongest_attacks(manifest.leakage))) or "not measured",
        "edge graph": f"{len(bundle.read_file(EDGE_FILE)):,} B, {manifest.target.precision}, {manifest.target.machine}",
        "hub weights": f"{part.weight_bytes:,} B" if part else "not here",
        "a device loads": f"{len(pack_bundle(bundle)):,} B",
        "p50": _format_speed(read_report(bundle), manifest.target.precision),
        "work on device": _format_work(read_report(bundle)),
    }


def format_asking(manifest: Manifest) -> str:
    """Format the share that is asked, or why a device would ask nothing: then the pair is the edge alone."""
    c = manifest.calibration
    if not c.asked:
        return f"asking nobody (threshold {c.threshold:g})"
    private = max((field.level for field in manifest.features), default=SensitivityLevel.P0) >= SensitivityLevel.P2
    if private and not any(row.kind is LeakKind.RECONSTRUCTION for row in manifest.leakage):
        return (
            f"if it asked {c.asked:.1%} below {c.threshold:g}; no question will leave: leakage was not measured"
            " (denied_unmeasured)"
        )
    return f"escalating {c.asked:.1%} below {c.threshold:g}"


def _format_work(told: Any) -> str:
    """Format the device's share of the given model's arithmetic, and its time against it; "" of an older bundle."""
    match told:
        case {"device_share": int() | float() as share, "time_ratio": ratio}:
            timed = f"; {ratio:.2f} x its time in float32, where it was forged" if isinstance(ratio, float) else ""
            return f"{share:.1%} of the given model's multiply-accumulates{timed}"
        case _:
            return ""


def figure_format(manifest: Manifest) -> Any:
    """Return the function that formats a quality figure: a percentage for accuracies, else the RMSE."""
    return _format_percent if manifest.calibration.metric == QualityMetric.ACCURACY else _format_number


def _format_percent(value: float) -> str:
    return f"{value:.2%}"


def _format_number(value: float) -> str:
    return f"{value:.4g} rmse"


def strongest_attacks(rows: tuple[LeakageRow, ...]) -> list[LeakageRow]:
    """Choose the attack with the highest bound of each kind and subject.

    Rows of one kind and subject are compared in the metric of the first of them.
    """
    best: dict[tuple[str, str], LeakageRow] = {}
    for row in rows:
        known = best.setdefault((row.kind, row.subject), row)
        if row.metric == known.metric and row.upper95 > known.upper95:
            best[row.kind, row.subject] = row
    return list(best.values())


def format_leakage(row: LeakageRow) -> str:
    """Format one leakage row: the attack's success, its bound, and the scale from floor to ceiling."""
    what = f"{row.kind} of {row.subject}" if row.subject else str(row.kind)
    scale = f"at most {row.upper95:.2f}; without codes {row.floor:.2f}, raw {row.ceiling:.2f}"
    return f"{what} {row.score:.2f} {row.metric} ({scale})"


def format_guarantee(manifest: Manifest) -> str:
    """Format the risk guarantee of a manifest, "none" if there is none."""
    g = manifest.guarantee
    return f"risk <= {g.max_risk:g} with {g.confidence:.0%} below {g.threshold:g}" if g else "none"


def _format_promise(c: CalibrationFigures) -> str:
    """Format the share that the threshold promises to ask at most, and of whom."""
    if c.asked_limit >= 1:
        return "no limit of what is asked"
    units = f"of groups never seen, by {c.groups} groups" if c.groups else "of the samples"
    return f"at most {c.asked_limit:.1%} asked, {units}"


def format_domain(figures: DomainFigures | None) -> str:
    """Format what a half calls out of domain: its score and threshold, false alarms with their interval, recall."""
    if figures is None:
        return "not told"
    f = figures
    alarms = f"false alarms {f.false_alarm:.1%} ({f.low95:.1%} to {f.high95:.1%})"
    found = f", finds {f.recall:.0%} of {f.outside} that are" if f.outside else ""
    return f"{f.score} above {f.threshold:.4g}, {alarms}{found}"


def _format_path(told: Any) -> dict[str, str]:
    """Rows of what a question carries and what of the hub's gain that keeps, from the forge's report."""
    match told:
        case {"path": {"name": str(name), "route": str(route), "label": str(label), "recovered": recovered}}:
            kept = f"{recovered:.1%}" if isinstance(recovered, int | float) else "no gap"
            return {
                "a question carries": f"{name}: {_ROUTES.get(route, route)}, label {label}",
                "kept of the gain": f"{kept}, on calibration samples",
            }
        case _:
            return {"a question carries": "not recorded", "kept of the gain": "not recorded"}


def _format_speed(told: Any, precision: str) -> str:
    match told:
        case {"p50_us": dict(p50)} if isinstance(p50.get(precision), int | float):
            busy = told.get("busy")
            load = ", measured on a busy machine" if isinstance(busy, list) and precision in busy else ""
            return f"{p50[precision]:.0f} us where it was forged{load}"
        case _:
            return "not measured"


def compare_figures(one: Bundle, other: Bundle) -> list[tuple[str, str, str, bool]]:
    """Compare the figures of two bundles: (name, value of one, value of the other, whether they differ)."""
    left, right = format_figures(one), format_figures(other)
    return [(name, left[name], right[name], left[name] != right[name]) for name in left]


def find_changed_files(one: Bundle, other: Bundle) -> dict[str, int]:
    """Find the files of `other` whose content `one` does not have: name to bytes."""
    have = set(one.manifest.files.values())
    return {name: len(other.read_file(name)) for name, digest in other.manifest.files.items() if digest not in have}
