"""ONNX export of the device's half: one graph with a free batch axis, without `Range` nodes or traces of the machine.

Rule: the graph says nothing of the machine that made it (no source paths, no traces), so equal weights give equal
bytes.

Rule: only a `Range` from 0 in steps of 1 is rewritten, as a running sum of ones that a device's lint allows; it is
equal for every length. Any other stays, and the lint reports it. Such ranges number the samples of a batch (masks of
text encoders): their length follows from a shape.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from models.bundle.manifest import InputSpec
from wire.protocol.messages import TensorDType

Values = npt.NDArray[Any]
_WHOLE = (np.dtype(np.int64), np.dtype(np.int32))


def replace_ranges(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace each `Range` from 0 in steps of 1 by a running sum; returns the same model, changed in place."""
    graph = model.graph
    constants = _collect_constants(graph)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes += _expand_range(node, constants, graph) if node.op_type == "Range" else [node]
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return model


def _collect_constants(graph: onnx.GraphProto) -> dict[str, Values]:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def _expand_range(node: onnx.NodeProto, constants: dict[str, Values], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    start, limit, delta = node.input
    begins, step = constants.get(start), constants.get(delta)
    if begins is None or step is None or begins.dtype not in _WHOLE or int(begins) != 0 or int(step) != 1:
        return [node]
    stem = node.name or node.output[0]
    one = np.array([1], np.int64)
    added = {"one": one, "step": one[0].astype(begins.dtype), "axis": np.int64(0)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), f"{stem}_{name}") for name, v in added.items())
    filled = numpy_helper.from_array(one.astype(begins.dtype), "value")
    return [
        helper.make_node("Cast", [limit], [f"{stem}_long"], f"{stem}_cast", to=onnx.TensorProto.INT64),
        helper.make_node("Reshape", [f"{stem}_long", f"{stem}_one"], [f"{stem}_length"], f"{stem}_reshape"),
        helper.make_node("ConstantOfShape", [f"{stem}_length"], [f"{stem}_ones"], f"{stem}_fill", value=filled),
        helper.make_node("CumSum", [f"{stem}_ones", f"{stem}_axis"], [f"{stem}_from_one"], f"{stem}_sum"),
        helper.make_node("Sub", [f"{stem}_from_one", f"{stem}_step"], [node.output[0]], f"{stem}_less"),
    ]


BATCH = "batch"
MAX_BATCH = 4096
OPSET = 20
_DTYPES = {TensorDType.INT64: torch.int64, TensorDType.INT32: torch.int32, TensorDType.UINT8: torch.uint8}


def export_edge_graph(module: nn.Module, spec: InputSpec, outputs: Sequence[str]) -> onnx.ModelProto:
    """Float32 ONNX model of `pieces.build_edge_module`: input `[batch, *spec.shape]`, `outputs` in the module's order.

    The example batch is 2: a batch of 1 would be frozen in.
    """
    return strip_metadata(replace_ranges(export_module(module.eval(), _example_batch(spec), (spec.name, *outputs))))


def _example_batch(spec: InputSpec) -> Tensor:
    return torch.full((2, *spec.shape), spec.low, dtype=_DTYPES.get(spec.dtype, torch.float32))


def export_module(module: nn.Module, example: Tensor, names: Sequence[str]) -> onnx.ModelProto:
    """ONNX model of `module` by torch's exporter.

    `names`: of the input, then of the outputs; the batch axis stays free.
    """
    with _silence_exporter():
        program: Any = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            optimize=True,
            verbose=False,
            external_data=False,
            opset_version=OPSET,
            input_names=list(names[:1]),
            output_names=list(names[1:]),
            dynamic_shapes=({0: torch.export.Dim(BATCH, min=1, max=MAX_BATCH)},),
        )
    model: onnx.ModelProto = program.model_proto
    return model


def strip_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph without documentation strings and metadata (the exporter writes stack traces with paths there)."""
    graph = model.graph
    model.producer_name = model.producer_version = model.doc_string = graph.doc_string = ""
    graph.name = "edge"
    used = {node.domain for node in graph.node}
    kept = [onnx.OperatorSetIdProto(domain=o.domain, version=o.version) for o in model.opset_import if o.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return model


def serialise_model(model: onnx.ModelProto) -> bytes:
    """Deterministic protobuf bytes of a model."""
    data: bytes = model.SerializeToString(deterministic=True)
    return data


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silence the exporter: it warns of its own deprecations and missing packages, and no caller can act on it."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
