"""Novelty score: a share of the calibration samples, high far from what the model was taught."""

import torch

from models.forge.training.gate import GateSamples
from models.forge.training.novelty import fit_novelty, group_classes
from tests.models.forge.training.gate_world import make_gate_samples


def test_novelty_is_the_share_of_calibration_samples_that_look_more_usual():
    seen = make_gate_samples(telling=True)
    novelty = fit_novelty(seen, make_gate_samples(telling=True, seed=1), labels=True)
    fresh = make_gate_samples(telling=True, seed=2)
    shares = novelty(fresh.logits, fresh.summary)
    assert abs(shares.mean().item() - 0.5) < 0.05
    assert novelty(fresh.logits, fresh.summary + 20).min() > 0.99


def _classes(labels: int, *, seed: int, outside: int = 0) -> GateSamples:
    """Classes whose own logit is anything from 4 to 12; out of scope it is 3: as near to the class mean, yet lower."""
    chance = torch.Generator().manual_seed(seed)
    named = torch.randint(labels, (1200 + outside,), generator=chance)
    height = 4 + 8 * torch.rand(1200 + outside, 1, generator=chance)
    height[1200:] = 3.0
    logits = torch.nn.functional.one_hot(named, labels) * height
    summary = torch.randn(1200 + outside, 40, generator=chance)
    y = torch.where(torch.arange(1200 + outside) < 1200, named, -1)
    return GateSamples(logits, summary, logits, y)


def test_the_energy_is_taken_where_calibration_shows_that_it_finds_more():
    training, calibration = _classes(4, seed=0), _classes(4, seed=1, outside=60)
    novelty = fit_novelty(training, calibration, labels=True)
    assert novelty.weights[1:].max() > 0
    fresh = _classes(4, seed=2, outside=300)
    shares = novelty(fresh.logits, fresh.summary)
    assert shares[fresh.y < 0].mean() > 0.9
    assert abs(shares[fresh.y >= 0].mean().item() - 0.5) < 0.05


def test_without_samples_out_of_scope_classes_are_held_back_in_turn():
    seen = _classes(6, seed=3)
    groups = group_classes(seen.y.numpy(), 6)
    assert sorted(int(label) for group in groups for label in group) == list(range(6))
    fit_novelty(seen, _classes(6, seed=4), labels=True)  # two labels leave nothing to hold back: the distance
    assert group_classes(seen.y.numpy() % 2, 2) == []
    assert fit_novelty(_classes(2, seed=5), _classes(2, seed=6), labels=True).weights[1:].max() == 0


def test_a_regressors_novelty_is_the_distance():
    chance = torch.Generator().manual_seed(0)
    seen = GateSamples(
        torch.randn(500, 2, generator=chance), torch.randn(500, 6, generator=chance), torch.zeros(500, 1),
        torch.randn(500, generator=chance),
    )  # fmt: skip
    novelty = fit_novelty(seen, seen, labels=False)
    assert novelty.weights[1:].max() == 0
    assert novelty(seen.logits, seen.summary + 9).min() > 0.99
