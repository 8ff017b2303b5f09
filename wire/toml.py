"""TOML of bounded cost: a document is measured before the standard library's parser sees it. Pure.

Rule: a key of many parts takes that parser time by the square of their number, and one of 100,000 hours; so the points
of a line are counted first. A key never goes over the end of a line.
"""

import tomllib
from typing import Any

MAX_TOML_CHARS = 1 << 20
MAX_LINE_POINTS = 1000  # also those of numbers: a list of as many fractions is written on several lines


def parse_toml(text: str, max_chars: int = MAX_TOML_CHARS) -> dict[str, Any]:
    """Parse a TOML text of at most `max_chars` characters.

    ValueError, one line, for anything that is none, is longer, has a line of more than `MAX_LINE_POINTS` points, or is
    nested too deeply.
    """
    text = text.removeprefix("\ufeff")  # a byte order mark
    if len(text) > max_chars:
        raise ValueError(f"{len(text)} characters, at most {max_chars} are read")
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MAX_LINE_POINTS:
            raise ValueError(f"line {number} has more than {MAX_LINE_POINTS} points")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
