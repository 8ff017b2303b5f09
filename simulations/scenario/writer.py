"""Formats a scenario as TOML text that reads back equal; replay files of the fuzzer are written by it.

Rule: whatever differs from the default is written, and little else; files that the scenario was read from (trace,
replay, policy) are written out inline. Times are plain seconds.
"""

import math
from typing import Any

import msgspec
import tomli_w

from simulations.scenario import types as made
from simulations.scenario.conditions import Climate

Plain = dict[str, Any]
_SAID = ("name", "seed", "devices", "duration_s", "step_s", "heal_s", "grace_s")
_NESTED = ("regions", "load", "model", "events", "expect", "rollout", "policy", "begins_minute")


def write(scenario: made.Scenario) -> str:
    """Format a scenario as TOML; `simulations.scenario_files.read` of it gives an equal scenario."""
    top = {"schema": 1, **_plain(scenario, made.Scenario(), _SAID, _NESTED)}
    top["question"] = scenario.question or "What happens?"
    top |= {"load": _load(scenario.load), "model": _plain(scenario.model, made.Model())}
    top |= {"begins": scenario.begins_minute} | _policy(scenario.policy)
    top |= {"region": [_region(region) for region in scenario.regions]}
    top |= {"event": [_event(event) for event in scenario.events]}
    top |= {"expect": [_plain(expect, made.Expect(""), ("figure",)) for expect in scenario.expect]}
    if scenario.rollout is not None:
        top["rollout"] = _plain(scenario.rollout, made.Rollout(), made.Rollout.__struct_fields__)
    return tomli_w.dumps(top)


def _load(load: made.Load) -> Plain:
    """Table `load`; the rate is written as the gap between samples."""
    values = _plain(load, made.Load(), ("kind",), ("samples_per_s", "trace", "classes"))
    values |= {"every": _gap_s(load.samples_per_s), "classes": dict(load.classes)}
    return values | ({"trace": [[row.at_s, row.samples] for row in load.trace]} if load.trace else {})


def _region(region: made.Region) -> Plain:
    """Table `region`, with its limits and link where they differ from the default."""
    always = ("name", "share", "cost_base_s", "cost_item_s")
    values = _plain(region, made.Region(), always, ("limits", "link", "named", "hubs"))
    values["hubs"] = list(region.named) or region.hubs
    link = _plain(region.link, made.Link(), without=("climate",)) | _plain(region.link.climate, Climate())
    return values | _unless_empty(limits=_plain(region.limits, made.Limits()), link=link)


def _event(event: made.Event) -> Plain:
    """Table `event`, with its policy text and conditions."""
    values = _plain(event, made.Event(event.kind, 0.0), ("kind", "at_s"), ("climate", "policy"))
    link = {} if event.climate is None else {"link": _plain(event.climate, Climate())}
    return values | _policy(event.policy) | link


def _plain(
    value: msgspec.Struct, usual: msgspec.Struct, always: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> Plain:
    """By key of a file: the fields that differ from `usual`, and those of `always`."""
    usually = msgspec.to_builtins(usual)
    found = {name: each for name, each in msgspec.to_builtins(value).items() if name not in without}
    return {_key(name): each for name, each in found.items() if name in always or each != usually[name]}


def _key(field: str) -> str:
    """Key of a field in a file; values carry their unit there, so that a key names none."""
    return field if field.endswith("_per_s") else field.removesuffix("_s")


def _unless_empty(**tables: Plain) -> Plain:
    return {name: table for name, table in tables.items() if table}


def _policy(text: str) -> Plain:
    """The policy key; a line break tells a text from the name of a file."""
    return {"policy": text if "\n" in text else text + "\n"} if text else {}


def _gap_s(rate_per_s: float) -> float:
    """The number whose reciprocal is the rate, to the last bit where there is one."""
    gap_s = 1 / rate_per_s
    near = (gap_s, math.nextafter(gap_s, 0.0), math.nextafter(gap_s, math.inf))
    return next((each for each in near if 1 / each == rate_per_s), gap_s)
