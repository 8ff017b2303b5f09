"""The agent's status report as one JSON-able value, and trace spans made from its records.

Spans have the form in which the hub writes its own. They are made on request: a device keeps no tracing of its own, as
its answers already hold their times and the trace that they belong to.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from edge_agent.core.records import AnswerKind, AnswerRecord
from edge_agent.storage import answers
from edge_agent.storage.database import Database, DatabaseTrouble
from edge_agent.uplink.services import AgentServices
from policies.model.policy import Policy
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.tracing import DEVICE_SPAN, Attribute, Span, TraceContext, derive_span_id, parse_traceparent

EXPIRY_NOTICE_DAYS = 14
_MS_A_DAY = 86_400_000


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
        "lines": {line.name or "home": "up" if line.up else "down" for line in core.lines},
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
