"""Command `skerry models forge`: from a user's torch model to a bundle. docs/forge.md has the table of its flags.

Rule: the user's code runs in this process, with the working folder first on the path: it is code they trust. What is
wrong is said in one line, with exit code 10 for flags that cannot be met, 12 for the model, 13 for the data.
Rule: what decides a bundle's content is a field of `ForgeSpec` and nothing else; `forge_spec` copies it there by name.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError
from models.bundle.preparation import Preparation, encode_preparation
from models.cli.flags import accepts_flags
from models.cli.forge_result import print_measured, print_result
from models.cli.input_file import read_preparation
from models.cli.output_folder import check_output_folder
from models.cli.progress import stage_progress
from models.forge.data.types import ForgeError
from models.forge.spec import MAX_THREADS, Effort, ForgeInputs, ForgeSpec, validate_spec
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import require_path

if TYPE_CHECKING:
    from torch import nn

    from models.forge.data.types import Data


_LIMITS = "Limits: the cut is chosen to meet them"
_GATE = "When to escalate to the hub: one of them"
_RUN = "How to run"
_FUNCTION = "PKG:FUNCTION"


def _flag_option(told: str, panel: str | None = None, default: str | bool = False, **more: Any) -> Any:
    """Build an option with help text. `default`: how it is shown in the help; False: not at all."""
    return typer.Option(help=told, rich_help_panel=panel, show_default=default, **more)


def _switch_option(name: str, told: str) -> Any:
    """Build an on/off option in the panel of run options."""
    return typer.Option(name, help=told, rich_help_panel=_RUN)


_Model = typer.Argument(
    metavar=_FUNCTION,
    help="Returns your torch model, or is one; or hf:FOLDER, a Hugging Face checkpoint.",
    show_default=False,
)
_Data = typer.Option(
    "--data",
    metavar=_FUNCTION,
    help="Returns (x, y), (x, y, labels) or a Data; or pictures:FOLDER, a folder of pictures for each label.",
    show_default=False,
)
_Input = _flag_option(
    "TOML file with [input]: how a picture becomes a sample. It goes into the bundle, and devices do the same.",
    callback=require_path,
    metavar="FILE",
)
_Out = typer.Option(
    "--out",
    "-o",
    metavar="FOLDER",
    help="Folder of the bundle; an older one is replaced.",
    show_default=False,
)
_Small = _flag_option(
    "Your own small model, from which the device's answer starts: a copy is taught further.", metavar=_FUNCTION
)
_Augment = _flag_option("(samples, torch generator) -> samples: augmentation of training samples.", metavar=_FUNCTION)
_Cut = _flag_option("Cut here; skips measuring all others. A wrong name lists some.", _LIMITS, metavar="NAME")
_Path = _flag_option(
    "Take this code path, as a report names it (learned-64, sample-256). A wrong name lists them.",
    _LIMITS,
    metavar="NAME",
)
_Bytes = _flag_option("Most bytes of feature codes in one escalation.", _LIMITS, "as few as keep enough", min=1)
_Question = _flag_option("Most bytes of one question as it travels: sealed and padded.", _LIMITS, min=1)
_Head = _flag_option("Largest share of your model's arithmetic on the device, 0..1.", _LIMITS, "0.25")
_Level = _flag_option(
    "Label of a sample, P0 to P3: allows that the sample itself travels, coded, where a policy lets it.",
    _LIMITS,
    "features only",
    metavar="LEVEL",
)
_Aware = _flag_option(
    "Weight of what codes tell beyond the label, such as 1: they leak less, and cost accuracy.", _LIMITS
)
_Alarm = _flag_option("Share of in-scope samples that may be called novel.", _GATE, default=True)
_Leakage = _flag_option("Success of the reconstruction attack, upper 95 % bound, 0..1.", _LIMITS)
_Time = _flag_option("Median latency of the device's half in milliseconds, on this machine.", _LIMITS)
_Loss = _flag_option(
    "Largest loss against your model if all is escalated: 0.01 = one point (or 1 % of an RMSE).", _LIMITS
)
_Keep = _flag_option(
    "Share of what lossless features gain that codes are to keep; 1: as much as the limits allow.",
    _LIMITS,
    default=True,
)
_Share = _flag_option("Escalate at most this share.", _GATE, "0.25")
_Accuracy = _flag_option("Escalate as little as reaches this accuracy (a regressor: this RMSE).", _GATE)
_Risk = _flag_option("Kept answers are wrong in at most this share, guaranteed with --confidence.", _GATE)
_Sure = _flag_option("Probability with which --max-risk holds.", _GATE, default=True)
_Target = _flag_option(
    "Platform of the edge graph: x86, arm64, cuda, tensorrt, openvino, coreml.", _RUN, "this processor"
)
_Precision = _flag_option(
    "Ship float32, int8, int8-dynamic, int8-weights or float16, whatever is quicker.", _RUN, "measured"
)
_Effort = _flag_option("How long to train, attack and search.", _RUN, default=True)
_Seed = _flag_option("Same seed, model, data and machine: same bundle.", _RUN, default=True, min=0)
_Threads = _flag_option("Processors for training.", _RUN, f"all, {MAX_THREADS} at most", min=1, max=MAX_THREADS)
_Cache = _flag_option("Cache of finished stages.", _RUN, "~/.cache/skerry/forge", metavar="FOLDER")


@dataclass(frozen=True)
class ForgeFlags:
    """Flags of `skerry models forge`, as typed; `forge_spec` is the specification that the forge gets of them."""

    model: Annotated[str, _Model]
    data: Annotated[str, _Data]
    out: Annotated[Path, _Out]
    name: Annotated[str, _flag_option("Name of the model.", default="the folder's")] = ""
    version: Annotated[
        int, _flag_option("Version of the model: devices only install higher ones.", default=True, min=1)
    ] = 1
    edge_model: Annotated[str, _Small] = ""
    augment: Annotated[str, _Augment] = ""
    input: Annotated[Path | None, _Input] = None
    cut: Annotated[str, _Cut] = ""
    path: Annotated[str, _Path] = ""
    max_bytes: Annotated[int | None, _Bytes] = None
    question_bytes: Annotated[int | None, _Question] = None
    head_share: Annotated[float | None, _Head] = None
    sample_level: Annotated[str, _Level] = ""
    max_leakage: Annotated[float | None, _Leakage] = None
    target_ms: Annotated[float | None, _Time] = None
    max_loss: Annotated[float | None, _Loss] = None
    keep: Annotated[float, _Keep] = 0.9
    leakage_aware: Annotated[float, _Aware] = 0.0
    max_share: Annotated[float | None, _Share] = None
    target_accuracy: Annotated[float | None, _Accuracy] = None
    max_risk: Annotated[float | None, _Risk] = None
    confidence: Annotated[float, _Sure] = 0.95
    false_alarm: Annotated[float, _Alarm] = 0.05
    target: Annotated[str, _Target] = ""
    precision: Annotated[str, _Precision] = ""
    effort: Annotated[Effort, _Effort] = Effort.NORMAL
    seed: Annotated[int, _Seed] = 11
    threads: Annotated[int | None, _Threads] = None
    cache: Annotated[Path | None, _Cache] = None
    no_cache: Annotated[bool, _switch_option("--no-cache", "Do not use or write the cache.")] = False
    strict: Annotated[bool, _switch_option("--strict", "Exit code 40 if asking the hub does not pay.")] = False
    as_json: Annotated[bool, _switch_option("--json", "Print JSON instead of text.")] = False

    @property
    def forge_spec(self) -> ForgeSpec:
        """Specification that the forge gets: every flag that is a field of `ForgeSpec`.

        Name and number of threads get their defaults here: the folder's name, and all processors.
        """
        own = {field.name for field in fields(self)}
        given = {field.name: getattr(self, field.name) for field in fields(ForgeSpec) if field.name in own}
        return ForgeSpec(
            **given
            | {"name": self.name or _derive_name(self.out), "threads": self.threads or _count_processors()}
            | {"preparation": encode_preparation(self.preparation).decode() if self.preparation else ""}
        )

    @property
    def preparation(self) -> Preparation | None:
        """How pictures become samples, from the file of `--input`; ForgeError if it cannot be used."""
        return read_preparation(self.input) if self.input else None

    @property
    def cache_folder(self) -> Path | None:
        """Folder of finished stages: as named, else `$XDG_CACHE_HOME/skerry/forge` or `~/.cache/skerry/forge`.

        None for no cache at all.
        """
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return None if self.no_cache else self.cache or base / "skerry" / "forge"


def _count_processors() -> int:
    """Count the processors that this process may use, as far as a specification takes them."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_THREADS)


