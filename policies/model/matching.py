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

from policies.model.context import MINUTES_OF_WEEK, Condition, Context, Hours
from wire.protocol.messages import Level

Bits = int
Pair = tuple[Bits, Bits]  # rules whose `when`, and rules whose `unless`, this attribute satisfies
Clause = tuple[Condition, Condition | None]


class DamagedError(ValueError):
    """A context holds a value of a wrong type or out of range: nothing may be decided by it."""


class Choice(msgspec.Struct, frozen=True):
    """Index of an attribute with a single value: those that the rules name, and any other."""

    name: str
    table: dict[Any, Pair]
    other: Pair
    asking: Pair  # rules that ask for it, in `when` and in `unless`

    def of(self, context: Context) -> Pair | None:
        """Rules satisfied by the context's value, in `when` and in `unless`; None if it is unknown."""
        value = getattr(context, self.name)
        if value is None or value == "":
            return None
        return self.table.get(value, self.other)

    def cells(self) -> Iterable[tuple[Pair, object]]:
        """Every way in which a value can matter: the bits, and an example value."""
        told = [(pair, value) for value, pair in self.table.items()]
        return told if self.name in _WHOLE else [*told, (self.other, _another(self.table))]


class Tags(msgspec.Struct, frozen=True):
    """Index of the device's tags, the one attribute with several values at once."""

    table: dict[str, Pair]
    other: Pair
    asking: Pair
    name: str = "tags"

    def of(self, context: Context) -> Pair | None:
        """Rules satisfied by any of the context's tags; None if they are unknown."""
        if context.tags is None:
            return None
        when, unless = self.other
        for tag in context.tags:
            more = self.table.get(tag, self.other)
            when, unless = when | more[0], unless | more[1]
        return when, unless


class Scale(msgspec.Struct, frozen=True):
    """Index of a number, cut into cells at the bounds that the rules name.

    `zone`: time zone of minutes of the week; "" = the battery's charge. `pairs[i]` holds below `bounds[i]`.
    """

    name: str
    zone: str
    bounds: tuple[float, ...]
    pairs: tuple[Pair, ...]
    asking: Pair

    def of(self, context: Context) -> Pair | None:
        """Rules satisfied by the context's number; None if it is unknown.

        Raises DamagedError for a number out of range, NaN included.
        """
        value = context.minute_of_week.get(self.zone) if self.zone else context.battery
        if value is None:
            return None
        if not 0 <= value <= (MINUTES_OF_WEEK - 1 if self.zone else 1):  # true for NaN too
            raise DamagedError(f"{self.name} is {value!r}")
        return self.pairs[bisect_right(self.bounds, value)]

    def cells(self) -> Iterable[tuple[Pair, float]]:
        """As `Choice.cells`. A battery cell beyond 1 does not exist: no rule may name such a bound."""
        return zip(self.pairs, (0, *self.bounds), strict=True)


Attribute = Choice | Tags | Scale


class Index(msgspec.Struct, frozen=True):
    """Index of all rules of a policy, in their order: bit 0 is the first.

    `every`: a bit for each rule; `excusable`: rules with an `unless`.
    """

    every: Bits
    excusable: Bits  # rules with an `unless`
    attributes: tuple[Attribute, ...]

    def match(self, context: Context) -> tuple[Bits, tuple[str, ...]]:
        """Rules that apply, and the unknown attributes because of which some of them may.

        The second value is () unless such a rule is among those that apply. Raises DamagedError for a context that
        `sound` refuses.
        """
        sound(context)
        when, unless = self.every, self.excusable
        unknown: list[Attribute] = []
        for attribute in self.attributes:
            pair = attribute.of(context)
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

    def surely(self, context: Context) -> Bits:
        """Rules that apply whatever the values of the unknown attributes are. Raises DamagedError."""
        sound(context)
        when, unless = self.every, self.excusable
        for attribute in self.attributes:
            pair = attribute.of(context)
            if pair is None:
                when &= ~attribute.asking[0]
            else:
                when &= pair[0]
                unless &= pair[1]
        return when & ~unless


def sound(context: Context) -> None:
    """Check the types of a context's values, so that a wrong type does not pass for a value that no rule names.

    Raises DamagedError.
    """
    c = context
    if not (type(c.data_class) is type(c.device_class) is type(c.region) is type(c.tenant) is str):
        raise DamagedError("a name is no text")
    if c.tags is not None and not (type(c.tags) is tuple and all(type(tag) is str for tag in c.tags)):
        raise DamagedError("tags are no names")
    if type(c.level) is not Level or type(c.link_up) not in _MAYBE or type(c.metered) not in _MAYBE:
        raise DamagedError("level, link or metered is none")
    if type(c.battery) not in _NUMBERS or any(type(minute) is not int for minute in c.minute_of_week.values()):
        raise DamagedError("a number is none")


