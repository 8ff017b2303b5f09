"""Context of a decision and conditions on it, with three-valued logic: an attribute may be unknown. Pure.

Also calendar dates as days since 1970-01-01, without a clock (proleptic Gregorian; H. Hinnant, `chrono-dates`).
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal, get_args

import msgspec

from wire.protocol.messages import SensitivityLevel

DayName = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEK_DAYS: tuple[DayName, ...] = get_args(DayName)
MINUTES_OF_WEEK = 7 * 24 * 60
NO_ZONES: Mapping[str, int] = MappingProxyType({})


class DecisionContext(msgspec.Struct, frozen=True):
    """Attributes of one decision: the sample's data class, the device, its surroundings and the time.

    "" and None = unknown, which a rule takes for a match: the narrower side.
    `minute_of_week`: per zone that the policy names, local minutes since Monday 00:00; a zone left out is unknown.
    `battery`: charge from 0 to 1, 1 on mains power. `level`: highest label among the model's features.
    """

    data_class: str
    device_class: str = ""
    region: str = ""
    tenant: str = ""
    tags: tuple[str, ...] | None = None
    link_up: bool | None = None
    metered: bool | None = None
    battery: float | None = None
    minute_of_week: Mapping[str, int] = NO_ZONES
    level: SensitivityLevel = SensitivityLevel.P4


class WeeklyHours(msgspec.Struct, frozen=True):
    """Hours of the week in one time zone, in minutes since Monday 00:00.

    Each span is half-open, from its first minute up to before its last; none crosses the end of Sunday.
    """

    zone: str
    spans: tuple[tuple[int, int], ...]

    def contains_minute(self, minute: int) -> bool:
        """Whether a minute of the week lies within a span."""
        return any(first <= minute < last for first, last in self.spans)


class RuleCondition(msgspec.Struct, frozen=True):
    """Condition of a rule: all keys that are not None must hold; where several values are named, any of them does."""

    data_class: tuple[str, ...] | None = None
    device_class: tuple[str, ...] | None = None
    region: tuple[str, ...] | None = None
    tenant: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None  # of which the device has any
    label_at_least: SensitivityLevel | None = None
    link_up: tuple[bool, ...] | None = None
    metered: bool | None = None
    battery_below: float | None = None
    hours: WeeklyHours | None = None

    def check_keys(self, context: DecisionContext) -> Iterator[tuple[str, bool | None]]:
        """Yield each key of the condition, as the document names it, and whether it holds; None = not known."""
        for key in ("data_class", "device_class", "region", "tenant"):
            wanted, found = getattr(self, key), getattr(context, key)
            if wanted is not None:
                yield key, found in wanted if found else None
        if self.tags is not None:
            yield "tags", None if context.tags is None else bool(set(self.tags) & set(context.tags))
        if self.label_at_least is not None:
            yield "label_at_least", context.level >= self.label_at_least
        if self.link_up is not None:
            yield "link", None if context.link_up is None else context.link_up in self.link_up
        if self.metered is not None:
            yield "metered", None if context.metered is None else context.metered is self.metered
        if self.battery_below is not None:
            yield "battery_below", None if context.battery is None else context.battery < self.battery_below
        if self.hours is not None:
            minute = context.minute_of_week.get(self.hours.zone)
            yield "time", None if minute is None else self.hours.contains_minute(minute)


def date_to_day(iso: str) -> int:
    """Days since 1970-01-01 of a YYYY-MM-DD date (`days_from_civil`)."""
    year, month, day = map(int, iso.split("-"))
    year -= month <= 2  # count years from March, so that a leap day is the last of its year
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def day_to_date(day: int) -> str:
    """YYYY-MM-DD date of a number of days since 1970-01-01 (`civil_from_days`)."""
    era, of_era = divmod(day + 719_468, 146_097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    return f"{year:04d}-{month:02d}-{of_year - (153 * shifted + 2) // 5 + 1:02d}"
