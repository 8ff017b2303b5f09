"""Assembly of trained modules into device's and hub's half."""

import pytest
import torch
from torch import nn

from models.forge.partition.layout import AxisOrder, FeatureLayout
from models.forge.training.bottleneck import BottleneckDecoder, BottleneckEncoder, Codebook
from models.forge.training.early_exit import EarlyExit
from models.forge.training.gate import GateSamples, fit_gate
from models.forge.training.modules import (
    TrainedModules,
    build_edge_module,
    build_tail_module,
    edge_output_names,
)
from models.forge.training.novelty import fit_novelty

FEATURE = FeatureLayout(AxisOrder.NUMBERS, ((8,),), (8,))
BOOK = Codebook((6,), 4)


def pieces_of(seed: int = 0) -> TrainedModules:
    torch.manual_seed(seed)
    encoder = BottleneckEncoder(FEATURE, BOOK, 4000)
    return TrainedModules(
        head=nn.Sequential(nn.Linear(4, 8), nn.ReLU()),
        encoder=encoder,
        decoder=BottleneckDecoder(BOOK, FEATURE),
        tail=nn.Linear(8, 3),
        exit=EarlyExit(encoder.hidden, 3),
        codebook=BOOK,
    )


def with_gate(pieces: TrainedModules) -> TrainedModules:
    """A gate and a novelty score fitted on made-up samples: their answers do not matter here."""
    chance = torch.Generator().manual_seed(0)
    width = pieces.encoder.hidden[0]
    y = torch.randint(3, (1000,), generator=chance)
    summary = torch.randn(1000, width, generator=chance)
    named = torch.where(summary[:, 0] > 0.8, (y + 1) % 3, y)
    logits = nn.functional.one_hot(named, 3) * 6.0 + torch.randn(1000, 3, generator=chance)
    seen = GateSamples(logits, summary, nn.functional.one_hot(y, 3).float(), y)
    pieces.gate, pieces.novelty = fit_gate(seen, 0), fit_novelty(seen, seen, labels=True)
    assert pieces.gate is not None
    return pieces


@pytest.mark.further
def test_the_devices_half_returns_what_it_names():
    pieces = pieces_of()
    assert edge_output_names(pieces) == ("logits", "codes")
    pieces = with_gate(pieces)
    assert edge_output_names(pieces, "features") == ("logits", "features", "confidence", "novelty")
    logits, codes, confidence, novelty = build_edge_module(pieces)(torch.randn(5, 4))
    assert (logits.shape, codes.shape, confidence.shape, novelty.shape) == ((5, 3), (5, 6), (5,), (5,))
    assert codes.dtype == torch.uint8
    assert codes.max() < BOOK.levels


def test_both_halves_together_are_the_whole_road():
    pieces = pieces_of()
    x = torch.randn(5, 4)
    _, codes = build_edge_module(pieces)(x)
    found = build_tail_module(pieces)(codes.float())
    assert torch.equal(found, pieces.tail(pieces.decoder(pieces.encoder(pieces.head(x)))))
