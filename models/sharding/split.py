"""Tensor parallelism: a graph as one of `ways` ranks runs it, large weights divided and collectives where ranks meet.

Rule: every rank runs the same nodes in the same order. A tensor is either whole on every rank or divided along one
axis; where no rule carries the axis on, it is gathered first. Column- and row-parallel layers: Shoeybi et al. 2019
(Megatron-LM); the same by output and input channels for convolutions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from models.graph.aten_operations import POINTWISE
from models.graph.shapes import count_value_bytes, meta_value, node_shape
from models.sharding.rules import AXIS_RULES, node_arguments, propagate_axis

SMALL_BYTES = (1 << 14, 1 << 16)  # a weight below is kept whole: meeting would cost more than it saves
_SMALL_SHARE = 256  # of all weights, between these bounds
_CONVOLUTIONS = {f"aten.conv{n}d.{kind}": n for n in (1, 2, 3) for kind in ("default", "padding")}
_LAYERS = {"aten.linear.default", *_CONVOLUTIONS}
_SEVERAL_INPUTS = (
    "batch_norm.default",
    "scaled_dot_product_attention.default",
    "cat.default",
    "matmul.default",
    "bmm.default",
)
DIVIDED_OPERATIONS = frozenset(
    {*_LAYERS, "aten.embedding.default", *(f"aten.{name}" for name in _SEVERAL_INPUTS), *POINTWISE, *AXIS_RULES}
)
_NO_TENSOR_WORK = frozenset({"aten.sym_size.int"})


class WeightPiece(NamedTuple):
    """Weight as one rank holds it: `axis` None = the whole of it."""

    name: str
    axis: int | None


class CollectiveCall(nn.Module):
    """Module that calls a collective; stands in the graph as `reduce`, `gather` and `take`."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor, *axis: int) -> Tensor:
        return self.call(x, *axis)


class RankGraph(NamedTuple):
    """Graph of one rank; needs `reduce`, `gather`, `take` and every piece (by `piece_attribute`) before it can run."""

    graph: fx.Graph
    pieces: frozenset[WeightPiece]


def piece_attribute(piece: WeightPiece) -> str:
    """Return the attribute name of a piece in a rank's module."""
    return piece.name if piece.axis is None else f"{piece.name}_{piece.axis}"


