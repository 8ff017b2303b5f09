"""The index of rules finds what a plain reading of each condition finds, for every key and every value at its edge."""

from typing import Any

import msgspec
import pytest

from policies.model.context import MINUTES_OF_WEEK, DecisionContext, RuleCondition, WeeklyHours
from policies.model.matching import (
    ChoiceAttribute,
    DamagedContextError,
    RangeAttribute,
    RuleClause,
    TagsAttribute,
    build_index,
    validate_context,
)
from wire.protocol.messages import SensitivityLevel

P0, P1, P2, P3, P4 = SensitivityLevel
NIGHT = WeeklyHours("UTC", ((60, 120), (500, MINUTES_OF_WEEK)))
DAWN = WeeklyHours("Europe/Berlin", ((0, 30),))

# For each key: conditions, and all values that can matter; the last one is unknown where an attribute may be.
CASES: dict[str, tuple[list[Any], list[dict[str, Any]]]] = {
    "data_class": ([("a",), ("a", "b")], [{"data_class": each} for each in ("a", "b", "c", "")]),
    "device_class": ([("a",), ("a", "b")], [{"device_class": each} for each in ("a", "b", "c", "")]),
    "region": ([("a",), ("a", "b")], [{"region": each} for each in ("a", "b", "c", "")]),
    "tenant": ([("a",), ("a", "b")], [{"tenant": each} for each in ("a", "b", "c", "")]),
    "tags": ([("a",), ("a", "b")], [{"tags": each} for each in (("a",), ("b", "c"), ("c",), (), None)]),
    "label_at_least": ([P0, P2, P4], [{"level": each} for each in SensitivityLevel]),
    "link_up": ([(True,), (False,), (True, False)], [{"link_up": each} for each in (True, False, None)]),
    "metered": ([True, False], [{"metered": each} for each in (True, False, None)]),
    "battery_below": (
        [0.25, 0.5, 1.0],
        [{"battery": each} for each in (0.0, 0.2, 0.25, 0.3, 0.5, 0.6, 1.0, 0, 1, None)],
    ),
    "hours": (
        [NIGHT, DAWN],
        [
            {"minute_of_week": {"UTC": minute, "Europe/Berlin": minute}}
            for minute in (0, 29, 30, 59, 60, 119, 120, 499, 500, MINUTES_OF_WEEK - 1)
        ]
        + [{"minute_of_week": {"UTC": 60}}, {"minute_of_week": {}}],
    ),
}


def read_plainly(condition: RuleCondition, context: DecisionContext) -> bool | None:
    """Whether all keys hold; None if that is not known."""
    found = [holds for _, holds in condition.check_keys(context)]
    return False if False in found else None if None in found else True


def applies(clause: RuleClause, context: DecisionContext, *, surely: bool) -> bool:
    """Whether a rule applies where what is not known counts as a match; `surely`: whatever it is."""
    when, unless = clause
    asked, excused = read_plainly(when, context), False if unless is None else read_plainly(unless, context)
    return asked is True and excused is False if surely else asked is not False and excused is not True


@pytest.mark.parametrize("key", CASES)
def test_rules_apply_where_a_plain_reading_of_their_conditions_says_so(key):
    wanted, values = CASES[key]
    free = RuleCondition()
    conditions = [RuleCondition(**{key: each}) for each in wanted]
    clauses: list[RuleClause] = [(each, None) for each in conditions] + [(free, each) for each in conditions]
    clauses += [(conditions[0], conditions[-1]), (conditions[-1], conditions[0]), (free, None)]
    index = build_index(clauses)
    for value in values:
        context = DecisionContext(**{"data_class": "a"} | value)
        expected = sum(1 << at for at, each in enumerate(clauses) if applies(each, context, surely=False))
        surely = sum(1 << at for at, each in enumerate(clauses) if applies(each, context, surely=True))
        found, unknown = index.match_rules(context)
        assert (found, index.match_certain_rules(context)) == (expected, surely), value
        assert bool(unknown) == (None in [read_plainly(each, context) for each in conditions]), value


