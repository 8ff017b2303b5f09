"""Quality gate: what passes, what stops a rollout, and what is inconclusive."""

from math import nan
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rollout_rules import gate
from policies.rollout_rules.cohorts import DeviceQuality, count_audits
from policies.rollout_rules.confidence import estimate_samples_needed, find_lower_bound, find_upper_bound
from policies.rollout_rules.gate import GateOutcome, GateResult, evaluate_gate
from policies.rollout_rules.gate_parameters import GateRules
from tests.examples import mark_further
from tests.policies.doubles import fleets
from tests.policies.doubles.fleets import GOOD, THREE_POINTS, TWENTY_POINTS, Truth, canary, control, lying, one, silent
from wire.protocol.rollout import AuditAgreement, AuditQuality, DeviceSignals

LIARS = 0.3


def look_alone(new: list[DeviceQuality], **rules: float) -> GateResult:
    return evaluate_gate(new, None, msgspec.structs.replace(GateRules(), **rules))


def look(new: list[DeviceQuality], old: list[DeviceQuality] | None = None, **rules: float) -> GateResult:
    return evaluate_gate(new, old or control(Random(9), len(new), 10), msgspec.structs.replace(GateRules(), **rules))


def test_a_version_that_is_as_good_passes_and_the_bound_is_said():
    seen = look(canary(Random(1), 100, 10))
    assert seen.outcome is GateOutcome.PASS
    assert 0 < seen.bound < 0.08
    assert seen.low < seen.effect < seen.high
    assert seen.audits == 1000
    assert seen.words[0].startswith("open: 1000 audits")


def test_twenty_points_worse_is_called_back_after_a_few_minutes_and_then_proved():
    early, late = (look(canary(Random(2), 100, audits, TWENTY_POINTS)) for audits in (2, 10))
    assert early.outcome is GateOutcome.INCONCLUSIVE
    assert early.hold
    assert "worse by" in early.why
    assert late.outcome is GateOutcome.FAIL


def test_three_points_worse_do_not_get_past_the_ten_percent_wave():
    seen = look(canary(Random(3), 600, 10, THREE_POINTS))
    assert seen.outcome is GateOutcome.INCONCLUSIVE
    assert seen.hold


def test_a_head_and_a_tail_that_regress_together_are_stopped():
    """The candidate's own hub half would agree with it every time: it is not asked. Only the committed one is."""
    agreed_with_own_tail = 1.0
    seen = look(canary(Random(4), 100, 3, Truth(worse=0.2, better=0.0)))
    assert agreed_with_own_tail > seen.effect
    assert seen.outcome is GateOutcome.FAIL


def test_one_class_alone_that_is_severely_worse_is_found_among_all():
    rng = Random(5)
    new = [
        one(f"new-{n}", fleets.cell(rng, 19, GOOD), fleets.cell(rng, 1, Truth(0.5, 0.0), "rare")) for n in range(100)
    ]
    seen = look(new)
    assert seen.hold
    assert "rare" in seen.why


# Without controls: a fleet of one, and every last wave


def test_a_fleet_of_one_is_judged_by_its_paired_audits():
    assert look_alone(canary(Random(1), 1, 60, Truth(0.4, 0.0))).outcome is GateOutcome.FAIL
    assert look_alone(canary(Random(1), 1, 60, Truth(0.0, 0.0))).outcome is GateOutcome.PASS
    assert look_alone(canary(Random(2), 100, 10, TWENTY_POINTS)).outcome is GateOutcome.FAIL
    assert look_alone(canary(Random(1), 100, 10)).outcome is GateOutcome.PASS


@pytest.mark.parametrize("seed", mark_further(range(20), range(4)))
def test_forty_points_worse_never_pass_on_one_device_however_often_one_looks(seed: int):
    rng = Random(seed)
    worse = 0
    for audits in range(1, 200):
        worse += rng.random() < 0.4
        seen = look_alone([one("n", AuditAgreement("open", 0.02, audits, audits - worse, worse))])
        assert seen.outcome is not GateOutcome.PASS
        if seen.outcome is GateOutcome.FAIL:
            return
    raise AssertionError("never found")


