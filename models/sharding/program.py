"""Programs of ranks: from a bundle's graphs to the graph that one rank of a stage runs.

Rule: every rank makes all of it from the same graphs, so all agree without any exchange; only the weights differ.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, fx, nn

from models.graph.format import HubModelDocument
from models.graph.module import HubGraphModule
from models.graph.shapes import annotate_graph, build_meta_graph, infer_values
from models.sharding.pipeline import PipelineSegment, cut_graph, weight_homes
from models.sharding.split import CollectiveCall, RankGraph, WeightPiece, add_bias, piece_attribute, split_graph

_TRIED_BATCH = 7  # a prime, so that the batch axis is not mistaken for a size of the model
_FIRST_GRAPH = "whole"  # is cut first: the other graphs follow its weights


class RankCollectives(Protocol):
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


class ParallelShape(NamedTuple):
    """Degrees of parallelism. `tensor`: ranks that share a stage; `pipeline`: stages one after another."""

    tensor: int = 1
    pipeline: int = 1


class ShardedPrograms(NamedTuple):
    """Programs of all ranks: by graph, its segments in order, and each of them divided."""

    blanks: dict[str, HubGraphModule]
    stretches: dict[str, list[PipelineSegment]]
    parts: dict[str, list[RankGraph]]

    def stage_pieces(self, stage: int) -> frozenset[WeightPiece]:
        """Return the pieces of weights that a rank of this stage needs, for all graphs."""
        return frozenset(piece for parts in self.parts.values() for piece in parts[stage].pieces)


def build_programs(form: HubModelDocument, shape: ParallelShape) -> ShardedPrograms:
    """Build the programs of a document. BundleError if the graphs are not made of allowed operations or do not fit."""
    blanks, stretches = {}, {}
    homes: dict[str, int] | None = None
    for name in sorted(form.graphs, key=lambda name: (name != _FIRST_GRAPH, name)):
        blanks[name] = build_meta_graph(form.graphs[name], form.weights)
        graph = annotate_graph(blanks[name], _TRIED_BATCH).graph
        stretches[name] = cut_graph(graph, shape.pipeline, homes)
        homes = {**weight_homes(stretches[name]), **(homes or {})}
    parts = {name: [split_graph(each.graph, shape.tensor) for each in found] for name, found in stretches.items()}
    return ShardedPrograms(blanks, stretches, parts)


def assemble_rank_graph(part: RankGraph, weights: Mapping[str, Tensor], meet: RankCollectives) -> fx.GraphModule:
    """Assemble the module of one rank: `graph(*takes)` -> tuple of what the segment gives. Call it below `no_grad`."""
    root = nn.Module()
    for piece in part.pieces:
        root.register_buffer(piece_attribute(piece), weights[piece_attribute(piece)])
    root.reduce, root.gather, root.take = (
        CollectiveCall(meet.reduce),
        CollectiveCall(meet.gather),
        CollectiveCall(meet.take),
    )
    root.shift = CollectiveCall(add_bias)
    return fx.GraphModule(root, part.graph, class_name="RankGraph").eval()


class StageValue(NamedTuple):
    """Value that a stage hands to the next: a tensor of this type and shape, or a number that all ranks know."""

    name: str
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    number: int = 0


def stage_values(served: HubGraphModule, names: tuple[str, ...], batch: int) -> tuple[StageValue, ...]:
    """Describe the values of these names for a batch of this size."""
    found = infer_values(served, batch)
    return tuple(_describe_value(name, found[name]) for name in names)


def _describe_value(name: str, value: object) -> StageValue:
    if isinstance(value, Tensor):
        return StageValue(name, value.dtype, tuple(value.shape))
    return StageValue(name, None, (), int(value))  # type: ignore[call-overload]
