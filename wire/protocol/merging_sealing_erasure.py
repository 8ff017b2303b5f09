"""Forgetting a subject: what a device signs to ask for it, and what a hub signs when it is done.

A subject goes over the link as a hash under a key that only its device has; what stays is a hash of that hash.
"""

from hashlib import sha256

import msgspec

ERASE_TAG = b"skerry-erase/1\0"
MARK_TAG = b"skerry-erased/1\0"
STATEMENT_TAG = b"skerry-statement/1\0"  # before what a hub's reply key signs beside frames
SUBJECT_BYTES = 32


class Tombstone(msgspec.Struct, frozen=True):
    """`rows` about the subject that `mark` stands for, kept until `before_ms` of hub time, are gone since `at_ms`."""

    device: str
    mark: str
    before_ms: int
    rows: int
    at_ms: int
    hub: str
    region: str


class Signed(msgspec.Struct, frozen=True):
    """`body`: a `Tombstone` as JSON text; `signature`: of the hub's reply key over STATEMENT_TAG and it, base64."""

    body: str
    signature: str


def mark_of(device: str, subject: bytes) -> bytes:
    """Names a subject of a device to whoever knows its keyed hash already."""
    return sha256(MARK_TAG + device.encode() + b"\0" + subject).digest()


def erase_text(device: str, subject: str, before_ms: int) -> bytes:
    """What the device's identity key signs. `subject`: the keyed hash, hex."""
    return sha256(ERASE_TAG + f"{device}\0{subject}\0{before_ms}".encode()).digest()
