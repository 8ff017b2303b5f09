"""Learned gate: escalates where the hub helps, is a calibrated probability, and is left out where it would not pay."""

import numpy as np
import pytest
import torch

from models.forge.training.gate import (
    ConfidenceGate,
    GateSamples,
    PiecewiseLinear,
    fit_gate,
    fit_isotonic,
    mean_recovered,
)

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


def _own(seen: GateSamples) -> torch.Tensor:
    return seen.logits.argmax(1) == seen.y


@pytest.fixture(scope="module")
def gate() -> ConfidenceGate:
    found = fit_gate(_world(telling=True), seed=1)
    assert found is not None
    return found


@pytest.mark.further
def test_a_gate_finds_what_the_softmax_cannot_see(gate):
    fresh = _world(telling=True, seed=5)
    own, hub = _own(fresh), fresh.hub.argmax(1) == fresh.y
    confidence = gate(fresh.logits, fresh.summary)
    softmax = torch.softmax(fresh.logits, 1).amax(1)
    assert mean_recovered(confidence, own, hub) > mean_recovered(softmax, own, hub) + 0.03


def test_confidence_reads_as_the_probability_of_being_right(gate):
    fresh = _world(telling=True, seed=6)
    confidence, own = gate(fresh.logits, fresh.summary).detach().numpy(), _own(fresh).numpy()
    assert confidence.min() >= 0
    assert confidence.max() <= 1
    low = confidence < 0.5
    assert abs(confidence[low].mean() - own[low].mean()) < 0.08
    assert abs(confidence[~low].mean() - own[~low].mean()) < 0.03


def test_a_gate_that_is_no_better_than_the_softmax_is_left_out():
    chance = torch.Generator().manual_seed(3)
    y = torch.randint(3, (900,), generator=chance)
    logits = torch.nn.functional.one_hot(y, 3) * 9.0
    assert fit_gate(GateSamples(logits, torch.zeros(900, 2), logits, y), seed=0) is None  # the device is always right


def test_few_samples_teach_no_gate():
    assert fit_gate(_world(telling=True, count=100), seed=0) is None


def test_a_table_never_falls_and_keeps_the_order_of_scores():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=600)
    table = fit_isotonic(scores, (rng.random(600) < 0.5).astype(float))  # scores that say nothing
    found = table(torch.linspace(-3, 3, 400)).numpy()
    assert (np.diff(found) >= 0).all()
    inside = table(torch.from_numpy(np.sort(scores)[::20]).float()).numpy()
    assert (np.diff(inside) > 0).all()


def test_a_table_passes_through_its_knots():
    table = PiecewiseLinear(np.array([0.0, 1.0, 3.0]), np.array([0.1, 0.5, 0.6]))
    assert torch.allclose(table(torch.tensor([-1.0, 0.5, 2.0, 9.0])), torch.tensor([0.1, 0.3, 0.55, 0.6]))
