"""Risk guarantees: proved thresholds keep their bound, and samples that prove nothing are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom  # type: ignore[import-untyped]

from benchmarks.forge.parts.risk import simulate_coverage
from models.forge.data.types import ForgeError
from models.forge.evaluation.outcomes import add_groups, classifier_outcomes, regressor_outcomes
from models.forge.evaluation.risk_control import (
    RiskGoal,
    RiskKind,
    _last_passed,
    minimum_calibration,
    prove_threshold,
)
from tests.examples import count_examples, further, mark_further


def gate(count, seed=0, wrong=lambda c: 0.6 * (1 - c), hub=0.97):
    """Outcomes of an edge that is wrong with probability `wrong(confidence)`."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(4, 1, count)
    y = np.ones(count, int)
    return classifier_outcomes(
        confidence, (rng.random(count) >= wrong(confidence)).astype(int), (rng.random(count) < hub) + 0, y
    )


@pytest.mark.parametrize("risk", mark_further(RiskKind, []))
def test_a_promise_is_broken_by_at_most_one_calibration_in_twenty(risk):
    found = simulate_coverage(gate(4000), RiskGoal(0.08, 0.95, risk), resplits=300)
    assert found.drawn <= 0.05 * 300 + 2 * (0.05 * 0.95 * 300) ** 0.5
    assert found.kept > 0.2
    assert found.halves <= found.drawn + 6


def test_a_gate_without_the_test_would_break_it_far_more_often():
    """The check has power: the highest share that merely looks good on the calibration set is not good enough."""
    population = gate(3000)
    rng = np.random.default_rng(1)
    broken = 0
    for _ in range(300):
        drawn = population[rng.integers(0, 3000, 1500)]
        order = np.argsort(-drawn.confidence)
        rate = np.cumsum(~drawn.edge_right[order]) / np.arange(1, 1501)
        below = drawn.confidence[order][np.flatnonzero(rate <= 0.05)[-1]]
        kept = population.confidence >= below
        broken += (~population.edge_right[kept]).mean() > 0.05
    assert broken > 0.25 * 300


@pytest.mark.parametrize(
    "wrong", [further(lambda c: np.where(c > 0.97, 0.2, 0.01)), lambda c: 0.05 + 0.04 * np.sin(40 * c)]
)
def test_risk_that_falls_and_rises_with_confidence_cannot_fool_it(wrong):
    found = simulate_coverage(gate(4000, wrong=wrong), RiskGoal(0.05), resplits=200)
    assert found.drawn <= 0.05 * 200 + 2 * (0.05 * 0.95 * 200) ** 0.5


def test_the_same_risk_everywhere_needs_no_questions():
    flat = gate(20_000, wrong=lambda c: np.full(len(c), 0.012))
    assert prove_threshold(flat, RiskGoal(0.02)).threshold == 0.0


def test_the_least_set_is_the_one_whose_all_right_answers_prove_it():
    wanted = RiskGoal(0.02, 0.95)
    least = minimum_calibration(wanted)
    assert 150 <= least <= 170
    perfect = gate(least, wrong=lambda c: np.zeros(len(c)))
    assert prove_threshold(perfect, wanted).tested >= 149
    with pytest.raises(ForgeError, match=f"{least} are needed") as caught:
        prove_threshold(perfect[: least - 1], wanted)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wanted", [RiskGoal(0.0), RiskGoal(1.0), RiskGoal(-0.1), RiskGoal(0.1, 1.0), RiskGoal(0.1, 0.0)]
)
def test_impossible_promises_are_refused_with_one_line(wanted):
    with pytest.raises(ForgeError, match="between 0 and 1") as caught:
        prove_threshold(gate(500), wanted)
    assert "\n" not in str(caught.value)


def test_an_edge_that_is_never_good_enough_is_told_how_wrong_both_are():
    with pytest.raises(ForgeError, match=r"the edge is wrong in \d+\.\d+%, the hub .* raise --max-risk"):
        prove_threshold(gate(2000, wrong=lambda c: np.full(len(c), 0.3)), RiskGoal(0.05))


def test_a_gate_that_says_the_same_of_every_sample_keeps_all_or_nothing():
    size = 2000
    right = np.random.default_rng(0).random(size) < 0.99
    same = classifier_outcomes(np.full(size, 0.7), right.astype(int), np.ones(size, int), np.ones(size, int))
    assert prove_threshold(same, RiskGoal(0.05)).threshold <= 0.7
    assert prove_threshold(same, RiskGoal(0.05)).kept == 1.0


