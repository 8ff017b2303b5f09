"""Reads the device's present context for policy rules: its attributes, battery, link cost and local time.

Rule: what cannot be read is unknown, which rules treat as the stricter case; a value that makes no sense is passed on
as it is, and denies. Nothing here blocks.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import nan
from pathlib import Path

import msgspec

from edge_agent.system.clock import HubClock
from policies.model.context import DecisionContext

POWER_SUPPLY = "/sys/class/power_supply"
_LONGEST_LINE = 64
_YES, _NO = frozenset({"yes", "true", "1"}), frozenset({"no", "false", "0"})
_MAINS = frozenset({"Mains", "USB"})


class DeviceAttributes(msgspec.Struct, frozen=True):
    """Device attributes from the configuration; None = not configured.

    `power_supply`: folder of the kernel's power supplies, "" = the device runs on mains. `metered_file`: file with
    `yes` or `no`, whether the link is metered now, written by whatever manages the network.
    """

    device_class: str = ""
    region: str = ""
    tenant: str = ""
    tags: tuple[str, ...] | None = None
    metered: bool | None = None
    metered_file: str = ""
    power_supply: str = POWER_SUPPLY

    def with_tenant(self, tenant: str) -> "DeviceAttributes":
        """The same attributes with the tenant that owns the device."""
        return msgspec.structs.replace(self, tenant=tenant)


class DeviceEnvironment:
    """Reads the policy context of this device; a few file reads, meant for every few seconds, not every sample."""

    def __init__(self, attributes: DeviceAttributes, clock: HubClock) -> None:
        self._is = attributes
        self._clock = clock

    def read_context(self, zones: tuple[str, ...]) -> DecisionContext:
        """Read the context now, without data class and link state, which belong to a question.

        `zones`: names of the time zones whose local time the policy needs.
        """
        a = self._is
        return DecisionContext(
            "", a.device_class, a.region, a.tenant, a.tags,
            metered=_read_metered(a), battery=read_battery(a.power_supply), minute_of_week=self._read_minutes(zones),
        )  # fmt: skip

    def _read_minutes(self, zones: tuple[str, ...]) -> Mapping[str, int]:
        """Minutes of the week per zone; empty until a hub has set the clock, as it tells no time of day before."""
        if not self._clock.is_synchronized:
            return {}
        now = datetime.fromtimestamp(self._clock.hub_ms() / 1000, UTC)
        return dict(minutes_of_week(now, ("UTC", *zones)) if zones else ())


def minutes_of_week(now: datetime, zones: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(zone, minutes since Monday 00:00 there); a zone that this machine does not know is left out."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - where a policy names hours

    for zone in zones:
        with suppress(ZoneInfoNotFoundError, ValueError, OSError):
            local = now.astimezone(ZoneInfo(zone))
            yield zone, (local.weekday() * 24 + local.hour) * 60 + local.minute


def _read_metered(a: DeviceAttributes) -> bool | None:
    """Whether the link is metered: as configured, else from the file; None if neither says."""
    if a.metered is not None or not a.metered_file:
        return a.metered
    word = read_line(Path(a.metered_file)).lower()
    return True if word in _YES else False if word in _NO else None


def read_battery(folder: str) -> float | None:
    """Battery charge from 0 to 1, the lowest of several; 1 on mains.

    None if it cannot be read, NaN if a battery reports no number. Read as the kernel describes power supplies:
    Documentation/ABI/testing/sysfs-class-power.
    """
    if not folder:
        return 1.0
    try:
        supplies = sorted(Path(folder).iterdir())
    except OSError:
        return None
    kinds = {supply: read_line(supply / "type") for supply in supplies}
    if any(kind in _MAINS and read_line(supply / "online") == "1" for supply, kind in kinds.items()):
        return 1.0
    charges = [_read_charge(supply) for supply, kind in kinds.items() if kind == "Battery"]
    return min(charges, default=None)


def _read_charge(supply: Path) -> float:
    try:
        return int(read_line(supply / "capacity")) / 100
    except ValueError:
        return nan


def read_line(file: Path) -> str:
    """The first line of a file, at most 64 characters; "" if it cannot be read."""
    try:
        with file.open(encoding="ascii", errors="replace") as opened:
            return opened.readline(_LONGEST_LINE).strip()
    except OSError:
        return ""
