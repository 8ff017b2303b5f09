"""Value types of the policy language, its closed tables, and one-line messages for pydantic's errors. Pure.

Rule: an unknown key is an error, and its message names the nearest known one.
"""

import difflib
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StringConstraints, model_validator
from pydantic_core import ErrorDetails

from policies.model.policy import HARD_CEILING_LEVEL, EscalationMode, NoveltyAction, PolicyLayer, PrivacyUnit
from wire.protocol.messages import SensitivityLevel

LARGEST_WHOLE = 2**53  # above it a float no longer holds every whole number


def suggest_known(word: str, known: Iterable[str]) -> str:
    """Suggest the nearest of the known words, or list them all."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def shorten_value(value: object) -> str:
    """Shorten a value to 40 characters for an error message."""
    try:
        text = repr(value)
    except RecursionError:  # keys with a thousand dots are tables in tables
        return "a value of too many levels"
    return text if len(text) <= 40 else f"{text[:37]}..."


def require_unique(key: str, names: Iterable[object]) -> None:
    """Require that no name stands twice in the list at `key`; what is no text is left to be refused as such.

    Raises ValueError.
    """
    seen: set[object] = set()
    for name in filter(lambda each: isinstance(each, str), names):
        if name in seen:
            raise ValueError(f"{key} names {shorten_value(name)} twice")
        seen.add(name)


def _parse_level(value: object) -> SensitivityLevel:
    """Label by its name, P0 to P4."""
    if isinstance(value, str) and value in SensitivityLevel.__members__:
        return SensitivityLevel[value]
    raise ValueError(f"{shorten_value(value)} is not one of {', '.join(SensitivityLevel.__members__)}")


def _require_below_ceiling(level: SensitivityLevel) -> SensitivityLevel:
    """Refuse a ceiling above `HARD_CEILING_LEVEL`: such data never leaves."""
    if level > HARD_CEILING_LEVEL:
        raise ValueError(f"{level.name} never leaves a device; at most {HARD_CEILING_LEVEL.name} can be allowed")
    return level


def _parse_mode(value: object) -> EscalationMode:
    """Mode by its value; the message names the nearest known one."""
    if isinstance(value, str) and value in set(EscalationMode):
        return EscalationMode(value)
    raise ValueError(
        f"{shorten_value(value)} is no mode; {suggest_known(str(value), [mode.value for mode in EscalationMode])}"
    )


def _parse_layer(value: object) -> PolicyLayer:
    """Layer by its value; the message names the nearest known one."""
    if isinstance(value, str) and value in set(PolicyLayer):
        return PolicyLayer(value)
    raise ValueError(
        f"{shorten_value(value)} is no layer; {suggest_known(str(value), [layer.value for layer in PolicyLayer])}"
    )


def _parse_unit(value: object) -> PrivacyUnit:
    """Privacy unit by its value; the message names the nearest known one."""
    if isinstance(value, str) and value in set(PrivacyUnit):
        return PrivacyUnit(value)
    raise ValueError(
        f"{shorten_value(value)} is no unit; {suggest_known(str(value), [unit.value for unit in PrivacyUnit])}"
    )


def _parse_novelty_action(value: object) -> NoveltyAction:
    """Action on novel samples by its value; the message names the nearest known one."""
    if isinstance(value, str) and value in set(NoveltyAction):
        return NoveltyAction(value)
    known = [action.value for action in NoveltyAction]
    raise ValueError(f"{shorten_value(value)} is no action on novel samples; {suggest_known(str(value), known)}")


def _parse_date(value: object) -> str:
    """A TOML date as YYYY-MM-DD. One with a time of day is refused: the day is what counts."""
    if hasattr(value, "toordinal") and not hasattr(value, "hour"):
        return str(value)
    raise ValueError(f"{shorten_value(value)} is not a date; write it without quotes: expires = 2026-12-31")


def _require_some(names: list[str]) -> list[str]:
    """Refuse an empty list, or one that names something twice."""
    if not names:
        raise ValueError("names nothing, so that it could never hold; leave the key out")
    require_unique("it", names)
    return names


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Zone = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$", max_length=64)]
PhraseText = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.,-]{0,63}$")]
ClockTime = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=LARGEST_WHOLE)]
Number = Annotated[float, Field(ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_WHOLE)]
Seconds = Annotated[float, Field(ge=0, le=7 * 86_400)]
LevelName = Annotated[SensitivityLevel, BeforeValidator(_parse_level), PlainSerializer(lambda level: level.name)]
CeilingName = Annotated[LevelName, BeforeValidator(lambda value: _require_below_ceiling(_parse_level(value)).name)]
ModeName = Annotated[EscalationMode, BeforeValidator(_parse_mode)]
LayerName = Annotated[PolicyLayer, BeforeValidator(_parse_layer)]
NoveltyName = Annotated[NoveltyAction, BeforeValidator(_parse_novelty_action)]
UnitName = Annotated[PrivacyUnit, BeforeValidator(_parse_unit)]
DateText = Annotated[str, BeforeValidator(_parse_date)]
Names = Annotated[list[Name], BeforeValidator(lambda value: _require_some(value) if isinstance(value, list) else value)]


class ClosedTable(BaseModel):
    """Base class of the tables of a document: strict types, frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: object) -> object:
        """Check for unknown keys before anything else, so that a misspelt key is not reported as a missing one."""
        if isinstance(data, dict):
            known = [info.alias or name for name, info in cls.model_fields.items()]
            for key in data:
                if key not in known:
                    raise ValueError(f"unknown key {shorten_value(key)}; {suggest_known(str(key), known)}")
        return data


_MOST_CHARS = 400


def format_error(path: str, words: str, others: int) -> str:
    """Format an error as one line. `path` "" = the whole file; `others`: how many more things are wrong."""
    return join_lines(f"{path}{': ' if path else ''}{words}{f' (and {others} more)' if others else ''}")


def join_lines(text: str) -> str:
    """Join a text to one line of at most `_MOST_CHARS` characters."""
    return " ".join(text.split())[:_MOST_CHARS]


def describe_error(error: ErrorDetails, misfit: str) -> str:
    """Describe one of pydantic's errors in plain words.

    `misfit`: what is said of a text that does not have the form of its key. The faulty value is quoted, shortened.
    """
    given = shorten_value(error["input"])
    match error["type"]:
        case "missing":
            return "is missing"
        case "value_error":
            return str(error.get("ctx", {})["error"])
        case "string_pattern_mismatch":
            return f"{given} {misfit}"
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"must be a table, not {given}"
        case _:
            return f"{error['msg'].replace('Input should be', 'must be')}, not {given}"
