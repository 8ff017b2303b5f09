"""Signed lists of the frames that devices sealed in sessions, and which frames are on none of them.

A question of a session is not signed; its device signs a list of the digests of all that it sealed, some minutes later.
Rule: a list is kept as it was signed, is never changed, and goes after `LISTS_LIVE_S` alone. Which questions came in
sessions is told by the version of the frames that are stored of them, their verdict or, until then, themselves.
"""

import base64
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from cloud_hub.core.commands import KeepFrameList
from cloud_hub.database.connection import read_snapshot
from cloud_hub.database.statements import insert_missing, write_rows
from cloud_hub.database.tables import effects, frame_lists, sealed, session_checks
from wire.errors import RemoteError
from wire.protocol.codec import SESSION_VERSION, decode_up_note, split_frame
from wire.protocol.session_notes import SealedFrameList

LIST_DUE_S = (
    1800.0  # a frame that was taken in so long ago has to be on a list; devices send one each quarter of an hour
)
LISTS_LIVE_S = 90 * 86_400.0  # longer than the rows of questions, for disputes
_BEFORE_S = 2 * 3600.0  # longer than a session and its grace: no list is older than the first frame of its session
MAX_EXPORTED = 5000  # lists in one export, the newest


class FrameLists:
    """The lists in the ledger's database; used by the thread of the log."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, told: KeepFrameList, received_ms: int) -> None:
        """Keep a list, durable when it returns; the same note once more adds nothing."""
        row = {
            "device": told.device, "name": sha256(told.frame).digest(), "signer": told.key, "received_ms": received_ms,
            "frame": told.frame,
        }  # fmt: skip
        old = frame_lists.c.received_ms < received_ms - int(LISTS_LIVE_S * 1000)
        with self._engine.begin() as connection:
            insert_missing(connection, frame_lists, row)
            connection.execute(frame_lists.delete().where(frame_lists.c.device == told.device, old))

    def find_unlisted(self, questions: sa.Engine, device: str, now_ms: int) -> int:
        """How many frames of a device's sessions are on no list though they are due.

        If it is none, they are not looked at again. `questions`: of the database with the questions.
        """
        since_ms, until_ms = self._read_checked(device), now_ms - int(LIST_DUE_S * 1000)
        if until_ms <= since_ms:
            return 0
        missing = read_session_digests(questions, device, since_ms, until_ms)
        if missing:
            missing -= self._read_digests(device, since_ms - int(_BEFORE_S * 1000))
        if not missing:
            with self._engine.begin() as connection:
                checked = {"device": device, "checked_ms": until_ms}
                write_rows(connection, session_checks, [checked], raised=("checked_ms",))
        return len(missing)

    def export_lists(self, device: str) -> list[dict[str, Any]]:
        """The newest lists of a device, oldest first, JSON-able: bytes as base64, `received_ms` of hub time.

        `key`: the raw Ed25519 key that verifies `frame`, the note as it was signed.
        """
        newest = sa.select(frame_lists).where(frame_lists.c.device == device).order_by(frame_lists.c.received_ms.desc())
        with read_snapshot(self._engine) as connection:
            rows = connection.execute(newest.limit(MAX_EXPORTED)).all()
        return [
            {
                "key": base64.b64encode(row.signer).decode(),
                "received_ms": row.received_ms,
                "frame": base64.b64encode(row.frame).decode(),
            }
            for row in reversed(rows)
        ]

    def _read_checked(self, device: str) -> int:
        query = sa.select(session_checks.c.checked_ms).where(session_checks.c.device == device)
        with read_snapshot(self._engine) as connection:
            return int(connection.execute(query).scalar() or 0)

    def _read_digests(self, device: str, since_ms: int) -> set[bytes]:
        later = sa.select(frame_lists.c.frame).where(
            frame_lists.c.device == device, frame_lists.c.received_ms >= since_ms
        )
        with read_snapshot(self._engine) as connection:
            return {digest for row in connection.execute(later) for digest in _decode_digests(row.frame)}


def _decode_digests(frame: bytes) -> tuple[bytes, ...]:
    """Digests of a list that was verified before it was stored."""
    try:
        note = decode_up_note(split_frame(frame).body)
    except RemoteError:
        return ()
    return note.digests if isinstance(note, SealedFrameList) else ()


def read_session_digests(questions: sa.Engine, device: str, since_ms: int, until_ms: int) -> set[bytes]:
    """Digests of the questions that were taken in of a device's sessions above `since_ms` and up to `until_ms`.

    Those that were answered, or wait for an answer: a question that ended without one is evidence of nothing.
    """
    version = bytes((SESSION_VERSION,))
    joined = effects.outerjoin(sealed, sa.and_(*(sealed.c[c.name] == c for c in effects.primary_key)))
    query = (
        sa.select(effects.c.digest)
        .select_from(joined)
        .where(
            effects.c.device == device,
            effects.c.kept_ms > since_ms,
            effects.c.kept_ms <= until_ms,
            sa.or_(
                sa.func.substr(effects.c.verdict, 1, 1) == version,
                sa.and_(effects.c.ended_ms.is_(None), sa.func.substr(sealed.c.frame, 1, 1) == version),
            ),
        )
    )
    with read_snapshot(questions) as connection:
        return {bytes(row.digest) for row in connection.execute(query)}
