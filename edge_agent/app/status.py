"""The agent's status report as one JSON-able value, and trace spans made from its records.

Spans have the form in which the hub writes its own. They are made on request: a device keeps no tracing of its own, as
its answers already hold their times and the trace that they belong to.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from edge_agent.core.records import AnswerRecord, Kind
from edge_agent.storage import answers
from edge_agent.storage.database import Database, Trouble
from edge_agent.uplink.services import Parts
from policies.model.policy import Policy
from wire.process.exit_codes import Exit, ExitError
from wire.process.tracing import DEVICE, Attribute, Place, Span, place, span_id

EXPIRY_NOTICE_DAYS = 14
_MS_A_DAY = 86_400_000


class Side(Protocol):
    """A component that adds fields and alarms to the agent's status. Called on the agent's event loop."""

    def facts(self) -> dict[str, Any]:
        """JSON-able fields, under names of its own."""
        ...

    def alarms(self) -> set[str]:
        """Alarms: fixed words, each for something that a person has to look at."""
        ...


def report(
    parts: Parts, named: tuple[str, str], unrecorded: int, alarms: set[str], sides: Sequence[Side]
) -> dict[str, Any]:
    """The whole status. `named`: device and model. `unrecorded`: ended questions that no commit covers yet.

    `alarms`: of the database; those of the `sides` (status providers), the disk and the policy's expiry are added.
    """
    core, policy = parts.core, parts.core.policy
    disk, left = trouble(parts.database), days_left(policy, parts.clock.ms())
    found = alarms.union({f"disk_{disk}"} if disk else set(), _ending(left), *(side.alarms() for side in sides))
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
        "open": len(core.open) + unrecorded,
        "in_flight": core.open.sent,
        "receipted": core.open.receipted,
        "outbox_bytes": core.open.bytes,
        "spent_bytes": core.spend.bytes,
        "hub_time_ms": parts.clock.ms(),
        "alarms": sorted(found),
        "counts": dict(parts.counts),
    }
    return {**facts, **{key: value for side in sides for key, value in side.facts().items()}}


def days_left(policy: Policy | None, now_ms: int) -> int | None:
    """Whole days on which anything may still leave after today; negative: expired. None: no end, or no policy."""
    return None if policy is None or policy.expires_day is None else policy.expires_day - now_ms // _MS_A_DAY


def _ending(left: int | None) -> set[str]:
    """`policy_expires_soon` from 14 days before the end; `policy_expired` after it, when nothing may leave."""
    if left is None or left > EXPIRY_NOTICE_DAYS:
        return set()
    return {"policy_expired"} if left < 0 else {"policy_expires_soon"}


def trouble(database: Database) -> str:
    """What is wrong with the database's disk; "" for nothing."""
    closed = "" if database.is_open else Trouble.IO.value
    return database.trouble.value if database.trouble else closed


SERVICE = "skerry-agent"
INFER, CORRECTION = "skerry.infer", "skerry.correction"


def of_records(records: Iterable[AnswerRecord]) -> Iterator[Span]:
    """Spans of answers: from a sample's arrival to its answer, the inference inside it, and a correction after it."""
    said: dict[str, float] = {}
    for record in records:
        at = place(record.trace)
        if at is None:
            continue
        end = record.at_ms / 1000
        begun = end - record.timings.total_s
        below = Place(at.trace, span_id(at.trace, DEVICE, record.id))
        facts: dict[str, Attribute] = {"skerry.source": record.source.value, "skerry.why": record.why.value}
        if record.kind is Kind.CORRECTION:
            yield below.span(CORRECTION, record.id, (said.get(record.id, begun), end), facts)
            continue
        said[record.id] = end
        yield at.span(DEVICE, record.id, (begun, end), {**facts, "skerry.model": record.prediction.model})
        yield below.span(INFER, record.id, (begun, begun + record.timings.infer_s), {})


def of_file(path: Path, trace: str) -> list[Span]:
    """Spans of one trace (32 hex characters), from an agent.db, whether its agent runs or not.

    Raises ExitError(NOT_FOUND) if no answer belongs to the trace, ExitError(DATABASE) if the file cannot be read.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = list(of_records(answers.traced(db, trace)))
    except sqlite3.Error as error:
        raise ExitError(Exit.DATABASE, f"{path}: {error}") from None
    if not found:
        raise ExitError(Exit.NOT_FOUND, f"no answer of this device belongs to trace '{trace[:40]}'")
    return found
