"""Image corruption and the digits' fixed split: reproducible, in range, without shared samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.forge.data.augment import (
    CORRUPTIONS,
    add_noise,
    corrupt_pictures,
    cover_patch,
    lower_contrast,
    shift_pictures,
)
from models.forge.data.digits import HELDOUT, load_calibration, load_heldout, load_training


def pictures(count=200, channels=1, side=8):
    return np.random.default_rng(0).random((count, channels, side, side), np.float32)


def test_the_same_seed_damages_the_same_pictures_in_the_same_way():
    first, again = (corrupt_pictures(pictures(), np.random.default_rng(4), 0.5) for _ in range(2))
    other = corrupt_pictures(pictures(), np.random.default_rng(5), 0.5)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@given(st.integers(0, 2**32), st.floats(0, 1), st.sampled_from([(1, 8), (3, 12), (2, 4)]))
def test_whatever_the_damage_pictures_stay_pictures(seed, share, form):
    x = pictures(20, *form)
    before = x.copy()
    out = corrupt_pictures(x, np.random.default_rng(seed), share)
    assert out.shape == x.shape
    assert out.dtype == np.float32
    assert 0 <= out.min() <= out.max() <= 1
    assert np.array_equal(x, before)


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.4, 0.3, 0.5), (1.0, 0.85, 1)])
def test_about_the_asked_share_is_damaged(share, least, most):
    x = pictures(1000)
    differs = (corrupt_pictures(x, np.random.default_rng(1), share) != x).any((1, 2, 3)).mean()
    assert least <= differs <= most


def test_each_kind_does_what_it_is_called():
    x, rng = pictures(50, 2), np.random.default_rng(2)
    assert 0.25 < (add_noise(x, rng) - x).std() < 0.35
    covered = cover_patch(x, rng) != x
    assert covered.any(1).sum((1, 2)).tolist() == [9] * 50
    assert np.allclose(lower_contrast(x, rng).std((1, 2, 3)) / x.std((1, 2, 3)), 0.35, atol=0.16)
    assert len(CORRUPTIONS) == 4


def test_a_shift_moves_the_whole_picture_and_fills_with_black():
    x = np.zeros((300, 1, 8, 8), np.float32)
    x[:, 0, 4, 4] = 1
    moved = shift_pictures(x, np.random.default_rng(3))
    assert (moved.sum((1, 2, 3)) == 1).all()
    places = {tuple(place) for place in np.argwhere(moved.sum((0, 1)))}
    assert places == {(row, column) for row in (3, 4, 5) for column in (3, 4, 5)}


def test_heldout_digits_are_never_trained_on():
    (x, y), (chosen_x, _), (held_x, held_y) = load_training(), load_calibration(), load_heldout()
    assert len(held_x) == len(held_y) == HELDOUT
    assert len(x) + len(chosen_x) + len(held_x) == 1797
    assert held_x.shape[1:] == (1, 8, 8)
    assert held_x.dtype == np.float32
    assert (held_x.min(), held_x.max()) == (0, 1)
    seen = {picture.tobytes() for picture in (*x, *chosen_x)}
    assert sum(picture.tobytes() in seen for picture in held_x) == 0
    assert set(held_y.tolist()) == set(y.tolist()) == set(range(10))
