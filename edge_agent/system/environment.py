"""What a device knows of its moment, for the rules of a policy: itself, battery, link cost, local time.

Law: what cannot be found out is unknown, which rules take for the narrower side; what is found but cannot be meant is
handed on as it is, and denies. Nothing here waits for anything.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from edge_agent.system.clock import HubClock
from policies.model.context import Context

POWER_SUPPLY = "/sys/class/power_supply"
_LONGEST_LINE = 64
_YES, _NO = frozenset({"yes", "true", "1"}), frozenset({"no", "false", "0"})
_MAINS = frozenset({"Mains", "USB"})


class Attributes(msgspec.Struct, frozen=True):
    """What the configuration says of a device. None = not said. `power_supply` "" = it runs on mains.

    `metered_file`: whether the link is metered now, as `yes` or `no`; whoever manages the network writes it.
    """

    device_class: str = ""
    region: str = ""
    tenant: str = ""
    tags: tuple[str, ...] | None = None
    metered: bool | None = None
    metered_file: str = ""
    power_supply: str = POWER_SUPPLY

    def of(self, tenant: str) -> "Attributes":
        """Whose device it is."""
        return msgspec.structs.replace(self, tenant=tenant)


class Surroundings:
    """Looks around. Cheap enough for every few seconds, not for every sample."""

    def __init__(self, attributes: Attributes, clock: HubClock) -> None:
        self._is = attributes
        self._clock = clock

    def look(self, zones: tuple[str, ...]) -> Context:
        """Of no data class and no link yet: those belong to a question. `zones`: whose local time is asked."""
        a = self._is
        return Context(
            "", a.device_class, a.region, a.tenant, a.tags,
            metered=_metered(a), battery=battery(a.power_supply), minute_of_week=self._minutes(zones),
        )  # fmt: skip

    def _minutes(self, zones: tuple[str, ...]) -> Mapping[str, int]:
        """A clock that no hub has set tells no time of day; one that was tells at least UTC."""
        if not self._clock.heard:
            return {}
        now = datetime.fromtimestamp(self._clock.ms() / 1000, UTC)
        return dict(minutes_of_week(now, ("UTC", *zones)) if zones else ())


def minutes_of_week(now: datetime, zones: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(zone, minutes since Monday 00:00 there); a zone that this machine does not know is left out."""
    for zone in zones:
        with suppress(ZoneInfoNotFoundError, ValueError, OSError):
            local = now.astimezone(ZoneInfo(zone))
            yield zone, (local.weekday() * 24 + local.hour) * 60 + local.minute


def _metered(a: Attributes) -> bool | None:
    if a.metered is not None or not a.metered_file:
        return a.metered
    word = _line(Path(a.metered_file)).lower()
    return True if word in _YES else False if word in _NO else None


def battery(folder: str) -> float | None:
    """Charge from 0 to 1, the least of several; 1 on mains. None if it cannot be told, NaN if it is told as no number.

    As the kernel describes power supplies: Documentation/ABI/testing/sysfs-class-power.
    """
    if not folder:
        return 1.0
    try:
        supplies = sorted(Path(folder).iterdir())
    except OSError:
        return None
    kinds = {supply: _line(supply / "type") for supply in supplies}
    if any(kind in _MAINS and _line(supply / "online") == "1" for supply, kind in kinds.items()):
        return 1.0
    charges = [_charge(supply) for supply, kind in kinds.items() if kind == "Battery"]
    return min(charges, default=None)


def _charge(supply: Path) -> float:
    try:
        return int(_line(supply / "capacity")) / 100
    except ValueError:
        return nan


def _line(file: Path) -> str:
    """The first line, "" if there is none."""
    try:
        with file.open(encoding="ascii", errors="replace") as opened:
            return opened.readline(_LONGEST_LINE).strip()
    except OSError:
        return ""
