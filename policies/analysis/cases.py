"""Case enumeration: every case that a policy's rules can distinguish, reduced to the few that matter, exactly. Pure.

Rule: what may leave only shrinks with each rule that applies. So where the rules of one case are a subset of another's,
the other can be left out; what is kept is the Pareto front of such smallest cases. The cells of an attribute are all
its values, as far as the rules can see, so that nothing is sampled. Times of different zones are taken as independent.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from policies.model.context import DecisionContext
from policies.model.matching import (
    BitPair,
    ChoiceAttribute,
    RangeAttribute,
    RuleAttribute,
    RuleBits,
    RuleIndex,
    TagsAttribute,
)
from wire.protocol.messages import SensitivityLevel

MAX_CASES = 2048
FixedValues = Mapping[str, Any]  # by attribute; a time by its zone


class TooManyCasesError(Exception):
    """The rules distinguish more cases than `MAX_CASES`: nothing is proven."""


class CaseGoal(msgspec.Struct, frozen=True):
    """Rules that shall apply as little as possible (`few`), and as much as possible (`many`).

    `unknown`: attributes may be unknown, too. That makes more rules apply than any value does, so it is for `many`.
    """

    few: RuleBits
    many: RuleBits = 0
    unknown: bool = False


class PolicyCase(msgspec.Struct, frozen=True):
    """A context as the rules see it: the bits of rules satisfied, and example values of its attributes."""

    pair: BitPair
    values: tuple[tuple[str, Any], ...]

    def to_context(self, data_class: str, level: SensitivityLevel) -> DecisionContext:
        """Build a context with `data_class` and `level`, unless the case itself says otherwise."""
        said = dict(self.values)
        clock = {name[5:]: said.pop(name) for name in tuple(said) if name.startswith("time:")}
        minutes = {zone: minute for zone, minute in clock.items() if minute is not None}
        plain = DecisionContext(data_class, "other", "other", "other", (), True, False, 1.0, minutes, level)
        return msgspec.structs.replace(plain, **said)


def enumerate_cases(index: RuleIndex, goal: CaseGoal, fixed: FixedValues = MappingProxyType({})) -> list[PolicyCase]:
    """Enumerate the front of cases for a goal. `fixed`: attributes that have one value.

    Raises TooManyCasesError above `MAX_CASES`.
    """
    front = [PolicyCase((goal.few | goal.many, (goal.few | goal.many) & index.excusable), ())]
    for attribute in sorted(index.attributes, key=lambda each: len(list_options(each, goal))):
        name = name_attribute(attribute)
        options = [_build_fixed_case(attribute, fixed[name])] if name in fixed else list_options(attribute, goal)
        front = select_smallest([_join_cases(case, option) for case in front for option in options], goal)
    return front


def list_joint_rules(index: RuleIndex, of: RuleBits, fixed: FixedValues = MappingProxyType({})) -> set[RuleBits]:
    """Every set of these rules that can apply at the same time, unknown attributes included.

    Raises TooManyCasesError.
    """
    held = {(of, of & index.excusable)}
    for attribute in index.attributes:
        name = name_attribute(attribute)
        options = [_build_fixed_case(attribute, fixed[name])] if name in fixed else _list_all_options(attribute, of)
        pairs = {(case.pair[0] & of, case.pair[1] & of) for case in options}
        held = {(a & c, b & d) for a, b in held for c, d in pairs}
        if len(held) > MAX_CASES:
            raise TooManyCasesError(f"more than {MAX_CASES} cases that the rules tell apart")
    return {when & ~unless for when, unless in held}


def match_case(index: RuleIndex, case: PolicyCase) -> RuleBits:
    """The goal's rules that apply in a case."""
    return case.pair[0] & ~(case.pair[1] & index.excusable)


def name_attribute(attribute: RuleAttribute) -> str:
    """Name of an attribute; "time:ZONE" for a time."""
    return f"time:{attribute.zone}" if isinstance(attribute, RangeAttribute) and attribute.zone else attribute.name


