"""Manifest fields derived from data and graphs: feature and input descriptions, message size, pipeline stages.

Rule: every escalation of a bundle has one size, whatever the sample, so that the length reveals nothing. Nothing that
differs from run to run (seconds, microseconds) is content: that goes into `forge.json`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from models.bundle.manifest import InputSpec, PipelineStage
from models.bundle.preparation import PicturePreparation, decode_preparation, preparation_shape
from models.forge.data.types import ForgeError
from models.forge.training.code_path import CodePath, Route
from models.runtime.preparation import prepared_range
from wire.protocol.codec import encode_wire_message, pad_plaintext
from wire.protocol.messages import RAW_SAMPLE_FIELD, Escalation, FieldSpec, ModelRef, Tensor, TensorDType

INPUT = "sample"
FEATURE = "features"
ENVELOPE_BYTES = 196  # clear header, HPKE and signature around every sealed question
_ROOM = 4.0  # factor between the largest value in the data and the input range of the manifest
_MAX_STAGES = 64


def name_field(path: CodePath) -> str:
    """Name of the field that a path's codes travel in: a policy lets features and the sample itself leave apart."""
    return RAW_SAMPLE_FIELD if path.route is Route.SAMPLE else FEATURE


def build_field_spec(path: CodePath) -> FieldSpec:
    """Description of the field that travels: uint8 codes 0..levels-1 under the path's sensitivity label."""
    name = name_field(path)
    return FieldSpec(name, TensorDType.UINT8, tuple(path.shape), 0.0, float(path.levels - 1), path.level, name)


def measure_question_bytes(ref: ModelRef, payloads: Mapping[str, int], values: int = 1) -> int:
    """Padded plaintext bytes of the longest escalation: every optional field, a full trace, a region of 32 characters.

    `payloads`: feature -> bytes; `values`: numbers in the local answer (a label is one).
    """
    answer = Tensor(TensorDType.FP32, (values,), bytes(4 * values))
    fields = {name: Tensor(TensorDType.UINT8, (size,), bytes(size)) for name, size in payloads.items()}
    fields |= {"local_answer": answer, "confidence": Tensor(TensorDType.FP32, (1,), bytes(4))}
    fields |= {"novelty": Tensor(TensorDType.FP32, (1,), bytes(4))}
    longest = Escalation("f" * 32, ref, "f" * 32, "r" * 32, fields, 1e9, audit=True, trace="0" * 55)
    return len(pad_plaintext(encode_wire_message(longest)))


def build_input_spec(parts: Sequence[npt.NDArray[Any]], rows: int = 0) -> InputSpec:
    """Type, shape and range of one sample, from arrays `[n, *shape]`.

    Values in 0..1 stay there; other measured values get room, for a device will see some that no set has shown; whole
    numbers are what was seen, or `0..rows-1` if they look up one of so many rows.
    """
    first = parts[0]
    low = min(float(part.min()) for part in parts if len(part))
    high = max(float(part.max()) for part in parts if len(part))
    dtype = _DTYPES[first.dtype.name]
    if dtype is TensorDType.FP32 and not (low >= 0 and high <= 1):
        reach = 2.0 ** math.ceil(math.log2(_ROOM * max(abs(low), abs(high), 1e-6)))
        low, high = -reach, reach
    elif dtype is TensorDType.FP32:
        low, high = 0.0, 1.0
    elif rows:
        low, high = 0.0, float(rows - 1)
    return InputSpec(INPUT, dtype, first.shape[1:], low, max(high, low + 1.0))


def check_prepared_input(spec: InputSpec, preparation: str) -> InputSpec:
    """The input with room for every number that the preparation (canonical JSON, "" for none) can make.

    Raises ForgeError if it makes samples of another shape than the data has, or the data has other numbers.
    """
    if not preparation:
        return spec
    made = decode_preparation(preparation)
    shape = preparation_shape(made)
    if shape != spec.shape or spec.dtype is not TensorDType.FP32:
        raise ForgeError(
            f"--input: it makes float32 {list(shape)}, the data has {spec.dtype} {list(spec.shape)} a sample:"
            " prepare the data with it too"
        )
    if not isinstance(made, PicturePreparation):
        return spec  # what a signal can be is not known beforehand: what was seen, with room
    low, high = prepared_range(made)
    return msgspec.structs.replace(spec, low=min(spec.low, low), high=max(spec.high, high))


_DTYPES = {
    "float32": TensorDType.FP32,
    "int64": TensorDType.INT64,
    "int32": TensorDType.INT32,
    "uint8": TensorDType.UINT8,
}


def vocabulary_size(graph: fx.GraphModule) -> int:
    """Rows of the embedding table in which the graph looks its input up; 0 if it does anything else with it."""
    sample = next(node for node in graph.graph.nodes if node.op == "placeholder")
    rows = []
    for user in sample.users:
        if user.target is not torch.ops.aten.embedding.default or user.args[1] is not sample:
            return 0
        rows.append(int(user.args[0].meta["val"].shape[0]))
    return min(rows, default=0)


def find_stages(tail: fx.GraphModule) -> tuple[PipelineStage, ...]:
    """Pipeline stages of the tail, each with the bytes of its weights.

    A stage ends after every tensor that alone is needed later.
    """
    live_until = _last_uses(tail)
    found: list[PipelineStage] = []
    counted: set[str] = set()
    weight_bytes = 0
    for place, node in enumerate(tail.graph.nodes):
        if node.op == "get_attr" and node.target not in counted:
            counted.add(node.target)
            weight_bytes += _node_bytes(node)
        if _is_sole_live(tail, node, place, live_until):
            shape = tuple(int(size) for size in node.meta["val"].shape[1:])
            found.append(PipelineStage(_stage_name(node.name), weight_bytes, shape))
            weight_bytes = 0
    return tuple(_merge_stages(found))


def _last_uses(graph: fx.GraphModule) -> dict[fx.Node, int]:
    place = {node: number for number, node in enumerate(graph.graph.nodes)}
    return {node: max((place[user] for user in node.users), default=-1) for node in place}


def _is_sole_live(graph: fx.GraphModule, node: fx.Node, place: int, until: Mapping[fx.Node, int]) -> bool:
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or value.dim() < 2:
        return False
    later = [
        other
        for number, other in enumerate(graph.graph.nodes)
        if number <= place < until[other] and other.op != "get_attr" and other is not node
    ]
    return not later and until[node] > place and all(isinstance(size, int) for size in value.shape[1:])


def _node_bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return int(value.numel() * value.element_size()) if isinstance(value, torch.Tensor) else 0


def _stage_name(name: str) -> str:
    return name.lower().strip("_")[:60] or "stage"


def _merge_stages(found: list[PipelineStage]) -> list[PipelineStage]:
    """Stages without weights join the one before: a boundary behind a ReLU is worth no machine."""
    kept: list[PipelineStage] = []
    for stage in found:
        if kept and stage.weight_bytes == 0:
            kept[-1] = msgspec.structs.replace(kept[-1], name=stage.name, output_shape=stage.output_shape)
        else:
            kept.append(stage)
    return kept[:_MAX_STAGES]


def round_figure(value: float) -> float:
    """A figure with four places, as manifests have them: the fifth is noise. NaN becomes 0."""
    return round(float(np.nan_to_num(value)), 4)
