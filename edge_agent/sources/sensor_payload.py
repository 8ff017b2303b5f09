"""Payloads of MQTT sensors: steps of several channels, and their event times, out of JSON or a binary layout. Pure.

Rule: whatever a message holds, reading it gives steps or a `SensorPayloadError` of fixed words, in bounded time and
memory.
"""

import math
import re
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np

from models.runtime.windows import Steps

MAX_STEPS_A_MESSAGE = 65_536
_PIECE_STEPS = 1024  # that are unpacked at once
_PATH = re.compile(r"(?:^|\.)([^.\[\]]+)|\[(\d{1,6})\]")
_LAYOUT = re.compile(r"[<>=!]?(?:\d{0,5}[xbBhHiIlLqQefd])+")
_WHOLE = "."


class TimeUnit(StrEnum):
    """Unit of an event time that is a number."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


_PER_SECOND = {TimeUnit.S: 1.0, TimeUnit.MS: 1e3, TimeUnit.US: 1e6, TimeUnit.NS: 1e9}
JsonPath = tuple[str | int, ...]


class SensorPayloadError(Exception):
    """A message that holds no steps; `reason` is a fixed word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PayloadSteps(NamedTuple):
    """What a message holds. `times_s`: of each step, in seconds since 1970; empty if the message says none."""

    steps: Steps
    times_s: Sequence[float]


def parse_path(text: str) -> JsonPath:
    """A path into JSON, such as `values.x` or `[0].t`; "." is the whole message. ValueError if it is none."""
    if text == _WHOLE:
        return ()
    parts, at = [], 0
    for found in _PATH.finditer(text):
        if found.start() != at:
            break
        parts.append(found[1] if found[1] is not None else int(found[2]))
        at = found.end()
    if at != len(text) or not parts:
        raise ValueError(f"'{text[:60]}' is no path such as values.x or [0].t")
    return tuple(parts)


def check_layout(layout: str) -> int:
    """How many numbers a binary layout of `struct` has. ValueError if it is none of numbers alone."""
    if not _LAYOUT.fullmatch(layout):
        raise ValueError(f"'{layout[:60]}' is no layout of numbers, such as <hhf (Python's struct)")
    size = struct.calcsize(layout)
    if not 0 < size <= MAX_STEPS_A_MESSAGE or not struct.unpack(layout, bytes(size)):
        raise ValueError(f"a layout of {size} bytes without numbers, or of too many")
    return len(struct.unpack(layout, bytes(size)))


class JsonPayload:
    """JSON messages: one path for each channel to a number, or to a list of numbers, equally long for all.

    `time`: path to the event time, "" for none: a number in `unit`, a text in ISO 8601, or a list of either.
    """

    def __init__(self, channels: Sequence[str], time: str, unit: TimeUnit) -> None:
        self._channels = [parse_path(each) for each in channels]
        self._time = parse_path(time) if time else None
        self._per_second = _PER_SECOND[unit]

    def read(self, payload: bytes, channels: int) -> PayloadSteps:
        """The steps of a message. One path may lead to all channels: lists of `channels` numbers, or one flat list."""
        try:
            content = msgspec.json.decode(payload)
            columns = [_follow(content, path) for path in self._channels]
            steps = _join_columns(columns) if len(columns) == channels else _split_rows(columns, channels)
            times = () if self._time is None else self._read_times(_follow(content, self._time))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise SensorPayloadError("no_json") from None
        except (KeyError, IndexError, TypeError):
            raise SensorPayloadError("path_not_there") from None
        except (ValueError, OverflowError):
            raise SensorPayloadError("no_numbers") from None
        return PayloadSteps(steps, times)

    def _read_times(self, value: Any) -> list[float]:
        return [self._read_time(each) for each in (value if isinstance(value, list) else [value])]

    def _read_time(self, value: Any) -> float:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("a time is a number or a text")  # noqa: TRY004 - all that a message does wrong is one error
        return value / self._per_second


def _follow(content: Any, path: JsonPath) -> Any:
    """The value at a path. KeyError, IndexError or TypeError if there is none."""
    for part in path:
        if isinstance(part, str) is not isinstance(content, dict):
            raise TypeError
        content = content[part]
    return content


