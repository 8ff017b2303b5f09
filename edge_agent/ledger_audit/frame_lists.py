"""Signed lists of the frames that a device sealed in sessions: who sealed a frame, and whether its ledger agrees.

A question of a session has no signature of its own. A device signs lists of the digests of its questions; a hub keeps
and exports them. Rule: a list counts by the device's signature alone, whoever hands it over.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edge_agent.ledger_audit.verify import EvidenceKind, ExportedList, Finding, LedgerOwner
from edge_agent.storage import ledger, tables
from wire.errors import RemoteError
from wire.ledger.chain import EntryKind
from wire.protocol.codec import decode_up_note, split_frame
from wire.protocol.messages import CipherSuite
from wire.protocol.sealing import compute_key_id, verify_frame
from wire.protocol.session_notes import SealedFrameList
from wire.protocol.topics import TopicChannel

_QUESTIONS = (EntryKind.QUESTION, EntryKind.RESEALED)


class SignedList(NamedTuple):
    """A list whose signature holds. `signed_ms`: when the device signed it, hub time."""

    device: str
    key: bytes
    signed_ms: int
    listed: SealedFrameList


def open_list(exported: ExportedList) -> SignedList | None:
    """The list, None unless the holder of the key signed it."""
    try:
        frame = split_frame(exported.frame)
        verify_frame(frame, by=Ed25519PublicKey.from_public_bytes(exported.key), channel=TopicChannel.REPORT)
        note = decode_up_note(frame.body)
    except (RemoteError, ValueError):
        return None
    if frame.suite is not CipherSuite.SIGNED or not isinstance(note, SealedFrameList):
        return None
    return SignedList(frame.header.device, exported.key, frame.header.created_ms, note)


def compare_lists(db: sqlite3.Connection, owner: LedgerOwner, exported: Sequence[ExportedList]) -> list[Finding]:
    """Compare the lists that a hub exports with the device's ledger; no finding if there are none.

    A list names all questions for its hub in its part of the ledger and no others, in their order. Of entries that
    were pruned nothing is compared.
    """
    epoch, first = tables.read_value(db, "epoch", 0), _first_entry(db)
    named = 0
    for number, each in enumerate(exported):
        opened = open_list(each)
        if opened is None or opened.device != owner.device:
            return [Finding(False, EvidenceKind.FRAMES, f"list {number} is not signed by {owner.device}")]
        listed = opened.listed
        if listed.epoch != epoch:
            words = f"list {number} is of another ledger of this device, of epoch {listed.epoch:x}"
            return [Finding(False, EvidenceKind.FRAMES, words)]
        if listed.after + 1 >= first and _read_digests(db, listed) != listed.digests:
            words = f"list {number} does not name what the ledger has in its entries {listed.after + 1} to "
            return [Finding(False, EvidenceKind.FRAMES, f"{words}{listed.entries}")]
        named += len(listed.digests)
    words = f"{len(exported)} signed lists name {named} questions, as the ledger has them"
    return [Finding(True, EvidenceKind.FRAMES, words)] if exported else []


def find_sealer(exported: Iterable[ExportedList], digest: bytes, device_key: bytes = b"") -> list[Finding]:
    """Who signed that it sealed the frame of this digest. `device_key`: of the device, from a source that is trusted.

    A list that is not signed as it says is a bad finding, whatever it names.
    """
    found: list[Finding] = []
    for number, each in enumerate(exported):
        opened = open_list(each)
        if opened is None:
            return [Finding(False, EvidenceKind.FRAMES, f"list {number} is not signed by the key it names")]
        if digest in opened.listed.digests and (not device_key or device_key == opened.key):
            words = (
                f"{opened.device}, key {compute_key_id(opened.key).hex()}, signed that it sealed this frame for "
                f"{opened.listed.hub} (ledger {opened.listed.epoch:x}, entries {opened.listed.after + 1} to "
                f"{opened.listed.entries})"
            )
            found.append(Finding(True, EvidenceKind.FRAMES, words))
    return found or [Finding(False, EvidenceKind.FRAMES, "no list names this frame")]


def _first_entry(db: sqlite3.Connection) -> int:
    return int(db.execute("select coalesce(min(entry), 1) from entries").fetchone()[0])


def _read_digests(db: sqlite3.Connection, listed: SealedFrameList) -> tuple[bytes, ...]:
    """Digests of the questions for the list's hub in the list's part of the ledger."""
    forms = ledger.read_forms(db, listed.after, listed.entries)
    return tuple(
        bytes(link.digest)
        for link, _ in ledger.iterate_links(db, listed.after, listed.entries)
        if link.kind in _QUESTIONS and forms[bytes(link.form)].hub == listed.hub
    )
