"""Summary of the egress ledger by rule, day or region, beside the bytes that the sockets sent. Reads only.

Rule: bytes are those of the ledger's entries, less what was withdrawn; with the row `overhead` (TLS, MQTT,
acknowledgements) they equal the sockets' own count, hour by hour.
"""

import json
import sqlite3
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from edge_agent.storage import tables
from edge_agent.storage.tables import HOUR_MS
from wire.ledger.chain import PROTOCOL_RULE

DAY_MS = 24 * HOUR_MS
_SIGN = "(case kind when 4 then -1 else 1 end)"  # kind 4 withdraws: the message was not sent


class GroupBy(StrEnum):
    """What the rows are grouped by."""

    RULE = "rule"
    DAY = "day"
    REGION = "region"


_KEYS = {GroupBy.RULE: "rule", GroupBy.DAY: f"at_ms/{DAY_MS}", GroupBy.REGION: "region"}


class SummaryRow(NamedTuple):
    """One row of the summary: counts and bytes of a rule, day or region.

    `charged`: bytes charged to accounts. `releases`: noised values. `fields`: each field with the highest level it was
    sent under.
    """

    key: str
    messages: int
    bytes: int
    charged: int
    releases: int
    regions: tuple[str, ...]
    fields: dict[str, str]


class LedgerSummary(NamedTuple):
    """A summary.

    `sockets` None: this system does not count. `pruned_ms`: older entries were deleted, a signed head stands for them.
    """

    since_ms: int
    until_ms: int
    by: GroupBy
    rows: tuple[SummaryRow, ...]
    sockets: int | None
    pruned_ms: int | None

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        return sum(row.bytes for row in self.rows)

    @property
    def overhead(self) -> int | None:
        """Bytes that the sockets sent beyond the ledger's messages; None if unknown."""
        return None if self.sockets is None else self.sockets - self.bytes

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, for `--json`."""
        rows = [{**row._asdict(), "regions": list(row.regions)} for row in self.rows]
        totals = {"bytes": self.bytes, "overhead": self.overhead, "sockets": self.sockets}
        spans = {"since_ms": self.since_ms, "until_ms": self.until_ms, "pruned_before_ms": self.pruned_ms}
        return {**spans, "by": self.by, "rows": rows, **totals}


def summarise_ledger(db: sqlite3.Connection, since_ms: int, until_ms: int, by: GroupBy = GroupBy.RULE) -> LedgerSummary:
    """Summarise from the hour of `since_ms` to the end of the hour of `until_ms`."""
    since, until = since_ms // HOUR_MS * HOUR_MS, -(-until_ms // HOUR_MS) * HOUR_MS
    columns = f"{_KEYS[by]}, fields, region, rule, sum({_SIGN}), sum({_SIGN}*size), sum(charge), sum(releases)"
    query = (
        f"select {columns} from entries join forms using(form) where at_ms>=? and at_ms<? "  # noqa: S608 - our own names
        f"group by {_KEYS[by]}, form order by 1"
    )
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for row in db.execute(query, (since, until)):
        groups.setdefault(_format_key(by, row[0]), []).append(row[1:])
    sockets = tables.sum_traffic(db, since, until) or None
    rows = tuple(_sum_row(key, parts) for key, parts in groups.items())
    return LedgerSummary(
        since_ms=since, until_ms=until, by=by, rows=rows, sockets=sockets, pruned_ms=_read_pruned_ms(db)
    )


def _format_key(by: GroupBy, value: Any) -> str:
    return datetime.fromtimestamp(value * DAY_MS / 1000, UTC).date().isoformat() if by is GroupBy.DAY else str(value)


def _sum_row(key: str, parts: list[tuple[Any, ...]]) -> SummaryRow:
    fields: dict[str, str] = {}
    for names, _, rule, count, *_ in parts:
        for name, level in json.loads(names).items() if count > 0 and rule != PROTOCOL_RULE else ():
            fields[name] = max(level, fields.get(name, level))
    messages, size, charged, releases = (sum(part[at] for part in parts) for at in (3, 4, 5, 6))
    regions = tuple(sorted({part[1] for part in parts}))
    return SummaryRow(
        key=key, messages=messages, bytes=size, charged=charged, releases=releases, regions=regions, fields=fields
    )


def _read_pruned_ms(db: sqlite3.Connection) -> int | None:
    first = db.execute("select min(entry) from entries").fetchone()[0]
    if first is None or first == 1:
        return None
    row = db.execute("select at_ms from heads where entry=?", (first - 1,)).fetchone()
    return int(row[0]) if row else None
