"""`skerry models`: look into a bundle, verify it, make the demo's.

Law: nothing here changes a bundle; what is wrong with one is said in one line, with exit code 12 (40 if a check says
no).
"""

import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from models.bundle import Bundle, BundleError, open_bundle
from models.codec import NUMPY_DTYPES, payload_bytes
from models.firstload import FirstLoad, Golden, first_load
from models.fit import judge_target, this_host
from models.manifest import Calibration, InputSpec, Leakage, Manifest
from models.trust import Refusal
from wire.exits import Exit, Stop

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Folder = Annotated[Path, typer.Argument(help="A bundle: the folder with manifest.json.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")]


@app.command()
def inspect(bundle: Folder, *, as_json: AsJson = False) -> None:
    """What a bundle says of itself, after every file was verified: model, features, figures, leakage, files."""
    opened = _open(bundle)
    facts = _facts(opened)
    if as_json:
        Console().print_json(data=facts)
        return
    table = Table.grid("", Column("", overflow="fold"), padding=(0, 2, 0, 0))
    for name, value in _rows(opened, facts):
        table.add_row(Text(name, style="bold"), Text(value))  # Text: brackets of shapes are no markup
    Console().print(table)


@app.command()
def verify(
    bundle: Folder,
    *,
    hub: Annotated[bool, typer.Option("--hub", help="Build the hub's half too (needs torch).")] = False,
    as_json: AsJson = False,
) -> None:
    """Check every file, lint the edge graph, load it in a confined process and run the golden set there.

    Exit code 12 if it may not or cannot be loaded, 40 if it answers otherwise than when it was made.
    """
    opened = _open(bundle)
    found = first_load(opened)
    if found.golden is None:
        raise Stop(Exit.MODEL, f"{opened.manifest.model}: {found.outcome}: {found.detail}")
    if hub:
        _build_hub(opened)
    refusal = judge_target(opened.manifest.target, this_host("0"))
    if as_json:
        Console().print_json(data=_verdict(opened, found, refusal))
    else:
        _say(opened, found, found.golden)
        if refusal:
            Console().print(f"not for this machine: {refusal.detail}", markup=False)
    if not found.passed:
        raise typer.Exit(Exit.CHECK_FAILED)


@app.command("demo-bundle")
def demo_bundle(
    out: Annotated[Path, typer.Argument(help="Folder that shall become the bundle.", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """Train, quantise, calibrate and bundle the demo's model (scikit-learn's handwritten digits), in a few seconds."""
    from models.forge.demo import forge_demo  # noqa: PLC0415 - only this command needs the forge

    columns = (TextColumn("{task.description:<12}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("training", total=1.0)
            made = forge_demo(out, lambda stage, share: bar.update(task, description=stage, completed=share))
    except OSError as error:
        raise Stop(Exit.DISK, f"{out}: {error.strerror}; choose another folder or make room") from None
    inspect(made.path, as_json=as_json)


def _open(path: Path) -> Bundle:
    try:
        return open_bundle(path)
    except BundleError as error:
        raise Stop(Exit.MODEL, str(error)) from None


def _build_hub(bundle: Bundle) -> None:
    from models.zoo import build_tail  # noqa: PLC0415 - torch only on request

    try:
        build_tail(bundle.manifest, bundle.read(bundle.manifest.hub.file))
    except BundleError as error:
        raise Stop(Exit.MODEL, str(error)) from None


def _verdict(bundle: Bundle, found: FirstLoad, refusal: Refusal | None) -> dict[str, Any]:
    facts = msgspec.to_builtins(found)
    golden = facts.pop("golden")
    told = {"model": bundle.manifest.model, "digest": bundle.digest, "passed": found.passed}
    return {**told, "fits_here": refusal is None, **golden, **facts}


def _say(bundle: Bundle, found: FirstLoad, golden: Golden) -> None:
    word = "[green]sound[/green]" if found.passed else "[red]different answers[/red]"
    far = "to no number" if golden.scores_moved is None else f"by at most {golden.scores_moved:.2g}"
    console = Console()
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


def _facts(bundle: Bundle) -> dict[str, Any]:
    """Manifest, sizes and the forge's report as plain values."""
    manifest = bundle.manifest
    return {
        "path": str(bundle.path),
        "digest": bundle.digest,
        "payload_bytes": _payload(manifest),
        "raw_bytes": math.prod(manifest.input.shape) * NUMPY_DTYPES[manifest.input.dtype].itemsize,
        "file_bytes": {name: len(bundle.read(name)) for name in manifest.files},
        "manifest": msgspec.to_builtins(manifest),
        "forge": _report(bundle),
    }


def _report(bundle: Bundle) -> Any:
    """The forge's report is not verified and may be absent; nothing depends on it."""
    try:
        return msgspec.json.decode(bundle.report) if bundle.report else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _payload(manifest: Manifest) -> int:
    return sum(payload_bytes(manifest.codec, feature.shape) for feature in manifest.features)


def _rows(bundle: Bundle, facts: dict[str, Any]) -> list[tuple[str, str]]:
    manifest = bundle.manifest
    rows = [
        ("model", f"{manifest.model}, {manifest.kind} of {len(manifest.labels)} labels"),
        ("digest", bundle.digest),
        ("input", _input(manifest.input)),
        *(
            (f"feature {f.name}", f"{f.dtype} {list(f.shape)} {f.low:g}..{f.high:g}, {f.level.name}")
            for f in manifest.features
        ),
        ("leaves", f"{facts['payload_bytes']} B of codes ({manifest.codec}) for {facts['raw_bytes']} B raw"),
        ("question", f"{manifest.fixed_bytes} B before sealing, whatever the sample"),
        ("edge", f"{manifest.target.precision} for {manifest.target.runtime} on {manifest.target.machine}"),
        ("hub", manifest.hub.architecture),
        *_figures(manifest.calibration, manifest.temperature),
        *(("leakage", _leak(row)) for row in manifest.leakage),
        *((name, f"{size:,} B") for name, size in facts["file_bytes"].items()),
    ]
    return rows + _timings(facts["forge"])


def _input(spec: InputSpec) -> str:
    return f"{spec.name} {spec.dtype} {list(spec.shape)} {spec.low:g}..{spec.high:g}"


def _figures(c: Calibration, temperature: float) -> list[tuple[str, str]]:
    return [
        ("accuracy", f"edge {c.edge_accuracy:.1%}, pair {c.pair_accuracy:.1%}, hub alone {c.hub_accuracy:.1%}"),
        ("measured on", f"{c.samples} held-out samples, {c.corrupted:.0%} of them damaged on purpose"),
        ("asked", f"{c.asked:.1%} at threshold {c.threshold:g}"),
        ("calibration", f"error {c.ece_before:.3f} -> {c.ece_after:.3f} at temperature {temperature:g}"),
    ]


def _leak(row: Leakage) -> str:
    scale = f"label alone {row.floor:.2f}, raw sample {row.ceiling:.2f}"
    return f"{row.probe}: {row.metric} {row.score:.2f} ({scale}; {row.pairs} pairs)"


def _timings(report: Any) -> list[tuple[str, str]]:
    match report:
        case {"p50_us": dict(p50), "forge_s": int() | float() as seconds}:
            each = ", ".join(f"{name} {value} us" for name, value in p50.items())
            return [("p50", f"{each} (batch 1, one thread, when forged)"), ("forged in", f"{seconds} s")]
        case _:
            return []
