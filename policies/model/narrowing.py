"""Narrowing of terms: the meet of terms with what a rule or another layer takes away. Pure.

Rule: `narrow_terms(terms, by)` lets nothing leave that `terms` does not, whatever `by` says; the order of several
changes nothing but the order of transforms, which is that of the layers and their rules.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from policies.model import differential_privacy
from policies.model.context import date_to_day
from policies.model.policy import (
    BudgetAccount,
    EscalationMode,
    FieldRule,
    Narrowing,
    NoiseTerms,
    NoveltyAction,
    RetentionTerms,
    Terms,
    TransformKind,
    TransformSpec,
)
from wire.protocol.messages import SensitivityLevel

_MODES = list(EscalationMode)
_NOVELTY_ACTIONS = list(NoveltyAction)
# Done twice in a row these change nothing more.
_IDEMPOTENT = frozenset({
    TransformKind.CLIP, TransformKind.CLIP_NORM, TransformKind.QUANTISE, TransformKind.TOP_K, TransformKind.REDACT,
})  # fmt: skip


def narrow_terms(terms: Terms, by: Narrowing) -> Terms:
    """Terms under which all of `terms` and all of `by` hold.

    Numbers: the smaller; lists: what both name; accounts: all, the smallest limit per key; transforms: those of `terms`
    first, then those of `by`; the earlier expiry; leakage limits of both. A denial of either side stays.
    """
    dp = _narrow_noise(terms, by)
    expires = terms.expires if by.expires is None else min(terms.expires, by.expires)
    return msgspec.structs.replace(
        terms,
        mode=terms.mode if by.mode is None else pick_narrower_mode(terms.mode, by.mode),
        threshold=_smaller_value(terms.threshold, by.threshold),
        audit_share=_smaller_value(terms.audit_share, by.audit_share),
        budget_s=_smaller_value(terms.budget_s, by.budget_s),
        max_open=_smaller_value(terms.max_open, by.max_open),
        ceiling=_smaller_value(terms.ceiling, by.ceiling),
        fields=_narrow_fields(terms, by),
        data_classes=_narrow_classes(terms, by),
        hubs=_intersect_names(terms.hubs, by.hubs),
        regions=_intersect_names(terms.regions, by.regions),
        accounts=meet_accounts(
            (*terms.accounts, *by.accounts, *(differential_privacy.build_privacy_accounts(dp) if dp else ()))
        ),
        expires=expires,
        expires_day=date_to_day(expires),
        privacy=tuple(dict.fromkeys((*terms.privacy, *by.privacy))),
        dp=dp,
        retention=_narrow_retention(terms.retention, by.retention),
        novel=terms.novel if by.novel is None else pick_narrower_novelty(terms.novel, by.novel),
        denied_by=terms.denied_by or by.denied_by,
    )


def pick_narrower_mode(first: EscalationMode, second: EscalationMode) -> EscalationMode:
    """The one of two modes that asks less, in the order of `EscalationMode`."""
    return max(first, second, key=_MODES.index)


def pick_narrower_novelty(first: NoveltyAction, second: NoveltyAction) -> NoveltyAction:
    """The one of two actions on novel samples that asks less, in the order of `NoveltyAction`."""
    return max(first, second, key=_NOVELTY_ACTIONS.index)


_FEW_NAMES = 8
NarrowedValue = TypeVar("NarrowedValue", int, float, SensitivityLevel)


def _smaller_value(held: NarrowedValue, said: NarrowedValue | None) -> NarrowedValue:
    """The smaller of two values; None does not narrow."""
    return held if said is None or held <= said else said


def _intersect_names(held: tuple[str, ...], said: tuple[str, ...] | None) -> tuple[str, ...]:
    """Names that both lists have, in the order of the first; None does not narrow."""
    if said is None:
        return held
    among = said if len(said) <= _FEW_NAMES else frozenset(said)  # a set of two takes longer to make than to search
    return tuple(name for name in held if name in among)


def _narrow_classes(terms: Terms, by: Narrowing) -> dict[str, bool]:
    """Data classes that both sides list; one leaves only if both let it."""
    if by.data_classes is None:
        return terms.data_classes
    said = by.data_classes
    return {name: leaves and said[name] for name, leaves in terms.data_classes.items() if name in said}


def _narrow_fields(terms: Terms, by: Narrowing) -> dict[str, FieldRule]:
    """Fields that both sides list, with the lower level and the transforms of both."""
    said, steps = by.fields, by.transforms or {}
    if said is None and not steps and not by.drop:
        return terms.fields
    left = {}
    for name, held in terms.fields.items():
        rule = held if said is None else _narrow_field(held, said.get(name))
        more = steps.get(name, ())
        if rule is None or name in by.drop or any(step.kind is TransformKind.DROP for step in more):
            continue
        left[name] = FieldRule(name, rule.level, chain_transforms(rule.transforms, more))
    return left


def _narrow_field(held: FieldRule, said: FieldRule | None) -> FieldRule | None:
    """A field's rule with the lower level and the transforms of both; None if the other side does not list it."""
    if said is None:
        return None
    return FieldRule(held.name, min(held.level, said.level), chain_transforms(held.transforms, said.transforms))


def chain_transforms(first: Iterable[TransformSpec], then: Iterable[TransformSpec]) -> tuple[TransformSpec, ...]:
    """Concatenate transforms; an idempotent one that would run twice in a row with the same parameters runs once."""
    steps = list(first)
    for step in then:
        if not (steps and steps[-1] == step and step.kind in _IDEMPOTENT):
            steps.append(step)
    return tuple(steps)


def meet_accounts(accounts: Iterable[BudgetAccount]) -> tuple[BudgetAccount, ...]:
    """Merge accounts of the same key, with the smallest limit.

    What one names per subject and another for the whole device holds for the device.
    """
    met: dict[str, BudgetAccount] = {}
    for each in accounts:
        held = met.get(each.key, each)
        met[each.key] = msgspec.structs.replace(
            each,
            limit=min(held.limit, each.limit),
            each=min(held.each, each.each),
            subject=held.subject and each.subject,
        )
    return tuple(met[key] for key in sorted(met))


def _narrow_retention(held: RetentionTerms | None, said: RetentionTerms | None) -> RetentionTerms | None:
    """The shorter time; every stated purpose; the subject field that the outer layer names."""
    if held is None or said is None:
        return held or said
    purposes = dict.fromkeys((*held.purpose.split("|"), *said.purpose.split("|")))
    subject = held.subject_field or said.subject_field
    return RetentionTerms("|".join(purposes), min(held.keep_days, said.keep_days), subject)


def _narrow_noise(terms: Terms, by: Narrowing) -> NoiseTerms | None:
    """Noise terms of both sides, the stricter in every number; those of one side if the other has none."""
    if terms.dp is None or by.dp is None:
        return terms.dp or by.dp
    return differential_privacy.merge_noise_terms(terms.dp, by.dp)
