"""Quality gate between two waves of a rollout: does the candidate answer as well as the committed model? Pure.

The result is PASS, FAIL or INCONCLUSIVE. Rule: total, and no memory between looks: the sums that devices report are all
it needs, so that it may be asked as often as one likes and its error rates hold over all looks together. Missing data
is never good: no reports, damage, a gauge that does not move, or reports of a few give INCONCLUSIVE.

What is compared: for an audited sample (drawn at random of *all* answers) the device asked both models, and the
committed model's hub half said what is right. The candidate has no part in that reference, so a head and a tail that
went wrong together are seen as well. Both models answered the same sample, so only where they differ does chance play a
part.

A control cohort runs the committed model at the same time; it says whether the canary's devices, speed and classes that
may not be audited are as usual. Where none is left (a fleet of one, every last wave) the paired audits decide alone.

False reports: `liars` of the devices may report anything. They cannot get a candidate passed that is worse by `wide`,
nor aborted one that is not worse at all: a bound that counts leaves out the loudest of them. Harm that as few as they
could have invented is `hold`: stop and call back, but let people look before it is final.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import ceil
from typing import NamedTuple

import msgspec

from policies.rollout_rules.cohorts import (
    AuditGroups,
    DeviceQuality,
    FeedbackCounts,
    are_stuck,
    count_audits,
    count_feedback,
    list_unaudited,
    select_reporting,
)
from policies.rollout_rules.confidence import (
    DeviceGroups,
    compute_weighted_mean,
    count_samples,
    estimate_samples_needed,
    find_lower_bound,
    find_upper_bound,
)
from policies.rollout_rules.gate_parameters import GateRules
from policies.rollout_rules.signals import BehaviourComparison, compare_behaviour

MAX_COMMITTED_DIFFERENCE = 0.05  # the committed model may agree so much more or less in one cohort than in the other
CLASS_HARM_MARGIN = 0.05  # one class alone may be worse by so much more than all together
ROBUST_ALPHA = 0.05  # an abort must also stand, at this level, without the loudest devices
_LONE = 5  # from so many devices on, one alone stops nothing; fewer do not make an abort by themselves

# how the chance of a false alarm is shared out: audits, single classes, human feedback, the control cohort
_AUDITS, _CLASSES, _TOLD, _CONTROL = 1 / 2, 1 / 4, 1 / 16, 1 / 16  # the last two are spent twice each

_USUAL = GateRules()


class GateOutcome(StrEnum):
    """Outcome of one look."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class GateResult(msgspec.Struct, frozen=True):
    """Result of one look.

    `bound`: but for `pass_alpha`, the candidate is worse by at most so much (1 = nothing is known).
    `effect` within `low`..`high`: by how much it answers better (above 0) or worse than the committed model, as seen.
    `hold`: stop at once and call back what has not committed; harm is likely, but a minority may have invented it.
    `words`: a line for people for each thing that was looked at.
    """

    outcome: GateOutcome
    why: str
    bound: float = 1.0
    unaudited: tuple[str, ...] = ()
    hold: bool = False
    effect: float = 0.0
    low: float = -1.0
    high: float = 1.0
    audits: int = 0
    words: tuple[str, ...] = ()


class _GateEvidence(NamedTuple):
    """Both cohorts, as far as they reported.

    `asked`: numbers of devices assigned; `liars`: at most so many lie; `controlled`: whether there is a control cohort.
    """

    rules: GateRules
    cohorts: tuple[list[DeviceQuality], list[DeviceQuality]]
    asked: tuple[int, int]
    liars: int
    audits: AuditGroups
    told: FeedbackCounts
    behaviour: BehaviourComparison
    unaudited: tuple[str, ...]
    controlled: bool

    @property
    def margin(self) -> float:
        return self.rules.margin_for(self.asked[0])

    @property
    def lone(self) -> int:
        return int(self.asked[0] >= _LONE)


class _GateFinding(NamedTuple):
    """A finding that decides the look. `hold`: see `GateResult`."""

    outcome: GateOutcome
    why: str
    hold: bool = False


def evaluate_gate(
    canary: Sequence[DeviceQuality], control: Sequence[DeviceQuality] | None, rules: GateRules = _USUAL
) -> GateResult:
    """Evaluate the gate once. Both cohorts list every device that was assigned, whether it reported or not.

    `control` None: no device is left that could be one.
    """
    seen = _compare_cohorts(canary, control, rules)
    found = _find_harm(seen) or _find_missing(seen) or _decide_outcome(seen)
    return _build_result(seen, found)


def _compare_cohorts(
    canary: Sequence[DeviceQuality], control: Sequence[DeviceQuality] | None, rules: GateRules
) -> _GateEvidence:
    """Collect what both cohorts reported: audits, feedback, behaviour."""
    new, old = select_reporting(canary), select_reporting(control or ())
    classes = list_unaudited(canary)
    before, after = ([d.signals for d in cohort if d.signals] for cohort in (old, new))
    return _GateEvidence(
        rules,
        (new, old),
        (len(canary), len(control or ())),
        int(rules.liars * len(canary)),
        count_audits(new, old, rules),
        count_feedback(new, old, rules),
        compare_behaviour(after, before, classes if control is not None else (), rules.signals),
        classes,
        controlled=control is not None,
    )


