"""What this device's records say of a trace, in the form that the hub writes its spans in. Made when asked, not before.

Law: a device keeps no tracing of its own: its answers already hold their times and the trace they belong to.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from edge_agent.core.records import AnswerRecord, Kind
from edge_agent.storage import merging_answers_answers
from wire.process.exit_codes import Exit, ExitError
from wire.process.tracing import DEVICE, Attribute, Place, Span, place, span_id

SERVICE = "skerry-agent"
INFER, CORRECTION = "skerry.infer", "skerry.correction"


def of_records(records: Iterable[AnswerRecord]) -> Iterator[Span]:
    """The sample from its arrival to its answer, the inference inside it, and a correction that came after it."""
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
    """Of one trace (32 hex characters), from the agent.db of an agent that runs or not.

    ExitError(NOT_FOUND) if none is.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = list(of_records(merging_answers_answers.traced(db, trace)))
    except sqlite3.Error as error:
        raise ExitError(Exit.DATABASE, f"{path}: {error}") from None
    if not found:
        raise ExitError(Exit.NOT_FOUND, f"no answer of this device belongs to trace '{trace[:40]}'")
    return found
