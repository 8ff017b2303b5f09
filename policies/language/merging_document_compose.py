"""Several documents as one policy: the meet of their bases and all their rules. Each can only narrow the rest."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Protocol

import msgspec

from policies.model import matching
from policies.model.matching import Clause
from policies.model.narrowing import narrow
from policies.model.policy import HARD_CEILING, FieldRule, Layer, Mode, Part, Policy, PolicyError, Rule, Terms

_LAYERS = list(Layer)


class Compiles(Protocol):
    """A document."""

    def part(self) -> Part: ...


def compose(documents: Iterable[Compiles]) -> Policy:
    """The policy of a device that obeys all of these, at most one of each layer; in which order does not matter.

    PolicyError if there is none, or two of one layer.
    """
    parts = sorted((document.part() for document in documents), key=lambda part: _LAYERS.index(part.layer))
    if not parts:
        raise PolicyError("no document: a policy has at least one")
    for first, second in pairwise(parts):
        if first.layer is second.layer:
            raise PolicyError(
                f"{first.name!r} and {second.name!r} are both of layer {first.layer}: one of each at most"
            )
    return composed(tuple(parts))


def composed(parts: tuple[Part, ...]) -> Policy:
    """Of parts in the order of their layers."""
    digest = hash_of([part.hash for part in parts])
    name, version = "+".join(part.name for part in parts), sum(part.version for part in parts)
    base = _most(digest, name, version, parts[0])
    for part in parts:
        base = narrow(base, part.base)
    rules = tuple(rule for part in parts for rule in _named(part, alone=len(parts) == 1))
    clauses: list[Clause] = [(rule.when, rule.unless) for rule in rules]
    index = matching.index(clauses)
    zones = tuple(each.zone for each in index.attributes if isinstance(each, matching.Scale) and each.zone)
    clears = max((part.clears_notice for part in parts), default=0)
    return Policy(digest, name, version, parts, base, rules, index, zones, clears)


def hash_of(hashes: Sequence[str]) -> str:
    """Of a composition, from its documents' in the order of their layers. Of one document: its own."""
    return hashes[0] if len(hashes) == 1 else sha256("+".join(hashes).encode()).hexdigest()[:32]


def _named(part: Part, *, alone: bool) -> Iterable[Rule]:
    """In company a rule says whose it is."""
    return part.rules if alone else [msgspec.structs.replace(r, name=f"{part.name}/{r.name}") for r in part.rules]


def _most(digest: str, name: str, version: int, first: Part) -> Terms:
    """As wide as the first document lets it be, before that document narrows it."""
    by = first.base
    fields = {rule.name: FieldRule(rule.name, rule.level, ()) for rule in (by.fields or {}).values()}
    return Terms(
        hash=digest, key=digest, name=name, version=version,
        mode=Mode.HUB_FIRST, threshold=1.0, audit_share=1.0, budget_s=by.budget_s or 0.0, max_open=by.max_open or 0,
        ceiling=HARD_CEILING, fields=fields, data_classes=by.data_classes or {},
        hubs=by.hubs or (), regions=by.regions or (), accounts=(), expires=first.expires, expires_day=0,
    )  # fmt: skip
