"""Commands `skerry models`: inspect, verify, compare and split bundles, and make the demo bundle.

`forge`, `cuts`, `calibrate`, `layout`, `operations` and `text` have modules of their own beside this one.
Rule: nothing but `split` changes a bundle; what is wrong with one is said in one line, with exit code 12 (40 if a check
fails).
"""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.table import Column, Table
from rich.text import Text

from models.bundle.bundle import Bundle, open_bundle
from models.bundle.hub_part import HubKind, HubManifest, open_hub_part
from models.bundle.manifest import JOINT_FORMAT, BundleError, InputSpec, Manifest
from models.bundle.measurements import CalibrationFigures, DomainFigures, LeakageRow, QualityMetric
from models.bundle.text_part import read_text_template
from models.bundle.version import rewrite_version
from models.cli import compare as side_by_side
from models.cli.calibrate import calibrate
from models.cli.cuts import cuts
from models.cli.forge import forge
from models.cli.import_checkpoint import import_checkpoint
from models.cli.layout import layout
from models.cli.operations import operations
from models.cli.output_folder import check_output_folder
from models.cli.progress import stage_progress
from models.cli.text import text
from models.update.trust import Refusal
from models.verification.compatibility import check_target, read_host
from models.verification.sandbox import FirstLoadReport, GoldenFigures, run_first_load
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import check_result_place
from wire.process.terminal import TYPER_SETTINGS, open_console, require_path

T = TypeVar("T")
app = typer.Typer(**TYPER_SETTINGS)