def _derive_name(out: Path) -> str:
    """Derive a model name from the output folder.

    For example `digits` of `bundles/digits-3`; `model` if nothing usable is left.
    """
    found = re.sub(r"[^a-z0-9_.-]+", "-", out.resolve().name.lower())
    found = re.sub(r"-v?\d+$", "", found).strip("-_.")[:64]
    return found or "model"


@accepts_flags(ForgeFlags)
def forge(flags: ForgeFlags) -> None:
    """Turn any torch classifier or regressor into a bundle: small, fast, calibrated, measured for leakage.

    skerry models forge my_pkg:build_model --data my_pkg:samples --out my-model-1

    The model is cut where few bytes leave a device; a bottleneck is taught; the device's half becomes a quantised
    graph; a threshold is chosen; attacks measure what the bytes give away. A report lies in FOLDER.report/report.html.
    Started again after an interruption, it goes on where it was. If asking the hub does not pay, that is said first.

    Example: skerry models forge nets:model --data nets:samples --out net-1
    """
    check_output_folder(flags.out, flags.name or _derive_name(flags.out))
    began = time.monotonic()
    bundle = run_forge(flags)
    warnings = print_result(bundle, time.monotonic() - began, as_json=flags.as_json)
    if flags.strict and warnings:
        raise ExitError(ExitCode.CHECK_FAILED, f"--strict: {warnings[0]}; the bundle is written, read its report")


