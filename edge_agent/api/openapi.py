"""The agent's own description, an OpenAPI 3.1 document of every route it serves. Pure.

Rule: the document is made when it is asked for, since what feedback may say is a matter of the model that answers now.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from edge_agent.api.answers import DEFAULT_LISTED, MAX_LISTED
from models.bundle.manifest import Manifest, ModelKind
from wire.http.openapi import (
    INFER_REPLY,
    MODEL_METADATA,
    SERVER_METADATA,
    TEXT,
    ApiOperation,
    Schema,
    TokenNeed,
    build_openapi,
    describe_infer_body,
    describe_json_body,
)

TAGS: Mapping[str, str] = {
    "inference": "Open Inference Protocol v2: samples, answered on this device or with the hub's help",
    "answers": "Answers given before: corrections, reasons, feedback, events, erasure",
    "health": "Liveness, readiness, status and metrics",
}
_PARAMETERS = "data_class, subject, binary_data_output; priority is taken and changes nothing, as nothing waits here"
_MODEL = "/v2/models/{model}"
_VERSIONED = _MODEL + "/versions/{version}"
_ANSWER = "/v1/answers/{id}"
_ID: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_TOKENS: Schema = {"type": "integer", "minimum": 0}
_RECORD: Schema = {
    "type": "object",
    "required": [
        "answer_id",
        "kind",
        "source",
        "reason",
        "label",
        "label_name",
        "confidence",
        "scores",
        "value",
        "in_domain",
        "model",
        "model_version",
        "escalation_id",
        "at_ms",
        "event",
    ],
    "properties": {
        "answer_id": _ID,
        "kind": {"type": "string", "enum": ["answer", "correction"]},
        "source": {"type": "string", "enum": ["local", "hub"]},
        "reason": TEXT,
        "label": {"type": "integer", "description": "Number of the class; -1: of a regressor"},
        "label_name": TEXT,
        "confidence": {"type": "number"},
        "scores": {"type": "array", "items": {"type": "number"}},
        "value": {"type": ["number", "null"], "description": "Of a regressor"},
        "model": TEXT,
        "model_version": TEXT,
        "policy_hash": TEXT,
        "data_class": TEXT,
        "escalation_id": {"type": "string", "description": "Not empty: the hub was asked"},
        "trace_id": TEXT,
        "timings": {"type": "object", "additionalProperties": {"type": "number"}},
        "energy_j": {"type": "number"},
        "at_ms": {"type": "integer"},
        "event": {"type": "integer", "description": "Number of the event of this record"},
        "in_domain": {
            "type": ["boolean", "null"],
            "description": "False: the sample is unlike what the model knows; null: the model cannot tell",
        },
        "text": {"type": ["string", "null"], "description": "What a language model wrote; null: none was asked"},
        "usage": {
            "type": ["object", "null"],
            "description": "Of a text: the language model, the tokens that it counted, and whether it was cut",
            "required": ["model", "prompt_tokens", "generated_tokens", "cached_tokens", "cut", "estimated"],
            "properties": {
                "model": TEXT,
                "prompt_tokens": _TOKENS,
                "generated_tokens": _TOKENS,
                "cached_tokens": _TOKENS,
                "cut": {"type": "boolean"},
                "estimated": {"type": "boolean"},
            },
        },
    },
}
_RECORDS: Schema = {
    "type": "object",
    "required": ["answer_id", "records"],
    "properties": {"answer_id": _ID, "records": {"type": "array", "items": _RECORD, "minItems": 1}},
}
_WAIT: Schema = {"type": "number", "minimum": 0, "default": 0, "description": "Seconds to wait for a correction"}
_LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": DEFAULT_LISTED}
_AFTER: Schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1, "default": 0, "description": "Event number"}
_SUBJECT: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "Keyed hash of a data subject"}


def encode_document(manifest: Manifest | None, version: str, *, protected: bool) -> bytes:
    """Encode the document as JSON. `version`: of the server; `protected`: it asks for a token, but for `/healthz`."""
    operations = list_operations(manifest, TokenNeed.ALWAYS if protected else TokenNeed.NEVER)
    return msgspec.json.encode(build_openapi("Skerry agent", version, TAGS, operations, {}))


def list_operations(manifest: Manifest | None, token: TokenNeed) -> list[ApiOperation]:
    """Return every operation of an agent with this model. `token`: whether its routes need one."""
    return [*_list_inference(token), *_list_answers(manifest, token), *_list_health(token)]


def _list_inference(token: TokenNeed) -> list[ApiOperation]:
    def read(path: str, summary: str, gives: Schema) -> ApiOperation:
        return ApiOperation(method="GET", path=path, summary=summary, tag="inference", token=token, gives=gives)

    found = [
        read("/v2", "The server and its extensions", SERVER_METADATA),
        read("/v2/health/live", "Whether the event loop runs", _flag("live")),
        read("/v2/health/ready", "Whether a sample would be answered now", _flag("ready")),
    ]
    for base in (_MODEL, _VERSIONED):
        found += [
            read(base, "What the model takes and gives", MODEL_METADATA),
            read(base + "/ready", "Whether the model answers", _flag("ready")),
            ApiOperation(
                method="POST", path=base + "/infer", summary="Answer one sample, or a batch", tag="inference",
                token=token, body=describe_infer_body(_PARAMETERS), gives=INFER_REPLY,
            ),
        ]  # fmt: skip
    return found


def _list_answers(manifest: Manifest | None, token: TokenNeed) -> list[ApiOperation]:
    def describe(method: str, path: str, summary: str, **more: Any) -> ApiOperation:
        return ApiOperation(method=method, path=path, summary=summary, tag="answers", token=token, **more)

    feedback = {
        "type": "object",
        "required": ["truth"],
        "properties": {"truth": _describe_truth(manifest)},
        "additionalProperties": False,
    }
    records = "An answer and its correction"
    events = "Answers and corrections as server-sent events; `Last-Event-ID` goes on where a stream ended"
    return [
        describe("GET", "/v1/answers", "The newest records, oldest first", parameters={"limit": _LIMIT}),
        describe("GET", _ANSWER, records, parameters={"id": _ID, "wait_s": _WAIT}, gives=_RECORDS),
        describe("GET", _ANSWER + "/why", "Why an answer is what it is, and what left for it", parameters={"id": _ID}),
        describe(
            "POST", _ANSWER + "/feedback", "Record the true label or value of an answer",
            parameters={"id": _ID}, body=describe_json_body(feedback),
        ),
        describe(
            "GET", "/v1/events", events, parameters={"after": _AFTER}, content_type="text/event-stream", gives=TEXT
        ),
        describe(
            "POST", "/v1/subjects/{subject}/erase", "Forget a data subject on this device",
            parameters={"subject": _SUBJECT}, gives={"type": "object", "required": ["answers", "left"]},
        ),
    ]  # fmt: skip


def _list_health(token: TokenNeed) -> list[ApiOperation]:
    def describe(method: str, path: str, summary: str, need: TokenNeed = token, **more: Any) -> ApiOperation:
        return ApiOperation(method=method, path=path, summary=summary, tag="health", token=need, **more)

    return [
        describe("GET", "/healthz", "Whether the event loop runs", TokenNeed.NEVER, gives=_flag("live")),
        describe("GET", "/readyz", "Whether a sample would be answered now", gives=_flag("ready")),
        describe("GET", "/v1/status", "The agent's whole status"),
        describe("GET", "/v1/policy", "The policy that this device obeys now, in sentences"),
        describe("POST", "/v1/refresh", "Look for updates soon", status=202),
        describe("GET", "/metrics", "Metrics for Prometheus", content_type="text/plain", gives=TEXT),
        describe("GET", "/openapi.json", "This description"),
    ]


def _flag(name: str) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: {"type": "boolean"}}}


def _describe_truth(manifest: Manifest | None) -> Schema:
    """Return what the truth of an answer may be: a label's number or name, or a regressor's value."""
    if manifest is None:
        return {"type": ["number", "string"]}
    if manifest.kind is ModelKind.REGRESSOR:
        return {"type": "number"}
    labels = manifest.labels
    return {"anyOf": [{"type": "integer", "minimum": 0, "maximum": len(labels) - 1}, {"enum": list(labels)}]}
