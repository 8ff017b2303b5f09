"""What a bundle says of itself: a closed, typed manifest. It has no code, and nothing in it is ever executed.

Law: an unknown key, a newer format or an impossible value is a `BundleError` of one line; nothing is guessed.
"""

import math
import re
from enum import StrEnum

import msgspec

from models.codec import CODECS, NUMPY_DTYPES, top
from wire.codec import MAX_FRAME_BYTES, SIZE_CLASS_BYTES
from wire.messages import DType, FieldSpec, ModelRef

FORMAT = 1
MANIFEST_FILE = "manifest.json"
EDGE_FILE = "edge.onnx"
HUB_FILE = "hub.safetensors"
GOLDEN_FILE = "golden.npz"
MAX_ELEMENTS = 2**24  # of one sample or one field: 64 MiB of float32
MAX_LABELS = 100_000
FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")  # one level, no leading dot: it cannot leave the folder
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")
_ARCHITECTURE = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_]+)*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BundleError(Exception):
    """The bundle cannot be used; the message is one line and says what to do or what is wrong."""


class Kind(StrEnum):
    CLASSIFIER = "classifier"
    REGRESSOR = "regressor"


class InputSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sample: tensor name in the graph, element type, shape without the batch axis, range of values."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    low: float
    high: float


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Held-out figures as shares in 0..1, all on the same samples, of which `corrupted` were damaged on purpose.

    `ece_*`: expected calibration error of the edge before and after temperature scaling (Guo et al. 2017).
    `threshold`: ask the hub below this confidence; it was chosen on a calibration split, never on the held-out samples.
    `asked`: share of held-out samples below it. `pair_accuracy`: the edge where it is sure, the hub's tail elsewhere.
    """

    samples: int
    corrupted: float
    ece_before: float
    ece_after: float
    edge_accuracy: float
    pair_accuracy: float
    hub_accuracy: float
    threshold: float
    asked: float


class Leakage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement of what the forwarded features give away, valid for exactly one chain of cut, codec, transforms.

    `chain` is the digest of that chain. `score` is the probe's success; `floor` the same figure for a guesser that
    sees the label alone; `ceiling` for one that sees the raw sample.
    """

    chain: str
    probe: str
    metric: str
    pairs: int
    score: float
    floor: float
    ceiling: float


class HubModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`architecture` names a builder in the hub's registry; only names found there are ever built."""

    architecture: str
    file: str


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the edge graph was made for: `precision` is `int8` or `float32`, `machine` the kind of processor."""

    runtime: str
    opset: int
    precision: str
    machine: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One version of one model. `fixed_bytes` is the padded plaintext size of every question from level P2 up."""

    format: int = FORMAT
    name: str
    version: int
    kind: Kind
    labels: tuple[str, ...]
    input: InputSpec
    features: tuple[FieldSpec, ...]
    cut: str
    codec: str
    fixed_bytes: int
    temperature: float
    calibration: Calibration
    leakage: tuple[Leakage, ...] = ()
    hub: HubModel
    target: Target
    golden: str = GOLDEN_FILE
    files: dict[str, str] = msgspec.field(default_factory=dict)  # name -> SHA-256 in hex

    @property
    def ref(self) -> ModelRef:
        """Which head made the features: goes into every escalation."""
        return ModelRef(self.name, self.version, self.cut, self.codec)

    @property
    def model(self) -> str:
        """`digits@7`: how answers name this model."""
        return f"{self.name}@{self.version}"


class _Format(msgspec.Struct):
    format: int


_format_decoder = msgspec.json.Decoder(_Format)
_decoder = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """Readable JSON, the same bytes for the same manifest."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=1) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """A checked manifest. The format is read first, so that a newer bundle is called newer and not malformed."""
    try:
        found = _format_decoder.decode(data).format
        if found != FORMAT:
            hint = "made by a newer version: update this installation" if found > FORMAT else "not a format of ours"
            raise BundleError(f"{MANIFEST_FILE}: format {found}, this version reads {FORMAT} ({hint})")
        manifest = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{MANIFEST_FILE}: {error}") from None
    check_manifest(manifest)
    return manifest


def check_manifest(manifest: Manifest) -> None:
    """BundleError, naming the key, for the first value that is impossible."""
    for key, fits in _rules(manifest):
        if not fits:
            raise BundleError(f"{MANIFEST_FILE}: {key} is impossible")
    for feature in manifest.features:
        _check_feature(feature, manifest.codec)


def _rules(m: Manifest) -> tuple[tuple[str, bool], ...]:
    return (
        ("name", bool(_NAME.fullmatch(m.name))),
        ("version", m.version >= 1),
        ("labels", _labels_fit(m)),
        ("input", _range_fits(m.input.low, m.input.high) and _shape_fits(m.input.shape) and bool(m.input.name)),
        ("features", 0 < len(m.features) == len({f.name for f in m.features})),
        ("cut", bool(_NAME.fullmatch(m.cut))),
        ("codec", m.codec in CODECS),
        ("fixed_bytes", 0 < m.fixed_bytes <= MAX_FRAME_BYTES and m.fixed_bytes % SIZE_CLASS_BYTES == 0),
        ("temperature", math.isfinite(m.temperature) and m.temperature > 0),
        ("calibration", _calibration_fits(m.calibration)),
        ("leakage", all(math.isfinite(v) for row in m.leakage for v in (row.score, row.floor, row.ceiling))),
        ("hub.architecture", bool(_ARCHITECTURE.fullmatch(m.hub.architecture))),
        ("files", all(_file_fits(name, digest) for name, digest in m.files.items())),
        ("files: edge, hub or golden", {EDGE_FILE, m.hub.file, m.golden} <= m.files.keys()),
    )


def _labels_fit(m: Manifest) -> bool:
    unique = len(set(m.labels)) == len(m.labels) <= MAX_LABELS
    return unique and (len(m.labels) >= 2 if m.kind is Kind.CLASSIFIER else True)


def _shape_fits(shape: tuple[int, ...]) -> bool:
    return 0 < len(shape) <= 8 and all(size > 0 for size in shape) and math.prod(shape) <= MAX_ELEMENTS


def _range_fits(low: float, high: float) -> bool:
    return math.isfinite(low) and math.isfinite(high) and low < high


def _calibration_fits(c: Calibration) -> bool:
    shares = (c.corrupted, c.ece_before, c.ece_after, c.edge_accuracy, c.pair_accuracy, c.hub_accuracy, c.threshold)
    return c.samples >= 0 and all(0 <= share <= 1 for share in (*shares, c.asked))


def _file_fits(name: str, digest: str) -> bool:
    return name != MANIFEST_FILE and bool(FILE_NAME.fullmatch(name)) and bool(_DIGEST.fullmatch(digest))


def _check_feature(feature: FieldSpec, codec: str) -> None:
    fits = bool(_NAME.fullmatch(feature.name)) and feature.dtype in NUMPY_DTYPES and _shape_fits(feature.shape)
    if not fits or not _range_fits(feature.low, feature.high):
        raise BundleError(f"{MANIFEST_FILE}: feature {feature.name!r} is impossible")
    if feature.dtype is not DType.UINT8 or feature.low < 0 or feature.high > top(codec):
        raise BundleError(f"{MANIFEST_FILE}: feature {feature.name!r} is not what codec {codec} carries (UINT8 codes)")
