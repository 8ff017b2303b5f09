"""What a report says where a pair does not pay: the route that would, the quicker model, the goal that is met."""

import msgspec
import numpy as np
import pytest

from models.bundle.measurements import CalibrationFigures, QualityMetric
from models.cli.compare import format_asking
from models.forge.evaluation.outcomes import Outcomes, add_given_loss
from models.forge.evaluation.trivial_baseline import TrivialBaseline
from models.forge.export.device_work import DeviceWork
from models.forge.report.payoff import PayoffEvidence, judge_payoff, list_pair_warnings
from models.forge.report.payoff_warnings import (
    HeldoutLabels,
    find_sample_offer,
    warn_of_calibration,
    warn_of_device_work,
    warn_of_missed_labels,
    warn_of_untrained_model,
)
from models.forge.routes.frontier import RoutePoint
from models.forge.training.code_path import Route
from tests.models.conftest import make
from wire.protocol.messages import SensitivityLevel

SAMPLE = RoutePoint("sample-256", Route.SAMPLE, "P4", 256, 772, 0.95, 0.85, 0.95, 1.0, 0.0, 0.0, 0.1, 400)
FIGURES = CalibrationFigures(QualityMetric.ACCURACY, 1000, 0.9, 0.9, 0.98, 0.99, 0.0, 0.0, 0.0, 0.0)


def outcomes(*, edge_wrong: int, given_wrong: int, samples: int = 1000) -> Outcomes:
    """The least sure samples are the wrong ones; the codes tell the hub nothing, so that it is wrong on all of them."""
    numbers = np.arange(samples)
    found = Outcomes(numbers / samples, numbers >= edge_wrong, np.zeros(samples, bool))
    return add_given_loss(found, (numbers < given_wrong).astype(np.float64))


def test_where_the_codes_lose_the_gain_the_sample_is_offered_by_name(tmp_path):
    found = outcomes(edge_wrong=100, given_wrong=10)
    manifest = msgspec.structs.replace(make(tmp_path / "echo").manifest, calibration=FIGURES)
    told = judge_payoff(manifest, found, 10_000, PayoffEvidence(silence="nobody is asked", points=(SAMPLE,))).warnings
    (line,) = [line for line in told if "does not pay" in line]
    assert "asked for the least sure 10%, gains 9.0 points" in line
    assert "--sample-level LEVEL --path sample-256 --max-share 0.1" in line


def test_where_no_route_gains_none_is_offered(tmp_path):
    found = outcomes(edge_wrong=100, given_wrong=100)
    assert find_sample_offer(found, (SAMPLE,)) == ""
    manifest = msgspec.structs.replace(make(tmp_path / "echo").manifest, calibration=FIGURES)
    told = judge_payoff(manifest, found, 10_000, PayoffEvidence(silence="nobody is asked", points=(SAMPLE,))).warnings
    assert any("no route that was measured does" in line for line in told)


def test_a_goal_that_the_device_meets_alone_blames_no_code():
    (line,) = list_pair_warnings(FIGURES, None, outcomes(edge_wrong=100, given_wrong=10))
    assert line.startswith("nobody is asked: 90.0% of the device alone meets the goal")
    assert "what travels" not in line


def test_a_model_that_is_quicker_than_the_half_is_named_with_its_figures():
    found = outcomes(edge_wrong=100, given_wrong=10)
    (line,) = warn_of_device_work(DeviceWork(0.86, 14.0, 2.46), found)
    assert "your model itself is quicker here: 14 us" in line
    assert "2.46 times as long, and as good or better (99.0% against 90.0%)" in line
    (share,) = warn_of_device_work(DeviceWork(0.86, 14.0, 0.7), found)
    assert "86% of your model's multiply-accumulates" in share
    assert warn_of_device_work(DeviceWork(0.2, 14.0, 0.7), found) == []


def test_a_half_that_does_most_of_the_work_is_said_where_no_limit_was_given():
    found = outcomes(edge_wrong=100, given_wrong=10)
    (line,) = warn_of_device_work(DeviceWork(0.97, None, None), found)
    assert "does 97% of your model's multiply-accumulates, where 25% is the aim" in line
    assert "--head-share makes it a limit" in line


def test_rare_labels_that_are_missed_are_named_beside_a_high_accuracy():
    y = np.repeat([0, 1, 2], [990, 7, 3])
    found = Outcomes(np.ones(1000), y == 0, np.zeros(1000, bool))
    line = warn_of_missed_labels(found, 0.5, HeldoutLabels(y, ("normal", "probe", "theft")))
    assert "99.0% of all held-out samples are right, but 0% of the 7 of probe; " in line
    alike = HeldoutLabels(np.arange(1000) % 3, ("normal", "probe", "theft"))
    assert warn_of_missed_labels(found, 0.5, alike) == ""


def test_a_model_at_chance_is_said():
    base = TrivialBaseline("always the most frequent label", (np.arange(1000) < 830).astype(np.float64))
    assert "no better than" in warn_of_untrained_model(outcomes(edge_wrong=0, given_wrong=840), base)
    assert warn_of_untrained_model(outcomes(edge_wrong=0, given_wrong=100), base) == ""


@pytest.mark.parametrize(("error", "said"), [(0.206, True), (0.05, False)])
def test_confidences_that_are_no_probabilities_are_said(error: float, said: bool):
    assert bool(warn_of_calibration(msgspec.structs.replace(FIGURES, ece_after=error))) is said


def test_a_pair_that_asks_nothing_is_never_shown_without_that_word(tmp_path):
    manifest = make(tmp_path / "echo").manifest
    asking = msgspec.structs.replace(FIGURES, asked=0.2, threshold=0.5)
    private = msgspec.structs.replace(manifest.features[0], level=SensitivityLevel.P2)
    open_field = msgspec.structs.replace(private, level=SensitivityLevel.P1)
    for changes, words in (
        ({"calibration": FIGURES}, "asking nobody (threshold 0)"),
        ({"calibration": asking, "leakage": (), "features": (private,)}, "(denied_unmeasured)"),
        ({"calibration": asking, "leakage": (), "features": (open_field,)}, "escalating 20.0% below 0.5"),
    ):
        assert format_asking(msgspec.structs.replace(manifest, **changes)).endswith(words)