def _build_result(seen: _GateEvidence, found: _GateFinding) -> GateResult:
    """Result with the figures of the paired audits."""
    rules, paired = seen.rules, seen.audits.paired
    audits = count_samples(paired)
    low = find_lower_bound(paired, rules.pass_alpha) - rules.expected
    return GateResult(
        found.outcome,
        found.why,
        bound=max(0.0, min(1.0, -low)),
        unaudited=seen.unaudited,
        hold=found.hold,
        effect=compute_weighted_mean(paired) - rules.expected if audits else 0.0,
        low=low,
        high=min(1.0, find_upper_bound(paired, rules.alpha * _AUDITS, seen.lone) - rules.expected),
        audits=audits,
        words=_describe_looks(seen),
    )


# Harm


def _find_harm(seen: _GateEvidence) -> _GateFinding | None:
    """First finding of harm: feedback, audits, single classes, behaviour."""
    return _feedback_worse(seen) or _audits_worse(seen) or _class_worse(seen) or _behaves_worse(seen)


def _feedback_worse(seen: _GateEvidence) -> _GateFinding | None:
    """Harm by human feedback, which outranks audits."""
    new, old, alpha = seen.told.canary, seen.told.control, seen.rules.alpha * _TOLD
    if count_samples(new) < seen.rules.told_least:
        return None
    if not find_upper_bound(new, alpha, seen.lone) < find_lower_bound(old, alpha) - seen.rules.harm:
        return None
    other_liars = int(seen.rules.liars * seen.asked[1])
    sure = (
        find_upper_bound(new, ROBUST_ALPHA / 2, seen.liars)
        < find_lower_bound(old, ROBUST_ALPHA / 2, other_liars) - seen.rules.harm
    )
    return _stop_wave("people find more of its answers wrong than of the control cohort's", sure=sure)


def _audits_worse(seen: _GateEvidence) -> _GateFinding | None:
    """Harm by audits: paired on the same samples, then canary against control."""
    if _feedback_fine(seen):
        return None
    paired, limit = seen.audits.paired, seen.rules.expected - seen.rules.harm
    if find_upper_bound(paired, seen.rules.alpha * _AUDITS, seen.lone) < limit:
        sure = find_upper_bound(paired, ROBUST_ALPHA, seen.liars) < limit
        return _stop_wave(
            f"it answers worse by {_format_points(seen.rules.expected - compute_weighted_mean(paired))}", sure=sure
        )
    alpha = seen.rules.alpha * _CONTROL
    if find_upper_bound(seen.audits.candidate, alpha, seen.lone) < find_lower_bound(seen.audits.control, alpha) + limit:
        return _stop_wave("it agrees with the verdicts less than the control cohort does", sure=False)
    return None


def _class_worse(seen: _GateEvidence) -> _GateFinding | None:
    """Harm in one data class, which may be too small to show among all."""
    classes = seen.audits.classes
    if len(classes) < 2:
        return None
    limit = seen.rules.expected - seen.rules.harm - CLASS_HARM_MARGIN
    for name, paired in classes.items():
        if find_upper_bound(paired, seen.rules.alpha * _CLASSES / len(classes), seen.lone) < limit:
            sure = find_upper_bound(paired, ROBUST_ALPHA, seen.liars) < limit
            return _stop_wave(f"it answers {name} worse by {_format_points(-compute_weighted_mean(paired))}", sure=sure)
    return None


def _behaves_worse(seen: _GateEvidence) -> _GateFinding | None:
    """Harm by signals that devices measure without audits."""
    if seen.behaviour.harm:
        return _stop_wave(seen.behaviour.harm[0], sure=seen.asked[0] >= _LONE)
    return _stop_wave(seen.behaviour.disputed[0], sure=False) if seen.behaviour.disputed else None


def _stop_wave(why: str, *, sure: bool) -> _GateFinding:
    """Finding of harm. `sure`: no minority that may lie could have made it up."""
    if sure:
        return _GateFinding(GateOutcome.FAIL, why)
    return _GateFinding(
        GateOutcome.INCONCLUSIVE, f"{why}, but a minority of the devices could have made that up", hold=True
    )


# What is not known


def _find_missing(seen: _GateEvidence) -> _GateFinding | None:
    """First reason why nothing can be said; None if there is enough."""
    return _check_silence(seen) or _check_plausibility(seen)


