"""Facts of a sample, its device and the moment, as a person writes them for explanations and probes. Pure.

Parsed from JSON or TOML; a fact that is left out has a default or is unknown. Rule: closed, an unknown key is an error.
"""

import difflib
from collections.abc import Mapping

import msgspec

from policies.decisions import egress
from policies.decisions.routing import HubSite
from policies.model.context import NO_ZONES, WEEK_DAYS, DecisionContext
from policies.model.policy import Policy
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

_MINUTES_A_DAY = 24 * 60


class FactsError(Exception):
    """The description of a sample cannot be used: one line that names the key."""


class SampleField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field of the sample. Without a label it counts as P4."""

    name: str
    level: str = SensitivityLevel.P4.name
    dtype: TensorDType = TensorDType.UINT8
    shape: tuple[int, ...] = (1,)
    low: float = 0.0
    high: float = 255.0
    category: str = ""


class SampleLeakage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leakage measurement for exactly the chain of transforms that the policy makes."""

    kind: str
    metric: str
    upper95: float
    subject: str = ""

    @property
    def chain(self) -> str:
        """Digest of the chain, always "": a measurement written here is about this sample's chain."""
        return ""


class SampleFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of one sample and of the device at that moment.

    `fields` and `hubs` left out = exactly those that the policy lists. `audit_dice` 1.0 = not drawn for an audit.
    `leakage` left out = unknown: what depends on it is not judged. `spent_bytes` today,
    `spent_releases` of noised fields in this period; `price`: the hub's, in millionths of its unit. `energy_mj`: of
    sending one question, `spent_mj`: today, in millijoules. Attributes of the
    device and its place are unknown where they are left out. `time`: "wed 23:30", local time there. `in_domain` false =
    unlike what the model knows.
    """

    confidence: float
    data_class: str
    fields: tuple[SampleField, ...] | None = None
    hubs: tuple[HubSite, ...] | None = None
    link_up: bool = True
    hub_quiet: bool = False
    audit_dice: float = 1.0
    size_bytes: int = 1024
    spent_bytes: int = 0
    spent_releases: int = 0
    price: int = 0
    energy_mj: int = 0
    spent_mj: int = 0
    leakage: tuple[SampleLeakage, ...] | None = None
    device_class: str = ""
    region: str = ""
    tenant: str = ""
    tags: tuple[str, ...] | None = None
    metered: bool | None = None
    battery: float | None = None
    time: str = ""
    in_domain: bool | None = None


def parse_facts(values: object) -> SampleFacts:
    """Parse facts from decoded JSON or TOML. Raises FactsError for an unknown key, a missing one or a wrong type."""
    if isinstance(values, dict):
        for key in values:
            if key not in SampleFacts.__struct_fields__:
                raise FactsError(f"unknown key {str(key)[:40]!r}; {_suggest_key(str(key))}")
    try:
        facts = msgspec.convert(values, SampleFacts)
    except msgspec.ValidationError as error:
        raise FactsError(str(error)) from None
    for each in facts.fields or ():
        if each.level not in SensitivityLevel.__members__:
            raise FactsError(
                f"field {each.name!r}: level {each.level!r} is not one of {', '.join(SensitivityLevel.__members__)}"
            )
    if facts.time:
        parse_minute(facts.time)
    return facts


def _suggest_key(key: str) -> str:
    """Nearest known key, or all of them."""
    close = difflib.get_close_matches(key, SampleFacts.__struct_fields__, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(SampleFacts.__struct_fields__)}"


def parse_minute(time: str) -> int:
    """Parse "wed 23:30" to minutes since Monday 00:00. Raises FactsError."""
    day, _, clock = time.partition(" ")
    hours, _, minutes = clock.partition(":")
    if day in WEEK_DAYS and len(clock) == len("23:30") and hours.isdecimal() and minutes.isdecimal():
        of_day = int(hours) * 60 + int(minutes)
        if of_day < _MINUTES_A_DAY and int(minutes) < 60:
            return WEEK_DAYS.index(day) * _MINUTES_A_DAY + of_day
    raise FactsError(f"time {time[:20]!r} is no time of the week; write it as 'wed 23:30'")


def build_context(policy: Policy, facts: SampleFacts, clock: Mapping[str, int] = NO_ZONES) -> DecisionContext:
    """Context that a device with these facts would have.

    `clock`: minutes of the week per zone, where the facts' `time` says nothing.
    """
    minutes = dict.fromkeys(policy.zones, parse_minute(facts.time)) if facts.time else clock
    return DecisionContext(
        facts.data_class,
        facts.device_class,
        facts.region,
        facts.tenant,
        facts.tags,
        facts.link_up,
        facts.metered,
        facts.battery,
        minutes,
        egress.find_highest_level(build_schema(policy, facts)),
    )


def build_schema(policy: Policy, facts: SampleFacts) -> tuple[FieldSpec, ...]:
    """Schema of the sample's fields; where it names none, those of the policy with the labels it accepts."""
    if facts.fields is None:
        rules = (each for each in policy.base.fields.values() if each.name not in _OF_NO_QUESTION)
        return tuple(_DERIVED.get(each.name) or _build_plain_field(each.name, each.level) for each in rules)
    return tuple(
        FieldSpec(each.name, each.dtype, each.shape, each.low, each.high, SensitivityLevel[each.level], each.category)
        for each in facts.fields
    )


_OF_NO_QUESTION = (egress.QUALITY_FIELD, egress.SIGNALS_FIELD, egress.ANSWERS_FIELD)  # of reports and outputs
_DERIVED = {spec.name: spec for spec in egress.DERIVED_FIELDS}


def _build_plain_field(name: str, level: SensitivityLevel) -> FieldSpec:
    """Field of one byte for a name that only the policy knows."""
    return FieldSpec(name, TensorDType.UINT8, (1,), 0.0, 255.0, level, "")
