"""The noise that a DP rule adds: a discrete Gaussian by exact arithmetic, on its grid and nowhere else."""

from math import erfc, exp, sqrt

import numpy as np
import pytest

from edge_agent.system.noise import build_noise_table, draw_noise, look_up_noise
from models.runtime.chain import TransformStep
from models.runtime.transforms import TransformTools, apply_transforms, default_grid
from policies.model.differential_privacy import compute_gaussian_delta
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

MILLION = 10**6
TOOLS = TransformTools(draw_noise, b"")


def probabilities(sigma: float, top: int) -> np.ndarray:
    x = np.arange(-top, top + 1)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    shares: np.ndarray = weights / weights.sum()
    return shares


@pytest.mark.parametrize("sigma", [4.0, 7.3, 160.0])
def test_a_million_draws_are_the_discrete_gaussian(sigma):
    """Pearson's chi-square over all values that are expected 100 times or more; false alarm: 1 in 10^6."""
    top = int(13 * sigma) + 1
    expected = MILLION * probabilities(sigma, top)
    counts = np.bincount(draw_noise(sigma, MILLION).astype(int) + top, minlength=2 * top + 1)
    often = expected >= 100
    observed = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    chi2, freedom = float(((observed - wanted) ** 2 / wanted).sum()), len(wanted) - 1
    z = ((chi2 / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom))  # Wilson and Hilferty 1931
    assert erfc(z / sqrt(2)) / 2 > 1e-6, f"chi-square {chi2:g} of {freedom}"


@pytest.mark.parametrize(("sigma", "grid"), [(2.0, 0.25), (0.75, 0.0), (40.0, 1.0)])
def test_what_leaves_lies_on_the_grid_and_in_the_range(sigma, grid):
    field = FieldSpec("x", TensorDType.FP32, (MILLION,), -3.1, 3.3, SensitivityLevel.P2, "features")
    given = np.linspace(-3.1, 3.3, MILLION, dtype=np.float32)[None]
    out = apply_transforms(given, (TransformStep("noise", step=sigma, high=grid),), field, TOOLS)
    used = grid or default_grid(sigma, whole=False)
    points = out.astype(np.float64) / used
    assert (points == np.rint(points)).all()
    assert out.dtype == np.float32
    assert out.min() >= -3.1
    assert out.max() <= 3.3


def test_codes_stay_codes_under_noise():
    field = FieldSpec("codes", TensorDType.UINT8, (1000,), 0, 15, SensitivityLevel.P2, "features")
    out = apply_transforms(np.full((1000, 1000), 7, np.uint8), (TransformStep("noise", step=4.0),), field, TOOLS)
    assert out.dtype == np.uint8
    assert set(np.unique(out).tolist()) == set(range(16))


def test_the_lower_word_decides_where_the_upper_one_meets_an_entry():
    table = build_noise_table(4.0)
    at = table.top  # P(X <= 0)
    upper, lower = divmod(table.whole[at], 2**64)
    words = np.array([upper], np.uint64)
    assert look_up_noise(table, words, lambda: lower) == [1]  # the draw is the entry itself: just beyond it
    assert look_up_noise(table, words, lambda: lower - 1) == [0]


def test_the_first_and_the_last_draw_are_in_the_table():
    table = build_noise_table(4.0)
    ends = look_up_noise(table, np.array([0, 2**64 - 1], np.uint64), lambda: 0)
    assert ends[0] == -table.top
    assert 0 < ends[1] <= table.top


@pytest.mark.parametrize(("ratio", "over"), [(4.0, 1.12), (16.0, 1.01)])
def test_on_so_fine_a_grid_the_closed_form_of_epsilon_holds(ratio, over):
    """delta of the discrete Gaussian, summed up, beside that of the continuous one as which it is accounted."""
    here = probabilities(ratio, 2 * int(13 * ratio))
    for shift in (1, int(ratio), 2 * int(ratio)):
        for epsilon in np.linspace(0.01, 8, 100):
            exact = np.maximum(here - exp(epsilon) * np.roll(here, shift), 0).sum()
            assert exact <= over * compute_gaussian_delta(epsilon, shift / ratio) + 1e-9


def test_draws_are_never_the_same_twice():
    assert not np.array_equal(draw_noise(100.0, 1000), draw_noise(100.0, 1000))
