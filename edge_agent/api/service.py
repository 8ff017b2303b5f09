"""Interface of the agent as the local API uses it, and the JSON form of its answers. No I/O.

Rule: an answer has one form, whichever route it leaves by: source, reason, model and version, policy hash, ids,
timings.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from math import isfinite
from typing import Any, Protocol

import msgspec
from msgspec.structs import asdict

from edge_agent.question.records import AnswerRecord, EventRecord, Sample
from edge_agent.storage.erasing import LocalErasure
from models.bundle.manifest import InputSpec, Manifest, ModelKind
from wire.http.answer_tensors import lookup_label_name
from wire.http.tensors import name_domain
from wire.process.tracing import begin_trace
from wire.protocol.messages import Prediction

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_ANSWER_ID = re.compile(r"[0-9a-f]{32}")


class InferLimits(msgspec.Struct, frozen=True):
    """Limits of an inference request, and the data class of samples that name none.

    `data_class` "": a class that no policy lists, so that nothing leaves.
    """

    max_body_bytes: int = 4 * 1024 * 1024
    max_batch: int = 256
    data_class: str = ""


class AnswerService(Protocol):
    """The agent, as the API sees it. All methods are called on the event loop that serves."""

    async def infer(self, sample: Sample) -> AnswerRecord:
        """Answer one sample. Raises SampleError, DisabledError or NoModelError."""
        ...

    def on_sample_refused(self, parse: Callable[[InputSpec], object]) -> None:
        """A sample was refused before `infer`: while a model is on trial, the one before may have taken it.

        `parse`: reads the sample for another model's input; raises SampleError if it does not fit that.
        """
        ...

    async def wait(self, id: str, timeout_s: float) -> list[AnswerRecord]:  # noqa: A002 - the product's word
        """All records of an answer; waits up to `timeout_s` while a correction is owed. Empty for an unknown id."""
        ...

    def events(self, after: int) -> AsyncIterator[EventRecord]:
        """Records with an event number above `after`, then each new one as it is committed."""
        ...

    async def last_event(self) -> int:
        """Number of the newest committed record; 0 if there is none."""
        ...

    async def feedback(self, id: str, truth: float) -> bool:  # noqa: A002
        """Record the true label or value of an answer. False for an unknown id."""
        ...

    async def explain(self, id: str) -> dict[str, Any]:  # noqa: A002
        """Everything kept about one answer, JSON-able. Empty for an unknown id."""
        ...

    async def erase(self, subject: bytes) -> LocalErasure:
        """Forget a data subject by its keyed hash, in every file of the database."""
        ...

    def status(self) -> dict[str, Any]:
        """The agent's status, JSON-able."""
        ...

    def refresh(self) -> bool:
        """Look for updates soon. False if this device takes none."""
        ...

    @property
    def manifest(self) -> Manifest | None:
        """Manifest of the model that answers; None while there is none."""
        ...

    @property
    def counts(self) -> dict[str, int]:
        """Counters by name, for metrics."""
        ...


def make_answer_json(record: AnswerRecord, manifest: Manifest | None) -> dict[str, Any]:
    """One record for a caller. Durations in seconds, energy in joules, `at_ms` hub time in milliseconds.

    `value`: a regressor's, None for a classifier, whose `label` is its class number (-1 for a regressor).
    `label_name` is "" where the model has no names. `in_domain`: false if whoever answered says that the sample is
    unlike what the model knows, None if it cannot tell. `text`, `usage`: what a language model wrote, and what it
    counted; None elsewhere.
    """
    prediction = record.prediction
    model, version = split_model(record)
    return {
        "answer_id": record.id,
        "kind": record.kind,
        "source": record.source,
        "reason": record.why,
        "label": prediction.label,
        "label_name": find_label_name(prediction.label, manifest),
        "confidence": prediction.confidence,
        "scores": prediction.scores,
        "value": find_value(prediction),
        "in_domain": prediction.in_domain,
        "text": prediction.text,
        "usage": None if prediction.usage is None else asdict(prediction.usage),
        "model": model,
        "model_version": version,
        "policy_hash": record.policy,
        "data_class": record.data_class,
        "escalation_id": record.seq,
        "trace_id": parse_trace_id(record.trace),
        "timings": record.timings,
        "energy_j": record.energy_j,
        "at_ms": record.at_ms,
        "event": record.event,
    }


def make_parameters(records: list[AnswerRecord]) -> dict[str, str | float]:
    """The response parameters of an inference.

    A parameter of the protocol is one text or number, so a batch of more than one joins its samples' values with
    commas, in the batch's order (none of these texts holds a comma); the output tensors hold them apart.
    """
    rows = [_answer_parameters(record) for record in records]
    if len(rows) == 1:
        return rows[0]
    return {key: ",".join(str(row[key]) for row in rows) for key in rows[0]}


def _answer_parameters(record: AnswerRecord) -> dict[str, str | float]:
    return {
        "source": record.source.value,
        "reason": record.why.value,
        "confidence": record.prediction.confidence,
        "in_domain": name_domain(record.prediction.in_domain),
        "model_version": split_model(record)[1],
        "policy_hash": record.policy,
        "escalation_id": record.seq,
        "answer_id": record.id,
        "trace_id": parse_trace_id(record.trace),
    }


def split_model(record: AnswerRecord) -> tuple[str, str]:
    """Name and version of the model that gave an answer, such as ("digits", "7")."""
    name, _, version = record.prediction.model.rpartition("@")
    return name, version


def find_label_name(label: int, manifest: Manifest | None) -> str:
    """The name of a label number; "" without a model."""
    return lookup_label_name(label, manifest.labels) if manifest else ""


def find_value(prediction: Prediction) -> float | None:
    """A regressor's value; None for a classifier's prediction."""
    return prediction.scores[0] if prediction.label < 0 and prediction.scores else None


def parse_truth(truth: object, manifest: Manifest | None) -> float | None:
    """A label's number from its number or name, or a regressor's value. None if this model gives no such answer.

    A label's number is returned as an `int`.
    """
    if manifest is None:
        return None
    if manifest.kind is ModelKind.REGRESSOR:
        known = isinstance(truth, int | float) and not isinstance(truth, bool) and isfinite(truth)
        return float(truth) if known else None  # type: ignore[arg-type]
    if isinstance(truth, float) and truth.is_integer():
        truth = int(truth)
    if isinstance(truth, str):
        return manifest.labels.index(truth) if truth in manifest.labels else None
    if isinstance(truth, bool) or not isinstance(truth, int):
        return None
    return truth if 0 <= truth < len(manifest.labels) else None


def parse_trace_id(traceparent: str) -> str:
    """The trace id (32 hex characters) of a W3C traceparent; "" if it is none."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return match[1] if match else ""


def choose_traceparent(headers: Mapping[str, str], drawn: str) -> str:
    """The caller's W3C traceparent if it is a valid one of version 00.

    Else one of a trace that begins here, made of `drawn`: 32 random hex characters.
    """
    given = headers.get("traceparent", "").strip()
    return given if _TRACEPARENT.fullmatch(given) else begin_trace(drawn)


def is_answer_id(text: str) -> bool:
    """Whether a text has the form of an answer id: 32 hexadecimal characters."""
    return bool(_ANSWER_ID.fullmatch(text))