def test_only_what_is_unknown_and_makes_a_rule_apply_is_named():
    metered, tagged = RuleCondition(metered=True), RuleCondition(tags=("a",), region=("eu",))
    index = build_index([(metered, None), (tagged, None)])
    unknown = DecisionContext("x")
    assert index.match_rules(unknown) == (0b11, ("region", "metered", "tags"))
    assert index.match_rules(msgspec.structs.replace(unknown, region="us")) == (0b01, ("metered",))
    assert index.match_rules(msgspec.structs.replace(unknown, region="eu", metered=False)) == (0b10, ("tags",))
    assert index.match_rules(msgspec.structs.replace(unknown, tags=("b",), metered=False)) == (0, ())
    excused = build_index([(RuleCondition(), metered)])
    assert excused.match_rules(unknown) == (1, ("metered",))
    assert excused.match_rules(msgspec.structs.replace(unknown, metered=True)) == (0, ())


def test_each_way_in_which_a_value_can_matter_is_listed_once_with_an_example():
    index = build_index(
        [(RuleCondition(region=("other",), tags=("a",), link_up=(True,), battery_below=0.5, hours=NIGHT), None)]
    )
    listed = {}
    for attribute in index.attributes:
        if not isinstance(attribute, TagsAttribute):
            listed[attribute.name] = [(pair[0], value) for pair, value in attribute.list_cells()]
    assert listed == {
        "region": [(1, "other"), (0, "other1")], "link_up": [(0, False), (1, True)],
        "battery": [(1, 0), (0, 0.5)], "time": [(0, 0), (1, 60), (0, 120), (1, 500)],
    }  # fmt: skip
    assert [type(each) for each in index.attributes] == [
        ChoiceAttribute,
        ChoiceAttribute,
        TagsAttribute,
        RangeAttribute,
        RangeAttribute,
    ]
    levels = build_index([(RuleCondition(label_at_least=P2), None)]).attributes[0]
    assert isinstance(levels, ChoiceAttribute)
    assert [(pair[0], value) for pair, value in levels.list_cells()] == [(0, P0), (0, P1), (1, P2), (1, P3), (1, P4)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data_class": b"a"}, "a name is no text"), ({"device_class": None}, "a name is no text"),
        ({"region": 1}, "a name is no text"), ({"tenant": ("a",)}, "a name is no text"),
        ({"tags": ["a"]}, "tags are no names"), ({"tags": ("a", 1)}, "tags are no names"),
        ({"level": 2}, "level, link or metered is none"), ({"link_up": 1}, "level, link or metered is none"),
        ({"metered": 0}, "level, link or metered is none"), ({"battery": "0.5"}, "a number is none"),
        ({"battery": True}, "a number is none"), ({"minute_of_week": {"UTC": 1.0}}, "a number is none"),
        ({"minute_of_week": {"X": 1, "UTC": True}}, "a number is none"),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_refused_by_its_kind(change, words):
    context = DecisionContext("a", level=P2, battery=1, minute_of_week={"UTC": 1})
    validate_context(context)
    with pytest.raises(DamagedContextError, match=words):
        validate_context(msgspec.structs.replace(context, **change))


@pytest.mark.parametrize("match", ["match_rules", "match_certain_rules"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"battery": -0.01}, "battery is -0.01"), ({"battery": 1.01}, "battery is 1.01"),
        ({"battery": float("nan")}, "battery is nan"), ({"minute_of_week": {"UTC": -1}}, "time is -1"),
        ({"minute_of_week": {"UTC": MINUTES_OF_WEEK}}, f"time is {MINUTES_OF_WEEK}"),
        ({"tags": 1}, "tags are no names"),
    ],
)  # fmt: skip
def test_a_number_out_of_its_range_is_refused_by_name(match, change, words):
    index = build_index([(RuleCondition(battery_below=0.5, hours=NIGHT), None)])
    with pytest.raises(DamagedContextError, match=words):
        getattr(index, match)(DecisionContext("a", **change))
