"""Rank process of a sharded model: holds its pieces of the weights and runs its part of every batch.

Rule: it knows the supervisor's socket and the other ranks only: no key, no store, no device's name. It ends when the
socket closes. Gradients are off.
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch._C._distributed_c10d import FileStore, Store, TCPStore  # torch.distributed has them too, unmarked

from cloud_hub.engine.sharded import protocol
from cloud_hub.engine.sharded.rank_links import dial_supervisor
from cloud_hub.engine.sharded.stage import ModelStage
from models.bundle.manifest import BundleError
from models.graph.format import decode_hub_model
from models.graph.module import TORCH_ERRORS, HubGraphModule, InputSlot
from models.sharding.program import StageValue, stage_values

_FIELDS = ("Private_Clean:", "Private_Dirty:")


def measure_private_bytes(pid: int | str = "self") -> int:
    """Memory that a process alone uses (USS), in bytes: what would be free if it ended. 0 where unknown (not Linux)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_FIELDS))


_TELL = (*TORCH_ERRORS, BundleError, OSError, dist.DistError)
_HANDED = 7  # torch.distributed tag of the first tensor sent to the next stage; the others count on from it


def main(descriptor: int, files: Sequence[int] = ()) -> int:
    """Run a rank on the socket `descriptor`; `files`: descriptors of the weights.

    Returns 0 when the supervisor closed the socket, 1 after an error, which is sent as the last message.
    """
    link = socket.socket(fileno=descriptor)
    try:
        word, body = protocol.receive_message(link)
        meeting: socket.socket | None = None
        if isinstance(word, protocol.JoinOrder):
            link, meeting = _join_supervisor(word)
            word, body = protocol.receive_message(link)
        if not isinstance(word, protocol.RankConfig):
            return 1
        _RankWorker(link, files, word, bytes(body), meeting).serve_batches()
    except protocol.PipeError:
        return 0
    except _TELL as error:
        protocol.send_message(link, protocol.make_failure(error))
        return 1
    return 0


def _join_supervisor(order: protocol.JoinOrder) -> tuple[socket.socket, socket.socket | None]:
    """Connect to the supervisor; rank 0 listens for the others first. PipeError if there is no such supervisor.

    Returns the link, and the listening socket of rank 0.
    """
    link, meeting, store = dial_supervisor(order), None, ""
    if order.rank == 0:
        meeting = socket.create_server((order.address, 0))
        store = f"tcp://{order.address}:{meeting.getsockname()[1]}"
    protocol.send_message(link, protocol.RankJoined(order.token, order.rank, os.getpid(), store))
    return link, meeting


def preheat_torch() -> None:
    """Import and create what torch initialises on first use, so that every fork inherits it."""
    source = fx.Graph()
    given = source.placeholder("input_0")
    made = source.call_function(torch.ops.aten.relu.default, (given,))
    source.output(source.call_function(torch.ops.aten.sym_size.int, (made, 0)))
    served = HubGraphModule(fx.GraphModule(nn.Module(), source), [InputSlot(torch.float32, (3,))])
    stage_values(served, ("relu_default",), 2)
    with torch.no_grad():
        torch.relu(torch.zeros(2, 3))


