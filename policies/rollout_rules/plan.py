"""Rollout plan: its parameters, and which devices are in which wave. Pure.

Rule: total. A parameter out of range is refused by name when a rollout is made, and pauses one that runs; NaN never
counts as success. When a wave is stopped is decided by `wave_results`, whether the new version *answers* as well by
`gate`. Reasons: docs/rollout.md.

Rule: the same order on every hub: that of SHA-256(salt | id), salted with the rollout's id so that it is not always the
same devices that go first; named lab devices stand before all. The first wave never exceeds one device or 1 % of the
fleet. A device without an id is in no wave, and a wave without devices is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from math import ceil
from typing import Any, NamedTuple

import msgspec

from policies.rollout_rules.gate_parameters import GateRules, GateRulesError, validate_gate_rules

WIDE_APPROVALS = 2
APPROVED_PERCENT = 10  # of a fleet may be reached without a second person
APPROVED_FLEET = 100  # a smaller fleet asks for no second person by itself


class RolloutRulesError(ValueError):
    """A rollout parameter is invalid: one line for a person that names it."""


class WaveStep(NamedTuple):
    """How far a wave reaches: so many devices, or so many percent of all (rounded up)."""

    devices: int = 0
    percent: Fraction = Fraction(0)

    def count_devices(self, fleet: int) -> int:
        """Number of devices in a fleet of this size."""
        return self.devices or ceil(self.percent * fleet / 100)

    def __str__(self) -> str:
        return str(self.devices) if self.devices else f"{float(self.percent):g}%"


class RolloutRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of one rollout. Shares are in percent, times in seconds.

    `waves`: how far each reaches ("1" device, "10%"), () = by the size of the fleet. `probation_s`: how long a device
    stays in probation, where alone both its models answer: what the gate is to see has to happen then. `soak_first_s`,
    `soak_s`: how long the first and the later waves are watched after that, once `minimum` of results have come, or
    `min_share` of who is in reach, whichever is more; `minimum` 0 = 10, and 1 in a small fleet. `per_minute` doubles
    with each `double_each` successes up to `most_per_minute`. `approvals`: at least, where its size asks for fewer.
    """

    waves: tuple[str, ...] = ()
    lab: tuple[str, ...] = ()
    soak_first_s: float = 3600.0
    soak_s: float = 1800.0
    probation_s: float = 3600.0
    max_soak_s: float = 86_400.0
    min_inferences: int = 200
    audit_share: float = 0.02
    report_s: float = 300.0
    look_s: float = 60.0
    minimum: int = 0
    min_share: float = 80.0
    success_share: float = 95.0
    max_failures: int = 2
    max_failure_share: float = 5.0
    rejected_share: float = 5.0
    per_minute: int = 50
    double_each: int = 1000
    most_per_minute: int = 1000
    in_progress_s: float = 3600.0
    download_s: float = 86_400.0
    wave_deadline_s: float = 604_800.0
    withdraw_s: float = 600.0
    inconclusive: int = 3
    approvals: int = 0
    approval_s: float = 86_400.0
    strict: bool = False
    gate: GateRules = GateRules()

    def steps(self) -> tuple[WaveStep, ...]:
        """Parse `waves`; () where the fleet's size decides."""
        return tuple(_parse_step(text) for text in self.waves)

    def soak_for(self, wave: int) -> float:
        """Soak time of a wave in seconds, and until the next look; waves count from 0.

        Never shorter than the devices' report interval: a look before they could report again sees nothing new.
        """
        return max(self.report_s, self.soak_s if wave else self.soak_first_s)


_PERCENT = ("min_share", "success_share", "max_failure_share", "rejected_share")
_LEAST: Mapping[str, float] = {  # below it a number makes no sense; every number is also below 3 years of seconds
    "soak_first_s": 0, "soak_s": 0, "probation_s": 0, "max_soak_s": 0, "min_inferences": 0, "audit_share": 0,
    "report_s": 1, "look_s": 1, "minimum": 0, "max_failures": 1, "per_minute": 1, "double_each": 1,
    "most_per_minute": 1, "in_progress_s": 1, "download_s": 1, "wave_deadline_s": 1, "withdraw_s": 0,
    "inconclusive": 1, "approvals": 0, "approval_s": 1,
}  # fmt: skip
_MOST: Mapping[str, float] = {"audit_share": 1.0, "per_minute": 100_000, "most_per_minute": 100_000, "approvals": 10}
_LONG = 1e8  # devices take no longer span
MAX_LAB = 1000


