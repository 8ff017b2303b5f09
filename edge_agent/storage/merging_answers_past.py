"""One past answer, as agent.db remembers it: its records, what left for it, how the question ended, what was true.

Law: read only; a value of the sample is not in these tables and so cannot appear here.
"""

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.core.records import AnswerRecord
from edge_agent.storage import ledger, merging_answers_answers
from wire.process.exit_codes import Exit, ExitError


def facts(db: sqlite3.Connection, id: str) -> dict[str, Any]:  # noqa: A002 - the column's name
    """JSON-able: id, records, ledger, outcome (or None while it is open), truth. Empty: id unknown."""
    records = merging_answers_answers.of(db, id)
    left = ledger.of(db, id)
    if not records and not left:
        return {}
    ended = merging_answers_answers.outcome(db, id)
    return {
        "id": id,
        "records": [_builtins(record) for record in records],
        "ledger": left,
        "outcome": None if ended is None else dict(zip(("outcome", "reason", "at_ms"), ended, strict=True)),
        "truth": merging_answers_answers.truth(db, id),
    }


def _builtins(record: AnswerRecord) -> dict[str, Any]:
    """By name: on the link a prediction is positional."""
    built: dict[str, Any] = msgspec.to_builtins(record)
    return {**built, "prediction": msgspec.structs.asdict(record.prediction)}


def facts_of_file(path: Path, id: str) -> dict[str, Any]:  # noqa: A002
    """As `facts`, of an agent that may be stopped. ExitError(DATABASE or NOT_FOUND) if there is nothing to read."""
    if not path.is_file():
        raise ExitError(Exit.NOT_FOUND, f"{path} is not there: is this an agent's state folder?")
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            return facts(db, id)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise ExitError(Exit.DATABASE, f"{path}: {error}") from None