def _join_columns(columns: Sequence[Any]) -> Steps:
    """Steps of one value, or one list, a channel."""
    lists = [each if isinstance(each, list) else [each] for each in columns]
    if not all(type(each) in (int, float) for each in lists[0]) or len({len(each) for each in lists}) != 1:
        return _split_rows(columns, len(columns))
    return _to_steps(np.array(lists, np.float64).T if _are_numbers(lists) else None)


def _split_rows(columns: Sequence[Any], channels: int) -> Steps:
    """Steps of one list: rows of `channels` numbers, or all of them in one row after the other."""
    if len(columns) != 1 or not isinstance(columns[0], list):
        raise ValueError("no list")
    rows = columns[0]
    if rows and isinstance(rows[0], list):
        fits = all(isinstance(row, list) and len(row) == channels for row in rows) and _are_numbers(rows)
        return _to_steps(np.array(rows, np.float64) if fits else None)
    if not _are_numbers([rows]) or len(rows) % channels:
        raise ValueError("not whole steps")
    return _to_steps(np.array(rows, np.float64).reshape(-1, channels))


def _are_numbers(rows: Sequence[Sequence[Any]]) -> bool:
    return all(type(each) in (int, float) for row in rows for each in row)


def _to_steps(values: Any) -> Steps:
    """Steps as float32. ValueError if there are none, too many, or one that is no number there."""
    if values is None or not 0 < len(values) <= MAX_STEPS_A_MESSAGE:
        raise ValueError("no steps")
    with np.errstate(over="ignore"):
        steps: Steps = values.astype(np.float32)
    if not np.isfinite(steps).all():
        raise ValueError("no number")
    return steps


class BinaryPayload:
    """Binary messages: one layout of Python's `struct`, once or several times in a row, a step each.

    `time_field`: which of its numbers is the event time, in `unit`; -1 for none. The others are the channels.
    """

    def __init__(self, layout: str, time_field: int, unit: TimeUnit) -> None:
        self._layout = struct.Struct(layout)
        self._time_field = time_field
        self._per_second = _PER_SECOND[unit]

    def read(self, payload: bytes, channels: int) -> PayloadSteps:
        """The steps of a message."""
        size = self._layout.size
        if not payload or len(payload) % size or len(payload) // size > MAX_STEPS_A_MESSAGE:
            raise SensorPayloadError("not_of_this_size")
        rows = self._unpack(payload)
        times: list[float] = []
        if self._time_field >= 0:
            times = (rows[:, self._time_field] / self._per_second).tolist()
            rows = np.delete(rows, self._time_field, axis=1)
        try:
            flat = len(rows) == 1 and channels and not rows.size % channels
            steps = _to_steps(rows.reshape(-1, channels) if flat else rows)
        except ValueError:
            raise SensorPayloadError("no_numbers") from None
        if steps.shape[1] != channels:
            raise SensorPayloadError("other_channels")
        return PayloadSteps(steps, times)

    def _unpack(self, payload: bytes) -> np.ndarray[Any, "np.dtype[np.float64]"]:
        """Unpack a row of numbers a step, some steps at a time: Python's own numbers take eight times the memory."""
        piece = _PIECE_STEPS * self._layout.size
        pieces = [payload[at : at + piece] for at in range(0, len(payload), piece)]
        return np.concatenate([np.array(list(self._layout.iter_unpack(each)), np.float64) for each in pieces])


def spread_times(given: PayloadSteps, rate_hz: float, arrived_s: float) -> Sequence[float]:
    """An event time for each step: those given, or one given or the time of arrival, and 1/`rate_hz` on for each.

    SensorPayloadError for another number of times than steps, or one that is no number.
    """
    count, times = len(given.steps), given.times_s
    if len(times) == count:
        return times
    if len(times) > 1:
        raise SensorPayloadError("times_and_steps_differ")
    first = times[0] if times else arrived_s - (count - 1) / rate_hz
    if not math.isfinite(first):
        raise SensorPayloadError("no_numbers")
    return [first + place / rate_hz for place in range(count)]
