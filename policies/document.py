"""The policy language: TOML, closed and total. A key we do not know, or a value that cannot be meant, is an error.

Which direction is narrower stands beside every key: a narrower document lets less leave, to fewer, for a shorter time.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from policies.policy import (
    HARD_CEILING,
    FieldRule,
    Mode,
    Policy,
    PolicyError,
    Privacy,
    TransformKind,
    TransformSpec,
    day_of,
)
from wire.messages import Level

__all__ = ["Document", "Mode", "Policy", "PolicyError", "parse"]

MAX_CHARS = 256 * 1024
_KINDS = frozenset(kind.value for kind in TransformKind)
_LARGEST = 2**53  # above it a float no longer holds every whole number


def _hint(word: str, known: Iterable[str]) -> str:
    """The nearest of the known words, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def _level(value: object) -> Level:
    if isinstance(value, str) and value in Level.__members__:
        return Level[value]
    raise ValueError(f"{_short(value)} is not one of {', '.join(Level.__members__)}")


def _mode(value: object) -> Mode:
    if isinstance(value, str) and value in set(Mode):
        return Mode(value)
    raise ValueError(f"{_short(value)} is no mode; {_hint(str(value), [mode.value for mode in Mode])}")


def _iso_day(value: object) -> str:
    """A TOML date as YYYY-MM-DD. One with a time of day is refused: the day is what counts."""
    if hasattr(value, "toordinal") and not hasattr(value, "hour"):
        return str(value)
    raise ValueError(f"{_short(value)} is not a date; write it without quotes: expires = 2026-12-31")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
LevelName = Annotated[Level, BeforeValidator(_level), PlainSerializer(lambda level: level.name)]
ModeName = Annotated[Mode, BeforeValidator(_mode)]
Day = Annotated[str, BeforeValidator(_iso_day)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: object) -> object:
        """Before anything else, so that a misspelt key is not reported as a missing one."""
        if isinstance(data, dict):
            known = [info.alias or name for name, info in cls.model_fields.items()]
            for key in data:
                if key not in known:
                    raise ValueError(f"unknown key {_short(key)}; {_hint(str(key), known)}")
        return data


class Clip(_Closed):
    """Values below `low` become `low`, above `high` become `high`. Narrower: a smaller interval."""

    kind: Literal["clip"]
    low: Number
    high: Number

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        return self

    def compile(self) -> TransformSpec:
        return TransformSpec(TransformKind.CLIP, low=self.low, high=self.high)


class Quantise(_Closed):
    """Values are rounded to whole multiples of `step`. Narrower: a larger step."""

    kind: Literal["quantise"]
    step: Annotated[float, Field(gt=0, le=_LARGEST)]

    def compile(self) -> TransformSpec:
        return TransformSpec(TransformKind.QUANTISE, step=self.step)


Transform = Annotated[Clip | Quantise, Field(discriminator="kind")]


class Escalation(_Closed):
    """When the hub is asked."""

    mode: ModeName  # narrower: hub_first > wait > answer_now > local_only > disabled
    threshold: Share  # confidence from which the local answer stands; narrower: lower (fewer questions)
    audit_share: Share  # share of all answers that is asked at random; narrower: lower
    budget_s: Annotated[float, Field(ge=0, le=7 * 86_400)]  # how long a caller may wait; narrower: lower

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        if self.mode in {Mode.WAIT, Mode.HUB_FIRST} and self.budget_s == 0:
            raise ValueError(f"mode {self.mode} waits for the hub, but budget_s is 0; use answer_now or more seconds")
        return self


class EgressField(_Closed):
    """One value that may leave. Narrower: fewer of these."""

    name: Name
    level: LevelName  # highest label accepted for it; narrower: lower
    transforms: list[Transform] = []  # applied in this order; narrower: more


class Egress(_Closed):
    """What may leave."""

    ceiling: LevelName  # highest label of anything that leaves; narrower: lower
    field: list[EgressField] = []  # narrower: fewer
    data_class: dict[
        Name, bool
    ] = {}  # class of sample = may it leave? Not listed = false. Narrower: false, or unlisted

    @field_validator("ceiling")
    @classmethod
    def _below_the_hard_one(cls, ceiling: Level) -> Level:
        if ceiling > HARD_CEILING:
            raise ValueError(f"{ceiling.name} never leaves a device; at most {HARD_CEILING.name} can be allowed")
        return ceiling

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        _once("field", [each.name for each in self.field])
        for each in self.field:
            if each.level > self.ceiling:
                raise ValueError(
                    f"field {each.name!r} accepts {each.level.name}, above the ceiling {self.ceiling.name}"
                )
        return self


