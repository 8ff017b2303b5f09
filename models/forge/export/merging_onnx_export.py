"""The device's half in torch becomes one ONNX graph with a free batch axis.

Law: the graph says nothing of the machine that made it (no source paths, no traces), so equal weights give equal bytes.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from models.bundle.manifest import InputSpec
from models.forge.export.merging_onnx_counted import without_ranges
from wire.protocol.messages import DType

BATCH = "batch"
MAX_BATCH = 4096
OPSET = 20
_DTYPES = {DType.INT64: torch.int64, DType.INT32: torch.int32, DType.UINT8: torch.uint8}


def export_edge(module: nn.Module, spec: InputSpec, outputs: Sequence[str]) -> onnx.ModelProto:
    """Float32 ONNX of `pieces.edge_module`: input `[batch, *spec.shape]`, `outputs` in the module's order.

    The example batch is 2: a batch of 1 would be frozen in.
    """
    return anonymous(without_ranges(graph_of(module.eval(), _example(spec), (spec.name, *outputs))))


def _example(spec: InputSpec) -> Tensor:
    return torch.full((2, *spec.shape), spec.low, dtype=_DTYPES.get(spec.dtype, torch.float32))


def graph_of(module: nn.Module, example: Tensor, names: Sequence[str]) -> onnx.ModelProto:
    """What the exporter makes of `module`: `names` of the input, then of the outputs; the batch axis stays free."""
    with _quiet():
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


def anonymous(model: onnx.ModelProto) -> onnx.ModelProto:
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


def serialise(model: onnx.ModelProto) -> bytes:
    data: bytes = model.SerializeToString(deterministic=True)
    return data


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own deprecations and of packages that are not installed: no caller can act on it."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
