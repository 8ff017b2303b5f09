"""Measures the parts of an escalation's floor alone: cryptography, one durable commit; microseconds, p50."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.harness.figures import US, find_median, time_each
from cloud_hub.security.signatures import SodiumSigningKey, SodiumVerifyingKey
from wire.protocol.codec import encode_wire_message, pad_plaintext, split_frame
from wire.protocol.messages import FrameHeader, Prediction, Verdict
from wire.protocol.sealing import open_sealed_frame, seal_frame, verify_frame
from wire.protocol.topics import TopicChannel, compute_shard

DEVICE = "demo--device-0"
COMMITS = 400
ROW_BYTES = 700


class SealingTimes(NamedTuple):
    """One direction: what sealing and signing, and verifying and opening, take; and the frame's size."""

    out_us: float
    in_us: float
    frame_bytes: int


def time_sealing(padded: bytes, channel: TopicChannel, times: int = 1000) -> SealingTimes:
    """Seal and sign, then verify and open, `padded` as a question or a verdict: the hub's part as the hub does it."""
    sender, receiver = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    by = SodiumSigningKey(sender.private_bytes_raw()) if channel is TopicChannel.REPLY else sender
    header = FrameHeader(compute_shard(DEVICE), DEVICE, 1 << 60, 7, 1_700_000_000_000, b"12345678")
    sender_public, receiver_public = sender.public_key(), receiver.public_key()
    asked = channel is TopicChannel.QUESTION
    signed_by = SodiumVerifyingKey(sender_public.public_bytes_raw()) if asked else sender_public

    def out() -> bytes:
        return seal_frame(header, padded, to=receiver_public, by=by, channel=channel)

    frame = out()

    def back() -> bytes:
        parts = split_frame(frame)
        verify_frame(parts, by=signed_by, channel=channel)
        return open_sealed_frame(parts, key=receiver, channel=channel)

    return SealingTimes(find_median(time_each(out, times)) * US, find_median(time_each(back, times)) * US, len(frame))


def build_verdict_plaintext(labels: int = 10) -> bytes:
    """A padded verdict as the hub sends it for a classifier of `labels` classes."""
    prediction = Prediction(3, 0.97, tuple(0.1 for _ in range(labels)), "digits@1")
    return pad_plaintext(encode_wire_message(Verdict(prediction, "hub-1", "local", 0.001, 0.001)))


def time_commit_us(folder: Path, times: int = COMMITS) -> float:
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

    taken = find_median(time_each(commit, times, warm=20)) * US
    connection.close()
    return taken
