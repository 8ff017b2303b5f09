"""Reports of cohorts are counted exactly: each model against the verdict, rare audits by weight, devices to a cap."""

import msgspec
import pytest

from policies.rollout_rules.cohorts import (
    AuditGroups,
    DeviceQuality,
    count_audits,
    count_feedback,
    list_unaudited,
    select_reporting,
)
from policies.rollout_rules.confidence import WeightedCounts
from policies.rollout_rules.gate_parameters import GateRules
from wire.protocol.rollout import AuditAgreement, AuditQuality, DeviceSignals

RULES = GateRules()


def device(*cells: AuditAgreement, unaudited: tuple[str, ...] = ()) -> DeviceQuality:
    return DeviceQuality("d", AuditQuality(cells, unaudited))


def counted(*counts: tuple[float, float, float, float]) -> tuple[WeightedCounts, ...]:
    return tuple(WeightedCounts(*each) for each in counts)


def test_each_model_is_held_against_the_verdict_and_both_against_each_other():
    new = [device(AuditAgreement("open", 0.5, audited=20, agreed=15, worse=4, better=1))]
    old = [device(AuditAgreement("open", 0.5, audited=10, agreed=9))] * 2
    paired = ((counted((1.0, 4, 15, 1)), 1),)
    assert count_audits(new, old, RULES) == AuditGroups(
        paired=paired, classes={"open": paired},
        candidate=((counted((1.0, 5, 15, 0)), 1),),
        committed=((counted((1.0, 2, 18, 0)), 1),),  # of its 18 the candidate lost four, and won one of the other two
        control=((counted((1.0, 1, 9, 0)), 2),),
    )  # fmt: skip


def test_a_sample_that_was_audited_rarely_stands_for_more_up_to_ten_times_the_most_frequent():
    cells = [AuditAgreement(name, share, 4, 4) for name, share in (("a", 0.5), ("b", 0.1), ("c", 0.01))]
    groups = count_audits([device(*cells)], [], RULES)
    assert groups.paired == ((counted((0.1, 0, 4, 0), (0.5, 0, 4, 0), (1.0, 0, 4, 0)), 1),)
    assert groups.classes == {
        name: ((counted((weight, 0, 4, 0)), 1),) for name, weight in (("a", 0.1), ("b", 0.5), ("c", 1.0))
    }
    narrow = count_audits([device(*cells)], [], msgspec.structs.replace(RULES, weight_cap=2.0))
    assert narrow.paired == ((counted((0.5, 0, 4, 0), (1.0, 0, 4, 0), (1.0, 0, 4, 0)), 1),)


def test_audits_of_the_control_cohort_count_for_the_weights_and_cells_without_audits_do_not():
    rare, often, empty = (AuditAgreement("a", share, count, count) for share, count in ((0.1, 4), (0.5, 4), (0.001, 0)))
    groups = count_audits([device(often, empty)], [device(rare)], RULES)
    assert groups.paired == ((counted((0.2, 0, 4, 0)), 1),)
    assert groups.control == ((counted((1.0, 0, 4, 0)), 1),)
    assert count_audits([device(empty)], [], RULES).paired == (((), 1),)


def test_a_device_counts_at_most_three_times_the_median_one_and_ten_samples_always_count():
    def of(size: int) -> DeviceQuality:
        return device(AuditAgreement("a", 0.5, size, size // 2, size // 2))

    groups = count_audits([of(20), of(20), of(120)], [], RULES)
    assert groups.paired == ((counted((1.0, 10, 10, 0)), 2), (counted((1.0, 30, 30, 0)), 1))
    few = count_audits([of(2), of(2), of(10), of(20)], [], msgspec.structs.replace(RULES, device_cap=1.0))
    assert few.paired == ((counted((1.0, 1, 1, 0)), 2), (counted((1.0, 5, 5, 0)), 2))
    silent = count_audits([device(), of(40), of(40)], [], RULES)
    assert silent.paired == (((), 1), (counted((1.0, 20, 20, 0)), 2))


def test_what_people_judged_is_counted_alike_whatever_was_audited_and_only_of_devices_with_feedback():
    judged = device(AuditAgreement("a", 0.01, 4, 4, told=6, told_wrong=2, told_worse=1, told_better=2))
    found = count_feedback([judged, device(AuditAgreement("a", 0.5, 9, 9))], [judged], RULES)
    assert found.canary == found.control == ((counted((1.0, 2, 4, 0)), 1),)
    assert found.paired == ((counted((1.0, 1, 0, 2)), 1),)


def test_classes_that_were_answered_and_may_not_be_audited_are_named_once():
    rows = [device(unaudited=("b", "a")), DeviceQuality("d"), device(unaudited=("a", "c"))]
    assert list_unaudited(rows) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("quality", "signals", "reports"),
    [
        (None, DeviceSignals(inferences=1), False), (AuditQuality(), None, False),
        (AuditQuality(), DeviceSignals(), False), (AuditQuality(), DeviceSignals(inferences=1), True),
        (AuditQuality((AuditAgreement("a", 0.5, 1, 1),)), None, True),
        (AuditQuality((AuditAgreement("a", 0.5, 0, 0),)), None, False),
        (AuditQuality((AuditAgreement("a", 0.5, 1, 1),)), DeviceSignals(errors=1), False),
    ],
)  # fmt: skip
def test_a_device_reports_if_it_audited_or_answered_and_nothing_of_it_is_impossible(quality, signals, reports):
    assert bool(select_reporting([DeviceQuality("d", quality, signals)])) is reports
