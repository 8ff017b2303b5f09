"""Formats a scenario as TOML text that reads back equal; replay files of the fuzzer are written by it.

Rule: whatever differs from the default is written, and little else; files that the scenario was read from (trace,
replay, policy) are written out inline. Times are plain seconds.
"""

import math
from typing import Any

import msgspec
import tomli_w

from simulations.scenario import types
from simulations.scenario.conditions import EnvironmentConditions

Plain = dict[str, Any]
_SAID = ("name", "seed", "devices", "duration_s", "step_s", "heal_s", "grace_s")
_NESTED = ("regions", "load", "model", "events", "expect", "rollout", "policy", "begins_minute")


def format_scenario(scenario: types.Scenario) -> str:
    """Format a scenario as TOML; `simulations.scenario_files.parse_scenario` of it gives an equal scenario."""
    top = {"schema": 1, **_collect_changes(scenario, types.Scenario(), _SAID, _NESTED)}
    top["question"] = scenario.question or "What happens?"
    top |= {"load": _write_load(scenario.load), "model": _collect_changes(scenario.model, types.Model())}
    top |= {"begins": scenario.begins_minute} | _write_policy(scenario.policy)
    top |= {"region": [_write_region(region) for region in scenario.regions]}
    top |= {"event": [_write_event(event) for event in scenario.events]}
    top |= {"expect": [_collect_changes(expect, types.Expectation(""), ("figure",)) for expect in scenario.expect]}
    if scenario.rollout is not None:
        top["rollout"] = _collect_changes(scenario.rollout, types.Rollout(), types.Rollout.__struct_fields__)
    return tomli_w.dumps(top)


def _write_load(load: types.Load) -> Plain:
    """Table `load`; the rate is written as the gap between samples."""
    values = _collect_changes(load, types.Load(), ("kind",), ("samples_per_s", "trace", "classes"))
    values |= {"every": _invert_rate(load.samples_per_s), "classes": dict(load.classes)}
    return values | ({"trace": [[row.at_s, row.samples] for row in load.trace]} if load.trace else {})


def _write_region(region: types.Region) -> Plain:
    """Table `region`, with its limits and link where they differ from the default."""
    always = ("name", "share", "cost_base_s", "cost_item_s")
    values = _collect_changes(region, types.Region(), always, ("limits", "link", "named", "hubs"))
    values["hubs"] = list(region.named) or region.hubs
    link = _collect_changes(region.link, types.Link(), without=("climate",)) | _collect_changes(
        region.link.climate, EnvironmentConditions()
    )
    return values | _drop_empty(limits=_collect_changes(region.limits, types.HubLimits()), link=link)


def _write_event(event: types.ScenarioEvent) -> Plain:
    """Table `event`, with its policy text and conditions."""
    values = _collect_changes(event, types.ScenarioEvent(event.kind, 0.0), ("kind", "at_s"), ("climate", "policy"))
    link = {} if event.climate is None else {"link": _collect_changes(event.climate, EnvironmentConditions())}
    return values | _write_policy(event.policy) | link


def _collect_changes(
    value: msgspec.Struct, usual: msgspec.Struct, always: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> Plain:
    """By key of a file: the fields that differ from `usual`, and those of `always`."""
    usually = msgspec.to_builtins(usual)
    found = {name: each for name, each in msgspec.to_builtins(value).items() if name not in without}
    return {_format_key(name): each for name, each in found.items() if name in always or each != usually[name]}


def _format_key(field: str) -> str:
    """Key of a field in a file; values carry their unit there, so that a key names none."""
    return field if field.endswith("_per_s") else field.removesuffix("_s")


def _drop_empty(**tables: Plain) -> Plain:
    return {name: table for name, table in tables.items() if table}


def _write_policy(text: str) -> Plain:
    """The policy key; a line break tells a text from the name of a file."""
    return {"policy": text if "\n" in text else text + "\n"} if text else {}


def _invert_rate(rate_per_s: float) -> float:
    """The number whose reciprocal is the rate, to the last bit where there is one."""
    gap_s = 1 / rate_per_s
    near = (gap_s, math.nextafter(gap_s, 0.0), math.nextafter(gap_s, math.inf))
    return next((each for each in near if 1 / each == rate_per_s), gap_s)
