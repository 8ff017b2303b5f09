"""Baseline of the sharding benchmarks: the same transformer sharded by hand for two processes.

Rule: as somebody would write it for this model alone: `multiprocessing`, pipes, `torch.distributed` on gloo.
"""

import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from benchmarks.sharding.nets import HEADS, LENGTH, WIDTH, transformer

RANKS = 2


class HandShardedModel:
    """Transformer sharded by hand over two processes. `kind` is "tensor" or "pipeline"; leave it with `with`."""

    def __init__(self, kind: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="skerry-hand-")
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._ranks = []
        for at in range(RANKS):
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            self._ranks.append(context.Process(target=_run_rank, args=(kind, at, store, theirs), daemon=True))
            self._ranks[-1].start()

    def step(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        for pipe in self._pipes:
            pipe.send(x)
        answers: list[Any] = [pipe.recv() for pipe in self._pipes]
        found: npt.NDArray[np.float32] = next(each for each in answers if each is not None)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, rank in zip(self._pipes, self._ranks, strict=True):
            pipe.close()
            rank.kill()
            rank.join()
        self._folder.cleanup()


def _run_rank(kind: str, at: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(store, RANKS), rank=at, world_size=RANKS)
    net = transformer()
    step = _make_tensor_step(net, at) if kind == "tensor" else _make_pipeline_step(net, at)
    with torch.no_grad():
        while True:
            made = step(torch.from_numpy(pipe.recv()))
            pipe.send(None if made is None else made.numpy())


def _make_tensor_step(net: Any, at: int) -> Any:
    def columns(layer: nn.Linear) -> tuple[Tensor, Tensor]:
        return layer.weight.chunk(RANKS, 0)[at].contiguous(), layer.bias.chunk(RANKS, 0)[at].contiguous()

    def rows(layer: nn.Linear) -> Tensor:
        return layer.weight.chunk(RANKS, 1)[at].contiguous()

    own = [([columns(each) for each in (b.q, b.k, b.v)], rows(b.out), columns(b.up), rows(b.down)) for b in net.blocks]

    def step(x: Tensor) -> Tensor | None:
        x = net.lift(x)
        for block, (qkv, out, up, down) in zip(net.blocks, own, strict=True):
            y = block.before(x)
            q, k, v = (linear(y, *w).view(len(x), LENGTH, HEADS // RANKS, WIDTH // HEADS).transpose(1, 2) for w in qkv)
            mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(x), LENGTH, WIDTH // RANKS)
            part = linear(mixed, out)
            dist.all_reduce(part)
            x = x + part + block.out.bias
            part = linear(gelu(linear(block.between(x), *up)), down)
            dist.all_reduce(part)
            x = x + part + block.down.bias
        made: Tensor = net.labels(net.last(x).mean(1))
        return made if at == 0 else None

    return step


def _make_pipeline_step(net: Any, at: int) -> Any:
    def step(x: Tensor) -> Tensor | None:
        if at == 0:
            dist.send(net.blocks[0](net.lift(x)), 1)
            return None
        taken = torch.empty(len(x), LENGTH, WIDTH)
        dist.recv(taken, 0)
        made: Tensor = net.labels(net.last(net.blocks[1](taken)).mean(1))
        return made

    return step
