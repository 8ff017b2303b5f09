"""The threshold asks where calibration shows a gain, never where asking hurts, and keeps its promise for groups."""

import numpy as np
import pytest

from models.forge.data.types import ForgeError
from models.forge.evaluation.outcomes import Outcomes, add_groups, regressor_outcomes
from models.forge.evaluation.threshold_choice import choose_threshold, measure_gains
from models.forge.spec import ForgeSpec


def draw(samples, *, edge, hub, seed=0):
    """Outcomes of an edge and a hub that are right with these probabilities, given the confidence."""
    rng = np.random.default_rng(seed)
    confidence = rng.random(samples)
    return Outcomes(confidence, rng.random(samples) < edge(confidence), rng.random(samples) < hub(confidence))


def calibrated(confidence):
    return confidence


def gain_of(found, threshold):
    asked = found.confidence < threshold
    return float(np.where(asked, found.edge_loss - found.hub_loss, 0).mean())


def test_as_many_are_asked_as_were_allowed_where_every_question_pays():
    found = draw(4000, edge=calibrated, hub=lambda c: np.full(len(c), 0.95))
    choice = choose_threshold(found, ForgeSpec(max_share=0.25))
    assert choice.best is not None
    assert 0.23 < choice.best.share <= 0.25
    assert (choice.reason, choice.asked_limit) == ("", 0.25)
    assert choice.best.low > 0.1


def test_nobody_is_asked_where_the_hub_is_worse_than_the_edge():
    found = draw(4000, edge=lambda c: np.full(len(c), 0.985), hub=lambda c: np.full(len(c), 0.973))
    for wish in (ForgeSpec(), ForgeSpec(max_share=0.25)):
        choice = choose_threshold(found, wish)
        assert choice.threshold == 0.0
        assert choice.reason.startswith("nobody is asked: on 4000 calibration samples")


def test_only_the_samples_where_the_hub_helps_are_asked():
    """Below a confidence of 0.1 the hub mends, from there on it breaks what was right: 25 % allowed, 10 % asked."""
    found = draw(8000, edge=lambda c: np.where(c < 0.1, 0.3, 0.99), hub=lambda c: np.full(len(c), 0.9))
    choice = choose_threshold(found, ForgeSpec(max_share=0.25))
    assert choice.best is not None
    assert 0.08 < choice.best.share < 0.115


def test_a_gain_that_may_be_noise_asks_nobody_and_says_so():
    edge = np.ones(400, bool)
    edge[:2] = False  # two of 400 are mended: as well chance
    found = Outcomes(np.linspace(0, 1, 400), edge, np.ones(400, bool))
    choice = choose_threshold(found, ForgeSpec())
    assert choice.threshold == 0.0
    assert "gains 0.50 points of accuracy, with 95% at least -" in choice.reason
    assert "bring more" in choice.reason


@pytest.mark.further
def test_with_a_hub_as_good_as_the_edge_asking_is_rare_and_costs_nothing_on_average():
    fresh = draw(200_000, edge=lambda c: np.full(len(c), 0.9), hub=lambda c: np.full(len(c), 0.9), seed=999)
    same = [
        draw(600, edge=lambda c: np.full(len(c), 0.9), hub=lambda c: np.full(len(c), 0.9), seed=s) for s in range(60)
    ]
    chosen = [choose_threshold(found, ForgeSpec()).threshold for found in same]
    assert np.mean([threshold > 0 for threshold in chosen]) < 0.25
    assert abs(np.mean([gain_of(fresh, threshold) for threshold in chosen])) < 0.001


@pytest.mark.further
def test_a_hub_that_hurts_a_little_is_hardly_ever_asked():
    worse = [
        draw(600, edge=lambda c: np.full(len(c), 0.92), hub=lambda c: np.full(len(c), 0.85), seed=s) for s in range(60)
    ]
    assert np.mean([choose_threshold(found, ForgeSpec()).threshold > 0 for found in worse]) < 0.06


