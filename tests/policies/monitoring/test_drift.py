"""Drift: no alarm while samples are exchangeable with the calibration samples, one soon after they are not."""

from math import log, log1p

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.monitoring.drift import DECILES, FALSE_ALARMS, WITHIN, CalibrationDeciles, DriftMonitor, observe_answer

TENTHS = tuple(tenth / 10 for tenth in range(1, 10))
REFERENCE = CalibrationDeciles(TENTHS, TENTHS)


def deciles(values):
    return tuple(np.quantile(values, TENTHS).tolist())


def run(reference, novelty, confidence):
    """How many samples until the alarm; None if it never comes."""
    drift = DriftMonitor()
    for number, pair in enumerate(zip(novelty.tolist(), confidence.tolist(), strict=True)):
        drift = observe_answer(drift, reference, *pair)
        if drift.alarm:
            return number
    return None


@pytest.mark.further
def test_exchangeable_samples_ring_in_at_most_one_stretch_of_a_hundred():
    """40 devices, each with 300 calibration samples of its own and 10,000 later: the bound allows 0.4 alarms."""
    rng = np.random.default_rng(5)
    rang = 0
    for _ in range(40):
        reference = CalibrationDeciles(deciles(rng.random(300)), deciles(rng.beta(8, 1, 300)))
        rang += run(reference, rng.random(WITHIN), rng.beta(8, 1, WITHIN)) is not None
    assert rang <= 1


@pytest.mark.parametrize(
    ("name", "within"), [("all strange", 60), ("half strange", 200), ("unsure", 200), ("stuck", 600)]
)
def test_what_no_longer_looks_like_calibration_rings_soon(name, within):
    rng = np.random.default_rng(6)
    usual, sure = rng.random(2000), rng.beta(8, 1, 2000)
    reference = CalibrationDeciles(TENTHS, deciles(rng.beta(8, 1, 1000)))
    novelty, confidence = {
        "all strange": (np.full(2000, 0.97), sure),
        "half strange": (np.where(rng.random(2000) < 0.5, 0.97, usual), sure),
        "unsure": (usual, rng.beta(3, 1, 2000)),
        "stuck": (np.full(2000, 0.3), np.full(2000, 0.9)),
    }[name]
    found = run(reference, novelty, confidence)
    assert found is not None
    assert found < within


def test_deciles_that_fall_together_never_ring_by_themselves():
    """A model that is nearly always certain: seven of its nine deciles are 1."""
    rng = np.random.default_rng(7)

    def certain(count):
        return np.minimum(rng.beta(8, 1, count) * 1.4, 1.0)

    assert deciles(certain(500))[-3:] == (1.0,) * 3
    for _ in range(5):
        assert run(CalibrationDeciles((), deciles(certain(500))), np.full(WITHIN, -1.0), certain(WITHIN)) is None


def test_an_alarm_ends_when_samples_are_as_before():
    rng = np.random.default_rng(8)
    drift = DriftMonitor()
    for _ in range(100):
        drift = observe_answer(drift, REFERENCE, 0.99, 0.5)
    assert drift.alarm
    assert drift.statistic > 1
    for value in rng.random(2000).tolist():
        drift = observe_answer(drift, REFERENCE, value, value)
    assert not drift.alarm
    assert drift.samples == 2100


numbers = st.floats(0, 1) | st.sampled_from([-1.0, float("nan"), float("inf")])


@given(st.lists(st.tuples(numbers, numbers), max_size=60), st.booleans(), st.booleans())
def test_whatever_comes_is_counted_and_the_level_stays_in_bounds(pairs, has_novelty, has_confidence):
    reference = CalibrationDeciles(TENTHS * has_novelty, TENTHS * has_confidence)
    drift = DriftMonitor()
    for novelty, confidence in pairs:
        drift = observe_answer(drift, reference, novelty, confidence)
        assert 0 <= drift.statistic <= 1.5
    assert drift.samples == len(pairs)
    if not has_novelty and not has_confidence:
        assert drift == DriftMonitor(len(pairs))


def test_nine_deciles():
    assert len(TENTHS) == DECILES


