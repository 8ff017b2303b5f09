"""The motion gate: noise and flicker are still, what moves is not, and slow changes add up."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sources.cameras.motion import GRID, MotionGate, shrink_grey


def scene(seed: int = 0, height: int = 480, width: int = 640) -> np.ndarray:
    return np.random.default_rng(seed).integers(40, 200, (height, width), dtype=np.uint8)


def noisy(picture: np.ndarray, seed: int, sigma: float = 4.0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, sigma, picture.shape)
    return np.clip(picture + noise, 0, 255).astype(np.uint8)


def gated(first: np.ndarray, share: float = 0.01) -> MotionGate:
    gate = MotionGate(share)
    gate.note_passed(shrink_grey(first))
    return gate


def test_the_noise_of_a_sensor_is_still():
    gate = gated(scene())
    assert all(gate.is_still(shrink_grey(noisy(scene(), seed))) for seed in range(20))


def test_something_that_walks_in_is_not_still():
    moved = scene()
    moved[200:280, 300:360] = 255
    assert not gated(scene()).is_still(shrink_grey(moved))


def test_the_first_picture_passes_and_a_share_of_zero_lets_all_pass():
    cells = shrink_grey(scene())
    assert not MotionGate(0.5).is_still(cells)
    assert not gated(scene(), 0.0).is_still(cells)


def test_a_scene_that_grows_dark_slowly_passes_at_last():
    gate, passed = gated(scene()), 0
    for step in range(40):
        cells = shrink_grey(np.clip(scene().astype(int) - step, 0, 255).astype(np.uint8))
        if not gate.is_still(cells):
            passed += 1
            gate.note_passed(cells)
    assert 2 <= passed <= 5


@given(st.integers(1, 70), st.integers(1, 90), st.integers(0, 255))
def test_a_picture_of_any_size_shrinks_to_the_cells_and_keeps_its_brightness(height, width, value):
    cells = shrink_grey(np.full((height, width), value, np.uint8))
    assert cells.shape == GRID
    assert (cells == value).all()


def test_a_camera_that_changes_its_size_is_compared_all_the_same():
    wide = scene(height=240, width=320).repeat(2, 0).repeat(2, 1)
    gate = gated(wide)
    assert gate.is_still(shrink_grey(wide[::2, ::2]))
