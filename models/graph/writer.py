"""Graph writer: from an exported graph to its JSON form, every node an allowed operation in the closed grammar.

Rule: what the hub could not run is refused here, by name, with what to try; nothing is dropped silently.
"""

import math
import operator
from typing import Any

import torch
from torch import Tensor, fx

from models.forge.data.types import ForgeError
from models.graph.format import GraphForm, Node, Port
from models.graph.operations import ALLOWED, DTYPES, FORMATS, GETITEM, LAYOUTS, SIZES
from models.graph.weights import Shelf, type_name

_CALLS: dict[object, str] = {operator.getitem: GETITEM, **{call: name for name, call in SIZES.items()}}
_NAMES: dict[object, dict[str, str]] = {
    value: {key: name}
    for key, table in (("dtype", DTYPES), ("layout", LAYOUTS), ("memory_format", FORMATS))
    for name, value in table.items()
}


def write(graph: fx.GraphModule, shelf: Shelf) -> GraphForm:
    """Write a graph as JSON values; its weights go to `shelf`.

    ForgeError naming the first operation or argument that has no place in a bundle.
    """
    writer = _Writer(graph, shelf)
    for node in graph.graph.nodes:
        writer.take(node)
    return GraphForm(writer.inputs, writer.nodes, writer.outputs)


class _Writer:
    """Writer of one graph: collects inputs, nodes and outputs in order."""

    def __init__(self, graph: fx.GraphModule, shelf: Shelf) -> None:
        self.inputs: list[Port] = []
        self.nodes: list[Node] = []
        self.outputs: list[Any] = []
        self._graph = graph
        self._shelf = shelf
        self._names: dict[fx.Node, dict[str, int | str]] = {}

    def take(self, node: fx.Node) -> None:
        """Add one node of the exported graph. ForgeError if it is no plain operation."""
        match node.op:
            case "placeholder":
                self._names[node] = {"input": len(self.inputs)}
                self.inputs.append(_port(node))
            case "get_attr":
                if node.users:
                    self._names[node] = {"weight": self._shelf.name_of(_attribute(self._graph, str(node.target)))}
            case "output":
                outputs = node.args[0] if isinstance(node.args[0], list | tuple) else [node.args[0]]
                self.outputs = [self._value(node, output) for output in outputs]
            case "call_function":
                self._call(node)
            case _:
                raise ForgeError(f"the model's graph calls {node.target}, no plain operation: write it plainly")

    def _call(self, node: fx.Node) -> None:
        name = _name_of(node.target)
        args = [self._value(node, arg) for arg in node.args]
        kwargs = {key: self._value(node, arg) for key, arg in node.kwargs.items()}
        self._names[node] = {"node": len(self.nodes)}
        self.nodes.append(Node(name, args, kwargs))

    def _value(self, node: fx.Node, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self._names[value]
        if isinstance(value, list | tuple):
            return [self._value(node, item) for item in value]
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return _float(node, value)
        if isinstance(value, torch.device) and value.type == "cpu":
            return {"device": "cpu"}
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format) and value in _NAMES:
            return _NAMES[value]
        raise ForgeError(f"{node.target}: an argument {str(value)[:60]!r} has no place in a bundle")


def _float(node: fx.Node, value: float) -> Any:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        raise ForgeError(f"{node.target}: NaN as an argument")
    return {"float": "inf" if value > 0 else "-inf"}


def _name_of(target: Any) -> str:
    """Return the name of an operation. ForgeError if the hub does not run it."""
    name = _CALLS.get(target, str(target))
    if name not in ALLOWED and name not in _CALLS.values():
        raise ForgeError(f"the hub does not run the operation {name}: replace it in the model by plainer ones")
    return name


def _port(node: fx.Node) -> Port:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.ndim < 1:
        raise ForgeError(f"input {node.name} is not a tensor with a batch axis")
    sides: list[object] = list(value.shape)  # torch declares them all int, and free ones are not
    free = [axis for axis, side in enumerate(sides) if isinstance(side, torch.SymInt)]
    if free != [0]:
        raise ForgeError(f"input {node.name}: its batch axis alone must be free, found {tuple(value.shape)}")
    return Port(type_name(value), tuple(value.shape[1:]))


def _attribute(graph: fx.GraphModule, target: str) -> Tensor:
    held: Any = graph
    for part in target.split("."):
        held = getattr(held, part)
    if not isinstance(held, Tensor):
        raise ForgeError(f"the model's graph holds {target}, which is not a tensor (control flow?): write it plainly")
    return held
