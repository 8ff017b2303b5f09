"""Predictions: a replayed recording keeps its figures; calibration and stated shares give what they state."""

import numpy as np
import pytest

from simulations.nodes.predictions import PredictionSampler
from simulations.scenario.types import Model, RecordedOutcomes

MANY = 40_000


def take(model, threshold=0.8):
    found = PredictionSampler(model, threshold, np.random.default_rng(3)).draw_arrays(MANY)
    return {name: np.array(values) for name, values in found._asdict().items()}


def test_stated_shares_are_kept():
    found = take(Model(unsure_share=0.3, accuracy_edge=0.9, accuracy_unsure=0.5, accuracy_hub=0.95))
    unsure, right = found["confidence"] < 0.8, found["edge"] == found["truth"]
    assert unsure.mean() == pytest.approx(0.3, abs=0.01)
    assert right[unsure].mean() == pytest.approx(0.5, abs=0.02)
    assert right[~unsure].mean() == pytest.approx(0.9, abs=0.01)
    assert (found["hub"] == found["truth"]).mean() == pytest.approx(0.95, abs=0.01)


def test_recorded_samples_are_drawn_again_each_with_its_own_answers():
    rng = np.random.default_rng(1)
    confidence = rng.random(500)
    edge, hub = rng.random(500) < confidence, rng.random(500) < 0.9
    recorded = RecordedOutcomes(tuple(confidence.tolist()), tuple(edge.tolist()), tuple(hub.tolist()))
    found = take(Model(replay=recorded))
    of_row = {value: (bool(e), bool(h)) for value, e, h in zip(confidence, edge, hub, strict=True)}
    rights = zip(found["edge"] == found["truth"], found["hub"] == found["truth"], strict=True)
    assert all(of_row[value] == pair for value, pair in zip(found["confidence"], rights, strict=True))


def test_calibrated_confidence_has_its_deciles_and_keeps_its_word():
    found = take(Model(deciles=(0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)))
    assert np.quantile(found["confidence"], [0.1, 0.5, 0.9]) == pytest.approx([0.3, 0.8, 0.99], abs=0.02)
    sure = found["confidence"] > 0.9
    assert (found["edge"] == found["truth"])[sure].mean() == pytest.approx(found["confidence"][sure].mean(), abs=0.01)


def test_a_wrong_answer_is_another_label():
    found = take(Model(labels=2, accuracy_edge=0.0, accuracy_unsure=0.0, accuracy_hub=0.0))
    assert set(found["truth"]) == {0, 1}
    assert (found["edge"] != found["truth"]).all()
    assert (found["hub"] != found["truth"]).all()
