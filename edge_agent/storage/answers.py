"""SQL of the tables `answers`, `outcomes`, `feedback` and `erased`: answers given, how questions ended, what was true.

Also explains one past answer from all tables (`facts`). Rule: an id has one answer, at most one correction and at most
one outcome; a second is ignored, not an error. Values of a sample are never in these tables, so they cannot appear in
an explanation.
"""

import sqlite3
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from edge_agent.question.records import AnswerKind, AnswerRecord, AnswerSource, Outcome, Timings
from edge_agent.storage import ledger, outbox
from policies.model.reasons import DecisionReason
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.messages import Prediction, TextUsage

_COLUMNS = (
    "event,id,kind,at_ms,source,why,label,confidence,scores,model,policy,seq,data_class,trace,"
    "infer_s,total_s,queue_s,compute_s,subject,in_domain,text,usage,energy_j"
)
_scores_encoder = msgspec.msgpack.Encoder()
_scores_decoder = msgspec.msgpack.Decoder(tuple[float, ...])
_usage_decoder = msgspec.msgpack.Decoder(TextUsage)


def insert_answer(db: sqlite3.Connection, r: AnswerRecord) -> None:
    """Insert one answer record; ignored if the id has one of this kind."""
    p, t = r.prediction, r.timings
    db.execute(
        f"insert or ignore into answers({_COLUMNS}) values(null{',?' * 22})",
        (
            r.id, r.kind, r.at_ms, r.source, r.why, p.label, _storable_confidence(p), _scores_encoder.encode(p.scores),
            p.model, r.policy, r.seq, r.data_class, r.trace, t.infer_s, t.total_s, t.queue_s, t.compute_s,
            r.subject, p.in_domain, p.text, _scores_encoder.encode(p.usage) if p.usage else None, r.energy_j,
        ),
    )  # fmt: skip


def _storable_confidence(prediction: Prediction) -> float:
    """The confidence as stored: 0 for NaN, which SQLite would make null and then ignore the row."""
    return 0.0 if isnan(prediction.confidence) else prediction.confidence


def insert_answers(db: sqlite3.Connection, records: list[AnswerRecord]) -> None:
    """Insert several answer records."""
    for record in records:
        insert_answer(db, record)


def read_records(db: sqlite3.Connection, id: str) -> list[AnswerRecord]:  # noqa: A002 - the column's name
    """The records of one id, the answer first."""
    query = f"select {_COLUMNS} from answers where id=? order by event"  # noqa: S608
    return [_decode_record(row) for row in db.execute(query, (id,))]


def read_records_after(db: sqlite3.Connection, event: int, limit: int) -> list[AnswerRecord]:
    """At most `limit` committed records after position `event`, in order."""
    query = f"select {_COLUMNS} from answers where event>? order by event limit ?"  # noqa: S608
    return [_decode_record(row) for row in db.execute(query, (event, limit))]


def read_traced(db: sqlite3.Connection, trace: str) -> list[AnswerRecord]:
    """All records of a W3C trace id (32 hex characters)."""
    query = f"select {_COLUMNS} from answers where substr(trace,4,32)=? order by event"  # noqa: S608
    return [_decode_record(row) for row in db.execute(query, (trace,))]


def read_last_event(db: sqlite3.Connection) -> int:
    """Event number of the newest committed record; 0 if there is none."""
    return int(db.execute("select coalesce(max(event),0) from answers").fetchone()[0])


class QuestionEnd(NamedTuple):
    """How a question ended: one row of `outcomes`."""

    seq: int
    epoch: int
    id: str
    outcome: Outcome
    reason: str
    at_ms: int


def insert_outcome(db: sqlite3.Connection, end: QuestionEnd) -> None:
    """Insert an outcome; ignored if the question has one."""
    db.execute("insert or ignore into outcomes(seq,epoch,id,outcome,reason,at_ms) values(?,?,?,?,?,?)", end)


