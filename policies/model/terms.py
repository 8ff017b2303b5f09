"""Terms of a context: the policy's base, narrowed by every rule that applies. Pure.

Computed once per set of rules and remembered in the policy. Rule: an evaluation error is a denial.
"""

from collections.abc import Iterable

import msgspec

from policies.model.context import Context
from policies.model.matching import Bits
from policies.model.narrowing import narrow
from policies.model.policy import Policy, Rule, Terms
from policies.model.reasons import FAULTS, Denied, Why

NO_POLICY = Denied(Why.DENIED_POLICY_ERROR, "there is no policy: nothing may leave")
_MOST = 4096  # sets of rules that are remembered; a device meets a handful


def terms(policy: Policy | None, context: Context) -> Terms | Denied:
    """Terms that apply in a context, or a denial.

    Unknown attributes count as matching, which narrows, and stand in `Terms.unknown`. Denied without a policy, and for
    a damaged policy or context.
    """
    try:
        if policy is None:
            return NO_POLICY
        key = policy.index.match(context)
        return policy.memo.get(key) or _remembered(policy, key)
    except FAULTS as error:
        return Denied(Why.DENIED_POLICY_ERROR, f"terms: {error or type(error).__name__}"[:200])


def surely(policy: Policy, context: Context) -> tuple[str, ...]:
    """Names of the rules that apply whatever the unknown attributes of `context` are. Raises one of FAULTS."""
    return named(policy, policy.index.surely(context))


def terms_for(policy: Policy | None, names: Iterable[str]) -> Terms | Denied:
    """Terms where exactly the rules of these names apply; an unknown name denies."""
    try:
        if policy is None:
            return NO_POLICY
        wanted = set(names)
        bits = sum(1 << place for place, rule in enumerate(policy.rules) if rule.name in wanted)
        if bits.bit_count() != len(wanted):
            return Denied(Why.DENIED_POLICY_ERROR, "the policy has no rule of a name that was named")
        key = bits, ()
        return policy.memo.get(key) or _remembered(policy, key)
    except FAULTS as error:
        return Denied(Why.DENIED_POLICY_ERROR, f"terms: {type(error).__name__}")


def named(policy: Policy, bits: Bits) -> tuple[str, ...]:
    """Names of the rules that stand in `bits`."""
    return tuple(rule.name for rule in matched(policy, bits))


def matched(policy: Policy, bits: Bits) -> list[Rule]:
    """Rules that stand in `bits`, in the policy's order."""
    return [rule for place, rule in enumerate(policy.rules) if bits >> place & 1]


def _remembered(policy: Policy, key: tuple[Bits, tuple[str, ...]]) -> Terms:
    if len(policy.memo) >= _MOST:
        policy.memo.clear()
    found = policy.memo[key] = worked_out(policy, *key)
    return found


def worked_out(policy: Policy, bits: Bits, unknown: tuple[str, ...] = ()) -> Terms:
    """Compute the meet of the base and of the rules that stand in `bits`.

    `unknown`: the attributes because of which some of them apply, for `Terms.unknown`.
    """
    found = policy.base
    for place, rule in enumerate(policy.rules):
        if bits >> place & 1:
            found = narrow(found, rule.narrowing)
    if not bits:
        return found
    return msgspec.structs.replace(found, rules=named(policy, bits), unknown=unknown, key=f"{policy.hash}/{bits:x}")
