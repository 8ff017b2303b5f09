"""Learned gate: escalates where the hub helps, is a calibrated probability, and is left out where it would not pay."""

import numpy as np
import pytest
import torch

from models.forge.training.calibration import fit_tolerance
from models.forge.training.gate import (
    ConfidenceGate,
    GateSamples,
    PiecewiseLinear,
    _assign_folds,
    fit_gate,
    fit_isotonic,
    fit_value_gate,
    mean_recovered,
)
from tests.models.forge.training.gate_world import make_gate_samples


def _own(seen: GateSamples) -> torch.Tensor:
    return seen.logits.argmax(1) == seen.y


@pytest.fixture(scope="module")
def gate() -> ConfidenceGate:
    found = fit_gate(make_gate_samples(telling=True), seed=1)
    assert found is not None
    return found


@pytest.mark.further
def test_a_gate_finds_what_the_softmax_cannot_see(gate):
    fresh = make_gate_samples(telling=True, seed=5)
    own, hub = _own(fresh), fresh.hub.argmax(1) == fresh.y
    confidence = gate(fresh.logits, fresh.summary)
    softmax = torch.softmax(fresh.logits, 1).amax(1)
    assert mean_recovered(confidence, own, hub) > mean_recovered(softmax, own, hub) + 0.03


def test_confidence_reads_as_the_probability_of_being_right(gate):
    fresh = make_gate_samples(telling=True, seed=6)
    confidence, own = gate(fresh.logits, fresh.summary).detach().numpy(), _own(fresh).numpy()
    assert confidence.min() >= 0
    assert confidence.max() <= 1
    low = confidence < 0.5
    assert abs(confidence[low].mean() - own[low].mean()) < 0.08
    assert abs(confidence[~low].mean() - own[~low].mean()) < 0.03


@pytest.mark.further
def test_a_gate_that_is_no_better_than_the_softmax_is_left_out():
    chance = torch.Generator().manual_seed(3)
    y = torch.randint(3, (900,), generator=chance)
    logits = torch.nn.functional.one_hot(y, 3) * 9.0
    assert fit_gate(GateSamples(logits, torch.zeros(900, 2), logits, y), seed=0) is None  # the device is always right


def test_few_samples_teach_no_gate():
    assert fit_gate(make_gate_samples(telling=True, count=100), seed=0) is None


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


def _values(*, telling: bool, count: int = 1500, seed: int = 0) -> GateSamples:
    """A regressor whose hub knows a part of the target that the device does not; the trunk tells how large it is.

    The device's own error scale tells nothing: it is as large where the hub is of no help.
    """
    chance = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, generator=chance) * 3
    noise = torch.rand(count, generator=chance) * 3
    y = 50 + hidden + noise * torch.randn(count, generator=chance)
    value = torch.full((count,), 50.0)
    shown = hidden.abs() if telling else torch.zeros(count)
    summary = torch.stack([shown, torch.randn(count, generator=chance)], 1)
    return GateSamples(torch.stack([value, noise.log()], 1), summary, (50 + hidden)[:, None], y)


@pytest.fixture(scope="module")
def value_gate() -> ConfidenceGate:
    found = fit_value_gate(_values(telling=True), seed=1)
    assert found is not None
    return found


def _rmse_asking(share: float, score: torch.Tensor, seen: GateSamples) -> float:
    asked = score <= score.quantile(share)
    answers = torch.where(asked, seen.hub[:, 0], seen.logits[:, 0])
    return float((answers - seen.y).square().mean().sqrt())


@pytest.mark.further
def test_a_regressor_asks_where_the_hub_takes_off_most_of_the_error(value_gate):
    fresh = _values(telling=True, seed=5)
    gate = _rmse_asking(0.25, value_gate(fresh.logits, fresh.summary), fresh)
    scale = _rmse_asking(0.25, -fresh.logits[:, 1], fresh)
    assert gate < scale - 0.4


@pytest.mark.further
def test_a_regressor_of_which_nothing_tells_the_gain_keeps_its_own_scale():
    assert fit_value_gate(_values(telling=False), seed=1) is None
    assert fit_value_gate(_values(telling=True, count=100), seed=1) is None


@pytest.mark.further
def test_confidence_of_a_regressor_is_a_share_of_answers_within_the_tolerance(value_gate):
    fresh = _values(telling=True, seed=7)
    confidence = value_gate(fresh.logits, fresh.summary)
    tolerance = fit_tolerance((fresh.hub[:, 0] - fresh.y).numpy(), fresh.y.numpy())
    right = ((fresh.logits[:, 0] - fresh.y).abs() <= tolerance).float()
    assert 0 <= confidence.min() <= confidence.max() <= 1
    assert abs(confidence.mean() - right.mean()) < 0.05
    sure = confidence > confidence.median()
    assert right[sure].mean() > right[~sure].mean() + 0.1


def test_a_group_is_left_out_as_a_whole():
    groups = torch.arange(300) % 7
    folds = _assign_folds(300, groups, seed=3)
    assert all(len(folds[groups == group].unique()) == 1 for group in range(7))
    assert len(folds.unique()) == 5
    assert len(_assign_folds(300, torch.zeros(300, dtype=torch.int64), seed=3).unique()) == 5, "one group: single rows"
