"""Trivial baselines: a bag of words finds words, a linear model finds lines, and both leave other samples alone."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from models.forge.data.types import Data, DataPart
from models.forge.evaluation.trivial_baseline import fit_trivial_baselines


def split(x, y, labels=()):
    ends = [0, 600, 800, 1000]
    parts = [DataPart((x[a:b],), y[a:b]) for a, b in pairwise(ends)]
    return Data(parts[0], parts[1], parts[2], labels)


def accuracy(base):
    return 1 - base.loss.mean()


def test_a_bag_of_words_knows_a_label_by_its_words():
    rng = np.random.default_rng(0)
    x, y = rng.integers(10, 60, (1000, 12)), rng.integers(0, 5, 1000)
    x[:, 3] = y  # ids 0 to 4 tell the label, the others nothing
    constant, words = fit_trivial_baselines(split(x, y, tuple("abcde")))
    assert words.name == "a bag of words"
    assert accuracy(words) > 0.9
    assert 0.1 < accuracy(constant) < 0.35


@pytest.mark.further
def test_a_linear_model_fits_a_line_and_not_a_ring():
    rng = np.random.default_rng(1)
    x = rng.normal(0, 50, (1000, 2, 3)).astype(np.float32)
    line, ring = (x[:, 0, 0] > 0).astype(np.int64), (np.abs(x[:, 0, 0]) > 35).astype(np.int64)
    assert accuracy(fit_trivial_baselines(split(x, line, ("a", "b")))[1]) > 0.97
    assert accuracy(fit_trivial_baselines(split(x, ring, ("a", "b")))[1]) < 0.65


def test_values_are_fitted_in_units_of_the_target():
    rng = np.random.default_rng(2)
    x = rng.normal(0, 1, (1000, 4)).astype(np.float32)
    y = (1000 + 200 * x[:, 1] + rng.normal(0, 20, 1000)).astype(np.float32)
    mean, linear = fit_trivial_baselines(split(x, y))
    assert mean.name == "always the mean"
    assert 180 < np.sqrt(mean.loss.mean()) < 220
    assert np.sqrt(linear.loss.mean()) < 40


def test_samples_of_no_label_do_not_count():
    rng = np.random.default_rng(3)
    x, y = rng.normal(0, 1, (1000, 4)).astype(np.float32), rng.integers(0, 2, 1000)
    y[::4] = -1
    constant, linear = fit_trivial_baselines(split(x, y, ("a", "b")))
    assert len(constant.loss) == len(linear.loss) == (y[800:] >= 0).sum()


@pytest.mark.further
def test_baselines_are_the_same_for_the_same_data_and_leave_the_random_state_alone():
    rng = np.random.default_rng(4)
    data = split(rng.normal(0, 1, (1000, 4)).astype(np.float32), rng.integers(0, 2, 1000), ("a", "b"))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other = fit_trivial_baselines(data), fit_trivial_baselines(data)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(one[1].loss, other[1].loss)


@pytest.mark.further
def test_a_weak_trace_in_many_numbers_is_found():
    x = np.random.default_rng(5).normal(0, 1, (1000, 3, 40, 40)).astype(np.float32)
    y = np.arange(1000) % 2
    x[:, 1] += 0.2 * y[:, None, None]
    assert accuracy(fit_trivial_baselines(split(x, y, ("a", "b")))[1]) > 0.9