def parse_rules(values: object) -> RolloutRules:
    """Parse parameters from JSON or a command line, each of its exact type. Raises RolloutRulesError."""
    try:
        rules = msgspec.convert(values, RolloutRules)
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        raise RolloutRulesError(f"rollout parameters: {error}") from None
    return validate_rules(rules)


def validate_rules(rules: RolloutRules) -> RolloutRules:
    """Validate the range of every number; returns the same rules. Raises RolloutRulesError."""
    for key in (*_LEAST, *_PERCENT):
        _check_number(key, getattr(rules, key))
    if rules.most_per_minute < rules.per_minute:
        raise RolloutRulesError(f"most_per_minute = {rules.most_per_minute} is below per_minute = {rules.per_minute}")
    if len(rules.lab) > MAX_LAB or len(rules.waves) > 100:
        raise RolloutRulesError(f"at most {MAX_LAB} devices in lab, at most 100 waves")
    _check_steps(rules.steps())
    try:
        validate_gate_rules(rules.gate)
    except GateRulesError as error:
        raise RolloutRulesError(str(error)) from None
    return rules


def _check_number(key: str, value: float) -> None:
    least, most = (0.0, 100.0) if key in _PERCENT else (_LEAST[key], _MOST.get(key, _LONG))
    if not least <= value <= most:  # also not, if it is not a number
        shown = f"{value}" if -(1 << 64) < value < 1 << 64 or value != value else "far beyond it"  # noqa: PLR0124
        raise RolloutRulesError(f"{key} = {shown}: write a number from {least:g} to {most:g}")


def _check_steps(steps: tuple[WaveStep, ...]) -> None:
    percents = [step.percent for step in steps if step.percent]
    counts = [step.devices for step in steps if step.devices]
    if percents != sorted(set(percents)) or counts != sorted(set(counts)):
        raise RolloutRulesError(f"waves = {', '.join(map(str, steps))}: each has to reach further than the one before")
    if any(step.devices for step in steps[len(counts) :]):
        raise RolloutRulesError("waves: numbers of devices come before percentages")


def _parse_step(text: str) -> WaveStep:
    number = text.strip().removesuffix("%").strip()
    if not number.replace(".", "", 1).isdecimal() or not number.isascii() or len(number) > 12:
        raise RolloutRulesError(f"waves: {text!r} is neither a number of devices nor a percentage such as 10%")
    if text.strip().endswith("%"):
        percent = Fraction(number)
        if not 0 < percent <= 100:
            raise RolloutRulesError(f"waves: {text!r}: write more than 0 % and at most 100 %")
        return WaveStep(percent=percent)
    if "." in number or not int(number):
        raise RolloutRulesError(f"waves: {text!r}: write a whole number of devices, or a percentage such as 10%")
    return WaveStep(devices=int(number))


