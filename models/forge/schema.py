"""The manifest of a picture model: its input, its one feature and how big a question about it is.

Law: every question of a bundle has one size, whatever the sample, so that length tells nothing.
"""

import platform

from models.codec import payload_bytes
from models.forge.export import OPSET
from models.forge.task import Task
from models.manifest import HUB_FILE, Calibration, HubModel, InputSpec, Kind, Leakage, Manifest, Target
from models.zoo.digits import LEVELS, Sizes
from wire.codec import encode, pad
from wire.messages import DType, Escalation, FieldSpec, Level, ModelRef, Tensor

ARCHITECTURE = "zoo/digits"
CODEC = "pack4"
CUT = "bottleneck"
FEATURE = "features"
INPUT = "image"


def sizes(task: Task) -> Sizes:
    channels, height, width = task.training.x.shape[1:]
    return Sizes(channels, height, width, len(task.labels))


def input_spec(task: Task) -> InputSpec:
    return InputSpec(INPUT, DType.FP32, task.training.x.shape[1:], 0.0, 1.0)


def manifest(task: Task, precision: str, temperature: float, calibration: Calibration, leakage: Leakage) -> Manifest:
    ref = ModelRef(task.name, task.version, CUT, CODEC)
    codes = sizes(task).codes
    return Manifest(
        name=task.name,
        version=task.version,
        kind=Kind.CLASSIFIER,
        labels=task.labels,
        input=input_spec(task),
        features=(FieldSpec(FEATURE, DType.UINT8, codes, 0.0, float(LEVELS - 1), Level.P2, "features"),),
        cut=CUT,
        codec=CODEC,
        fixed_bytes=question_bytes(ref, payload_bytes(CODEC, codes)),
        temperature=temperature,
        calibration=calibration,
        leakage=(leakage,),
        hub=HubModel(ARCHITECTURE, HUB_FILE),
        target=Target("onnxruntime", OPSET, precision, platform.machine()),
    )


def question_bytes(ref: ModelRef, payload: int) -> int:
    """Padded plaintext of the longest question: every optional field, a full trace, a region of 32 characters."""
    fields = {
        FEATURE: Tensor(DType.UINT8, (payload,), bytes(payload)),
        "local_answer": Tensor(DType.INT32, (1,), bytes(4)),
        "confidence": Tensor(DType.FP32, (1,), bytes(4)),
    }
    longest = Escalation("f" * 32, ref, "f" * 32, "r" * 32, fields, 1e9, audit=True, trace="0" * 55)
    return len(pad(encode(longest)))
