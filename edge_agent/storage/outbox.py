"""Owns the table `outbox`: accepted questions, each until its outcome.

Law: a row appears with its ledger entry and its charge, and disappears with its outcome; between them its id is owed.

What rests in the outbox is unreadable without the device's payload key: AES-256-GCM, one random nonce per row.

Law: the row's (epoch, seq) is bound in, so a payload opens in its own row and nowhere else.
"""

import hmac
import os
import sqlite3
from collections.abc import Iterable
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from edge_agent.core.commands import State
from policies.decisions.egress import Egress
from wire.protocol.messages import Prediction

_COLUMNS = (
    "seq,epoch,id,state,created_ms,expires_ms,not_before_ms,attempts,jitter,policy,model,data_class,hub,region,"
    "egress,fingerprint,digest,key_id,size,charge,payload,subject"
)
_egress_encoder = msgspec.msgpack.Encoder()
_egress_decoder = msgspec.msgpack.Decoder(Egress)


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """`payload`: the plaintext, closed by the vault. Times in hub milliseconds. `answered` is read, never written."""

    seq: int
    epoch: int
    id: str
    state: State
    created_ms: int
    expires_ms: int
    not_before_ms: int = 0
    attempts: int = 0
    jitter: float
    policy: str
    model: str
    data_class: str
    hub: str
    region: str
    egress: Egress
    fingerprint: bytes
    digest: bytes
    key_id: bytes
    size: int
    charge: int
    payload: bytes
    subject: bytes = b""
    answered: bool = False


def insert(db: sqlite3.Connection, row: OutboxRow, sealed: bytes) -> None:
    values = (
        row.seq, row.epoch, row.id, row.state, row.created_ms, row.expires_ms, row.not_before_ms, row.attempts,
        row.jitter, row.policy, row.model, row.data_class, row.hub, row.region, _egress_encoder.encode(row.egress),
        row.fingerprint, row.digest, row.key_id, row.size, row.charge, row.payload, row.subject, sealed,
    )  # fmt: skip
    db.execute(f"insert into outbox({_COLUMNS},sealed) values({','.join('?' * len(values))})", values)


def reseal(db: sqlite3.Connection, row: OutboxRow, sealed: bytes) -> None:
    """Under another key, perhaps for another hub: then its plaintext names another region."""
    db.execute(
        "update outbox set state=?, digest=?, key_id=?, sealed=?, hub=?, region=?, fingerprint=?, payload=? "
        "where seq=?",
        (State.SEALED, row.digest, row.key_id, sealed, row.hub, row.region, row.fingerprint, row.payload, row.seq),
    )


def mark(db: sqlite3.Connection, seq: int, state: State, not_before_ms: int, attempts: int) -> None:
    db.execute(
        "update outbox set state=?, not_before_ms=?, attempts=? where seq=?", (state, not_before_ms, attempts, seq)
    )


def delete(db: sqlite3.Connection, seq: int) -> None:
    db.execute("delete from outbox where seq=?", (seq,))


def sealed(db: sqlite3.Connection, seq: int) -> bytes | None:
    """The bytes to send; None if the row has ended."""
    row = db.execute("select sealed from outbox where seq=?", (seq,)).fetchone()
    return None if row is None else bytes(row[0])


def one(db: sqlite3.Connection, seq: int) -> OutboxRow | None:
    return next(iter(_rows(db, "where seq=?", (seq,))), None)


def everything(db: sqlite3.Connection) -> list[OutboxRow]:
    """All rows, oldest first; never their sealed bytes, which may be many."""
    return list(_rows(db, "order by seq", ()))


def _rows(db: sqlite3.Connection, clause: str, values: tuple[object, ...]) -> Iterable[OutboxRow]:
    answered = "exists(select 1 from answers where answers.id=outbox.id and kind='answer')"
    names = _COLUMNS.split(",")
    for found in db.execute(f"select {_COLUMNS},{answered} from outbox {clause}", values):  # noqa: S608
        facts = dict(zip(names, found, strict=False))
        facts["egress"] = _egress_decoder.decode(facts["egress"])
        facts["state"] = State(facts["state"])
        yield OutboxRow(**facts, answered=bool(found[-1]))


_NONCE_BYTES = 12


class VaultError(Exception):
    """The payload was altered, moved, or closed with another key."""


class Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a row keeps of its question: the padded plaintext as it was transformed, and the local answer."""

    padded: bytes
    local: Prediction
    trace: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


class Vault:
    """Closes and opens payloads with one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._key = key

    def derived(self, purpose: bytes) -> bytes:
        """32 bytes for another use: of this key, and unlike those of any other purpose."""
        return hmac.digest(self._key, b"skerry " + purpose, sha256)

    def close(self, epoch: int, seq: int, kept: Kept) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, _encoder.encode(kept), _row(epoch, seq))

    def open(self, epoch: int, seq: int, closed: bytes) -> Kept:
        """VaultError if it is not what `close` made for this row."""
        try:
            plain = self._cipher.decrypt(closed[:_NONCE_BYTES], closed[_NONCE_BYTES:], _row(epoch, seq))
            return _decoder.decode(plain)
        except (InvalidTag, ValueError, msgspec.DecodeError):
            raise VaultError(f"payload of row {seq} does not open") from None


def _row(epoch: int, seq: int) -> bytes:
    return epoch.to_bytes(8, "big") + seq.to_bytes(8, "big")
