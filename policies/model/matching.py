"""Rule index: finds all rules that match a context, with bit sets and a lookup table per attribute. Pure.

Each rule is a bit, each attribute a table from its value to bits, so a decision costs one look-up per attribute,
however many rules there are.

Rule: an unknown attribute satisfies every `when` and no `unless`, so that not knowing only narrows.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, lt
from typing import Any

import msgspec

from policies.model.context import MINUTES_OF_WEEK, DecisionContext, RuleCondition, WeeklyHours
from wire.protocol.messages import SensitivityLevel

RuleBits = int
BitPair = tuple[RuleBits, RuleBits]  # rules whose `when`, and rules whose `unless`, this attribute satisfies
RuleClause = tuple[RuleCondition, RuleCondition | None]


class DamagedContextError(ValueError):
    """A context holds a value of a wrong type or out of range: nothing may be decided by it."""


class ChoiceAttribute(msgspec.Struct, frozen=True):
    """Index of an attribute with a single value: those that the rules name, and any other."""

    name: str
    table: dict[Any, BitPair]
    other: BitPair
    asking: BitPair  # rules that ask for it, in `when` and in `unless`

    def lookup_bits(self, context: DecisionContext) -> BitPair | None:
        """Rules satisfied by the context's value, in `when` and in `unless`; None if it is unknown."""
        value = getattr(context, self.name)
        if value is None or value == "":
            return None
        return self.table.get(value, self.other)

    def list_cells(self) -> Iterable[tuple[BitPair, object]]:
        """Every way in which a value can matter: the bits, and an example value."""
        told = [(pair, value) for value, pair in self.table.items()]
        return told if self.name in _CLOSED_VALUES else [*told, (self.other, _unused_value(self.table))]


class TagsAttribute(msgspec.Struct, frozen=True):
    """Index of the device's tags, the one attribute with several values at once."""

    table: dict[str, BitPair]
    other: BitPair
    asking: BitPair
    name: str = "tags"

    def lookup_bits(self, context: DecisionContext) -> BitPair | None:
        """Rules satisfied by any of the context's tags; None if they are unknown."""
        if context.tags is None:
            return None
        when, unless = self.other
        for tag in context.tags:
            more = self.table.get(tag, self.other)
            when, unless = when | more[0], unless | more[1]
        return when, unless


class RangeAttribute(msgspec.Struct, frozen=True):
    """Index of a number, cut into cells at the bounds that the rules name.

    `zone`: time zone of minutes of the week; "" = the battery's charge. `pairs[i]` holds below `bounds[i]`.
    """

    name: str
    zone: str
    bounds: tuple[float, ...]
    pairs: tuple[BitPair, ...]
    asking: BitPair

    def lookup_bits(self, context: DecisionContext) -> BitPair | None:
        """Rules satisfied by the context's number; None if it is unknown.

        Raises DamagedContextError for a number out of range, NaN included.
        """
        value = context.minute_of_week.get(self.zone) if self.zone else context.battery
        if value is None:
            return None
        if not 0 <= value <= (MINUTES_OF_WEEK - 1 if self.zone else 1):  # true for NaN too
            raise DamagedContextError(f"{self.name} is {value!r}")
        return self.pairs[bisect_right(self.bounds, value)]

    def list_cells(self) -> Iterable[tuple[BitPair, float]]:
        """As `ChoiceAttribute.list_cells`. A battery cell beyond 1 does not exist: no rule may name such a bound."""
        return zip(self.pairs, (0, *self.bounds), strict=True)


RuleAttribute = ChoiceAttribute | TagsAttribute | RangeAttribute


