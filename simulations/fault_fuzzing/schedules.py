"""Draws random fault scenarios from a seed for the fuzzer: a small fleet, its policy, its network, and its faults.

Rule: the seed decides everything. Numbers are rounded, so that what is found can be read; whatever is drawn, the reader
of scenario files accepts.
"""

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from simulations.fault_fuzzing.members import add_members
from simulations.scenario.conditions import IDEAL_CONDITIONS, EnvironmentConditions
from simulations.scenario.types import (
    EventKind,
    HubLimits,
    Link,
    Load,
    LoadKind,
    Model,
    Region,
    Rollout,
    Scenario,
    ScenarioEvent,
)

HEAL_S = 240.0
PATIENCE_S = 200.0  # a device's retry limits add up: reconnect, resend and Ask wait up to a minute each
DEVICES_AT_MOST = 8
EVENTS_AT_MOST = 8
_DISKS_S = (0.001, 0.005, 0.2)
_STORMY = EnvironmentConditions(loss=0.05, repeats=0.05, bad_disk=0.01, bad_batch=0.05)
_CLIMATES = (
    IDEAL_CONDITIONS,
    EnvironmentConditions(),
    EnvironmentConditions(),
    _STORMY,
    replace(_STORMY, latency_s=0.5, loss=0.2),
)
_NARROW = HubLimits(max_queued=16, device_open=3, device_rate_per_s=2.0)
# What a hub admits, it must be able to serve within `PATIENCE_S`: a slow engine behind a short queue never catches up
_ENGINES = ((0.004, HubLimits()), (0.05, HubLimits()), (3.0, HubLimits()), (0.05, _NARROW))
_CLASSES = ((("open", 1.0),), (("open", 0.8), ("private", 0.1), ("alarm", 0.1)))
_WEIGHTS = {
    EventKind.KILL_AGENTS: 3,
    EventKind.POWER_LOSS: 4,
    EventKind.KILL_HUB: 2,
    EventKind.KILL_BROKER: 2,
    EventKind.KILL_REGION: 1,
    EventKind.PARTITION: 2,
    EventKind.RECALL: 2,
    EventKind.POLICY: 1,
    EventKind.RESTORE: 2,
    EventKind.PREEMPT: 2,
    EventKind.STORM: 1,
    EventKind.CERTIFICATES: 1,
    EventKind.POISONED: 1,
    EventKind.WEATHER: 1,
    EventKind.REGRESSED: 1,
}


def draw_scenario(seed: int, members: int = 0) -> Scenario:
    """Draw a scenario; the same seed draws the same. `members`: processes of each hub, 0 = as drawn."""
    rng = Random(seed)  # noqa: S311 - a seed is the point
    regions = _draw_regions(rng)
    scenario = Scenario(
        name=f"fuzz-{seed}",
        question="Does every guarantee hold?",
        seed=seed,
        duration_s=_round_tenths(rng.uniform(20.0, 120.0)),
        devices=rng.randint(len(regions), DEVICES_AT_MOST),
        regions=regions,
        load=_draw_load(rng),
        model=Model(unsure_share=round(rng.uniform(0.1, 0.9), 2)),
        policy=_draw_policy(rng, regions),
        commit_s=rng.choice(_DISKS_S),
        heal_s=HEAL_S,
        grace_s=PATIENCE_S,
    )
    events = [_draw_event(rng, scenario) for _ in range(rng.randint(1, EVENTS_AT_MOST))]
    scenario = replace(scenario, events=tuple(sorted(events, key=lambda event: event.at_s)))
    scenario = _add_rollout(Random(f"rollout {seed}"), scenario)  # noqa: S311 - other draws stay as they were
    return add_members(scenario, members)


