"""Policy documents: TOML, closed and total, parsed and composed to one policy. Pure.

One document is a base, the most it ever allows, and rules that can only narrow it for a case. Several documents, one
per layer, make one policy: the meet of their bases and all their rules.

Rule: an unknown key or an impossible value is an error of one line that names the key.
"""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Literal, Protocol, Self

import msgspec
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
from policies.model import matching
from policies.model.context import date_to_day, day_to_date
from policies.model.matching import RuleClause
from policies.model.narrowing import narrow_terms
from policies.model.policy import (
    HARD_CEILING_LEVEL,
    PRIVATE_FROM_LEVEL,
    CompiledLayer,
    EscalationMode,
    FieldRule,
    Narrowing,
    NoveltyAction,
    Policy,
    PolicyError,
    PolicyLayer,
    PolicyRule,
    Terms,
    TransformKind,
)
from wire.toml import parse_toml

_LAYERS = list(PolicyLayer)


class CompilableDocument(Protocol):
    """Interface of a document that compiles to a layer of a policy."""

    def compile_layer(self) -> CompiledLayer:
        """The compiled document."""
        ...


def compose_policy(documents: Iterable[CompilableDocument]) -> Policy:
    """Compose the policy of a device that obeys all of these documents; their order does not matter.

    Raises PolicyError if there is none, or two of one layer.
    """
    parts = sorted((document.compile_layer() for document in documents), key=lambda part: _LAYERS.index(part.layer))
    if not parts:
        raise PolicyError("no document: a policy has at least one")
    for first, second in pairwise(parts):
        if first.layer is second.layer:
            raise PolicyError(
                f"{first.name!r} and {second.name!r} are both of layer {first.layer}: one of each at most"
            )
    return compose_layers(tuple(parts))


def compose_layers(parts: tuple[CompiledLayer, ...]) -> Policy:
    """Compose compiled documents that stand in the order of their layers.

    Names are joined by "+", versions added; the hash covers the hashes of all layers. The index is built over all
    rules.
    """
    digest = hash_documents([part.hash for part in parts])
    name, version = "+".join(part.name for part in parts), sum(part.version for part in parts)
    base = _widest_terms(digest, name, version, parts[0])
    for part in parts:
        base = narrow_terms(base, part.base)
    rules = tuple(rule for part in parts for rule in _qualify_rules(part, alone=len(parts) == 1))
    clauses: list[RuleClause] = [(rule.when, rule.unless) for rule in rules]
    index = matching.build_index(clauses)
    zones = tuple(each.zone for each in index.attributes if isinstance(each, matching.RangeAttribute) and each.zone)
    clears = max((part.clears_notice for part in parts), default=0)
    return Policy(digest, name, version, parts, base, rules, index, zones, clears)


def hash_documents(hashes: Sequence[str]) -> str:
    """Hash of a composition, from its documents' in the order of their layers. Of one document: its own."""
    return hashes[0] if len(hashes) == 1 else sha256("+".join(hashes).encode()).hexdigest()[:32]


def _qualify_rules(part: CompiledLayer, *, alone: bool) -> Iterable[PolicyRule]:
    """Rules of one document; in a composition of several, their names are qualified by the document's."""
    return part.rules if alone else [msgspec.structs.replace(r, name=f"{part.name}/{r.name}") for r in part.rules]


def _widest_terms(digest: str, name: str, version: int, first: CompiledLayer) -> Terms:
    """Terms as wide as the first document lets them be, before that document narrows them."""
    by = first.base
    fields = {rule.name: FieldRule(rule.name, rule.level, ()) for rule in (by.fields or {}).values()}
    return Terms(
        hash=digest, key=digest, name=name, version=version,
        mode=EscalationMode.HUB_FIRST, threshold=1.0, audit_share=1.0, budget_s=by.budget_s or 0.0,
        max_open=by.max_open or 0,
        ceiling=HARD_CEILING_LEVEL, fields=fields, data_classes=by.data_classes or {},
        hubs=by.hubs or (), regions=by.regions or (), accounts=(), expires=first.expires, expires_day=0,
        novel=NoveltyAction.ASK,
    )  # fmt: skip


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
