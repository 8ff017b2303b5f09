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
from policies.model.policy import HARD_CEILING_LEVEL, PRIVATE_FROM_LEVEL, FieldRule, Terms, TransformSpec
from policies.model.reasons import EVALUATION_ERRORS, DecisionReason, Denied
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

_MOST = 3.4028234663852886e38  # the largest number in single precision
LOCAL_ANSWER_FIELD = "local_answer"
LOCAL_VALUE_FIELD = "local_value"
CONFIDENCE_FIELD = "confidence"
# What the device itself derives. Unlisted, these stay behind and the rest may go; a feature of the model is needed
# by the hub, so an unlisted one denies the whole question.
OPTIONAL_FIELDS = frozenset({LOCAL_ANSWER_FIELD, LOCAL_VALUE_FIELD, CONFIDENCE_FIELD})

# Sums over many samples, in the reports of a rollout: listed like any field, and what cannot be changed stays here.
QUALITY_FIELD = "quality"
SIGNALS_FIELD = "signals"

# Answers and corrections that the device hands to another machine of its site; labelled as the answer itself.
ANSWERS_FIELD = "answers"
ANSWERS_LEVEL = SensitivityLevel.P2

# How these travel and how they are labelled, on both sides of the link. A regressor answers with a value.
DERIVED_FIELDS = (
    FieldSpec(LOCAL_ANSWER_FIELD, TensorDType.INT32, (1,), -1, 2**31 - 1, SensitivityLevel.P2, "answer"),
    FieldSpec(CONFIDENCE_FIELD, TensorDType.FP32, (1,), 0.0, 1.0, SensitivityLevel.P1, "confidence"),
    FieldSpec(LOCAL_VALUE_FIELD, TensorDType.FP32, (1,), -_MOST, _MOST, SensitivityLevel.P2, "answer"),
)


_ITEM_BYTES = {
    TensorDType.FP32: 4,
    TensorDType.FP16: 2,
    TensorDType.INT64: 8,
    TensorDType.INT32: 4,
    TensorDType.INT8: 1,
    TensorDType.UINT8: 1,
    TensorDType.BOOL: 1,
}


def list_derived_fields(*, regressor: bool) -> tuple[FieldSpec, ...]:
    """Fields of `DERIVED_FIELDS` that a model of this kind has.

    They are the label (classifier) or value (regressor), and confidence.
    """
    absent = LOCAL_ANSWER_FIELD if regressor else LOCAL_VALUE_FIELD
    return tuple(spec for spec in DERIVED_FIELDS if spec.name != absent)


class FieldPlan(msgspec.Struct, frozen=True):
    """One field that leaves, and the transforms it goes through, in this order."""

    spec: FieldSpec
    transforms: tuple[TransformSpec, ...]


class EgressPlan(msgspec.Struct, frozen=True):
    """Plan of what may leave.

    `rule` names it for the ledger; `fixed_size`: every sample must have one size on the link. `releases`: noised
    fields, each charged to the privacy accounts; 0 where no noise is asked for.
    """

    fields: tuple[FieldPlan, ...]
    rule: str
    level: SensitivityLevel
    fixed_size: bool
    releases: int = 0


def decide_egress(terms: Terms, schema: tuple[FieldSpec, ...], data_class: str) -> EgressPlan | Denied:
    """Fields of `schema` that a sample of `data_class` may send, or a denial.

    Denied if the class may not leave, a model feature is not listed or labelled too high, no field is left, or a field
    of P2 and above leaves without a stated purpose. Any failure denies.
    """
    try:
        if terms.data_classes.get(data_class) is not True:
            return Denied(DecisionReason.DENIED_DATA_CLASS, f"data class {data_class[:64]!r} may not leave")
        return plan_egress(terms, schema)
    except EVALUATION_ERRORS as error:
        return Denied(DecisionReason.DENIED_POLICY_ERROR, f"egress: {type(error).__name__}")


def plan_egress(terms: Terms, schema: tuple[FieldSpec, ...]) -> EgressPlan | Denied:
    """As `decide_egress`, for a data class that may leave. EVALUATION_ERRORS: damaged terms or schema."""
    if len({spec.name for spec in schema}) != len(schema):
        return Denied(DecisionReason.DENIED_POLICY_ERROR, "the model's schema names a field twice")
    plans: list[FieldPlan] = []
    for spec in schema:
        found = _plan_field(terms, spec)
        if isinstance(found, FieldPlan):
            plans.append(found)
        elif spec.name not in OPTIONAL_FIELDS or found.why is not DecisionReason.DENIED_UNLISTED_FIELD:
            return found
    if not plans:
        return Denied(DecisionReason.DENIED_UNLISTED_FIELD, "no field of the model is listed in egress.field")
    level = max(each.spec.level for each in plans)
    if level >= PRIVATE_FROM_LEVEL and not (terms.retention and terms.retention.purpose):
        return Denied(
            DecisionReason.DENIED_PURPOSE, f"no purpose is stated, and {level.name} needs one: retention.purpose"
        )
    return EgressPlan(tuple(plans), terms.rule, level, level >= PRIVATE_FROM_LEVEL, len(plans) if terms.dp else 0)


