"""Draws what happens to hubs of several processes: members of each hub, and faults of one of them at a time.

Rule: drawn from a stream of its own, so that all other draws of a seed stay as they were.
"""

from random import Random

from msgspec.structs import replace

from simulations.scenario.types import EventKind, Scenario, ScenarioEvent

MEMBERS = (2, 3)
EVENTS_AT_MOST = 5
LASTS_S = 30.0  # at most: a lease lives for 6 s
_SHARE = 0.25  # of the schedules without a rollout
_KINDS = (
    EventKind.KILL_HUB, EventKind.PAUSE_HUB, EventKind.CUT_DATABASE, EventKind.STALE_LEASES, EventKind.PREEMPT,
)  # fmt: skip
_OF_HUBS = frozenset({EventKind.KILL_HUB, EventKind.PREEMPT, EventKind.POWER_LOSS})
_OF_ROLLOUTS = frozenset({EventKind.MOVED, EventKind.REPLAYED})


def add_members(scenario: Scenario, members: int = 0) -> Scenario:
    """Add to a part of the schedules without a rollout that each hub has several processes.

    `members`: so many in every schedule; a rollout, which knows one process, is left out then.
    """
    rng = Random(f"members {scenario.seed}")  # noqa: S311 - a seed is the point
    drawn = rng.choice(MEMBERS)
    if not members and (scenario.rollout is not None or rng.random() > _SHARE):
        return scenario
    members = members or drawn
    regions = tuple(replace(region, members=members) for region in scenario.regions)
    kept = [event for event in scenario.events if event.kind not in _OF_ROLLOUTS]
    events = [_name_member(rng, event, members) for event in kept]
    if members > 1:
        events += [_draw_event(rng, scenario, members) for _ in range(rng.randint(1, EVENTS_AT_MOST))]
    events.sort(key=lambda event: event.at_s)
    return replace(scenario, regions=regions, rollout=None, events=tuple(events))


def _name_member(rng: Random, event: ScenarioEvent, members: int) -> ScenarioEvent:
    """Let half of the faults of whole hubs strike one of their processes."""
    of_a_hub = event.kind in _OF_HUBS and event.device < 0 and (event.hub or event.kind is not EventKind.POWER_LOSS)
    return replace(event, member=rng.randint(1, members)) if of_a_hub and rng.random() < 0.5 else event


def _draw_event(rng: Random, scenario: Scenario, members: int) -> ScenarioEvent:
    kind = rng.choice(_KINDS)
    at_s = round(rng.uniform(0.0, scenario.duration_s), 1)
    lasts_s = round(rng.uniform(0.0, min(LASTS_S, scenario.duration_s - at_s)), 1)
    amount = round(rng.uniform(0.0, 10.0), 1) if kind is EventKind.PREEMPT else 1.0
    region = rng.choice(("", *(region.name for region in scenario.regions)))
    return ScenarioEvent(kind, at_s, lasts_s, region, member=rng.randint(1, members), amount=amount)
