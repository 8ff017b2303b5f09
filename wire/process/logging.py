"""Structured log of a process: JSON lines on stderr, rate-limited per event name.

Rule: a line carries numbers, enums and checked names, never a payload; any other value is withheld.
The limit is a token bucket of `BURST_LINES`, refilled with `LINES_PER_S`.
"""

import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import NewType, TextIO

SafeName = NewType("SafeName", str)


class SafeText(str):
    """Words of a library or a program, fit for a log line: one line of ASCII, at most 120 characters."""

    __slots__ = ()


SafeValue = bool | int | float | Enum | SafeName
_NAME = re.compile(r"[A-Za-z0-9_.:@/\[\]+-]{1,120}")
_NOT_PRINTABLE = re.compile(r"[^ -~]+")
BURST_LINES = 20
LINES_PER_S = 1.0
MAX_EVENTS = 512
MAX_FRAMES = 16  # a library may have ten of its own
LOG_LEVELS = ("info", "warning", "error")


def safe_name(text: str) -> SafeName:
    """Check an id, address, path or class name for a log line; anything else becomes "withheld:LENGTH"."""
    return SafeName(text) if _NAME.fullmatch(text) else SafeName(f"withheld:{len(text)}")


def safe_text(text: str) -> SafeName:
    """Turn a message of a library or a program into one short line for a log line.

    Never for what a caller or a device sent.
    """
    return SafeName(SafeText(" ".join(_NOT_PRINTABLE.sub(" ", text).split())[:120] or "none"))


def describe_error(error: BaseException) -> SafeName:
    """Describe an exception for a log line: its type, file and line; its message may hold a payload and is left out.

    Of a group, its first error is described.
    """
    error = _find_first(error)
    where = ""
    for trace in _walk_trace(error):
        where = f"@{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    return safe_name(type(error).__name__ + where)


def list_frames(error: BaseException) -> list[SafeName]:
    """List the calls that led to an exception as `FILE:LINE:FUNCTION`, the innermost last, at most `MAX_FRAMES`.

    `FILE` begins at the package; arguments and local values are left out.
    """
    return [_describe_frame(trace) for trace in _walk_trace(_find_first(error))][-MAX_FRAMES:]


def _find_first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _walk_trace(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _describe_frame(trace: TracebackType) -> SafeName:
    code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__"))
    file = "/".join(Path(code.co_filename).parts[-1 - module.count(".") :])
    text = f"{file}:{trace.tb_lineno}:{code.co_qualname}".replace("<", "[").replace(">", "]")
    return safe_name(text[-120:])


class JsonLog:
    """Writer of JSON log lines, each event name limited to 20 at once and one a second.

    `suppressed` in a line counts the lines of its event left out before it. `least`: lowest level written, one of
    `LOG_LEVELS`. `clock`: seconds since 1970.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.time, least: str = "info"
    ) -> None:
        self._stream = stream or sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for ever
        self._silent = LOG_LEVELS[: LOG_LEVELS.index(least)]
        self._clock = clock
        self._buckets: dict[str, tuple[float, float, int]] = {}

    def set_level(self, least: str) -> None:
        """Write lines of this level and above from now on."""
        self._silent = LOG_LEVELS[: LOG_LEVELS.index(least)]

    def info(self, event: str, **values: SafeValue) -> None:
        """Write an "info" line; `values` become its further keys."""
        self._write("info", event, values)

    def warning(self, event: str, **values: SafeValue) -> None:
        """Write a "warning" line."""
        self._write("warning", event, values)

    def error(self, event: str, **values: SafeValue) -> None:
        """Write an "error" line."""
        self._write("error", event, values)

    def defect(self, event: str, error: BaseException, **values: SafeValue) -> None:
        """Write an "error" line about a defect: an exception that the code does not expect.

        It has the exception's type and place as `error`, and as `frames` the calls that led there.
        """
        self._write("error", event, {**values, "error": describe_error(error)}, list_frames(error))

    def capture_logging(self) -> None:
        """Send the records of Python's `logging` to this log: logger, place, and of an exception type and frames.

        Their texts may hold payloads and are left out.
        """
        logging.basicConfig(handlers=[_LibraryHandler(self)], level=logging.WARNING, force=True)

    def _write(self, level: str, event: str, values: dict[str, SafeValue], frames: Sequence[SafeName] = ()) -> None:
        now = self._clock()
        suppressed = None if level in self._silent else self._admit(event, now)
        if suppressed is None:
            return
        line: dict[str, object] = {"at": round(now, 3), "level": level, "event": event}
        line |= {key: _to_json_value(value) for key, value in values.items()}
        if frames:
            line["frames"] = frames
        if suppressed:
            line["suppressed"] = suppressed
        try:
            self._stream.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return  # a full disk, a closed pipe or a closed file must not stop the work

    def _admit(self, event: str, now: float) -> int | None:
        """Take a token of the event's bucket.

        Returns how many lines were left out since the last one written, or None to leave out this one too.
        """
        if len(self._buckets) >= MAX_EVENTS and event not in self._buckets:
            self._buckets.clear()
        tokens, at, suppressed = self._buckets.get(event, (float(BURST_LINES), now, 0))
        tokens = min(BURST_LINES, tokens + max(0.0, now - at) * LINES_PER_S)
        if tokens < 1:
            self._buckets[event] = (tokens, now, suppressed + 1)
            return None
        self._buckets[event] = (tokens - 1, now, 0)
        return suppressed


class LinkLog:
    """Log lines of a connection that comes and goes: one line for each change, none for each attempt.

    `name`: of the connection. `link_up` says after how many failed attempts; `link_lost` and, from a start without a
    link, `link_unreachable` say why.
    """

    def __init__(self, log: JsonLog, name: SafeName) -> None:
        self._log = log
        self._name = name
        self._up = False
        self._failed = 0

    def on_up(self) -> None:
        """The connection stands."""
        self._log.info("link_up", link=self._name, failed=self._failed)
        self._up, self._failed = True, 0

    def on_failed(self, error: str) -> None:
        """The connection was lost, or an attempt to make it failed; `error` says how."""
        if self._up:
            self._log.warning("link_lost", link=self._name, error=safe_text(error))
        elif not self._failed:
            self._log.warning("link_unreachable", link=self._name, error=safe_text(error))
        self._up = False
        self._failed += 1


def _to_json_value(value: SafeValue) -> bool | int | float | str | None:
    """JSON value of a log value: enums by their value, floats rounded to 6 digits, names checked again."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, SafeText):
        return str(value)
    return safe_name(value) if isinstance(value, str) else "withheld"


def _find_callers_mistake(record: logging.LogRecord) -> BaseException | None:
    """The error that aiohttp reports as its own and is a caller's: bytes that are no HTTP, answered with 400."""
    error = record.exc_info[1] if record.exc_info else None
    is_parse_error = any(kind.__name__ == "HttpProcessingError" for kind in type(error).__mro__)
    return error if record.name == "aiohttp.server" and is_parse_error else None


class _LibraryHandler(logging.Handler):
    """Handler for `logging` records of libraries, stripped of their texts."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        mistake = _find_callers_mistake(record)
        if mistake is not None:
            self._log.info("bad_request", error=describe_error(mistake))
            return
        error = record.exc_info[1] if record.exc_info else None
        values = {"logger": safe_name(record.name), "place": safe_name(f"{record.module}:{record.lineno}")}
        if record.levelno < logging.ERROR:
            self._log.warning("library", **values, **({"error": describe_error(error)} if error else {}))
        elif error:
            self._log.defect("library", error, **values)
        else:
            self._log.error("library", **values)
