"""Messages as records of named fields, in the order in which docs/wire-format.md has them.

A record is an array: the tag if its kind has one, then its fields. Fields with a default may be absent from the end, in
what an earlier release wrote.
"""

from dataclasses import dataclass
from typing import Any

from tests.second_implementation import msgpack

REQUIRED = object()


@dataclass(frozen=True)
class Record:
    """A message or a part of one: its kind, and its fields by name."""

    kind: str
    fields: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


@dataclass(frozen=True)
class FieldRule:
    """A field of a kind. `type`: as in the tables of the page, e.g. `uint`, `[bytes]`, `?text`, `{text: Tensor}`."""

    name: str
    type: str
    default: Any = REQUIRED


@dataclass(frozen=True)
class RecordRule:
    """A kind of record: its tag, "" for a part of others, and its fields in order."""

    tag: str
    fields: tuple[FieldRule, ...]


def _rule(tag: str, *required: str, **more: tuple[str, Any]) -> RecordRule:
    fields = [FieldRule(*each.split(":", 1)) for each in required]
    fields += [FieldRule(name, type_, default) for name, (type_, default) in more.items()]
    return RecordRule(tag, tuple(fields))


RULES = {
    "FrameHeader": _rule("", "shard:int", "device:text", "epoch:int", "seq:int", "created_ms:int", "key_id:bytes"),
    # parts of messages
    "Tensor": _rule("", "dtype:TensorDType", "shape:[int]", "data:bytes"),
    "ModelRef": _rule("", "name:text", "version:int", "cut:text", "codec:text"),
    "TextUsage": _rule(
        "", "model:text", "prompt_tokens:int", "generated_tokens:int",
        cached_tokens=("int", 0), cut=("bool", False), estimated=("bool", False),
    ),
    "Prediction": _rule(
        "", "label:int", "confidence:float", "scores:[float]", "model:text",
        in_domain=("?bool", None), text=("?text", None), usage=("?TextUsage", None),
    ),
    "AuditAgreement": _rule(
        "", "data_class:text", "share:float",
        **dict.fromkeys(
            ("audited", "agreed", "worse", "better", "told", "told_wrong", "told_worse", "told_better"), ("int", 0)
        ),
    ),
    "AuditQuality": _rule("", cells=("[AuditAgreement]", []), unaudited=("[text]", []), dropped=("int", 0)),
    "ClassSignals": _rule(
        "", "data_class:text",
        answers=("int", 0), escalated=("int", 0), confidence=("float", 0.0), confidence_sq=("float", 0.0),
    ),
    "DeviceSignals": _rule(
        "", inferences=("int", 0), errors=("int", 0), escalated=("int", 0), confidence=("float", 0.0),
        confidence_sq=("float", 0.0), p95_us=("int", 0), rss_bytes=("int", 0), crashes=("int", 0), starts=("int", 0),
        classes=("[ClassSignals]", []),
    ),
    # device to hub
    "Escalation": _rule(
        "q", "id:text", "model:ModelRef", "policy:text", "region:text", "fields:{text: Tensor}", "budget_s:float",
        "audit:bool", "trace:text", rule=("text", ""), data_class=("text", ""), subject=("bytes", b""),
        keep_days=("int", 7), priority=("int", 0), layers=("[text]", []),
    ),
    "StatusRequest": _rule("a", "epoch:int", "seqs:[int]"),
    "HelloNote": _rule("h", "epoch:int", "boot:text", "agent:text", "models:[ModelRef]"),
    "LedgerHeadReport": _rule(
        "l", "epoch:int", "entries:int", "at_ms:int", "head:bytes", "signature:bytes",
        known=("int", 0), spend=("[(text, int, int)]", []),
    ),
    "InstallReport": _rule(
        "i", "epoch:int", "seq:int", "counter:int", "rollout:text", "family:text", "state:InstallState",
        "failure:?InstallFailure", "version:int", "running:text", "at_ms:int", cohort=("RolloutCohort", "candidate"),
        quality=("?AuditQuality", None), signals=("?DeviceSignals", None), detail=("text", ""),
        trial_passed=("bool", False),
    ),
    # hub to device
    "Verdict": _rule("v", "prediction:Prediction", "hub:text", "region:text", "queue_s:float", "compute_s:float"),
    "Receipt": _rule("r", "epoch:int", "seqs:[int]"),
    "Refusal": _rule(
        "x", "epoch:int", "seq:int", "digest:bytes", "reason:RefusalReason", "retry_after_s:float", "final:bool"
    ),
    "StatusReply": _rule("s", "epoch:int", "pending:[int]", "unknown:[int]"),
    "WelcomeNote": _rule("w", "epoch:int", "hub:text", "region:text", spread_s=("float", 0.0)),
    "DenyAllNotice": _rule("n", "epoch:int", "counter:int", "why:text"),
    "CheckpointNote": _rule(
        "c", "epoch:int", "entries:int", "text:text", "index:int", "received_ms:int", "epochs:int",
        "inclusion:[bytes]", "consistency:[bytes]",
    ),
    "SpendMirror": _rule("m", "epoch:int", "spend:[(text, int, int)]", complete=("bool", True)),
    "Assignment": _rule(
        "t", "epoch:int", "device:text", "counter:int", "issued_ms:int", "expires_ms:int", "rollout:text",
        "family:text", "path:text", "version:int", "digest:text",
        cohort=("RolloutCohort", "candidate"), withdraw=("bool", False), audit_share=("float", 0.0),
        soak_s=("float", 1800.0), min_inferences=("int", 200), max_soak_s=("float", 86_400.0), strict=("bool", False),
        strict_s=("float", 1800.0), report_s=("float", 300.0), needs_release=("bool", False),
    ),
    "ReportReceipt": _rule("j", "epoch:int", "seq:int"),
}  # fmt: skip