Folder = Annotated[
    Path, typer.Argument(callback=require_path, help="A bundle: the folder with manifest.json.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

app.command()(forge)
app.command()(cuts)
app.command()(calibrate)
app.command("import")(import_checkpoint)
app.command()(layout)
app.command()(operations)
app.command()(text)


@app.command()
def inspect(bundle: Folder, *, as_json: AsJson = False) -> None:
    """Show the content of a bundle after every file was verified: model, features, figures, leakage, files.

    Nothing is run. Exit code 12 if a file is missing, altered or impossible.

    Example: skerry models inspect digits
    """
    opened = _open_bundle(bundle)
    facts = _bundle_fields(opened)
    if as_json:
        open_console().print_json(data=facts)
        return
    table = Table.grid("", Column("", overflow="fold"), padding=(0, 2, 0, 0))
    for name, value in _inspect_rows(opened, facts):
        table.add_row(Text(name, style="bold"), Text(value))  # Text: brackets of shapes are no markup
    open_console().print(table)


@app.command()
def verify(
    bundle: Folder,
    *,
    hub: Annotated[bool, typer.Option("--hub", help="Build the hub's graphs too (needs torch).")] = False,
    as_json: AsJson = False,
) -> None:
    """Check every file, lint the edge graph, load it in a confined process and run the golden set there.

    A hub part beside it is hashed too; with --hub its graphs are built and checked. Also says whether the bundle fits
    this machine, which does not change the exit code: 12 if it may not or cannot be loaded, 40 if it answers otherwise
    than when it was made.

    Example: skerry models verify digits
    """
    opened = _open_bundle(bundle)
    found = run_first_load(opened)
    if found.golden is None:
        raise ExitError(ExitCode.MODEL, f"{opened.manifest.model}: {found.outcome}: {found.detail}")
    if hub:
        _build_hub_graphs(opened)
    elif _exit_on_error(side_by_side.read_hub_manifest, opened):
        _exit_on_error(_verify_weights, opened)
    refusal = check_target(opened.manifest.target, read_host("0"))
    if as_json:
        open_console().print_json(data=_verdict_fields(opened, found, refusal))
    else:
        _print_verdict(opened, found, found.golden)
        if refusal:
            open_console().print(f"not for this machine: {refusal.detail}", markup=False)
    if not found.passed:
        raise typer.Exit(ExitCode.CHECK_FAILED)


@app.command()
def compare(one: Folder, other: Folder, *, as_json: AsJson = False) -> None:
    """Compare two bundles: figures, sizes, digests, and what a device that runs the first would have to download.

    Rows that differ are marked; nothing is called better or worse. Exit code 12 if one of them is unsound.

    Example: skerry models compare digits-1 digits-2
    """
    bundles = _open_bundle(one), _open_bundle(other)
    rows = _exit_on_error(side_by_side.compare_figures, *bundles)
    changed = side_by_side.find_changed_files(*bundles)
    if as_json:
        both = [_bundle_fields(bundle) for bundle in bundles]
        open_console().print_json(
            data={"bundles": both, "differs": [r[0] for r in rows if r[3]], "changed_files": changed}
        )
        return
    table = Table("", *(bundle.manifest.model for bundle in bundles), box=None)
    for name, left, right, differs in rows:
        table.add_row(Text(name, style="bold"), Text(left), Text(right, style="yellow" if differs else ""))
    open_console().print(table)
    word = f"changed files: {', '.join(f'{name} {size:,} B' for name, size in changed.items()) or 'none'}"
    open_console().print(word, markup=False, highlight=False)


@app.command()
def split(
    old: Annotated[
        Path, typer.Argument(callback=require_path, help="A bundle of the older format 2.", show_default=False)
    ],
    new: Annotated[Path | None, typer.Argument(help="Folder to write to.", show_default="in its place")] = None,
    *,
    version: Annotated[int, typer.Option(help="Version of the model.", show_default="the old one's", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Give a bundle of the older format its two parts: what devices fetch, and what the hub alone holds.

    The same files, linked where that is possible; the manifest is another, so its digest is. A repository that lists
    the old version takes the new one under a number of its own: --version. Exit code 12 for a bundle that is unsound or
    has two parts.

    Example: skerry models split digits-7 digits-8 --version 8
    """
    opened = _open_bundle(old)
    if new is not None:
        check_output_folder(new, opened.manifest.name)
    if opened.manifest.format != JOINT_FORMAT:
        raise ExitError(ExitCode.MODEL, f"{old}: {opened.manifest.model} has two parts already")
    manifest = msgspec.structs.replace(opened.manifest, version=version or opened.manifest.version)
    try:
        made = _exit_on_error(lambda bundle: rewrite_version(bundle, manifest, new), opened)
    except OSError as error:
        raise ExitError(
            ExitCode.DISK, f"{error.filename or new or old}: {error.strerror}; choose another folder or make room"
        ) from None
    inspect(made.path, as_json=as_json)


@app.command("demo-bundle")
def demo_bundle(
    out: Annotated[Path, typer.Argument(help="Folder to write the bundle to.", show_default=False)],
    *,
    samples: Annotated[
        Path | None,
        typer.Option("--samples", metavar="FILE", help="Also write held-out digits as JSON lines, to ask a device."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the demo's bundle (scikit-learn's handwritten digits): trained and quantised once, then from the cache.

    The folder must not exist yet. Needs torch and scikit-learn; prints the bundle as `inspect` does.

    Example: skerry models demo-bundle digits
    """
    from models.forge.pipeline.demo import (  # noqa: PLC0415 - only this command needs the forge
        load_demo_bundle,
        locate_cache_folder,
        write_demo_samples,
    )

    if out.exists() or out.is_symlink():
        raise ExitError(ExitCode.USAGE, f"{out} is there already: name another folder")
    if samples:
        check_result_place(samples)
    try:
        with stage_progress() as tell:
            made = copytree(load_demo_bundle(locate_cache_folder(), tell).path, out)
        if samples:
            write_demo_samples(samples)
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{out}: {error.strerror}; choose another folder or make room") from None
    inspect(made, as_json=as_json)


def _open_bundle(path: Path) -> Bundle:
    """Open a bundle. ExitError(MODEL) if it is not sound."""
    try:
        return open_bundle(path)
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None


def _build_hub_graphs(bundle: Bundle) -> None:
    """Build both graphs of the hub's half. ExitError(MODEL) if they cannot be built."""
    from models.graph.hub_model import open_hub_graphs  # noqa: PLC0415 - torch only on request

    _exit_on_error(open_hub_graphs, bundle)


def _verify_weights(bundle: Bundle) -> None:
    """Hash the hub part's weights; a text model has none, but a template, which is read."""
    part = open_hub_part(bundle.path, bundle.manifest)
    part.verify_weights()
    if part.manifest.kind is HubKind.TEXT:
        read_text_template(part)


def _exit_on_error(task: Callable[..., T], *bundles: Bundle) -> T:
    """Call a task on bundles. ExitError(MODEL), in one line, where an intact bundle still makes no sense."""
    try:
        return task(*bundles)
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None


def _verdict_fields(bundle: Bundle, found: FirstLoadReport, refusal: Refusal | None) -> dict[str, Any]:
    """Return the result of a verification as plain values for `--json`."""
    facts = msgspec.to_builtins(found)
    golden = facts.pop("golden")
    told = {"model": bundle.manifest.model, "digest": bundle.digest, "passed": found.passed}
    return {**told, "fits_here": refusal is None, **golden, **facts}


def _print_verdict(bundle: Bundle, found: FirstLoadReport, golden: GoldenFigures) -> None:
    """Print the result of a verification as text."""
    word = "[green]sound[/green]" if found.passed else "[red]different answers[/red]"
    far = "to NaN" if golden.scores_moved is None else f"by at most {golden.scores_moved:.2g}"
    console = open_console()
    console.print(
        f"{word}  {bundle.manifest.model}: {golden.labels_equal} of {golden.samples} labels equal, "
        f"scores moved {far}, {golden.codes_equal:.1%} of the codes are equal"
    )
    if found.graph:
        graph = found.graph
        console.print(
            f"graph  {graph.nodes} nodes of {len(graph.operators)} operators, opset {graph.opset}, "
            f"{graph.weight_bytes:,} B of weights; {found.model_bytes / 1e6:.1f} MB loaded"
        )
    if found.passed:
        console.print(f"speed  p50 {found.p50_us:.0f} us, p95 {found.p95_us:.0f} us (one sample, one thread, here)")


def _bundle_fields(bundle: Bundle) -> dict[str, Any]:
    """Return manifest, sizes and the forge's report as plain values."""
    return _exit_on_error(side_by_side.bundle_fields, bundle)


def _inspect_rows(bundle: Bundle, facts: dict[str, Any]) -> list[tuple[str, str]]:
    """List the rows (name, text) that `inspect` prints."""
    manifest = bundle.manifest
    rows = [
        (
            "model",
            f"{manifest.model}, {manifest.kind}" + (f" of {len(manifest.labels)} labels" if manifest.labels else ""),
        ),
        ("digest", bundle.digest),
        ("input", _format_input(manifest.input)),
        *(
            (f"feature {f.name}", f"{f.dtype} {list(f.shape)} {f.low:g}..{f.high:g}, {f.level.name}")
            for f in manifest.features
        ),
        ("leaves", f"{facts['payload_bytes']} B of codes ({manifest.codec}) for {facts['raw_bytes']} B raw"),
        ("cut", manifest.cut),
        ("question", f"{manifest.fixed_bytes} B, {facts['sealed_bytes']} B sealed, whatever the sample"),
        ("edge", f"{manifest.target.precision} for {manifest.target.runtime} on {manifest.target.machine}"),
        ("hub", _format_hub(side_by_side.read_hub_manifest(bundle), manifest)),
        *_figure_rows(manifest),
        *(("leakage", _format_leakage(row)) for row in manifest.leakage),
        ("made of", f"{manifest.provenance.model or 'a model given in Python'}, seed {manifest.provenance.seed}"),
        *((name, f"{size:,} B") for name, size in facts["file_bytes"].items()),
    ]
    return rows + _timing_rows(facts["forge"])


def _format_hub(part: HubManifest | None, manifest: Manifest) -> str:
    """Describe the hub part: its kind, its files, and where it lies."""
    if part is None:
        return f"the hub part {manifest.hub_part[:16]} is not here; devices need none"
    place = "among the edge's files (format 2)" if manifest.format == JOINT_FORMAT else "in a part of its own"
    stages = f", {len(part.parallel.stages)} stages of a pipeline" if part.parallel.stages else ""
    return f"{part.kind}, {len(part.weights)} file(s) of weights, {part.weight_bytes:,} B, {place}{stages}"


def _format_input(spec: InputSpec) -> str:
    return f"{spec.name} {spec.dtype} {list(spec.shape)} {spec.low:g}..{spec.high:g}"


def _figure_rows(m: Manifest) -> list[tuple[str, str]]:
    """List the rows of quality, threshold, calibration error and guarantee."""
    c = m.calibration
    damaged = f", {c.corrupted:.0%} of them damaged on purpose" if c.corrupted else ""
    return [
        _quality_row(c),
        ("measured on", f"{c.samples} held-out samples{damaged}"),
        ("escalated", f"{c.asked:.1%} at threshold {c.threshold:g}"),
        ("calibration", f"error {c.ece_before:.3f} -> {c.ece_after:.3f} at temperature {m.temperature:g}"),
        ("confidence", _format_gate(m)),
        *((name, side_by_side.format_domain(figures)) for name, figures in _list_domains(m)),
        *([("guarantee", side_by_side.format_guarantee(m))] if m.guarantee else []),
    ]


def _list_domains(m: Manifest) -> list[tuple[str, DomainFigures]]:
    """Thresholds of what is out of domain, of the halves that have one."""
    both = (("out of domain", m.gate.domain), ("out of domain, hub", m.gate.hub_domain))
    return [(name, figures) for name, figures in both if figures is not None]


def _format_gate(m: Manifest) -> str:
    """Describe how the edge's confidence is made."""
    confidence = "a learned gate" if m.gate.confidence_output else "the largest probability"
    if m.gate.tolerance and not m.gate.confidence_output:
        confidence = f"P(error <= {m.gate.tolerance:g})"
    return confidence + (", and a score of novelty" if m.gate.novelty_output else "")


def _quality_row(c: CalibrationFigures) -> tuple[str, str]:
    """Format the quality of edge, pair, hub and best gate: (metric, text)."""
    form = ".1%" if c.metric == QualityMetric.ACCURACY else ".4g"
    named = {"edge": c.edge, "pair": c.pair, "hub alone": c.hub, "best gate": c.oracle}
    return c.metric, ", ".join(f"{name} {figure:{form}}" for name, figure in named.items())


def _format_leakage(row: LeakageRow) -> str:
    """Format one leakage row with its attack and number of pairs."""
    what = f"{row.kind} of {row.subject}" if row.subject else row.kind
    scale = f"at most {row.upper95:.2f}; without features {row.floor:.2f}, raw sample {row.ceiling:.2f}"
    return f"{what} by {row.attack}: {row.metric} {row.score:.2f} ({scale}; {row.pairs} pairs)"


def _timing_rows(report: Any) -> list[tuple[str, str]]:
    """List the rows of the forge's timings, none if its report has none."""
    match report:
        case {"p50_us": dict(p50), "forge_s": int() | float() as seconds}:
            each = ", ".join(f"{name} {value} us" for name, value in p50.items())
            return [("p50", f"{each} (batch 1, one thread, when forged)"), ("forged in", f"{seconds} s")]
        case _:
            return []