def test_nothing_speaks_for_drift_before_the_first_answer_and_nan_or_an_unreported_novelty_says_nothing():
    fresh = DriftMonitor()
    assert (fresh.statistic, fresh.samples, fresh.alarm) == (0.0, 0, False)
    seen = observe_answer(fresh, REFERENCE, float("nan"), float("nan"))
    assert (seen.samples, seen.novelty, seen.confidence) == (1, fresh.novelty, fresh.confidence)
    seen = observe_answer(fresh, REFERENCE, -1.0, 0.05)
    assert seen.novelty == fresh.novelty
    assert seen.confidence[3] == pytest.approx(log(0.4 / 0.16)), "below the first decile"
    assert seen.confidence[2] == pytest.approx(log(0.75 / 0.6)), "below the middle"
    assert seen.confidence[:2] == (0.0, 0.0), "what speaks against drift is not saved up"
    assert observe_answer(fresh, CalibrationDeciles((), ()), 0.99, 0.01).statistic == 0.0


ALARM = log(2 * 4 * WITHIN / FALSE_ALARMS)  # four events of each of two figures: how often each may be wrong
ODDS = ((0.16, 0.4), (0.6, 0.75), (0.6, 0.75), (0.16, 0.4))  # an event's probability without drift, and suspected


def step(level: float, odds: tuple[float, float], *, happened: bool) -> float:
    """One detector after one answer: within nothing and half as much again as an alarm."""
    usual, suspected = odds
    moved = log(suspected / usual) if happened else log1p(-suspected) - log1p(-usual)
    return min(1.5 * ALARM, max(0.0, level + moved))


@given(st.lists(st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95]), max_size=120))
def test_each_detector_is_the_sum_of_its_log_likelihood_ratios_within_its_bounds(values):
    drift, levels = DriftMonitor(), [0.0] * 4
    for value in values:
        drift = observe_answer(drift, REFERENCE, value, 0.5)
        events = (value > 0.9, value > 0.5, value < 0.5, value < 0.1)
        levels = [
            step(*pair, happened=event) for pair, event in zip(zip(levels, ODDS, strict=True), events, strict=True)
        ]
        assert drift.novelty == pytest.approx(levels)
        assert drift.statistic == pytest.approx(max([*levels, *drift.confidence]) / ALARM)


@pytest.mark.parametrize(("value", "event"), [(0.99, 0), (0.6, 1), (0.4, 2), (0.01, 3)])
@pytest.mark.parametrize("figure", ["novelty", "confidence"])
def test_an_alarm_begins_at_its_level_and_ends_at_a_quarter_of_it(value, event, figure):
    def look(drift: DriftMonitor, seen: float) -> DriftMonitor:
        return observe_answer(drift, REFERENCE, *((seen, 0.5) if figure == "novelty" else (0.5, seen)))

    drift = DriftMonitor()
    for _ in range(200):
        drift = look(drift, value)
        assert drift.alarm == (getattr(drift, figure)[event] >= ALARM)
    assert drift.alarm
    assert getattr(drift, figure)[event] == pytest.approx(1.5 * ALARM)
    while getattr(drift, figure)[event] > 0:
        drift = look(drift, 0.5)
        assert drift.alarm == (drift.statistic > 0.25)


def test_a_level_exactly_at_the_alarm_is_one_and_a_quarter_of_it_is_none():
    nothing = CalibrationDeciles()
    assert observe_answer(DriftMonitor(novelty=(ALARM, 0, 0, 0)), nothing, 0.5, 0.5).alarm
    assert not observe_answer(DriftMonitor(novelty=(ALARM - 1e-9, 0, 0, 0)), nothing, 0.5, 0.5).alarm
    assert observe_answer(DriftMonitor(novelty=(ALARM / 4 + 1e-9, 0, 0, 0), alarm=True), nothing, 0.5, 0.5).alarm
    assert not observe_answer(DriftMonitor(novelty=(ALARM / 4, 0, 0, 0), alarm=True), nothing, 0.5, 0.5).alarm


def test_a_novelty_of_nothing_is_one_and_less_is_none():
    assert observe_answer(DriftMonitor(), REFERENCE, 0.0, 0.5).novelty[3] > 0
    assert observe_answer(DriftMonitor(), REFERENCE, -0.1, 0.5).novelty == (0.0,) * 4
