"""Graph writer: from an exported graph to its JSON form, every node an allowed operation in the closed grammar.

Rule: what the hub could not run is refused here, by name, with what to try; nothing is dropped silently.
"""

import math
import operator
from typing import Any

import torch
from torch import Tensor, fx

from models.forge.data.types import ForgeError
from models.graph.aten_operations import (
    ALLOWED_OPERATIONS,
    DTYPES,
    GETITEM,
    LAYOUTS,
    MEMORY_FORMATS,
    OPERATIONS_PAGE,
    SIZE_OPERATORS,
)
from models.graph.format import GraphDocument, GraphNode, TensorSignature
from models.graph.weights import WeightCollector, dtype_name

_SHOWN = 3  # refused operations that an error names
_CALL_NAMES: dict[object, str] = {operator.getitem: GETITEM, **{call: name for name, call in SIZE_OPERATORS.items()}}
_CONSTANT_NAMES: dict[object, dict[str, str]] = {
    value: {key: name}
    for key, table in (("dtype", DTYPES), ("layout", LAYOUTS), ("memory_format", MEMORY_FORMATS))
    for name, value in table.items()
}


def write_graph(graph: fx.GraphModule, shelf: WeightCollector) -> GraphDocument:
    """Write a graph as JSON values; its weights go to `shelf`.

    ForgeError naming the operations, or the first argument, that have no place in a bundle.
    """
    _check_operations(graph)
    writer = _GraphWriter(graph, shelf)
    for node in graph.graph.nodes:
        writer.add_node(node)
    return GraphDocument(writer.inputs, writer.nodes, writer.outputs)


class _GraphWriter:
    """Writer of one graph: collects inputs, nodes and outputs in order."""

    def __init__(self, graph: fx.GraphModule, shelf: WeightCollector) -> None:
        self.inputs: list[TensorSignature] = []
        self.nodes: list[GraphNode] = []
        self.outputs: list[Any] = []
        self._graph = graph
        self._shelf = shelf
        self._names: dict[fx.Node, dict[str, int | str]] = {}

    def add_node(self, node: fx.Node) -> None:
        """Add one node of the exported graph. ForgeError if it is no plain operation."""
        match node.op:
            case "placeholder":
                self._names[node] = {"input": len(self.inputs)}
                self.inputs.append(_input_spec(node))
            case "get_attr":
                if node.users:
                    self._names[node] = {
                        "weight": self._shelf.name_for(_attribute_tensor(self._graph, str(node.target)))
                    }
            case "output":
                outputs = node.args[0] if isinstance(node.args[0], list | tuple) else [node.args[0]]
                self.outputs = [self._encode_value(node, output) for output in outputs]
            case "call_function":
                self._add_call(node)
            case _:
                raise ForgeError(f"the model's graph calls {node.target}, no plain operation: write it plainly")

    def _add_call(self, node: fx.Node) -> None:
        name = _CALL_NAMES.get(node.target, str(node.target))
        args = [self._encode_value(node, arg) for arg in node.args]
        kwargs = {key: self._encode_value(node, arg) for key, arg in node.kwargs.items()}
        self._names[node] = {"node": len(self.nodes)}
        self.nodes.append(GraphNode(name, args, kwargs))

    def _encode_value(self, node: fx.Node, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self._names[value]
        if isinstance(value, list | tuple):
            return [self._encode_value(node, item) for item in value]
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return _encode_float(node, value)
        if isinstance(value, torch.device) and value.type == "cpu":
            return {"device": "cpu"}
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format) and value in _CONSTANT_NAMES:
            return _CONSTANT_NAMES[value]
        raise ForgeError(f"{node.target}: an argument {str(value)[:60]!r} has no place in a bundle")


def _encode_float(node: fx.Node, value: float) -> Any:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        raise ForgeError(f"{node.target}: NaN as an argument")
    return {"float": "inf" if value > 0 else "-inf"}


def _check_operations(graph: fx.GraphModule) -> None:
    """ForgeError naming all operations that the hub does not run, and where in the model each is used first."""
    refused: dict[str, str] = {}
    for node in graph.graph.nodes:
        name = _CALL_NAMES.get(node.target, str(node.target))
        if node.op == "call_function" and name not in ALLOWED_OPERATIONS and name not in _CALL_NAMES.values():
            refused.setdefault(name, _module_path(node))
    if refused:
        names = ", ".join(f"{name} (in {path})" if path else name for name, path in list(refused.items())[:_SHOWN])
        more = f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        noun = "operation" if len(refused) == 1 else "operations"
        advice = f"replace it in the model by plainer ones ({OPERATIONS_PAGE} lists those that run)"
        raise ForgeError(f"the hub does not run the {noun} {names}{more}; {advice}")


def _module_path(node: fx.Node) -> str:
    """The model's own name of the module that a node was traced in, "" if that is the model itself."""
    stack: Any = node.meta.get("nn_module_stack") or {}
    return next((str(entry[0]) for entry in reversed(list(stack.values())) if entry[0]), "")


def _input_spec(node: fx.Node) -> TensorSignature:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.ndim < 1:
        raise ForgeError(f"input {node.name} is not a tensor with a batch axis")
    sides: list[object] = list(value.shape)  # torch declares them all int, and free ones are not
    free = [axis for axis, side in enumerate(sides) if isinstance(side, torch.SymInt)]
    if free != [0]:
        raise ForgeError(f"input {node.name}: its batch axis alone must be free, found {tuple(value.shape)}")
    return TensorSignature(dtype_name(value), tuple(value.shape[1:]))


def _attribute_tensor(graph: fx.GraphModule, target: str) -> Tensor:
    held: Any = graph
    for part in target.split("."):
        held = getattr(held, part)
    if not isinstance(held, Tensor):
        raise ForgeError(f"the model's graph holds {target}, which is not a tensor (control flow?): write it plainly")
    return held
