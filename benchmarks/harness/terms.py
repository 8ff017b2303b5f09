"""Measures the parts of an escalation's floor alone: cryptography, one durable commit; microseconds, p50."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.harness.figures import US, p50, time_each
from wire.protocol.codec import encode, pad, split
from wire.protocol.messages import Header, Prediction, Verdict
from wire.protocol.sealing import open_sealed, seal, verify
from wire.protocol.topics import Channel, shard_of

DEVICE = "demo--device-0"
COMMITS = 400
ROW_BYTES = 700


class Sealed(NamedTuple):
    """One direction: what sealing and signing, and verifying and opening, take; and the frame's size."""

    out_us: float
    in_us: float
    frame_bytes: int


def sealed(padded: bytes, channel: Channel, times: int = 1000) -> Sealed:
    """Seal and sign, then verify and open, `padded` as a question or a verdict."""
    sender, receiver = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    header = Header(shard_of(DEVICE), DEVICE, 1 << 60, 7, 1_700_000_000_000, b"12345678")
    sender_public, receiver_public = sender.public_key(), receiver.public_key()

    def out() -> bytes:
        return seal(header, padded, to=receiver_public, by=sender, channel=channel)

    frame = out()

    def back() -> bytes:
        parts = split(frame)
        verify(parts, by=sender_public, channel=channel)
        return open_sealed(parts, key=receiver, channel=channel)

    return Sealed(p50(time_each(out, times)) * US, p50(time_each(back, times)) * US, len(frame))


def verdict_plaintext(labels: int = 10) -> bytes:
    """A padded verdict as the hub sends it for a classifier of `labels` classes."""
    prediction = Prediction(3, 0.97, tuple(0.1 for _ in range(labels)), "digits@1")
    return pad(encode(Verdict(prediction, "hub-1", "local", 0.001, 0.001)))


def commit_us(folder: Path, times: int = COMMITS) -> float:
    """One row of 700 bytes, durable: WAL, synchronous=FULL, in `folder`."""
    connection = sqlite3.connect(folder / "commit.db", isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("create table if not exists rows (id integer primary key, payload blob)")
    payload = bytes(ROW_BYTES)

    def commit() -> None:
        connection.execute("begin immediate")
        connection.execute("insert into rows (payload) values (?)", (payload,))
        connection.execute("commit")

    taken = p50(time_each(commit, times, warm=20)) * US
    connection.close()
    return taken
