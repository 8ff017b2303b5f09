"""What is wrong with a scenario file, in one line: the key as a person writes it, and what to write instead."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from policies.language.merging_values_complaint import line, words

_PATTERNS = {
    "failover": "is no name of a region",
    "region": "is no name of a region: letters a-z, digits and '-', at most 32",
    "name": "is no name: letters, digits, '_', '.' and '-', at most 64",
}


class ScenarioError(Exception):
    """A scenario that cannot be run: one line that names the key and says what to do."""


def first_of(error: ValidationError) -> str:
    """The first thing wrong, and how many more there are."""
    found = error.errors(include_url=False)
    errors = [each for each in found if not _other_member(each)] or found
    return line(place(errors[0]["loc"]), _words(errors[0]), len(errors) - 1)


def _other_member(error: ErrorDetails) -> bool:
    """Of a key that may be a name or a table: nobody who wrote a table meant a name."""
    return error["type"] == "string_type" and isinstance(error["input"], (dict, list))


def place(loc: tuple[int | str, ...]) -> str:
    """`event[2].share`. What pydantic adds to tell members of a union apart is left out."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part.islower() and part not in {"str", "list", "float", "int", "bool"}:
            path += f".{part}" if path else part
    return path


def _words(error: ErrorDetails) -> str:
    key = next((str(part) for part in reversed(error["loc"]) if not isinstance(part, int)), "")
    return words(error, _PATTERNS.get(key, _PATTERNS["name"]))