def test_a_regressor_is_wrong_where_its_error_is_beyond_the_tolerance():
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.1, 3, 6000)
    error = rng.laplace(0, scale)
    found = regressor_outcomes(1 - np.exp(-1 / scale), error, np.zeros(6000), np.zeros(6000), 1.0)
    promise = prove_threshold(found, RiskGoal(0.05))
    kept = found.confidence >= promise.threshold
    assert 0.05 < kept.mean() < 0.3
    assert (np.abs(error[kept]) > 1).mean() <= 0.05
    assert promise.method == "learn-then-test/local"


def test_the_same_seed_gives_the_same_threshold():
    outcomes = gate(3000)
    assert prove_threshold(outcomes, RiskGoal(0.05), 3) == prove_threshold(outcomes, RiskGoal(0.05), 3)


@given(st.integers(0, 2**32), st.sampled_from(list(RiskKind)), st.floats(0.02, 0.3), st.floats(0.6, 0.99))
@settings(max_examples=count_examples(60), deadline=None)
def test_what_is_promised_was_seen_with_room(seed, risk, max_risk, confidence):
    """Whatever passes has a binomial tail under the error rate: fewer wrong than `max_risk` of those counted."""
    try:
        promise = prove_threshold(gate(1500, seed), RiskGoal(max_risk, confidence, risk), seed)
    except ForgeError:
        return
    assert binom.cdf(promise.wrong, promise.tested, max_risk) <= 1 - confidence + 1e-12
    assert promise.wrong < max_risk * promise.tested
    assert 0 <= promise.threshold <= 1


@pytest.mark.parametrize(
    ("p_values", "starts", "last"),
    [
        ([0.04, 0.05, 0.2, 0.001], [0], 1),  # a failure loses all that was carried
        ([0.04, 0.05, 0.06, 0.001], [0], 1),
        ([0.04, 0.025, 0.001], [0, 2], 2),  # the first of two starts has half: 0.04 is not enough
        ([0.02, 0.02, 0.05], [0, 2], 2),  # what was carried and the second half together
        ([0.5, 0.5, 0.03], [0, 2], None),
        ([0.2], [0], None),
    ],
)
def test_the_error_rate_is_never_spent_twice(p_values, starts, last):
    assert _last_passed(np.array(p_values), starts, 0.05) == last


def users(count, seed=0, rows=20):
    """As `gate`, of users who differ: some are wrong three times as often as others."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(count), rows)
    tired = rng.choice([0.2, 0.6, 2.0], count)[groups]
    return add_groups(gate(len(groups), seed, wrong=lambda c: np.minimum(tired * (1 - c), 1)), groups)


@pytest.mark.parametrize("risk", mark_further(RiskKind, list(RiskKind)[:1]))
def test_a_promise_about_users_holds_for_users_who_were_never_seen(risk):
    everybody = users(3000, seed=77)
    shares = np.stack([everybody.confidence, ~everybody.edge_right, ~everybody.hub_right]).reshape(3, 3000, 20)
    broken, proved = 0, 0
    for seed in range(40):
        try:
            promise = prove_threshold(users(150, seed), RiskGoal(0.12, 0.9, risk), seed)
        except ForgeError:
            continue
        proved += 1
        assert promise.groups == 150
        assert promise.method.endswith("/groups")
        kept = shares[0] >= promise.threshold
        wrong = (kept & (shares[1] > 0)).sum(1)
        if risk is RiskKind.PAIR:
            wrong = wrong + (~kept & (shares[2] > 0)).sum(1)
        size = np.maximum(kept.sum(1), 1) if risk is RiskKind.LOCAL else 20
        broken += (wrong / size).mean() > 0.12
    assert proved > 20
    assert broken <= 0.1 * 40 + 4


def test_five_patients_prove_nothing_however_many_beats_they_have():
    with pytest.raises(ForgeError, match=r"5 calibration groups cannot show a risk of at most 0\.02"):
        prove_threshold(users(5, rows=2000), RiskGoal(0.02))


def test_users_without_an_error_are_as_many_as_the_formula_says():
    least = minimum_calibration(RiskGoal(0.05))
    perfect = add_groups(gate(20 * least, wrong=np.zeros_like), np.repeat(np.arange(least), 20))
    promise = prove_threshold(perfect, RiskGoal(0.05))
    assert (promise.groups, promise.wrong) == (least, 0)
