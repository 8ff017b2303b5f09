"""Policy linter: contradictions, unreachable rules, rules without effect, and expiry of policy documents. Pure.

Each document is valid by itself already. An `error` cannot be meant; a `warning` will surprise; a `remark` is good to
know.

Also the chains of transforms that a policy's rules can make of a model's features: each needs its own leakage
measurement.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from policies.analysis import cases
from policies.analysis.prove import find_destination, list_samples
from policies.decisions import egress
from policies.decisions.egress import OPTIONAL_FIELDS, FieldPlan
from policies.language.document import PolicyDocument, compose_policy
from policies.model import differential_privacy
from policies.model.context import date_to_day
from policies.model.matching import RuleBits, RuleIndex
from policies.model.narrowing import narrow_terms, pick_narrower_mode, pick_narrower_novelty
from policies.model.policy import Narrowing, Policy, PolicyError, PolicyRule, Terms
from policies.model.reasons import Denied
from policies.model.terms import compute_terms
from wire.protocol.messages import FieldSpec, TensorDType

EXPIRY_NOTICE_DAYS = 14
FindingKind = Literal["error", "warning", "remark"]


class PolicyFinding(msgspec.Struct, frozen=True):
    """One finding. `where`: the document, and the key or rule in it; `words`: one line for a person."""

    kind: FindingKind
    where: str
    words: str


def check_documents(documents: Sequence[PolicyDocument], day: int) -> tuple[PolicyFinding, ...]:
    """Check documents that one device obeys together, on `day` (days since 1970, UTC).

    Each document by itself first, then their composition; two documents of one layer are an error.
    """
    told = [each for document in documents for each in _check_document(document, day)]
    try:
        policy = compose_policy(documents)
    except PolicyError as error:
        return (*told, PolicyFinding("error", "layers", str(error)))
    if len(documents) > 1:
        told += _check_layers(policy)
    return (*told, *_check_unreachable(policy), *_check_noise(policy))


def _check_document(document: PolicyDocument, day: int) -> Iterator[PolicyFinding]:
    """Findings in one document by itself."""
    policy = document.compile()
    name = policy.name
    left = date_to_day(document.last_day) - day
    if left < 0:
        yield PolicyFinding("error", name, f"expired on {document.last_day}: nothing may leave under it")
    elif left <= EXPIRY_NOTICE_DAYS:
        yield PolicyFinding("warning", name, f"expires on {document.last_day}, in {left} days")
    if date_to_day(document.issued) > day:
        yield PolicyFinding("warning", name, f"is issued on {document.issued}, which is yet to come")
    for rule in policy.rules:
        where = f"{name}, rule {rule.name!r}"
        wider = list(_list_widenings(policy.base, rule.narrowing))
        yield from (PolicyFinding("error", where, words) for words in wider)
        yield from (
            PolicyFinding("warning", where, words) for words in _list_unlisted_fields(policy.base, rule.narrowing)
        )
        if not wider and _are_same(narrow_terms(policy.base, rule.narrowing), policy.base):
            yield PolicyFinding("warning", where, "narrows nothing: the base says all of it already")


def _list_widenings(base: Terms, by: Narrowing) -> Iterator[str]:
    """What a rule seems to allow beyond the base, which it cannot.

    Compared: mode, numbers, lists, daily limits, retention and the numbers of the noise.
    """
    yield from _list_wider_actions(base, by)
    for key in ("threshold", "audit_share", "budget_s", "max_open", "ceiling"):
        said, most = getattr(by, key), getattr(base, key)
        if said is not None and said > most:
            yield f"{key} {_name_value(said)} is wider than the base's {_name_value(most)}"
    for key, listed in (("hubs", base.hubs), ("regions", base.regions), ("fields", tuple(base.fields))):
        more = [name for name in getattr(by, key) or () if name not in listed]
        if more:
            yield f"{key} {', '.join(more)}: not in the base's"
    limits = {each.coin: each.limit for each in base.accounts if each.key == each.coin}
    for account in by.accounts:
        if account.limit > limits.get(account.coin, account.limit):
            yield f"{account.coin}_per_day {account.limit} is wider than the base's {limits[account.coin]}"
    if by.retention and base.retention and by.retention.keep_days > base.retention.keep_days:
        yield f"retention.keep_days {by.retention.keep_days} is wider than the base's {base.retention.keep_days}"
    if by.dp and base.dp and differential_privacy.merge_noise_terms(base.dp, by.dp) != by.dp:
        yield "dp promises less than the base's in some number"


def _list_wider_actions(base: Terms, by: Narrowing) -> Iterator[str]:
    """Mode and action on novel samples, where they would ask more than the base's."""
    if by.mode is not None and pick_narrower_mode(base.mode, by.mode) is not by.mode:
        yield f"mode {by.mode} is wider than the base's {base.mode}"
    if by.novel is not None and pick_narrower_novelty(base.novel, by.novel) is not by.novel:
        yield f"novel {by.novel} is wider than the base's {base.novel}"


def _list_unlisted_fields(base: Terms, by: Narrowing) -> Iterator[str]:
    """Fields that a rule drops or transforms and the base does not list."""
    for key, names in (("drop", by.drop), ("transforms", by.transforms or {})):
        unlisted = [name for name in names if name not in base.fields]
        if unlisted:
            yield f"{key} {', '.join(unlisted)}: not a field of the base"


def _name_value(value: object) -> object:
    """Name of a level for a message; other values unchanged."""
    return getattr(value, "name", value)


