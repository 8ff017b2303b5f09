"""Nets for the sharding benchmarks: a transformer of two blocks, and a stack of layers large on purpose."""

from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from models.bundle.bundle import Bundle
from models.bundle.hub_part import HubManifest
from models.bundle.manifest import EDGE_FILE, FORMAT, GOLDEN_FILE, HUB_GRAPH_FILE, NO_HUB, InputSpec
from models.bundle.version import write_version
from models.graph.hub_model import encode_graphs, export_graph, split_weights
from models.runtime.runner import echo_manifest
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

LENGTH, PIECE, WIDTH, HEADS = 32, 16, 512, 8
LARGE_WIDTH, LARGE_LAYERS = 4096, 18  # 18 x 64 MiB: two shards of 576 MiB


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        y = self.before(x)
        q, k, v = (part(y).view(n, length, HEADS, width // HEADS).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(mixed)
        deeper: Tensor = x + self.down(gelu(self.up(self.between(x))))
        return deeper


class BenchTransformer(nn.Module):
    """`[n, LENGTH, PIECE]` -> `[n, 10]`."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(PIECE, WIDTH)
        self.blocks = nn.ModuleList([TransformerBlock(), TransformerBlock()])
        self.last = nn.LayerNorm(WIDTH)
        self.labels = nn.Linear(WIDTH, 10)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.lift(codes)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.labels(self.last(x).mean(1))
        return logits


class LargeStack(nn.Module):
    """`[n, LENGTH, PIECE]` -> `[n, 10]`, by more than a gigabyte of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(LENGTH * PIECE, LARGE_WIDTH)
        self.layers = nn.ModuleList([nn.Linear(LARGE_WIDTH, LARGE_WIDTH, bias=False) for _ in range(LARGE_LAYERS)])
        self.labels = nn.Linear(LARGE_WIDTH, 10)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.lift(codes.flatten(1))
        for layer in self.layers:
            x = torch.relu(layer(x))
        logits: Tensor = self.labels(x)
        return logits


def transformer() -> BenchTransformer:
    """The same numbers in every process."""
    torch.manual_seed(11)
    return BenchTransformer().eval()


def bundle_of(folder: Path, net: nn.Module, name: str = "transformer") -> Bundle:
    """`net` is the tail and the whole model at once."""
    example = torch.zeros(2, LENGTH, PIECE)
    graph, weights = encode_graphs({"tail": export_graph(net, (example,)), "whole": export_graph(net, (example,))})
    parts = split_weights(weights)
    names = tuple(f"hub-{at:05d}.safetensors" for at in range(1, len(parts) + 1))
    manifest = msgspec.structs.replace(
        echo_manifest(),
        name=name,
        input=InputSpec("image", TensorDType.FP32, (LENGTH, PIECE), 0.0, 15.0),
        features=(FieldSpec("features", TensorDType.UINT8, (LENGTH, PIECE), 0, 15, SensitivityLevel.P2, "features"),),
        format=FORMAT,
        hub=NO_HUB,
    )
    hub = HubManifest(name=name, version=manifest.version, graph=HUB_GRAPH_FILE, weights=names)
    files = {HUB_GRAPH_FILE: graph, **dict(zip(names, parts, strict=True))}
    return write_version(folder / name, manifest, {EDGE_FILE: b"edge", GOLDEN_FILE: b"golden"}, hub, files)