class RuleIndex(msgspec.Struct, frozen=True):
    """Index of all rules of a policy, in their order: bit 0 is the first.

    `every`: a bit for each rule; `excusable`: rules with an `unless`.
    """

    every: RuleBits
    excusable: RuleBits  # rules with an `unless`
    attributes: tuple[RuleAttribute, ...]

    def match_rules(self, context: DecisionContext) -> tuple[RuleBits, tuple[str, ...]]:
        """Rules that apply, and the unknown attributes because of which some of them may.

        The second value is () unless such a rule is among those that apply. Raises DamagedContextError for a context
        that `validate_context` refuses.
        """
        validate_context(context)
        when, unless = self.every, self.excusable
        unknown: list[RuleAttribute] = []
        for attribute in self.attributes:
            pair = attribute.lookup_bits(context)
            if pair is None:
                unknown.append(attribute)
                unless &= ~attribute.asking[1]
            else:
                when &= pair[0]
                unless &= pair[1]
        matched = when & ~unless
        if not unknown:
            return matched, ()
        return matched, tuple(each.name for each in unknown if (each.asking[0] | each.asking[1]) & matched)

    def match_certain_rules(self, context: DecisionContext) -> RuleBits:
        """Rules that apply whatever the values of the unknown attributes are. Raises DamagedContextError."""
        validate_context(context)
        when, unless = self.every, self.excusable
        for attribute in self.attributes:
            pair = attribute.lookup_bits(context)
            if pair is None:
                when &= ~attribute.asking[0]
            else:
                when &= pair[0]
                unless &= pair[1]
        return when & ~unless


def validate_context(context: DecisionContext) -> None:
    """Check the types of a context's values, so that a wrong type does not pass for a value that no rule names.

    Raises DamagedContextError.
    """
    c = context
    if not (type(c.data_class) is type(c.device_class) is type(c.region) is type(c.tenant) is str):
        raise DamagedContextError("a name is no text")
    if c.tags is not None and not (type(c.tags) is tuple and all(type(tag) is str for tag in c.tags)):
        raise DamagedContextError("tags are no names")
    if (
        type(c.level) is not SensitivityLevel
        or type(c.link_up) not in _OPTIONAL_BOOL
        or type(c.metered) not in _OPTIONAL_BOOL
    ):
        raise DamagedContextError("level, link or metered is none")
    if type(c.battery) not in _NUMBERS or any(type(minute) is not int for minute in c.minute_of_week.values()):
        raise DamagedContextError("a number is none")


_OPTIONAL_BOOL = (bool, type(None))
_NUMBERS = (float, int, type(None))


# For each attribute of a context: the condition's key that asks for it, and whether a value satisfies the key.
_CHOICES: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "data_class": ("data_class", lambda value, wanted: value in wanted),
    "device_class": ("device_class", lambda value, wanted: value in wanted),
    "region": ("region", lambda value, wanted: value in wanted),
    "tenant": ("tenant", lambda value, wanted: value in wanted),
    "link_up": ("link_up", lambda value, wanted: value in wanted),
    "metered": ("metered", lambda value, wanted: value is wanted),
    "level": ("label_at_least", lambda value, wanted: value >= wanted),
}
_CLOSED_VALUES: dict[str, tuple[Any, ...]] = {
    "link_up": (False, True),
    "metered": (False, True),
    "level": tuple(SensitivityLevel),
}


def build_index(clauses: Sequence[RuleClause]) -> RuleIndex:
    """Build the index of rules with these `when` and `unless` conditions, in the order of the rules."""
    attributes: list[RuleAttribute] = [
        *_index_choices(clauses),
        *_index_tags(clauses),
        *_index_battery(clauses),
        *_index_times(clauses),
    ]
    excusable = sum(1 << place for place, (_, unless) in enumerate(clauses) if unless is not None)
    return RuleIndex((1 << len(clauses)) - 1, excusable, tuple(attributes))


