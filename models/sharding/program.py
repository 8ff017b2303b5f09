"""From a bundle's graphs to what one rank of a gang runs: the stretch of its stage, divided among the stage's ranks.

Law: every rank makes all of it from the same graphs, so all agree without a word; only the weights differ.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, fx, nn

from models.graph.format import HubForm
from models.graph.module import Served
from models.graph.shapes import blank, noted, shapes
from models.sharding.pipeline import Stretch, cut, homes_of
from models.sharding.split import Meeting, Part, Piece, attribute, bias_of, split

_TRIED_BATCH = 7  # an odd one: what divides it is no size of a model's
_FIRST = "whole"  # is cut first: the other graphs follow its weights


class Meet(Protocol):
    """What ranks of one stage do together. Each takes and gives tensors of this rank."""

    def reduce(self, x: Tensor) -> Tensor: ...

    def gather(self, x: Tensor, axis: int) -> Tensor: ...

    def take(self, x: Tensor, axis: int) -> Tensor: ...


class Shape(NamedTuple):
    """`tensor`: ranks that share a stage; `pipeline`: stages one after another."""

    tensor: int = 1
    pipeline: int = 1


class Programs(NamedTuple):
    """By graph: its stretches in order, and each of them divided."""

    blanks: dict[str, Served]
    stretches: dict[str, list[Stretch]]
    parts: dict[str, list[Part]]

    def pieces(self, stage: int) -> frozenset[Piece]:
        """What a rank of this stage needs of the weights, for all graphs."""
        return frozenset(piece for parts in self.parts.values() for piece in parts[stage].pieces)


def programs(form: HubForm, shape: Shape) -> Programs:
    """BundleError if the graphs are not made of allowed operations or do not fit together."""
    blanks, stretches = {}, {}
    homes: dict[str, int] | None = None
    for name in sorted(form.graphs, key=lambda name: (name != _FIRST, name)):
        blanks[name] = blank(form.graphs[name], form.weights)
        graph = noted(blanks[name], _TRIED_BATCH).graph
        stretches[name] = cut(graph, shape.pipeline, homes)
        homes = {**homes_of(stretches[name]), **(homes or {})}
    parts = {name: [split(each.graph, shape.tensor) for each in found] for name, found in stretches.items()}
    return Programs(blanks, stretches, parts)


def assemble(part: Part, weights: Mapping[str, Tensor], meet: Meet) -> fx.GraphModule:
    """`graph(*takes)` -> tuple of what the stretch gives. No gradients; call it below `no_grad`."""
    root = nn.Module()
    for piece in part.pieces:
        root.register_buffer(attribute(piece), weights[attribute(piece)])
    root.reduce, root.gather, root.take = Meeting(meet.reduce), Meeting(meet.gather), Meeting(meet.take)
    root.shift = Meeting(bias_of)
    return fx.GraphModule(root, part.graph, class_name="RankGraph").eval()


class Edge(NamedTuple):
    """One value that a stage hands to the next: a tensor of this type and shape, or a number that all know."""

    name: str
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    number: int = 0


def edges(served: Served, names: tuple[str, ...], batch: int) -> tuple[Edge, ...]:
    """What the values of these names are for a batch of this size."""
    found = shapes(served, batch)
    return tuple(_edge(name, found[name]) for name in names)


def _edge(name: str, value: object) -> Edge:
    if isinstance(value, Tensor):
        return Edge(name, value.dtype, tuple(value.shape))
    return Edge(name, None, (), int(value))  # type: ignore[call-overload]
