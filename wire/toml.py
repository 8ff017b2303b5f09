"""TOML of bounded cost: a document is measured before the standard library's parser sees it. Pure.

Rule: a key of many parts takes that parser time by the square of their number, and one of 100,000 hours; so the points
of a line are counted first. A key never goes over the end of a line. A number takes it about 120 bytes of memory for
each digit, so a number of more digits than Python turns into an integer is refused first, too.
"""

import re
import tomllib
from typing import Any

MAX_TOML_CHARS = 1 << 20
MAX_LINE_POINTS = 1000  # also those of numbers: a list of as many fractions is written on several lines
MAX_DIGITS = 4300  # of a number, as Python's own limit
_LINE = re.compile(r"[^\n]++")
# A long number, also a hexadecimal one. What begins with a quote is a text, which may be as long as it likes.
_LONG_NUMBER = re.compile(rf"(?<![0-9A-Fa-fxo_\"'])[0-9A-Fa-fxo_]{{{MAX_DIGITS + 1}}}")


def parse_toml(text: str, max_chars: int = MAX_TOML_CHARS) -> dict[str, Any]:
    """Parse a TOML text of at most `max_chars` characters.

    ValueError, one line, for anything that is none, is longer, has a line of more than `MAX_LINE_POINTS` points or a
    number of more than `MAX_DIGITS` digits, or is nested too deeply.
    """
    text = text.removeprefix("\ufeff")  # a byte order mark
    if len(text) > max_chars:
        raise ValueError(f"{len(text)} characters, at most {max_chars} are read")
    for line in _LINE.finditer(text):
        if line.end() - line.start() > MAX_LINE_POINTS:
            _check_long_line(text, line.start(), line.end())
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _check_long_line(text: str, start: int, end: int) -> None:
    """ValueError for a line between two places of a text that has too many points, or a number of too many digits."""
    if text.count(".", start, end) > MAX_LINE_POINTS:
        raise ValueError(f"line {_count_lines(text, start)} has more than {MAX_LINE_POINTS} points")
    if _LONG_NUMBER.search(text, start, end):
        raise ValueError(f"line {_count_lines(text, start)} has a number of more than {MAX_DIGITS} digits")


def _count_lines(text: str, end: int) -> int:
    return text.count("\n", 0, end) + 1
