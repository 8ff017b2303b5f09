"""Escalation thresholds of one bundle per device class, as a versioned file (`skerry models calibrate` writes it).

Rule: closed and checked like a manifest: an unknown key, a newer format or an impossible value is a `BundleError` of
one line. The same values give the same bytes. It names the exact bundle by digest and is worth nothing for another.
"""

import re

import msgspec

from models.bundle.manifest import BundleError
from models.bundle.measurements import CalibrationFigures, RiskGuarantee, calibration_fits, guarantee_fits

FORMAT = 1
MAX_CLASSES = 1000
MAX_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ClassThreshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Threshold of one device class: its devices escalate below the confidence `threshold` (0..1).

    `aim`: the command-line flags that chose it. `counter`: the file's counter when it was last changed. `figures`: what
    was measured with it. `guarantee`: the risk bound that it carries, if one was asked for.
    """

    threshold: float
    aim: str
    counter: int
    figures: CalibrationFigures
    guarantee: RiskGuarantee | None = None


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All thresholds of one bundle. `digest` is the bundle's SHA-256 in hex; `counter` grows with every change."""

    model: str
    digest: str
    counter: int
    classes: dict[str, ClassThreshold]
    format: int = FORMAT


class _ThresholdsFormat(msgspec.Struct):
    format: int


_format_decoder = msgspec.json.Decoder(_ThresholdsFormat)
_decoder = msgspec.json.Decoder(Thresholds)


def encode_thresholds(thresholds: Thresholds) -> bytes:
    """Encode thresholds as readable JSON, the same bytes for the same values. BundleError for impossible values."""
    _check_thresholds(thresholds)
    return msgspec.json.format(msgspec.json.encode(thresholds, order="deterministic"), indent=1) + b"\n"


def decode_thresholds(data: bytes) -> Thresholds:
    """Decode and check a thresholds file of at most `MAX_BYTES`. BundleError, one line, for anything else."""
    if len(data) > MAX_BYTES:
        raise BundleError(f"calibration: {len(data)} bytes, at most {MAX_BYTES}")
    try:
        found = _format_decoder.decode(data).format
        if found != FORMAT:
            hint = "made by a newer version: update this installation" if found > FORMAT else "not a format of ours"
            raise BundleError(f"calibration: format {found}, this version reads {FORMAT} ({hint})")
        thresholds = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"calibration: {error}") from None
    _check_thresholds(thresholds)
    return thresholds


def update_thresholds(old: Thresholds | None, model: str, digest: str, name: str, entry: ClassThreshold) -> Thresholds:
    """Put the entry of one device class into `old` and count up. BundleError if `old` is for another bundle.

    `old`: None for the first entry. `model`, `digest`: of the bundle. `name`: the device class. The entry's own counter
    is set here.
    """
    if old and old.digest != digest:
        raise BundleError(f"calibration: is for {old.model} ({old.digest[:12]}), not for {model} ({digest[:12]})")
    counter = old.counter + 1 if old else 1
    classes = {**(old.classes if old else {}), name: msgspec.structs.replace(entry, counter=counter)}
    made = Thresholds(model, digest, counter, classes)
    _check_thresholds(made)
    return made


def _check_thresholds(found: Thresholds) -> None:
    for key, fits in (
        ("model", 0 < len(found.model) <= 128),
        ("digest", bool(_DIGEST.fullmatch(found.digest))),
        ("counter", found.counter >= 1),
        ("classes", 0 < len(found.classes) <= MAX_CLASSES),
    ):
        if not fits:
            raise BundleError(f"calibration: {key} is impossible")
    for name, entry in found.classes.items():
        if not _NAME.fullmatch(name):
            raise BundleError(f"calibration: class {name!r}: up to 64 of a-z, 0-9, dot, dash, underscore")
        if not _entry_fits(entry, found.counter):
            raise BundleError(f"calibration: class {name} is impossible")


def _entry_fits(entry: ClassThreshold, counter: int) -> bool:
    """Tell whether one class's entry is possible and consistent.

    The threshold is written once and repeated: in the figures measured with it and in the guarantee given for it.
    """
    promised = entry.guarantee is None or (
        guarantee_fits(entry.guarantee) and entry.guarantee.threshold == entry.threshold
    )
    named = calibration_fits(entry.figures) and entry.figures.threshold == entry.threshold
    return 0 <= entry.threshold <= 1 and 1 <= entry.counter <= counter and named and promised
