"""One rank's stretch of every graph, with its pieces of the weights in place.

Rule: what a batch hands on has the same shape whenever the batch has: it is worked out once per bucket.

What the ranks of one stage do together, on torch.distributed: gloo on CPUs, nccl on graphics cards.

Rule: every collective is counted, and none waits longer than the group's explicit timeout.
"""

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, fx

from cloud_hub.engine.sharded.protocol import Charter
from models.bundle.manifest import BundleError
from models.graph.format import HubForm
from models.sharding.program import Edge, Shape, assemble, edges, programs
from models.sharding.weights import Share, read_pieces


class GroupMeet:
    """`models.sharding.program.Meet` among the ranks of `group`."""

    def __init__(self, group: dist.ProcessGroup, at: int, ways: int) -> None:
        self._group = group
        self._at = at
        self._ways = ways
        self.counts: Counter[str] = Counter()

    def reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks, in place where that can be."""
        self.counts["all_reduce"] += 1
        whole = x.contiguous()
        dist.all_reduce(whole, group=self._group)
        return whole

    def gather(self, x: Tensor, axis: int) -> Tensor:
        self.counts["all_gather"] += 1
        own = x.contiguous()
        parts = [torch.empty_like(own) for _ in range(self._ways)]
        dist.all_gather(parts, own, group=self._group)
        return torch.cat(parts, axis)

    def take(self, x: Tensor, axis: int) -> Tensor:
        """The part of this rank of what all have: nobody is asked."""
        each = x.shape[axis] // self._ways
        return x.narrow(axis, self._at * each, each).contiguous()


class Stage:
    def __init__(self, form: HubForm, files: Sequence[str], told: Charter, group: dist.ProcessGroup) -> None:
        shape = Shape(told.tensor, told.pipeline)
        self._at = told.rank // told.tensor
        self._programs = programs(form, shape)
        self._edges: dict[tuple[str, int], tuple[tuple[Edge, ...], tuple[Edge, ...]]] = {}
        share = Share(told.rank % told.tensor, told.tensor)
        meet = GroupMeet(group, *share)
        self.counts: Counter[str] = meet.counts
        held = read_pieces(files, form.weights, self._programs.pieces(self._at), share)
        held = {name: _placed(tensor, told) for name, tensor in held.items()}
        self.shard_bytes = sum(tensor.nbytes for tensor in held.values())
        parts = self._programs.parts
        self._graphs: dict[str, fx.GraphModule] = {
            name: assemble(each[self._at], held, meet) for name, each in parts.items()
        }

    def edges(self, graph: str, batch: int) -> tuple[tuple[Edge, ...], tuple[Edge, ...]]:
        """What is taken from the stage before and given to the next, for a batch of this size."""
        if graph not in self._graphs:
            raise BundleError(f"graphs: there is no {graph!r}")
        if len(self._programs.stretches[graph]) == 1:
            return (), ()
        if (graph, batch) not in self._edges:
            served, own = self._programs.blanks[graph], self._programs.stretches[graph][self._at]
            self._edges[graph, batch] = edges(served, own.takes, batch), edges(served, own.gives, batch)
        return self._edges[graph, batch]

    def run(self, graph: str, values: Sequence[Tensor | int]) -> Sequence[Tensor]:
        made: Sequence[Tensor] = self._graphs[graph](*values)
        return made


def _placed(tensor: Tensor, told: Charter) -> Tensor:
    if torch.device(told.device).type == "cpu":
        return tensor
    narrow = told.half and tensor.dtype is torch.float32
    return tensor.to(told.device, torch.bfloat16 if narrow else tensor.dtype)
