"""Permit decision: whether a question may leave, to which hubs, with which fields and charges. Pure.

It joins routing, egress, leakage and budget. Rule: any failure is a denial.
"""

from collections.abc import Mapping

import msgspec

from policies.decisions import budget, leakage, routing
from policies.decisions import egress as egress_policy
from policies.decisions.budget import AccountCharge, BudgetSpend, MessageCost
from policies.decisions.egress import EgressPlan, FieldPlan
from policies.decisions.leakage import LeakageFinding
from policies.decisions.routing import HubSite
from policies.model.policy import ASKING_MODES, EscalationMode, Terms
from policies.model.reasons import EVALUATION_ERRORS, DecisionReason, Denied
from policies.model.terms import NO_POLICY
from wire.protocol.messages import Escalation, FieldSpec, Tensor

_NOT_ASKING = {
    EscalationMode.LOCAL_ONLY: Denied(DecisionReason.LOCAL_ONLY, "escalation.mode is local_only"),
    EscalationMode.DISABLED: Denied(DecisionReason.DISABLED, "escalation.mode is disabled"),
}


class Permit(msgspec.Struct, frozen=True):
    """Permission to send: to these hubs (first is preferred), these fields, at these charges.

    `spend`: the totals with the charges; `terms`: the key of the terms it was decided by.
    """

    policy: str
    targets: tuple[HubSite, ...]
    egress: EgressPlan
    spend: BudgetSpend
    charges: tuple[AccountCharge, ...] = ()
    terms: str = ""


class PermitPrice(msgspec.Struct, frozen=True, gc=False):
    """What a transmission would cost.

    `spend`: charged so far; `day`: days since 1970, UTC. Of `cost` the price and the noised fields are filled in: the
    dearest hub that is allowed, what egress noises.
    """

    spend: BudgetSpend
    cost: MessageCost
    day: int


class PermitScope(msgspec.Struct, frozen=True):
    """What a permit says whatever it costs: which hubs may be asked, the dearest of them, which fields may leave."""

    targets: tuple[HubSite, ...]
    dearest: int
    egress: EgressPlan


def decide_permit(  # noqa: PLR0917
    terms: Terms | Denied | None,
    schema: tuple[FieldSpec, ...],
    hubs: tuple[HubSite, ...],
    data_class: str,
    price: PermitPrice,
    cleared: LeakageFinding,
) -> Permit | Denied:
    """Decide a permit: only if hub, fields, leakage (`leakage.assess_leakage`) and budget all allow it.

    The first denial is returned, in the order terms, hubs, fields, leakage, budget. Any failure is a denial. `schema`:
    the model's fields; `hubs`: those the device knows; `cleared`: result of `leakage.assess_leakage` for this model.
    """
    if terms is None or isinstance(terms, Denied):
        return terms or NO_POLICY
    return charge_permit(terms, decide_scope(terms, schema, hubs, data_class, cleared), price)


def decide_scope(
    terms: Terms,
    schema: tuple[FieldSpec, ...],
    hubs: tuple[HubSite, ...],
    data_class: str,
    cleared: LeakageFinding,
) -> PermitScope | Denied:
    """The part of a permit that is the same for every question while these hold; arguments as of `decide_permit`."""
    try:
        allowed = routing.filter_hubs(terms, hubs)
        if isinstance(allowed, Denied):
            return allowed
        out = egress_policy.decide_egress(terms, schema, data_class)
        if isinstance(out, Denied):
            return out
        leaks = leakage.decide_leakage(terms, cleared)
        return leaks or PermitScope(allowed.targets, max(hub.price for hub in allowed.targets), out)
    except EVALUATION_ERRORS as error:
        return _deny_failed(error)


def charge_permit(terms: Terms, scope: PermitScope | Denied, price: PermitPrice) -> Permit | Denied:
    """The permit for one question of this price, in a scope that `decide_scope` found for the same terms.

    Denied for terms that are not in force, then as the scope is, then by the budget.
    """
    try:
        denied = expired_or_denied(terms, price.day)
        if denied:
            return denied
        if isinstance(scope, Denied):
            return scope
        cost = msgspec.structs.replace(price.cost, price=scope.dearest, releases=scope.egress.releases)
        charged = budget.charge_accounts(terms, price.spend, cost, price.day)
        if isinstance(charged, Denied):
            return charged
        return Permit(terms.hash, scope.targets, scope.egress, charged.spend, charged.charges, terms.key)
    except EVALUATION_ERRORS as error:
        return _deny_failed(error)