_MAYBE = (bool, type(None))
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
_WHOLE: dict[str, tuple[Any, ...]] = {"link_up": (False, True), "metered": (False, True), "level": tuple(Level)}


def index(clauses: Sequence[Clause]) -> Index:
    """Build the index of rules with these `when` and `unless` conditions, in the order of the rules."""
    attributes: list[Attribute] = [*_choices(clauses), *_tags(clauses), *_batteries(clauses), *_times(clauses)]
    excusable = sum(1 << place for place, (_, unless) in enumerate(clauses) if unless is not None)
    return Index((1 << len(clauses)) - 1, excusable, tuple(attributes))


def _choices(clauses: Sequence[Clause]) -> Iterator[Choice]:
    """Indexes of the attributes with a single value."""
    for name, (key, satisfies) in _CHOICES.items():
        pick = attrgetter(key)
        wanted = _wanted(clauses, pick)
        values = _WHOLE.get(name) or sorted({value for each in wanted for value in each})
        table = {value: _pair(clauses, pick, partial(satisfies, value)) for value in values}
        if wanted:
            yield Choice(name, table, _pair(clauses, pick, _never), _asking(clauses, pick))


def _tags(clauses: Sequence[Clause]) -> Iterator[Tags]:
    """Index of the tags, if a rule names any."""
    pick = attrgetter("tags")
    named = sorted({tag for each in _wanted(clauses, pick) for tag in each})
    table = {tag: _pair(clauses, pick, partial(_among, tag)) for tag in named}
    if table:
        yield Tags(table, _pair(clauses, pick, _never), _asking(clauses, pick))


def _batteries(clauses: Sequence[Clause]) -> Iterator[Scale]:
    """Index of the battery's charge, if a rule names a bound."""
    pick = attrgetter("battery_below")
    bounds = tuple(sorted(set(_wanted(clauses, pick))))
    pairs = tuple(_pair(clauses, pick, partial(lt, low)) for low in (0.0, *bounds))
    if bounds:
        yield Scale("battery", "", bounds, pairs, _asking(clauses, pick))


def _times(clauses: Sequence[Clause]) -> Iterator[Scale]:
    """One attribute per zone; what a rule says of another zone leaves this one free."""
    for zone in sorted({hours.zone for hours in _wanted(clauses, attrgetter("hours"))}):

        def pick(condition: Condition, zone: str = zone) -> Hours | None:
            return condition.hours if condition.hours and condition.hours.zone == zone else None

        ends = {end for hours in _wanted(clauses, pick) for span in hours.spans for end in span}
        bounds = tuple(sorted(ends - {0, MINUTES_OF_WEEK}))
        pairs = tuple(_pair(clauses, pick, partial(_within, low)) for low in (0, *bounds))
        yield Scale("time", zone, bounds, pairs, _asking(clauses, pick))


Pick = Callable[[Condition], Any]


def _wanted(clauses: Sequence[Clause], pick: Pick) -> list[Any]:
    """Values that the rules name for one attribute, in `when` and in `unless`."""
    asked = [pick(condition) for clause in clauses for condition in clause if condition is not None]
    return [each for each in asked if each is not None]


def _pair(clauses: Sequence[Clause], pick: Pick, holds: Callable[[Any], bool]) -> Pair:
    """Rules satisfied where `holds` accepts their value; a rule that does not ask always is."""
    when = unless = 0
    for place, (first, second) in enumerate(clauses):
        asked = pick(first)
        when |= (asked is None or holds(asked)) << place
        excused = None if second is None else pick(second)
        unless |= (excused is None or holds(excused)) << place
    return when, unless


def _asking(clauses: Sequence[Clause], pick: Pick) -> Pair:
    """Rules that ask for the attribute, in `when` and in `unless`."""
    every = (1 << len(clauses)) - 1
    free = _pair(clauses, pick, _never)
    return every & ~free[0], every & ~free[1]


def _never(_: object) -> bool:
    return False


def _among(value: str, wanted: tuple[str, ...]) -> bool:
    return value in wanted


def _within(minute: int, hours: Hours) -> bool:
    return hours.holds(minute)


def _another(table: Mapping[Any, Pair]) -> str:
    """A name that none of these rules has."""
    return next(name for number in range(len(table) + 1) if (name := f"other{number or ''}") not in table)
