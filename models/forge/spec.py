"""The forge's request: bundle name, limits on size, latency and leakage, threshold goal, effort; and the recipe digest.

Rule: everything that decides the content of a bundle, beside the model and its data, is a field of `ForgeSpec`; so a
specification, a model and data name one bundle.

Rule: the recipe digest covers every module of `models` unless it is listed here as one that decides nothing of a
bundle: a forgotten entry forges once too often, never once too seldom. Standard library only.
"""

import math
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from models.forge.data.types import ForgeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


MAX_THREADS = 256
SAMPLE_LEVELS = ("", "P0", "P1", "P2", "P3")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")


class Effort(StrEnum):
    """Time budget of training, attacks and search; the stages run are the same for every value."""

    QUICK = "quick"
    NORMAL = "normal"
    THOROUGH = "thorough"


@dataclass(frozen=True)
class ForgeSpec:
    """Request for one bundle: its name and version, its limits, and how its escalation threshold is chosen.

    `None` and "" mean no such limit, or that the forge chooses.

    - `cut`: name of the split point; `path`: name of a code path, as the report lists them; `target`: name of a device
      profile; `precision`: of the edge graph.
    - `max_bytes`: bytes of codes per sample on the link; `question_bytes`: bytes of a whole question, sealed.
      `head_share`: share of the given model's arithmetic on the device. `sample_level`: label P0 to P3 of the sample,
      which allows that the sample itself travels, coded; "" lets nothing but features leave.
    - `max_leakage`: success of the reconstruction attack, 0..1, above what the label alone gives. `leakage_aware`:
      weight, in the teaching, of each bit that a code tells beyond the label, 0: none counts. `target_ms`: median
      latency of the device's half on this machine, milliseconds.
    - `max_loss`: what the pair may lose against the given model if every sample is escalated, as a share (0.01 = one
      point), or as a share of its RMSE for a regressor.
    - `keep`: of what lossless features gain, the share that codes are to keep, 0..1; where nothing within the limits is
      shown to keep so much, what keeps most ships (at 1, always).
    - `max_share`, `target_accuracy`, `max_risk` choose the threshold, one at most: escalate at most this share; reach
      at
      least this accuracy of the pair; keep at most this share of wrong answers on the device, with probability
      `confidence`. `false_alarm`: share of in-scope samples that may be called novel.
    - `preparation`: how a picture becomes a sample, as canonical JSON (`encode_preparation`), for the manifest; "" for
      samples that are made elsewhere.
    - `seed`: of every random choice; `threads`: of torch and ONNX Runtime.
    """

    name: str = "model"
    version: int = 1
    cut: str = ""
    path: str = ""
    max_bytes: int | None = None
    question_bytes: int | None = None
    head_share: float | None = None
    sample_level: str = ""
    max_leakage: float | None = None
    target_ms: float | None = None
    max_loss: float | None = None
    keep: float = 0.9
    leakage_aware: float = 0.0
    target: str = ""
    precision: str = ""
    max_share: float | None = None
    target_accuracy: float | None = None
    max_risk: float | None = None
    confidence: float = 0.95
    false_alarm: float = 0.05
    effort: Effort = Effort.NORMAL
    preparation: str = ""
    seed: int = 11
    threads: int = 1

    def as_fields(self) -> dict[str, Any]:
        """All fields as plain values, for a digest and for the report."""
        return asdict(self)


@dataclass(frozen=True)
class ForgeInputs:
    """Optional inputs of a forge run beside the model and its data.

    `edge_model`: a small model as early exit, instead of a learned one. `augment`: augmentation of training samples.
    `cache`: folder that keeps finished stages; None: nothing is kept. `source`: how the model was named on the command
    line. `corrupted`: share of calibration and held-out samples that were damaged on purpose, 0..1. `report`: write the
    HTML report.
    """

    edge_model: "nn.Module | None" = None
    augment: "Callable[[Tensor, torch.Generator], Tensor] | None" = None
    cache: Path | None = None
    source: str = ""
    corrupted: float = 0.0
    report: bool = True


def validate_spec(wish: ForgeSpec) -> None:
    """Check every limit of a specification before any work.

    Raises ForgeError, naming the command's flag, for the first value that can never be met, and where more than one
    field
    chooses the threshold.
    """
    for flag, fits, hint in _list_field_checks(wish):
        if not fits:
            raise ForgeError(f"{flag}: {hint}")
    chosen = [n for n in ("max_share", "target_accuracy", "max_risk") if getattr(wish, n) is not None]
    if len(chosen) > 1:
        names = " and ".join("--" + name.replace("_", "-") for name in chosen)
        raise ForgeError(f"{names} each choose the threshold: give one of them")