def _are_same(first: Terms, second: Terms) -> bool:
    """Whether two terms are equal, value by value."""
    return msgspec.json.encode(first) == msgspec.json.encode(second)


def _check_layers(policy: Policy) -> Iterator[PolicyFinding]:
    """Layers that contradict each other and leave nothing to be allowed."""
    parts, base = policy.layers, policy.base
    emptied: dict[str, tuple[Any, list[Any]]] = {
        "locality.hubs": (base.hubs, [part.base.hubs for part in parts]),
        "locality.regions": (base.regions, [part.base.regions for part in parts]),
        "egress.field": (base.fields, [part.base.fields for part in parts]),
        "egress.data_class": (base.data_classes, [part.base.data_classes for part in parts]),
    }
    for key, (left, said) in emptied.items():
        if not left and all(said):
            yield PolicyFinding("error", "layers", f"{key}: each layer names some, but all of them have none in common")


def _check_unreachable(policy: Policy) -> Iterator[PolicyFinding]:
    """Rules that never apply to anything that may leave, and classes of which nothing ever leaves.

    A warning says so if there are too many cases to enumerate.
    """
    classes = [name for name, lets in policy.base.data_classes.items() if lets]
    try:
        alive = {name for name in classes if _anything_leaves(policy, name)}
    except cases.TooManyCasesError as error:
        yield PolicyFinding("warning", policy.name, f"{error}: not looked into for what never leaves")
        alive = set(classes)
    for name in classes:
        if name not in alive:
            yield PolicyFinding(
                "warning", f"data class {name!r}", "is allowed, but in every case something keeps it here"
            )
    for place, rule in enumerate(policy.rules):
        if not _can_apply(policy.index, 1 << place):
            yield PolicyFinding("warning", f"rule {rule.name!r}", "is unreachable: its when and unless leave no case")
        elif not _meets_classes(rule, classes):
            words = f"is unreachable: of data class {', '.join(rule.when.data_class or ())} nothing leaves anyway"
            yield PolicyFinding("warning", f"rule {rule.name!r}", words)


def _can_apply(index: RuleIndex, bit: RuleBits) -> bool:
    """Whether a rule applies in some case of which everything is known."""
    return any(
        cases.match_case(index, case) & bit for case in cases.enumerate_cases(index, cases.CaseGoal(few=0, many=bit))
    )


def _meets_classes(rule: PolicyRule, classes: Sequence[str]) -> bool:
    """Whether the rule's data classes leave at all."""
    return rule.when.data_class is None or any(name in classes for name in rule.when.data_class)


def _anything_leaves(policy: Policy, data_class: str) -> bool:
    """Whether any field of this data class may leave in any case."""
    goal = cases.CaseGoal(few=policy.index.every)
    for sample in list_samples(policy):
        fixed = {"data_class": data_class, "level": egress.find_highest_level(sample.schema)}
        for case in cases.enumerate_cases(policy.index, goal, fixed):
            found = compute_terms(policy, cases.match_case(policy.index, case))
            if find_destination(found, sample, data_class, "") is not None:
                return True
    return False


def _check_noise(policy: Policy) -> Iterator[PolicyFinding]:
    """How many releases the epsilon allows, wherever noise is asked for."""
    asked = [("", policy.base.dp), *((f" of rule {rule.name!r}", rule.narrowing.dp) for rule in policy.rules)]
    for whose, dp in asked:
        if dp is not None:
            whole, audits = (
                differential_privacy.count_releases(dp),
                differential_privacy.count_releases(dp, dp.audit_share),
            )
            words = (
                f"{whole} noised fields may leave in {dp.period_days} days, {audits} of them for audits"
                f" (sigma {dp.sigma:g}, delta {dp.delta:g}, epsilon {dp.epsilon:g}); then nothing more"
            )
            yield PolicyFinding("remark", f"dp{whose}", words)
            if differential_privacy.build_noise_steps(dp, TensorDType.UINT8) is None:
                words = "too little noise for fields of whole numbers, which stay: raise clip_norm or sigma"
                yield PolicyFinding("warning", f"dp{whose}", words)


TransformChain = tuple[FieldPlan, ...]


def list_transform_chains(policy: Policy, features: tuple[FieldSpec, ...]) -> tuple[TransformChain, ...]:
    """Chains of transforms that features may leave with, in any context: each a tuple of field plans.

    Raises `cases.TooManyCasesError` if the rules distinguish more cases than are enumerated.
    """
    changing = sum(1 << place for place, rule in enumerate(policy.rules) if _changes_fields(rule))
    level = egress.find_highest_level(features)
    found: dict[TransformChain, None] = {}
    classes = sorted(name for name, leaves in policy.base.data_classes.items() if leaves)
    for data_class in classes or [""]:  # without a class nothing leaves yet, and can be measured all the same
        for bits in sorted(cases.list_joint_rules(policy.index, changing, {"data_class": data_class, "level": level})):
            out = egress.plan_egress(compute_terms(policy, bits), features)
            if not isinstance(out, Denied):
                found[tuple(plan for plan in out.fields if plan.spec.name not in OPTIONAL_FIELDS)] = None
    return tuple(found)


def _changes_fields(rule: PolicyRule) -> bool:
    """Whether a rule changes which fields leave, or how."""
    by = rule.narrowing
    return bool(by.transforms or by.drop or by.fields is not None or by.dp)
