"""One rank's stage of a sharded model: its graphs with its pieces of the weights, and the collectives of the stage.

Collectives run on torch.distributed (gloo on CPUs, NCCL on graphics cards); each is counted, and none waits longer than
the group's timeout. Rule: the shapes sent between stages depend on the batch size only, and are computed once per size.
"""

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, fx

from cloud_hub.engine.sharded.protocol import RankConfig
from models.bundle.manifest import BundleError
from models.graph.format import HubModelDocument
from models.sharding.program import ParallelShape, StageValue, assemble_rank_graph, build_programs, stage_values
from models.sharding.weights import RankShare, read_pieces


class RankCollectives:
    """Collectives among the ranks of a stage; implements `models.sharding.program.RankCollectives`."""

    def __init__(self, group: dist.ProcessGroup, at: int, ways: int) -> None:
        self._group = group
        self._at = at
        self._ways = ways
        self.counts: Counter[str] = Counter()

    def reduce(self, x: Tensor) -> Tensor:
        """All-reduce: the sum over all ranks, in place where possible."""
        self.counts["all_reduce"] += 1
        whole = x.contiguous()
        dist.all_reduce(whole, group=self._group)
        return whole

    def gather(self, x: Tensor, axis: int) -> Tensor:
        """All-gather: the parts of all ranks, joined along `axis`."""
        self.counts["all_gather"] += 1
        own = x.contiguous()
        parts = [torch.empty_like(own) for _ in range(self._ways)]
        dist.all_gather(parts, own, group=self._group)
        return torch.cat(parts, axis)

    def take(self, x: Tensor, axis: int) -> Tensor:
        """Slice of a tensor that all ranks have, for the own rank; no communication."""
        each = x.shape[axis] // self._ways
        return x.narrow(axis, self._at * each, each).contiguous()


class ModelStage:
    """Compiled graphs of one pipeline stage with this rank's weights in place."""

    def __init__(
        self, form: HubModelDocument, files: Sequence[int], told: RankConfig, group: dist.ProcessGroup
    ) -> None:
        shape = ParallelShape(told.tensor, told.pipeline)
        self._at = told.rank // told.tensor
        self._programs = build_programs(form, shape)
        self._edges: dict[tuple[str, int], tuple[tuple[StageValue, ...], tuple[StageValue, ...]]] = {}
        share = RankShare(told.rank % told.tensor, told.tensor)
        meet = RankCollectives(group, *share)
        self.counts: Counter[str] = meet.counts
        held = read_pieces(files, form.weights, self._programs.stage_pieces(self._at), share)
        held = {name: tensor.to(told.device) for name, tensor in held.items()}
        self.shard_bytes = sum(tensor.nbytes for tensor in held.values())
        parts = self._programs.parts
        self._graphs: dict[str, fx.GraphModule] = {
            name: assemble_rank_graph(each[self._at], held, meet) for name, each in parts.items()
        }

    def edges(self, graph: str, batch: int) -> tuple[tuple[StageValue, ...], tuple[StageValue, ...]]:
        """Tensors received from the previous stage and sent to the next one, for a batch of this size."""
        if graph not in self._graphs:
            raise BundleError(f"graphs: there is no {graph!r}")
        if len(self._programs.stretches[graph]) == 1:
            return (), ()
        if (graph, batch) not in self._edges:
            served, own = self._programs.blanks[graph], self._programs.stretches[graph][self._at]
            self._edges[graph, batch] = stage_values(served, own.takes, batch), stage_values(served, own.gives, batch)
        return self._edges[graph, batch]

    def run(self, graph: str, values: Sequence[Tensor | int]) -> Sequence[Tensor]:
        """Run the stage's part of a graph."""
        made: Sequence[Tensor] = self._graphs[graph](*values)
        return made