def may_report(terms: Terms, name: str) -> bool:
    """Whether the rollout report `QUALITY_FIELD` or `SIGNALS_FIELD` may leave.

    It must be listed, P1 allowed, and neither transforms nor noise asked for, which cannot be applied to it. False on
    any failure.
    """
    try:
        rule = terms.fields.get(name)
        if rule is None or rule.transforms or terms.dp is not None:
            return False
        return min(rule.level, terms.ceiling, HARD_CEILING_LEVEL) >= SensitivityLevel.P1
    except EVALUATION_ERRORS:
        return False


def decide_output(terms: Terms, data_class: str, day: int) -> Denied | None:
    """Whether an answer to a sample of `data_class` may be handed to another machine that is no hub; None: it may.

    The class may leave, `ANSWERS_FIELD` is listed at P2 or above with neither transforms nor noise asked for, which
    cannot be applied to it, a purpose is stated, no rule denies, and the policy has not expired on `day` (days since
    1970, UTC). The escalation mode says nothing here: it is about hubs. Any failure denies.
    """
    try:
        if not (type(terms.expires_day) is int and day <= terms.expires_day):
            return Denied(DecisionReason.DENIED_POLICY_EXPIRED, f"the policy expired on {terms.expires}")
        if terms.denied_by != "":
            return Denied(DecisionReason.DENIED_RULE, f"rule {terms.denied_by!r} lets nothing leave")
        if terms.data_classes.get(data_class) is not True:
            return Denied(DecisionReason.DENIED_DATA_CLASS, f"data class {data_class[:64]!r} may not leave")
        return _deny_answers(terms)
    except EVALUATION_ERRORS as error:
        return Denied(DecisionReason.DENIED_POLICY_ERROR, f"output: {type(error).__name__}")


def _deny_answers(terms: Terms) -> Denied | None:
    """Denial of `ANSWERS_FIELD` by its rule, its label or for want of a purpose; None if it may leave."""
    rule = terms.fields.get(ANSWERS_FIELD)
    if rule is None or rule.transforms or terms.dp is not None:
        return Denied(DecisionReason.DENIED_UNLISTED_FIELD, f"{ANSWERS_FIELD!r} is not listed, or is to be changed")
    if type(rule.level) is not SensitivityLevel or type(terms.ceiling) is not SensitivityLevel:
        raise TypeError
    if min(rule.level, terms.ceiling, HARD_CEILING_LEVEL) < ANSWERS_LEVEL:
        return Denied(DecisionReason.DENIED_LABEL, f"field {ANSWERS_FIELD!r} is {ANSWERS_LEVEL.name}")
    if not (terms.retention and terms.retention.purpose):
        return Denied(DecisionReason.DENIED_PURPOSE, "no purpose is stated: retention.purpose")
    return None


def find_highest_level(schema: tuple[FieldSpec, ...]) -> SensitivityLevel:
    """Highest label among a model's features, for `DecisionContext.level`.

    It is P4 without a feature or with a missing label.
    """
    levels = [spec.level for spec in schema if spec.name not in OPTIONAL_FIELDS]
    return max(levels) if levels and all(type(level) is SensitivityLevel for level in levels) else SensitivityLevel.P4


def count_raw_bytes(spec: FieldSpec) -> int:
    """Size of a field's uncoded elements in bytes: the most that any codec may need for it."""
    return prod(spec.shape) * _ITEM_BYTES[spec.dtype]


def _plan_field(terms: Terms, spec: FieldSpec) -> FieldPlan | Denied:
    """Plan of one field, with noise appended where the terms ask for it."""
    rule = terms.fields.get(spec.name)
    denied = _deny_field(spec, rule, terms.ceiling)
    if denied or rule is None:
        return denied or _deny_unlisted(spec, "is not listed in egress.field")
    if terms.dp is None:
        return FieldPlan(spec, rule.transforms)
    noise = None if spec.name == LOCAL_ANSWER_FIELD else differential_privacy.build_noise_steps(terms.dp, spec.dtype)
    if noise is None:
        return _deny_unlisted(spec, "cannot be noised, and the policy lets only noised fields leave")
    return FieldPlan(spec, rule.transforms + noise)


