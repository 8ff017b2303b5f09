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
from models.forge.partition.macs import count_node_macs, tensor_shape
from models.forge.partition.trace import TracedModel, trace_model

__all__ = ["Cut", "PreparedModel", "TracedModel", "find_cuts", "trace_model"]

_TENSORS = 3  # the most that one cut may send
_GAP = 0.15  # share of the work without a single-tensor cut, from which several tensors are considered
_MULTIPLE = 6  # cuts of several tensors in all
_PER_GAP = 2
_SIDE = 4  # a mask may be sent too if the features are at least this many times as large
_ALIVE = 12  # most live tensors: more cannot be reduced to three
_MOST_NAME = 64
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


class PreparedModel(NamedTuple):
    """A model and its data, checked, packed into one input and traced; `key`: digest of all of it and of the recipe."""

    data: Data
    traced: TracedModel
    cuts: tuple[Cut, ...]
    spec: Any
    data_digest: str
    weights_digest: str
    key: str


def find_cuts(traced: TracedModel, *, every: bool = False) -> tuple[Cut, ...]:
    """All split points by depth. Raises ForgeError if there is none.

    Of split points with the same work before them the smallest is kept (`every`: all of them): a view, an activation
    or a pooling costs nothing. Where no single tensor carries everything for a long stretch, up to three may.
    """
    places = list(_GraphLiveness(traced.gm).find_candidates())
    single = [place for place in places if place.main == 1]
    kept = single if every else list(_select_cheapest(single))
    kept += _select_multiple([place for place in places if place.main > 1], kept, traced.macs * len(traced.example))
    if not kept:
        raise ForgeError(
            "model: no valid cut: no point inside it has at most 3 tensors that carry all;"
            " try a model of two or more layers, without skips from its input to its end"
        )
    kept.sort(key=lambda place: (place.macs, place.order))
    return tuple(_name_cuts(kept, traced.macs * len(traced.example)))


class _SplitCandidate(NamedTuple):
    order: int
    nodes: tuple[fx.Node, ...]
    main: int  # how many of them are features; the rest are masks
    macs: int
    values: int


class _GraphLiveness:
    """Liveness analysis of a graph: which tensors are alive where, and what they are derived from."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._nodes = list(gm.graph.nodes)
        self._order = {node: i for i, node in enumerate(self._nodes)}
        self._macs = {node: count_node_macs(node) for node in self._nodes}
        self._total = sum(self._macs.values())
        self._source = source = next(node for node in self._nodes if node.op == "placeholder")
        self._batch = str(source.meta["val"].shape[0])
        self._fed: set[fx.Node] = {source}
        self._bare, self._raw = {source}, {source}
        self._origins: dict[fx.Node, frozenset[fx.Node] | None] = {source: None}
        for node in self._nodes:
            self._classify_node(node)
        looked_up = set(self._find_lookup_indices())
        for node in self._nodes:
            if node in self._fed and node is not source:
                self._origins[node] = self._find_mask_origins(node, looked_up)

    def find_candidates(self) -> Iterator[_SplitCandidate]:
        last = {node: max((self._order[user] for user in node.users), default=-1) for node in self._nodes}
        alive: set[fx.Node] = set()
        for i, node in enumerate(self._nodes):
            if node in self._fed and not _is_symbolic(node):
                alive.add(node)
            alive = {one for one in alive if last[one] > i}
            place = self._build_candidate(i, node, alive) if node in alive and len(alive) <= _ALIVE else None
            if place:
                yield place

    def _build_candidate(self, order: int, node: fx.Node, alive: set[fx.Node]) -> _SplitCandidate | None:
        if self._origins.get(node) is not None or not self._is_feature(node):
            return None
        sides: set[fx.Node] = set()
        features: list[fx.Node] = []
        for one in sorted(alive, key=self._order.__getitem__):
            origins = self._origins.get(one)
            sides |= origins or set()
            features += [one] if origins is None else []
        features = [one for one in features if not self._is_derivable(one, {*features, *sides} - {one})]
        ordered = sorted(sides, key=self._order.__getitem__)
        if not all(map(self._is_feature, features)) or not 0 < len(features) <= _TENSORS - len(ordered):
            return None
        values = [prod(tensor_shape(one)[1:]) for one in (*features, *ordered)]
        if sum(values[len(features) :]) * _SIDE > sum(values[: len(features)]):
            return None
        macs = sum(self._macs[one] for one in _find_ancestors(features))
        if not 0 < macs < self._total:
            return None
        return _SplitCandidate(order, (*features, *ordered), len(features), macs, sum(values))

    def _classify_node(self, node: fx.Node) -> None:
        parents = [parent for parent in node.all_input_nodes if parent in self._fed and not _is_symbolic(parent)]
        if not parents or _is_symbolic(node):
            return
        self._fed.add(node)
        bare = [parent in self._bare for parent in parents]
        if not self._macs[node] and (any(bare) if _operator_name(node) in _JOINS else all(bare)):
            self._bare.add(node)
        moved = _operator_name(node) in _VIEWS or _operator_name(node) in _CASTS or node.target is operator.getitem
        if moved and all(parent in self._raw for parent in parents):
            self._raw.add(node)

    def _is_feature(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or node in self._bare:
            return False
        return self._is_per_sample(node) and value.dim() >= 2

    def _is_per_sample(self, node: fx.Node) -> bool:
        """One row for each sample, all of one shape."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.dim() or str(value.shape[0]) != self._batch:
            return False
        return not any(isinstance(size, torch.SymInt) for size in value.shape[1:])

    def _find_lookup_indices(self) -> Iterator[fx.Node]:
        """Parts of the input that index an embedding table (words, categories).

        They are content, which no cut may send as a mask.
        """
        for node in self._nodes:
            for position in _LOOKUPS.get(_operator_name(node), ()):
                found = node.args[position] if position < len(node.args) else ()
                ends = [
                    one for one in (found if isinstance(found, list | tuple) else [found]) if isinstance(one, fx.Node)
                ]
                yield from (one for one in _find_ancestors(ends) if one in self._raw)

    def _find_mask_origins(self, node: fx.Node, looked_up: set[fx.Node]) -> frozenset[fx.Node] | None:
        """The masks that `node` can be computed from without any feature, or None.

        A mask: whole numbers cut out of a packed input, never used to look something up; or a boolean tensor.
        """
        parents = [parent for parent in node.all_input_nodes if parent in self._fed and not _is_symbolic(parent)]
        found = [self._origins.get(parent) for parent in parents]
        if all(one is not None for one in found):
            return frozenset().union(*(one for one in found if one is not None))
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.is_floating_point() or not self._is_per_sample(node):
            return None
        piece = node in self._raw and node not in looked_up and self._is_input_slice(node)
        return frozenset((node,)) if piece or value.dtype == torch.bool else None

    def _is_input_slice(self, node: fx.Node) -> bool:
        return prod(tensor_shape(node)) < prod(tensor_shape(self._source))

    def _is_derivable(self, node: fx.Node, others: set[fx.Node]) -> bool:
        """Whether the node can be recomputed from the others without any arithmetic that counts."""
        stack, seen = [node], set()
        while stack:
            one = stack.pop()
            if one.op == "placeholder" or self._macs[one]:
                return False
            fed = [parent for parent in one.all_input_nodes if parent in self._fed and not _is_symbolic(parent)]
            stack += [parent for parent in fed if parent not in others and parent not in seen]
            seen.update(fed)
        return True