class Locality(_Closed):
    """Where it may be answered."""

    hubs: list[Name]  # in order of preference; narrower: fewer
    regions: list[Name]  # narrower: fewer

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        _once("hubs", self.hubs)
        _once("regions", self.regions)
        return self


class Budget(_Closed):
    """How much may leave."""

    bytes_per_day: Count  # whole messages, as they are on the link; narrower: lower
    max_open: Count = 1000  # questions in the outbox without an outcome; narrower: lower


class Leakage(_Closed):
    """How much the codes may give away, by the measurements in the bundle (upper end of their 95 % interval)."""

    max_leakage: Share | None = None  # success of the reconstruction attack; narrower: lower
    metric: Literal["ssim", "explained_variance", "token_f1"] | None = None  # which figure; left out = any of them
    max_attribute_advantage: Share | None = None  # of guessing a sensitive column, above chance; narrower: lower

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        if self.metric is not None and self.max_leakage is None:
            raise ValueError(f"metric {self.metric!r} limits nothing without max_leakage")
        return self

    def compile(self) -> Privacy:
        return Privacy(self.max_leakage, self.metric or "", self.max_attribute_advantage)


class Document(_Closed):
    """A whole policy."""

    format: Literal[1] = Field(alias="schema")  # of the language, not of the document
    name: Name
    version: Annotated[int, Field(ge=1, le=_LARGEST)]  # grows with every edit: a device never goes back
    expires: Day | None = None  # last day (UTC) on which anything may leave; narrower: earlier
    escalation: Escalation
    egress: Egress
    locality: Locality
    budget: Budget
    privacy: Leakage | None = None  # left out = measured is enough

    def canonical(self) -> bytes:
        """What the hash is taken of: the values alone, so that comments and layout change nothing."""
        values = self.model_dump(mode="json", by_alias=True)
        if self.privacy is None:
            del values["privacy"]  # so that a document of before this key keeps its hash
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    def compile(self) -> Policy:
        ask, out = self.escalation, self.egress
        return Policy(
            hash=sha256(self.canonical()).hexdigest()[:32],
            name=self.name,
            version=self.version,
            mode=ask.mode,
            threshold=ask.threshold,
            audit_share=ask.audit_share,
            budget_s=ask.budget_s,
            max_open=self.budget.max_open,
            ceiling=out.ceiling,
            fields={each.name: _rule(each) for each in out.field},
            data_classes=dict(out.data_class),
            hubs=tuple(self.locality.hubs),
            regions=tuple(self.locality.regions),
            bytes_per_day=self.budget.bytes_per_day,
            expires=self.expires,
            expires_day=None if self.expires is None else day_of(self.expires),
            privacy=Privacy() if self.privacy is None else self.privacy.compile(),
        )


def _rule(field: EgressField) -> FieldRule:
    return FieldRule(field.name, field.level, tuple(each.compile() for each in field.transforms))


def _once(key: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{key} names {name!r} twice")


def parse(text: str) -> Document:
    """The document of a TOML text. PolicyError, one line with the key's path, for anything that is not one."""
    if len(text) > MAX_CHARS:
        raise PolicyError(f"{len(text)} characters, a policy has at most {MAX_CHARS}")
    try:
        return Document.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise PolicyError(_first_of(error)) from None
    except (ValueError, RecursionError) as error:  # tomllib's own error is a ValueError
        raise PolicyError(f"not TOML: {_one_line(str(error))}") from None


def _first_of(error: ValidationError) -> str:
    errors = error.errors(include_url=False)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    first = errors[0]
    path = _path(first["loc"])
    return _one_line(f"{path}{': ' if path else ''}{_words(first)}{more}")


def _path(loc: tuple[int | str, ...]) -> str:
    """A place in the document as a person writes it: egress.field[0].transforms[1].low."""
    path = ""
    for previous, part in pairwise(("", *loc)):
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]" and not (isinstance(previous, int) and part in _KINDS):
            path += f".{part}" if path else str(part)
    return path


def _words(error: ErrorDetails) -> str:
    context, given = error.get("ctx", {}), _short(error["input"])
    match error["type"]:
        case "missing":
            return "is missing"
        case "value_error":
            return str(context["error"])
        case "union_tag_invalid" | "union_tag_not_found":
            return f"kind must be one of {', '.join(sorted(_KINDS))}, not {_short(context.get('tag'))}"
        case "string_pattern_mismatch":
            return f"{given} is no name: 1 to 64 of letters, digits, '_', '.' and '-', the first a letter or digit"
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"must be a table, not {given}"
        case _:
            return f"{error['msg'].replace('Input should be', 'must be')}, not {given}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]
