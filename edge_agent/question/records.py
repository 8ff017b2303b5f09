"""Values that the agent hands to its callers: samples in; answers, events and outcomes out. Frozen, no behaviour."""

from enum import StrEnum
from typing import Any

import msgspec
import numpy.typing as npt

from policies.model.reasons import DecisionReason
from wire.protocol.messages import Prediction


class AnswerSource(StrEnum):
    """Where an answer was computed: on this device, or by the hub."""

    LOCAL = "local"
    HUB = "hub"


class AnswerKind(StrEnum):
    """Kind of an answer record.

    An id has one answer and at most one correction, which is the hub's verdict that came after the answer.
    """

    ANSWER = "answer"
    CORRECTION = "correction"


class Outcome(StrEnum):
    """How an accepted question ended. Each accepted id has exactly one outcome."""

    ANSWERED = "answered"
    EXPIRED = "expired"
    REFUSED = "refused"
    DENIED = "denied"


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One input sample of a caller.

    `x`: array in the model's shape and dtype. `data_class`: the class that the policy's egress rules name. `trace`: W3C
    traceparent, or "". Both texts are ASCII of at most 128 characters. `subject`: the person it is about, or ""; never
    stored or sent in clear.
    """

    x: npt.NDArray[Any]
    data_class: str
    trace: str = ""
    subject: str = ""


class Timings(msgspec.Struct, frozen=True, gc=False):
    """Durations of one answer, in seconds.

    `infer_s`: inference on the device. `total_s`: from sample to answer. `queue_s` and `compute_s`: measured by the
    hub, 0 for a local answer.
    """

    infer_s: float = 0.0
    total_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0


class SampleOrigin(msgspec.Struct, frozen=True, gc=False):
    """Where an escalated sample came from: its trace, arrival time, inference time, energy and subject.

    `started`: seconds on the core's clock, 0 after a restart, when the original caller is gone. `subject`: keyed hash
    of the person it is about.
    """

    trace: str = ""
    started: float = 0.0
    infer_s: float = 0.0
    subject: bytes = b""
    energy_j: float = 0.0


class AnswerRecord(msgspec.Struct, frozen=True, gc=False):
    """One row of the answer record in agent.db.

    `seq`: the escalation id `{epoch:x}-{seq}`, "" if the hub was not asked. `at_ms`: estimated hub time in milliseconds
    since 1970. `event`: position in the event stream, 0 while the row is not committed yet. `energy_j`: joules of the
    inference, and of sending the question if there was one; 0 of a correction.
    """

    id: str
    kind: AnswerKind
    source: AnswerSource
    why: DecisionReason
    prediction: Prediction
    policy: str
    data_class: str
    seq: str = ""
    trace: str = ""
    timings: Timings = Timings()
    at_ms: int = 0
    event: int = 0
    subject: bytes = b""  # keyed hash of the person it is about, used for erasure only: no interface shows it
    energy_j: float = 0.0


class EventRecord(msgspec.Struct, frozen=True, gc=False):
    """One server-sent event; `event` is the stable id after which a caller resumes (`Last-Event-ID`)."""

    event: int
    answer: AnswerRecord


class DisabledError(Exception):
    """Inference is switched off: the policy's mode is `disabled`."""


class NoModelError(DisabledError):
    """No model is loaded: the first one was not downloaded yet, or the installed one was revoked."""
