"""Split points of a traced model: every place where few tensors carry all that the rest of the network needs.

Rule: a cut never sends the raw input, however renamed: each of its tensors is the work of a convolution, a linear
layer or the like. Skip connections, tuples and masks are respected by a liveness analysis of the graph, never by an
architecture's name.
"""

import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx

from models.forge.data.types import Data, ForgeError
from models.forge.partition.macs import multiplies, sizes
from models.forge.partition.trace import Traced, trace

__all__ = ["Cut", "Given", "Traced", "find_cuts", "trace"]

_TENSORS = 3  # the most that one cut may send
_GAP = 0.15  # share of the work without a single-tensor cut, from which several tensors are considered
_MULTIPLE = 6  # cuts of several tensors in all
_PER_GAP = 2
_SIDE = 4  # a mask may be sent too if the features are at least this many times as large
_ALIVE = 12  # most live tensors: more cannot be reduced to three
_NAME = 64
_VIEWS = frozenset(
    (
        *(
            "view",
            "reshape",
            "_unsafe_view",
            "flatten",
            "unflatten",
            "squeeze",
            "unsqueeze",
            "expand",
            "alias",
            "detach",
        ),
        *("transpose", "permute", "t", "movedim", "swapaxes", "contiguous", "clone", "lift_fresh_copy"),
        *("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind"),
    )
)
_CASTS = frozenset(("_to_copy", "to", "type_as", "float", "long"))
_JOINS = frozenset(("cat", "stack", "concat"))
_LOOKUPS: Mapping[str, tuple[int, ...]] = {  # operator: which of its arguments are places in a table
    "embedding": (1,),
    "embedding_bag": (1,),
    "gather": (2,),
    "index": (1,),
    "index_select": (2,),
    "one_hot": (0,),
    "take": (1,),
}


class Cut(NamedTuple):
    """A split point of a model.

    `nodes`: the graph's nodes that are sent; `shapes` of one sample each; `share` of the work that comes before, 0..1.
    """

    name: str
    nodes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    share: float

    @property
    def values(self) -> int:
        """Numbers sent per sample."""
        return sum(prod(shape) for shape in self.shapes)


class Given(NamedTuple):
    """A model and its data, checked, packed into one input and traced; `key`: digest of all of it and of the recipe."""

    data: Data
    traced: Traced
    cuts: tuple[Cut, ...]
    spec: Any
    data_digest: str
    weights_digest: str
    key: str


def find_cuts(traced: Traced, *, every: bool = False) -> tuple[Cut, ...]:
    """All split points by depth. Raises ForgeError if there is none.

    Of split points with the same work before them the smallest is kept (`every`: all of them): a view, an activation
    or a pooling costs nothing. Where no single tensor carries everything for a long stretch, up to three may.
    """
    places = list(_Flow(traced.gm).places())
    single = [place for place in places if place.main == 1]
    kept = single if every else list(_cheapest(single))
    kept += _multiple([place for place in places if place.main > 1], kept, traced.macs * len(traced.example))
    if not kept:
        raise ForgeError(
            "model: no valid cut: no point inside it has at most 3 tensors that carry all;"
            " try a model of two or more layers, without skips from its input to its end"
        )
    kept.sort(key=lambda place: (place.macs, place.order))
    return tuple(_named(kept, traced.macs * len(traced.example)))


class _Place(NamedTuple):
    order: int
    nodes: tuple[fx.Node, ...]
    main: int  # how many of them are features; the rest are masks
    macs: int
    values: int


