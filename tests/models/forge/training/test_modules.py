"""Assembly of trained modules into device's and hub's half, and retuning of the hub's half."""

import numpy as np
import torch
from torch import nn

from models.forge.partition.layout import AxisOrder, FeatureLayout
from models.forge.training.bottleneck import BottleneckDecoder, BottleneckEncoder, Codebook
from models.forge.training.early_exit import EarlyExit
from models.forge.training.gate import GateSamples, fit_gate
from models.forge.training.losses import LossConfig
from models.forge.training.modules import (
    RetuningConfig,
    ShippedSamples,
    TrainedModules,
    build_edge_module,
    build_tail_module,
    edge_output_names,
    retune_hub,
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


def test_tuning_again_wins_back_what_other_codes_cost():
    """The shipped graph codes otherwise than the one that was taught (here: levels turned round)."""
    pieces = pieces_of()
    rng = np.random.default_rng(0)
    codes = rng.integers(0, BOOK.levels, (600, 6)).astype(np.uint8)
    y = (codes[:, 0] % 3).astype(np.int64)
    answers = np.eye(3, dtype=np.float32)[y] * 8
    told: list[float] = []
    retune_hub(
        pieces.sent,
        ShippedSamples(codes, answers, y),
        RetuningConfig(LossConfig(3), epochs=8, batch=32, rate=3e-3),
        told.append,
    )
    with torch.no_grad():
        found = build_tail_module(pieces)(torch.from_numpy(codes).float()).argmax(1).numpy()
    assert (found == y).mean() > 0.95
    assert told[-1] == 1.0
