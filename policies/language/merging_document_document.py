"""The policy language: TOML, closed and total. A key we do not know, or a value that cannot be meant, is an error.

One document is a base, the most it ever allows, and rules that can only narrow it for a case.
"""

import json
import tomllib
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from policies.language.merging_document_compose import compose
from policies.language.merging_schema_grammar import Budget, Egress, Escalation, Keeping, Leakage, Locality, Private
from policies.language.merging_schema_rules import RuleTable
from policies.language.merging_values_complaint import line, one_line, words
from policies.language.merging_values_keys import LARGEST, Closed, Count, Day, LayerName, Name, once, short
from policies.model.merging_context_days import day_of, iso_of
from policies.model.policy import PRIVATE_FROM, Mode, Narrowing, Part, Policy, PolicyError, TransformKind

__all__ = ["Document", "Mode", "Policy", "PolicyError", "parse"]

MAX_CHARS = 256 * 1024
VALID_DAYS = 90  # a document that does not say when it expires
_KINDS = frozenset(kind.value for kind in TransformKind)


class Document(Closed):
    """A whole document: the policy of one layer."""

    format: Literal[2] = Field(alias="schema")  # of the language, not of the document
    name: Name
    layer: LayerName = Field(default="site", validate_default=True)
    version: Annotated[int, Field(ge=1, le=LARGEST)]  # grows with every edit: a device never goes back
    issued: Day
    expires: Day | None = None  # last day (UTC) on which anything may leave; narrower: earlier; issued + 90 days
    clears_notice: Count = 0  # notices of deny-all up to this counter are over
    escalation: Escalation
    egress: Egress
    locality: Locality
    budget: Budget
    privacy: Leakage | None = None  # left out = measured is enough
    dp: Private | None = None  # left out = no noise
    retention: Keeping | None = None
    rule: list[RuleTable] = Field(default_factory=list)

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        once("rule", [each.name for each in self.rule])
        if self.last_day < self.issued:
            raise ValueError(f"expires {self.expires} is before issued {self.issued}")
        if self.retention is None and any(each.level >= PRIVATE_FROM for each in self.egress.field):
            raise ValueError(f"retention is missing: what may leave at {PRIVATE_FROM.name} or above needs a purpose")
        return self

    @property
    def last_day(self) -> str:
        """On which anything may leave."""
        return self.expires or iso_of(day_of(self.issued) + VALID_DAYS)

    def canonical(self) -> bytes:
        """What the hash is taken of: the values alone, so that comments and layout change nothing."""
        values = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        values["expires"] = self.last_day
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    def compile(self) -> Policy:
        """The policy of a device that obeys this document alone."""
        return compose((self,))

    def part(self) -> Part:
        """What it adds to a composition."""
        return Part(
            self.layer, self.name, self.version, sha256(self.canonical()).hexdigest()[:32], self.issued, self.last_day,
            self._base(), tuple(each.compile(self.name) for each in self.rule), self.clears_notice,
        )  # fmt: skip

    def _base(self) -> Narrowing:
        ask, out = self.escalation, self.egress
        return Narrowing(
            mode=ask.mode, threshold=ask.threshold, audit_share=ask.audit_share, budget_s=ask.budget_s,
            max_open=self.budget.max_open, ceiling=out.ceiling,
            fields={each.name: each.compile() for each in out.field}, data_classes=dict(out.data_class),
            hubs=tuple(self.locality.hubs), regions=tuple(self.locality.regions), accounts=self.budget.compile(),
            expires=self.last_day,
            privacy=() if self.privacy is None else (self.privacy.compile(),),
            dp=None if self.dp is None else self.dp.compile(),
            retention=None if self.retention is None else self.retention.compile(),
        )  # fmt: skip


def parse(text: str) -> Document:
    """The document of a TOML text. PolicyError, one line with the key's path, for anything that is not one."""
    if len(text) > MAX_CHARS:
        raise PolicyError(f"{len(text)} characters, a policy has at most {MAX_CHARS}")
    try:
        return Document.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise PolicyError(_first_of(error)) from None
    except (ValueError, RecursionError) as error:  # tomllib's own error is a ValueError
        raise PolicyError(f"not TOML: {one_line(str(error))}") from None


def _first_of(error: ValidationError) -> str:
    errors = error.errors(include_url=False)
    return line(_path(errors[0]["loc"]), _words(errors[0]), len(errors) - 1)


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
    context = error.get("ctx", {})
    if error["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        return f"kind must be one of {', '.join(sorted(_KINDS))}, not {short(context.get('tag'))}"
    return words(error, _PATTERNS.get(str(context.get("pattern")), _NAME))


_NAME = "is no name: 1 to 64 of letters, digits, '_', '.' and '-', the first a letter or digit"
_PATTERNS = {
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": "is no time of day: write 22:00",
    r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$": "is no time zone: write Europe/Berlin",
}
