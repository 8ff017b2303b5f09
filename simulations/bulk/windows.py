"""When and where something but ordinary happens: the events of a scenario as stretches of time and ranges of devices.

Rule: in doubt everything is struck: of an event whose kind is not listed here the whole region is. When devices come
back from an event at once, their hub has more to do for a while than the lane knows of: then the whole region is struck
too.
"""

from typing import NamedTuple

from simulations.scenario.arrivals import select_devices
from simulations.scenario.types import EventKind, Scenario, ScenarioEvent

# these change the load alone, or are marks
_HARMLESS = frozenset({EventKind.SURGE, EventKind.SLICES, EventKind.ROLLOUT})
# these strike the devices that they select, and nothing of the hubs
_OF_DEVICES = frozenset({
    EventKind.KILL_AGENTS, EventKind.POWER_LOSS, EventKind.PARTITION, EventKind.HALF_OPEN, EventKind.RESETS,
    EventKind.RECALL, EventKind.POLICY, EventKind.REGRESSED, EventKind.POISONED, EventKind.MOVED, EventKind.REPLAYED,
})  # fmt: skip
_BACK_S = 120.0  # devices try again after a minute at the latest


class StruckDevices(NamedTuple):
    """Devices `first` up to but not including `last` (numbers in the whole fleet) that an event strikes."""

    first: int
    last: int
    from_s: float
    until_s: float


class EventWindows:
    """Events of one region. `devices`: its numbers; `over_s`: from then on there is none."""

    def __init__(self, scenario: Scenario, region: str, devices: range) -> None:
        here = [each for each in scenario.events if each.region in {"", region} and each.kind not in _HARMLESS]
        backs = [(each.ends_s, each.ends_s + _BACK_S) for each in here if each.lasts_s]
        self._everywhere = sorted([_stretch(each) for each in here if not _strikes_devices(each)] + backs)
        self._struck = [_strike(each, devices) for each in here if _strikes_devices(each)]
        self.over_s = max((each.ends_s for each in here), default=0.0)

    def calm_until(self, now_s: float) -> float:
        """Until when nothing strikes the whole region; `now_s` if something does now."""
        for from_s, until_s in self._everywhere:
            if until_s >= now_s:
                return max(now_s, from_s)
        return float("inf")

    def strikes_between(self, begin_s: float, end_s: float) -> list[StruckDevices]:
        """Events that strike single devices at some time from `begin_s` to `end_s`."""
        return [each for each in self._struck if each.from_s < end_s and each.until_s >= begin_s]


def _strikes_devices(event: ScenarioEvent) -> bool:
    return event.kind in _OF_DEVICES and not event.hub


def _stretch(event: ScenarioEvent) -> tuple[float, float]:
    """From when until when an event matters; a backup that is restored is taken before."""
    before_s = event.amount if event.kind is EventKind.RESTORE else 0.0
    return event.at_s - before_s, event.ends_s


def _strike(event: ScenarioEvent, devices: range) -> StruckDevices:
    some = select_devices(event, devices)
    return StruckDevices(some.start, max(some.stop, some.start), event.at_s, event.ends_s)
