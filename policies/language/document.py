"""Policy documents: TOML, closed and total, parsed and composed to one policy. Pure.

One document is a base, the most it ever allows, and rules that can only narrow it for a case. Several documents, one
per layer, make one policy: the meet of their bases and all their rules.

Rule: an unknown key or an impossible value is an error of one line that names the key.
"""

import json
from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from policies.language.schema import (
    BudgetSection,
    EgressSection,
    EscalationSection,
    LocalitySection,
    NoiseSection,
    PrivacySection,
    RetentionSection,
    RuleTable,
)
from policies.language.values import (
    LARGEST_WHOLE,
    ClosedTable,
    Count,
    DateText,
    LayerName,
    Name,
    describe_error,
    format_error,
    join_lines,
    require_unique,
    shorten_value,
)
from policies.model.composition import compose_layers, order_layers
from policies.model.context import date_to_day, day_to_date
from policies.model.policy import (
    PRIVATE_FROM_LEVEL,
    CompiledLayer,
    EscalationMode,
    Narrowing,
    Policy,
    PolicyError,
    TransformKind,
)
from wire.toml import parse_toml

__all__ = ["EscalationMode", "Policy", "PolicyDocument", "PolicyError", "parse_policy"]

MAX_POLICY_CHARS = 256 * 1024
VALID_DAYS = 90  # a document that does not say when it expires
_KINDS = frozenset(kind.value for kind in TransformKind)


class PolicyDocument(ClosedTable):
    """A whole policy document: one layer of a device's policy.

    `version` grows with every edit: a device never goes back. `issued`, `expires`: UTC dates.
    """

    format: Literal[2] = Field(alias="schema")  # of the language, not of the document
    name: Name
    layer: LayerName = Field(default="site", validate_default=True)
    version: Annotated[int, Field(ge=1, le=LARGEST_WHOLE)]  # grows with every edit: a device never goes back
    issued: DateText
    expires: DateText | None = None  # last day (UTC) on which anything may leave; narrower: earlier; issued + 90 days
    clears_notice: Count = 0  # notices of deny-all up to this counter are over
    escalation: EscalationSection
    egress: EgressSection
    locality: LocalitySection
    budget: BudgetSection
    privacy: PrivacySection | None = None  # left out = measured is enough
    dp: NoiseSection | None = None  # left out = no noise
    retention: RetentionSection | None = None
    rule: list[RuleTable] = Field(default_factory=list)

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """Checks across sections: unique rule names, dates in order, a purpose for what is private."""
        require_unique("rule", [each.name for each in self.rule])
        if self.last_day < self.issued:
            raise ValueError(f"expires {self.expires} is before issued {self.issued}")
        if self.retention is None and any(each.level >= PRIVATE_FROM_LEVEL for each in self.egress.field):
            raise ValueError(
                f"retention is missing: what may leave at {PRIVATE_FROM_LEVEL.name} or above needs a purpose"
            )
        return self

    @property
    def last_day(self) -> str:
        """Last date (UTC, YYYY-MM-DD) on which anything may leave: `expires`, or `VALID_DAYS` after `issued`."""
        return self.expires or day_to_date(date_to_day(self.issued) + VALID_DAYS)

    def canonical_json(self) -> bytes:
        """Canonical JSON that the hash is taken of: the values alone, so that comments and layout change nothing."""
        values = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        values["expires"] = self.last_day
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    def compile(self) -> Policy:
        """Policy of a device that obeys this document alone."""
        return compose_policy((self,))

    def compile_layer(self) -> CompiledLayer:
        """Compile the document to a layer; its hash is the first 32 hex digits of SHA-256 over the canonical JSON."""
        return CompiledLayer(
            self.layer, self.name, self.version, sha256(self.canonical_json()).hexdigest()[:32], self.issued,
            self.last_day, self._compile_base(), tuple(each.compile(self.name) for each in self.rule),
            self.clears_notice,
        )  # fmt: skip

    def _compile_base(self) -> Narrowing:
        """Compile the base; every key of the narrowing is set."""
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
            novel=ask.novel,
        )  # fmt: skip


def compose_policy(documents: Iterable[PolicyDocument]) -> Policy:
    """Compose the policy of a device that obeys all of these documents; their order does not matter.

    Raises PolicyError if there is none, or two of one layer.
    """
    return compose_layers(order_layers(document.compile_layer() for document in documents))


def parse_policy(text: str | bytes) -> PolicyDocument:
    """Parse a TOML text, or the bytes of one in UTF-8, to a policy document.

    Raises PolicyError, one line with the key's path, for anything that is not one.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            raise PolicyError("not UTF-8 text") from None
    if len(text) > MAX_POLICY_CHARS:
        raise PolicyError(f"{len(text)} characters, a policy has at most {MAX_POLICY_CHARS}")
    try:
        return PolicyDocument.model_validate(parse_toml(text))
    except ValidationError as error:
        raise PolicyError(_describe_first_error(error)) from None
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"not TOML: {join_lines(str(error))}") from None


def _describe_first_error(error: ValidationError) -> str:
    """The first error as one line, with the number of the others."""
    errors = error.errors(include_url=False)
    return format_error(_format_path(errors[0]["loc"]), _describe_error(errors[0]), len(errors) - 1)


def _format_path(loc: tuple[int | str, ...]) -> str:
    """Path of a place in the document as a person writes it: egress.field[0].transforms[1].low."""
    path = ""
    for previous, part in pairwise(("", *loc)):
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]" and not (isinstance(previous, int) and part in _KINDS):
            path += f".{part}" if path else str(part)
    return path


def _describe_error(error: ErrorDetails) -> str:
    """Describe one error, with the form that its key asks for."""
    context = error.get("ctx", {})
    if error["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        return f"kind must be one of {', '.join(sorted(_KINDS))}, not {shorten_value(context.get('tag'))}"
    return describe_error(error, _PATTERNS.get(str(context.get("pattern")), _NAME))


_NAME = "is no name: 1 to 64 of letters, digits, '_', '.' and '-', the first a letter or digit"
_PATTERNS = {
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": "is no time of day: write 22:00",
    r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$": "is no time zone: write Europe/Berlin",
}
