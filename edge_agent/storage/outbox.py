"""SQL of the table `outbox` (accepted questions), and the encryption of their payloads at rest.

Rule: a row appears in one transaction with its ledger entry and its charge, and disappears with its outcome. Payloads
are encrypted with the device's payload key: AES-256-GCM with one random 96-bit nonce per row. Rule: the row's (epoch,
seq) is authenticated with it, so a payload can be decrypted in its own row and nowhere else.
"""

import hmac
import os
import sqlite3
from collections.abc import Iterable
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from edge_agent.question.commands import OutboxState
from policies.decisions.egress import EgressPlan
from wire.protocol.messages import Prediction

_COLUMNS = (
    "seq,epoch,id,state,created_ms,expires_ms,not_before_ms,attempts,jitter,policy,model,data_class,hub,region,"
    "egress,fingerprint,digest,key_id,size,charge,payload,subject"
)
_egress_encoder = msgspec.msgpack.Encoder()
_egress_decoder = msgspec.msgpack.Decoder(EgressPlan)


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the outbox, without its sealed frame. Times in hub milliseconds since 1970.

    `payload`: the encrypted plaintext. `digest`: SHA-256 of the sealed frame. `size`, `charge`: bytes. `answered` is
    computed when the row is read, never written.
    """

    seq: int
    epoch: int
    id: str
    state: OutboxState
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
    egress: EgressPlan
    fingerprint: bytes
    digest: bytes
    key_id: bytes
    size: int
    charge: int
    payload: bytes
    subject: bytes = b""
    answered: bool = False


def insert_row(db: sqlite3.Connection, row: OutboxRow, sealed: bytes) -> None:
    """Insert a question with its sealed frame."""
    values = (
        row.seq, row.epoch, row.id, row.state, row.created_ms, row.expires_ms, row.not_before_ms, row.attempts,
        row.jitter, row.policy, row.model, row.data_class, row.hub, row.region, _egress_encoder.encode(row.egress),
        row.fingerprint, row.digest, row.key_id, row.size, row.charge, row.payload, row.subject, sealed,
    )  # fmt: skip
    db.execute(f"insert into outbox({_COLUMNS},sealed) values({','.join('?' * len(values))})", values)


def reseal_row(db: sqlite3.Connection, row: OutboxRow, sealed: bytes) -> None:
    """Replace the sealed frame, perhaps for another hub: then the plaintext names another region too."""
    db.execute(
        "update outbox set state=?, digest=?, key_id=?, sealed=?, hub=?, region=?, fingerprint=?, payload=? "
        "where seq=?",
        (
            OutboxState.SEALED,
            row.digest,
            row.key_id,
            sealed,
            row.hub,
            row.region,
            row.fingerprint,
            row.payload,
            row.seq,
        ),
    )


def mark_state(db: sqlite3.Connection, seq: int, state: OutboxState, not_before_ms: int, attempts: int) -> None:
    """Store a changed delivery state; `not_before_ms`: earliest time of the next attempt."""
    db.execute(
        "update outbox set state=?, not_before_ms=?, attempts=? where seq=?", (state, not_before_ms, attempts, seq)
    )


def delete_row(db: sqlite3.Connection, seq: int) -> None:
    """Delete the row of a question that has ended."""
    db.execute("delete from outbox where seq=?", (seq,))


def read_sealed(db: sqlite3.Connection, seq: int) -> bytes | None:
    """The sealed frame to send; None if the row has ended."""
    row = db.execute("select sealed from outbox where seq=?", (seq,)).fetchone()
    return None if row is None else bytes(row[0])


def read_row(db: sqlite3.Connection, seq: int) -> OutboxRow | None:
    """One row, None if it has ended."""
    return next(iter(_query_rows(db, "where seq=?", (seq,))), None)


def read_rows(db: sqlite3.Connection) -> list[OutboxRow]:
    """All rows, oldest first, without their sealed frames, which may be large."""
    return list(_query_rows(db, "order by seq", ()))


def _query_rows(db: sqlite3.Connection, clause: str, values: tuple[object, ...]) -> Iterable[OutboxRow]:
    answered = "exists(select 1 from answers where answers.id=outbox.id and kind='answer')"
    names = _COLUMNS.split(",")
    for found in db.execute(f"select {_COLUMNS},{answered} from outbox {clause}", values):  # noqa: S608
        facts = dict(zip(names, found, strict=False))
        facts["egress"] = _egress_decoder.decode(facts["egress"])
        facts["state"] = OutboxState(facts["state"])
        yield OutboxRow(**facts, answered=bool(found[-1]))


_NONCE_BYTES = 12


class PayloadError(Exception):
    """A payload cannot be decrypted: it was altered, moved, or encrypted with another key."""


class StoredPayload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Contents of a payload: the transformed and padded plaintext of the question, the local answer, the trace."""

    padded: bytes
    local: Prediction
    trace: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredPayload)


class PayloadVault:
    """Encrypts and decrypts payloads with one key (AES-256-GCM)."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._key = key

    def derive_key(self, purpose: bytes) -> bytes:
        """A 32-byte key for another purpose, derived by HMAC-SHA-256; keys of different purposes are independent."""
        return hmac.digest(self._key, b"skerry " + purpose, sha256)

    def encrypt(self, epoch: int, seq: int, kept: StoredPayload) -> bytes:
        """Encrypt a payload for this row; the nonce comes first."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, _encoder.encode(kept), _bind_row(epoch, seq))

    def decrypt(self, epoch: int, seq: int, closed: bytes) -> StoredPayload:
        """Decrypt a payload. PayloadError unless `encrypt` made it for this row with this key."""
        try:
            plain = self._cipher.decrypt(closed[:_NONCE_BYTES], closed[_NONCE_BYTES:], _bind_row(epoch, seq))
            return _decoder.decode(plain)
        except (InvalidTag, ValueError, msgspec.DecodeError):
            raise PayloadError(f"payload of row {seq} cannot be decrypted") from None


def _bind_row(epoch: int, seq: int) -> bytes:
    """The associated data that binds a payload to its row."""
    return epoch.to_bytes(8, "big") + seq.to_bytes(8, "big")
