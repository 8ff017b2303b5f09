"""May this question leave, to whom, and at what price? Locality, egress, leakage, budget in one word; errors deny."""

from collections.abc import Mapping

import msgspec

from policies import budget, egress, leakage, locality
from policies.budget import Spend
from policies.egress import Egress, FieldPlan
from policies.leakage import Cleared
from policies.locality import HubSite
from policies.policy import ASKING, Mode, Policy
from policies.reasons import FAULTS, Denied, Why
from wire.messages import Escalation, FieldSpec, Tensor

_NO_POLICY = Denied(Why.DENIED_POLICY_ERROR, "there is no policy: nothing may leave")
_NOT_ASKING = {
    Mode.LOCAL_ONLY: Denied(Why.LOCAL_ONLY, "escalation.mode is local_only"),
    Mode.DISABLED: Denied(Why.DISABLED, "escalation.mode is disabled"),
}


class Permit(msgspec.Struct, frozen=True):
    """It may leave: to these hubs (first is preferred), these fields, and `spend` is the day's total with it."""

    policy: str
    targets: tuple[HubSite, ...]
    egress: Egress
    spend: Spend


class Price(msgspec.Struct, frozen=True, gc=False):
    """What a transmission would cost. `spend`: charged so far; `day`: days since 1970, UTC.

    `size_bytes`: the whole frame on the link, 0 for a row that was charged before.
    """

    spend: Spend
    size_bytes: int
    day: int


def judge(  # noqa: PLR0911, PLR0917 - a refusal a line
    policy: Policy | None,
    schema: tuple[FieldSpec, ...],
    hubs: tuple[HubSite, ...],
    data_class: str,
    price: Price,
    cleared: Cleared,
) -> Permit | Denied:
    """A permit only if hub, fields, leakage (`leakage.clear`) and budget all allow it. Any failure is a denial."""
    try:
        denied = in_force(policy, price.day)
        if denied or policy is None:
            return denied or _NO_POLICY
        allowed = locality.decide(policy, hubs)
        if isinstance(allowed, Denied):
            return allowed
        out = egress.decide(policy, schema, data_class)
        if isinstance(out, Denied):
            return out
        leaks = leakage.decide(policy, cleared)
        if leaks:
            return leaks
        total = budget.charge(policy, price.spend, price.size_bytes, price.day)
        if isinstance(total, Denied):
            return total
        return Permit(policy.hash, allowed.targets, out, total)
    except FAULTS as error:
        return Denied(Why.DENIED_POLICY_ERROR, f"judge: {type(error).__name__}")


def in_force(policy: Policy | None, day: int) -> Denied | None:
    """None if the policy is there, not expired on `day`, and of a mode that asks at all."""
    if policy is None:
        return _NO_POLICY
    if policy.mode not in ASKING:
        return _NOT_ASKING[policy.mode]
    last = policy.expires_day
    if last is not None and not (type(last) is int and day <= last):
        return Denied(Why.DENIED_POLICY_EXPIRED, f"the policy expired on {policy.expires}")
    return None


def covers(now: Egress, before: Egress) -> bool:
    """True if all that was prepared under `before` may leave under `now`, changed in exactly the same way."""
    return set(map(_key, before.fields)) <= set(map(_key, now.fields))


def _key(plan: FieldPlan) -> tuple[FieldSpec, bytes]:
    return plan.spec, msgspec.msgpack.encode(plan.transforms)


def recheck(  # noqa: PLR0917
    policies: Mapping[str, Policy],
    schema: tuple[FieldSpec, ...],
    question: Escalation,
    site: HubSite,
    day: int,
    cleared: Cleared,
) -> Denied | None:
    """Hub side, before anything is stored: None if the policy that the question names lets these fields come here."""
    try:
        policy = policies.get(question.policy)
        denied = in_force(policy, day)
        if denied or policy is None:
            return denied or _NO_POLICY
        if question.region != site.region:
            return Denied(Why.DENIED_REGION, f"meant for region {question.region[:64]!r}, this is {site.region!r}")
        allowed = locality.decide(policy, (site,))
        if isinstance(allowed, Denied):
            return allowed
        return _fields_denied(policy, schema, question.fields) or leakage.decide(policy, cleared)
    except FAULTS as error:
        return Denied(Why.DENIED_POLICY_ERROR, f"recheck: {type(error).__name__}")


def _fields_denied(policy: Policy, schema: tuple[FieldSpec, ...], fields: Mapping[str, Tensor]) -> Denied | None:
    out = egress.plan(policy, schema)
    if isinstance(out, Denied):
        return out
    specs = {each.spec.name: each.spec for each in out.fields}
    for name, tensor in fields.items():
        spec = specs.get(name)
        if spec is None:
            return Denied(Why.DENIED_UNLISTED_FIELD, f"field {name[:64]!r} may not leave under this policy")
        if not _fits(spec, tensor):
            return Denied(Why.DENIED_UNLISTED_FIELD, f"field {name!r} carries more than the schema's type and shape")
    return None


def _fits(spec: FieldSpec, tensor: Tensor) -> bool:
    """A feature travels in its codec's form, checked where it is decoded; here only that no more came along."""
    if spec.name in egress.OPTIONAL:
        return (tensor.dtype, tensor.shape) == (spec.dtype, spec.shape) and len(tensor.data) == egress.raw_bytes(spec)
    return len(tensor.data) <= egress.raw_bytes(spec)
