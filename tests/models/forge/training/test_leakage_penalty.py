"""Leakage penalty: codes that tell the label alone are free, and codes taught under it forget all else."""

import numpy as np
import pytest
import torch
from torch import nn

from models.forge.training.determinism import deterministic_torch
from models.forge.training.leakage_penalty import LeakagePenalty

RNG = np.random.default_rng(6)
Y = torch.from_numpy(RNG.integers(0, 2, 256))
PRIVATE = torch.from_numpy(RNG.normal(size=(256, 3)).astype(np.float32))
X = torch.cat([2.0 * Y[:, None] - 1, PRIVATE], 1)  # the label, and what is nobody's business


def teach_encoder(penalty: LeakagePenalty | None) -> torch.Tensor:
    """Teach a linear encoder of two codes to tell the label; returns its weights `[2, 4]`."""
    with deterministic_torch(1):
        encoder, tail = nn.Linear(4, 2), nn.Linear(2, 2)
        optimiser = torch.optim.Adam([*encoder.parameters(), *tail.parameters()], 1e-2)
        for _ in range(80):
            codes = encoder(X)
            loss = nn.functional.cross_entropy(tail(codes), Y)
            if penalty is not None:
                loss = loss + penalty(codes, Y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        assert (tail(encoder(X)).argmax(1) == Y).all()
        return encoder.weight.detach()


def test_an_encoder_under_a_penalty_forgets_what_the_label_does_not_need():
    free, bound = teach_encoder(None), teach_encoder(LeakagePenalty(0.5, 2))
    assert free[:, 1:].abs().max() > 0.15
    assert bound[:, 1:].abs().max() < 0.02
    assert bound[:, 0].abs().min() > 0.5


def test_codes_of_the_label_alone_cost_nothing_and_private_ones_their_bits():
    penalty = LeakagePenalty(1.0, 2)
    assert float(penalty(torch.stack([Y, 1 - Y], 1), Y)) == pytest.approx(0.0, abs=1e-6)
    coarse, fine = (float(penalty((steps * PRIVATE).round(), Y)) for steps in (1, 8))
    assert 1.5 < coarse < 2.5  # half a bit of log2(1 + 12) for a variance of 1
    assert fine - coarse == pytest.approx(3, abs=0.3)  # three bits finer


def test_a_regressors_values_are_free_by_their_tenths():
    value = torch.linspace(0, 10, 400)
    penalty = LeakagePenalty(1.0, 0)
    tenths = (value / 1.001).floor()[:, None]
    noise = torch.from_numpy(RNG.integers(0, 10, (400, 1))).float()
    assert float(penalty(tenths, value)) < 0.6
    assert float(penalty(noise, value)) > 2.5


def test_with_hardly_two_samples_a_label_the_label_is_not_free():
    """Within so many labels no variance can be told; then all of it counts."""
    labels = torch.arange(30)
    assert float(LeakagePenalty(1.0, 30)(labels[:, None].float(), labels)) > 3


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="below 0"):
        LeakagePenalty(-1.0, 2)