def _add_rollout(rng: Random, scenario: Scenario) -> Scenario:
    """Add to a third of the schedules of one region a rollout: of a version as good or worse, to one device or more.

    Devices leave its selection and come back, and are sent old assignments again; there is enough traffic for some of
    them to be judged.
    """
    if len(scenario.regions) > 1 or rng.random() > 0.33:
        return scenario
    rollout = Rollout(
        at_s=_round_tenths(rng.uniform(0.0, 20.0)), harm=rng.choice((0.0, 0.4, 0.4, 0.8)), tail=rng.random() < 0.3,
        audit_share=rng.choice((0.3, 1.0)), probation_s=rng.choice((1.0, 10.0)), soak_s=rng.choice((1.0, 10.0)),
        look_s=1.0, report_s=rng.choice((1.0, 5.0)), min_inferences=rng.choice((0, 1, 10)), max_soak_s=30.0,
    )  # fmt: skip
    moves = [_draw_move(rng, scenario) for _ in range(rng.randint(0, 2))]
    events = tuple(sorted((*scenario.events, *moves), key=lambda event: event.at_s))
    load = replace(scenario.load, samples_per_s=rng.choice((0.1, 1.0, 2.0)))
    devices = 1 if rng.random() < 0.4 else scenario.devices
    events = tuple(event if event.device < devices else replace(event, device=devices - 1) for event in events)
    duration_s = max(scenario.duration_s, 120.0)
    replays = [_draw_replay(rng, duration_s, devices) for _ in range(rng.randint(0, 2))]
    events = tuple(sorted((*events, *replays), key=lambda event: event.at_s))
    return replace(scenario, rollout=rollout, events=events, load=load, devices=devices, duration_s=duration_s)


def _draw_move(rng: Random, scenario: Scenario) -> ScenarioEvent:
    at_s = _round_tenths(rng.uniform(0.0, scenario.duration_s))
    lasts_s = _round_tenths(rng.uniform(0.0, min(60.0, scenario.duration_s - at_s)))
    return ScenarioEvent(EventKind.MOVED, at_s, lasts_s, device=rng.randrange(scenario.devices))


def _draw_replay(rng: Random, duration_s: float, devices: int) -> ScenarioEvent:
    at_s = _round_tenths(rng.uniform(0.0, duration_s))
    lasts_s = _round_tenths(rng.uniform(0.0, min(60.0, duration_s - at_s)))
    device = rng.choice((-1, rng.randrange(devices)))
    return ScenarioEvent(EventKind.REPLAYED, at_s, lasts_s, device=device)


def _round_tenths(seconds: float) -> float:
    return round(seconds, 1)


def _draw_regions(rng: Random) -> tuple[Region, ...]:
    cost_base_s, limits = rng.choice(_ENGINES)
    hub = Region(
        hubs=rng.choice((1, 1, 1, 2)),
        slots=rng.choice((1, 2)),
        cost_base_s=cost_base_s,
        limits=limits,
        link=Link(climate=rng.choice(_CLIMATES)),
    )
    if rng.random() < 0.75:
        return (hub,)
    return (
        replace(hub, name="eu", share=0.5, failover=("us",) if rng.random() < 0.12 else ()),
        replace(hub, name="us", share=0.5),
    )


def _draw_load(rng: Random) -> Load:
    return Load(
        kind=rng.choice((LoadKind.POISSON, LoadKind.BURSTY)),
        samples_per_s=rng.choice((0.1, 0.25, 1.0)),
        burst_every_s=60.0,
        burst_lasts_s=10.0,
        classes=rng.choice(_CLASSES),
    )


def _draw_policy(rng: Random, regions: tuple[Region, ...], version: int = 1) -> str:
    """Draw a policy in which neither `private` (by its class) nor `alarm` (by a rule) may leave a device."""
    return _POLICY.format(
        version=version,
        mode=rng.choice(("wait", "answer_now", "hub_first")),
        audit=rng.choice((0.01, 0.3)),
        budget=rng.choice((0.5, 2.0, 30.0)),
        hubs=", ".join(f'"{hub}"' for region in regions for hub in region.hub_names),
        regions=", ".join(f'"{region.name}"' for region in regions),
        bytes=rng.choice((1_000_000_000, 1_000_000_000, 4_000, 20_000)),
        most=rng.choice((10_000, 10_000, 2, 8)),
    )


