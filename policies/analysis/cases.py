"""Case enumeration: every case that a policy's rules can distinguish, reduced to the few that matter, exactly. Pure.

Rule: what may leave only shrinks with each rule that applies. So where the rules of one case are a subset of another's,
the other can be left out; what is kept is the Pareto front of such smallest cases. The cells of an attribute are all
its values, as far as the rules can see, so that nothing is sampled. Times of different zones are taken as independent.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from policies.model.context import Context
from policies.model.matching import Attribute, Bits, Choice, Index, Pair, Scale, Tags
from wire.protocol.messages import Level

MOST_CASES = 2048
Values = Mapping[str, Any]  # by attribute; a time by its zone


class TooManyError(Exception):
    """The rules distinguish more cases than `MOST_CASES`: nothing is proven."""


class Goal(msgspec.Struct, frozen=True):
    """Rules that shall apply as little as possible (`few`), and as much as possible (`many`).

    `unknown`: attributes may be unknown, too. That makes more rules apply than any value does, so it is for `many`.
    """

    few: Bits
    many: Bits = 0
    unknown: bool = False


class Case(msgspec.Struct, frozen=True):
    """A context as the rules see it: the bits of rules satisfied, and example values of its attributes."""

    pair: Pair
    values: tuple[tuple[str, Any], ...]

    def context(self, data_class: str, level: Level) -> Context:
        """Build a context with `data_class` and `level`, unless the case itself says otherwise."""
        said = dict(self.values)
        clock = {name[5:]: said.pop(name) for name in tuple(said) if name.startswith("time:")}
        minutes = {zone: minute for zone, minute in clock.items() if minute is not None}
        plain = Context(data_class, "other", "other", "other", (), True, False, 1.0, minutes, level)
        return msgspec.structs.replace(plain, **said)


def cases(index: Index, goal: Goal, fixed: Values = MappingProxyType({})) -> list[Case]:
    """Enumerate the front of cases for a goal. `fixed`: attributes that have one value.

    Raises TooManyError above `MOST_CASES`.
    """
    front = [Case((goal.few | goal.many, (goal.few | goal.many) & index.excusable), ())]
    for attribute in sorted(index.attributes, key=lambda each: len(ways(each, goal))):
        name = name_of(attribute)
        options = [_fixed(attribute, fixed[name])] if name in fixed else ways(attribute, goal)
        front = smallest([_both(case, option) for case in front for option in options], goal)
    return front


def together(index: Index, of: Bits, fixed: Values = MappingProxyType({})) -> set[Bits]:
    """Every set of these rules that can apply at the same time, unknown attributes included. Raises TooManyError."""
    held = {(of, of & index.excusable)}
    for attribute in index.attributes:
        name = name_of(attribute)
        options = [_fixed(attribute, fixed[name])] if name in fixed else _all(attribute, of)
        pairs = {(case.pair[0] & of, case.pair[1] & of) for case in options}
        held = {(a & c, b & d) for a, b in held for c, d in pairs}
        if len(held) > MOST_CASES:
            raise TooManyError(f"more than {MOST_CASES} cases that the rules tell apart")
    return {when & ~unless for when, unless in held}


def matched(index: Index, case: Case) -> Bits:
    """The goal's rules that apply in a case."""
    return case.pair[0] & ~(case.pair[1] & index.excusable)


def name_of(attribute: Attribute) -> str:
    """Name of an attribute; "time:ZONE" for a time."""
    return f"time:{attribute.zone}" if isinstance(attribute, Scale) and attribute.zone else attribute.name


def ways(attribute: Attribute, goal: Goal) -> list[Case]:
    """Options of an attribute that matter to the goal."""
    if isinstance(attribute, Tags):
        told = _tags(attribute, lambda front: smallest(front, goal))
    else:
        told = [Case(pair, ((name_of(attribute), value),)) for pair, value in attribute.cells()]
    return smallest([*told, _unknown(attribute, goal.few | goal.many)] if goal.unknown else told, goal)


def _all(attribute: Attribute, of: Bits) -> list[Case]:
    """As `ways`, none left out that makes other rules of `of` apply."""
    if not isinstance(attribute, Tags):
        told = [Case(pair, ((name_of(attribute), value),)) for pair, value in attribute.cells()]
        return [*told, _unknown(attribute, of)]

    def apart(front: Sequence[Case]) -> list[Case]:
        kept = {(case.pair[0] & of, case.pair[1] & of): case for case in front}
        if len(kept) > MOST_CASES:
            raise TooManyError(f"more than {MOST_CASES} cases that the rules tell apart")
        return list(kept.values())

    return [*_tags(attribute, apart), _unknown(attribute, of)]


def _tags(attribute: Tags, pruned: Callable[[Sequence[Case]], list[Case]]) -> list[Case]:
    """Subsets of the tags that rules name.

    One more tag can only satisfy more conditions, so they are added one by one.
    """
    front = [Case(attribute.other, (("tags", ()),))]
    for tag, pair in attribute.table.items():
        with_it = [Case(_either(case.pair, pair), (("tags", (*case.values[0][1], tag)),)) for case in front]
        front = pruned([*front, *with_it])
    return front


def _unknown(attribute: Attribute, of: Bits) -> Case:
    """Case in which the attribute is not known: every `when` holds, no `unless`."""
    name = name_of(attribute)
    return Case((of, of & ~attribute.asking[1]), ((name, "" if name in _NAMED else None),))


_NAMED = frozenset({"device_class", "region", "tenant"})  # unknown is "" there


def _fixed(attribute: Attribute, value: Any) -> Case:
    """Case in which the attribute has this one value."""
    assert isinstance(attribute, Choice)
    return Case(attribute.table.get(value, attribute.other), ((attribute.name, value),))


def _both(first: Case, second: Case) -> Case:
    """Both attributes at once: rules that both satisfy."""
    pair = first.pair[0] & second.pair[0], first.pair[1] & second.pair[1]
    return Case(pair, first.values + second.values)


def _either(first: Pair, second: Pair) -> Pair:
    """One tag more: rules that either satisfies."""
    return first[0] | second[0], first[1] | second[1]


def smallest(options: Sequence[Case], goal: Goal) -> list[Case]:
    """Drop options that another one beats or equals. Raises TooManyError."""
    best: dict[Bits, Case] = {}
    for option in options:
        best.setdefault(_cost(option.pair, goal), option)
    kept: list[tuple[Bits, Case]] = []
    for cost, option in sorted(best.items(), key=lambda item: item[0].bit_count()):
        if not any(held & ~cost == 0 for held, _ in kept):
            kept.append((cost, option))
        if len(kept) > MOST_CASES:
            raise TooManyError(f"more than {MOST_CASES} cases that the rules tell apart")
    return [option for _, option in kept]


def _cost(pair: Pair, goal: Goal) -> Bits:
    """Bits better absent: of `few` rules that apply or lack an excuse, of `many` such as do not apply or have one."""
    when, unless = pair
    first = (when & goal.few) | (goal.many & ~when)
    return first | ((goal.few & ~unless) | (unless & goal.many)) << (goal.few | goal.many).bit_length()
