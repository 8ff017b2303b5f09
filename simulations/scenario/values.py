"""Values of a scenario file: durations, moments of the week, kinds of events, names and numbers."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from policies.language.values import Share, shorten_value, suggest_known
from simulations.scenario import types

_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_TIME = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?) ?(ms|s|min|h|d|w)")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MOMENT = re.compile(r"(mon|tue|wed|thu|fri|sat|sun) ([01][0-9]|2[0-3]):([0-5][0-9])")
_LONGEST_S = 400 * 86_400.0


def parse_duration(value: object) -> object:
    """Parse `"90 s"`, `"1.5h"`, or a number of seconds."""
    if not isinstance(value, str):
        return value
    found = _TIME.fullmatch(value)
    if found is None:
        raise ValueError(f"{value[:40]!r} is no time: write seconds, or '250ms', '90s', '5min', '1h', '7d', '2w'")
    return float(found[1].replace("_", "")) * _UNITS[found[2]]


def parse_moment(value: object) -> object:
    """Parse `"mon 08:30"` as the minute of the week."""
    found = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        return _DAYS.index(found[1]) * 1440 + int(found[2]) * 60 + int(found[3])
    if isinstance(value, int):
        return value
    raise ValueError(f"{str(value)[:40]!r} is no moment: write 'mon 08:30' (UTC)")


def _parse_kind(value: object) -> types.EventKind:
    """Parse the kind of an event; ValueError with a suggestion for another word."""
    if isinstance(value, str) and value in set(types.EventKind):
        return types.EventKind(value)
    raise ValueError(f"{shorten_value(value)} is no kind of event; {suggest_known(str(value), types.EventKind)}")


def _int_to_float(value: object) -> object:
    """Whole numbers as floats, so that `5` and `5.0` mean the same; booleans are left for pydantic to refuse."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Time = Annotated[float, BeforeValidator(_int_to_float), BeforeValidator(parse_duration), Field(ge=0, le=_LONGEST_S)]
Span = Annotated[float, BeforeValidator(_int_to_float), BeforeValidator(parse_duration), Field(gt=0, le=_LONGEST_S)]
Real = Annotated[float, BeforeValidator(_int_to_float)]
Rate = Annotated[float, BeforeValidator(_int_to_float), Field(gt=0, le=1e6)]
Few = Annotated[int, Field(ge=1, le=1000)]
Many = Annotated[int, Field(ge=1, le=10_000_000)]
RegionName = Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$")]
Part = Annotated[Share, BeforeValidator(_int_to_float)]
Kind = Annotated[types.EventKind, BeforeValidator(_parse_kind)]
DataClass = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
