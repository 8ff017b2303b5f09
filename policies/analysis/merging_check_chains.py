"""Every chain of transforms that a policy's rules can make of a model's features: each needs its own measurement."""

from policies.analysis import cases
from policies.decisions import merging_egress_egress
from policies.decisions.merging_egress_egress import OPTIONAL, FieldPlan
from policies.model.policy import Policy, Rule
from policies.model.reasons import Denied
from policies.model.terms import worked_out
from wire.protocol.messages import FieldSpec

Chain = tuple[FieldPlan, ...]


def chains(policy: Policy, features: tuple[FieldSpec, ...]) -> tuple[Chain, ...]:
    """Of what may leave in any context. `search.TooManyError` if the rules tell apart more cases than are looked at."""
    changing = sum(1 << place for place, rule in enumerate(policy.rules) if _changes(rule))
    level = merging_egress_egress.level_of(features)
    found: dict[Chain, None] = {}
    classes = sorted(name for name, leaves in policy.base.data_classes.items() if leaves)
    for data_class in classes or [""]:  # without a class nothing leaves yet, and can be measured all the same
        for bits in sorted(cases.together(policy.index, changing, {"data_class": data_class, "level": level})):
            out = merging_egress_egress.plan(worked_out(policy, bits), features)
            if not isinstance(out, Denied):
                found[tuple(plan for plan in out.fields if plan.spec.name not in OPTIONAL)] = None
    return tuple(found)


def _changes(rule: Rule) -> bool:
    by = rule.narrowing
    return bool(by.transforms or by.drop or by.fields is not None or by.dp)