def _index_choices(clauses: Sequence[RuleClause]) -> Iterator[ChoiceAttribute]:
    """Indexes of the attributes with a single value."""
    for name, (key, satisfies) in _CHOICES.items():
        pick = attrgetter(key)
        wanted = _wanted_values(clauses, pick)
        values = _CLOSED_VALUES.get(name) or sorted({value for each in wanted for value in each})
        table = {value: _satisfied_rules(clauses, pick, partial(satisfies, value)) for value in values}
        if wanted:
            yield ChoiceAttribute(
                name, table, _satisfied_rules(clauses, pick, _never_holds), _asking_rules(clauses, pick)
            )


def _index_tags(clauses: Sequence[RuleClause]) -> Iterator[TagsAttribute]:
    """Index of the tags, if a rule names any."""
    pick = attrgetter("tags")
    named = sorted({tag for each in _wanted_values(clauses, pick) for tag in each})
    table = {tag: _satisfied_rules(clauses, pick, partial(_is_among, tag)) for tag in named}
    if table:
        yield TagsAttribute(table, _satisfied_rules(clauses, pick, _never_holds), _asking_rules(clauses, pick))


def _index_battery(clauses: Sequence[RuleClause]) -> Iterator[RangeAttribute]:
    """Index of the battery's charge, if a rule names a bound."""
    pick = attrgetter("battery_below")
    bounds = tuple(sorted(set(_wanted_values(clauses, pick))))
    pairs = tuple(_satisfied_rules(clauses, pick, partial(lt, low)) for low in (0.0, *bounds))
    if bounds:
        yield RangeAttribute("battery", "", bounds, pairs, _asking_rules(clauses, pick))


def _index_times(clauses: Sequence[RuleClause]) -> Iterator[RangeAttribute]:
    """One attribute per zone; what a rule says of another zone leaves this one free."""
    for zone in sorted({hours.zone for hours in _wanted_values(clauses, attrgetter("hours"))}):

        def pick(condition: RuleCondition, zone: str = zone) -> WeeklyHours | None:
            return condition.hours if condition.hours and condition.hours.zone == zone else None

        ends = {end for hours in _wanted_values(clauses, pick) for span in hours.spans for end in span}
        bounds = tuple(sorted(ends - {0, MINUTES_OF_WEEK}))
        pairs = tuple(_satisfied_rules(clauses, pick, partial(_is_within, low)) for low in (0, *bounds))
        yield RangeAttribute("time", zone, bounds, pairs, _asking_rules(clauses, pick))


ConditionGetter = Callable[[RuleCondition], Any]


def _wanted_values(clauses: Sequence[RuleClause], pick: ConditionGetter) -> list[Any]:
    """Values that the rules name for one attribute, in `when` and in `unless`."""
    asked = [pick(condition) for clause in clauses for condition in clause if condition is not None]
    return [each for each in asked if each is not None]


def _satisfied_rules(clauses: Sequence[RuleClause], pick: ConditionGetter, holds: Callable[[Any], bool]) -> BitPair:
    """Rules satisfied where `holds` accepts their value; a rule that does not ask always is."""
    when = unless = 0
    for place, (first, second) in enumerate(clauses):
        asked = pick(first)
        when |= (asked is None or holds(asked)) << place
        excused = None if second is None else pick(second)
        unless |= (excused is None or holds(excused)) << place
    return when, unless


def _asking_rules(clauses: Sequence[RuleClause], pick: ConditionGetter) -> BitPair:
    """Rules that ask for the attribute, in `when` and in `unless`."""
    every = (1 << len(clauses)) - 1
    free = _satisfied_rules(clauses, pick, _never_holds)
    return every & ~free[0], every & ~free[1]


def _never_holds(_: object) -> bool:
    return False


def _is_among(value: str, wanted: tuple[str, ...]) -> bool:
    return value in wanted


def _is_within(minute: int, hours: WeeklyHours) -> bool:
    return hours.contains_minute(minute)


def _unused_value(table: Mapping[Any, BitPair]) -> str:
    """A name that none of these rules has."""
    return next(name for number in range(len(table) + 1) if (name := f"other{number or ''}") not in table)
