"""Trained modules of a split model, and their assembly into the device's half and the hub's half.

Rule: the device's half is one graph from a sample to logits, codes, confidence and novelty; the hub's half starts from
those codes and nothing else.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.forge.training.bottleneck import BottleneckDecoder, BottleneckEncoder, Codebook
from models.forge.training.code_path import CodePath, Route, TrunkCoder

CODES, CONFIDENCE, NOVELTY = "codes", "confidence", "novelty"


@dataclass
class TrainedModules:
    """Trained parts: `head`, `encoder`, `exit`, `gate`, `novelty` run on the device; `decoder` and `tail` on the hub.

    `exit` takes the encoder's trunk, or, if `separate`, the raw sample (it is the user's own small model). `gate` maps
    (logits, pooled trunk) to a confidence in 0..1, `novelty` maps the same to 0..1. `temperature` is for the
    softmax of the logits where there is no gate. `path`: what travels, if it is not the codes of `encoder`.
    """

    head: nn.Module
    encoder: BottleneckEncoder
    decoder: BottleneckDecoder
    tail: nn.Module
    exit: nn.Module
    codebook: Codebook
    gate: nn.Module | None = None
    novelty: nn.Module | None = None
    temperature: float = 1.0
    separate: bool = False
    path: CodePath | None = None

    @property
    def sent(self) -> CodePath:
        """The code path that ships: `path`, else the encoder's own codes."""
        return self.path or describe_encoder_path(self)


def describe_encoder_path(pieces: TrainedModules) -> CodePath:
    """The code path of the codes that were taught together with the trunk."""
    book = pieces.codebook
    name = f"{Route.LEARNED}-{book.payload_bytes}"
    return CodePath(
        name, Route.LEARNED, TrunkCoder(pieces.encoder), pieces.decoder, pieces.tail, tuple(book.shape), book.levels
    )


def build_edge_module(pieces: TrainedModules) -> nn.Module:
    """The device's half: sample `[n, *shape]` -> (logits, codes uint8[, confidence `[n]`][, novelty `[n]`]).

    In evaluation mode.
    """
    return _EdgeModule(pieces).eval()


def edge_output_names(pieces: TrainedModules, feature: str = CODES) -> tuple[str, ...]:
    """Names of what `build_edge_module` returns, in its order."""
    optional = ((CONFIDENCE, pieces.gate), (NOVELTY, pieces.novelty))
    return ("logits", feature, *(name for name, module in optional if module is not None))


def build_tail_module(pieces: TrainedModules) -> nn.Module:
    """The hub's half: codes as floats `[n, *shape]` -> the given model's outputs, in evaluation mode."""
    return build_hub_module(pieces.sent)


def build_hub_module(path: CodePath) -> nn.Module:
    """The hub's half of one code path: codes as floats `[n, *path.shape]` -> outputs, in evaluation mode."""
    return _TailModule(path.decoder, path.tail).eval()


def pool_places(hidden: Tensor) -> Tensor:
    """The mean over all places of a trunk `[n, channels, ...]`, which the gate and the novelty score read."""
    return hidden.flatten(2).mean(2) if hidden.dim() > 2 else hidden


def as_tuple(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


class _EdgeModule(nn.Module):
    def __init__(self, pieces: TrainedModules) -> None:
        super().__init__()
        self.head, self.encoder, self.exit = pieces.head, pieces.encoder, pieces.exit
        self.gate, self.novelty, self.separate = pieces.gate, pieces.novelty, pieces.separate
        self.coder = pieces.sent.coder

    def forward(self, sample: Tensor) -> tuple[Tensor, ...]:
        features = as_tuple(self.head(sample))
        hidden = self.encoder.trunk(*features)
        logits = self.exit(sample) if self.separate else self.exit(hidden)
        found = [logits, self.coder(sample, features, hidden).to(torch.uint8)]
        summary = pool_places(hidden)
        if self.gate is not None:
            found.append(self.gate(logits, summary))
        if self.novelty is not None:
            found.append(self.novelty(logits, summary))
        return tuple(found)


class _TailModule(nn.Module):
    def __init__(self, decoder: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.decoder, self.tail = decoder, tail

    def forward(self, codes: Tensor) -> Tensor:
        return as_tuple(self.tail(*as_tuple(self.decoder(codes))))[0]
