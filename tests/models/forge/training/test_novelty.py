"""Novelty score: a share of the calibration samples, high far from what the model was taught."""

import torch

from models.forge.training.gate import GateSamples
from models.forge.training.novelty import fit_novelty

COUNT = 3000


def _world(*, telling: bool, count: int = COUNT, seed: int = 0) -> GateSamples:
    """Three labels; one number of the trunk tells where the device errs although its logits look sure (`telling`)."""
    chance = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (count,), generator=chance)
    trap = torch.rand(count, generator=chance) < 0.2
    wrong = trap & (torch.rand(count, generator=chance) < 0.8)
    named = torch.where(wrong, (y + 1) % 3, y)
    logits = torch.nn.functional.one_hot(named, 3) * 4.0 + torch.randn(count, 3, generator=chance)
    summary = torch.stack([trap.float() if telling else torch.zeros(count), torch.randn(count, generator=chance)], 1)
    return GateSamples(logits, summary, torch.nn.functional.one_hot(y, 3).float(), y)


def test_novelty_is_the_share_of_calibration_samples_that_look_more_usual():
    seen = _world(telling=True)
    novelty = fit_novelty(seen, _world(telling=True, seed=1), labels=True)
    fresh = _world(telling=True, seed=2)
    shares = novelty(fresh.logits, fresh.summary)
    assert abs(shares.mean().item() - 0.5) < 0.05
    assert novelty(fresh.logits, fresh.summary + 20).min() > 0.99
