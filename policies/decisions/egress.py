"""Egress decision: which fields may leave a device, and through which transforms; and redaction of text. Pure.

Rule: a field that is not listed stays; a model feature with too high a label denies the whole question.

Rule: redaction is a second net under the label, never the gate. It has a closed list of patterns, each of bounded
length, so that no text takes long; a text keeps its length in bytes.
"""

import re
from collections.abc import Sequence
from math import prod

import msgspec

from policies.model import differential_privacy
from policies.model.policy import HARD_CEILING, PRIVATE_FROM, FieldRule, Terms, TransformSpec
from policies.model.reasons import FAULTS, Denied, Why
from wire.protocol.messages import DType, FieldSpec, Level

_MOST = 3.4028234663852886e38  # the largest number in single precision
LOCAL_ANSWER = "local_answer"
LOCAL_VALUE = "local_value"
CONFIDENCE = "confidence"
# What the device itself derives. Unlisted, these stay behind and the rest may go; a feature of the model is needed
# by the hub, so an unlisted one denies the whole question.
OPTIONAL = frozenset({LOCAL_ANSWER, LOCAL_VALUE, CONFIDENCE})

# Sums over many samples, in the reports of a rollout: listed like any field, and what cannot be changed stays here.
QUALITY = "quality"
SIGNALS = "signals"

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
    """Fields of `DERIVED` that a model of this kind has: label (classifier) or value (regressor), and confidence."""
    absent = LOCAL_ANSWER if regressor else LOCAL_VALUE
    return tuple(spec for spec in DERIVED if spec.name != absent)


class FieldPlan(msgspec.Struct, frozen=True):
    """One field that leaves, and the transforms it goes through, in this order."""

    spec: FieldSpec
    transforms: tuple[TransformSpec, ...]


class Egress(msgspec.Struct, frozen=True):
    """Plan of what may leave.

    `rule` names it for the ledger; `fixed_size`: every sample must have one size on the link. `releases`: noised
    fields, each charged to the privacy accounts; 0 where no noise is asked for.
    """

    fields: tuple[FieldPlan, ...]
    rule: str
    level: Level
    fixed_size: bool
    releases: int = 0


def decide(terms: Terms, schema: tuple[FieldSpec, ...], data_class: str) -> Egress | Denied:
    """Fields of `schema` that a sample of `data_class` may send, or a denial.

    Denied if the class may not leave, a model feature is not listed or labelled too high, no field is left, or a field
    of P2 and above leaves without a stated purpose. Any failure denies.
    """
    try:
        if terms.data_classes.get(data_class) is not True:
            return Denied(Why.DENIED_DATA_CLASS, f"data class {data_class[:64]!r} may not leave")
        return plan(terms, schema)
    except FAULTS as error:
        return Denied(Why.DENIED_POLICY_ERROR, f"egress: {type(error).__name__}")


def plan(terms: Terms, schema: tuple[FieldSpec, ...]) -> Egress | Denied:
    """As `decide`, for a data class that may leave. Raises one of FAULTS on damaged terms or a damaged schema."""
    if len({spec.name for spec in schema}) != len(schema):
        return Denied(Why.DENIED_POLICY_ERROR, "the model's schema names a field twice")
    plans: list[FieldPlan] = []
    for spec in schema:
        found = _plan(terms, spec)
        if isinstance(found, FieldPlan):
            plans.append(found)
        elif spec.name not in OPTIONAL or found.why is not Why.DENIED_UNLISTED_FIELD:
            return found
    if not plans:
        return Denied(Why.DENIED_UNLISTED_FIELD, "no field of the model is listed in egress.field")
    level = max(each.spec.level for each in plans)
    if level >= PRIVATE_FROM and not (terms.retention and terms.retention.purpose):
        return Denied(Why.DENIED_PURPOSE, f"no purpose is stated, and {level.name} needs one: retention.purpose")
    return Egress(tuple(plans), terms.rule, level, level >= PRIVATE_FROM, len(plans) if terms.dp else 0)


def reports(terms: Terms, name: str) -> bool:
    """Whether the rollout report `QUALITY` or `SIGNALS` may leave.

    It must be listed, P1 allowed, and neither transforms nor noise asked for, which cannot be applied to it. False on
    any failure.
    """
    try:
        rule = terms.fields.get(name)
        if rule is None or rule.transforms or terms.dp is not None:
            return False
        return min(rule.level, terms.ceiling, HARD_CEILING) >= Level.P1
    except FAULTS:
        return False


