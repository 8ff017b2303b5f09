"""Every limit of rollout rules, at its edge: the last value that is allowed, and the first that is not."""

from math import inf, nan, nextafter

import msgspec
import pytest

from policies.rollout_rules import gate_parameters
from policies.rollout_rules.cohorts import MIN_STUCK_DEVICES, DeviceQuality, are_stuck, count_feedback, select_reporting
from policies.rollout_rules.confidence import WeightedCounts
from policies.rollout_rules.gate_parameters import GateRules, GateRulesError, validate_gate_rules
from policies.rollout_rules.plan import RolloutRules
from policies.rollout_rules.probation import DEFAULT_LIMITS, find_breach, is_soak_over
from policies.rollout_rules.signals import MIN_ANSWERS, BehaviourLimits, is_sound
from tests.edge_agent.doubles.install_world import make_assignment
from wire.protocol.rollout import MAX_AUDIT_CELLS, AuditAgreement, AuditQuality, DeviceSignals

BOUNDS = {
    "alpha": (1e-6, 0.1), "pass_alpha": (1e-6, 0.1), "harm": (0.0, 0.5), "margin": (0.0, 1.0), "wide": (0.0, 1.0),
    "expected": (-0.1, 0.0), "gain": (0.0, 1.0), "liars": (0.0, 0.49), "weight_cap": (1.0, 1000.0),
    "device_cap": (1.0, 1000.0), "coverage": (0.01, 1.0), "told_least": (1, 1_000_000),
}  # fmt: skip
SIGNAL_BOUNDS = {
    "escalated": (0.0, 1.0), "errors": (0.0, 1.0), "confidence": (0.0, 1.0), "p95": (1.0, 1000.0),
    "rss": (1.0, 1000.0), "p95_least_us": (0.0, 1e9), "p95_times": (1.0, 1000.0), "rss_least_bytes": (0.0, 1e15),
    "liars": (0.0, 0.49),
}  # fmt: skip


def with_gate(name: str, value: float) -> GateRules:
    return msgspec.structs.replace(GateRules(), **{"margin": 0.0, name: value})


def with_signals(name: str, value: float) -> GateRules:
    return msgspec.structs.replace(GateRules(), signals=msgspec.structs.replace(BehaviourLimits(), **{name: value}))


@pytest.mark.parametrize(("make", "bounds"), [(with_gate, BOUNDS), (with_signals, SIGNAL_BOUNDS)])
def test_every_gate_parameter_is_taken_at_its_bounds_and_refused_by_name_just_beyond(make, bounds):
    for name, (low, high) in bounds.items():
        for value in (low, high):
            assert validate_gate_rules(make(name, value)) == make(name, value)
        for value in (nextafter(low, -inf), nextafter(high, inf), nan, inf):
            with pytest.raises(GateRulesError, match=rf"\b{name} is"):
                validate_gate_rules(make(name, value))


def test_every_gate_parameter_has_bounds():
    assert set(GateRules.__struct_fields__) - {"signals"} == set(BOUNDS)
    assert set(BehaviourLimits.__struct_fields__) == set(SIGNAL_BOUNDS)


def test_a_margin_of_just_what_is_harm_and_expected_leaves_nothing_to_show():
    rules = GateRules(harm=0.02, expected=-0.01, margin=0.03)
    with pytest.raises(GateRulesError, match="margin"):
        validate_gate_rules(rules)
    validate_gate_rules(msgspec.structs.replace(rules, margin=0.031))
    validate_gate_rules(msgspec.structs.replace(rules, margin=0.0))  # by the number of devices
    validate_gate_rules(msgspec.structs.replace(rules, expected=0.0, margin=0.02))


def test_the_margin_changes_at_these_numbers_of_devices():
    small, few, many = gate_parameters.SMALL, gate_parameters.FEW, gate_parameters.MANY
    rules = GateRules()
    assert [rules.margin_for(count) for count in (small - 1, small)] == [0.25, 0.15]
    assert [rules.margin_for(count) for count in (few - 1, few)] == [0.15, 0.08]
    assert [rules.margin_for(count) for count in (many - 1, many)] == [0.08, 0.03]


def test_a_wave_soaks_by_its_own_time_and_never_shorter_than_two_reports_are_apart():
    rules = RolloutRules(soak_first_s=500.0, soak_s=400.0, report_s=300.0)
    assert (rules.soak_for(0), rules.soak_for(1), rules.soak_for(2)) == (500.0, 400.0, 400.0)
    slow = msgspec.structs.replace(rules, report_s=450.0)
    assert (slow.soak_for(0), slow.soak_for(1)) == (500.0, 450.0)


FINE = DeviceSignals(inferences=1000, escalated=200, p95_us=10_000, starts=1)


def breach(before: DeviceSignals = FINE, declared_bytes: int = 0, **changes: float) -> str:
    return find_breach(msgspec.structs.replace(FINE, **changes), before, declared_bytes)


def test_probation_takes_crashes_up_to_two_and_no_more_than_one_in_two_hundred_answers():
    assert (DEFAULT_LIMITS.crashes_at_most, DEFAULT_LIMITS.answers_a_crash, DEFAULT_LIMITS.min_samples) == (2, 200, 200)
    assert not breach(crashes=2)
    assert breach(crashes=3) == "3 crashes"
    assert not breach(inferences=201, escalated=0, crashes=1)
    assert breach(inferences=200, escalated=0, crashes=1) == "1 crashes in 200 answers"
    assert not breach(inferences=199, escalated=0, crashes=1), "too few answers to count by"
    assert breach(inferences=400, escalated=0, crashes=2)
    assert not breach(inferences=401, escalated=0, crashes=2)


