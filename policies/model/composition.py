"""Composition of compiled documents, one per layer, to the one policy that a device obeys. Pure.

Rule: the policy is the meet of the layers' bases and all their rules, whatever the order in which they are given.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import pairwise

import msgspec

from policies.model import matching
from policies.model.matching import RuleClause
from policies.model.narrowing import narrow_terms
from policies.model.policy import (
    HARD_CEILING_LEVEL,
    CompiledLayer,
    EscalationMode,
    FieldRule,
    NoveltyAction,
    Policy,
    PolicyError,
    PolicyLayer,
    PolicyRule,
    Terms,
)

_LAYERS = list(PolicyLayer)


def order_layers(parts: Iterable[CompiledLayer]) -> tuple[CompiledLayer, ...]:
    """Compiled documents in the order of their layers. PolicyError if there is none, or two of one layer."""
    ordered = sorted(parts, key=lambda part: _LAYERS.index(part.layer))
    if not ordered:
        raise PolicyError("no document: a policy has at least one")
    for first, second in pairwise(ordered):
        if first.layer is second.layer:
            raise PolicyError(
                f"{first.name!r} and {second.name!r} are both of layer {first.layer}: one of each at most"
            )
    return tuple(ordered)


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
