"""Risk monitor: silent while the calibrated error rates hold, an alarm when they do not."""

from math import log, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.monitoring.risk import FALSE_ALARMS, SLACK, WITHIN, RiskBound, RiskMonitor, observe_audit

PROMISED = RiskBound(threshold=0.8, kept_wrong=0.03, wrong=0.10)


def after(audits: int, seed: int, kept_wrong: float, unsure_wrong: float) -> tuple[RiskMonitor, int]:
    """What is known after so many audits, four in five of them sure; and at which it broke, 0 = never."""
    rng, seen = Random(seed), RiskMonitor()
    for number in range(1, audits + 1):
        sure = rng.random() < 0.8
        wrong = rng.random() < (kept_wrong if sure else unsure_wrong)
        seen = observe_audit(seen, PROMISED, 0.95 if sure else 0.5, agrees=not wrong)
        if seen.broken:
            return seen, number
    return seen, 0


def test_a_promise_that_is_kept_rings_in_at_most_one_stretch_of_a_hundred():
    assert sum(after(2_000, seed, 0.03, 0.3)[1] > 0 for seed in range(20)) == 0


def test_kept_answers_that_go_wrong_ring_though_all_answers_together_look_fine():
    seen, when = after(10_000, 1, 0.13, 0.0)
    assert seen.broken
    assert 0 < when < 1_000
    assert seen.all < seen.kept


def test_disagreement_below_the_threshold_rings_too():
    assert after(10_000, 2, 0.03, 0.9)[0].broken


def test_it_stays_broken_whatever_comes_after():
    seen, _ = after(10_000, 1, 0.5, 0.5)
    for _ in range(5_000):
        seen = observe_audit(seen, PROMISED, 0.95, agrees=True)
    assert seen.broken


def test_what_is_no_confidence_counts_as_kept():
    seen = RiskMonitor()
    for _ in range(40):
        seen = observe_audit(seen, PROMISED, nan, agrees=False)
    assert seen.broken


def test_a_promise_of_anything_is_never_broken():
    seen = RiskMonitor()
    for _ in range(500):
        seen = observe_audit(seen, RiskBound(0.8, 1.0, 1.0), 0.9, agrees=False)
    assert not seen.broken


def test_a_threshold_is_kept_at_it_and_a_confidence_that_is_no_number_counts_as_kept():
    for confidence, kept in ((0.8, True), (0.7999, False), (nan, True), (1.0, True)):
        seen = observe_audit(RiskMonitor(), PROMISED, confidence, agrees=False)
        assert (seen.kept > 0.0) is kept
        assert (seen.audits, seen.all > 0.0) == (1, True)


def test_an_audit_weighs_by_twice_the_calibrated_share_and_agreement_is_not_saved_up():
    wrong = observe_audit(RiskMonitor(), PROMISED, 0.9, agrees=False)
    assert (wrong.kept, wrong.all) == (log(2.0), log(2.0))
    right = observe_audit(wrong, PROMISED, 0.9, agrees=True)
    assert right.kept == log(2.0) + log(0.9 / 0.95)
    assert right.all == log(2.0) + log((1 - 0.24) / (1 - 0.12))
    assert observe_audit(RiskMonitor(), PROMISED, 0.9, agrees=True) == RiskMonitor(audits=1)
    hopeless = observe_audit(RiskMonitor(), RiskBound(0.5, 1.0, 1.0), 0.9, agrees=False)
    assert hopeless.kept == log(0.95 / 0.93)


ALARM = log(2 * WITHIN / FALSE_ALARMS)  # two shares are watched: how often each may be wrong
SHARES = st.floats(0.0, 0.4)


def step(level: float, promised: float, *, agrees: bool) -> float:
    usual = promised + SLACK
    suspected = min(0.95, 2 * usual)
    return max(0.0, level + log(((1 - suspected) / (1 - usual)) if agrees else suspected / usual))


@given(SHARES, SHARES, st.lists(st.tuples(st.sampled_from([0.5, 0.8, 0.9]), st.booleans()), max_size=80))
def test_each_share_is_weighed_against_twice_what_was_calibrated(kept_wrong, wrong, audits):
    promise, seen, kept, every = RiskBound(0.8, kept_wrong, wrong), RiskMonitor(), 0.0, 0.0
    broken = False
    for confidence, agrees in audits:
        seen = observe_audit(seen, promise, confidence, agrees=agrees)
        every = step(every, wrong, agrees=agrees)
        kept = step(kept, kept_wrong, agrees=agrees) if confidence >= 0.8 else kept
        broken = broken or max(kept, every) >= ALARM
        assert (seen.kept, seen.all) == pytest.approx((kept, every))
        assert seen.level == pytest.approx(max(kept, every) / ALARM)
        assert seen.broken == broken
    assert seen.audits == len(audits)


def test_a_bound_is_broken_just_at_its_alarm_level():
    harmless = RiskBound(0.8, 0.93, 0.93)  # so high that one audit moves a level by hardly anything
    for level, broken in ((ALARM, True), (ALARM - 0.1, False)):
        assert observe_audit(RiskMonitor(kept=level), harmless, 0.1, agrees=True).broken is broken
    assert RiskMonitor(kept=ALARM, all=1.0).level == RiskMonitor(kept=1.0, all=ALARM).level == 1.0
    assert (RiskMonitor().level, RiskMonitor().broken, RiskMonitor().audits) == (0.0, False, 0)


def test_a_calibrated_share_below_nothing_counts_as_none():
    for share in (-1.0, 0.0):
        seen = observe_audit(RiskMonitor(), RiskBound(0.8, share, share), 0.9, agrees=False)
        assert seen.kept == seen.all == log(2.0)