def run_forge(flags: ForgeFlags) -> Bundle:
    """Forge the bundle. ExitError, with the code that fits, if anything is wrong with what the user gave."""
    with stage_progress() as tell:
        tell("loading", 0.0)
        from models.forge.pipeline.forge import run_forge as forged  # noqa: PLC0415 - torch takes a second, and --help needs none

        with translate_errors(ExitCode.CONFIG):
            validate_spec(flags.forge_spec)
        with translate_errors(ExitCode.SAMPLE):  # before the model, which may be trained for minutes
            data = _load_samples(flags)
        with translate_errors(ExitCode.MODEL):
            model, aids = _load_inputs(flags)
        tell("loading", 1.0)
        with translate_errors(ExitCode.MODEL):
            return forged(model, data, flags.forge_spec, flags.out, tell, aids=aids)


def _load_inputs(flags: ForgeFlags) -> "tuple[nn.Module, ForgeInputs]":
    """Load the user's model and the optional inputs: small model, augmentation, cache folder."""
    from models.forge.pipeline.loading import load_function, load_model  # noqa: PLC0415 - see `run_forge`

    here = Path.cwd()
    small = load_model(flags.edge_model, here) if flags.edge_model else None
    vary = load_function(flags.augment, here) if flags.augment else None
    added = ForgeInputs(edge_model=small, augment=vary, cache=flags.cache_folder, source=flags.model)
    return load_model(flags.model, here), added


def _load_samples(flags: ForgeFlags) -> "Data":
    """Load the user's samples."""
    from models.forge.pipeline.loading import load_data  # noqa: PLC0415 - see `run_forge`

    return load_data(flags.data, Path.cwd(), flags.preparation)


@contextmanager
def translate_errors(code: ExitCode) -> Iterator[None]:
    """Turn a ForgeError into an exit code: data errors are told from the model's by the first word of their text."""
    try:
        yield
    except ExitError:  # of a data set that is not here
        raise
    except ForgeError as error:
        print_measured(getattr(error, "rows", ()), getattr(error, "points", ()))
        text = str(error)
        found = ExitCode.SAMPLE if text.startswith("data") else ExitCode.CONFIG if text.startswith("--") else code
        raise ExitError(found, text) from None
    except BundleError as error:
        raise ExitError(ExitCode.USAGE, str(error)) from None
    except OSError as error:
        raise ExitError(
            ExitCode.DISK, f"{error.filename}: {error.strerror}; choose another folder or make room"
        ) from None
