"""Values the agent hands out: a sample goes in, answers, events and outcomes come out. Frozen, no behaviour."""

from enum import StrEnum
from typing import Any

import msgspec
import numpy.typing as npt

from policies.model.reasons import Why
from wire.protocol.messages import Prediction


class Source(StrEnum):
    """Where the answer was computed."""

    LOCAL = "local"
    HUB = "hub"


class Kind(StrEnum):
    """An id has one answer and at most one correction (the verdict that came after the answer)."""

    ANSWER = "answer"
    CORRECTION = "correction"


class Outcome(StrEnum):
    """How an accepted question ended. Exactly one per accepted id."""

    ANSWERED = "answered"
    EXPIRED = "expired"
    REFUSED = "refused"
    DENIED = "denied"


class Sample(msgspec.Struct, frozen=True, gc=False):
    """`x`: one sample in the model's shape and dtype. `data_class` is what the policy's egress rules speak of.

    `trace`: W3C traceparent, or "". Both are ASCII of at most 128 characters. `subject`: whom it is about, or "".
    """

    x: npt.NDArray[Any]
    data_class: str
    trace: str = ""
    subject: str = ""


class Timings(msgspec.Struct, frozen=True, gc=False):
    """Seconds. `queue_s` and `compute_s` are the hub's own figures, 0 for a local answer."""

    infer_s: float = 0.0
    total_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0


class SampleOrigin(msgspec.Struct, frozen=True, gc=False):
    """Of a sample that asks: its trace, when it came (on the core's clock), its model's time, whom it is about (hash).

    `started` is 0 after a restart: who asked then is gone.
    """

    trace: str = ""
    started: float = 0.0
    infer_s: float = 0.0
    subject: bytes = b""


class AnswerRecord(msgspec.Struct, frozen=True, gc=False):
    """One row of the answer record. `seq` is the escalation id `{epoch:x}-{seq}`, "" if the hub was not asked.

    `at_ms`: hub time in milliseconds since 1970 as this device estimates it. `event`: position in the event stream,
    0 while the row is not committed yet.
    """

    id: str
    kind: Kind
    source: Source
    why: Why
    prediction: Prediction
    policy: str
    data_class: str
    seq: str = ""
    trace: str = ""
    timings: Timings = Timings()
    at_ms: int = 0
    event: int = 0
    subject: bytes = b""  # keyed hash of whom it is about, for erasing alone: no interface shows it


class EventRecord(msgspec.Struct, frozen=True, gc=False):
    """One server-sent event: `event` is the stable id a caller resumes after (`Last-Event-ID`)."""

    event: int
    answer: AnswerRecord


class DisabledError(Exception):
    """The policy's mode is `disabled`: no inference at all."""


class NoModelError(DisabledError):
    """There is nothing to answer with: the first model is not here yet, or ours was revoked."""
