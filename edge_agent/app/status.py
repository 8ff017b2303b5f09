"""The agent's status report as one JSON-able value, and trace spans made from its records.

Spans have the form in which the hub writes its own. They are made of answers, which already hold their times and the
trace that they belong to: on request, or as they are given where a collector is configured.
"""

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import structs

from edge_agent.question.records import AnswerKind, AnswerRecord
from edge_agent.runtime.answering import InferenceService
from edge_agent.storage import answers
from edge_agent.storage.database import Database, DatabaseTrouble
from edge_agent.uplink.services import AgentServices
from policies.model.policy import Policy
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog
from wire.process.tracing import DEVICE_SPAN, Attribute, Span, TraceContext, derive_span_id, parse_traceparent

if TYPE_CHECKING:
    from wire.process.trace_export import Tracing

EXPIRY_NOTICE_DAYS = 14
_MS_A_DAY = 86_400_000
SpanSink = Callable[[Sequence[Span]], None]


class StatusProvider(Protocol):
    """A component that adds fields and alarms to the agent's status. Called on the agent's event loop."""

    def status_fields(self) -> dict[str, Any]:
        """JSON-able fields, under names of its own."""
        ...

    def alarms(self) -> set[str]:
        """Alarms: fixed words, each for something that a person has to look at."""
        ...


def make_status(
    parts: AgentServices, named: tuple[str, str], unrecorded: int, alarms: set[str], sides: Sequence[StatusProvider]
) -> dict[str, Any]:
    """The whole status. `named`: device and model. `unrecorded`: ended questions that no commit covers yet.

    `alarms`: of the database; those of the `sides` (status providers), the disk and the policy's expiry are added.
    """
    core, policy = parts.core, parts.core.policy
    disk, left = find_disk_trouble(parts.database), count_days_left(policy, parts.clock.hub_ms())
    found = alarms.union({f"disk_{disk}"} if disk else set(), _expiry_alarms(left), *(side.alarms() for side in sides))
    facts = {
        "device": named[0],
        "epoch": f"{core.epoch:x}" if core.epoch >= 0 else "",
        "model": named[1],
        "policy": policy.hash if policy else "",
        "policy_expires": (policy.expires or "") if policy else "",
        "policy_days_left": left,
        "mode": policy.mode.value if policy else "",
        "link": "up" if core.link.up else "down",
        "link_error": parts.connections.home.last_error,
        "lines": {line.name or "home": "up" if line.up else "down" for line in core.connections},
        "disk": disk or "ok",
        "open": len(core.open_questions) + unrecorded,
        "in_flight": core.open_questions.sent,
        "receipted": core.open_questions.receipted,
        "outbox_bytes": core.open_questions.bytes,
        "spent_bytes": core.spend.bytes,
        "hub_time_ms": parts.clock.hub_ms(),
        "alarms": sorted(found),
        "counts": dict(parts.counts),
    }
    return {**facts, **{key: value for side in sides for key, value in side.status_fields().items()}}


def count_days_left(policy: Policy | None, now_ms: int) -> int | None:
    """Whole days on which anything may still leave after today; negative: expired. None: no end, or no policy."""
    return None if policy is None or policy.expires_day is None else policy.expires_day - now_ms // _MS_A_DAY


def _expiry_alarms(left: int | None) -> set[str]:
    """`policy_expires_soon` from 14 days before the end; `policy_expired` after it, when nothing may leave."""
    if left is None or left > EXPIRY_NOTICE_DAYS:
        return set()
    return {"policy_expired"} if left < 0 else {"policy_expires_soon"}


def find_disk_trouble(database: Database) -> str:
    """What is wrong with the database's disk; "" for nothing."""
    closed = "" if database.is_open else DatabaseTrouble.IO.value
    return database.trouble.value if database.trouble else closed


SERVICE = "skerry-agent"
INFER, CORRECTION = "skerry.infer", "skerry.correction"
EXPORTED = frozenset({"skerry.model"})  # attributes of spans that leave the device
MAX_GIVEN = 4096


