"""Parameters of the rollout's quality gate, with their bounds. Pure.

Rule: a number that is NaN or lies outside its bounds is an error of one line that names it, and not a default.
"""

import msgspec

from policies.rollout_rules.signals import BehaviourLimits

SMALL, FEW, MANY = 5, 30, 300  # devices in a cohort


class GateRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the quality gate; numbers are points of accuracy (0.01 = one point) or shares (0..1).

    A version that is worse by no more than `harm` is stopped by chance with a probability of at most `alpha` a wave,
    over all looks; one that is worse by `margin` passes with at most `pass_alpha`. `margin` 0 = by the size of the
    cohort. `expected`: how much less than the committed model a version that is as good agrees with *its* hub half,
    as measured when it was built (0 or less). `gain`: more than this is not plausible.
    `weight_cap`: the rarest audits weigh at most so many times the most frequent; `device_cap`: a device counts for at
    most so many times the median one. `coverage`: at least this share of either cohort must have reported.
    """

    alpha: float = 0.003
    pass_alpha: float = 0.01
    harm: float = 0.01
    margin: float = 0.0
    wide: float = 0.15
    expected: float = 0.0
    gain: float = 0.03
    liars: float = 0.3
    weight_cap: float = 10.0
    device_cap: float = 3.0
    coverage: float = 0.5
    told_least: int = 30
    signals: BehaviourLimits = BehaviourLimits()

    def margin_for(self, devices: int) -> float:
        """Margin for a wave of so many devices: what it can show within about an hour of audits."""
        if self.margin:
            return self.margin
        return 0.25 if devices < SMALL else 0.15 if devices < FEW else 0.08 if devices < MANY else 0.03


class GateRulesError(ValueError):
    """A gate parameter is invalid: one line that names the key, and its bounds."""


_SHARES = (0.0, 1.0)
_BOUNDS = {
    "alpha": (1e-6, 0.1),
    "pass_alpha": (1e-6, 0.1),
    "harm": (0.0, 0.5),
    "margin": _SHARES,
    "wide": (0.0, 1.0),
    "expected": (-0.1, 0.0),
    "gain": (0.0, 1.0),
    "liars": (0.0, 0.49),
    "weight_cap": (1.0, 1000.0),
    "device_cap": (1.0, 1000.0),
    "coverage": (0.01, 1.0),
    "told_least": (1, 1_000_000),
}
_OF_SIGNALS = {
    "escalated": _SHARES,
    "errors": _SHARES,
    "confidence": _SHARES,
    "p95": (1.0, 1000.0),
    "rss": (1.0, 1000.0),
    "p95_least_us": (0.0, 1e9),
    "p95_times": (1.0, 1000.0),
    "rss_least_bytes": (0.0, 1e15),
    "liars": (0.0, 0.49),
}


def validate_gate_rules(rules: GateRules) -> GateRules:
    """Validate that every number lies within its bounds; returns the same rules.

    Raises GateRulesError that names the first that does not.
    """
    for name, (low, high) in _BOUNDS.items():
        _check_bounds(name, getattr(rules, name), low, high)
    for name, (low, high) in _OF_SIGNALS.items():
        _check_bounds(f"signals.{name}", getattr(rules.signals, name), low, high)
    if rules.expected and rules.harm - rules.expected >= rules.margin > 0:
        raise GateRulesError("gate: margin must be more than harm and what is expected together")
    return rules


def _check_bounds(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # true for NaN
        raise GateRulesError(f"gate: {name} is {value}: it must lie within {low:g} and {high:g}")
