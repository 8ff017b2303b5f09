"""Behaviour comparison of cohorts: more than half of the devices beyond a limit is harm."""

from math import sqrt

import msgspec
import pytest

from policies.rollout_rules.signals import BehaviourLimits, compare_behaviour, is_sound
from tests.policies.doubles.fleets import USUAL, of_class
from wire.protocol.rollout import ClassSignals, DeviceSignals

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


MANY = 10**12  # answers: so many that chance explains nothing
STEADY = DeviceSignals(inferences=MANY, confidence=0.5 * MANY, confidence_sq=0.3 * MANY, rss_bytes=1 << 40)


@pytest.mark.parametrize(
    ("name", "unit", "last"),
    [
        ("errors", "errors", 0.01), ("escalations", "escalated", 0.1), ("memory", "rss_bytes", 1.2 * (1 << 40) / MANY),
    ],
)  # fmt: skip
def test_each_measure_may_be_beyond_control_by_this_much_and_no_more(name, unit, last):
    def harm(value: float) -> bool:
        new = msgspec.structs.replace(STEADY, **{unit: int(value * MANY)})
        return bool(compare_behaviour([new], [STEADY], (), BehaviourLimits()).harm)

    assert not harm(last)
    assert harm(last * 1.001)


def test_little_memory_may_grow_by_128_mib_whatever_its_share():
    small = msgspec.structs.replace(STEADY, rss_bytes=100 << 20)
    for more, harm in ((128 << 20, False), ((128 << 20) + 1, True)):
        new = msgspec.structs.replace(small, rss_bytes=small.rss_bytes + more)
        assert bool(compare_behaviour([new], [small], (), BehaviourLimits()).harm) is harm


@pytest.mark.parametrize("direction", [1, -1])
def test_the_confidence_of_a_class_may_move_by_ten_points_either_way(direction):
    def of(share: float) -> list[DeviceSignals]:
        return [
            of_class(
                "vitals", answers=1000, escalated=0, confidence=1000 * share, confidence_sq=1000 * (share**2 + 0.01)
            )
        ]

    for moved, harm in ((0.099, False), (0.101, True)):
        found = compare_behaviour(of(0.5 + direction * moved), of(0.5), ("vitals",), BehaviourLimits())
        assert (bool(found.harm), found.missing) == (harm, "")


@pytest.mark.parametrize(("beyond", "kind"), [(20, ""), (21, "disputed"), (50, "disputed"), (51, "harm")])
def test_devices_beyond_a_limit_are_harm_from_the_majority_on_and_disputed_where_liars_could_hide_the_rest(
    beyond, kind
):
    found = compare_behaviour(cohort(beyond, errors=20), CONTROL, (), BehaviourLimits())
    words = (f"errors beyond control in {beyond}% of the devices",)
    assert found == (words if kind == "harm" else (), words if kind == "disputed" else (), "")


def test_reports_that_are_impossible_or_of_few_answers_take_no_part():
    broken = msgspec.structs.replace(USUAL, errors=-1)
    assert compare_behaviour([broken, USUAL], [broken, USUAL], (), BehaviourLimits()) == ((), (), "")
    few = msgspec.structs.replace(USUAL, inferences=49, errors=49, escalated=0, confidence=30.0, confidence_sq=20.0)
    assert compare_behaviour([few], [USUAL], (), BehaviourLimits()) == ((), (), "")
    enough = msgspec.structs.replace(few, inferences=50)
    assert compare_behaviour([enough], [USUAL], (), BehaviourLimits()).harm
    assert compare_behaviour([], [USUAL], (), BehaviourLimits()) == ((), (), "")
    assert compare_behaviour([of_class("a")], [USUAL], ("a",), BehaviourLimits()).missing == (
        "too little is known of the escalations of a"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"escalated": 361}, {"errors": -1}, {"confidence": -0.1}, {"confidence": 360.1}, {"confidence_sq": -0.1},
        {"confidence_sq": float("inf")}, {"classes": (ClassSignals("a", 3, 4),)},
        {"classes": (ClassSignals("a", 3, -1),)}, {"classes": (ClassSignals("a", 3, 0, 4.0),)},
        {"classes": (ClassSignals("b", 3), ClassSignals("a", 3, 0, 1.0, 4.0))},
    ],
)  # fmt: skip
def test_figures_that_contradict_each_other_are_no_report(changed):
    assert not is_sound(msgspec.structs.replace(USUAL, **changed))
    assert is_sound(
        msgspec.structs.replace(USUAL, classes=(ClassSignals("a", 3, 3, 3.0, 3.0),), errors=360, escalated=360)
    )


@pytest.mark.parametrize(("usual", "answers"), [(0, 50), (25, 50), (0, 200)])
def test_few_answers_may_differ_by_three_standard_errors_of_both_cohorts_more(usual, answers):
    """As if one answer more had been a question and one more had not: none of fifty is not known for certain."""

    def of(escalated: int) -> DeviceSignals:
        return DeviceSignals(answers, escalated=escalated, confidence=answers / 2, confidence_sq=answers / 3)

    def error(escalated: int) -> float:
        share = (escalated + 1) / (answers + 2)
        return sqrt(share * (1 - share) / answers)

    for seen in range(usual, answers + 1):
        limit = usual / answers + 0.1 + 3 * sqrt(error(seen) ** 2 / 3 + error(usual) ** 2 / 5)
        found = compare_behaviour([of(seen)] * 3, [of(usual)] * 5, (), BehaviourLimits())
        assert bool(found.harm) == (seen / answers > limit), seen
