"""Tensor parallelism: a graph as one of `ways` ranks runs it, large weights divided and collectives where ranks meet.

Rule: every rank runs the same nodes in the same order. A tensor is either whole on every rank or divided along one
axis; where no rule carries the axis on, it is gathered first. Column- and row-parallel layers: Shoeybi et al. 2019
(Megatron-LM); the same by output and input channels for convolutions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from models.graph.shapes import like, nbytes, shape
from models.sharding.rules import POINTWISE, arguments, passed

SMALL_BYTES = (1 << 14, 1 << 16)  # a weight below is kept whole: meeting would cost more than it saves
_SMALL_SHARE = 256  # of all weights, between these bounds
_CONVOLUTIONS = {f"aten.conv{n}d.{kind}": n for n in (1, 2, 3) for kind in ("default", "padding")}
_LAYERS = {"aten.linear.default", *_CONVOLUTIONS}


class Piece(NamedTuple):
    """Weight as one rank holds it: `axis` None = the whole of it."""

    name: str
    axis: int | None


class Meeting(nn.Module):
    """Module that calls a collective; stands in the graph as `reduce`, `gather` and `take`."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor, *axis: int) -> Tensor:
        return self.call(x, *axis)


class Part(NamedTuple):
    """Graph of one rank; needs `reduce`, `gather`, `take` and every piece (by `attribute`) before it can run."""

    graph: fx.Graph
    pieces: frozenset[Piece]


def attribute(piece: Piece) -> str:
    """Return the attribute name of a piece in a rank's module."""
    return piece.name if piece.axis is None else f"{piece.name}_{piece.axis}"


