"""Programs of ranks: from a bundle's graphs to the graph that one rank of a stage runs.

Rule: every rank makes all of it from the same graphs, so all agree without any exchange; only the weights differ.
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

_TRIED_BATCH = 7  # a prime, so that the batch axis is not mistaken for a size of the model
_FIRST = "whole"  # is cut first: the other graphs follow its weights


class Meet(Protocol):
    """Interface of the collectives among the ranks of one stage. Each takes and gives tensors of this rank."""

    def reduce(self, x: Tensor) -> Tensor:
        """Add up the tensors of all ranks (all-reduce)."""
        ...

    def gather(self, x: Tensor, axis: int) -> Tensor:
        """Join the parts of all ranks along an axis (all-gather)."""
        ...

    def take(self, x: Tensor, axis: int) -> Tensor:
        """Return this rank's part of a whole tensor along an axis."""
        ...


class Shape(NamedTuple):
    """Degrees of parallelism. `tensor`: ranks that share a stage; `pipeline`: stages one after another."""

    tensor: int = 1
    pipeline: int = 1


class Programs(NamedTuple):
    """Programs of all ranks: by graph, its segments in order, and each of them divided."""

    blanks: dict[str, Served]
    stretches: dict[str, list[Stretch]]
    parts: dict[str, list[Part]]

    def pieces(self, stage: int) -> frozenset[Piece]:
        """Return the pieces of weights that a rank of this stage needs, for all graphs."""
        return frozenset(piece for parts in self.parts.values() for piece in parts[stage].pieces)


def programs(form: HubForm, shape: Shape) -> Programs:
    """Build the programs of a document. BundleError if the graphs are not made of allowed operations or do not fit."""
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
    """Assemble the module of one rank: `graph(*takes)` -> tuple of what the segment gives. Call it below `no_grad`."""
    root = nn.Module()
    for piece in part.pieces:
        root.register_buffer(attribute(piece), weights[attribute(piece)])
    root.reduce, root.gather, root.take = Meeting(meet.reduce), Meeting(meet.gather), Meeting(meet.take)
    root.shift = Meeting(bias_of)
    return fx.GraphModule(root, part.graph, class_name="RankGraph").eval()


class Edge(NamedTuple):
    """Value that a stage hands to the next: a tensor of this type and shape, or a number that all ranks know."""

    name: str
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    number: int = 0


def edges(served: Served, names: tuple[str, ...], batch: int) -> tuple[Edge, ...]:
    """Describe the values of these names for a batch of this size."""
    found = shapes(served, batch)
    return tuple(_edge(name, found[name]) for name in names)


def _edge(name: str, value: object) -> Edge:
    if isinstance(value, Tensor):
        return Edge(name, value.dtype, tuple(value.shape))
    return Edge(name, None, (), int(value))  # type: ignore[call-overload]