def _check_silence(seen: _GateEvidence) -> _GateFinding | None:
    """Too few devices reported, or all report the same."""
    for name, cohort, asked in zip(("canary", "control"), seen.cohorts, seen.asked, strict=True):
        if name == "control" and not seen.controlled:
            continue
        if not cohort or len(cohort) < ceil(seen.rules.coverage * asked):
            return _GateFinding(
                GateOutcome.INCONCLUSIVE, f"{len(cohort)} of {asked} devices of the {name} cohort reported"
            )
        if are_stuck(cohort):
            return _GateFinding(GateOutcome.INCONCLUSIVE, f"every device of the {name} cohort reports the same")
    return None


def _check_plausibility(seen: _GateEvidence) -> _GateFinding | None:
    """Figures that cannot be right: far too good, or the committed model differs between cohorts."""
    alpha, found = seen.rules.alpha, seen.audits
    if find_lower_bound(found.paired, alpha, seen.lone) - seen.rules.expected > seen.rules.gain:
        return _GateFinding(
            GateOutcome.INCONCLUSIVE,
            f"better by {_format_points(compute_weighted_mean(found.paired))}: too good to be plausible",
        )
    if _differ_clearly(found.committed, found.control, alpha) or _differ_clearly(found.control, found.committed, alpha):
        return _GateFinding(GateOutcome.INCONCLUSIVE, "the committed model does not agree alike in both cohorts")
    return None


def _differ_clearly(one: DeviceGroups, other: DeviceGroups, alpha: float) -> bool:
    """Whether the first agrees clearly less than the second."""
    return find_upper_bound(one, alpha) + MAX_COMMITTED_DIFFERENCE < find_lower_bound(other, alpha)


# What is shown


def _decide_outcome(seen: _GateEvidence) -> _GateFinding:
    """Outcome where there is neither harm nor anything missing."""
    if seen.behaviour.missing:
        return _GateFinding(GateOutcome.INCONCLUSIVE, seen.behaviour.missing)
    audited = count_samples(seen.audits.paired)
    if not audited:
        return _decide_unaudited(seen)
    if _audits_fine(seen):
        return _GateFinding(GateOutcome.PASS, f"worse by less than {_format_points(seen.margin)}, by {audited} audits")
    if _feedback_fine(seen):
        return _GateFinding(GateOutcome.PASS, f"worse by less than {_format_points(seen.margin)}, by human feedback")
    return _GateFinding(
        GateOutcome.INCONCLUSIVE,
        f"{audited} audits do not rule out {_format_points(seen.margin)}: {_describe_samples_needed(seen)}",
    )


def _decide_unaudited(seen: _GateEvidence) -> _GateFinding:
    """Outcome without any audit: device signals speak only for what may not be audited, and only beside controls."""
    if seen.unaudited and seen.controlled:
        return _GateFinding(GateOutcome.PASS, "nothing may be audited; device signals show no harm")
    why = "nothing may be audited, and there is no control cohort" if seen.unaudited else "nothing was audited"
    return _GateFinding(GateOutcome.INCONCLUSIVE, why)


def _audits_fine(seen: _GateEvidence) -> bool:
    """Audits rule out the margin, and a wider one even if devices lied."""
    paired, rules = seen.audits.paired, seen.rules
    return find_lower_bound(paired, rules.pass_alpha) >= rules.expected - seen.margin and find_lower_bound(
        paired, rules.pass_alpha, seen.liars
    ) >= rules.expected - max(rules.wide, 2 * seen.margin)


def _feedback_fine(seen: _GateEvidence) -> bool:
    """People find no more of its answers wrong, and would not if some of the devices lied."""
    new, old, alpha = seen.told.canary, seen.told.control, seen.rules.pass_alpha / 2
    if count_samples(new) < seen.rules.told_least:
        return False
    usual = find_upper_bound(old, alpha)
    wide = max(seen.rules.wide, 2 * seen.margin)
    return (
        find_lower_bound(new, alpha) >= usual - seen.margin and find_lower_bound(new, alpha, seen.liars) >= usual - wide
    )


def _describe_samples_needed(seen: _GateEvidence) -> str:
    """About how many audits would be enough."""
    paired = seen.audits.paired
    differ = sum(n * sum(t.worse + t.better for t in profile) for profile, n in paired) / max(1, count_samples(paired))
    about = estimate_samples_needed(seen.margin, differ, seen.rules.pass_alpha)
    return f"a version that is as good needs about {about}"


def _describe_looks(seen: _GateEvidence) -> tuple[str, ...]:
    """A line for each data class, unaudited class and human feedback."""
    lines = [
        f"{name}: {count_samples(paired)} audits, "
        f"{100 * (compute_weighted_mean(paired) - seen.rules.expected):+.1f} points"
        for name, paired in seen.audits.classes.items()
        if paired
    ]
    lines += [f"{name}: may not be audited, judged by device signals alone" for name in seen.unaudited]
    judged = count_samples(seen.told.canary)
    return (
        (*lines, f"people judged {judged} answers, {-compute_weighted_mean(seen.told.canary):.1%} wrong")
        if judged
        else tuple(lines)
    )


def _format_points(share: float) -> str:
    return f"{100 * share:.1f} points"
