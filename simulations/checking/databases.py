"""History checker for a real run: reads every agent.db and the hub's database as a history, and judges it.

Rule: read only, and each file in one transaction, so that it may be read while its owner is at work. Agents come first:
what the hub knows beyond the last question read of an agent is later than the evidence, and is not judged.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa

from edge_agent.identity.identity import IDENTITY_FILE
from edge_agent.question.records import AnswerKind, AnswerSource, Outcome
from simulations.checking.events import (
    AnswerRecorded,
    HistoryEvent,
    HistoryReport,
    QuestionAccepted,
    QuestionEnded,
    QuestionKey,
    VerdictStored,
)
from simulations.checking.history import GRACE_S, HistoryChecker

_ACCEPTED = "select epoch, seq, id, at_ms from ledger where kind='question' order by entry"
_ANSWERS = "select id, kind, source, why, seq from answers order by event"
_OUTCOMES = "select epoch, seq, id, outcome, reason, at_ms from outcomes order by seq"
_EFFECTS = "select device, epoch, seq from {}effects where verdict is not null order by kept_ms, seq"
_FIRST = (("ledger", "entry"), ("answers", "event"))


def judge_run(
    agent_dbs: Iterable[Path],
    hub_db: Path | str | None,
    *,
    last_fault_ended_s: float | None = None,
    now_s: float | None = None,
    grace_s: float = GRACE_S,
) -> HistoryReport:
    """Report on a run from its databases.

    Times are hub time in seconds since 1970; without them every open question counts as lost. `hub_db`: a file, the
    URL of a PostgreSQL database, or None: the hub's side is unknown and is not judged. FileNotFoundError for a missing
    file, ValueError for one whose records were pruned: its beginning is gone, and half a history proves nothing.
    sqlite3.Error if damaged.
    """
    checker = HistoryChecker(last_fault_ended_s, hub_complete=hub_db is not None, grace_s=grace_s)
    last: dict[tuple[str, int], int] = {}
    for path in agent_dbs:
        for event in read_agent_events(path):
            checker.on_event(event)
            if isinstance(event, QuestionAccepted):
                last[event.key[:2]] = max(event.key.seq, last.get(event.key[:2], 0))
    for effect in read_hub_effects(hub_db) if hub_db is not None else ():
        if effect.key.seq <= last.get(effect.key[:2], 0):
            checker.on_event(effect)
    return checker.make_report(now_s)


def read_agent_events(path: Path) -> list[HistoryEvent]:
    """Read a device's history: accepted questions, then answers, then outcomes, each in the order of commits."""
    device = find_device_id(path)
    with open_snapshot(path) as db:
        _check_unpruned(db, path)
        events: list[HistoryEvent] = [
            QuestionAccepted(QuestionKey(device, epoch, seq), id_, at_ms / 1000)
            for epoch, seq, id_, at_ms in db.execute(_ACCEPTED)
        ]
        events += [
            AnswerRecorded(
                device,
                id_,
                AnswerKind(kind),
                hub=source == AnswerSource.HUB,
                why=why,
                key=parse_answer_key(device, seq),
            )
            for id_, kind, source, why, seq in db.execute(_ANSWERS)
        ]
        events += [
            QuestionEnded(QuestionKey(device, epoch, seq), id_, Outcome(outcome), reason, at_ms / 1000)
            for epoch, seq, id_, outcome, reason, at_ms in db.execute(_OUTCOMES)
        ]
    return events


def read_hub_effects(where: Path | str) -> list[VerdictStored]:
    """Read every verdict that the hub stored, from its file or from a PostgreSQL database by its URL."""
    if isinstance(where, Path):
        with open_snapshot(where) as db:
            return [VerdictStored(QuestionKey(*row)) for row in db.execute(_EFFECTS.format(""))]
    engine = sa.create_engine(where, poolclass=sa.NullPool, hide_parameters=True)
    with engine.connect() as connection:
        found = connection.exec_driver_sql(_EFFECTS.format("questions."))
        return [VerdictStored(QuestionKey(*row)) for row in found]


def parse_answer_key(device: str, seq: str) -> QuestionKey | None:
    """Key of an answer's question, from its `epoch-seq`; None if it has none."""
    epoch, _, number = seq.partition("-")
    return QuestionKey(device, int(epoch, 16), int(number)) if seq else None


def find_device_id(path: Path) -> str:
    """Device id of a database: from the identity file beside it; failing that, the folder's name."""
    identity = path.parent / IDENTITY_FILE
    if identity.is_file():
        return str(json.loads(identity.read_text(encoding="utf-8"))["device"])
    return path.parent.name


@contextmanager
def open_snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database read-only in one transaction. FileNotFoundError if it is missing."""
    if not path.is_file():
        raise FileNotFoundError(path)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as db:
        db.execute("begin")
        yield db


def _check_unpruned(db: sqlite3.Connection, path: Path) -> None:
    for table, number in _FIRST:
        first = db.execute(f"select min({number}) from {table}").fetchone()[0]  # noqa: S608 - names of our own
        if first is not None and first > 1:
            raise ValueError(f"{path}: {table} begins at {first}, what came before was pruned")
