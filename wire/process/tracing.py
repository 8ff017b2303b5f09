"""Trace spans of device and hub, with W3C trace ids and OpenTelemetry's field names. Pure.

Rule: a span's id is derived from its trace, its name and what it is about, so that device and hub name the same span
without exchanging it. Source: W3C Trace Context; OpenTelemetry trace data model.
"""

import re
from hashlib import sha256

import msgspec

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
NS_PER_S = 1_000_000_000
DEVICE_SPAN = "skerry.device"  # the one span that both sides name: the device's, from its sample to its answer

Attribute = str | int | float | bool


class Span(msgspec.Struct, frozen=True):
    """One span; `parent` "" = the first of its trace. Times in seconds since 1970."""

    trace: str
    id: str
    parent: str
    name: str
    start_s: float
    end_s: float
    attributes: dict[str, Attribute] = {}

    def encode_line(self, service: str) -> bytes:
        """Encode the span as one line of JSON, its times in nanoseconds as OpenTelemetry has them."""
        facts = {"traceId": self.trace, "spanId": self.id, "parentSpanId": self.parent, "name": self.name}
        times = {"startTimeUnixNano": int(self.start_s * NS_PER_S), "endTimeUnixNano": int(self.end_s * NS_PER_S)}
        told = {"ms": round((self.end_s - self.start_s) * 1000, 3), "service": service, "attributes": self.attributes}
        return msgspec.json.encode({**facts, **times, **told}) + b"\n"


class TraceContext(msgspec.Struct, frozen=True):
    """Trace context: the trace, and the span under which new ones are recorded."""

    trace: str
    parent: str

    def create_span(self, name: str, about: str, times: tuple[float, float], attributes: dict[str, Attribute]) -> Span:
        """Create a span below `parent`.

        `about`: what it is about, e.g. a question's id; `times`: start and end in seconds since 1970.
        """
        return Span(self.trace, derive_span_id(self.trace, name, about), self.parent, name, *times, attributes)


def parse_traceparent(traceparent: str) -> TraceContext | None:
    """Parse a W3C traceparent header; `parent` "" if the trace begins here (`begin_trace`).

    None for an invalid one, and for a trace that its owner does not want recorded (sampled flag not set).
    """
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or not int(match[3], 16) & 1:
        return None
    return TraceContext(match[1], "" if match[2] == _name_nobody(match[1]) else match[2])


def begin_trace(drawn: str) -> str:
    """Return the traceparent of a trace that begins here, of `drawn`: 32 random hex characters, not all zero.

    A traceparent has to name a parent: this one names the span that stands for none.
    """
    return f"00-{drawn}-{_name_nobody(drawn)}-01"


def _name_nobody(trace: str) -> str:
    return derive_span_id(trace, "nobody", "")


def derive_span_id(trace: str, name: str, about: str) -> str:
    """Derive a span id: 16 hex characters, never all zero."""
    return sha256(f"{trace}/{name}/{about}".encode()).hexdigest()[:15] + "1"