def expire_question(db: sqlite3.Connection, row: outbox.OutboxRow, reason: DecisionReason, at_ms: int) -> None:
    """End an open question without a verdict: its outcome is recorded and its outbox row deleted.

    For use inside a transaction. `at_ms`: hub time of the end, in milliseconds since 1970.
    """
    insert_outcome(db, QuestionEnd(row.seq, row.epoch, row.id, Outcome.EXPIRED, reason, at_ms))
    outbox.delete_row(db, row.seq)


def iterate_outcomes(db: sqlite3.Connection) -> Iterator[QuestionEnd]:
    """All outcomes, oldest question first."""
    for row in db.execute("select seq, epoch, id, outcome, reason, at_ms from outcomes order by seq"):
        yield QuestionEnd(seq=row[0], epoch=row[1], id=row[2], outcome=Outcome(row[3]), reason=row[4], at_ms=row[5])


def read_outcome(db: sqlite3.Connection, id: str) -> tuple[str, str, int] | None:  # noqa: A002
    """(outcome, reason, at_ms) of an id; None while it is open or if it was never asked."""
    row = db.execute("select outcome, reason, at_ms from outcomes where id=?", (id,)).fetchone()
    return None if row is None else (str(row[0]), str(row[1]), int(row[2]))


ERASED_KEPT_MS = 10 * 86_400_000  # the numbers of erased questions: a day longer than a hub keeps any row


def erase_subject(db: sqlite3.Connection, subject: bytes, at_ms: int) -> int:
    """End all open questions about a subject, delete its answers and their feedback, in one transaction.

    The questions' numbers are kept in `erased`. `at_ms`: hub time. Returns how many answers were deleted.
    """
    with db:
        db.execute("begin immediate")
        record_erased(db, subject, at_ms)
        for row in outbox.read_rows(db):
            if row.subject == subject:
                expire_question(db, row, DecisionReason.ERASED, at_ms)
        its = "select id from answers where subject=?"
        db.execute(f"delete from feedback where id in ({its})", (subject,))  # noqa: S608 - constant text
        return db.execute("delete from answers where subject=?", (subject,)).rowcount


def record_erased(db: sqlite3.Connection, subject: bytes, at_ms: int) -> None:
    """Record the numbers of all questions about a subject, open or ended, so that hubs can be told what to erase."""
    asked = (
        "select epoch, seq from outbox where subject=:subject "
        "union select epoch, seq from outcomes where id in (select id from answers where subject=:subject)"
    )
    db.execute(
        f"insert or ignore into erased select :subject, epoch, seq, :at_ms from ({asked})",  # noqa: S608
        {"subject": subject, "at_ms": at_ms},
    )


def read_erased(db: sqlite3.Connection, subject: bytes) -> list[tuple[int, int]]:
    """(epoch, seq) of the erased questions about a subject, in order."""
    rows = db.execute("select epoch, seq from erased where subject=? order by epoch, seq", (subject,))
    return [(int(epoch), int(seq)) for epoch, seq in rows]


def prune_erased(db: sqlite3.Connection, now_ms: int) -> None:
    """Delete the numbers of questions that no hub can hold any more. `now_ms`: hub time."""
    db.execute("delete from erased where at_ms < ?", (now_ms - ERASED_KEPT_MS,))


def store_truth(db: sqlite3.Connection, id: str, truth: float, at_ms: int) -> bool:  # noqa: A002
    """Store the label or value that the user says is true; the latest counts. False if the id has no answer."""
    if db.execute("select 1 from answers where id=? limit 1", (id,)).fetchone() is None:
        return False
    db.execute(
        "insert into feedback values(?,?,?) on conflict(id) do update set truth=excluded.truth, at_ms=excluded.at_ms",
        (id, truth, at_ms),
    )
    return True


def read_truth(db: sqlite3.Connection, id: str) -> float | None:  # noqa: A002
    """The true label or value that was stored for an id, None if there is none."""
    row = db.execute("select truth from feedback where id=?", (id,)).fetchone()
    return None if row is None else row[0]  # an integer column of SQLite keeps 87.5 as it is