class _Flow:
    """Liveness analysis of a graph: which tensors are alive where, and what they are derived from."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._nodes = list(gm.graph.nodes)
        self._order = {node: i for i, node in enumerate(self._nodes)}
        self._macs = {node: multiplies(node) for node in self._nodes}
        self._total = sum(self._macs.values())
        self._source = source = next(node for node in self._nodes if node.op == "placeholder")
        self._batch = str(source.meta["val"].shape[0])
        self._fed: set[fx.Node] = {source}
        self._bare, self._raw = {source}, {source}
        self._origins: dict[fx.Node, frozenset[fx.Node] | None] = {source: None}
        for node in self._nodes:
            self._learn(node)
        looked_up = set(self._looked_up())
        for node in self._nodes:
            if node in self._fed and node is not source:
                self._origins[node] = self._origin(node, looked_up)

    def places(self) -> Iterator[_Place]:
        last = {node: max((self._order[user] for user in node.users), default=-1) for node in self._nodes}
        alive: set[fx.Node] = set()
        for i, node in enumerate(self._nodes):
            if node in self._fed and not _symbolic(node):
                alive.add(node)
            alive = {one for one in alive if last[one] > i}
            place = self._place(i, node, alive) if node in alive and len(alive) <= _ALIVE else None
            if place:
                yield place

    def _place(self, order: int, node: fx.Node, alive: set[fx.Node]) -> _Place | None:
        if self._origins.get(node) is not None or not self._feature(node):
            return None
        sides: set[fx.Node] = set()
        features: list[fx.Node] = []
        for one in sorted(alive, key=self._order.__getitem__):
            origins = self._origins.get(one)
            sides |= origins or set()
            features += [one] if origins is None else []
        features = [one for one in features if not self._derived(one, {*features, *sides} - {one})]
        ordered = sorted(sides, key=self._order.__getitem__)
        if not all(map(self._feature, features)) or not 0 < len(features) <= _TENSORS - len(ordered):
            return None
        values = [prod(sizes(one)[1:]) for one in (*features, *ordered)]
        if sum(values[len(features) :]) * _SIDE > sum(values[: len(features)]):
            return None
        macs = sum(self._macs[one] for one in _ancestors(features))
        if not 0 < macs < self._total:
            return None
        return _Place(order, (*features, *ordered), len(features), macs, sum(values))

    def _learn(self, node: fx.Node) -> None:
        parents = [parent for parent in node.all_input_nodes if parent in self._fed and not _symbolic(parent)]
        if not parents or _symbolic(node):
            return
        self._fed.add(node)
        bare = [parent in self._bare for parent in parents]
        if not self._macs[node] and (any(bare) if _kind(node) in _JOINS else all(bare)):
            self._bare.add(node)
        moved = _kind(node) in _VIEWS or _kind(node) in _CASTS or node.target is operator.getitem
        if moved and all(parent in self._raw for parent in parents):
            self._raw.add(node)

    def _feature(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or node in self._bare:
            return False
        return self._rows(node) and value.dim() >= 2

    def _rows(self, node: fx.Node) -> bool:
        """One row for each sample, all of one shape."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.dim() or str(value.shape[0]) != self._batch:
            return False
        return not any(isinstance(size, torch.SymInt) for size in value.shape[1:])

    def _looked_up(self) -> Iterator[fx.Node]:
        """Parts of the input that index an embedding table (words, categories).

        They are content, which no cut may send as a mask.
        """
        for node in self._nodes:
            for position in _LOOKUPS.get(_kind(node), ()):
                found = node.args[position] if position < len(node.args) else ()
                ends = [
                    one for one in (found if isinstance(found, list | tuple) else [found]) if isinstance(one, fx.Node)
                ]
                yield from (one for one in _ancestors(ends) if one in self._raw)

    def _origin(self, node: fx.Node, looked_up: set[fx.Node]) -> frozenset[fx.Node] | None:
        """The masks that `node` can be computed from without any feature, or None.

        A mask: whole numbers cut out of a packed input, never used to look something up; or a boolean tensor.
        """
        parents = [parent for parent in node.all_input_nodes if parent in self._fed and not _symbolic(parent)]
        found = [self._origins.get(parent) for parent in parents]
        if all(one is not None for one in found):
            return frozenset().union(*(one for one in found if one is not None))
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.is_floating_point() or not self._rows(node):
            return None
        piece = node in self._raw and node not in looked_up and self._cut_out(node)
        return frozenset((node,)) if piece or value.dtype == torch.bool else None

    def _cut_out(self, node: fx.Node) -> bool:
        return prod(sizes(node)) < prod(sizes(self._source))

    def _derived(self, node: fx.Node, others: set[fx.Node]) -> bool:
        """Whether the node can be recomputed from the others without any arithmetic that counts."""
        stack, seen = [node], set()
        while stack:
            one = stack.pop()
            if one.op == "placeholder" or self._macs[one]:
                return False
            fed = [parent for parent in one.all_input_nodes if parent in self._fed and not _symbolic(parent)]
            stack += [parent for parent in fed if parent not in others and parent not in seen]
            seen.update(fed)
        return True