_POLICY = """schema = 2
name = "fuzz"
version = {version}
issued = 2020-01-01
expires = 2099-12-31
escalation = {{ mode = "{mode}", threshold = 0.8, audit_share = {audit}, budget_s = {budget} }}
locality = {{ hubs = [{hubs}], regions = [{regions}] }}
budget = {{ bytes_per_day = {bytes}, max_open = {most} }}
retention = {{ purpose = "simulation" }}
[egress]
ceiling = "P2"
field = [{{ name = "features", level = "P2" }}]
data_class = {{ open = true, private = false, alarm = true }}
[[rule]]
name = "alarms-stay"
when = {{ data_class = ["alarm"] }}
deny = true
"""


def _draw_event(rng: Random, scenario: Scenario) -> ScenarioEvent:
    kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    at_s = _round_tenths(rng.uniform(0.0, scenario.duration_s))
    lasts_s = _round_tenths(rng.uniform(0.0, scenario.duration_s - at_s))
    event = ScenarioEvent(kind, at_s, lasts_s, _draw_region(rng, scenario), share=round(rng.uniform(0.05, 1.0), 2))
    if rng.random() < 0.4 and kind not in {EventKind.WEATHER, EventKind.STORM}:
        event = replace(event, region="", device=rng.randrange(scenario.devices))
    more = _MORE.get(kind)
    return more(rng, scenario, event) if more else event


def _draw_region(rng: Random, scenario: Scenario) -> str:
    return rng.choice(("", *(region.name for region in scenario.regions)))


def _draw_power_loss(rng: Random, scenario: Scenario, event: ScenarioEvent) -> ScenarioEvent:
    event = replace(event, amount=float(rng.randint(0, 12)))
    if rng.random() < 0.3:
        region = rng.choice(scenario.regions)
        return replace(event, region=region.name, hub=region.hub_names[0], device=-1)
    return event


def _draw_restore(rng: Random, _scenario: Scenario, event: ScenarioEvent) -> ScenarioEvent:
    return replace(event, amount=_round_tenths(rng.uniform(0.1, max(0.2, event.at_s))), device=-1)


def _draw_preemption(rng: Random, _scenario: Scenario, event: ScenarioEvent) -> ScenarioEvent:
    return replace(event, amount=_round_tenths(rng.uniform(0.0, 10.0)), device=-1)


def _draw_storm(rng: Random, _scenario: Scenario, event: ScenarioEvent) -> ScenarioEvent:
    return replace(event, amount=float(rng.randint(2, 20)), lasts_s=min(event.lasts_s, 20.0))


def _draw_conditions(rng: Random, _scenario: Scenario, event: ScenarioEvent) -> ScenarioEvent:
    return replace(event, climate=rng.choice(_CLIMATES))


def _draw_regression(rng: Random, _scenario: Scenario, event: ScenarioEvent) -> ScenarioEvent:
    """Draw a regression: mild, severe, in one class, or of head and tail together."""
    how = (
        {"amount": 0.05},
        {"amount": 0.4},
        {"amount": 1.0, "label": 3},
        {"amount": 0.4, "tail": True},
    )
    return replace(event, **rng.choice(how))


def _draw_other_policy(rng: Random, scenario: Scenario, event: ScenarioEvent) -> ScenarioEvent:
    return replace(event, policy=_draw_policy(rng, scenario.regions, version=rng.randint(2, 99)))


def _strike_whole_region(_rng: Random, _scenario: Scenario, event: ScenarioEvent) -> ScenarioEvent:
    return replace(event, device=-1)


_MORE: dict[EventKind, Callable[[Random, Scenario, ScenarioEvent], ScenarioEvent]] = {
    EventKind.POWER_LOSS: _draw_power_loss,
    EventKind.RESTORE: _draw_restore,
    EventKind.PREEMPT: _draw_preemption,
    EventKind.STORM: _draw_storm,
    EventKind.WEATHER: _draw_conditions,
    EventKind.REGRESSED: _draw_regression,
    EventKind.POLICY: _draw_other_policy,
    EventKind.KILL_HUB: _strike_whole_region,
    EventKind.KILL_BROKER: _strike_whole_region,
    EventKind.KILL_REGION: _strike_whole_region,
}