def compute_rate(rules: RolloutRules, successes: int) -> int:
    """Rate limit: devices that may be assigned in any minute, after so many successes."""
    doubled = min(successes // rules.double_each, 40)
    return min(rules.most_per_minute, rules.per_minute << doubled)


def count_approvals(rules: RolloutRules, *, reached: int, fleet: int, permit: bool) -> int:
    """Number of people who must approve: two, to reach over `APPROVED_PERCENT` of a large fleet or to use a permit."""
    wide = permit or reached * 100 > APPROVED_PERCENT * fleet
    return max(rules.approvals, WIDE_APPROVALS if wide and fleet >= APPROVED_FLEET else 0)


def parse_stored_rules(values: Any) -> RolloutRules | None:
    """Parse parameters stored on disk; None if they are damaged: a rollout that runs by them pauses."""
    try:
        return parse_rules(values)
    except RolloutRulesError:
        return None


SMALL_FLEET = 100  # devices; below, a wave of 1 % would be none
SMALL_STEPS = (WaveStep(devices=1), WaveStep(percent=Fraction(25)), WaveStep(percent=Fraction(100)))
DEFAULT_STEPS = tuple(WaveStep(percent=Fraction(percent)) for percent in (1, 10, 50, 100))
FIRST_PERCENT = 1  # of the fleet, at most, in the first wave
_KEYS = ("class", "region", "tenant", "device")


class FleetMember(NamedTuple):
    """Attributes of a device that a selector may ask for."""

    device: str
    device_class: str = ""
    region: str = ""
    tenant: str = ""

    def attribute_value(self, key: str) -> str:
        """Value of a selector's key."""
        return self[(1, 2, 3, 0)[_KEYS.index(key)]]


class DeviceSelector(NamedTuple):
    """Selector of a rollout's devices: allowed values for each key, all must hold; () = every device."""

    wanted: tuple[tuple[str, frozenset[str]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "DeviceSelector":
        """Parse `class=camera,region=eu|us`, or `all`. Raises RolloutRulesError for anything else."""
        if text.strip() == "all":
            return cls()
        wanted = tuple(_parse_condition(part) for part in text.split(","))
        if len({key for key, _ in wanted}) < len(wanted):
            raise RolloutRulesError(f"to = {text!r}: name each key once, and several values as key=a|b")
        return cls(wanted)

    def matches(self, member: FleetMember) -> bool:
        """Whether a device is selected."""
        return all(member.attribute_value(key) in values for key, values in self.wanted)

    def select_devices(self, members: Iterable[FleetMember]) -> tuple[str, ...]:
        """Ids of the selected devices; a device without an id is never selected."""
        return tuple(member.device for member in members if member.device and self.matches(member))


def _parse_condition(part: str) -> tuple[str, frozenset[str]]:
    key, equals, values = (piece.strip() for piece in part.partition("="))
    allowed = frozenset(value.strip() for value in values.split("|"))
    if key not in _KEYS or not equals or "" in allowed:
        raise RolloutRulesError(f"to = {part.strip()!r}: write {'=..., '.join(_KEYS)}=..., joined by commas, or all")
    return key, allowed


def default_steps(fleet: int) -> tuple[WaveStep, ...]:
    """Default waves: one device, a quarter, all, in a small fleet; 1, 10, 50, 100 % in others."""
    return SMALL_STEPS if fleet < SMALL_FLEET else DEFAULT_STEPS


def hash_order_key(salt: str, device: str) -> bytes:
    """Sort key of a device in a rollout: as good as random, and different for every salt."""
    return sha256(f"{salt}|{device}".encode()).digest()


def order_devices(salt: str, devices: Iterable[str], lab: Iterable[str] = ()) -> tuple[str, ...]:
    """Order the devices of a rollout, each once: the lab's first, each group by its hash."""
    first = frozenset(lab)
    known = {device for device in devices if device}
    return tuple(sorted(known, key=lambda d: (d not in first, hash_order_key(salt, d))))


def compute_wave_sizes(fleet: int, steps: Sequence[WaveStep]) -> tuple[int, ...]:
    """Number of devices each wave adds, without empty waves. RolloutRulesError if the first exceeds `FIRST_PERCENT`."""
    reached = [min(fleet, step.count_devices(fleet)) for step in steps]
    most = max(1, fleet * FIRST_PERCENT // 100)
    if reached and steps[0].percent == FIRST_PERCENT:
        reached[0] = min(fleet, most)  # rounded down, and yet one device
    if fleet and reached and reached[0] > most:
        raise RolloutRulesError(f"waves: the first would be {reached[0]} of {fleet} devices, at most {most}")
    grown = (now - before for before, now in zip([0, *reached], reached, strict=False))
    return tuple(size for size in grown if size > 0)


def cut_waves(order: Sequence[str], steps: Sequence[WaveStep]) -> tuple[tuple[str, ...], ...]:
    """Cut ordered devices into waves. () for an empty fleet."""
    cut: list[tuple[str, ...]] = []
    begin = 0
    for size in compute_wave_sizes(len(order), steps):
        cut.append(tuple(order[begin : begin + size]))
        begin += size
    return tuple(cut)


def pick_controls(order: Sequence[str], reached: int, size: int) -> tuple[str, ...]:
    """Pick a control cohort of at most `size` devices that are assigned last.

    `reached`: how many are assigned already. The far end is taken, so that one cohort serves as long as possible.
    """
    return tuple(order[max(reached, len(order) - size) :])
