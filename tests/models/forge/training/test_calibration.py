"""Temperature scaling and expected calibration error."""

import numpy as np
import pytest

from models.forge.training.calibration import expected_calibration_error, fit_temperature, softmax_probabilities


def calibration_error(scores, y):
    return expected_calibration_error(scores.max(1), scores.argmax(1) == y)


def overconfident(factor, count=4000, labels=5):
    """Logits that would be calibrated at temperature `factor`."""
    rng = np.random.default_rng(1)
    honest = rng.normal(0, 2, (count, labels))
    scores = softmax_probabilities(honest, 1.0)
    y = (scores.cumsum(1) > rng.random((count, 1))).argmax(1)
    return honest * factor, y


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_temperature_undoes_over_and_under_confidence(factor):
    logits, y = overconfident(factor)
    found = fit_temperature(logits, y)
    assert found == pytest.approx(factor, rel=0.1)
    before, after = (calibration_error(softmax_probabilities(logits, t), y) for t in (1.0, found))
    assert after < 0.03
    assert after <= before + 0.005


def test_a_model_that_is_always_right_and_sure_has_no_calibration_error():
    scores, y = np.eye(3)[[0, 1, 2, 1]], np.array([0, 1, 2, 1])
    assert calibration_error(scores, y) == 0
    assert calibration_error(scores, (y + 1) % 3) == 1


def test_probabilities_survive_huge_logits():
    assert softmax_probabilities(np.array([[1e30, -1e30]]), 1.0).tolist() == [[1.0, 0.0]]


def test_samples_of_no_label_do_not_move_the_temperature():
    logits, y = overconfident(3.0)
    strange = np.random.default_rng(3).normal(0, 9, (500, 5))
    assert fit_temperature(np.vstack([logits, strange]), np.r_[y, np.full(500, -1)]) == fit_temperature(logits, y)


def test_a_gate_that_is_sure_of_everything_is_off_by_its_error_rate():
    assert expected_calibration_error(np.ones(10), np.arange(10) < 7) == pytest.approx(0.3)


@pytest.mark.parametrize("scale", [1.0, 4.0, 12.0])
def test_a_model_without_an_error_gets_a_temperature_inside_the_range(scale):
    rng = np.random.default_rng(2)
    y = rng.integers(0, 5, 420)
    logits = np.eye(5)[y] * 6 * scale + rng.normal(0, scale, (420, 5)).clip(-2, 2)
    assert (logits.argmax(1) == y).all()
    found = fit_temperature(logits, y)
    assert 0.06 < found < 19
    sure = softmax_probabilities(logits, found).max(1)
    assert 1 - 10 / 420 < sure.mean() < 1 - 0.1 / 420, "about one error in as many samples, neither none nor many"


def test_samples_of_no_label_alone_leave_the_softmax_as_it_is():
    assert fit_temperature(np.ones((3, 2)), np.full(3, -1)) == 1.0
