"""Shrinks a scenario that breaks a rule: fewer events, devices and regions, less time, fewer losses.

Rule: a smaller one counts only if it breaks one of the same rules, under its own seed or one of its next. What is left
is what it takes.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from simulations.scenario.conditions import IDEAL_CONDITIONS
from simulations.scenario.types import EventKind, Link, Load, Region, Scenario, ScenarioEvent, build_permissive_policy

SEEDS = 3  # tried for each smaller scenario: leaving a thing out changes every later draw
TRIES_AT_MOST = 300

FindBrokenRules = Callable[[Scenario], frozenset[str]]  # the rules that a scenario breaks


class ScenarioShrinker:
    """Shrinks scenarios that break one of `laws`. `tries`: scenarios run so far."""

    def __init__(self, broken: FindBrokenRules, laws: frozenset[str], tries_at_most: int = TRIES_AT_MOST) -> None:
        self.tries = 0
        self._broken = broken
        self._laws = laws
        self._most = tries_at_most

    def shrink(self, scenario: Scenario) -> Scenario:
        """Return the smallest that was found until nothing smaller breaks a rule, or the tries are used up."""
        before = None
        while scenario != before:
            before = scenario
            for step in _STEPS:
                while (smaller := self._try_smaller(step(scenario))) is not None:
                    scenario = smaller
        return scenario

    def _try_smaller(self, candidates: Iterator[Scenario]) -> Scenario | None:
        for candidate in candidates:
            for seed in range(candidate.seed, candidate.seed + SEEDS):
                if self.tries >= self._most:
                    return None
                self.tries += 1
                tried = replace(candidate, seed=seed)
                if self._broken(tried) & self._laws:
                    return tried
        return None


def _fewer_events(scenario: Scenario) -> Iterator[Scenario]:
    events = scenario.events
    size = len(events)
    while size:
        for at in range(0, len(events), size):
            yield replace(scenario, events=events[:at] + events[at + size :])
        size //= 2


def _no_rollout(scenario: Scenario) -> Iterator[Scenario]:
    if scenario.rollout is not None:
        of_rollouts = {EventKind.MOVED, EventKind.REPLAYED}
        events = tuple(event for event in scenario.events if event.kind not in of_rollouts)
        yield replace(scenario, rollout=None, events=events)


def _fewer_devices(scenario: Scenario) -> Iterator[Scenario]:
    least = len(scenario.regions)
    for count in dict.fromkeys((least, scenario.devices // 2, scenario.devices - 1)):
        if least <= count < scenario.devices:
            yield _with_devices(scenario, count)


def _with_devices(scenario: Scenario, count: int) -> Scenario:
    events = (event if event.device < count else replace(event, device=count - 1) for event in scenario.events)
    return replace(scenario, devices=count, events=tuple(events))


def _one_region(scenario: Scenario) -> Iterator[Scenario]:
    if len(scenario.regions) == 1:
        return
    for region in scenario.regions:
        alone = (replace(region, share=1.0, failover=()),)
        events = tuple(event for event in scenario.events if event.region in {"", region.name})
        yield replace(scenario, regions=alone, events=events)


def _fewer_members(scenario: Scenario) -> Iterator[Scenario]:
    most = max(region.members for region in scenario.regions)
    for members in dict.fromkeys((1, most - 1)):
        if 1 <= members < most:
            regions = tuple(replace(region, members=min(members, region.members)) for region in scenario.regions)
            events = (replace(event, member=min(members, event.member)) for event in scenario.events)
            kept = tuple(event for event in events if members > 1 or event.kind is not EventKind.STALE_LEASES)
            yield replace(scenario, regions=regions, events=kept)


def _less_time(scenario: Scenario) -> Iterator[Scenario]:
    for duration_s in (scenario.duration_s / 4, scenario.duration_s / 2, scenario.duration_s * 0.8):
        short_s = round(duration_s, 1)
        if 1.0 <= short_s < scenario.duration_s:
            yield _cut_duration(scenario, short_s)
    last_s = max((event.ends_s for event in scenario.events), default=scenario.duration_s)
    if last_s < scenario.duration_s:
        yield _cut_duration(scenario, max(1.0, last_s))


def _cut_duration(scenario: Scenario, duration_s: float) -> Scenario:
    """The scenario with a shorter duration; events after the last sample are dropped."""
    events = tuple(event for event in scenario.events if event.at_s <= duration_s)
    return replace(scenario, duration_s=duration_s, events=events)


def _plainer_settings(scenario: Scenario) -> Iterator[Scenario]:
    usual = Region()
    for place, region in enumerate(scenario.regions):
        for plain in (
            replace(region, link=Link(climate=IDEAL_CONDITIONS)),
            replace(region, limits=usual.limits),
            replace(region, hubs=1, slots=1, cost_base_s=usual.cost_base_s),
        ):
            if plain != region:
                regions = (*scenario.regions[:place], plain, *scenario.regions[place + 1 :])
                yield replace(scenario, regions=regions)
    for load in (Load(samples_per_s=scenario.load.samples_per_s), replace(scenario.load, samples_per_s=0.1)):
        if load != scenario.load:
            yield replace(scenario, load=load)
    plain_policy = build_permissive_policy(scenario.regions, tuple(name for name, _ in scenario.load.classes))
    if scenario.policy not in {"", plain_policy}:
        yield replace(scenario, policy=plain_policy)


def _plainer_events(scenario: Scenario) -> Iterator[Scenario]:
    for place, event in enumerate(scenario.events):
        for plain in _plainer_event(event):
            events = (*scenario.events[:place], plain, *scenario.events[place + 1 :])
            yield replace(scenario, events=tuple(sorted(events, key=lambda each: each.at_s)))


def _plainer_event(event: ScenarioEvent) -> Iterator[ScenarioEvent]:
    if event.lasts_s > 1.0:
        yield replace(event, lasts_s=1.0)
        yield replace(event, lasts_s=round(event.lasts_s / 2, 1))
    if event.device < 0 and event.share < 1.0:
        yield replace(event, share=1.0)
    whole_s = float(round(event.at_s))
    if whole_s != event.at_s:
        yield replace(event, at_s=whole_s)


# Big steps first: they make every later try cheaper
_STEPS: tuple[Callable[[Scenario], Iterator[Scenario]], ...] = (
    _one_region, _no_rollout, _fewer_members, _less_time, _fewer_events, _fewer_devices, _plainer_settings,
    _plainer_events,
)  # fmt: skip