def split(source: fx.Graph, ways: int) -> Part:
    """Divide a graph among `ways` ranks.

    `source`: its nodes carry their inferred values (`models.graph.shapes.noted`).
    """
    whole = sum(nbytes(like(node)) for node in source.nodes if node.op == "get_attr")
    least, most = SMALL_BYTES
    return _Splitter(ways, max(least, min(most, whole // _SMALL_SHARE))).run(source)


class _Splitter:
    """Splitter of one graph: keeps for every node what this rank has, and along which axis it is divided."""

    def __init__(self, ways: int, small_bytes: int) -> None:
        self._ways = ways
        self._small = small_bytes
        self._made = fx.Graph()
        self._own: dict[fx.Node, fx.Node] = {}  # the node of this rank's graph
        self._axis: dict[fx.Node, int] = {}  # of what is divided
        self._whole: dict[fx.Node, fx.Node] = {}
        self._taken: dict[tuple[fx.Node, int], fx.Node] = {}
        self._pieces: set[Piece] = set()

    def run(self, source: fx.Graph) -> Part:
        """Divide every node of the graph in order and return this rank's graph with the pieces it needs."""
        for node in source.nodes:
            if node.op == "output":
                self._made.output(fx.map_arg(arguments(node)[0], self.whole))
            elif node.op != "get_attr":
                self._add(node)
        self._made.lint()
        return Part(self._made, frozenset(self._pieces))

    # -- what a rule may ask for

    def whole(self, node: fx.Node) -> fx.Node:
        """Return the tensor as it is whole on every rank, gathered once if it is divided."""
        if node.op == "get_attr":
            return self._weight(node, None)
        if node not in self._axis:
            return self._own[node]
        if node not in self._whole:
            self._whole[node] = self._made.call_module("gather", (self._own[node], self._axis[node]))
        return self._whole[node]

    def divided(self, node: fx.Node, axis: int) -> fx.Node:
        """Return this rank's part of the tensor along `axis`."""
        if node.op == "get_attr":
            return self._weight(node, axis)
        if self._axis.get(node) == axis:
            return self._own[node]
        if (node, axis) not in self._taken:
            self._taken[node, axis] = self._made.call_module("take", (self.whole(node), axis))
        return self._taken[node, axis]

    def _weight(self, node: fx.Node, axis: int | None) -> fx.Node:
        piece = Piece(str(node.target), axis)
        self._pieces.add(piece)
        return self._made.create_node("get_attr", attribute(piece))

    # -- nodes

    def _add(self, node: fx.Node) -> None:
        made = None
        if node.op == "call_function" and self._ways > 1:
            made = self._layer(node) or self._table(node) or self._item(node) or self._size(node)
            made = made or self._many(node) or self._single(node)
        if made is None:
            self._own[node] = self._made.node_copy(node, self.whole)
            return
        self._own[node], axis = made
        if axis is not None:
            self._axis[node] = axis

    def _call(self, node: fx.Node, args: Any, axis: int | None) -> tuple[fx.Node, int | None]:
        target: Any = node.target
        own = self._made.call_function(target, args, dict(node.kwargs))
        return own, axis

    def _layer(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide `linear` and convolutions by columns, or by rows where the input is divided already."""
        name, x, weight = str(node.target), *(*arguments(node), None, None)[:2]
        if name not in _LAYERS or not isinstance(weight, fx.Node) or weight.op != "get_attr" or node.kwargs:
            return None
        groups = arguments(node)[6] if name in _CONVOLUTIONS and len(arguments(node)) > 6 else 1
        if groups != 1 or not isinstance(x, fx.Node):
            return None
        channel = len(shape(x)) - (1 if name not in _CONVOLUTIONS else 1 + _CONVOLUTIONS[name])
        rows, columns = shape(weight)[1], shape(weight)[0]
        large = nbytes(like(weight)) >= self._small
        if self._axis.get(x) == channel and rows % self._ways == 0:
            return self._by_rows(node, channel), None
        if large and columns % self._ways == 0:
            return self._by_columns(node, channel)
        return (self._by_rows(node, channel), None) if large and rows % self._ways == 0 else None

    def _by_columns(self, node: fx.Node, channel: int) -> tuple[fx.Node, int | None]:
        x, weight, *rest = arguments(node)
        bias = rest[0] if rest else None
        pieces = [self.whole(x), self.divided(weight, 0), self.divided(bias, 0) if bias else None]
        return self._call(node, (*pieces, *rest[1:]), channel)

    def _by_rows(self, node: fx.Node, channel: int) -> fx.Node:
        """Divide by rows: every rank adds up its share of the inputs, then all ranks reduce. The bias is added once."""
        x, weight, *rest = arguments(node)
        bias = rest[0] if rest else None
        pieces = (self.divided(x, channel), self.divided(weight, 1), None, *rest[1:])
        summed = self._made.call_module("reduce", (self._call(node, pieces, None)[0],))
        if bias is None:
            return summed
        after = len(shape(node)) - 1 - channel
        return self._made.call_module("shift", (summed, self.whole(bias), after))

    def _table(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide an embedding table along its vectors."""
        if str(node.target) != "aten.embedding.default":
            return None
        weight, ids, *rest = arguments(node)
        fits = isinstance(weight, fx.Node) and weight.op == "get_attr" and isinstance(ids, fx.Node)
        if not fits or nbytes(like(weight)) < self._small or shape(weight)[1] % self._ways:
            return None
        return self._call(node, (self.divided(weight, 1), self.whole(ids), *rest), len(shape(node)) - 1)

    def _item(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Take one of several divided tensors that an operation gave."""
        source = arguments(node)[0] if arguments(node) else None
        if getattr(node.target, "__name__", "") != "getitem" or source not in self._axis:
            return None
        return self._call(node, (self._own[source], arguments(node)[1]), self._axis[source])

    def _size(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Take the size of a divided tensor, which is that of the whole one; only the batch's is not known before."""
        source, *dim = arguments(node) or (None,)
        if str(node.target) != "aten.sym_size.int" or source not in self._axis:
            return None
        if dim[0] == self._axis[source]:
            return None
        return self._call(node, (self._own[source], dim[0]), None)

    def _many(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide operations of several tensors that share an axis: pointwise, attention, normalisation, `cat`."""
        name = str(node.target)
        if name in POINTWISE:
            return self._pointwise(node)
        if name == "aten.batch_norm.default":
            return self._batch_norm(node)
        if name == "aten.scaled_dot_product_attention.default":
            return self._attention(node)
        return self._joined(node) if name in ("aten.cat.default", "aten.matmul.default", "aten.bmm.default") else None

    def _pointwise(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        tensors = [arg for arg in node.all_input_nodes if isinstance(like(arg), Tensor)]
        ends = {self._axis[each] - len(shape(each)) for each in tensors if each in self._axis}
        if not ends:
            return None
        end = min(ends)  # counted from the last axis
        wide = shape(node)[end]
        if end == -1 and any(self._is_stream(each, node) for each in tensors):
            return None

        def own(arg: fx.Node) -> fx.Node:
            if not isinstance(like(arg), Tensor) or len(shape(arg)) < -end or shape(arg)[end] != wide:
                return self.whole(arg)
            return self.divided(arg, len(shape(arg)) + end)

        made = self._made.node_copy(node, own)
        return made, len(shape(node)) + end

    def _is_stream(self, arg: fx.Node, node: fx.Node) -> bool:
        """Tell whether a tensor is a residual stream: whole on every rank and as large as the sum.

        The next normalisation wants it whole anyway.
        """
        return arg.op != "get_attr" and arg not in self._axis and shape(arg) == shape(node)

    def _batch_norm(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        x, *rest = arguments(node)
        if self._axis.get(x) != 1:
            return None
        own = [self.divided(arg, 0) if isinstance(arg, fx.Node) else arg for arg in rest]
        return self._call(node, (self._own[x], *own), 1)

    def _attention(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide attention `[n, heads, length, width]` by heads, which do not depend on each other."""
        heads, mask = (
            arguments(node)[:3],
            arguments(node)[3] if len(arguments(node)) > 3 else node.kwargs.get("attn_mask"),
        )
        if {self._axis.get(each) for each in heads} != {1} or len(shape(heads[0])) != 4:
            return None
        if isinstance(mask, fx.Node) and len(shape(mask)) == 4 and shape(mask)[1] != 1:
            return None
        return self._made.node_copy(node, lambda arg: self._own[arg] if arg in heads else self.whole(arg)), 1

    def _joined(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide an operation whose tensors are all divided alike, along an axis that it does not work along."""
        tensors = node.all_input_nodes
        axes = {self._axis.get(each) for each in tensors}
        axis = next(iter(axes))
        ranks = {len(shape(each)) for each in tensors}
        if len(axes) != 1 or axis is None or len(ranks) != 1:
            return None
        ndim = ranks.pop()
        if str(node.target) == "aten.cat.default":
            dim = arguments(node)[1] if len(arguments(node)) > 1 else node.kwargs.get("dim", 0)
            busy = {dim % ndim} if isinstance(dim, int) else {axis}
        else:
            busy = {ndim - 1, ndim - 2}
        return None if axis in busy else (self._made.node_copy(node, lambda arg: self._own[arg]), axis)

    def _single(self, node: fx.Node) -> tuple[fx.Node, int | None] | None:
        """Divide an operation of one divided tensor, with plain arguments or whole tensors beside it."""
        source = arguments(node)[0] if arguments(node) else None
        if not isinstance(source, fx.Node) or source not in self._axis:
            return None
        if any(arg in self._axis for arg in node.all_input_nodes if arg is not source):
            return None
        found = passed(node, self._axis[source], self._ways)
        if found is None:
            return None
        args, axis = found
        own = fx.map_arg(args, lambda arg: self._own[arg] if arg is source else self.whole(arg))
        made = self._made.call_function(_roomy(node.target), own, fx.map_arg(dict(node.kwargs), self.whole))
        return made, axis


def _roomy(target: Any) -> Any:
    """Replace `view` by `reshape`, which copies where it has to: a view of a part need not be a view."""
    return torch.ops.aten.reshape.default if str(target) == "aten.view.default" else target


def bias_of(summed: Tensor, bias: Tensor, after: int) -> Tensor:
    """Add a bias per channel to `summed`, with `after` axes behind the channels."""
    return summed.add_(bias.reshape(-1, *[1] * after))
