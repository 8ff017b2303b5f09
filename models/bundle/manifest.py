"""The bundle manifest: the closed, typed JSON description of one model version.

It has no code, and nothing in it is ever executed.
Rule: an unknown key, a newer format or an impossible value is a `BundleError` of one line; nothing is guessed.
"""

import math
import re
from contextlib import suppress
from enum import StrEnum
from hashlib import sha256

import msgspec

from models.bundle.bit_packing import CODECS, NUMPY_DTYPES, TABLED_CODECS, codec_levels
from models.bundle.measurements import (
    CalibrationFigures,
    GateFigures,
    LeakageRow,
    RiskGuarantee,
    calibration_fits,
    gate_fits,
    guarantee_fits,
    leakage_fits,
)
from models.bundle.preparation import Preparation, check_preparation, preparation_shape
from wire.protocol.codec import MAX_FRAME_BYTES, SIZE_CLASS_BYTES
from wire.protocol.messages import RAW_SAMPLE_FIELD, FieldSpec, ModelRef, TensorDType

FORMAT = 3
JOINT_FORMAT = 2  # the older format, read only: the hub's files lie among the edge's and are named by the same manifest
MANIFEST_FILE = "manifest.json"
REPORT_FILE = "forge.json"  # timings of the machine that made it: beside the content, not part of it
MAX_MANIFEST_BYTES = 1 << 20
EDGE_FILE = "edge.onnx"
HUB_FILE = "hub.safetensors"
HUB_GRAPH_FILE = "hub.json"
CODEC_FILE = "codec.bin"
GOLDEN_FILE = "golden.npz"
TEXT_INPUT = "text_input"  # name of a text model's input, as servers of language models call it
TEXT_FIELD = "text"  # name of a text model's one feature, and its category
TEXT_CODEC = "pack8"  # bytes as they are
HUB_FOLDER = "hub"  # of the hub part, beside the files of the edge part
MAX_ELEMENTS = 2**24  # of one sample or one field: 64 MiB of float32
MAX_LABELS = 100_000
MAX_ROWS = 1000  # of leakage, of stages
FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")  # one level, no leading dot: it cannot leave the folder
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")
_PROVIDER = re.compile(r"[A-Za-z]{1,40}ExecutionProvider")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BundleError(Exception):
    """A bundle that cannot be used; the message is one line and says what to do or what is wrong."""


class ModelKind(StrEnum):
    """Task of a model: `classifier` (labels and probabilities), `regressor` (values) or `text`.

    `text`: the device's half is a classifier of short texts, the hub's half a language model that writes an answer.
    """

    CLASSIFIER = "classifier"
    REGRESSOR = "regressor"
    TEXT = "text"


class InputSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Specification of one input sample.

    `name` of the tensor in the graph, element type, shape without the batch axis, lowest and highest value.
    """

    name: str
    dtype: TensorDType
    shape: tuple[int, ...]
    low: float
    high: float


class Precision(StrEnum):
    """Arithmetic of the edge graph.

    `int8-weights`: only the stored weights are small; they are widened once, when the graph loads.
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"
    INT8_DYNAMIC = "int8-dynamic"
    INT8_WEIGHTS = "int8-weights"


class HubModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Files of the hub's half in a manifest of format 2: graphs `tail` and `whole`, and the weights that they name.

    `whole` != "": both are ONNX, `graph` is the tail's file and `whole` that of the whole model; there are no weights
    beside them.
    """

    graph: str = HUB_GRAPH_FILE
    weights: tuple[str, ...] = (HUB_FILE,)
    whole: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Every file of the hub's half, the graph first."""
        return (self.graph, *((self.whole,) if self.whole else self.weights))


NO_HUB = HubModel("", ())


class PipelineStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pipeline stage of the tail that one machine may run.

    `weight_bytes`: size of its weights; `output_shape` has no batch axis.
    """

    name: str
    weight_bytes: int
    output_shape: tuple[int, ...]


class ParallelPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the hub's tail may be divided: pipeline stages in order (none if it is one piece) and numbers of ranks.

    `tensor` ranks that share a stage, `pipeline` stages, `replicas` of it all: 0 = the hub chooses. `style` and `shard`
    chose a second way to divide weights, which is gone: "collectives" and nothing are all that is accepted.
    """

    stages: tuple[PipelineStage, ...] = ()
    tensor: int = 0
    pipeline: int = 0
    replicas: int = 0
    style: str = "collectives"
    shard: dict[str, int] = {}