def _find_ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    stack, seen = list(nodes), set(nodes)
    while stack:
        fresh = [parent for parent in stack.pop().all_input_nodes if parent not in seen]
        seen.update(fresh)
        stack += fresh
    return seen


def _select_cheapest(places: list[_SplitCandidate]) -> Iterator[_SplitCandidate]:
    """Of neighbours with equal work before them: the fewest values; then the last, unless it is but a view."""
    best: _SplitCandidate | None = None
    for place in places:
        if best is None or place.macs != best.macs:
            if best is not None:
                yield best
            best = place
        elif place.values < best.values or (place.values == best.values and not _is_view(place, best)):
            best = place
    if best is not None:
        yield best


def _is_view(place: _SplitCandidate, earlier: _SplitCandidate) -> bool:
    """Whether a place sends the same numbers as an earlier one, in other shapes."""
    return len(place.nodes) == len(earlier.nodes) and all(map(_is_view_of, place.nodes, earlier.nodes))


def _is_view_of(node: fx.Node, source: fx.Node) -> bool:
    while node is not source:
        if _operator_name(node) not in _VIEWS:
            return False
        node = node.all_input_nodes[0]
    return True


def _select_multiple(places: list[_SplitCandidate], single: list[_SplitCandidate], total: int) -> list[_SplitCandidate]:
    """Cuts of several tensors, only where they are the smallest so far and a single one is far."""
    edges = sorted({0, total, *(place.macs for place in single)})
    found: dict[tuple[fx.Node, ...], _SplitCandidate] = {}
    for low, high in pairwise(edges):
        before = min((place.values for place in single if place.macs <= low), default=None)
        inside = [p for p in places if low < p.macs < high and (before is None or p.values < before)]
        if high - low > _GAP * total:
            best = sorted(_select_cheapest(inside), key=lambda place: (place.values, place.order))[:_PER_GAP]
            found |= {place.nodes: place for place in best}
    return list(found.values())[:_MULTIPLE]


def _name_cuts(places: list[_SplitCandidate], total: int) -> Iterator[Cut]:
    taken: set[str] = set()
    for place in places:
        stem = name = _build_name(place)
        number = 1
        while name in taken:
            number += 1
            name = f"{stem[: _MOST_NAME - 4]}-{number}"
        taken.add(name)
        shapes = tuple(tensor_shape(node)[1:] for node in place.nodes)
        yield Cut(name, tuple(node.name for node in place.nodes), shapes, place.macs / total)


def _build_name(place: _SplitCandidate) -> str:
    """The user's own name of the module, then the operator: safe in a manifest, in a file name and in a URL."""
    node = place.nodes[place.main - 1]
    stack: Any = node.meta.get("nn_module_stack") or {}
    path = next((str(entry[0]) for entry in reversed(list(stack.values())) if entry[0]), "")
    made = node.all_input_nodes[0] if node.target is operator.getitem else node  # one of several that it answers
    text = (
        f"{path}.".removeprefix("model.")
        + (_operator_name(made) or node.name)
        + (f"-x{place.main}" if place.main > 1 else "")
    )
    return re.sub(r"[^a-z0-9_.-]+", "-", text.lower())[-_MOST_NAME:].strip("-_.")


def _operator_name(node: fx.Node) -> str:
    target = node.target
    return str(target.overloadpacket.__name__) if isinstance(target, torch._ops.OpOverload) else ""  # noqa: SLF001


def _is_symbolic(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)
