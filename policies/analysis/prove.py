"""Proof that no field above a label can ever leave for a region, over every context, or a counter-example. Pure.

Rule: the verdict on a case is that of the functions a device calls (`egress`, `routing`, `permit.in_force`); `cases`
leaves out only cases in which less may leave. Leakage measurements and budgets are not counted in a policy's favour:
the claim holds even where all codes are measured and all accounts are full. A device's hubs are not known here: any hub
that is listed may stand in any region that is.
"""

from collections.abc import Iterator
from itertools import product

import msgspec

from policies.analysis import cases as search
from policies.decisions import egress, permit, routing
from policies.decisions.egress import DERIVED, OPTIONAL
from policies.decisions.routing import HubSite
from policies.model.context import Context
from policies.model.matching import Bits
from policies.model.policy import HARD_CEILING, Mode, Policy, Rule, Terms
from policies.model.reasons import Denied
from policies.model.terms import worked_out
from wire.protocol.messages import DType, FieldSpec, Level


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The claim to prove: no field above `level` can leave for `region`; "" = for any region."""

    level: Level
    region: str = ""


class Counter(msgspec.Struct, frozen=True):
    """Counter-example: a case in which a field of `level` may leave after all."""

    context: Context
    field: str
    level: Level
    hub: str
    region: str
    mode: Mode
    rules: tuple[str, ...]


class Proof(msgspec.Struct, frozen=True):
    """Result of a proof.

    `cases`: how many were decided; together they stand for every context. `counter` None = the claim holds.
    """

    cases: int
    counter: Counter | None


class Sample(msgspec.Struct, frozen=True):
    """A schema in which one field is examined, with the fewest others that could matter."""

    schema: tuple[FieldSpec, ...]
    field: FieldSpec


def prove(policy: Policy, claim: Claim) -> Proof:
    """Prove or refute a claim, exactly.

    Raises `cases.TooManyError` if the rules distinguish more cases than are enumerated.
    """
    decided = 0
    for sample, data_class, case in _cases(policy, claim):
        decided += 1
        found = worked_out(policy, search.matched(policy.index, case))
        to = leaves(found, sample, data_class, claim.region)
        if to is not None:
            context = case.context(data_class, egress.level_of(sample.schema))
            return Proof(decided, _counter(policy, sample, to, context))
    return Proof(decided, None)


def _cases(policy: Policy, claim: Claim) -> Iterator[tuple[Sample, str, search.Case]]:
    """Cases in which most may leave, for every field above the claim's label and every class that is let out."""
    goal = search.Goal(few=_narrowing(policy))
    classes = sorted(name for name, lets in policy.base.data_classes.items() if lets)
    above = [sample for sample in samples(policy) if sample.field.level > claim.level]
    for sample, data_class in product(above, classes):
        fixed = {"data_class": data_class, "level": egress.level_of(sample.schema)}
        for case in search.cases(policy.index, goal, fixed):
            yield sample, data_class, case


def samples(policy: Policy) -> Iterator[Sample]:
    """Samples of every field that is listed, with every label that it may have and still leave.

    A feature alone may do all that it may do in company: others can only raise the label of the whole. What the device
    itself derives goes alone or with any one feature.
    """
    features = [
        FieldSpec(name, DType.FP32, (1,), 0.0, 1.0, level, "")
        for name in sorted(policy.base.fields)
        for level in Level
        if name not in OPTIONAL and level <= min(policy.base.ceiling, HARD_CEILING)
    ]
    yield from (Sample((spec,), spec) for spec in features)
    for derived in DERIVED:
        if derived.name in policy.base.fields:
            yield Sample((derived,), derived)
            yield from (Sample((spec, derived), derived) for spec in features)


def leaves(found: Terms, sample: Sample, data_class: str, region: str) -> HubSite | None:
    """Hub to which the field may leave under these terms, for `region` ("" = any); None if it may not."""
    if permit.in_force(found, found.expires_day):
        return None
    sites = tuple(HubSite(hub, at) for at in found.regions for hub in found.hubs if region in ("", at))
    allowed = routing.decide(found, sites)
    out = egress.decide(found, sample.schema, data_class)
    if isinstance(allowed, Denied) or isinstance(out, Denied):
        return None
    return allowed.targets[0] if sample.field in {plan.spec for plan in out.fields} else None


def _narrowing(policy: Policy) -> Bits:
    """Rules that could keep a field from leaving for a region; others change how much, when or at what price."""
    return sum(1 << place for place, rule in enumerate(policy.rules) if _keeps(rule))


def _keeps(rule: Rule) -> bool:
    by = rule.narrowing
    said = (by.mode, by.ceiling, by.fields, by.hubs, by.regions, by.dp)
    return bool(by.denied_by or by.drop or by.transforms) or any(each is not None for each in said)


def _counter(policy: Policy, sample: Sample, to: HubSite, context: Context) -> Counter:
    bits, _ = policy.index.match(context)
    found = worked_out(policy, bits)
    return Counter(context, sample.field.name, sample.field.level, to.name, to.region, found.mode, found.rules)
