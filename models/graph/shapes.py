"""Shape inference: the value of every node of a graph for one batch size, run without data before any weight is read.

Rule: weights are known by type and shape alone here ("meta" tensors allocate nothing).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from models.bundle.manifest import BundleError
from models.graph.aten_operations import DTYPES
from models.graph.builder import build_graph
from models.graph.format import GraphDocument, TensorSignature
from models.graph.module import TORCH_ERRORS, HubGraphModule

META_VALUE = "like"  # key in a node's `meta`: what it gives, as `infer_values` found it


def build_meta_graph(form: GraphDocument, weights: Mapping[str, TensorSignature]) -> HubGraphModule:
    """Build the graph with weights that hold no data. BundleError if it is not made of allowed operations."""
    return build_graph(form, make_blank_weights(weights))[0]


def make_blank_weights(weights: Mapping[str, TensorSignature]) -> dict[str, Tensor]:
    """Make weights that hold no data. BundleError for a type that no weight has."""
    return {name: torch.empty(port.shape, dtype=_weight_dtype(port), device="meta") for name, port in weights.items()}


def infer_values(graph: HubGraphModule, batch: int) -> dict[str, Any]:
    """Infer values by node name: a meta tensor, a list of them, or a whole number.

    BundleError if it does not fit together.
    """
    inputs = [torch.empty((batch, *slot.shape), dtype=slot.dtype, device="meta") for slot in graph.slots]
    noter = _ValueRecorder(graph.graph)
    try:
        with torch.no_grad():
            noter.run(*inputs)
    except TORCH_ERRORS as error:
        raise BundleError(f"the graph does not fit together: {' '.join(str(error).split())[:200]}") from None
    return noter.found


def annotate_graph(graph: HubGraphModule, batch: int) -> fx.GraphModule:
    """Return the graph with the values that `infer_values` found stored in its nodes' `meta`."""
    found = infer_values(graph, batch)
    for node in graph.graph.graph.nodes:
        node.meta[META_VALUE] = found.get(node.name)
    return graph.graph


def meta_value(node: fx.Node) -> Any:
    """Return the inferred value of a node (see `annotate_graph`)."""
    return node.meta[META_VALUE]


def node_shape(node: fx.Node) -> tuple[int, ...]:
    """Return the inferred shape of a node that gives one tensor."""
    return tuple(node.meta[META_VALUE].shape)


def count_value_bytes(value: Any) -> int:
    """Count the bytes of a tensor or of several; 0 for a number."""
    if isinstance(value, list | tuple):
        return sum(map(count_value_bytes, value))
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


class _ValueRecorder(fx.Interpreter):
    """Interpreter that records the result of every node by name."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.found: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.found[n.name] = result
        return result


def _weight_dtype(port: TensorSignature) -> torch.dtype:
    if port.dtype not in DTYPES:
        raise BundleError(f"a weight of type {port.dtype[:40]!r}")
    found: torch.dtype = DTYPES[port.dtype]
    return found
