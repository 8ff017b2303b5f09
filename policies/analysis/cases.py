"""Every case that a policy's rules can tell apart, and of these the few that matter: exact, without trying them all.

Law: what may leave only shrinks with each rule that applies. So where the rules of one case are some of another's, the
other can be left out; what is kept is the front of such smallest cases. The cells of an attribute are all its values,
as far as the rules can see, so that nothing is sampled. Times of different zones are taken as independent.
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
    """The rules tell apart more cases than are looked at: nothing is proven."""


class Goal(msgspec.Struct, frozen=True):
    """Rules that shall apply as little as possible, and rules that shall apply as much as possible.

    `unknown`: attributes may be unknown, too. That makes more rules apply than any value does, so it is for `many`.
    """

    few: Bits
    many: Bits = 0
    unknown: bool = False


class Case(msgspec.Struct, frozen=True):
    """A context as the rules see it."""

    pair: Pair
    values: tuple[tuple[str, Any], ...]

    def context(self, data_class: str, level: Level) -> Context:
        """With `data_class` and `level` unless the case itself says otherwise."""
        said = dict(self.values)
        clock = {name[5:]: said.pop(name) for name in tuple(said) if name.startswith("time:")}
        minutes = {zone: minute for zone, minute in clock.items() if minute is not None}
        plain = Context(data_class, "other", "other", "other", (), True, False, 1.0, minutes, level)
        return msgspec.structs.replace(plain, **said)


def cases(index: Index, goal: Goal, fixed: Values = MappingProxyType({})) -> list[Case]:
    """The front. `fixed`: attributes that have one value; TooManyError above `MOST_CASES`."""
    front = [Case((goal.few | goal.many, (goal.few | goal.many) & index.excusable), ())]
    for attribute in sorted(index.attributes, key=lambda each: len(ways(each, goal))):
        name = name_of(attribute)
        options = [_fixed(attribute, fixed[name])] if name in fixed else ways(attribute, goal)
        front = smallest([_both(case, option) for case in front for option in options], goal)
    return front


def together(index: Index, of: Bits, fixed: Values = MappingProxyType({})) -> set[Bits]:
    """Which of these rules can apply at the same time, every such set of them; what is unknown included."""
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
    """Those of the goal's rules that apply."""
    return case.pair[0] & ~(case.pair[1] & index.excusable)


def name_of(attribute: Attribute) -> str:
    return f"time:{attribute.zone}" if isinstance(attribute, Scale) and attribute.zone else attribute.name


def ways(attribute: Attribute, goal: Goal) -> list[Case]:
    """What an attribute can be, as far as it matters to the goal."""
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
    """Any subset of the tags that rules name. A tag more can only add to what is content, so one after the other."""
    front = [Case(attribute.other, (("tags", ()),))]
    for tag, pair in attribute.table.items():
        with_it = [Case(_either(case.pair, pair), (("tags", (*case.values[0][1], tag)),)) for case in front]
        front = pruned([*front, *with_it])
    return front


def _unknown(attribute: Attribute, of: Bits) -> Case:
    name = name_of(attribute)
    return Case((of, of & ~attribute.asking[1]), ((name, "" if name in _NAMED else None),))


_NAMED = frozenset({"device_class", "region", "tenant"})  # unknown is "" there


def _fixed(attribute: Attribute, value: Any) -> Case:
    assert isinstance(attribute, Choice)
    return Case(attribute.table.get(value, attribute.other), ((attribute.name, value),))


def _both(first: Case, second: Case) -> Case:
    pair = first.pair[0] & second.pair[0], first.pair[1] & second.pair[1]
    return Case(pair, first.values + second.values)


def _either(first: Pair, second: Pair) -> Pair:
    return first[0] | second[0], first[1] | second[1]


def smallest(options: Sequence[Case], goal: Goal) -> list[Case]:
    """Without those that another one beats or equals."""
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