class TargetPlatform(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Platform that the edge graph was made for: runtime, ONNX opset, precision, processor.

    `machine` as `platform.machine()` says it, or "any". `providers`: execution providers of ONNX Runtime, the preferred
    one first; the CPU provider always works.
    """

    runtime: str
    opset: int
    precision: Precision
    machine: str
    providers: tuple[str, ...] = ()


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Provenance of a bundle: what it was made from, and by which edition of the forge.

    `model` is `pkg:function`, or "" for a model given in Python; digests are SHA-256 (hex) of data and weights.
    """

    model: str = ""
    data_digest: str = ""
    weights_digest: str = ""
    seed: int = 0
    torch: str = ""
    forge: int = 0


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Manifest of one version of one model: of its edge part, and the digest that names its hub part.

    `fixed_bytes`: padded plaintext size of every escalation from level P2 up. `outputs`: logits of the hub's half, one
    a label, or the values of a regressor. `temperature`, `hub_temperature`: softmax temperatures. `golden`: file of the
    golden set. `files`: name to SHA-256 in hex of every file of the edge part but the manifest. `hub_part`: SHA-256 in
    hex of `hub/part.json`. `preparation`: how a picture becomes a sample; None where nobody said, and then no key of
    the file.

    In format 2 there is no `hub_part`: `hub` and `parallel` describe the hub's half, whose files are among `files`.
    """

    format: int = FORMAT
    name: str
    version: int
    kind: ModelKind
    labels: tuple[str, ...]
    outputs: int  # logits of the hub's half: one a label, or the values of a regressor
    input: InputSpec
    preparation: Preparation | None = None
    features: tuple[FieldSpec, ...]
    cut: str
    codec: str
    codec_file: str = ""  # tables of a codec that has some
    fixed_bytes: int
    temperature: float
    hub_temperature: float = 1.0
    gate: GateFigures = GateFigures()
    calibration: CalibrationFigures
    guarantee: RiskGuarantee | None = None
    leakage: tuple[LeakageRow, ...] = ()
    hub: HubModel = NO_HUB  # format 2
    parallel: ParallelPlan = ParallelPlan()  # format 2
    hub_part: str = ""
    target: TargetPlatform
    provenance: Provenance = Provenance()
    golden: str = GOLDEN_FILE
    files: dict[str, str] = msgspec.field(default_factory=dict)  # name -> SHA-256 in hex

    @property
    def ref(self) -> ModelRef:
        """Reference to the head that made the features; it goes into every escalation."""
        return ModelRef(self.name, self.version, self.cut, self.codec)

    @property
    def model(self) -> str:
        """Name of this version in answers, as in `digits@7`."""
        return f"{self.name}@{self.version}"


class _ManifestFormat(msgspec.Struct):
    format: int


_OTHER_FORMAT_KEYS = {FORMAT: ("hub", "parallel"), JOINT_FORMAT: ("hub_part",)}

_format_decoder = msgspec.json.Decoder(_ManifestFormat)
_decoder = msgspec.json.Decoder(Manifest)
_STYLE_REMOVED = "parallel: style and shard (dtensor) are gone: leave both out, `tensor` alone divides the weights"


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest as readable JSON: the same bytes for the same manifest, so that their SHA-256 names it.

    Also the same before and after it was read: a whole number in a place for others (0 for 0.0) is written as such.
    """
    read_back = msgspec.convert(msgspec.to_builtins(manifest), Manifest)
    values = msgspec.to_builtins(read_back, order="deterministic")
    for key in _OTHER_FORMAT_KEYS.get(manifest.format, ()):
        del values[key]
    if manifest.preparation is None:  # a bundle without one stays readable to versions that know none
        del values["preparation"]
    return msgspec.json.format(msgspec.json.encode(values), indent=1) + b"\n"


def digest_edge(manifest: Manifest) -> str:
    """SHA-256 (hex) of the canonical manifest with an empty `hub_part`.

    It binds a hub part to its edge part: the hub part names this digest, and the manifest the hub part's own.
    """
    return sha256(encode_manifest(msgspec.structs.replace(manifest, hub_part=""))).hexdigest()


def decode_manifest(data: bytes) -> Manifest:
    """Decode and check a manifest. BundleError, one line, for anything that is not exactly one of a known format.

    Known are `FORMAT` and `JOINT_FORMAT`. The format number is read first, so that a newer bundle is called newer and
    not malformed.
    """
    try:
        found = _format_decoder.decode(data).format
        if found not in _OTHER_FORMAT_KEYS:
            raise BundleError(
                f"{MANIFEST_FILE}: format {found}, this version reads {FORMAT} ({_explain_format(found)})"
            )
        manifest = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{MANIFEST_FILE}: {error}") from None
    check_manifest(manifest)
    return manifest


def _explain_format(found: int) -> str:
    """Explain a format number that this version does not read."""
    if found > FORMAT:
        return "made by a newer version: update this installation"
    return "made by an older version: forge it again" if found >= 1 else "not a format of ours"


def check_manifest(manifest: Manifest) -> None:
    """Check every value of a manifest. BundleError, naming the key, for the first value that is impossible."""
    if manifest.parallel.style != "collectives" or manifest.parallel.shard:
        raise BundleError(f"{MANIFEST_FILE}: {_STYLE_REMOVED}")
    for key, fits in _manifest_rules(manifest):
        if not fits:
            raise BundleError(f"{MANIFEST_FILE}: {key} is impossible")
    for feature in manifest.features:
        _check_feature(feature, manifest.codec)


def _manifest_rules(m: Manifest) -> tuple[tuple[str, bool], ...]:
    """List (key, whether its value is possible) for every key of the manifest."""
    return (
        ("name", bool(_NAME.fullmatch(m.name))),
        ("version", m.version >= 1),
        ("labels", _labels_fit(m)),
        ("outputs", 0 < m.outputs <= MAX_LABELS if m.kind is ModelKind.REGRESSOR else m.outputs == len(m.labels)),
        ("input", _range_fits(m.input.low, m.input.high) and _shape_fits(m.input.shape) and bool(m.input.name)),
        ("preparation: not of the input's shape", m.preparation is None or _preparation_fits(m.preparation, m.input)),
        ("features", 0 < len(m.features) == len({f.name for f in m.features})),
        ("features: the sample itself has its own name", all(map(_sample_is_named, m.features))),
        ("kind: a text has one labelled field, the text itself", m.kind is not ModelKind.TEXT or _text_fits(m)),
        ("cut", bool(_NAME.fullmatch(m.cut))),
        ("codec", m.codec in CODECS),
        ("codec_file", bool(FILE_NAME.fullmatch(m.codec_file)) if m.codec in TABLED_CODECS else not m.codec_file),
        ("fixed_bytes", 0 < m.fixed_bytes <= MAX_FRAME_BYTES and m.fixed_bytes % SIZE_CLASS_BYTES == 0),
        ("temperature", math.isfinite(m.temperature) and m.temperature > 0),
        ("hub_temperature", math.isfinite(m.hub_temperature) and m.hub_temperature > 0),
        ("gate", gate_fits(m.gate, regressor=m.kind is ModelKind.REGRESSOR)),
        ("calibration", calibration_fits(m.calibration)),
        ("guarantee", m.guarantee is None or guarantee_fits(m.guarantee)),
        ("leakage", len(m.leakage) <= MAX_ROWS and all(map(leakage_fits, m.leakage))),
        ("format", m.format in _OTHER_FORMAT_KEYS),
        ("hub", _joint_hub_fits(m.hub) if m.format == JOINT_FORMAT else m.hub == NO_HUB),
        ("parallel", m.format == JOINT_FORMAT or m.parallel == ParallelPlan()),
        *plan_rules(m.parallel),
        ("hub_part", bool(_DIGEST.fullmatch(m.hub_part)) if m.format == FORMAT else not m.hub_part),
        ("target", m.target.precision in set(Precision) and all(map(_PROVIDER.fullmatch, m.target.providers))),
        ("files", all(_file_entry_fits(name, digest) for name, digest in m.files.items())),
        ("files: hub", m.format == JOINT_FORMAT or HUB_FOLDER not in m.files),
        ("files: edge, hub, codec or golden", _required_files(m) <= m.files.keys()),
    )


def plan_rules(plan: ParallelPlan) -> tuple[tuple[str, bool], ...]:
    """List (key, whether its value is possible) for the ways to divide a tail."""
    counts = (plan.tensor, plan.pipeline, plan.replicas)
    return (
        ("parallel", len(plan.stages) <= MAX_ROWS and all(map(_stage_fits, plan.stages))),
        ("parallel: tensor, pipeline or replicas", all(0 <= count <= MAX_ROWS for count in counts)),
        ("parallel: style or shard", plan.style == "collectives" and not plan.shard),
    )


def _sample_is_named(field: FieldSpec) -> bool:
    """Whether a field that is the sample itself is named so, for a policy lists fields by their names."""
    return (field.name == RAW_SAMPLE_FIELD) is (field.category == RAW_SAMPLE_FIELD)


def _joint_hub_fits(hub: HubModel) -> bool:
    return bool(hub.whole) is not bool(hub.weights) and len(hub.files) == len(set(hub.files))


def _required_files(m: Manifest) -> set[str]:
    """Return the names of the files that every bundle of this manifest must have."""
    hub = m.hub.files if m.format == JOINT_FORMAT else ()
    return {EDGE_FILE, m.golden, *hub, *((m.codec_file,) if m.codec_file else ())}


def _labels_fit(m: Manifest) -> bool:
    unique = len(set(m.labels)) == len(m.labels) <= MAX_LABELS
    return unique and (not m.labels if m.kind is ModelKind.REGRESSOR else len(m.labels) >= 2)


def _text_fits(m: Manifest) -> bool:
    """Whether input and the one feature of a text model are the same bytes, travelling as they are."""
    if len(m.features) != 1:
        return False
    field = m.features[0]
    same = field.shape == m.input.shape and field.dtype is m.input.dtype and (field.low, field.high) == (0, 255)
    plain = m.format == FORMAT and m.codec == TEXT_CODEC
    return plain and same and is_text_input(m.input) and (field.name, field.category) == (TEXT_FIELD, TEXT_FIELD)


def is_text_input(spec: InputSpec) -> bool:
    """Whether an input takes a text: its UTF-8 bytes, zeros behind its end."""
    bytes_alone = spec.dtype is TensorDType.UINT8 and (spec.low, spec.high) == (0, 255)
    return spec.name == TEXT_INPUT and bytes_alone and len(spec.shape) == 1


def _shape_fits(shape: tuple[int, ...]) -> bool:
    return 0 < len(shape) <= 8 and all(size > 0 for size in shape) and math.prod(shape) <= MAX_ELEMENTS


def _preparation_fits(preparation: Preparation, spec: InputSpec) -> bool:
    with suppress(ValueError):
        check_preparation(preparation, complete=True)
        typed = spec.dtype in (TensorDType.FP32, TensorDType.UINT8)
        return typed and preparation_shape(preparation) == spec.shape
    return False


def _range_fits(low: float, high: float) -> bool:
    return math.isfinite(low) and math.isfinite(high) and low < high


def _stage_fits(stage: PipelineStage) -> bool:
    return bool(_NAME.fullmatch(stage.name)) and stage.weight_bytes >= 0 and _shape_fits(stage.output_shape)


def _file_entry_fits(name: str, digest: str) -> bool:
    return name != MANIFEST_FILE and bool(FILE_NAME.fullmatch(name)) and bool(_DIGEST.fullmatch(digest))


def _check_feature(feature: FieldSpec, codec: str) -> None:
    """Check one feature against the codec.

    BundleError if it is impossible or has more levels than the codec carries.
    """
    fits = bool(_NAME.fullmatch(feature.name)) and feature.dtype in NUMPY_DTYPES and _shape_fits(feature.shape)
    if not fits or not _range_fits(feature.low, feature.high):
        raise BundleError(f"{MANIFEST_FILE}: feature {feature.name!r} is impossible")
    if feature.dtype is not TensorDType.UINT8 or feature.low < 0 or feature.high >= codec_levels(codec):
        raise BundleError(f"{MANIFEST_FILE}: feature {feature.name!r} is not what codec {codec} carries (UINT8 codes)")
