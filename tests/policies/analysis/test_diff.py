"""Policy diff: every widening is named with a case in which it is one, and nothing else is."""

from copy import deepcopy
from itertools import permutations
from random import Random
from typing import Any

import pytest

from policies.analysis.diff import diff_policies
from policies.decisions.permit import expired_or_denied
from policies.language.document import PolicyDocument, parse_policy
from policies.model.context import DecisionContext
from policies.model.policy import Policy, Terms
from tests.policies.doubles.given import TEXT, with_
from tests.policies.doubles.random_policies import HUBS, REGIONS, SEEDS, condition, context, rule, some, values
from tests.policies.model.test_terms import found, within

pytestmark = pytest.mark.examples

NIGHT = '[[rule]]\nname = "night"\nwhen = { time = { from = "22:00", to = "06:00", zone = "UTC" } }\n'


def changed(*edits: tuple[str, str], rules: str = "", before: str = "") -> set[tuple[str, str, str, str, str]]:
    told = diff_policies(parse_policy(TEXT + before).compile(), parse_policy(with_(TEXT, *edits) + rules).compile())
    return {(each.direction, each.when, each.key, each.before, each.after) for each in told}


def test_nothing_changed_is_nothing_said():
    assert (
        changed()
        == changed(("version = 1", "version = 2"))
        == changed(rules=NIGHT + "deny = true", before=NIGHT + "deny = true")
    )


@pytest.mark.parametrize(
    ("edit", "fact"),
    [
        (("0.9", "0.8"), ("narrower", "always", "threshold", "0.9", "0.8")),
        (("threshold = 0.9", 'novel = "ask"\nthreshold = 0.9'), ("wider", "always", "novel", "flag", "ask")),
        (("threshold = 0.9", 'novel = "reject"\nthreshold = 0.9'), ("narrower", "always", "novel", "flag", "reject")),
        (('"answer_now"', '"wait"'), ("wider", "always", "mode", "answer_now", "wait")),
        (("private = false", "private = true"), ("wider", "always", "data class private", "false", "true")),
        (('["local"]', '["eu"]'), ("wider", "always", "region eu", "-", "listed")),
        (("10_000_000", "5"), ("narrower", "always", "account bytes", "10000000 in 1 d", "5 in 1 d")),
        (("2099-12-31", "2098-12-31"), ("narrower", "always", "expires", "2099-12-31", "2098-12-31")),
        (("high = 15", "high = 14"), ("changed", "always", "field features, transforms", "clip", "clip")),
        (("keep_days = 7", "keep_days = 2"), ("narrower", "always", "retention.keep_days", "7", "2")),
        (('"demo"          #', '"ads" #'), ("changed", "always", "retention.purpose", "demo", "ads")),
    ],
    ids=str,
)
def test_a_changed_key_is_a_fact(edit, fact):
    assert fact in changed(edit)


def test_a_rule_that_is_gone_makes_wider_in_its_case_alone():
    assert changed(before=NIGHT + "deny = true") == {
        ("wider", "Mon 00:00 UTC", "anything", "stays: rule 'night' lets nothing leave", "may leave")
    }
    assert changed(rules=NIGHT + "threshold = 0.5") == {("narrower", "Mon 00:00 UTC", "threshold", "0.9", "0.5")}


def test_an_hour_that_moved_is_wider_and_narrower():
    earlier = NIGHT.replace("22:00", "21:00").replace("06:00", "05:00")
    told = changed(rules=earlier + "deny = true", before=NIGHT + "deny = true")
    assert {(direction, when) for direction, when, *_ in told} == {
        ("wider", "Mon 05:00 UTC"), ("narrower", "Mon 21:00 UTC"),
    }  # fmt: skip


def edited(dice: Random, before: dict[str, Any]) -> dict[str, Any]:
    """The same document with one or two edits, as a person would make them."""
    after = deepcopy(before)
    for _ in range(dice.randint(1, 2)):
        match dice.choice(("rule added", "rule gone", "number", "listed", "case")):
            case "rule added":
                after["rule"].append(rule(dice, 9 + len(after["rule"]), 2))
            case "rule gone" if after["rule"]:
                after["rule"].pop(dice.randrange(len(after["rule"])))
            case "case" if after["rule"]:
                dice.choice(after["rule"])["when"] = condition(dice, 2)
            case "listed":
                after["locality"][dice.choice(("hubs", "regions"))] = some(dice, HUBS + REGIONS, 1)
            case _:
                after["escalation"]["threshold"] = dice.random()
    return after


def allows(terms: Terms, data_class: str) -> bool:
    return not expired_or_denied(terms, 0) and bool(terms.data_classes.get(data_class))


def wider(before: Policy, after: Policy, now: DecisionContext) -> bool:
    """Whether `after` lets anything leave in this context that `before` keeps."""
    old, new = found(before, now), found(after, now)
    if not allows(new, now.data_class):
        return False
    return not allows(old, now.data_class) or not within(new, old)


def test_no_widening_is_ever_left_out():
    silent = 0
    for seed in SEEDS:
        dice = Random(seed)
        text = values(dice, most_rules=3, most_keys=2)
        policies = [PolicyDocument.model_validate(each).compile() for each in (text, edited(dice, text))]
        for before, after in permutations(policies):
            if any(each.direction != "narrower" for each in diff_policies(before, after)):
                continue
            silent += 1
            for _ in range(20):
                now = context(dice)
                assert not wider(before, after, now), (seed, now)
    assert silent > len(SEEDS) / 2


def test_a_rule_that_only_what_is_unknown_can_meet_is_missed_too():
    odd = '[[rule]]\nname = "odd"\nwhen = { region = ["eu"] }\nunless = { region = ["eu", "us"] }\nthreshold = 0.5\n'
    assert changed(before=odd) == {("wider", "region unknown", "threshold", "0.5", "0.9")}
