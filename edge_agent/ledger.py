"""Owns the table `ledger`: what left the device, under which rule, to which region, named by its ciphertext's digest.

Law: an entry is committed before its bytes are sent, and is never changed. The newest row numbers the next question.
"""

import json
import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from edge_agent.outbox import OutboxRow

_COLUMNS = "at_ms,seq,epoch,id,kind,fields,transforms,rule,policy,hub,region,size,digest"


class Entry(StrEnum):
    """Accepted questions are exactly the rows of kind `question`."""

    QUESTION = "question"
    RESEALED = "resealed"


def insert(db: sqlite3.Connection, row: OutboxRow, kind: Entry, at_ms: int) -> None:
    egress = row.egress
    fields = {plan.spec.name: plan.spec.level.name for plan in egress.fields}
    transforms = {plan.spec.name: msgspec.to_builtins(plan.transforms) for plan in egress.fields}
    db.execute(
        f"insert into ledger({_COLUMNS}) values({','.join('?' * 13)})",
        (
            at_ms, row.seq, row.epoch, row.id, kind, json.dumps(fields), json.dumps(transforms), egress.rule,
            row.policy, row.hub, row.region, row.size, row.digest,
        ),
    )  # fmt: skip


def next_seq(db: sqlite3.Connection) -> int:
    return int(db.execute("select coalesce(max(seq),0) from ledger").fetchone()[0]) + 1


def of(db: sqlite3.Connection, id: str) -> list[dict[str, Any]]:  # noqa: A002 - the column's name
    """The entries of one id, JSON-able."""
    rows = db.execute(f"select {_COLUMNS} from ledger where id=? order by entry", (id,))  # noqa: S608
    return [_facts(row) for row in rows]


def everything(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """All entries, oldest first, JSON-able."""
    for row in db.execute(f"select {_COLUMNS} from ledger order by entry"):  # noqa: S608
        yield _facts(row)


def _facts(row: tuple[Any, ...]) -> dict[str, Any]:
    facts = dict(zip(_COLUMNS.split(","), row, strict=True))
    facts["fields"], facts["transforms"] = json.loads(facts["fields"]), json.loads(facts["transforms"])
    facts["digest"], facts["epoch"] = facts["digest"].hex(), f"{facts['epoch']:x}"
    return facts


def prune(db: sqlite3.Connection, max_rows: int) -> int:
    """Oldest first. Returns how many went."""
    return max(
        0, db.execute("delete from ledger where entry <= (select max(entry) from ledger) - ?", (max_rows,)).rowcount
    )