def _list_field_checks(w: ForgeSpec) -> tuple[tuple[str, bool, str], ...]:
    """Flag, whether its value is valid, and the hint that an error shows."""
    return (
        ("--name", bool(_NAME.fullmatch(w.name)), f"{w.name!r}: up to 64 of a-z, 0-9, dot, dash, underscore"),
        ("--version", w.version >= 1, "counted from 1"),
        ("--max-bytes", w.max_bytes is None or w.max_bytes >= 1, "at least 1 byte has to travel"),
        ("--question-bytes", w.question_bytes is None or w.question_bytes >= 1, "at least 1 byte has to travel"),
        ("--head-share", _is_share(w.head_share) and w.head_share != 0, "a share in 0..1, more than 0"),
        ("--sample-level", w.sample_level in SAMPLE_LEVELS, "P0, P1, P2 or P3; what is P4 never leaves"),
        ("--max-leakage", _is_share(w.max_leakage), "a share in 0..1"),
        ("--leakage-aware", math.isfinite(w.leakage_aware) and w.leakage_aware >= 0, "a weight, 0 or more"),
        ("--false-alarm", 0 < w.false_alarm < 1, "a share between 0 and 1, such as 0.05"),
        ("--target-ms", w.target_ms is None or w.target_ms > 0, "more than 0 milliseconds"),
        ("--max-loss", _is_share(w.max_loss), "a share in 0..1 (0.01 = one point)"),
        ("--keep", 0 < w.keep <= 1, "a share of the gain, more than 0 and at most 1"),
        ("--max-share", _is_share(w.max_share), "a share in 0..1"),
        ("--target-accuracy", _is_share(w.target_accuracy), "a share in 0..1"),
        ("--max-risk", _is_share(w.max_risk), "a share in 0..1"),
        ("--confidence", 0 < w.confidence < 1, "a probability between 0 and 1, such as 0.95"),
        ("--threads", 1 <= w.threads <= MAX_THREADS, f"1 to {MAX_THREADS}"),
    )


def _is_share(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and 0 <= value <= 1)


EDITION = 2  # of the recipe, as a bundle's provenance states it
_MODELS = Path(models.__file__).parent
# files and folders below `models` that nothing on the way to a bundle imports, or that only draw and read its report
_EXCLUDED_PATHS = (
    *("cli", "huggingface", "signing", "update", "sharding", "zoo", "forge/report", "forge/text", "forge/timing.py"),
    *("forge/data/digits.py", "forge/evaluation/recalibrate.py", "forge/leakage/remeasure.py"),
    *("forge/pipeline/cut_listing.py", "forge/pipeline/demo.py", "graph/precision.py"),
    *("bundle/preparation.py", "runtime/preparation.py", "runtime/resampling.py", "runtime/picture_files.py"),
    *("forge/pipeline/pictures.py", "bundle/archive.py"),
    *("bundle/text_part.py", "bundle/thresholds.py", "runtime/text.py", "runtime/transforms.py"),
    *("verification/compatibility.py", "verification/sandbox.py", "verification/sandbox_child.py"),
)
_DIGESTED_PACKAGES = (
    *("torch", "onnx", "onnxscript", "onnxruntime", "scikit-learn", "numpy", "safetensors", "msgspec", "constriction"),
)


@cache
def recipe_digest() -> str:
    """SHA-256 in hex of the forge's recipe: source files, package versions and machine type.

    Two runs with the same digest, specification, model and data make the same bundle. Computed once per process.
    """
    digest = sha256(sources_digest(_MODELS).encode())
    for package in _DIGESTED_PACKAGES:
        digest.update(f"{package}={_version(package)}\0".encode())
    digest.update(f"{platform.python_version()} {platform.machine()}".encode())
    return digest.hexdigest()


def sources_digest(folder: Path) -> str:
    """SHA-256 in hex over the modules below `folder` that decide a bundle, by name and content.

    Raises FileNotFoundError if an excluded name is not there: it has moved, and the list of exclusions with it.
    """
    digest = sha256()
    for source in _iter_recipe_sources(folder):
        digest.update(source.relative_to(folder).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def _iter_recipe_sources(folder: Path) -> Iterator[Path]:
    left_out = [folder / name for name in _EXCLUDED_PATHS]
    if missing := [str(path.relative_to(folder)) for path in left_out if not path.exists()]:
        raise FileNotFoundError(f"the forge's recipe leaves out what is not in {folder}: {', '.join(missing)}")
    for source in sorted(folder.rglob("*.py")):
        if not any(source.is_relative_to(path) for path in left_out):
            yield source


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