def spans_of_records(records: Iterable[AnswerRecord]) -> Iterator[Span]:
    """Spans of answers: from a sample's arrival to its answer, the inference inside it, and a correction after it."""
    said: dict[str, float] = {}
    for record in records:
        at = parse_traceparent(record.trace)
        if at is None:
            continue
        end = record.at_ms / 1000
        begun = end - record.timings.total_s
        below = TraceContext(at.trace, derive_span_id(at.trace, DEVICE_SPAN, record.id))
        facts: dict[str, Attribute] = {"skerry.source": record.source.value, "skerry.why": record.why.value}
        if record.kind is AnswerKind.CORRECTION:
            yield below.create_span(CORRECTION, record.id, (said.get(record.id, begun), end), facts)
            continue
        said[record.id] = end
        yield at.create_span(DEVICE_SPAN, record.id, (begun, end), {**facts, "skerry.model": record.prediction.model})
        yield below.create_span(INFER, record.id, (begun, begun + record.timings.infer_s), {})


class AnswerTracer:
    """Hands the spans of answers to `sink` as they are given; `counts`: what became of them.

    Only answers to a question that a policy let leave have spans here, and nothing in them is made of a sample: names,
    ids, times and the model. What stayed on the device, and why, is for `read_spans` alone.
    """

    def __init__(self, sink: SpanSink, counts: Callable[[], dict[str, int]]) -> None:
        self._sink = sink
        self._counts = counts
        self._given: OrderedDict[str, AnswerRecord] = OrderedDict()  # answers that a correction may follow

    def on_record(self, record: AnswerRecord) -> None:
        """An answer was given, or corrected."""
        if not record.seq:
            return
        before = self._given.pop(record.id, None)
        if record.kind is AnswerKind.ANSWER:
            self._given[record.id] = record
            if len(self._given) > MAX_GIVEN:
                self._given.popitem(last=False)
        spans = spans_of_records([record] if before is None else [before, record])
        new = [span for span in spans if (span.name == CORRECTION) == (record.kind is AnswerKind.CORRECTION)]
        self._sink([structs.replace(span, attributes=_keep_exported(span)) for span in new])

    def status_fields(self) -> dict[str, Any]:
        """Spans sent to the collector and lost, as the status has it."""
        return {"trace": self._counts()}

    def alarms(self) -> set[str]:
        """None: a collector that is down concerns no answer."""
        return set()


class TracedAgent(Protocol):
    """The agent, as far as tracing needs it."""

    @property
    def answering(self) -> InferenceService:
        """What gives the answers."""
        ...

    def add_status_provider(self, side: StatusProvider) -> None:
        """Add a component's fields to the status."""
        ...


def start_tracing(agent: TracedAgent, endpoint: str, device: str, log: JsonLog) -> "Tracing | None":
    """Send the spans of the agent's answers to the collector at `endpoint`; None where that is "".

    Then nothing of OpenTelemetry is imported. ExitError(CONFIG) if it is not installed.
    """
    if not endpoint:
        return None
    from wire.process.trace_export import Tracing  # noqa: PLC0415

    tracing = Tracing(None, endpoint, SERVICE, device, log)
    if tracing.sink is not None:
        tracer = AnswerTracer(tracing.sink, tracing.counts)
        agent.answering.listen(tracer.on_record)
        agent.add_status_provider(tracer)
    return tracing


def _keep_exported(span: Span) -> dict[str, Attribute]:
    return {key: value for key, value in span.attributes.items() if key in EXPORTED}


def read_spans(path: Path, trace: str) -> list[Span]:
    """Spans of one trace (32 hex characters), from an agent.db, whether its agent runs or not.

    Raises ExitError(NOT_FOUND) if no answer belongs to the trace, ExitError(DATABASE) if the file cannot be read.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = list(spans_of_records(answers.read_traced(db, trace)))
    except sqlite3.Error as error:
        raise ExitError(ExitCode.DATABASE, f"{path}: {error}") from None
    if not found:
        raise ExitError(ExitCode.NOT_FOUND, f"no answer of this device belongs to trace '{trace[:40]}'")
    return found