def test_without_controls_nothing_audited_is_nothing_known():
    assert look_alone(silent(1)).outcome is GateOutcome.INCONCLUSIVE
    assert look_alone(canary(Random(1), 1, 0)).outcome is GateOutcome.INCONCLUSIVE
    vitals = DeviceQuality("n", AuditQuality((), ("vitals",)), fleets.of_class("vitals", confidence_sq=262.0))
    assert "no control" in look_alone([vitals]).why
    assert look_alone([vitals]).outcome is GateOutcome.INCONCLUSIVE


# Measurements that say nothing


def test_missing_reports_are_inconclusive():
    assert look(silent(20)).outcome is GateOutcome.INCONCLUSIVE
    assert look([]).outcome is GateOutcome.INCONCLUSIVE
    assert evaluate_gate(canary(Random(1), 20, 50), silent(20)).outcome is GateOutcome.INCONCLUSIVE
    assert evaluate_gate(canary(Random(1), 20, 50), []).outcome is GateOutcome.INCONCLUSIVE


@pytest.mark.parametrize("worse", [True, False])
def test_one_of_twenty_devices_is_inconclusive_whatever_it_says(worse: bool):
    seen = look(lying(canary(Random(1), 1, 500), 1.0, worse) + silent(19))
    assert seen.outcome is GateOutcome.INCONCLUSIVE


@pytest.mark.parametrize("share", [nan, 0.0, -0.02, 1.5, float("inf")])
def test_a_number_that_is_none_is_no_report(share: float):
    new = [one(f"n{n}", AuditAgreement("open", share, 50, 46, 1, 1)) for n in range(20)]
    assert look(new).outcome is GateOutcome.INCONCLUSIVE


def test_signals_that_are_not_numbers_are_no_report():
    broken = msgspec.structs.replace(fleets.USUAL, confidence=nan)
    new = [msgspec.structs.replace(device, signals=broken) for device in canary(Random(1), 20, 50)]
    assert look(new).outcome is GateOutcome.INCONCLUSIVE


def test_constant_reports_are_inconclusive():
    same = [one(f"n{n}", AuditAgreement("open", 0.02, 50, 47, 0, 1)) for n in range(40)]
    assert look(same).outcome is GateOutcome.INCONCLUSIVE
    frozen = DeviceSignals(inferences=360, confidence=180.0, confidence_sq=90.0)
    stuck = [msgspec.structs.replace(device, signals=frozen) for device in canary(Random(1), 40, 50)]
    assert look(stuck).outcome is GateOutcome.INCONCLUSIVE


def test_counts_that_cannot_be_are_no_report():
    for bad in (
        AuditAgreement("open", 0.02, 5, 6),
        AuditAgreement("open", 0.02, 5, 5, 1),
        AuditAgreement("open", 0.02, -5),
    ):
        assert look([one(f"n{n}", bad) for n in range(20)]).outcome is GateOutcome.INCONCLUSIVE


def test_no_audits_at_all_is_inconclusive():
    assert look(canary(Random(1), 40, 0)).outcome is GateOutcome.INCONCLUSIVE


def test_too_few_audits_say_how_many_are_needed():
    seen = look(canary(Random(1), 20, 1))
    assert seen.outcome is GateOutcome.INCONCLUSIVE
    assert "needs about" in seen.why


# A third of the fleet lies


def test_false_failures_of_30_percent_pause_and_neither_abort_nor_promote():
    for seed, truth in ((1, GOOD), (2, Truth(0.01, 0.0))):
        seen = look(lying(canary(Random(seed), 100, 20, truth), LIARS, worse=True))
        assert seen.outcome is GateOutcome.INCONCLUSIVE
        assert seen.hold


