"""Strict parsing of JSON from callers: no key twice in an object, no number beyond a double.

Two readers that disagree on which of two equal keys counts can be played against each other.
"""

import json
import math
from typing import Any

_MAX_EXACT = 2**53  # of whole numbers that a double holds exactly


def parse_strict_json(text: str | bytes) -> Any:
    """Parse JSON. ValueError for what is no JSON, a key that stands twice and numbers that are no finite double.

    `3.0` is a whole number, as JSON Schema has it. RecursionError if it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_reject_duplicates, parse_float=_read_number)


def _read_number(text: str) -> int | float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number out of range")
    return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT else value


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found