WORDS = {
    "TensorDType": ("FP32", "FP16", "INT64", "INT32", "INT8", "UINT8", "BOOL"),
    "RefusalReason": (
        "busy", "rate", "draining", "too_big", "expired", "created_ahead", "key_expired", "device_unknown", "policy",
        "model_gone", "schema", "conflict", "engine", "policy_old",
    ),
    "RolloutCohort": ("candidate", "control"),
    "InstallState": (
        "idle", "checking", "accepted", "downloading", "paused", "verifying", "staged", "self_test", "shadow",
        "activating", "probation", "committed", "rolling_back", "rolled_back", "failed", "rejected", "cancelled",
        "superseded", "safe_mode",
    ),
    "InstallFailure": (
        "integrity", "rollback", "freeze", "replay", "slow_retrieval", "network", "disk", "incompatible",
        "quarantined", "self_test", "health", "policy", "internal",
    ),
}  # fmt: skip

UP_TAGS = {RULES[kind].tag: kind for kind in ("StatusRequest", "HelloNote", "LedgerHeadReport", "InstallReport")}
DOWN_TAGS = {RULES[kind].tag: kind for kind in (
    "Receipt", "Refusal", "StatusReply", "WelcomeNote", "DenyAllNotice", "CheckpointNote", "SpendMirror", "Assignment",
    "ReportReceipt",
)}  # fmt: skip
_PLAIN_TYPES: dict[str, Any] = {
    "int": int, "float": (float, int), "bool": bool, "text": str, "bytes": bytes,
}  # fmt: skip


def encode_record(record: Record) -> bytes:
    """The msgpack bytes of a record. Fields that it lacks at its end are left out; ValueError for others."""
    return msgpack.encode(_to_array(record))


