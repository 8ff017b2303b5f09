"""Whether asking the hub pays, with intervals: the story of a pair that is worse than the device alone."""

import msgspec
import numpy as np
import pytest

from models.bundle.measurements import CalibrationFigures, QualityMetric
from models.forge.evaluation.outcomes import Outcomes, regressor_outcomes
from models.forge.report.payoff import Payoff, judge_payoff
from tests.models.conftest import make

BIG = 10_000


@pytest.fixture
def judge(tmp_path):
    plain = make(tmp_path / "echo").manifest

    def judged(found: Outcomes, *, raw_bytes: int = BIG, hub: float = 0.99) -> Payoff:
        asked = found.confidence < 0.5
        pair = np.where(asked, found.hub_loss, found.edge_loss).mean()
        edge = found.edge_loss.mean()
        if found.metric is QualityMetric.ACCURACY:
            edge, pair = 1 - edge, 1 - pair
        figures = CalibrationFigures(
            metric=found.metric, samples=len(found), edge=float(edge), pair=float(pair), hub=hub, oracle=1.0,
            threshold=0.5, asked=float(asked.mean()), ece_before=0.0, ece_after=0.0,
        )  # fmt: skip
        return judge_payoff(msgspec.structs.replace(plain, calibration=figures), found, raw_bytes)

    return judged


def classified(samples: int, asked: int, *, edge_wrong: range, hub_wrong: range) -> Outcomes:
    """The first `asked` of the samples go to the hub; which of all are wrong, by number."""
    numbers = np.arange(samples)
    confidence = np.where(numbers < asked, 0.1, 0.9)
    return Outcomes(confidence, ~np.isin(numbers, edge_wrong), ~np.isin(numbers, hub_wrong))


def test_a_pair_that_is_worse_than_the_device_alone_is_said_first(judge):
    # 130 samples, 33 asked: 97.7 % alone, 96.2 % as a pair, 516 B for a sample of 120 B
    found = judge(classified(130, 33, edge_wrong=range(3), hub_wrong=range(3, 8)), raw_bytes=120)
    first, second = found.warnings
    assert "asking the hub does not pay: 97.7% alone, 96.2% as a pair" in first
    assert f"{found.question_bytes} B" in second
    assert "120 B" in second
    assert found.gain < 0


def test_it_says_whether_the_given_model_or_the_bottleneck_is_to_blame(judge):
    worse = classified(130, 33, edge_wrong=range(3), hub_wrong=range(3, 8))
    assert "what travels loses it" in judge(worse, hub=0.99).warnings[0]
    assert "no question can help" in judge(worse, hub=0.97).warnings[0]


def test_a_pair_that_is_clearly_better_brings_no_warning(judge):
    found = judge(classified(1000, 250, edge_wrong=range(100), hub_wrong=range(10)))
    assert found.warnings == ()
    assert found.gained.low > 0
    assert found.gained.low < found.gain < found.gained.high
    assert found.edge.low < 0.9 < found.edge.high


def test_a_gain_that_few_samples_cannot_show_is_no_gain(judge):
    found = judge(classified(40, 10, edge_wrong=range(3), hub_wrong=range(2)))
    assert found.gain > 0
    assert "not shown to pay" in found.warnings[0]
    assert "bring more samples" in found.warnings[0]


def test_a_perfect_score_on_few_samples_is_not_certain(judge):
    small, large = (judge(classified(n, n // 4, edge_wrong=range(0), hub_wrong=range(0))) for n in (20, 20_000))
    assert small.edge.low < 0.9 < large.edge.low
    assert small.edge.high == large.edge.high == 1.0
    assert small.gained.low < 0 < small.gained.high  # nothing mended and nothing broken proves nothing


@pytest.mark.parametrize(("hub_scale", "pays"), [(0.1, True), (3.0, False)])
def test_a_regressor_is_judged_by_its_errors(judge, hub_scale, pays):
    rng = np.random.default_rng(3)
    truth, edge = np.zeros(400), rng.normal(0, 1, 400)
    confidence = np.where(np.arange(400) < 200, 0.1, 0.9)
    found = judge(regressor_outcomes(confidence, edge, hub_scale * rng.normal(0, 1, 400), truth, 0.5), hub=0.1)
    assert (found.warnings == ()) is pays
    assert found.gained.low < found.gain < found.gained.high
    assert found.hub is None