def list_options(attribute: RuleAttribute, goal: CaseGoal) -> list[PolicyCase]:
    """Options of an attribute that matter to the goal."""
    if isinstance(attribute, TagsAttribute):
        told = _list_tag_sets(attribute, lambda front: select_smallest(front, goal))
    else:
        told = [PolicyCase(pair, ((name_attribute(attribute), value),)) for pair, value in attribute.list_cells()]
    return select_smallest(
        [*told, _build_unknown_case(attribute, goal.few | goal.many)] if goal.unknown else told, goal
    )


def _list_all_options(attribute: RuleAttribute, of: RuleBits) -> list[PolicyCase]:
    """As `list_options`, none left out that makes other rules of `of` apply."""
    if not isinstance(attribute, TagsAttribute):
        told = [PolicyCase(pair, ((name_attribute(attribute), value),)) for pair, value in attribute.list_cells()]
        return [*told, _build_unknown_case(attribute, of)]

    def apart(front: Sequence[PolicyCase]) -> list[PolicyCase]:
        kept = {(case.pair[0] & of, case.pair[1] & of): case for case in front}
        if len(kept) > MAX_CASES:
            raise TooManyCasesError(f"more than {MAX_CASES} cases that the rules tell apart")
        return list(kept.values())

    return [*_list_tag_sets(attribute, apart), _build_unknown_case(attribute, of)]


def _list_tag_sets(
    attribute: TagsAttribute, pruned: Callable[[Sequence[PolicyCase]], list[PolicyCase]]
) -> list[PolicyCase]:
    """Subsets of the tags that rules name.

    One more tag can only satisfy more conditions, so they are added one by one.
    """
    front = [PolicyCase(attribute.other, (("tags", ()),))]
    for tag, pair in attribute.table.items():
        with_it = [PolicyCase(_join_pairs(case.pair, pair), (("tags", (*case.values[0][1], tag)),)) for case in front]
        front = pruned([*front, *with_it])
    return front


def _build_unknown_case(attribute: RuleAttribute, of: RuleBits) -> PolicyCase:
    """Case in which the attribute is not known: every `when` holds, no `unless`."""
    name = name_attribute(attribute)
    return PolicyCase((of, of & ~attribute.asking[1]), ((name, "" if name in _NAMED else None),))


_NAMED = frozenset({"device_class", "region", "tenant"})  # unknown is "" there


def _build_fixed_case(attribute: RuleAttribute, value: Any) -> PolicyCase:
    """Case in which the attribute has this one value."""
    assert isinstance(attribute, ChoiceAttribute)
    return PolicyCase(attribute.table.get(value, attribute.other), ((attribute.name, value),))


def _join_cases(first: PolicyCase, second: PolicyCase) -> PolicyCase:
    """Both attributes at once: rules that both satisfy."""
    pair = first.pair[0] & second.pair[0], first.pair[1] & second.pair[1]
    return PolicyCase(pair, first.values + second.values)


def _join_pairs(first: BitPair, second: BitPair) -> BitPair:
    """One tag more: rules that either satisfies."""
    return first[0] | second[0], first[1] | second[1]


def select_smallest(options: Sequence[PolicyCase], goal: CaseGoal) -> list[PolicyCase]:
    """Drop options that another one beats or equals. Raises TooManyCasesError."""
    best: dict[RuleBits, PolicyCase] = {}
    for option in options:
        best.setdefault(_compute_cost(option.pair, goal), option)
    kept: list[tuple[RuleBits, PolicyCase]] = []
    for cost, option in sorted(best.items(), key=lambda item: item[0].bit_count()):
        if not any(held & ~cost == 0 for held, _ in kept):
            kept.append((cost, option))
        if len(kept) > MAX_CASES:
            raise TooManyCasesError(f"more than {MAX_CASES} cases that the rules tell apart")
    return [option for _, option in kept]


def _compute_cost(pair: BitPair, goal: CaseGoal) -> RuleBits:
    """Bits better absent: of `few` rules that apply or lack an excuse, of `many` such as do not apply or have one."""
    when, unless = pair
    first = (when & goal.few) | (goal.many & ~when)
    return first | ((goal.few & ~unless) | (unless & goal.many)) << (goal.few | goal.many).bit_length()