def decode_record(data: bytes, *kinds: str) -> Record:
    """Read a record of one of these kinds, by its tag if there are several. ValueError for anything else."""
    array = msgpack.decode(data)
    by_tag = {RULES[kind].tag: kind for kind in kinds}
    tag = array[0] if isinstance(array, list) and array and isinstance(array[0], str) else ""
    kind = by_tag.get(tag) or by_tag.get("")
    if kind is None:
        raise ValueError(f"tag {tag!r} is of none of {kinds}")
    return _from_array(kind, array)


def _to_array(record: Record) -> list[Any]:
    rule = RULES[record.kind]
    fields = [field for field in rule.fields if field.name in record.fields]
    if record.kind == "Prediction" and record.fields.get("text") is None:
        fields = [field for field in fields if field.name not in ("text", "usage")]
    if fields != list(rule.fields[: len(fields)]) or len(record.fields) > len(rule.fields):
        raise ValueError(f"{record.kind}: a field in the middle is missing, or one too many")
    return [*filter(None, (rule.tag,)), *(_to_plain(field.type, record[field.name]) for field in fields)]


def _to_plain(type_: str, value: Any) -> Any:
    if type_.startswith("?"):
        return None if value is None else _to_plain(type_[1:], value)
    if type_.startswith("["):
        return [_to_plain(type_[1:-1], each) for each in value]
    if type_.startswith("{"):
        return {key: _to_plain(type_[7:-1], each) for key, each in value.items()}
    if type_.startswith("("):
        return [_to_plain(each, part) for each, part in zip(type_[1:-1].split(", "), value, strict=True)]
    if type_ in RULES:
        return _to_array(value)
    return float(value) if type_ == "float" else value


def _from_array(kind: str, array: Any) -> Record:
    rule = RULES[kind]
    if not isinstance(array, list) or (rule.tag and array[:1] != [rule.tag]):
        raise ValueError(f"{kind}: an array with tag {rule.tag!r} was expected")
    values = array[1:] if rule.tag else array
    if len(values) > len(rule.fields):
        raise ValueError(f"{kind}: an unknown field")
    fields = {}
    for place, field in enumerate(rule.fields):
        if place < len(values):
            fields[field.name] = _from_plain(f"{kind}.{field.name}", field.type, values[place])
        elif field.default is REQUIRED:
            raise ValueError(f"{kind}: {field.name} is missing")
        else:
            fields[field.name] = field.default
    _check_usage(kind, fields)
    return Record(kind, fields)


def _check_usage(kind: str, fields: dict[str, Any]) -> None:
    """A text and its usage come together, and its numbers can be."""
    if kind == "Prediction" and (fields["text"] is None) is not (fields["usage"] is None):
        raise ValueError("a text without its usage, or a usage without a text")
    if kind == "TextUsage":
        possible = 0 <= fields["cached_tokens"] <= fields["prompt_tokens"] and fields["generated_tokens"] >= 0
        if not possible:
            raise ValueError("a usage that cannot be")


def _from_plain(where: str, type_: str, value: Any) -> Any:
    if type_.startswith("?"):
        return None if value is None else _from_plain(where, type_[1:], value)
    if type_.startswith("{"):
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise ValueError(f"{where}: a map was expected")
        return {key: _from_plain(where, type_[7:-1], each) for key, each in value.items()}
    if type_.startswith(("[", "(")):
        if not isinstance(value, list):
            raise ValueError(f"{where}: an array was expected")
        types = [type_[1:-1]] * len(value) if type_.startswith("[") else type_[1:-1].split(", ")
        if len(types) != len(value):
            raise ValueError(f"{where}: {len(types)} values were expected")
        return [_from_plain(where, each, part) for each, part in zip(types, value, strict=True)]
    if type_ in RULES:
        return _from_array(type_, value)
    if type_ in WORDS:
        if value not in WORDS[type_]:
            raise ValueError(f"{where}: {value!r} is no {type_}")
        return value
    if not isinstance(value, _PLAIN_TYPES[type_]) or (isinstance(value, bool) and type_ != "bool"):
        raise ValueError(f"{where}: {type_} was expected")
    return float(value) if type_ == "float" else value
