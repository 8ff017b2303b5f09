"""Graphs divided among ranks that are threads: what `cloud_hub.engine.sharded` does with processes."""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from models.graph.format import TensorSignature, decode_hub_model
from models.sharding.program import ParallelShape, ShardedPrograms, assemble_rank_graph, build_programs, stage_values
from models.sharding.split import WeightPiece
from models.sharding.weights import RankShare, read_pieces


def read_files(
    files: Iterable[str], ports: Mapping[str, TensorSignature], pieces: Iterable[WeightPiece], share: RankShare
) -> dict[str, Tensor]:
    """`read_pieces` of files by their paths."""
    with ExitStack() as opened:
        handles = [opened.enter_context(open(file, "rb")).fileno() for file in files]  # noqa: PTH123 - strings
        return read_pieces(handles, ports, pieces, share)


class Table:
    """Collectives among threads: each rank puts its tensor, waits for all, and reads the others'."""

    def __init__(self, ways: int) -> None:
        self.ways = ways
        self._gate = threading.Barrier(ways, timeout=60)
        self._laid: dict[int, Tensor] = {}

    def meet(self, at: int, x: Tensor) -> list[Tensor]:
        self._laid[at] = x
        self._gate.wait()
        seen = [self._laid[each] for each in range(self.ways)]
        self._gate.wait()
        return seen


class Rank:
    def __init__(self, table: Table, at: int) -> None:
        self.table, self.at = table, at
        self.counts: Counter[str] = Counter()

    def reduce(self, x: Tensor) -> Tensor:
        self.counts["reduce"] += 1
        return torch.stack(self.table.meet(self.at, x)).sum(0)

    def gather(self, x: Tensor, axis: int) -> Tensor:
        self.counts["gather"] += 1
        return torch.cat(self.table.meet(self.at, x), axis)

    def take(self, x: Tensor, axis: int) -> Tensor:
        return x.chunk(self.table.ways, axis)[self.at].contiguous()


class Spread:
    """The graphs of a document over `shape` ranks, which are threads here; `files` hold the weights."""

    def __init__(self, graph: bytes, files: Sequence[str], shape: ParallelShape) -> None:
        self.form, self.files, self.shape = decode_hub_model(graph), files, shape
        self.made: ShardedPrograms = build_programs(self.form, shape)

    def answer(self, name: str, x: Tensor) -> tuple[Tensor, Counter[str]]:
        (found,), counts = self.answers(name, [x])
        return found, counts

    def answers(self, name: str, xs: list[Tensor]) -> tuple[list[Tensor], Counter[str]]:
        table = Table(self.shape.tensor)
        seats = [Rank(table, at) for at in range(self.shape.tensor)]
        found: dict[int, list[Tensor]] = {}
        threads = [threading.Thread(target=self._sit, args=(name, xs, seat, found)) for seat in seats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found[0], seats[0].counts

    def _sit(self, name: str, xs: list[Tensor], seat: Rank, found: dict[int, list[Tensor]]) -> None:
        share = RankShare(seat.at, self.shape.tensor)
        graphs = []
        for part in self.made.parts[name]:
            weights = read_files(self.files, self.form.weights, part.pieces, share)
            graphs.append(assemble_rank_graph(part, weights, seat))
        with torch.no_grad():
            found[seat.at] = [self._walk(name, x, graphs) for x in xs]

    def _walk(self, name: str, x: Tensor, graphs: Sequence[nn.Module]) -> Tensor:
        known: dict[str, Tensor | int] = {"input_0": x}
        for stretch, graph in zip(self.made.stretches[name], graphs, strict=True):
            takes = stage_values(self.made.blanks[name], stretch.takes, len(x))
            values = [known[edge.name] if edge.dtype else edge.number for edge in takes]
            known |= zip(stretch.gives, graph(*values), strict=True)
        return known[self.made.stretches[name][-1].gives[0]]  # type: ignore[return-value]