def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    stack, seen = list(nodes), set(nodes)
    while stack:
        fresh = [parent for parent in stack.pop().all_input_nodes if parent not in seen]
        seen.update(fresh)
        stack += fresh
    return seen


def _cheapest(places: list[_Place]) -> Iterator[_Place]:
    """Of neighbours with equal work before them: the fewest values; then the last, unless it is but a view."""
    best: _Place | None = None
    for place in places:
        if best is None or place.macs != best.macs:
            if best is not None:
                yield best
            best = place
        elif place.values < best.values or (place.values == best.values and not _viewed(place, best)):
            best = place
    if best is not None:
        yield best


def _viewed(place: _Place, earlier: _Place) -> bool:
    """Whether a place sends the same numbers as an earlier one, in other shapes."""
    return len(place.nodes) == len(earlier.nodes) and all(map(_view_of, place.nodes, earlier.nodes))


def _view_of(node: fx.Node, source: fx.Node) -> bool:
    while node is not source:
        if _kind(node) not in _VIEWS:
            return False
        node = node.all_input_nodes[0]
    return True


def _multiple(places: list[_Place], single: list[_Place], total: int) -> list[_Place]:
    """Cuts of several tensors, only where they are the smallest so far and a single one is far."""
    edges = sorted({0, total, *(place.macs for place in single)})
    found: dict[tuple[fx.Node, ...], _Place] = {}
    for low, high in pairwise(edges):
        before = min((place.values for place in single if place.macs <= low), default=None)
        inside = [p for p in places if low < p.macs < high and (before is None or p.values < before)]
        if high - low > _GAP * total:
            best = sorted(_cheapest(inside), key=lambda place: (place.values, place.order))[:_PER_GAP]
            found |= {place.nodes: place for place in best}
    return list(found.values())[:_MULTIPLE]


def _named(places: list[_Place], total: int) -> Iterator[Cut]:
    taken: set[str] = set()
    for place in places:
        stem = name = _name(place)
        number = 1
        while name in taken:
            number += 1
            name = f"{stem[: _NAME - 4]}-{number}"
        taken.add(name)
        shapes = tuple(sizes(node)[1:] for node in place.nodes)
        yield Cut(name, tuple(node.name for node in place.nodes), shapes, place.macs / total)


def _name(place: _Place) -> str:
    """The user's own name of the module, then the operator: safe in a manifest, in a file name and in a URL."""
    node = place.nodes[place.main - 1]
    stack: Any = node.meta.get("nn_module_stack") or {}
    path = next((str(entry[0]) for entry in reversed(list(stack.values())) if entry[0]), "")
    made = node.all_input_nodes[0] if node.target is operator.getitem else node  # one of several that it answers
    text = (
        f"{path}.".removeprefix("model.") + (_kind(made) or node.name) + (f"-x{place.main}" if place.main > 1 else "")
    )
    return re.sub(r"[^a-z0-9_.-]+", "-", text.lower())[-_NAME:].strip("-_.")


def _kind(node: fx.Node) -> str:
    target = node.target
    return str(target.overloadpacket.__name__) if isinstance(target, torch._ops.OpOverload) else ""  # noqa: SLF001


def _symbolic(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)
