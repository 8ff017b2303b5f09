"""Bundles for sharded engines: a transformer of two blocks, and the zoo's residual net; traced once per session."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from cloud_hub.engine.sharded.engine import ShardedEngine
from models.bundle.bundle import Bundle
from models.bundle.manifest import EDGE_FILE, GOLDEN_FILE, HUB_FILE, HUB_GRAPH_FILE, InputSpec, Manifest, ParallelPlan
from models.graph.hub_model import encode_graphs, export_graph
from models.runtime.runner import echo_manifest
from models.zoo.resnet9 import ResNet9
from tests.models.bundles import write_bundle
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

LENGTH, WIDTH, HEADS, PIECE = 16, 64, 4, 16


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a normalisation (Vaswani et al. 2017, "pre-norm")."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        y = self.before(x)
        q, k, v = (
            part(y).view(n, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(mixed)
        deeper: Tensor = x + self.down(gelu(self.up(self.between(x))))
        return deeper


class Transformer(nn.Module):
    """`[n, 16, 16]` codes -> logits `[n, 10]`."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, blocks: int = 2) -> None:
        super().__init__()
        self.lift = nn.Linear(PIECE, width)
        self.place = nn.Parameter(torch.randn(1, LENGTH, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.last = nn.LayerNorm(width)
        self.labels = nn.Linear(width, 10)

    def forward(self, codes: Tensor) -> Tensor:
        deep = self.blocks(self.lift(codes / 15) + self.place)
        logits: Tensor = self.labels(self.last(deep).mean(1))
        return logits


class WithHead(nn.Module):
    """Raw `[n, 16, 16]` in 0..1 -> codes -> the tail."""

    def __init__(self, tail: nn.Module) -> None:
        super().__init__()
        self.tail = tail

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(torch.round(15 * x))  # type: ignore[no-any-return]


class Pictures(nn.Module):
    """Codes of pictures -> the zoo's largest picture net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet9(3, 10)

    def forward(self, codes: Tensor) -> Tensor:
        return self.net(codes / 15)  # type: ignore[no-any-return]


class Echo(nn.Module):
    """Codes as the tests' devices send them, `[n, 10]` -> the transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Linear(10, LENGTH * PIECE)
        self.deep = Transformer()

    def forward(self, codes: Tensor) -> Tensor:
        return self.deep(self.spread(codes / 15).view(-1, LENGTH, PIECE))  # type: ignore[no-any-return]


SHAPES = {"transformer": (LENGTH, PIECE), "pictures": (3, 32, 32), "echo": (10,)}
_NETS = {"transformer": Transformer, "pictures": Pictures, "echo": Echo}


@cache
def hub_files(kind: str) -> tuple[bytes, bytes]:
    torch.manual_seed(7)
    tail = _NETS[kind]()
    codes = torch.zeros(2, *SHAPES[kind])
    return encode_graphs({"tail": export_graph(tail, (codes,)), "whole": export_graph(WithHead(tail), (codes,))})


def manifest_of(kind: str, plan: ParallelPlan, version: int = 1) -> Manifest:
    shape = SHAPES[kind]
    return msgspec.structs.replace(
        echo_manifest(version=version),
        name=kind,
        input=InputSpec("image", TensorDType.FP32, shape, 0.0, 1.0),
        features=(FieldSpec("features", TensorDType.UINT8, shape, 0, 15, SensitivityLevel.P2, "features"),),
        fixed_bytes=4096,
        parallel=plan,
    )


def gang_bundle(folder: Path, kind: str = "transformer", plan: ParallelPlan | None = None, version: int = 1) -> Bundle:
    graph, weights = hub_files(kind)
    contents = {HUB_GRAPH_FILE: graph, HUB_FILE: weights, EDGE_FILE: b"edge", GOLDEN_FILE: b"golden"}
    path = folder / f"{kind}-{version}"
    return write_bundle(path, manifest_of(kind, plan or ParallelPlan(), version), contents)


class Borrowed:
    """A module's engine lent to one hub or worker, which does not stop it."""

    def __init__(self, engine: ShardedEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def drain(self) -> None:
        """It serves on."""

    def stop(self) -> None:
        """It serves on."""
