"""SQL of the lists of frames that this device signs for a hub it has sessions with.

A question of a session is not signed by itself; the list names its frame, as the ledger recorded it before it left.
`meta` has the newest entry that a hub has acknowledged, by the hub's name. Rule: it is set before the first question of
a first session is recorded, and only ever rises, so that no question of a session is left out.
"""

import sqlite3

from edge_agent.storage import ledger, tables
from wire.ledger.chain import EntryKind
from wire.protocol.session_notes import SealedFrameList

MAX_DIGESTS = 2000  # in one list: 68 KB
_SKIPPED_ENTRIES = 1000  # without a question for the hub: the mark moves over so many without its being asked
_UNLISTED = (
    "select entry, digest from entries where entry>? and kind in (?,?) and form in (select form from forms where hub=?)"
    " order by entry limit ?"
)


def begin_lists(db: sqlite3.Connection, hub: str) -> None:
    """A session with this hub begins: what is recorded from now on will be listed."""
    tables.raise_value(db, _name_mark(hub), tables.read_value(db, _name_mark(hub), ledger.read_tail(db).entry))


def make_next_list(db: sqlite3.Connection, hub: str) -> SealedFrameList | None:
    """The next list for a hub, None if it has acknowledged all that there is, or never had a session with us."""
    after = tables.read_value(db, _name_mark(hub), -1)
    if after < 0:
        return None
    rows = db.execute(_UNLISTED, (after, EntryKind.QUESTION, EntryKind.RESEALED, hub, MAX_DIGESTS)).fetchall()
    entries = ledger.read_tail(db).entry
    if not rows:
        if entries > after + _SKIPPED_ENTRIES:
            acknowledge_list(db, hub, entries)
        return None
    upto = rows[-1][0] if len(rows) == MAX_DIGESTS else entries
    return SealedFrameList(tables.read_epoch(db), hub, after, upto, tuple(bytes(row[1]) for row in rows))


def acknowledge_list(db: sqlite3.Connection, hub: str, entries: int) -> None:
    """The hub has stored the lists up to this entry."""
    tables.raise_value(db, _name_mark(hub), entries)


def _name_mark(hub: str) -> str:
    return f"listed {hub}"
