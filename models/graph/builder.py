"""Graph builder: from the JSON form of a graph to a torch module; the only place where nodes are made.

Rule: names of nodes and attributes are ours, never the file's; a node is made only when its operation is allowed and
all its arguments fit the operation's schema.
"""

import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from models.bundle.manifest import BundleError
from models.graph.arguments import GraphOperand, ReferenceScope, bind_arguments, resolve_operand, resolve_size
from models.graph.aten_operations import DTYPES, GETITEM, SIZE_OPERATORS, ResultKind, find_operation
from models.graph.format import GraphDocument, GraphNode
from models.graph.module import HubGraphModule, InputSlot

MAX_INDEX = 4096


def build_graph(form: GraphDocument, weights: Mapping[str, Tensor]) -> tuple[HubGraphModule, frozenset[str]]:
    """Build the module of a graph, not yet rehearsed; return it with the names of the weights it uses.

    `weights`: tensors by name, on any device ("meta" ones hold no data). BundleError, naming the node, if an operation
    is not allowed, an argument does not fit, or an output is not a tensor.
    """
    builder = _GraphBuilder(form, weights)
    for index, node in enumerate(form.nodes):
        try:
            builder.add_node(index, node)
        except BundleError as error:
            raise BundleError(f"node {index}: {error}") from None
    return builder.finish_graph(form)


class _GraphBuilder:
    """Builder of one graph: inputs and weights first, then node after node.

    `_operands` maps what a file may refer to (`("input", 0)`, `("weight", "w0")`, `("node", 3)`) to the node made for
    it.
    """

    def __init__(self, form: GraphDocument, weights: Mapping[str, Tensor]) -> None:
        self._graph = fx.Graph()
        self._root = nn.Module()
        self.used: set[str] = set()
        self._operands: dict[tuple[str, int | str], GraphOperand] = {}
        self._slots = [InputSlot(_input_dtype(port.dtype), port.shape) for port in form.inputs]
        for index in range(len(form.inputs)):
            self._operands["input", index] = GraphOperand(self._graph.placeholder(f"input_{index}"), ResultKind.TENSOR)
        first = self._operands["input", 0].node
        # constants are made where the inputs are, whatever device the file was written on
        self._device = self._graph.call_function(getattr, (first, "device"))
        for name, tensor in weights.items():
            self._root.register_buffer(name, tensor)
            self._operands["weight", name] = GraphOperand(self._graph.get_attr(name), ResultKind.TENSOR)

    def add_node(self, index: int, node: GraphNode) -> None:
        """Add the node with this index. BundleError if its operation is not allowed or an argument does not fit."""
        scope = ReferenceScope(self._operands, self._device)
        if node.op == GETITEM or node.op in SIZE_OPERATORS:
            if len(node.args) != 2 or node.kwargs:
                raise BundleError(f"{node.op}: takes two arguments")
            made = (
                _add_getitem(node, scope, self._graph)
                if node.op == GETITEM
                else _add_size_arithmetic(node, scope, self._graph)
            )
        else:
            made = self._add_operation(node, scope)
        self._operands["node", index] = made

    def _add_operation(self, node: GraphNode, scope: ReferenceScope) -> GraphOperand:
        """Add a call of an allowed ATen operation with its checked arguments."""
        operation = find_operation(node.op)
        if operation is None:
            raise BundleError(f"the operation {node.op[:60]!r} is not allowed")
        bound = bind_arguments(operation, node.args, node.kwargs, scope)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in operation.arguments:
            if argument.name not in bound:
                continue
            if argument.keyword or len(args) < operation.arguments.index(argument):
                kwargs[argument.name] = bound[argument.name]
            else:
                args.append(bound[argument.name])
        made = self._graph.call_function(operation.call, tuple(args), kwargs)
        return GraphOperand(made, operation.gives, operation.pieces)

    def finish_graph(self, form: GraphDocument) -> tuple[HubGraphModule, frozenset[str]]:
        """Add the outputs, drop what is unused, and return the module with the names of the weights it uses."""
        scope = ReferenceScope(self._operands, self._device)
        outputs = [resolve_operand(value, scope) for value in form.outputs]
        if any(found is None or found.gives is not ResultKind.TENSOR for found in outputs):
            raise BundleError("an output is not a tensor of the graph")
        nodes = [found.node for found in outputs if found is not None]
        used = frozenset(
            str(key[1]) for key, found in self._operands.items() if key[0] == "weight" and self._is_used(found, nodes)
        )
        self._graph.output(nodes[0] if len(nodes) == 1 else tuple(nodes))
        self._drop_unused()
        return HubGraphModule(fx.GraphModule(self._root, self._graph, class_name="HubGraph"), self._slots), used

    def _is_used(self, found: GraphOperand, outputs: list[fx.Node]) -> bool:
        return bool(found.node.users) or found.node in outputs

    def _drop_unused(self) -> None:
        """Erase weights that no node uses, and the device if no constant is made."""
        for node in list(self._graph.nodes):
            if not node.users and (node.op == "get_attr" or node is self._device):
                self._graph.erase_node(node)


def _add_getitem(node: GraphNode, scope: ReferenceScope, graph: fx.Graph) -> GraphOperand:
    """Add `getitem`: one of several tensors that an operation gave, by a whole number."""
    source, index = resolve_operand(node.args[0], scope), node.args[1]
    if source is None or source.gives is not ResultKind.TENSORS or type(index) is not int:
        raise BundleError("getitem: takes one of several tensors, by a whole number")
    if not 0 <= index < (source.pieces or MAX_INDEX):
        raise BundleError(f"getitem: there is no {index}")
    return GraphOperand(graph.call_function(operator.getitem, (source.node, index)), ResultKind.TENSOR)


def _add_size_arithmetic(node: GraphNode, scope: ReferenceScope, graph: fx.Graph) -> GraphOperand:
    """Add arithmetic on sizes: two whole numbers or nodes that give one."""
    made = graph.call_function(
        SIZE_OPERATORS[node.op], (resolve_size(node.args[0], scope), resolve_size(node.args[1], scope))
    )
    return GraphOperand(made, ResultKind.SIZE)


def _input_dtype(name: str) -> Any:
    """Look up the element type of an input. BundleError if it is not allowed."""
    if name not in DTYPES:
        raise BundleError(f"an input of type {name[:40]!r}")
    return DTYPES[name]
