"""Warnings about a pair: each is one line where its figures say so, and silent where they do not."""

import msgspec
import numpy as np
import pytest

from models.bundle.measurements import (
    CalibrationFigures,
    DomainFigures,
    DomainScore,
    LeakageRow,
    LeakKind,
    QualityMetric,
    RiskGuarantee,
)
from models.forge.evaluation.outcomes import Outcomes, add_groups, regressor_outcomes
from models.forge.evaluation.trivial_baseline import TrivialBaseline
from models.forge.report.payoff import PayoffEvidence, judge_payoff
from models.forge.report.payoff_warnings import (
    CodedSamples,
    count_code_bits,
    warn_below_baseline,
    warn_of_alarms,
    warn_of_asked_share,
    warn_of_costly_codes,
    warn_of_dead_codes,
    warn_of_harm,
    warn_of_risk,
    warn_of_unmeasured_codes,
)
from tests.models.conftest import make
from wire.protocol.messages import SensitivityLevel

ACCURACY, RMSE = QualityMetric.ACCURACY, QualityMetric.RMSE


def outcomes(samples, *, asked, edge_wrong=0, hub_wrong=0):
    """The first `asked` samples are unsure; the first `edge_wrong` are wrong on the edge, `hub_wrong` on the hub."""
    numbers = np.arange(samples)
    return Outcomes(np.where(numbers < asked, 0.1, 0.9), numbers >= edge_wrong, numbers >= hub_wrong)


def figures(found, *, limit=1.0, groups=0):
    asked = float((found.confidence < 0.5).mean())
    return CalibrationFigures(
        metric=found.metric, samples=len(found), edge=0.9, pair=0.9, hub=0.9, oracle=0.9, threshold=0.5, asked=asked,
        ece_before=0, ece_after=0, asked_limit=limit, groups=groups,
    )  # fmt: skip


def wrong(samples, count, seed=0):
    """Loss of a half that errs in `count` samples, by chance."""
    return np.random.default_rng(seed).permutation(np.arange(samples) < count).astype(float)


def test_a_pair_that_is_clearly_worse_than_its_edge_is_called_so():
    line = warn_of_harm(outcomes(1000, asked=250, edge_wrong=10, hub_wrong=60), 0.5)
    assert line.startswith(
        "the pair is worse than the device alone: asking 25.0% of the held-out samples loses 5.0 points"
    )
    assert warn_of_harm(outcomes(1000, asked=250, edge_wrong=10, hub_wrong=12), 0.5) == "", "within the interval"
    assert warn_of_harm(outcomes(1000, asked=0), 0.5) == ""


def test_a_regressor_that_is_worsened_by_asking_is_called_so():
    rng = np.random.default_rng(1)
    confidence = np.where(np.arange(500) < 200, 0.1, 0.9)
    errors = rng.normal(0, 1, 500)
    assert "worse than the device alone" in warn_of_harm(
        regressor_outcomes(confidence, errors, 3 * errors, np.zeros(500), 1.0), 0.5
    )
    assert not warn_of_harm(regressor_outcomes(confidence, errors, errors / 2, np.zeros(500), 1.0), 0.5)


def test_an_edge_below_a_bag_of_words_is_called_so():
    base = TrivialBaseline("a bag of words", wrong(1000, 100, seed=1))
    line = warn_below_baseline(wrong(1000, 257), ACCURACY, base)
    assert line.startswith("a bag of words is better than the device's half: 90.0% (88.0 to 91.7 %) against 74.3%")
    assert "begin with a small model of your own (--edge-model)" in line
    assert warn_below_baseline(wrong(1000, 105), ACCURACY, base) == "", "5 of 1,000 are no evidence"
    assert warn_below_baseline(wrong(1000, 50), ACCURACY, base) == ""


def test_no_small_model_is_advised_where_one_was_given(tmp_path):
    base = TrivialBaseline("a bag of words", wrong(1000, 100))
    line = warn_below_baseline(wrong(1000, 257), ACCURACY, base, own_edge=True)
    assert "leave out --edge-model" in line
    assert "give a small model" not in line
    found = outcomes(1000, asked=0, edge_wrong=257)
    manifest = make(tmp_path / "echo").manifest
    for own_edge in (False, True):
        evidence = PayoffEvidence(trivial=(base,), own_edge=own_edge)
        told = judge_payoff(manifest, found, 10_000, evidence).warnings
        assert any("begin with a small model" in each for each in told) is not own_edge


def test_an_edge_as_good_as_the_most_frequent_label_knows_nothing():
    usual = TrivialBaseline("always the most frequent label", wrong(1000, 820, seed=1))
    assert "is as good as the device's half" in warn_below_baseline(wrong(1000, 815), ACCURACY, usual)
    assert warn_below_baseline(wrong(1000, 400), ACCURACY, usual) == ""


def test_a_regressor_below_the_mean_is_called_so():
    mean = TrivialBaseline("always the mean", np.full(300, 4.0))
    assert "rmse" in warn_below_baseline(np.full(300, 9.0), RMSE, mean)
    assert warn_below_baseline(np.full(300, 1.0), RMSE, mean) == ""