@pytest.mark.parametrize("points", [0.03, 0.05, 0.2])
def test_false_praise_of_30_percent_promotes_nothing_that_is_worse(points: float):
    truth = Truth(worse=0.02 + points, better=0.02)
    assert look(lying(canary(Random(1), 100, 10, truth), LIARS, worse=False)).outcome is not GateOutcome.PASS
    assert look(lying(canary(Random(1), 600, 10, truth), LIARS, worse=False)).outcome is not GateOutcome.PASS


@given(st.integers(0, 10_000), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_whatever_30_percent_say_twenty_points_are_not_promoted(seed: int, worse: float, better: float):
    rng = Random(seed)
    honest = canary(rng, 70, 10, TWENTY_POINTS)
    liars = canary(rng, 30, 10, Truth(worse * (1 - better), better))
    assert look(honest + liars).outcome is not GateOutcome.PASS


def test_a_device_that_claims_a_million_audits_counts_as_one_device():
    new = canary(Random(1), 100, 10)
    loud = one("loud", AuditAgreement("open", 0.02, 1_000_000, 0, 1_000_000))
    assert look([*new[:-1], loud]).outcome is GateOutcome.PASS


def test_praise_beyond_belief_is_inconclusive():
    assert "too good" in look(canary(Random(1), 100, 20, Truth(worse=0.0, better=0.12))).why


# What else is looked at


def test_rarely_audited_classes_weigh_what_they_stand_for():
    """The class that is audited ten times less is as frequent: its harm counts for half of all answers."""
    rng = Random(6)
    often = [msgspec.structs.replace(fleets.cell(rng, 20, Truth(0.0, 0.0)), share=0.2) for _ in range(200)]
    rare = [fleets.cell(rng, 2, Truth(0.12, 0.0), "rare") for _ in range(200)]
    seen = look([one(f"n{n}", *cells) for n, cells in enumerate(zip(often, rare, strict=True))])
    assert seen.effect == pytest.approx(-0.06, abs=0.02)


def test_a_class_that_may_not_be_audited_is_named_and_gated_on_what_devices_see():
    new = [
        DeviceQuality(f"n{n}", AuditQuality((), ("vitals",)), fleets.of_class("vitals", confidence_sq=262.0 + n / 100))
        for n in range(40)
    ]
    seen = look(new, [msgspec.structs.replace(d, device=d.device + "-old") for d in new])
    assert (seen.outcome, seen.unaudited, seen.bound) == (GateOutcome.PASS, ("vitals",), 1.0)
    unheard = [msgspec.structs.replace(device, signals=fleets.USUAL) for device in new]
    assert look(unheard, new).outcome is GateOutcome.INCONCLUSIVE
    unsure = [msgspec.structs.replace(d, signals=fleets.of_class("vitals", escalated=140)) for d in new]
    assert look(unsure, new).outcome is GateOutcome.FAIL


def test_people_outrank_audits():
    def said(new: list[DeviceQuality], told: int, wrong: int) -> list[DeviceQuality]:
        return [
            one(d.device, msgspec.structs.replace(d.quality.cells[0], told=told, told_wrong=wrong + (n % 3 == 0)))
            for n, d in enumerate(new)
            if d.quality
        ]

    good, bad = canary(Random(1), 100, 10), canary(Random(1), 100, 10, TWENTY_POINTS)
    usual = said(control(Random(2), 100, 10), 40, 3)
    assert look(said(good, 40, 3), usual).outcome is GateOutcome.PASS
    assert look(said(good, 40, 12), usual).outcome is GateOutcome.FAIL
    assert look(said(bad, 40, 3), usual).outcome is GateOutcome.PASS


def judged(name: str, wrong: int, of: int = 40) -> list[DeviceQuality]:
    """40 devices with 2 audits and 60 judged answers each: people found `wrong` wrong in all, of the first `of`."""
    audits = AuditAgreement("open", fleets.SHARE, 2, 2, 0, 0, told=60)
    each = [wrong // of + (number < wrong % of) if number < of else 0 for number in range(40)]
    return [
        one(f"{name}-{number}", msgspec.structs.replace(audits, told_wrong=count)) for number, count in enumerate(each)
    ]


@pytest.mark.parametrize(("told_least", "passes"), [(2400, True), (2401, False)])
def test_feedback_passes_a_version_from_the_least_number_of_judged_answers_on(told_least, passes):
    seen = look(judged("new", 160), judged("old", 160), liars=0.0, told_least=told_least)
    assert (seen.outcome is GateOutcome.PASS) is passes
    assert ("by human feedback" in seen.why) is passes


@pytest.mark.parametrize(("told_least", "stops"), [(2400, True), (2401, False)])
def test_feedback_stops_a_version_from_the_least_number_of_judged_answers_on(told_least, stops):
    seen = look(judged("new", 480), judged("old", 160), told_least=told_least)
    assert ("people find more" in seen.why) is stops
    assert (seen.outcome is GateOutcome.FAIL or seen.hold) is stops


def test_against_liars_feedback_and_audits_rule_out_twice_the_margin_where_that_is_more_than_the_wide_one():
    by_feedback = look(judged("new", 160), judged("old", 160), liars=0.2, wide=0.0)
    assert (by_feedback.outcome, "by human feedback" in by_feedback.why) == (GateOutcome.PASS, True)
    by_audits = look(canary(Random(1), 100, 40), liars=0.2, wide=0.0)
    assert (by_audits.outcome, "audits" in by_audits.why) == (GateOutcome.PASS, True)


@pytest.mark.parametrize(("wide", "outcome"), [(0.5, GateOutcome.PASS), (0.0, GateOutcome.INCONCLUSIVE)])
def test_against_liars_feedback_and_audits_rule_out_the_wide_margin_where_that_is_more(wide, outcome):
    by_feedback = look(judged("new", 160, of=20), judged("old", 160), liars=0.49, margin=0.04, wide=wide)
    assert by_feedback.outcome is outcome
    by_audits = look(canary(Random(1), 100, 40), liars=0.49, margin=0.02, wide=wide)
    assert by_audits.outcome is outcome


@pytest.mark.parametrize(("wrong", "outcome"), [(248, GateOutcome.PASS), (252, GateOutcome.INCONCLUSIVE)])
def test_the_chance_that_feedback_passes_a_worse_version_is_shared_by_the_two_cohorts(wrong, outcome):
    """Of 2400 answers 160 were wrong by the committed model: how many more rule out the margin is known to one."""
    assert look(judged("new", wrong), judged("old", 160), pass_alpha=0.01, liars=0.0).outcome is outcome


def test_devices_that_lie_about_peoples_judgement_do_not_get_a_bad_version_past_its_audits():
    """Three in ten report that people found nothing wrong; of the others too few people said anything."""
    rng = Random(3)
    devices = 100

    def judged(number: int, audits: AuditAgreement) -> DeviceQuality:
        if number < LIARS * devices:
            return one(f"new-{number}", msgspec.structs.replace(audits, told=60, told_wrong=0))
        return one(f"new-{number}", audits)

    new = [judged(number, fleets.cell(rng, 10, TWENTY_POINTS)) for number in range(devices)]
    old = [
        one(f"old-{number}", msgspec.structs.replace(fleets.cell(rng, 10, Truth(0.0, 0.0)), told=40, told_wrong=4))
        for number in range(devices)
    ]
    assert look(new, old).outcome is GateOutcome.FAIL


def look_at_classes(count: int, worse: int) -> GateResult:
    """`worse` of 800 audits of one class are worse, of 20 devices; in the other classes nothing differs."""
    others = [AuditAgreement(f"class-{number}", fleets.SHARE, 400, 400, 0, 0) for number in range(count - 1)]

    def audit(number: int) -> DeviceQuality:
        wrong = worse // 20 + (number < worse % 20)
        return one(f"new-{number}", AuditAgreement("rare", fleets.SHARE, 40, 40 - wrong, wrong, 0), *others)

    return look_alone([audit(number) for number in range(20)])


def test_the_chance_of_a_false_alarm_is_shared_out_among_the_classes():
    """What is enough evidence against one of two classes is not enough against one of twenty: they look bad by chance
    ten times as often."""
    of_two, of_twenty = (
        next(worse for worse in range(40, 400) if "rare" in look_at_classes(count, worse).why) for count in (2, 20)
    )
    assert of_two < of_twenty


def test_cohorts_whose_committed_models_differ_by_chance_of_place_alone_are_compared():
    """Two points between the places of both cohorts are usual, however clearly many audits show them; ten are not."""
    few, many = (look(canary(Random(1), 300, 40), control(Random(2), 300, 40, accuracy)) for accuracy in (0.95, 0.82))
    assert few.outcome is GateOutcome.PASS
    assert (many.outcome, "alike" in many.why) == (GateOutcome.INCONCLUSIVE, True)


def test_cohorts_that_are_not_alike_are_not_compared():
    assert "alike" in look(canary(Random(1), 100, 10), control(Random(2), 100, 10, 0.7)).why


@given(
    st.lists(
        st.builds(
            AuditAgreement,
            st.sampled_from(("open", "vitals", "")),
            st.floats(allow_nan=True),
            *(st.integers(-3, 60) for _ in range(8)),
        ),
        max_size=6,
    ),
    st.integers(0, 6),
)
def test_the_gate_is_total(cells: list[AuditAgreement], devices: int):
    new = [one(f"n{n}", *cells) for n in range(devices)]
    seen = evaluate_gate(new, new)
    assert 0.0 <= seen.bound <= 1.0
    assert seen.outcome is not GateOutcome.PASS or seen.audits or seen.unaudited


def test_the_interval_that_is_shown_lies_within_all_that_is_possible():
    nothing = look([one(f"new-{n}", AuditAgreement("open", fleets.SHARE)) for n in range(3)], expected=-0.05)
    assert (nothing.low, nothing.high, nothing.effect, nothing.audits) == (-0.95, 1.0, 0.0, 0)
    many = look(canary(Random(1), 300, 10))
    assert -0.2 < many.low < 0.0 < many.high < 0.2
    assert many.bound == pytest.approx(-many.low)


@pytest.mark.parametrize("accuracies", [(0.95, 0.6), (0.6, 0.95)])
def test_a_committed_model_that_agrees_otherwise_in_one_cohort_says_that_the_cohorts_are_not_alike(accuracies):
    new, old = accuracies
    found = look(canary(Random(1), 200, 10, Truth(0.0, 0.0, new)), control(Random(2), 200, 10, old), harm=0.5)
    assert found.outcome is GateOutcome.INCONCLUSIVE
    assert found.why == "the committed model does not agree alike in both cohorts"


def test_half_of_either_cohort_has_to_report_and_the_number_that_did_is_said():
    new, old = canary(Random(1), 20, 50), control(Random(2), 20, 50)
    assert evaluate_gate(new[:10] + silent(10), old).outcome is GateOutcome.PASS
    assert evaluate_gate(new, old[:10] + silent(10)).outcome is GateOutcome.PASS
    few = evaluate_gate(new[:9] + silent(11), old)
    assert (few.outcome, few.why) == (GateOutcome.INCONCLUSIVE, "9 of 20 devices of the canary cohort reported")
    quiet = evaluate_gate(new, old[:9] + silent(11))
    assert (quiet.outcome, quiet.why) == (GateOutcome.INCONCLUSIVE, "9 of 20 devices of the control cohort reported")
    odd = evaluate_gate(canary(Random(1), 3, 50)[:1] + silent(2), None)  # the half of three is two
    assert odd.why == "1 of 3 devices of the canary cohort reported"


def test_each_class_unaudited_class_and_judgement_of_people_has_its_line():
    new = [
        DeviceQuality(f"n{number}", AuditQuality((
            AuditAgreement("a", 0.02, 10, 9, 1, 0, told=4, told_wrong=1), AuditAgreement("b", 0.02, 5, 5, 0, 1),
        ), ("secret",)))
        for number in range(8)
    ]  # fmt: skip
    seen = look_alone(new, expected=-0.01, margin=0.9)
    assert seen.words == (
        "a: 80 audits, -9.0 points", "b: 40 audits, +21.0 points",
        "secret: may not be audited, judged by device signals alone", "people judged 32 answers, 25.0% wrong",
    )  # fmt: skip
    assert seen.unaudited == ("secret",)
    assert look_alone(silent(3)).words == ()


def test_a_result_of_nothing_knows_nothing():
    assert look_alone(silent(3)) == GateResult(
        GateOutcome.INCONCLUSIVE, "0 of 3 devices of the canary cohort reported", bound=1.0
    )


def test_a_finding_is_sure_only_if_a_minority_that_lies_could_not_have_made_it_up():
    worse = [one(f"n{n}", AuditAgreement("open", 0.02, 40, 20, 20)) for n in range(4)]
    assert look_alone(worse, liars=0.0).outcome is GateOutcome.FAIL
    one_alone = worse[:1] + [one(f"g{n}", AuditAgreement("open", 0.02, 40, 40)) for n in range(4)]
    found = look_alone(one_alone, liars=0.3)
    assert found.outcome is not GateOutcome.FAIL


def test_a_version_that_needs_more_audits_is_told_about_how_many():
    new = [one(f"n{n}", AuditAgreement("open", 0.02, 10, 10, 0, 0)) for n in range(3)]
    seen = look_alone(new, margin=0.05, liars=0.0)
    needed = estimate_samples_needed(0.05, 0.0, 0.01)
    assert seen.why == f"30 audits do not rule out 5.0 points: a version that is as good needs about {needed}"
    mixed = [one(f"n{n}", AuditAgreement("open", 0.02, 10, 9, 1, 1)) for n in range(3)]
    needed = estimate_samples_needed(0.05, 0.2, 0.01)
    assert look_alone(mixed, margin=0.05, liars=0.0).why.endswith(f"is as good needs about {needed}")


@pytest.mark.parametrize(("devices", "holds"), [(4, True), (5, False)])
def test_from_five_devices_on_one_alone_stops_nothing(devices, holds):
    bad = one("bad", AuditAgreement("open", 0.02, 60, 0, 60))
    good = [one(f"n{n}", AuditAgreement("open", 0.02, 20, 20)) for n in range(devices - 1)]
    assert look_alone([bad, *good], liars=0.0).hold is False
    found = look_alone([bad, *good], liars=0.0).outcome
    assert (found is GateOutcome.FAIL) is holds


@pytest.mark.parametrize(("devices", "outcome"), [(4, GateOutcome.INCONCLUSIVE), (5, GateOutcome.FAIL)])
def test_what_devices_see_alone_is_final_from_five_devices_on(devices, outcome):
    slow = msgspec.structs.replace(fleets.USUAL, errors=100)
    new = [one(f"n{n}", AuditAgreement("open", 0.02, 20, 20), signals=slow) for n in range(devices)]
    found = look(new, control(Random(9), devices, 20))
    assert (found.outcome, found.hold) == (outcome, outcome is GateOutcome.INCONCLUSIVE)
    assert found.why.startswith("errors beyond control in 100% of the devices")


def test_all_of_the_chance_of_a_false_alarm_is_shared_out_and_none_of_it_twice():
    spent_once, spent_twice = gate._AUDITS + gate._CLASSES, gate._TOLD + gate._CONTROL
    assert spent_once + 2 * spent_twice == 1.0


def test_the_interval_that_is_shown_is_that_of_the_paired_audits():
    new = [one(f"n{n}", AuditAgreement("open", 0.02, 10, 9, 1, 1)) for n in range(6)]
    seen = look_alone(new, expected=-0.01)
    paired = count_audits(new, [], GateRules()).paired
    assert seen.high == find_upper_bound(paired, 0.003 / 2, 1) + 0.01
    assert seen.low == find_lower_bound(paired, 0.01) + 0.01
    assert (seen.bound, seen.effect, seen.audits) == (-seen.low, 0.01, 60)
