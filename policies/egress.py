"""Which fields may leave, and how they are changed first. What is not listed stays; a label too high denies all."""

from math import prod

import msgspec

from policies.policy import HARD_CEILING, FieldRule, Policy, TransformSpec
from policies.reasons import FAULTS, Denied, Why
from wire.messages import DType, FieldSpec, Level

_MOST = 3.4028234663852886e38  # the largest number in single precision
LOCAL_ANSWER = "local_answer"
LOCAL_VALUE = "local_value"
CONFIDENCE = "confidence"
# What the device itself derives. Unlisted, these stay behind and the rest may go; a feature of the model is needed
# by the hub, so an unlisted one denies the whole question.
OPTIONAL = frozenset({LOCAL_ANSWER, LOCAL_VALUE, CONFIDENCE})

# How these travel and how they are labelled, on both sides of the link. A regressor answers with a value.
DERIVED = (
    FieldSpec(LOCAL_ANSWER, DType.INT32, (1,), -1, 2**31 - 1, Level.P2, "answer"),
    FieldSpec(CONFIDENCE, DType.FP32, (1,), 0.0, 1.0, Level.P1, "confidence"),
    FieldSpec(LOCAL_VALUE, DType.FP32, (1,), -_MOST, _MOST, Level.P2, "answer"),
)


_ITEM_BYTES = {
    DType.FP32: 4,
    DType.FP16: 2,
    DType.INT64: 8,
    DType.INT32: 4,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.BOOL: 1,
}


def derived(*, regressor: bool) -> tuple[FieldSpec, ...]:
    """Those of `DERIVED` that a model of this kind gives rise to."""
    absent = LOCAL_ANSWER if regressor else LOCAL_VALUE
    return tuple(spec for spec in DERIVED if spec.name != absent)


class FieldPlan(msgspec.Struct, frozen=True):
    spec: FieldSpec
    transforms: tuple[TransformSpec, ...]


class Egress(msgspec.Struct, frozen=True):
    """What may leave. `rule` names it for the ledger; `fixed_size`: every sample must have one size on the link."""

    fields: tuple[FieldPlan, ...]
    rule: str
    level: Level
    fixed_size: bool


def decide(policy: Policy, schema: tuple[FieldSpec, ...], data_class: str) -> Egress | Denied:
    """The fields of `schema` that a sample of `data_class` may send."""
    try:
        if policy.data_classes.get(data_class) is not True:
            return Denied(Why.DENIED_DATA_CLASS, f"data class {data_class[:64]!r} may not leave")
        return plan(policy, schema)
    except FAULTS as error:
        return Denied(Why.DENIED_POLICY_ERROR, f"egress: {type(error).__name__}")


def plan(policy: Policy, schema: tuple[FieldSpec, ...]) -> Egress | Denied:
    """As `decide` for a data class that may leave. Raises one of FAULTS on a damaged policy or schema."""
    plans: list[FieldPlan] = []
    level = Level.P0
    for spec in schema:
        rule = policy.fields.get(spec.name)
        if rule is None and spec.name in OPTIONAL:
            continue
        denied = _denied(spec, rule, policy.ceiling)
        if denied or rule is None:
            return denied or Denied(Why.DENIED_UNLISTED_FIELD)
        plans.append(FieldPlan(spec, rule.transforms))
        level = max(level, spec.level)
    if not plans:
        return Denied(Why.DENIED_UNLISTED_FIELD, "no field of the model is listed in egress.field")
    if len({each.spec.name for each in plans}) != len(plans):
        return Denied(Why.DENIED_POLICY_ERROR, "the model's schema names a field twice")
    return Egress(tuple(plans), f"{policy.name}@{policy.version}", level, level >= Level.P2)


def raw_bytes(spec: FieldSpec) -> int:
    """Size of the field's elements uncoded: the most that any codec may need for it."""
    return prod(spec.shape) * _ITEM_BYTES[spec.dtype]


def _denied(spec: FieldSpec, rule: FieldRule | None, ceiling: Level) -> Denied | None:
    if rule is None:
        return Denied(Why.DENIED_UNLISTED_FIELD, f"field {spec.name!r} is not listed in egress.field")
    if type(spec.level) is not Level:
        return Denied(Why.DENIED_LABEL, f"field {spec.name!r} has no label, which counts as P4")
    if type(spec.dtype) is not DType or any(type(side) is not int or side <= 0 for side in spec.shape):
        return Denied(Why.DENIED_UNLISTED_FIELD, f"field {spec.name!r} has no element type or no fixed shape")
    if type(rule.level) is not Level or type(ceiling) is not Level or type(rule.transforms) is not tuple:
        raise TypeError
    allowed = min(rule.level, ceiling, HARD_CEILING)
    if not spec.level <= allowed:
        return Denied(Why.DENIED_LABEL, f"field {spec.name!r} is {spec.level.name}, at most P{int(allowed)} may leave")
    return None