def _deny_field(spec: FieldSpec, rule: FieldRule | None, ceiling: SensitivityLevel) -> Denied | None:
    """Denial of a field by its rule and label; None if it may leave."""
    if rule is None:
        return _deny_unlisted(spec, "is not listed in egress.field")
    if type(spec.level) is not SensitivityLevel:
        return Denied(DecisionReason.DENIED_LABEL, f"field {spec.name!r} has no label, which counts as P4")
    if type(spec.dtype) is not TensorDType or any(type(side) is not int or side <= 0 for side in spec.shape):
        return Denied(
            DecisionReason.DENIED_UNLISTED_FIELD, f"field {spec.name!r} has no element type or no fixed shape"
        )
    if (
        type(rule.level) is not SensitivityLevel
        or type(ceiling) is not SensitivityLevel
        or type(rule.transforms) is not tuple
    ):
        raise TypeError
    allowed = min(rule.level, ceiling, HARD_CEILING_LEVEL)
    if spec.level <= allowed:
        return None
    # it stays as if it were not listed, else a rule that drops it would let the rest leave
    if spec.name in OPTIONAL_FIELDS:
        return _deny_unlisted(spec, f"is {spec.level.name}, at most P{int(allowed)} may leave")
    return Denied(
        DecisionReason.DENIED_LABEL, f"field {spec.name!r} is {spec.level.name}, at most P{int(allowed)} may leave"
    )


def _deny_unlisted(spec: FieldSpec, words: str) -> Denied:
    """Denial of a field that stays; `words` completes the sentence."""
    return Denied(DecisionReason.DENIED_UNLISTED_FIELD, f"field {spec.name!r} {words}")


BLOT_BYTE = b"*"
ALWAYS_REDACTED = ("email", "phone", "iban", "card", "ip", "url", "number")  # applied to every text that leaves

REDACTION_PATTERNS: dict[str, re.Pattern[bytes]] = {
    "email": re.compile(rb"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,190}\.[A-Za-z]{2,24}"),
    "url": re.compile(rb"(?:https?://|www\.)[^\s]{1,500}", re.IGNORECASE),
    "iban": re.compile(rb"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"),
    "card": re.compile(rb"\b[0-9](?:[ -]?[0-9]){12,18}\b"),
    "ip": re.compile(
        rb"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b"
        rb"|(?:\b(?=[0-9A-Fa-f])|(?<![\w:])(?=::))(?:[0-9A-Fa-f]{0,4}:){2,8}"  # "::" stands for groups of zeros
        rb"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4})(?:%[0-9A-Za-z]{1,15})?"
    ),
    "phone": re.compile(rb"\+?[0-9](?:[ ()/.-]{0,2}[0-9]){6,14}"),
    "date": re.compile(rb"\b[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}\b"),
    "number": re.compile(rb"[0-9]{4,40}"),
    "name": re.compile(rb"\b(?:Mr|Mrs|Ms|Dr|Prof|Herr|Frau)\.? [A-Z][^\s,.;]{1,40}(?: [A-Z][^\s,.;]{1,40}){0,2}"),
}


_SPLIT_CHARACTER = re.compile(rb"(?<=\*)[\x80-\xbf]{1,3}")  # the rest of one whose beginning was replaced


def redact_text(text: bytes, names: Sequence[str]) -> bytes:
    """Replace what the named patterns and those of `ALWAYS_REDACTED` find in `text` (UTF-8) by asterisks.

    They run in the order of `REDACTION_PATTERNS`; each sees what those before it have left. A character whose first
    bytes were found goes as a whole, so that UTF-8 stays UTF-8. Raises KeyError for an unknown name.
    """
    wanted = {name: REDACTION_PATTERNS[name] for name in (*names, *ALWAYS_REDACTED)}
    for name, pattern in REDACTION_PATTERNS.items():
        if name in wanted:
            text = _blot_matches(pattern, text)
    return _blot_matches(_SPLIT_CHARACTER, text)


def _blot_matches(pattern: re.Pattern[bytes], text: bytes) -> bytes:
    """Replace what a pattern finds by as many asterisks, in one copy: `re.sub` takes an object for each piece."""
    blotted = bytearray(text)
    for found in pattern.finditer(text):
        blotted[found.start() : found.end()] = BLOT_BYTE * (found.end() - found.start())
    return bytes(blotted)
