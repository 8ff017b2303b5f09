"""Deferral frontier, gap recovered and outcomes: exact small cases and properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.measurements import QualityMetric
from models.forge.data.types import ForgeError
from models.forge.evaluation.deferral import (
    compute_frontier,
    gap_recovered,
    oracle_curve,
    pair_curve,
    threshold_for_count,
)
from models.forge.evaluation.outcomes import (
    Outcomes,
    add_given_loss,
    add_groups,
    classifier_outcomes,
    encode_outcomes,
    fit_rejection,
    predict_or_reject,
    read_outcomes,
    regressor_outcomes,
)

SEEDS = st.integers(0, 2**32)


def drawn(seed, count=200, steps=1000):
    rng = np.random.default_rng(seed)
    confidence = np.round(rng.random(count) * steps) / steps
    return classifier_outcomes(
        confidence, (rng.random(count) < 0.5 + confidence / 2) + 0, np.ones(count, int), np.ones(count, int)
    )


def test_a_gate_that_knows_is_the_oracle_and_one_that_is_upside_down_is_not():
    right = np.array([True] * 60 + [False] * 40)
    knowing = Outcomes(right.astype(float), right, np.ones(100, bool))
    line = compute_frontier(knowing)
    assert (line.edge, line.hub, line.oracle, line.oracle_share) == (0.6, 1.0, 1.0, 0.4)
    assert [point.value for point in line.points] == pytest.approx([point.oracle for point in line.points])
    assert (line.cpt50, line.cpt80) == (0.2, 0.32)
    backwards = compute_frontier(Outcomes(1 - right.astype(float), right, np.ones(100, bool)))
    assert backwards.apgr + line.apgr == pytest.approx(1.0)


def test_a_gate_that_says_nothing_recovers_what_lots_would():
    right = np.array([True, False] * 50)
    line = compute_frontier(Outcomes(np.full(100, 0.5), right, np.ones(100, bool)))
    assert line.apgr == pytest.approx(0.5)
    assert (line.cpt50, line.cpt80) == (0.5, 0.8)


@given(SEEDS, st.sampled_from([3, 1000]))
def test_the_frontier_runs_from_the_edge_to_the_hub_below_the_oracle_in_any_order(seed, steps):
    found = drawn(seed, steps=steps)
    line, best = pair_curve(found), oracle_curve(found)
    assert (line[0], line[-1]) == pytest.approx((found.edge_right.mean(), found.hub_right.mean()))
    assert (line <= best + 1e-12).all()
    order = np.random.default_rng(seed).permutation(len(found))
    assert pair_curve(found[order]) == pytest.approx(line)


@given(SEEDS, st.sampled_from([5, 1000]), st.integers(0, 200))
def test_a_threshold_asks_as_many_as_wanted_or_fewer_where_some_are_equal(seed, steps, count):
    confidence = drawn(seed, steps=steps).confidence
    below = threshold_for_count(confidence, count)
    asked = (confidence < below).sum()
    assert asked <= count
    if len(np.unique(confidence)) == len(confidence) and count < 200:
        assert asked == count


def test_a_threshold_is_as_short_as_it_may_be():
    assert threshold_for_count(np.array([0.1, 0.612345, 0.678912, 0.9]), 2) == 0.67
    assert threshold_for_count(np.array([0.1, 0.678001, 0.678912, 0.9]), 2) == 0.6789
    assert threshold_for_count(np.array([0.1, 0.2]), 2) == 1.0


def test_errors_of_a_regressor_are_counted_as_rmse_where_less_is_better():
    edge, truth = np.array([4.0, 1.0, 0.0, 3.0]), np.zeros(4)
    found = regressor_outcomes(np.array([0.1, 0.6, 0.9, 0.3]), edge, np.zeros(4), truth, 2.0)
    assert found.metric is QualityMetric.RMSE
    assert found.edge_right.tolist() == [False, True, True, False]
    line = compute_frontier(found, (0.5,))
    assert line.edge == pytest.approx(np.sqrt(26 / 4))
    assert line.points[0].value == pytest.approx(0.5)
    assert line.points[0].recovered == pytest.approx(1 - 0.5 / np.sqrt(26 / 4))
    assert 0 < line.apgr < 1


def test_without_a_gap_nothing_is_recovered_and_nothing_crashes():
    found = Outcomes(np.array([0.2, 0.8]), np.array([True, True]), np.array([False, True]))
    line = compute_frontier(found)
    assert math.isnan(line.apgr)
    assert math.isnan(line.cpt80)
    assert np.isnan(gap_recovered(pair_curve(found), QualityMetric.ACCURACY, 0.5)).all()


def test_the_gap_is_that_to_the_model_that_was_given_and_not_to_the_hub_through_codes():
    edge = np.arange(100) >= 40  # wrong in 40, all of them asked first
    hub = np.arange(100) >= 30  # through its codes it mends 10 of them
    given = (np.arange(100) < 10).astype(float)  # on the raw samples it would mend 30
    found = add_given_loss(Outcomes(np.arange(100) / 100, edge, hub), given)
    line = compute_frontier(found, (0.4,))
    assert (line.hub, line.given) == (0.7, 0.9)
    assert line.points[0].recovered == pytest.approx(1 / 3)
    assert line.points[0].lossless == pytest.approx(1.0)
    assert math.isnan(line.cpt50), "half of the gap is never recovered"
    assert compute_frontier(Outcomes(found.confidence, edge, hub), (0.4,)).points[0].recovered == pytest.approx(1.0)


def test_a_hub_that_makes_things_worse_recovers_less_than_nothing():
    edge, hub, given = np.arange(10) >= 2, np.arange(10) >= 4, np.zeros(10)
    found = add_given_loss(Outcomes(np.arange(10) / 10, edge, hub), given)
    assert compute_frontier(found, (0.5,)).points[0].recovered == pytest.approx(-1.0)


@pytest.mark.parametrize("tolerance", [0.0, 1.5])
def test_outcomes_come_back_as_they_were_kept(tmp_path, tolerance):
    found = drawn(1)
    if tolerance:
        found = regressor_outcomes(found.confidence, found.confidence * 3, np.zeros(200), np.zeros(200), tolerance)
    path = tmp_path / "outcomes.npz"
    path.write_bytes(encode_outcomes(found))
    plain = read_outcomes(path)
    assert (len(plain.given_loss), len(plain.groups)) == (0, 0), "as older files have them"
    told = add_groups(add_given_loss(found, found.confidence), np.arange(200) // 50)
    path.write_bytes(encode_outcomes(told))
    again = read_outcomes(path)
    assert again[:60].given_loss.tolist() == found.confidence[:60].tolist()
    assert again[:60].groups.tolist() == [0] * 50 + [1] * 10
    assert again.tolerance == tolerance
    assert pair_curve(again).tolist() == pair_curve(found).tolist()
    assert (again[:50].hub_right == found.hub_right[:50]).all()


@pytest.mark.parametrize(
    ("confidence", "right", "hint"),
    [
        ([0.5, 1.2], [True, True], "0..1"),
        ([0.5, np.nan], [True, True], "0..1"),
        ([], [], "0 samples"),
        ([0.5], [True] * 2, "every"),
    ],
)
def test_what_cannot_be_outcomes_is_refused_with_one_line(tmp_path, confidence, right, hint):
    path = tmp_path / "outcomes.npz"
    np.savez(path, confidence=np.array(confidence), edge_right=np.array(right, bool), hub_right=np.array(right, bool))
    with pytest.raises(ForgeError, match=hint):
        read_outcomes(path)


def test_a_file_that_would_run_code_is_not_loaded(tmp_path):
    path = tmp_path / "outcomes.npz"
    np.savez(path, confidence=np.array([object()], object))
    with pytest.raises(ForgeError, match="cannot be read as outcomes"):
        read_outcomes(path)
    np.savez(path, confidence=np.zeros(2))
    with pytest.raises(ForgeError, match="has no 'edge_right'"):
        read_outcomes(path)


def test_samples_of_no_label_are_right_only_where_they_are_rejected():
    scores = np.array([[0.9, 0.1], [0.45, 0.55], [0.5, 0.5], [0.2, 0.8]])
    y = np.array([0, -1, -1, 0])
    below = fit_rejection(scores, y)
    assert 0.55 < below <= 0.8
    found = classifier_outcomes(scores.max(1), scores.argmax(1), predict_or_reject(scores, below), y)
    assert found.edge_right.tolist() == [True, False, False, False]
    assert found.hub_right.tolist() == [True, True, True, False]
    assert fit_rejection(scores, np.abs(y)) == 0.0


def test_where_all_is_of_no_label_all_is_rejected():
    scores = np.array([[0.9, 0.1], [0.45, 0.55]])
    assert (predict_or_reject(scores, fit_rejection(scores, np.array([-1, -1]))) == -1).all()