def test_probation_compares_once_both_models_gave_two_hundred_answers():
    assert breach(inferences=200, escalated=0, p95_us=10**6)
    assert not breach(inferences=199, escalated=0, p95_us=10**6)
    assert breach(msgspec.structs.replace(FINE, inferences=200), p95_us=10**6)
    assert not breach(msgspec.structs.replace(FINE, inferences=199), p95_us=10**6)


@pytest.mark.parametrize(
    ("usual_us", "last_us"),
    [(100_000, 125_000), (10_000, 15_000), (1000, 4999), (20, 120), (0, 10**9)],
)
def test_probation_takes_this_p95_and_not_one_microsecond_more(usual_us, last_us):
    before = msgspec.structs.replace(FINE, p95_us=usual_us)
    assert not breach(before, p95_us=last_us)
    assert bool(breach(before, p95_us=last_us + 1)) is (usual_us > 0)


@pytest.mark.parametrize(("declared", "last"), [(400 << 20, 480 << 20), (100 << 20, 132 << 20), (0, 1 << 50)])
def test_probation_takes_this_much_memory_and_not_one_byte_more(declared, last):
    assert not breach(declared_bytes=declared, rss_bytes=last)
    assert bool(breach(declared_bytes=declared, rss_bytes=last + 1)) is (declared > 0)


def test_probation_takes_the_share_of_doubt_before_ten_points_and_four_standard_errors():
    assert not breach(escalated=375)
    assert breach(escalated=385)
    never = msgspec.structs.replace(FINE, inferences=1000, escalated=0)
    assert not breach(never, escalated=140)
    assert breach(never, escalated=148)


def test_probation_explains_a_first_difference_by_chance_of_the_new_model_alone():
    """A model before that never answered has no chance of its own."""
    never = DeviceSignals()
    assert breach(never, inferences=100, escalated=0, errors=100)
    assert not breach(never, inferences=100, escalated=0, errors=2)
    assert breach(never, inferences=400, escalated=0, errors=40)


@pytest.mark.parametrize("name", ["confidence", "confidence_sq"])
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_probation_takes_no_confidence_that_is_no_number(name, value):
    assert breach(**{name: value}) == "its confidence is no number"


def test_a_soak_is_over_at_its_time_and_number_of_answers_or_at_its_longest_with_one():
    terms = msgspec.structs.replace(make_assignment(1, 0), soak_s=60.0, max_soak_s=600.0, min_inferences=50)

    def over(answers: int, elapsed_s: float) -> bool:
        return is_soak_over(DeviceSignals(inferences=answers), elapsed_s, terms)

    assert over(50, 60.0)
    assert not over(50, 59.9)
    assert not over(49, 60.0)
    assert over(1, 600.0)
    assert not over(1, 599.9)
    assert not over(0, 10_000.0)
    assert not over(50, nan)


def test_from_fifty_answers_on_confidences_that_never_differ_are_a_stuck_gauge():
    def stuck(answers: int) -> DeviceSignals:
        return DeviceSignals(inferences=answers, confidence=0.5 * answers, confidence_sq=0.25 * answers)

    assert not is_sound(stuck(MIN_ANSWERS))
    assert is_sound(stuck(MIN_ANSWERS - 1))
    assert is_sound(DeviceSignals(inferences=MIN_ANSWERS, confidence=MIN_ANSWERS / 2, confidence_sq=MIN_ANSWERS / 2))


CELL = AuditAgreement("open", 0.05, 100, 90, 4, 2, 10, 3, 2, 1)


def reports(*cells: AuditAgreement) -> bool:
    return bool(select_reporting([DeviceQuality("d1", AuditQuality(cells))]))


def test_a_device_counts_with_as_many_cells_as_a_report_may_have():
    assert reports(*(CELL,) * MAX_AUDIT_CELLS)
    assert not reports(*(CELL,) * (MAX_AUDIT_CELLS + 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"share": 0.0}, {"share": nan}, {"share": 1.01}, {"worse": -1}, {"agreed": 97}, {"better": 91},
        {"better": -1}, {"told": 2}, {"told_wrong": 11}, {"told_worse": 10}, {"told_better": -1}, {"audited": 93},
    ],
)  # fmt: skip
def test_a_cell_whose_counts_contradict_each_other_makes_the_device_silent(changes):
    assert reports(CELL)
    assert not reports(msgspec.structs.replace(CELL, **changes))


def test_feedback_where_both_answers_are_known_counts_worse_and_better_alone():
    device = DeviceQuality("d1", AuditQuality((CELL,)))
    counted = count_feedback([device], [device], GateRules())
    assert counted.paired == (((WeightedCounts(1.0, 2.0, 0.0, 1.0),), 1),)
    assert counted.canary == counted.control == (((WeightedCounts(1.0, 3.0, 7.0, 0.0),), 1),)


@pytest.mark.parametrize(
    ("devices", "audited", "stuck"),
    [
        (MIN_STUCK_DEVICES, MIN_STUCK_DEVICES, True),
        (MIN_STUCK_DEVICES - 1, MIN_STUCK_DEVICES, False),
        (MIN_STUCK_DEVICES, MIN_STUCK_DEVICES - 1, False),
    ],
)
def test_as_many_devices_with_as_many_audits_that_all_report_the_same_are_stuck(devices, audited, stuck):
    cells = (AuditAgreement("open", 0.5, audited, audited),)
    reports = [DeviceQuality(f"d{number}", AuditQuality(cells)) for number in range(devices)]
    assert are_stuck(reports) is stuck
    other = DeviceQuality("other", AuditQuality((AuditAgreement("open", 0.5, audited, audited - 1),)))
    assert not are_stuck([*reports, other])
