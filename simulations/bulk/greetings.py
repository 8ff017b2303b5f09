"""Devices at rest that greet their hub when their connection is back, without waking: half a region may do so at once.

Rule: what a greeting leaves in a report is measured like the tariff of a question, from a device that the production
cores let greet. It is done in bulk only where nothing of it can matter later (no event is to come, so nobody greets
again), and only if hello and welcome each arrive once; what was drawn for another goes with it to the full path.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from cloud_hub.core.commands import QuestionKey
from simulations.bulk.tariff import SpecimenRegion, observe_region
from simulations.kernel.world import format_device_name
from simulations.nodes.device import SimulatedDevice
from simulations.nodes.fleet import SimulatedFleet
from simulations.nodes.resting import ODD
from simulations.nodes.services import RegionServices
from simulations.scenario.conditions import QuestionFate

_TRIP_S = 0.05  # one way of a message of the specimen
_FIRST_S, _SECOND_S, _OVER_S = 1.0, 11.0, 10.0  # its greetings, and how long each is watched
_ROUNDING_S = 1e-3  # of a time in whole milliseconds


class GreetingTariff(msgspec.Struct, frozen=True):
    """What a greeting leaves. `counts`: of region and hub, by dotted name; `reply_s`: how long the hub takes for it."""

    counts: dict[str, int]
    reply_s: float


def greeting_key(device: str, epoch: int) -> QuestionKey:
    """Name of a device's greeting among what was drawn before."""
    return QuestionKey(device, epoch, 0)


def measure_greeting(region: SpecimenRegion) -> GreetingTariff | None:
    """Let the device greet twice, in a region that was not started yet; None if that is not ordinary.

    Ordinary is: the device is at rest as soon as the welcome is there, the same as before but for its hub time, and
    both greetings leave the same.
    """
    region.start_region()
    first, second = _watch_greeting(region, _FIRST_S), _watch_greeting(region, _SECOND_S)
    return first if first is not None and first == second else None


def _watch_greeting(region: SpecimenRegion, at_s: float) -> GreetingTariff | None:
    herd, kernel = region.herd, region.kernel
    number, seen = herd.numbers.start, list[float]()

    def note_time(_device: SimulatedDevice) -> None:
        seen.append(kernel.now)

    kernel.run(at_s)
    before, rested = observe_region(region), _resting_numbers(herd)
    key = greeting_key(format_device_name(number), herd.epoch_of(number))
    herd.ground.weather.fates[key] = QuestionFate(up_s=(_TRIP_S,), down_s=(_TRIP_S,))
    herd.told_awake = herd.told_asleep = note_time
    herd.lose_link(number)
    kernel.run(at_s + _OVER_S)
    herd.told_awake = herd.told_asleep = None
    after = observe_region(region)
    if len(seen) != 2 or herd.awake or _resting_numbers(herd) != rested or not after.is_equal_but_counts(before):
        return None
    behind_s = herd.rest.offset_s[0] - herd.ground.zero_s + _TRIP_S  # what the welcome's way makes of hub time
    reply_s = seen[1] - seen[0] - 2 * _TRIP_S
    if not (-_ROUNDING_S - 1e-6 <= behind_s <= 1e-6 and reply_s > -1e-6):
        return None
    return GreetingTariff(dict(after.counts - before.counts), max(0.0, round(reply_s, 6)))


def _resting_numbers(herd: SimulatedFleet) -> tuple[int, int, int, int]:
    """All that is kept of the first device at rest but its hub time."""
    rest = herd.rest
    return rest.next_seq[0], rest.day[0], rest.spent[0], rest.kind[0]


class BulkGreetings:
    """Greetings of a region's devices at rest. `is_calm`: whether hub and region are ordinary, and stay so."""

    def __init__(
        self, ground: RegionServices, herd: SimulatedFleet, specimen: Callable[[int], SpecimenRegion],
        is_calm: Callable[[float], bool],
    ) -> None:  # fmt: skip
        self._ground = ground
        self._herd = herd
        self._specimen = specimen
        self._is_calm = is_calm
        self._tariffs: dict[int, GreetingTariff | None] = {}
        self._greeted: Counter[int] = Counter()  # by kind of device, not counted yet
        self._hear_welcome = self._on_welcome  # bound once

    def greet(self, number: int) -> bool:
        """Greet for a device at rest whose connection is back; False if it has to do it itself."""
        herd, ground = self._herd, self._ground
        kind, now = herd.rest.kind[number - herd.numbers.start], ground.kernel.now
        if kind >= ODD or not self._is_calm(now):
            return False
        tariff = self._find_tariff(kind)
        if tariff is None:
            return False
        up_s = ground.weather.draw_delays()
        down_s = ground.weather.draw_delays() if up_s else ()
        if len(up_s) != 1 or len(down_s) != 1:
            key = greeting_key(format_device_name(number), herd.epoch_of(number))
            ground.weather.fates[key] = QuestionFate(up_s=up_s, down_s=down_s if up_s else None)
            return False
        said_s = now + up_s[0] + tariff.reply_s
        ground.kernel.schedule_at(said_s + down_s[0], self._hear_welcome, number, kind, said_s)
        return True

    def _find_tariff(self, kind: int) -> GreetingTariff | None:
        if kind not in self._tariffs:
            self._tariffs[kind] = measure_greeting(self._specimen(kind))
        return self._tariffs[kind]

    def _on_welcome(self, number: int, kind: int, said_s: float) -> None:
        """The welcome is there: the device believes what it says of hub time."""
        self._greeted[kind] += 1
        self._herd.learn_hub_time(number, int((self._ground.zero_s + said_s) * 1000))

    def settle(self) -> Counter[str]:
        """What greetings have left since the last call, by dotted name."""
        found = Counter[str]()
        for kind, count in self._greeted.items():
            tariff = self._tariffs[kind]
            found.update({name: count * each for name, each in (tariff.counts if tariff else {}).items()})
            found["bulk.greetings"] += count
        self._greeted.clear()
        return found