def level_of(schema: tuple[FieldSpec, ...]) -> Level:
    """Highest label among a model's features, for `Context.level`; P4 without a feature or with a missing label."""
    levels = [spec.level for spec in schema if spec.name not in OPTIONAL]
    return max(levels) if levels and all(type(level) is Level for level in levels) else Level.P4


def raw_bytes(spec: FieldSpec) -> int:
    """Size of a field's uncoded elements in bytes: the most that any codec may need for it."""
    return prod(spec.shape) * _ITEM_BYTES[spec.dtype]


def _plan(terms: Terms, spec: FieldSpec) -> FieldPlan | Denied:
    """Plan of one field, with noise appended where the terms ask for it."""
    rule = terms.fields.get(spec.name)
    denied = _denied(spec, rule, terms.ceiling)
    if denied or rule is None:
        return denied or _unlisted(spec, "is not listed in egress.field")
    if terms.dp is None:
        return FieldPlan(spec, rule.transforms)
    noise = None if spec.name == LOCAL_ANSWER else differential_privacy.steps(terms.dp, spec.dtype)
    if noise is None:
        return _unlisted(spec, "cannot be noised, and the policy lets only noised fields leave")
    return FieldPlan(spec, rule.transforms + noise)


def _denied(spec: FieldSpec, rule: FieldRule | None, ceiling: Level) -> Denied | None:
    """Denial of a field by its rule and label; None if it may leave."""
    if rule is None:
        return _unlisted(spec, "is not listed in egress.field")
    if type(spec.level) is not Level:
        return Denied(Why.DENIED_LABEL, f"field {spec.name!r} has no label, which counts as P4")
    if type(spec.dtype) is not DType or any(type(side) is not int or side <= 0 for side in spec.shape):
        return Denied(Why.DENIED_UNLISTED_FIELD, f"field {spec.name!r} has no element type or no fixed shape")
    if type(rule.level) is not Level or type(ceiling) is not Level or type(rule.transforms) is not tuple:
        raise TypeError
    allowed = min(rule.level, ceiling, HARD_CEILING)
    if spec.level <= allowed:
        return None
    if spec.name in OPTIONAL:  # it stays as if it were not listed, else a rule that drops it would let the rest leave
        return _unlisted(spec, f"is {spec.level.name}, at most P{int(allowed)} may leave")
    return Denied(Why.DENIED_LABEL, f"field {spec.name!r} is {spec.level.name}, at most P{int(allowed)} may leave")


def _unlisted(spec: FieldSpec, words: str) -> Denied:
    """Denial of a field that stays; `words` completes the sentence."""
    return Denied(Why.DENIED_UNLISTED_FIELD, f"field {spec.name!r} {words}")


BLOT = b"*"
ALWAYS = ("email", "phone", "iban", "card", "ip", "url", "number")  # applied to every text that leaves

PATTERNS: dict[str, re.Pattern[bytes]] = {
    "email": re.compile(rb"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,190}\.[A-Za-z]{2,24}"),
    "url": re.compile(rb"(?:https?://|www\.)[^\s]{1,500}", re.IGNORECASE),
    "iban": re.compile(rb"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"),
    "card": re.compile(rb"\b[0-9](?:[ -]?[0-9]){12,18}\b"),
    "ip": re.compile(rb"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b|\b(?:[0-9A-Fa-f]{1,4}:){2,7}[0-9A-Fa-f]{0,4}\b"),
    "phone": re.compile(rb"\+?[0-9](?:[ ()/.-]{0,2}[0-9]){6,14}"),
    "date": re.compile(rb"\b[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}\b"),
    "number": re.compile(rb"[0-9]{4,40}"),
    "name": re.compile(rb"\b(?:Mr|Mrs|Ms|Dr|Prof|Herr|Frau)\.? [A-Z][^\s,.;]{1,40}(?: [A-Z][^\s,.;]{1,40}){0,2}"),
}


def redacted(text: bytes, names: Sequence[str]) -> bytes:
    """Replace what the named patterns and those of `ALWAYS` find in `text` (UTF-8) by asterisks.

    They run in the order of `PATTERNS`; each sees what those before it have left. Raises KeyError for an unknown name.
    """
    wanted = {name: PATTERNS[name] for name in (*names, *ALWAYS)}
    for name, pattern in PATTERNS.items():
        if name in wanted:
            text = pattern.sub(_blot, text)
    return text


def _blot(found: re.Match[bytes]) -> bytes:
    return BLOT * len(found[0])
