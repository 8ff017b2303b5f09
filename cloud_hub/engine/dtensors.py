"""Tensor parallelism by torch's DTensor: a plan says along which axis each weight is divided, torch finds the rest.

Rule: a key of the plan that matches no weight is an error (torch only warns). Slower than our own collectives, and it
runs what torch has sharding rules for; use it to try another division of a model without writing one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.functional import scaled_dot_product_attention

from cloud_hub.engine.pipe import Charter
from models.manifest import BundleError
from models.shard_run import Programs
from models.shard_split import Piece, attribute
from models.shard_stages import Stretch


class DTensors:
    """BundleError from `pieces` for a plan that does not fit the weights."""

    def __init__(self, told: Charter, group: dist.ProcessGroup, counts: "Counter[str]") -> None:
        self._counts = counts
        self._counted: set[int] = set()
        self._mesh = DeviceMesh.from_group(group, told.device.partition(":")[0])
        self._plan = told.shard
        self._ways = told.tensor
        self._pieces: dict[str, Piece] = {}

    def pieces(self, programs: Programs, stage: int) -> frozenset[Piece]:
        """As the plan says; where it is empty, as our own division would have it."""
        every = [each for stretches in programs.stretches.values() for each in stretches]
        check_plan(self._plan, {name for each in every for name in each.weights})
        linear = {name for each in every for name in _linear(each.graph)}
        own = {piece.name: piece for piece in programs.pieces(stage) if piece.axis is not None and piece.name in linear}
        names = {name for stretches in programs.stretches.values() for name in stretches[stage].weights}
        self._pieces = {name: self._piece(name, own) for name in names}
        return frozenset(self._pieces.values())

    def assemble(self, stretch: Stretch, held: Mapping[str, Tensor]) -> fx.GraphModule:
        root = nn.Module()
        for name in stretch.weights:
            piece = self._pieces[name]
            place: Placement = Replicate() if piece.axis is None else Shard(piece.axis)
            root.register_buffer(name, DTensor.from_local(held[attribute(piece)], self._mesh, [place], run_check=False))
        for node in list(stretch.graph.nodes):
            if str(node.target) in ("aten.view.default", "aten.reshape.default"):
                _settle(stretch.graph, node)
            elif str(node.target) == "aten.scaled_dot_product_attention.default" and self._mesh.device_type == "cpu":
                node.target = _attention
        return fx.GraphModule(root, stretch.graph, class_name="DTensorGraph").eval()

    def run(self, graph: fx.GraphModule, values: Sequence[Tensor | int]) -> Sequence[Tensor]:
        own = [
            DTensor.from_local(value, self._mesh, [Replicate()], run_check=False)
            if isinstance(value, Tensor)
            else value
            for value in values
        ]
        if id(graph) in self._counted:
            return [_full(made) for made in graph(*own)]
        self._counted.add(id(graph))  # the first batch's collectives are counted: torch decides on them, not we
        with CommDebugMode() as seen:  # type: ignore[no-untyped-call]
            outputs = [_full(made) for made in graph(*own)]
        for call, count in seen.get_comm_counts().items():
            self._counts[str(call).rpartition(".")[2]] += count
        return outputs

    def _piece(self, name: str, own: Mapping[str, Piece]) -> Piece:
        if not self._plan:
            return own.get(name, Piece(name, None))
        axes = {axis for pattern, axis in self._plan.items() if fnmatchcase(name, pattern)}
        if len(axes) > 1:
            raise BundleError(f"plan: weight {name} is matched twice, with different axes")
        return Piece(name, axes.pop() if axes else None)


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *rest: Any, **more: Any) -> Tensor:
    """By each rank on its own heads: torch looks for a rule of its fused one on a CPU by search, minutes a shape."""
    parts = [part for part in (q, k, v) if isinstance(part, DTensor)]
    if len(parts) < 3:
        return scaled_dot_product_attention(q, k, v, mask, *rest, **more)
    own = parts[0].placements
    shared = mask is None or mask.ndim < 4 or mask.shape[1] == 1
    if any(part.placements != own for part in parts) or own[0] != Shard(1) or not shared:
        own = (Replicate(),)
        parts = [part.redistribute(placements=own) for part in parts]
    plain = _full(mask) if mask is not None else None
    attend: Any = scaled_dot_product_attention
    made: Tensor = attend(*(part.to_local() for part in parts), plain, *rest, **more)
    return DTensor.from_local(made.contiguous(), parts[0].device_mesh, own, run_check=False)


def _settle(graph: fx.Graph, node: fx.Node) -> None:
    """A view that suits the whole tensor need not suit a part of it, and torch asks the whole alone."""
    with graph.inserting_before(node):
        plain = graph.call_function(
            torch.ops.aten.clone.default, (node.args[0],), {"memory_format": torch.contiguous_format}
        )
    node.args = (plain, *node.args[1:])


def _linear(graph: fx.Graph) -> set[str]:
    """Weights that torch can divide: it has no rule for a convolution's channels."""
    layers = [node for node in graph.nodes if str(node.target) in ("aten.linear.default", "aten.embedding.default")]
    return {str(source.target) for node in layers for source in node.all_input_nodes if source.op == "get_attr"}


def _full(made: Tensor) -> Tensor:
    return made.full_tensor() if isinstance(made, DTensor) else made


def check_plan(plan: Mapping[str, int], names: set[str]) -> None:
    """BundleError naming the first key that matches no weight."""
    for pattern in plan:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BundleError(f"plan: {pattern!r} matches no weight")
