"""Command `skerry models calibrate`: thresholds of a finished bundle from a user's own samples, per device class.

Rule: prints the one line to paste into a policy first, then the whole frontier; the bundle itself is never changed.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from models.bundle.bundle import Bundle, open_bundle
from models.bundle.manifest import BundleError
from models.bundle.measurements import CalibrationFigures, QualityMetric
from models.bundle.thresholds import Thresholds, decode_thresholds, encode_thresholds, update_thresholds
from models.cli.flags import accepts_flags
from models.runtime.runner import SampleError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import open_console, require_path

if TYPE_CHECKING:
    from models.forge.evaluation.recalibrate import Recalibration
    from models.forge.spec import ForgeSpec

Folder = Annotated[
    Path, typer.Argument(callback=require_path, help="A bundle: the folder with manifest.json.", show_default=False)
]
DataFrom = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="PKG:FUNCTION",
        help="Returns the samples; or pictures:FOLDER, one a label.",
        show_default=False,
    ),
]
DeviceClass = Annotated[str, typer.Option("--class", metavar="NAME", help="Device class that the threshold is for.")]
Target = Annotated[
    float | None, typer.Option(help="Lowest threshold at which edge and hub together reach this accuracy (or RMSE).")
]
Share = Annotated[
    float | None,
    typer.Option(
        help="Escalate at most this share (0..1), the least confident samples, nobody where it gains nothing."
    ),
]
MaxRisk = Annotated[float | None, typer.Option(help="Guarantee that at most this share (0..1) of answers is wrong.")]
Confidence = Annotated[float, typer.Option(help="Probability (0..1) with which --max-risk holds.")]
RiskOf = Annotated[str, typer.Option(help="What --max-risk bounds: local, kept-wrong or pair.")]
Out = Annotated[Path | None, typer.Option(help="File to write or to add to.", show_default="NAME.calibration.json")]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit code 40 if asking does not pay or a promise is broken on held-out samples."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@dataclass(frozen=True)
class CalibrateFlags:
    """Flags of `skerry models calibrate`.

    One of `target_accuracy`, `max_share` and `max_risk` chooses the threshold; shares and probabilities are in 0..1.
    """

    bundle: Folder
    data: DataFrom
    device_class: DeviceClass = "any"
    target_accuracy: Target = None
    max_share: Share = None
    max_risk: MaxRisk = None
    confidence: Confidence = 0.95
    risk_of: RiskOf = "local"
    out: Out = None
    strict: Strict = False
    as_json: AsJson = False


@accepts_flags(CalibrateFlags)
def calibrate(flags: CalibrateFlags) -> None:
    """Choose the confidence threshold below which devices escalate to the hub, from your own samples.

    Prints the threshold and the whole frontier of accuracy against share escalated. What held-out samples say against
    it (asking does not pay, more is asked or more is wrong than was promised) is said first. Exit code 40 if the
    samples cannot give what is asked, 13 if they are not the model's, 12 if the bundle is unsound.

    Example: skerry models calibrate digits --data nets:x --max-share 0.2
    """
    chosen = [value for value in (flags.target_accuracy, flags.max_share, flags.max_risk) if value is not None]
    if len(chosen) != 1:
        raise ExitError(
            ExitCode.USAGE, "give one of --target-accuracy, --max-share and --max-risk: each chooses the threshold"
        )
    from models.forge.spec import ForgeSpec  # noqa: PLC0415 - only this command needs the forge

    wish = ForgeSpec(
        target_accuracy=flags.target_accuracy,
        max_share=flags.max_share,
        max_risk=flags.max_risk,
        confidence=flags.confidence,
    )
    opened = _open_bundle(flags.bundle)
    path = flags.out or Path(f"{opened.manifest.name}.calibration.json")
    old = _read_thresholds(path)
    found = _recalibrate_bundle(opened, flags.data, wish, flags.risk_of)
    made = _write_thresholds(path, old, opened, flags.device_class, found)
    warnings = _list_warnings(found)
    for line in warnings:
        Console(stderr=True).print(Text(f"warning: {line}", style="bold red"), soft_wrap=True)
    if flags.as_json:
        fields = _json_fields(made, found, flags.device_class, path)
        open_console().print_json(data={**fields, "warnings": warnings})
    else:
        _print_result(found, flags.device_class, path)
    if flags.strict and warnings:
        raise ExitError(ExitCode.CHECK_FAILED, f"--strict: {warnings[0]}; the file is written, read its figures")


def _list_warnings(found: "Recalibration") -> list[str]:
    """List why asking does not pay with this threshold, and which promises held-out samples break."""
    from models.forge.report.payoff import list_pair_warnings  # noqa: PLC0415 - only once there is a result

    entry = found.entry
    return list_pair_warnings(entry.figures, entry.guarantee, found.measured_on, found.choice.reason)


def _open_bundle(path: Path) -> Bundle:
    """Open a bundle. ExitError(MODEL) if it is not sound."""
    try:
        return open_bundle(path)
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None


def _read_thresholds(path: Path) -> Thresholds | None:
    """Read the thresholds file to add to, None if there is none. ExitError(CONFIG) if it is not one."""
    try:
        return decode_thresholds(path.read_bytes()) if path.exists() else None
    except (OSError, BundleError) as error:
        raise ExitError(ExitCode.CONFIG, f"{path}: {error}; choose another --out") from None


def _recalibrate_bundle(bundle: Bundle, where: str, wish: "ForgeSpec", risk_of: str) -> "Recalibration":
    """Measure the user's samples with the bundle and choose a threshold. ExitError with the code that fits."""
    from models.forge.data.types import ForgeError  # noqa: PLC0415
    from models.forge.evaluation.recalibrate import recalibrate_bundle  # noqa: PLC0415
    from models.forge.evaluation.risk_control import RiskKind  # noqa: PLC0415
    from models.forge.pipeline.loading import load_data  # noqa: PLC0415 - torch only when it runs

    if risk_of not in set(RiskKind):
        raise ExitError(ExitCode.USAGE, f"--risk-of {risk_of}: one of {', '.join(RiskKind)}")
    _check_shares(wish)
    try:
        data = load_data(where, Path.cwd(), bundle.manifest.preparation, bundle.manifest.labels)
    except ExitError:  # of a data set that is not here
        raise
    except ForgeError as error:
        raise ExitError(ExitCode.SAMPLE, str(error)) from None
    columns = (TextColumn("{task.description:<20}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening", total=1.0)
        try:
            return recalibrate_bundle(
                bundle,
                data,
                wish,
                RiskKind(risk_of),
                lambda stage, share: bar.update(task, description=stage, completed=share),
            )
        except ForgeError as error:
            code = ExitCode.SAMPLE if str(error).startswith("data") else ExitCode.CHECK_FAILED
            raise ExitError(code, str(error)) from None
        except SampleError as error:
            raise ExitError(ExitCode.SAMPLE, f"{where}: {error}") from None
        except BundleError as error:
            raise ExitError(ExitCode.MODEL, str(error)) from None


def _check_shares(wish: "ForgeSpec") -> None:
    """Check the shares given. ExitError(USAGE) for one that is impossible."""
    for flag, value in (("--max-share", wish.max_share), ("--target-accuracy", wish.target_accuracy)):
        if value is not None and not 0 <= value < math.inf:
            raise ExitError(ExitCode.USAGE, f"{flag} {value:g}: impossible")
    if wish.max_share is not None and wish.max_share > 1:
        raise ExitError(ExitCode.USAGE, f"--max-share {wish.max_share:g}: a share in 0..1, such as 0.15")


def _write_thresholds(
    path: Path, old: Thresholds | None, bundle: Bundle, name: str, found: "Recalibration"
) -> Thresholds:
    """Write the thresholds file with the new entry of one device class; return it."""
    try:
        made = update_thresholds(old, bundle.manifest.model, bundle.digest, name, found.entry)
        path.write_bytes(encode_thresholds(made))
    except BundleError as error:
        raise ExitError(ExitCode.CONFIG, f"{path}: {error}; choose another --out or --class") from None
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{path}: {error.strerror}; choose another --out") from None
    return made


def _json_fields(made: Thresholds, found: "Recalibration", name: str, path: Path) -> dict[str, Any]:
    """Return the result as plain values for `--json`."""
    line = found.deferral._asdict() | {"points": [point._asdict() for point in found.deferral.points]}
    facts = {
        "threshold": found.entry.threshold,
        "class": name,
        "file": str(path),
        "calibration": msgspec.to_builtins(made),
        "frontier": line,
        "reject_below": found.reject_below,
        "unscoped_asked": found.unscoped_asked,
    }
    return dict(_without_nan(facts))


def _without_nan(value: Any) -> Any:
    """Replace NaN by None at any depth: JSON has no NaN."""
    match value:
        case dict():
            return {key: _without_nan(inner) for key, inner in value.items()}
        case list():
            return [_without_nan(inner) for inner in value]
        case float() if math.isnan(value):
            return None
        case _:
            return value


def _print_result(found: "Recalibration", name: str, path: Path) -> None:
    """Print the result as text: the threshold first, then the frontier."""
    entry, figures = found.entry, found.entry.figures
    console = open_console()
    console.print(f"threshold = {entry.threshold:g}", markup=False, highlight=False)
    console.print(f"  [escalation] of the policy for {name!r} devices; chosen by {entry.aim}", markup=False)
    console.print(f"  held out ({figures.samples} samples): {_describe_heldout(found)}", highlight=False)
    if not math.isnan(found.unscoped_asked):
        outside = f"  samples outside the labels: {found.unscoped_asked:.1%} escalated, all others answered wrongly"
        console.print(f"{outside}; best reject threshold of the hub: {found.reject_below:.3f}")
    console.print(_frontier_table(found))
    console.print(_summarise_frontier(found), highlight=False)
    console.print(f"written: {path}", markup=False, highlight=False)


def _describe_heldout(found: "Recalibration") -> str:
    """Describe the pair and the share escalated on held-out samples, each with its 95 % interval."""
    from models.forge.report.intervals import quality_interval, share_interval  # noqa: PLC0415 - as the forge's figures
    from models.forge.report.payoff_warnings import format_range  # noqa: PLC0415

    measured, figures = found.measured_on, found.entry.figures
    asked = measured.confidence < found.entry.threshold
    loss = measured.hub_loss * asked + measured.edge_loss * ~asked
    regressor = figures.metric is QualityMetric.RMSE
    pair = format_range(figures.metric, quality_interval(loss, measured.groups, regressor=regressor))
    shares = format_range(QualityMetric.ACCURACY, share_interval(asked, measured.groups))
    return f"pair {_format_figure(figures.pair, figures)} ({pair}), escalating {figures.asked:.1%} ({shares})"


def _frontier_table(found: "Recalibration") -> Table:
    """Build the table of the frontier: share escalated, threshold, quality, share of the gap recovered, oracle.

    The gap is that to the given model on raw samples; `lossless` is the share of it that the given model itself would
    recover by answering the same questions.
    """
    line, figures = found.deferral, found.entry.figures
    word = "RMSE" if line.metric is QualityMetric.RMSE else "accuracy"
    table = Table("escalated", "threshold", word, "of the gap", "lossless", "oracle")
    for column in table.columns:
        column.justify = "right"
    table.add_row("edge only", "0", _format_figure(line.edge, figures), *[""] * 3)
    for point in line.points:
        shares = f"{point.share:.1%}", f"{point.threshold:g}"
        table.add_row(
            *shares,
            _format_figure(point.value, figures),
            _format_gap(point.recovered),
            _format_gap(point.lossless),
            _format_figure(point.oracle, figures),
        )
    ends = {"all asked": line.hub, "given model": line.given, f"oracle, {line.oracle_share:.1%}": line.oracle}
    for name, value in ends.items():
        table.add_row(name, "", _format_figure(value, figures), *[""] * 3)
    return table


def _summarise_frontier(found: "Recalibration") -> str:
    """Summarise the frontier in a line: APGR (average performance gap recovered) and CPT (call-performance threshold).

    Ong et al. 2024, "RouteLLM", defines both.
    """
    line = found.deferral
    if math.isnan(line.apgr):
        return "the given model is no better than the edge on these samples: escalating gains nothing"
    half, most = ("never" if math.isnan(share) else f"at {share:.1%} escalated" for share in (line.cpt50, line.cpt80))
    return f"APGR {line.apgr:.3f} of the gap to the given model; half of it {half}, four fifths {most}"


def _format_gap(recovered: float) -> str:
    return "" if math.isnan(recovered) else f"{recovered:.1%}"


def _format_figure(value: float, figures: CalibrationFigures) -> str:
    return f"{value:.4g}" if figures.metric is QualityMetric.RMSE else f"{value:.2%}"
