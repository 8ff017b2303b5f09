"""Behaviour comparison of cohorts: more than half of the devices beyond a limit is harm."""

import msgspec
import pytest

from policies.rollout_rules.signals import BehaviourLimits, compare_behaviour, is_sound
from tests.policies.doubles.fleets import USUAL, of_class
from wire.protocol.rollout import DeviceSignals

CONTROL = [USUAL] * 20


def cohort(beyond: int, **changed: float) -> list[DeviceSignals]:
    return [msgspec.structs.replace(USUAL, **changed)] * beyond + [USUAL] * (100 - beyond)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("errors", {"errors": 20}),
        ("escalations", {"escalated": 140}),
        ("p95 latency", {"p95_us": 15_000}),
        ("memory", {"rss_bytes": 300 << 20}),
    ],
)
def test_each_measure_is_harm_when_most_devices_are_beyond(name: str, changed: dict[str, float]):
    assert name in compare_behaviour(cohort(60, **changed), CONTROL, (), BehaviourLimits()).harm[0]
    disputed = compare_behaviour(cohort(30, **changed), CONTROL, (), BehaviourLimits())
    assert not disputed.harm
    assert name in disputed.disputed[0]
    assert compare_behaviour(cohort(15, **changed), CONTROL, (), BehaviourLimits()) == ((), (), "")


def test_few_answers_of_a_single_device_are_not_held_against_a_version_by_chance():
    def few(escalated: int, answers: int = 50) -> DeviceSignals:
        return msgspec.structs.replace(
            USUAL, inferences=answers, escalated=escalated, confidence=0.8 * answers, confidence_sq=0.7 * answers
        )

    control = [few(11), few(11)]
    assert compare_behaviour([few(18)], control, (), BehaviourLimits()) == ((), (), "")
    assert compare_behaviour([few(180, 500)], [few(110, 500)] * 2, (), BehaviourLimits()).harm == ()
    assert compare_behaviour([few(40)], control, (), BehaviourLimits()).harm
    assert compare_behaviour([few(210, 500)], [few(110, 500)] * 2, (), BehaviourLimits()).harm


@pytest.mark.parametrize(
    ("usual_us", "seen_us", "harm"),
    [(400, 2000, True), (400, 1999, False), (20, 100, False), (20_000, 25_000, False), (20_000, 25_001, True)],
)
def test_five_times_slower_than_control_is_harm_within_5_ms_too(usual_us: int, seen_us: int, harm: bool):
    control = [msgspec.structs.replace(USUAL, p95_us=usual_us)] * 20
    found = compare_behaviour(cohort(60, p95_us=seen_us)[:60], control, (), BehaviourLimits())
    assert bool(found.harm) is harm


def test_a_wider_factor_that_a_person_set_holds_for_many_times_too():
    control = [msgspec.structs.replace(USUAL, p95_us=400)] * 20
    assert not compare_behaviour(cohort(60, p95_us=3000)[:60], control, (), BehaviourLimits(p95=10.0)).harm


def test_lost_and_gained_confidence_of_a_class_both_show():
    usual = [of_class("vitals")] * 20
    for shifted in (250.0, 345.0):
        new = [of_class("vitals", confidence=shifted, confidence_sq=340.0)] * 20
        assert "confidence of vitals" in compare_behaviour(new, usual, ("vitals",), BehaviourLimits()).harm[0]


def test_a_class_of_which_nothing_is_known_is_missing():
    assert "vitals" in compare_behaviour(CONTROL, CONTROL, ("vitals",), BehaviourLimits()).missing


@pytest.mark.parametrize(
    "changed",
    [{"errors": 361}, {"escalated": -1}, {"inferences": -1}, {"confidence": float("nan")}, {"confidence_sq": 1e9}],
)
def test_impossible_signals_are_no_signals(changed: dict[str, float]):
    assert not is_sound(msgspec.structs.replace(USUAL, **changed))
    assert is_sound(USUAL)
    assert is_sound(DeviceSignals())


def test_a_latency_of_nothing_was_not_measured():
    control = [msgspec.structs.replace(USUAL, p95_us=0)] * 20
    assert not compare_behaviour(cohort(100, p95_us=20_000), control, (), BehaviourLimits()).harm
