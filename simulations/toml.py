"""A scenario as TOML text that reads back equal: what a found fault is replayed from, with times in plain seconds.

Law: whatever differs from the usual is written, nothing else; files that the scenario was read from are written out.
"""

import json
import math
from collections.abc import Iterable

import msgspec

from simulations import scenario as made
from simulations.weather import Climate

Plain = dict[str, object]


def write(scenario: made.Scenario) -> str:
    """`reader.read` of it gives an equal scenario."""
    usual = made.Scenario()
    top: Plain = {"schema": 1, "name": scenario.name, "question": scenario.question or "What happens?"}
    top |= {"seed": scenario.seed, "devices": scenario.devices, "duration": scenario.duration_s}
    top |= {"step": scenario.step_s, "heal": scenario.heal_s, "grace": scenario.grace_s}
    top |= _unless(usual.commit_s, commit=scenario.commit_s)
    top |= _unless(usual.begins_minute, begins=scenario.begins_minute) | _unless("", policy=_text(scenario.policy))
    parts = [_table("", top), _table("[load]", _load(scenario.load)), _table("[model]", _model(scenario.model))]
    for region in scenario.regions:
        parts += [_table("[[region]]", _region(region)), *_link("[region.link]", region.link), _limits(region.limits)]
    for event in scenario.events:
        parts.append(_table("[[event]]", _event(event)))
        parts += [] if event.climate is None else [_table("[event.link]", _climate(event.climate))]
    if scenario.rollout is not None:
        parts.append(_table("[rollout]", _rollout(scenario.rollout)))
    parts += [_table("[[expect]]", _expect(expect)) for expect in scenario.expect]
    return "\n".join(part for part in parts if part)


def _load(load: made.Load) -> Plain:
    usual = made.Load()
    values: Plain = {"kind": load.kind.value, "every": _gap_s(load.samples_per_s)}
    values |= _unless(usual.swing, swing=load.swing) | _unless(usual.peak_s, peak=load.peak_s)
    values |= _unless(usual.burst_factor, burst_factor=load.burst_factor)
    values |= _unless(usual.burst_every_s, burst_every=load.burst_every_s)
    values |= _unless(usual.burst_lasts_s, burst_lasts=load.burst_lasts_s)
    values |= {"trace": [[row.at_s, row.samples] for row in load.trace]} if load.trace else {}
    return values | _unless(dict(usual.classes), classes=dict(load.classes))


def _model(model: made.Model) -> Plain:
    values = _but(model, made.Model(), "deciles", "replay")
    values |= {"deciles": list(model.deciles)} if model.deciles else {}
    return values | ({} if model.replay is None else {"replay": msgspec.to_builtins(model.replay)})


def _region(region: made.Region) -> Plain:
    values: Plain = {"name": region.name, "share": region.share}
    values |= _but(
        region,
        made.Region(),
        "name",
        "share",
        "limits",
        "link",
        "failover",
        "named",
        "hubs",
        "cost_base_s",
        "cost_item_s",
        "shift_s",
    )
    values |= {"hubs": list(region.named)} if region.named else _unless(1, hubs=region.hubs)
    values |= {"cost_base": region.cost_base_s, "cost_item": region.cost_item_s}
    return values | _unless(0.0, shift=region.shift_s) | _unless([], failover=list(region.failover))


def _limits(limits: made.Limits) -> str:
    usual = made.Limits()
    values = _but(limits, usual, "max_wait_s") | _unless(usual.max_wait_s, max_wait=limits.max_wait_s)
    return _table("[region.limits]", values) if values else ""


def _link(header: str, link: made.Link) -> list[str]:
    values = _climate(link.climate) | _but(link, made.Link(), "climate")
    return [_table(header, values)] if values else []


def _climate(climate: Climate) -> Plain:
    usual = Climate()
    return {
        name.removesuffix("_s"): getattr(climate, name)
        for name in climate.__struct_fields__
        if getattr(climate, name) != getattr(usual, name)
    }


def _event(event: made.Event) -> Plain:
    values: Plain = {"kind": event.kind.value, "at": event.at_s}
    values |= _unless(0.0, lasts=event.lasts_s) | _unless("", policy=_text(event.policy))
    return values | _but(event, made.Event(event.kind, 0.0), "kind", "at_s", "lasts_s", "climate", "policy")


def _rollout(rollout: made.Rollout) -> Plain:
    return {name.removesuffix("_s"): value for name, value in msgspec.structs.asdict(rollout).items()}


def _expect(expect: made.Expect) -> Plain:
    values = _but(expect, made.Expect(expect.figure), "figure", "from_s", "until_s")
    return {"figure": expect.figure, **values, **_unless(0.0, **{"from": expect.from_s}, until=expect.until_s)}


def _but(value: msgspec.Struct, usual: msgspec.Struct, *others: str) -> Plain:
    """The fields that differ from the usual, but for `others`."""
    names = [name for name in value.__struct_fields__ if name not in others]
    return {name: getattr(value, name) for name in names if getattr(value, name) != getattr(usual, name)}


def _gap_s(rate_per_s: float) -> float:
    """The number whose reciprocal is the rate, to the last bit where there is one."""
    gap_s = 1 / rate_per_s
    near = (gap_s, math.nextafter(gap_s, 0.0), math.nextafter(gap_s, math.inf))
    return next((each for each in near if 1 / each == rate_per_s), gap_s)


def _unless(usual: object, **values: object) -> Plain:
    return {name: value for name, value in values.items() if value != usual}


def _text(policy: str) -> str:
    """A text is told from the name of a file by a line break."""
    return policy if not policy or "\n" in policy else policy + "\n"


def _table(header: str, values: Plain) -> str:
    lines = [f"{name} = {_value(value)}" for name, value in values.items()]
    return "\n".join([header, *lines] if header else lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_each(value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value).replace("\\u007f", "\\u007F")


def _each(values: Iterable[object]) -> list[str]:
    return [_value(value) for value in values]