@pytest.mark.parametrize(("hub_scale", "asks"), [(0.2, True), (1.5, False)])
def test_a_regressor_asks_where_squared_errors_shrink(hub_scale, asks):
    rng = np.random.default_rng(4)
    scale = rng.uniform(0.1, 3, 2000)
    edge, hub = rng.normal(0, scale), rng.normal(0, hub_scale * 3, 2000)
    found = regressor_outcomes(np.exp(-scale), edge, hub, np.zeros(2000), 0.5)
    choice = choose_threshold(found, ForgeSpec())
    assert (choice.threshold > 0) is asks
    assert asks or "squared error" in choice.reason or "gains anything" in choice.reason


def patients(count, *, seed, hub=0.98):
    """Outcomes of patients whose confidence differs: of some nearly all is unsure, of others nothing."""
    rng = np.random.default_rng(seed)
    lift = rng.normal(0, 1, count)
    groups = np.repeat(np.arange(count), 100)
    confidence = 1 / (1 + np.exp(-(1.5 + lift[groups] + rng.normal(0, 1, len(groups)))))
    found = Outcomes(confidence, rng.random(len(groups)) < confidence, rng.random(len(groups)) < hub)
    return add_groups(found, groups)


@pytest.mark.further
def test_the_asked_share_is_kept_for_patients_who_were_never_seen():
    everybody = patients(1500, seed=99)
    over = {"groups": 0, "samples": 0}
    for seed in range(40):
        seen = patients(8, seed=seed)
        for name, found in (("groups", seen), ("samples", Outcomes(seen.confidence, seen.edge_right, seen.hub_right))):
            choice = choose_threshold(found, ForgeSpec(max_share=0.2))
            over[name] += (everybody.confidence < choice.threshold).mean() > 0.2
    assert over["groups"] <= 4, "the promise is broken by one set of eight patients in ten at most"
    assert over["samples"] > 10, "single samples as units promise what they cannot keep"


def test_the_choice_says_that_the_promise_is_about_groups():
    choice = choose_threshold(patients(40, seed=1), ForgeSpec(max_share=0.2))
    assert (choice.groups, choice.asked_limit) == (40, 0.2)
    assert choice.threshold > 0


def test_a_gain_of_one_patient_alone_is_not_shown():
    found = patients(6, seed=3)
    right = np.where(found.groups == 2, True, found.edge_right)  # the hub helps one of six
    alone = Outcomes(found.confidence, found.edge_right, right, groups=found.groups)
    choice = choose_threshold(alone, ForgeSpec(max_share=0.5))
    assert choice.threshold == 0.0
    assert "6 calibration groups" in choice.reason


def test_a_single_group_shows_nothing():
    found = patients(1, seed=5)
    assert choose_threshold(found, ForgeSpec()).threshold == 0.0


def test_an_accuracy_that_is_reached_without_asking_asks_nobody():
    found = draw(1000, edge=lambda c: np.full(len(c), 0.9), hub=lambda c: np.full(len(c), 0.95))
    assert choose_threshold(found, ForgeSpec(target_accuracy=0.5)).threshold == 0.0
    with pytest.raises(ForgeError, match="the best this pair does"):
        choose_threshold(found, ForgeSpec(target_accuracy=0.999))


def test_equal_confidences_are_asked_together_or_not_at_all():
    found = Outcomes(np.full(100, 0.5), np.zeros(100, bool), np.ones(100, bool))
    choice = choose_threshold(found, ForgeSpec())
    assert choice.threshold == 0.0
    assert "told apart" in choice.reason
    assert choose_threshold(found, ForgeSpec(max_share=1.0)).threshold == 1.0


def test_gains_are_listed_for_rising_shares():
    rows = measure_gains(draw(1000, edge=calibrated, hub=lambda c: np.full(len(c), 0.95)), 250, 10)
    assert [row.asked for row in rows] == sorted(row.asked for row in rows)
    assert rows[-1].asked == 250
    assert all(row.low < row.gain for row in rows)