def split_graph(source: fx.Graph, ways: int) -> RankGraph:
    """Divide a graph among `ways` ranks.

    `source`: its nodes carry their inferred values (`models.graph.shapes.annotate_graph`).
    """
    whole = sum(count_value_bytes(meta_value(node)) for node in source.nodes if node.op == "get_attr")
    least, most = SMALL_BYTES
    return _GraphSplitter(ways, max(least, min(most, whole // _SMALL_SHARE))).run(source)


class _GraphSplitter:
    """Splitter of one graph: keeps for every node what this rank has, and along which axis it is divided."""

    def __init__(self, ways: int, small_bytes: int) -> None:
        self._ways = ways
        self._small = small_bytes
        self._made = fx.Graph()
        self._own: dict[fx.Node, fx.Node] = {}  # the node of this rank's graph
        self._axis: dict[fx.Node, int] = {}  # of what is divided
        self._whole: dict[fx.Node, fx.Node] = {}
        self._taken: dict[tuple[fx.Node, int], fx.Node] = {}
        self._pieces: set[WeightPiece] = set()

    def run(self, source: fx.Graph) -> RankGraph:
        """Divide every node of the graph in order and return this rank's graph with the pieces it needs."""
        for node in source.nodes:
            if node.op == "output":
                self._made.output(fx.map_arg(node_arguments(node)[0], self.whole_tensor))
            elif node.op != "get_attr":
                self._add_node(node)
        self._made.lint()
        return RankGraph(self._made, frozenset(self._pieces))

    # -- what a rule may ask for

    def whole_tensor(self, node: fx.Node) -> fx.Node:
        """Return the tensor as it is whole on every rank, gathered once if it is divided."""
        if node.op == "get_attr":
            return self._weight_piece(node, None)
        if node not in self._axis:
            return self._own[node]
        if node not in self._whole:
            self._whole[node] = self._made.call_module("gather", (self._own[node], self._axis[node]))
        return self._whole[node]

    def divided_tensor(self, node: fx.Node, axis: int) -> fx.Node:
        """Return this rank's part of the tensor along `axis`."""
        if node.op == "get_attr":
            return self._weight_piece(node, axis)
        if self._axis.get(node) == axis:
            return self._own[node]
        if (node, axis) not in self._taken:
            self._taken[node, axis] = self._made.call_module("take", (self.whole_tensor(node), axis))
        return self._taken[node, axis]

    def _weight_piece(self, node: fx.Node, axis: int | None) -> fx.Node:
        piece = WeightPiece(str(node.target), axis)
        self._pieces.add(piece)
        return self._made.create_node("get_attr", piece_attribute(piece))

    # -- nodes

    def _add_node(self, node: fx.Node) -> None:
        made = None
        if self._ways > 1 and self._may_be_divided(node):
            made = (
                self._split_layer(node)
                or self._split_experts(node)
                or self._split_sum(node)
                or self._split_embedding(node)
                or self._split_getitem(node)
                or self._split_size(node)
            )
            made = made or self._split_multi_input(node) or self._split_single_input(node)
        if made is None:
            self._own[node] = self._made.node_copy(node, self.whole_tensor)
            return
        self._own[node], axis = made
        if axis is not None:
            self._axis[node] = axis

    def _may_be_divided(self, node: fx.Node) -> bool:
        known = str(node.target) in DIVIDED_OPERATIONS or str(node.target) in _NO_TENSOR_WORK
        return node.op == "call_function" and (known or getattr(node.target, "__name__", "") == "getitem")

    def _copy_call(self, node: fx.Node, args: Any, axis: int | None) -> tuple[fx.Node, int | None]:
        target: Any = node.target
        own = self._made.call_function(target, args, dict(node.kwargs))
        return own, axis

    def _split_layer(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide `linear` and convolutions by columns, or by rows where the input is divided already."""
        name, x, weight = str(node.target), *(*node_arguments(node), None, None)[:2]
        if name not in _LAYERS or not isinstance(weight, fx.Node) or weight.op != "get_attr" or node.kwargs:
            return None
        groups = node_arguments(node)[6] if name in _CONVOLUTIONS and len(node_arguments(node)) > 6 else 1
        if groups != 1 or not isinstance(x, fx.Node):
            return None
        channel = len(node_shape(x)) - (1 if name not in _CONVOLUTIONS else 1 + _CONVOLUTIONS[name])
        rows, columns = node_shape(weight)[1], node_shape(weight)[0]
        large = count_value_bytes(meta_value(weight)) >= self._small
        if self._axis.get(x) == channel and rows % self._ways == 0:
            return self._split_by_rows(node, channel), None
        if large and columns % self._ways == 0:
            return self._split_by_columns(node, channel)
        return (self._split_by_rows(node, channel), None) if large and rows % self._ways == 0 else None

    def _split_by_columns(self, node: fx.Node, channel: int) -> tuple[fx.Node, int | None]:
        x, weight, *rest = node_arguments(node)
        bias = rest[0] if rest else None
        pieces = [self.whole_tensor(x), self.divided_tensor(weight, 0), self.divided_tensor(bias, 0) if bias else None]
        return self._copy_call(node, (*pieces, *rest[1:]), channel)

    def _split_by_rows(self, node: fx.Node, channel: int) -> fx.Node:
        """Divide by rows: every rank adds up its share of the inputs, then all ranks reduce. The bias is added once."""
        x, weight, *rest = node_arguments(node)
        bias = rest[0] if rest else None
        pieces = (self.divided_tensor(x, channel), self.divided_tensor(weight, 1), None, *rest[1:])
        summed = self._made.call_module("reduce", (self._copy_call(node, pieces, None)[0],))
        if bias is None:
            return summed
        after = len(node_shape(node)) - 1 - channel
        return self._made.call_module("shift", (summed, self.whole_tensor(bias), after))

    def _split_experts(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide a product of weights `[experts, ...]` by experts, which do not depend on each other."""
        if str(node.target) not in ("aten.bmm.default", "aten.matmul.default"):
            return None
        weights = [each for each in node.all_input_nodes if each.op == "get_attr"]
        ranks = {len(node_shape(each)) for each in node.all_input_nodes}
        if len(weights) != 1 or ranks != {3} or node_shape(weights[0])[0] % self._ways:
            return None
        if count_value_bytes(meta_value(weights[0])) < self._small or node_shape(node)[0] != node_shape(weights[0])[0]:
            return None
        return self._made.node_copy(node, lambda arg: self.divided_tensor(arg, 0)), 0

    def _split_sum(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Add up along the divided axis: every rank its part, then all ranks reduce."""
        source, *rest = node_arguments(node) or (None,)
        if str(node.target) != "aten.sum.dim_IntList" or source not in self._axis or not rest or not rest[0]:
            return None
        dims = {dim % len(node_shape(source)) for dim in rest[0]}
        if self._axis[source] not in dims or not meta_value(source).is_floating_point():
            return None
        return self._made.call_module("reduce", (self._copy_call(node, (self._own[source], *rest), None)[0],)), None

    def _split_embedding(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide an embedding table along its vectors."""
        if str(node.target) != "aten.embedding.default":
            return None
        weight, ids, *rest = node_arguments(node)
        fits = isinstance(weight, fx.Node) and weight.op == "get_attr" and isinstance(ids, fx.Node)
        if not fits or count_value_bytes(meta_value(weight)) < self._small or node_shape(weight)[1] % self._ways:
            return None
        return self._copy_call(
            node, (self.divided_tensor(weight, 1), self.whole_tensor(ids), *rest), len(node_shape(node)) - 1
        )

    def _split_getitem(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Take one of several divided tensors that an operation gave."""
        source = node_arguments(node)[0] if node_arguments(node) else None
        if getattr(node.target, "__name__", "") != "getitem" or source not in self._axis:
            return None
        return self._copy_call(node, (self._own[source], node_arguments(node)[1]), self._axis[source])

    def _split_size(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Take the size of a divided tensor, which is that of the whole one; only the batch's is not known before."""
        source, *dim = node_arguments(node) or (None,)
        if str(node.target) != "aten.sym_size.int" or source not in self._axis:
            return None
        if dim[0] == self._axis[source]:
            return None
        return self._copy_call(node, (self._own[source], dim[0]), None)

    def _split_multi_input(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide operations of several tensors that share an axis: pointwise, attention, normalisation, `cat`."""
        name = str(node.target)
        if name in POINTWISE:
            return self._split_pointwise(node)
        if name == "aten.batch_norm.default":
            return self._split_batch_norm(node)
        if name == "aten.scaled_dot_product_attention.default":
            return self._split_attention(node)
        return (
            self._split_joined(node)
            if name in ("aten.cat.default", "aten.matmul.default", "aten.bmm.default")
            else None
        )

    def _split_pointwise(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        tensors = [arg for arg in node.all_input_nodes if isinstance(meta_value(arg), Tensor)]
        ends = {self._axis[each] - len(node_shape(each)) for each in tensors if each in self._axis}
        if not ends:
            return None
        end = min(ends)  # counted from the last axis
        wide = node_shape(node)[end]
        if end == -1 and any(self._is_residual(each, node) for each in tensors):
            return None

        def own(arg: fx.Node) -> fx.Node:
            if not isinstance(meta_value(arg), Tensor) or len(node_shape(arg)) < -end or node_shape(arg)[end] != wide:
                return self.whole_tensor(arg)
            return self.divided_tensor(arg, len(node_shape(arg)) + end)

        made = self._made.node_copy(node, own)
        return made, len(node_shape(node)) + end

    def _is_residual(self, arg: fx.Node, node: fx.Node) -> bool:
        """Tell whether a tensor is a residual stream: whole on every rank and as large as the sum.

        The next normalisation wants it whole anyway.
        """
        return arg.op != "get_attr" and arg not in self._axis and node_shape(arg) == node_shape(node)

    def _split_batch_norm(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        x, *rest = node_arguments(node)
        if self._axis.get(x) != 1:
            return None
        own = [self.divided_tensor(arg, 0) if isinstance(arg, fx.Node) else arg for arg in rest]
        return self._copy_call(node, (self._own[x], *own), 1)

    def _split_attention(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide attention `[n, heads, length, width]` by heads, which do not depend on each other."""
        heads, mask = (
            node_arguments(node)[:3],
            node_arguments(node)[3] if len(node_arguments(node)) > 3 else node.kwargs.get("attn_mask"),
        )
        if {self._axis.get(each) for each in heads} != {1} or len(node_shape(heads[0])) != 4:
            return None
        if isinstance(mask, fx.Node) and len(node_shape(mask)) == 4 and node_shape(mask)[1] != 1:
            return None
        return self._made.node_copy(node, lambda arg: self._own[arg] if arg in heads else self.whole_tensor(arg)), 1

    def _split_joined(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide an operation whose tensors are all divided alike, along an axis that it does not work along."""
        tensors = node.all_input_nodes
        axes = {self._axis.get(each) for each in tensors}
        axis = next(iter(axes))
        ranks = {len(node_shape(each)) for each in tensors}
        if len(axes) != 1 or axis is None or len(ranks) != 1:
            return None
        ndim = ranks.pop()
        if str(node.target) == "aten.cat.default":
            dim = node_arguments(node)[1] if len(node_arguments(node)) > 1 else node.kwargs.get("dim", 0)
            busy = {dim % ndim} if isinstance(dim, int) else {axis}
        else:
            busy = {ndim - 1, ndim - 2}
        return None if axis in busy else (self._made.node_copy(node, lambda arg: self._own[arg]), axis)

    def _split_single_input(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide an operation of one divided tensor, with plain arguments or whole tensors beside it."""
        source = node_arguments(node)[0] if node_arguments(node) else None
        if not isinstance(source, fx.Node) or source not in self._axis:
            return None
        if any(arg in self._axis for arg in node.all_input_nodes if arg is not source):
            return None
        found = propagate_axis(node, self._axis[source], self._ways)
        if found is None:
            return None
        args, axis = found
        own = fx.map_arg(args, lambda arg: self._own[arg] if arg is source else self.whole_tensor(arg))
        made = self._made.call_function(
            _allow_reshape(node.target), own, fx.map_arg(dict(node.kwargs), self.whole_tensor)
        )
        return made, axis


def _allow_reshape(target: Any) -> Any:
    """Replace `view` by `reshape`, which copies where it has to: a view of a part need not be a view."""
    return torch.ops.aten.reshape.default if str(target) == "aten.view.default" else target


def add_bias(summed: Tensor, bias: Tensor, after: int) -> Tensor:
    """Add a bias per channel to `summed`, with `after` axes behind the channels."""
    return summed.add_(bias.reshape(-1, *[1] * after))
