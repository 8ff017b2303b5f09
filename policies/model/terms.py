"""Terms of a context: the policy's base, narrowed by every rule that applies. Pure.

Computed once per set of rules and remembered in the policy. Rule: an evaluation error is a denial.
"""

from collections.abc import Iterable

import msgspec

from policies.model.context import DecisionContext
from policies.model.matching import RuleBits
from policies.model.narrowing import narrow_terms
from policies.model.policy import Policy, PolicyRule, Terms
from policies.model.reasons import EVALUATION_ERRORS, DecisionReason, Denied

NO_POLICY = Denied(DecisionReason.DENIED_POLICY_ERROR, "there is no policy: nothing may leave")
_MAX_REMEMBERED = 4096  # sets of rules that are remembered; a device meets a handful


def resolve_terms(policy: Policy | None, context: DecisionContext) -> Terms | Denied:
    """Terms that apply in a context, or a denial.

    Unknown attributes count as matching, which narrows, and stand in `Terms.unknown`. Denied without a policy, and for
    a damaged policy or context.
    """
    try:
        if policy is None:
            return NO_POLICY
        key = policy.index.match_rules(context)
        return policy.memo.get(key) or _remember_terms(policy, key)
    except EVALUATION_ERRORS as error:
        return Denied(DecisionReason.DENIED_POLICY_ERROR, f"terms: {error or type(error).__name__}"[:200])


def list_certain_rules(policy: Policy, context: DecisionContext) -> tuple[str, ...]:
    """Names of the rules that apply whatever the unknown attributes of `context` are.

    Raises one of EVALUATION_ERRORS.
    """
    return list_rule_names(policy, policy.index.match_certain_rules(context))


def resolve_terms_for(policy: Policy | None, names: Iterable[str]) -> Terms | Denied:
    """Terms where exactly the rules of these names apply; an unknown name denies."""
    try:
        if policy is None:
            return NO_POLICY
        wanted = set(names)
        bits = sum(1 << place for place, rule in enumerate(policy.rules) if rule.name in wanted)
        if bits.bit_count() != len(wanted):
            return Denied(DecisionReason.DENIED_POLICY_ERROR, "the policy has no rule of a name that was named")
        key = bits, ()
        return policy.memo.get(key) or _remember_terms(policy, key)
    except EVALUATION_ERRORS as error:
        return Denied(DecisionReason.DENIED_POLICY_ERROR, f"terms: {type(error).__name__}")


def list_rule_names(policy: Policy, bits: RuleBits) -> tuple[str, ...]:
    """Names of the rules that stand in `bits`."""
    return tuple(rule.name for rule in list_matched_rules(policy, bits))


def list_matched_rules(policy: Policy, bits: RuleBits) -> list[PolicyRule]:
    """Rules that stand in `bits`, in the policy's order."""
    return [rule for place, rule in enumerate(policy.rules) if bits >> place & 1]


def _remember_terms(policy: Policy, key: tuple[RuleBits, tuple[str, ...]]) -> Terms:
    if len(policy.memo) >= _MAX_REMEMBERED:
        policy.memo.clear()
    found = policy.memo[key] = compute_terms(policy, *key)
    return found


def compute_terms(policy: Policy, bits: RuleBits, unknown: tuple[str, ...] = ()) -> Terms:
    """Compute the meet of the base and of the rules that stand in `bits`.

    `unknown`: the attributes because of which some of them apply, for `Terms.unknown`.
    """
    found = policy.base
    for place, rule in enumerate(policy.rules):
        if bits >> place & 1:
            found = narrow_terms(found, rule.narrowing)
    if not bits:
        return found
    return msgspec.structs.replace(
        found, rules=list_rule_names(policy, bits), unknown=unknown, key=f"{policy.hash}/{bits:x}"
    )