def _deny_failed(error: Exception) -> Denied:
    return Denied(DecisionReason.DENIED_POLICY_ERROR, f"judge: {type(error).__name__}")


def expired_or_denied(terms: Terms | None, day: int) -> Denied | None:
    """Denial of terms that are not in force; None if they are.

    Terms are not in force if they are missing, expired on `day`, of a mode that never asks, or denied by a rule.
    """
    if terms is None:
        return NO_POLICY
    if terms.mode not in ASKING_MODES:
        return _NOT_ASKING[terms.mode]
    if not (type(terms.expires_day) is int and day <= terms.expires_day):
        return Denied(DecisionReason.DENIED_POLICY_EXPIRED, f"the policy expired on {terms.expires}")
    if terms.denied_by != "":
        return Denied(DecisionReason.DENIED_RULE, f"rule {terms.denied_by!r} lets nothing leave")
    return None


def permits_at_least(now: EgressPlan, before: EgressPlan) -> bool:
    """Whether all that was prepared under `before` may leave under `now`, transformed in exactly the same way.

    A device asks it before it sends a question that was prepared under an earlier policy.
    """
    return set(map(_plan_key, before.fields)) <= set(map(_plan_key, now.fields))


def _plan_key(plan: FieldPlan) -> tuple[FieldSpec, bytes]:
    """Comparable form of a field's plan: its schema and its encoded transforms."""
    return plan.spec, msgspec.msgpack.encode(plan.transforms)


def recheck_question(  # noqa: PLR0917
    terms: Terms | Denied | None,
    schema: tuple[FieldSpec, ...],
    question: Escalation,
    site: HubSite,
    day: int,
    cleared: LeakageFinding,
) -> Denied | None:
    """Recheck a received question on the hub, before anything is stored; None = it is allowed here.

    `terms`: those that the question names; `site`: this hub. Denied if the question is meant for another region, this
    hub is not allowed, a field may not leave, or leakage is not cleared.
    """
    try:
        if terms is None or isinstance(terms, Denied):
            return terms or NO_POLICY
        denied = expired_or_denied(terms, day)
        if denied:
            return denied
        if question.region != site.region:
            return Denied(
                DecisionReason.DENIED_REGION, f"meant for region {question.region[:64]!r}, this is {site.region!r}"
            )
        allowed = routing.filter_hubs(terms, (site,))
        if isinstance(allowed, Denied):
            return allowed
        return _deny_fields(terms, schema, question.fields) or leakage.decide_leakage(terms, cleared)
    except EVALUATION_ERRORS as error:
        return Denied(DecisionReason.DENIED_POLICY_ERROR, f"recheck: {type(error).__name__}")


def _deny_fields(terms: Terms, schema: tuple[FieldSpec, ...], fields: Mapping[str, Tensor]) -> Denied | None:
    """Denial if a received field may not leave under these terms, or is larger than the schema says."""
    out = egress_policy.plan_egress(terms, schema)
    if isinstance(out, Denied):
        return out
    specs = {each.spec.name: each.spec for each in out.fields}
    for name, tensor in fields.items():
        spec = specs.get(name)
        if spec is None:
            return Denied(DecisionReason.DENIED_UNLISTED_FIELD, f"field {name[:64]!r} may not leave under this policy")
        if not _fits_schema(spec, tensor):
            return Denied(
                DecisionReason.DENIED_UNLISTED_FIELD, f"field {name!r} carries more than the schema's type and shape"
            )
    return None


def _fits_schema(spec: FieldSpec, tensor: Tensor) -> bool:
    """Whether a tensor carries no more than the schema says.

    A derived field must match in type, shape and size. A feature travels in its codec's form and is checked where it is
    decoded; here only its size is limited.
    """
    if spec.name in egress_policy.OPTIONAL_FIELDS:
        return (tensor.dtype, tensor.shape) == (spec.dtype, spec.shape) and len(
            tensor.data
        ) == egress_policy.count_raw_bytes(spec)
    return len(tensor.data) <= egress_policy.count_raw_bytes(spec)
