"""Out of domain: a stated share of false alarms, measured on held-out samples, for both halves."""

import numpy as np
import pytest

from models.bundle.measurements import DomainScore
from models.forge.evaluation.domain import (
    choose_hub_score,
    measure_domain,
    measure_edge_domain,
    measure_hub_domain,
    share_interval,
)
from models.runtime.novelty import is_novelty_usual, judge_logits, score_logits


def both(count: int) -> list[np.ndarray]:
    """Labels of two parts whose samples are all in scope."""
    return [np.zeros(count, int)] * 2


def test_the_promised_share_of_false_alarms_holds_on_samples_drawn_alike():
    rng = np.random.default_rng(0)
    found = measure_domain(DomainScore.NOVELTY, list(rng.random((2, 4000))), both(4000), 0.05)
    assert found is not None
    assert found.low95 <= 0.05 <= found.high95
    assert found.samples == 4000
    assert found.outside == 0


def test_samples_out_of_scope_set_no_threshold_and_are_counted_as_recall():
    scores = np.concatenate([np.linspace(0, 1, 200), np.full(50, 9.0)])
    labels = np.concatenate([np.zeros(200, int), np.full(50, -1)])
    found = measure_domain(DomainScore.ENERGY, [scores, scores], [labels, labels], 0.1)
    assert found is not None
    assert found.threshold < 1
    assert (found.recall, found.outside, found.samples) == (1.0, 50, 200)


def test_too_few_samples_for_the_share_give_no_threshold():
    assert measure_domain(DomainScore.ENERGY, list(np.ones((2, 10))), both(10), 0.05) is None
    assert measure_edge_domain([None, None], both(10), 0.05) is None


def test_the_interval_of_a_share_holds_it():
    assert share_interval(0, 100) == pytest.approx((0.0, 0.0363), abs=1e-4)
    assert share_interval(5, 100) == pytest.approx((0.0164, 0.1129), abs=2e-4)
    assert share_interval(7, 7)[1] == 1.0


def test_scores_of_logits_rise_with_what_is_unusual_and_never_overflow():
    logits = np.array([[1000.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    for score in set(DomainScore) - {DomainScore.NOVELTY}:
        found = score_logits(logits, score)
        assert np.isfinite(found).all()
        assert (np.diff(found) > 0).all()
    assert score_logits(logits, DomainScore.ENERGY)[2] == pytest.approx(-np.log(3))
    assert score_logits(logits, DomainScore.COLD_ENERGY)[1] == pytest.approx(-np.log(np.exp(4) + 2) / 2)
    with pytest.raises(ValueError, match="edge graph"):
        score_logits(logits, DomainScore.NOVELTY)


def _logits(*, outside: int) -> tuple[np.ndarray, np.ndarray]:
    """Known samples have one high logit; those out of scope have two equal ones, as high: only the softmax tells."""
    rng = np.random.default_rng(1)
    y = np.concatenate([rng.integers(4, size=300), np.full(outside, -1)])
    z = rng.normal(0, 0.1, (300 + outside, 4))
    z[np.arange(300), y[:300]] += 8.0
    z[300:, 0] += 9.0
    z[300:, 1] += 9.0
    return z, y


def test_the_hubs_score_is_the_one_that_finds_what_is_out_of_scope_in_the_calibration_part():
    assert choose_hub_score(*_logits(outside=60), 0.05) is DomainScore.SOFTMAX
    z, y = _logits(outside=60)
    found = measure_hub_domain([z, z], [y, y], 0.05)
    assert found is not None
    assert found.recall == 1.0
    known = judge_logits(z, found)
    assert known[300:] == [False] * 60
    assert known[:300].count(True) >= 0.94 * 300


def test_without_such_samples_classes_are_held_back_and_two_labels_take_the_energy():
    assert choose_hub_score(*_logits(outside=0), 0.05) is not DomainScore.SOFTMAX
    rng = np.random.default_rng(0)
    assert choose_hub_score(rng.normal(size=(50, 2)), rng.integers(2, size=50), 0.05) is DomainScore.ENERGY


def test_no_threshold_and_no_number_say_nothing():
    assert judge_logits(np.zeros((2, 3)), None) == [None, None]
    assert is_novelty_usual(0.3, None) is None
    found = measure_domain(DomainScore.NOVELTY, [np.linspace(0, 1, 100)] * 2, both(100), 0.1)
    assert is_novelty_usual(-1.0, found) is None
    assert is_novelty_usual(float("nan"), found) is None
    assert (is_novelty_usual(0.5, found), is_novelty_usual(1.0, found)) == (True, False)
