"""Random policy documents, contexts and schemas from a seed, with small vocabularies so that rules often match."""

import os
from collections.abc import Iterator
from datetime import date
from itertools import product
from random import Random
from typing import Any

from policies.decisions.egress import DERIVED_FIELDS
from policies.language.document import PolicyDocument
from policies.model.context import MINUTES_OF_WEEK, DecisionContext
from policies.model.matching import RangeAttribute
from policies.model.policy import EscalationMode, Policy, PolicyLayer
from tests.examples import count_examples
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

EXAMPLES = count_examples(300)
FIRST = int(os.environ.get("SKERRY_FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + EXAMPLES)

CLASSES = ("a", "b", "c")
HUBS, REGIONS = ("h1", "h2", "h3"), ("r1", "r2", "r3")
FEATURES = ("features", "extra")
FIELDS = (*FEATURES, "local_answer", "confidence")
ZONES = ("Europe/Berlin", "UTC")
NAMES = {"data_class": CLASSES, "device_class": ("x", "y"), "region": REGIONS, "tenant": ("t", "u"), "tags": ("k", "l")}
CLOCK = ("00:00", "06:00", "09:30", "22:00")
DAYS = ("mon", "wed", "sun")


def some(dice: Random, of: tuple[str, ...], least: int = 0) -> list[str]:
    return dice.sample(of, dice.randint(least, len(of)))


def condition(dice: Random, most: int = 3) -> dict[str, Any]:
    """Of one to `most` keys."""
    told: dict[str, Any] = {}
    for key in dice.sample(
        (*NAMES, "label_at_least", "link", "metered", "battery_below", "time"), dice.randint(1, most)
    ):
        if key in NAMES:
            told[key] = some(dice, NAMES[key], 1)
        elif key == "time":
            told[key] = {
                "from": dice.choice(CLOCK), "to": dice.choice(CLOCK), "zone": dice.choice(ZONES),
                "days": some(dice, DAYS, 1),
            }  # fmt: skip
        else:
            told[key] = dice.choice({
                "label_at_least": ("P0", "P1", "P2", "P3"), "link": (["up"], ["down"], ["up", "down"]),
                "metered": (True, False), "battery_below": (0.2, 0.5, 1.0),
            }[key])  # fmt: skip
    return told


def narrowing(dice: Random) -> dict[str, Any]:
    """One to three of what a rule can take away, of which some take nothing or try to give."""
    choices: dict[str, Any] = {
        "deny": True, "mode": dice.choice(list(EscalationMode)).value, "threshold": dice.random(),
        "audit_share": dice.random(), "budget_s": dice.choice((0.0, 1.0, 9.0)),
        "ceiling": dice.choice(("P0", "P1", "P2", "P3")),
        "hubs": some(dice, HUBS), "regions": some(dice, REGIONS), "fields": some(dice, FIELDS),
        "drop": some(dice, FIELDS, 1), "bytes_per_day": dice.randint(0, 99), "max_open": dice.randint(0, 99),
        "cost_per_day": dice.randint(0, 99), "joules_per_day": dice.randint(0, 99),
        "transforms": {dice.choice(FIELDS): [dice.choice(({"kind": "drop"}, {"kind": "quantise", "step": 2.0}))]},
        "retention": {"purpose": dice.choice(("p", "q")), "keep_days": dice.randint(0, 7)},
        "privacy": {"max_leakage": dice.random()}, "dp": private(dice),
        "novel": dice.choice(("ask", "flag", "reject")),
    }  # fmt: skip
    return {key: choices[key] for key in dice.sample(tuple(choices), dice.randint(1, 3))}


def private(dice: Random) -> dict[str, Any]:
    return {
        "unit": dice.choice(("record", "subject", "device")), "clip_norm": dice.choice((1.0, 8.0)),
        "sigma": dice.choice((1.0, 5.0)), "delta": 1e-6, "epsilon": dice.choice((1.0, 8.0)),
    }  # fmt: skip


def values(
    dice: Random, layer: PolicyLayer = PolicyLayer.SITE, most_rules: int = 5, most_keys: int = 3
) -> dict[str, Any]:
    """A document as TOML would give it. Wide more often than not, so that something leaves."""
    ceiling = dice.choice(("P1", "P2", "P3", "P3"))
    mode = dice.choice(("hub_first", "wait", "answer_now", "answer_now", "local_only"))
    told: dict[str, Any] = {
        "schema": 2, "name": f"{layer}-doc", "layer": layer.value, "version": dice.randint(1, 9),
        "issued": date(2026, 1, dice.randint(1, 28)),
        "escalation": {"mode": mode, "threshold": dice.random(), "audit_share": dice.random(), "budget_s": 2.0},
        "egress": {
            "ceiling": ceiling,
            "field": [
                {"name": name, "level": f"P{dice.randint(0, int(ceiling[1]))}",
                 "transforms": dice.choice(([], [{"kind": "clip", "low": 0.0, "high": 1.0}]))}
                for name in some(dice, FIELDS, 2)
            ],
            "data_class": {name: dice.random() < 0.8 for name in some(dice, CLASSES, 2)},
        },
        "locality": {"hubs": some(dice, HUBS, 1), "regions": some(dice, REGIONS, 1)},
        "budget": {"bytes_per_day": dice.randint(1, 10**6), "max_open": dice.randint(1, 10**3)},
        "retention": {"purpose": dice.choice(("p", "q")), "keep_days": dice.randint(0, 7)},
        "rule": [rule(dice, number, most_keys) for number in range(dice.randint(0, most_rules))],
    }  # fmt: skip
    if dice.random() < 0.5:
        told["escalation"]["novel"] = dice.choice(("ask", "flag", "reject"))
    if dice.random() < 0.2:
        told["dp"] = private(dice)
    if dice.random() < 0.3:
        told["privacy"] = {"max_leakage": dice.random()}
    return told


def rule(dice: Random, number: int, most_keys: int) -> dict[str, Any]:
    told: dict[str, Any] = {"name": f"rule-{number}", **narrowing(dice)}
    if dice.random() < 0.9:
        told["when"] = condition(dice, most_keys)
    if dice.random() < 0.4:
        told["unless"] = condition(dice, most_keys)
    return told


def document(
    dice: Random, layer: PolicyLayer = PolicyLayer.SITE, most_rules: int = 5, most_keys: int = 3
) -> PolicyDocument:
    return PolicyDocument.model_validate(values(dice, layer, most_rules, most_keys))


def context(dice: Random) -> DecisionContext:
    """Any moment, with each attribute unknown now and then."""

    def maybe(*choices: Any, unknown: Any = None) -> Any:
        return unknown if dice.random() < 0.15 else dice.choice(choices)

    return DecisionContext(
        data_class=dice.choice((*CLASSES, "?")),
        device_class=maybe("x", "y", "z", unknown=""),
        region=maybe(*REGIONS, "r9", unknown=""),
        tenant=maybe("t", "u", "v", unknown=""),
        tags=maybe((), ("k",), ("l",), ("k", "l"), ("m",)),
        link_up=maybe(True, False),
        metered=maybe(True, False),
        battery=maybe(0.0, 0.1, 0.2, 0.3, 0.5, 0.9, 1.0),
        minute_of_week={zone: dice.randrange(MINUTES_OF_WEEK) for zone in ZONES if dice.random() < 0.85},
        level=dice.choice(list(SensitivityLevel)),
    )


def schema(dice: Random) -> tuple[FieldSpec, ...]:
    """A model's fields, some of them labelled too high, and what the device derives."""
    specs = [
        FieldSpec(
            name,
            dice.choice((TensorDType.FP32, TensorDType.UINT8, TensorDType.INT64)),
            (4,),
            0.0,
            1.0,
            dice.choice(list(SensitivityLevel)),
            "",
        )
        for name in some(dice, (*FEATURES, "secret"), 1)
    ]
    return (*specs, *dice.sample(DERIVED_FIELDS, dice.randint(0, len(DERIVED_FIELDS))))


def every_context(policy: Policy, data_class: str, level: SensitivityLevel) -> Iterator[DecisionContext]:
    """By brute force: every combination of values that the rules could tell apart, and unknown."""
    options: dict[str, list[Any]] = {}
    zones: dict[str, list[Any]] = {}
    for attribute in policy.index.attributes:
        if attribute.name in {"data_class", "level"}:
            continue
        if isinstance(attribute, RangeAttribute):
            told: list[Any] = [None, 0, *attribute.bounds]
            (zones if attribute.zone else options)[attribute.zone or attribute.name] = told
        elif attribute.name == "tags":
            options["tags"] = [None, (), ("k",), ("l",), ("k", "l")]
        else:
            unknown = None if attribute.name in {"link_up", "metered"} else ""
            named = [True, False] if unknown is None else [*NAMES[attribute.name], "else"]
            options[attribute.name] = [unknown, *named]
    for picked in product(*options.values()):
        for minutes in product(*zones.values()):
            clock = {zone: minute for zone, minute in zip(zones, minutes, strict=True) if minute is not None}
            known = dict(zip(options, picked, strict=True))
            yield DecisionContext(data_class=data_class, level=level, minute_of_week=clock, **known)
