"""Proof that no field above a label can ever leave for a region, over every context, or a counter-example. Pure.

Rule: the verdict on a case is that of the functions a device calls (`egress`, `routing`, `permit.in_force`);
`cases` leaves out only cases in which less may leave. Leakage measurements and budgets are not counted in a policy's
favour: the claim holds even where all codes are measured and all accounts are full. A device's hubs are not known here:
any hub that is listed may stand in any region that is.
"""

from collections.abc import Iterator
from itertools import product

import msgspec

from policies.analysis import cases as search
from policies.decisions import egress, permit, routing
from policies.decisions.egress import DERIVED_FIELDS, OPTIONAL_FIELDS
from policies.decisions.routing import HubSite
from policies.model.context import DecisionContext
from policies.model.matching import RuleBits
from policies.model.policy import HARD_CEILING_LEVEL, EscalationMode, Policy, PolicyRule, Terms
from policies.model.reasons import Denied
from policies.model.terms import compute_terms
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType


class EgressClaim(msgspec.Struct, frozen=True, gc=False):
    """The claim to prove: no field above `level` can leave for `region`; "" = for any region."""

    level: SensitivityLevel
    region: str = ""


class CounterExample(msgspec.Struct, frozen=True):
    """Counter-example: a case in which a field of `level` may leave after all."""

    context: DecisionContext
    field: str
    level: SensitivityLevel
    hub: str
    region: str
    mode: EscalationMode
    rules: tuple[str, ...]


class EgressProof(msgspec.Struct, frozen=True):
    """Result of a proof.

    `cases`: how many were decided; together they stand for every context. `counter` None = the claim holds.
    """

    cases: int
    counter: CounterExample | None


class ProofSample(msgspec.Struct, frozen=True):
    """A schema in which one field is examined, with the fewest others that could matter."""

    schema: tuple[FieldSpec, ...]
    field: FieldSpec


def prove_claim(policy: Policy, claim: EgressClaim) -> EgressProof:
    """Prove or refute a claim, exactly.

    Raises `cases.TooManyCasesError` if the rules distinguish more cases than are enumerated.
    """
    decided = 0
    for sample, data_class, case in _list_cases(policy, claim):
        decided += 1
        found = compute_terms(policy, search.match_case(policy.index, case))
        to = find_destination(found, sample, data_class, claim.region)
        if to is not None:
            context = case.to_context(data_class, egress.find_highest_level(sample.schema))
            return EgressProof(decided, _build_counter_example(policy, sample, to, context))
    return EgressProof(decided, None)


def _list_cases(policy: Policy, claim: EgressClaim) -> Iterator[tuple[ProofSample, str, search.PolicyCase]]:
    """Cases in which most may leave, for every field above the claim's label and every class that is let out."""
    goal = search.CaseGoal(few=_select_blocking_rules(policy))
    classes = sorted(name for name, lets in policy.base.data_classes.items() if lets)
    above = [sample for sample in list_samples(policy) if sample.field.level > claim.level]
    for sample, data_class in product(above, classes):
        fixed = {"data_class": data_class, "level": egress.find_highest_level(sample.schema)}
        for case in search.enumerate_cases(policy.index, goal, fixed):
            yield sample, data_class, case


def list_samples(policy: Policy) -> Iterator[ProofSample]:
    """Samples of every field that is listed, with every label that it may have and still leave.

    A feature alone may do all that it may do in company: others can only raise the label of the whole. What the device
    itself derives goes alone or with any one feature.
    """
    features = [
        FieldSpec(name, TensorDType.FP32, (1,), 0.0, 1.0, level, "")
        for name in sorted(policy.base.fields)
        for level in SensitivityLevel
        if name not in OPTIONAL_FIELDS and level <= min(policy.base.ceiling, HARD_CEILING_LEVEL)
    ]
    yield from (ProofSample((spec,), spec) for spec in features)
    for derived in DERIVED_FIELDS:
        if derived.name in policy.base.fields:
            yield ProofSample((derived,), derived)
            yield from (ProofSample((spec, derived), derived) for spec in features)


def find_destination(found: Terms, sample: ProofSample, data_class: str, region: str) -> HubSite | None:
    """Hub to which the field may leave under these terms, for `region` ("" = any); None if it may not."""
    if permit.expired_or_denied(found, found.expires_day):
        return None
    sites = tuple(HubSite(hub, at) for at in found.regions for hub in found.hubs if region in ("", at))
    allowed = routing.filter_hubs(found, sites)
    out = egress.decide_egress(found, sample.schema, data_class)
    if isinstance(allowed, Denied) or isinstance(out, Denied):
        return None
    return allowed.targets[0] if sample.field in {plan.spec for plan in out.fields} else None


def _select_blocking_rules(policy: Policy) -> RuleBits:
    """Rules that could keep a field from leaving for a region; others change how much, when or at what price."""
    return sum(1 << place for place, rule in enumerate(policy.rules) if _blocks_egress(rule))


def _blocks_egress(rule: PolicyRule) -> bool:
    by = rule.narrowing
    said = (by.mode, by.ceiling, by.fields, by.hubs, by.regions, by.dp)
    return bool(by.denied_by or by.drop or by.transforms) or any(each is not None for each in said)


def _build_counter_example(
    policy: Policy, sample: ProofSample, to: HubSite, context: DecisionContext
) -> CounterExample:
    bits, _ = policy.index.match_rules(context)
    found = compute_terms(policy, bits)
    return CounterExample(context, sample.field.name, sample.field.level, to.name, to.region, found.mode, found.rules)