def prune_answers(db: sqlite3.Connection, answers_max_rows: int, outcomes_max_rows: int) -> int:
    """Delete the oldest rows beyond these limits, never the answer of an open question.

    Of answers a hundredth more is deleted than needs be: whole pages are given back at little cost, where a few rows
    a minute would rewrite the pages they stand on. Returns how many answers were deleted.
    """
    gone = 0
    bound = _find_prune_bound(db, "answers", "event", answers_max_rows, answers_max_rows // 100)
    if bound is not None:
        query = "delete from answers where event <= ? and id not in (select id from outbox)"
        gone = db.execute(query, (bound,)).rowcount
    bound = _find_prune_bound(db, "outcomes", "seq", outcomes_max_rows, 0)
    if bound is not None:
        db.execute("delete from outcomes where seq <= ?", (bound,))
    db.execute("delete from feedback where id not in (select id from answers)")
    return max(0, gone)


def _find_prune_bound(db: sqlite3.Connection, table: str, key: str, max_rows: int, more: int) -> int | None:
    """The highest number among the oldest rows beyond `max_rows`, and `more` than these; None if there are none.

    Rows are counted only where their numbers span as many: after a restore the numbers have a wide gap.
    """
    newest, oldest = db.execute(f"select coalesce(max({key}),0), coalesce(min({key}),0) from {table}").fetchone()  # noqa: S608 - our own names
    if newest - oldest < max_rows:
        return None
    beyond = db.execute(f"select count(*) from {table}").fetchone()[0] - max_rows  # noqa: S608
    if beyond <= 0:
        return None
    query = f"select {key} from {table} order by {key} limit 1 offset ?"  # noqa: S608
    return int(db.execute(query, (beyond + more - 1,)).fetchone()[0])


def _decode_record(row: tuple[Any, ...]) -> AnswerRecord:
    facts: dict[str, Any] = dict(zip(_COLUMNS.split(","), row, strict=True))
    scores = _scores_decoder.decode(facts.pop("scores"))
    timings = {key: facts.pop(key) for key in ("infer_s", "total_s", "queue_s", "compute_s")}
    stored = facts.pop("in_domain")
    in_domain = None if stored is None else bool(stored)
    usage = facts.pop("usage")
    prediction = Prediction(
        facts.pop("label"), facts.pop("confidence"), scores, facts.pop("model"), in_domain, facts.pop("text"),
        _usage_decoder.decode(usage) if usage else None,
    )  # fmt: skip
    facts |= {
        "kind": AnswerKind(facts["kind"]),
        "source": AnswerSource(facts["source"]),
        "why": DecisionReason(facts["why"]),
    }
    return AnswerRecord(prediction=prediction, timings=Timings(**timings), **facts)


def explain_answer(db: sqlite3.Connection, id: str) -> dict[str, Any]:  # noqa: A002 - the column's name
    """Explain one answer from agent.db: id, records, ledger entries, outcome (None while it is open), truth.

    JSON-able; empty if the id is unknown.
    """
    records = read_records(db, id)
    left = ledger.read_entries(db, id)
    if not records and not left:
        return {}
    ended = read_outcome(db, id)
    return {
        "id": id,
        "records": [encode_explained(record) for record in records],
        "ledger": left,
        "outcome": None if ended is None else dict(zip(("outcome", "reason", "at_ms"), ended, strict=True)),
        "truth": read_truth(db, id),
    }


def encode_explained(record: AnswerRecord) -> dict[str, Any]:
    """The record as JSON-able values, the prediction by field names (on the link it is positional)."""
    built: dict[str, Any] = msgspec.to_builtins(record)
    said = record.prediction
    usage = None if said.usage is None else msgspec.structs.asdict(said.usage)
    return {**built, "prediction": {**msgspec.structs.asdict(said), "usage": usage}}


def explain_from_file(path: Path, id: str) -> dict[str, Any]:  # noqa: A002
    """As `facts`, read from the file of an agent that may be stopped.

    ExitError(DATABASE or MISSING) if there is nothing to read.
    """
    if not path.is_file():
        raise ExitError(ExitCode.MISSING, f"{path} is not there: is this an agent's state folder?")
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            return explain_answer(db, id)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise ExitError(ExitCode.DATABASE, f"{path}: {error}") from None