class _RankWorker:
    """State of one rank: configuration, process groups and its stage of the model.

    `graphs`: JSON; `meeting`: where rank 0 listens for the other ranks, None if they meet by a file.
    """

    def __init__(
        self,
        link: socket.socket,
        files: Sequence[int],
        word: protocol.RankConfig,
        graphs: bytes,
        meeting: socket.socket | None,
    ) -> None:
        started, baseline = time.monotonic(), measure_private_bytes()
        self._link, self._charter = link, word
        self._first, self._last = word.rank < word.tensor, word.rank >= word.tensor * (word.pipeline - 1)
        self._device = torch.device(word.device)
        torch.set_num_threads(word.threads)
        torch.set_num_interop_threads(1)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._stage = ModelStage(decode_hub_model(graphs), files, word, self._join_groups(meeting))
        taken = max(0, measure_private_bytes() - baseline)
        protocol.send_message(link, protocol.RankReady(self._stage.shard_bytes, taken, time.monotonic() - started))

    def _join_groups(self, meeting: socket.socket | None) -> dist.ProcessGroup:
        """Join torch.distributed and return the process group of the rank's own stage."""
        told = self._charter
        world, patience = told.tensor * told.pipeline, timedelta(seconds=told.timeout_s)
        store = open_store(told.store, world, patience, meeting)
        dist.init_process_group(told.backend, store=store, rank=told.rank, world_size=world, timeout=patience)
        own: dist.ProcessGroup | None = None
        for stage in range(told.pipeline):
            ranks = list(range(stage * told.tensor, (stage + 1) * told.tensor))
            group = dist.new_group(ranks, timeout=patience)
            own = group if told.rank in ranks else own
        if own is None:
            raise RuntimeError("the rank belongs to no stage")
        return own

    def serve_batches(self) -> None:
        """Answer messages until the socket closes."""
        while True:
            word, body = protocol.receive_message(self._link)
            if isinstance(word, protocol.PingRequest):
                protocol.send_message(self._link, protocol.PingReply(word.number))
            elif isinstance(word, protocol.BatchStep):
                self._run_step(word, body)

    def _run_step(self, step: protocol.BatchStep, body: bytearray) -> None:
        started = time.perf_counter()
        with torch.no_grad():
            outputs = self._compute_stage(step, body)
        arrays = []
        if self._last and self._charter.rank % self._charter.tensor == 0:
            arrays = [made.float().cpu().numpy() for made in outputs]
        done = protocol.StepDone(
            step.number, time.perf_counter() - started, protocol.describe_arrays(arrays), dict(self._stage.counts)
        )
        protocol.send_message(self._link, done, protocol.pack_arrays(arrays))

    def _compute_stage(self, step: protocol.BatchStep, body: bytearray) -> Sequence[Tensor]:
        """Run the stage on every microbatch, each handed on as soon as it is computed; the last stage's outputs."""
        sizes = protocol.split_batch(step.batch, step.pieces)
        inputs = self._feed_columns(step, body, sizes) if self._first else self._await_stage(step.graph, sizes)
        made: list[Sequence[Tensor]] = []
        sent: list[_Sent] = []
        for size, values in zip(sizes, inputs, strict=True):
            outputs = self._stage.run(step.graph, values)
            if self._last:
                made.append(outputs)
            else:
                sent += self._hand_on(self._stage.edges(step.graph, size)[1], outputs, len(sent))
        for each in sent:
            each.work.wait()
        return [torch.cat(parts) for parts in zip(*made, strict=True)] if len(made) > 1 else next(iter(made), ())

    def _feed_columns(
        self, step: protocol.BatchStep, body: bytearray, sizes: Sequence[int]
    ) -> Iterator[list[Tensor | int]]:
        """Yield the input columns of each microbatch."""
        columns = [torch.from_numpy(column).to(self._device) for column in protocol.parse_arrays(step.forms, body)]
        rows = [torch.split(column, list(sizes)) for column in columns]
        yield from (list(parts) for parts in zip(*rows, strict=True))

    def _await_stage(self, graph: str, sizes: Sequence[int]) -> Iterator[list[Tensor | int]]:
        """Yield what the stage before hands on for each microbatch.

        All of it is asked for at once, so that it arrives while an earlier microbatch is computed.
        """
        before = self._charter.rank - self._charter.tensor
        tag = _HANDED
        coming: list[list[_Coming]] = []
        for size in sizes:
            row = []
            for edge in self._stage.edges(graph, size)[0]:
                if edge.dtype is None:
                    row.append(_Coming(edge.number, None))
                    continue
                taken = torch.empty(edge.shape, dtype=edge.dtype, device=self._device)
                row.append(_Coming(taken, dist.irecv(taken, before, tag=tag)))
                tag += 1
            coming.append(row)
        for row in coming:
            for each in row:
                if each.work is not None:
                    each.work.wait()
            yield [each.value for each in row]

    def _hand_on(self, gives: Sequence[StageValue], outputs: Sequence[Tensor], sent: int) -> list["_Sent"]:
        """Start to send one microbatch to the next stage; `sent`: tensors that went before it in this step."""
        after = self._charter.rank + self._charter.tensor
        wanted = [made.contiguous() for edge, made in zip(gives, outputs, strict=True) if edge.dtype is not None]
        return [_Sent(made, _start_send(made, after, _HANDED + sent + at)) for at, made in enumerate(wanted)]


def open_store(place: str, world: int, patience: timedelta, meeting: socket.socket | None) -> Store:
    """Open the store by which `world` ranks find each other: a file, or `tcp://host:port` that rank 0 holds.

    `meeting`: the listening socket of rank 0, which bound it to one address; torch's own would be bound to all.
    """
    if not place.startswith("tcp://"):
        store: Store = FileStore(place, world)
    else:
        host, _, port = place.removeprefix("tcp://").rpartition(":")
        listen = meeting.detach() if meeting is not None else None
        store = TCPStore(
            host, int(port), world, is_master=listen is not None, timeout=patience, wait_for_workers=False,
            master_listen_fd=listen,
        )  # fmt: skip
    store.set_timeout(patience)
    return store


class _Coming(NamedTuple):
    """A value of the stage before: a number, or a tensor that is complete when `work` is."""

    value: Tensor | int
    work: dist.Work | None


class _Sent(NamedTuple):
    """A tensor that must not change or go until `work` is done."""

    tensor: Tensor
    work: dist.Work


def _start_send(tensor: Tensor, receiver: int, tag: int) -> dist.Work:
    work = dist.isend(tensor, receiver, tag=tag)
    if work is None:
        raise RuntimeError("the rank belongs to no stage")
    return work