def test_codes_that_are_all_equal_are_dead():
    dead = np.full((200, 16), 3, np.uint8)
    assert count_code_bits(dead) == 0
    assert warn_of_dead_codes(dead).startswith("the codes are dead: 1 different in 200 held-out samples, 0.00 bits")
    rare = dead.copy()
    rare[:3, 0] = 4
    assert "dead" in warn_of_dead_codes(rare)


def test_codes_that_say_something_are_alive():
    codes = np.random.default_rng(0).integers(0, 4, (500, 8)).astype(np.uint8)
    assert count_code_bits(codes) == pytest.approx(16, abs=0.2)
    assert warn_of_dead_codes(codes) == ""


def test_more_asked_than_promised_is_said_with_its_interval():
    found = outcomes(2000, asked=976)
    line = warn_of_asked_share(figures(found, limit=0.2), found)
    assert line.startswith(
        "more is asked than was promised: 48.8% of the held-out samples (46.6% to 51.0%, 2000 samples)"
    )
    assert "at most 20.0%" in line
    assert "give them as groups" in line
    assert warn_of_asked_share(figures(outcomes(1000, asked=260), limit=0.25), outcomes(1000, asked=260)) == ""
    assert warn_of_asked_share(figures(found), found) == "", "nothing was promised"


def test_more_false_alarms_than_were_wished_are_said_with_their_interval():
    kept = DomainFigures(DomainScore.NOVELTY, 0.95, 0.05, 0.055, 0.045, 0.066, 2000)
    assert warn_of_alarms("the device", kept) == warn_of_alarms("the hub", None) == ""
    by_chance = DomainFigures(DomainScore.ENERGY, -4.0, 0.05, 0.0553, 0.0509, 0.06, 10_000)
    assert not warn_of_alarms("the hub", by_chance), "the threshold itself came from a sample"
    line = warn_of_alarms("the hub", DomainFigures(DomainScore.ENERGY, -4.0, 0.05, 0.12, 0.106, 0.135, 2000))
    assert line.startswith("the hub calls 12.0% of the held-out samples out of domain although they are in scope")
    assert "(10.6% to 13.5%, 2000 samples), where 5.0% was wished" in line


def test_patients_who_differ_are_the_units_of_what_was_asked():
    """Two of ten patients ask all the time: 20 % of the beats, but another ten might ask anything from 0 to 50 %."""
    found = add_groups(outcomes(2000, asked=400), np.arange(2000) // 200)
    assert warn_of_asked_share(figures(found, limit=0.15, groups=5), found) == ""
    assert warn_of_asked_share(
        figures(found, limit=0.15), Outcomes(found.confidence, found.edge_right, found.hub_right)
    )


@pytest.mark.parametrize(
    ("kind", "hub_wrong", "words"),
    [
        ("local", 0, "26.0% of the answers that the device keeps"),
        ("kept-wrong", 0, "26.0% of all samples kept"),
        ("pair", 0, "26.0% of the pair's answers"),
    ],
)
def test_a_risk_far_above_the_guaranteed_one_is_said(kind, hub_wrong, words):
    found = outcomes(1000, asked=0, edge_wrong=260, hub_wrong=hub_wrong)
    promise = RiskGuarantee(0.02, 0.95, 4000, 0.5, f"learn-then-test/{kind}")
    line = warn_of_risk(promise, found, 0.5)
    assert words in line
    assert "at most 2.0% was" in line
    assert warn_of_risk(None, found, 0.5) == ""
    assert warn_of_risk(msgspec.structs.replace(promise, max_risk=0.25), found, 0.5) == "", "inside its interval"


def test_what_the_hub_answers_counts_for_the_pair_alone():
    found = outcomes(1000, asked=300, edge_wrong=300, hub_wrong=150)
    local, pair = (RiskGuarantee(0.05, 0.95, 4000, 0.5, f"learn-then-test/{kind}") for kind in ("local", "pair"))
    assert warn_of_risk(local, found, 0.5) == ""
    assert "15.0% of the pair's answers" in warn_of_risk(pair, found, 0.5)


def test_codes_that_cost_more_than_the_sample_itself_are_called_so():
    codes = CodedSamples("codes", 644, 0.0472)
    jpeg = CodedSamples("sample-256", 580, 0.002)
    line = warn_of_costly_codes(codes, [CodedSamples("the sample, raw", 1348, 0.0), jpeg])
    assert "644 B, sealed, against 580 B of sample-256" in line
    assert warn_of_costly_codes(codes, [CodedSamples("sample-64", 516, 0.3)]) == "", "it loses more"
    assert warn_of_costly_codes(codes, [CodedSamples("sample-512", 1028, 0.0)]) == ""
    assert warn_of_costly_codes(codes, []) == ""


def test_private_codes_that_nothing_was_measured_of_are_said_to_be_denied():
    row = LeakageRow("0" * 64, LeakKind.MEMBERSHIP, "", "loss", "auc", 100, 0.5, 0.6, 0.5, 0.6)
    line = warn_of_unmeasured_codes((row,), SensitivityLevel.P2)
    assert "denied_unmeasured" in line
    assert "skerry models measure" in line
    rebuilt = msgspec.structs.replace(row, kind=LeakKind.RECONSTRUCTION)
    assert warn_of_unmeasured_codes((row, rebuilt), SensitivityLevel.P2) == ""
    assert warn_of_unmeasured_codes((), SensitivityLevel.P1) == "", "what is not private needs no measurement"
