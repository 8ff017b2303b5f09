"""Exports the egress ledger of a device to a signed file: JSON lines, the last one the signature.

Rule: the file lists what left this device, under which rule, to which region, and how each question ended; it holds no
value of a sample. It is signed with the identity key, which the hub knows, so it remains evidence after the device is
gone.
"""

import base64
import os
import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature

from edge_agent.identity.identity import Identity
from edge_agent.storage import answers, ledger, tables
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import sync_folder

EXPORT_TAG = b"skerry-ledger/1\0"
FORMAT = 1


class LedgerExport(msgspec.Struct, frozen=True):
    """Result of an export: path, counts, and `sha256` (hex) of the whole file."""

    path: Path
    entries: int
    outcomes: int
    sha256: str


class _LastLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last line: counts, SHA-256 (hex) of all lines before, Ed25519 signature (base64)."""

    entries: int
    outcomes: int
    sha256: str
    signature: str


def export_ledger(db: sqlite3.Connection, identity: Identity, path: Path, at_ms: int) -> LedgerExport:
    """Write the ledger and all outcomes to a new private file (mode 0600), durable when this returns.

    ExitError(DISK) if it cannot be written or exists already.
    """
    head = {
        "skerry_ledger": FORMAT,
        "device": identity.device,
        "epoch": f"{tables.read_value(db, 'epoch', 0):x}",
        "exported_ms": at_ms,
        "signing_key": base64.b64encode(identity.signing.public_key().public_bytes_raw()).decode(),
    }
    counts = {"entries": 0, "outcomes": 0}
    hashed = sha256()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            for line in _make_lines(db, head, counts):
                hashed.update(line)
                file.write(line)
            last = _sign_lines(hashed.digest(), identity, counts)
            hashed.update(last)
            file.write(last)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.absolute().parent)
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{path}: {error.strerror}; the ledger was not exported") from None
    return LedgerExport(path, counts["entries"], counts["outcomes"], hashed.hexdigest())


def _make_lines(db: sqlite3.Connection, head: dict[str, Any], counts: dict[str, int]) -> Iterator[bytes]:
    """Header, entries and outcomes as JSON lines; counts them in `counts`."""
    yield _encode_line(head)
    for entry in ledger.iterate_entries(db):
        counts["entries"] += 1
        yield _encode_line({"entry": entry})
    for end in answers.iterate_outcomes(db):
        counts["outcomes"] += 1
        yield _encode_line({"outcome": {**end._asdict(), "epoch": f"{end.epoch:x}"}})


def _sign_lines(digest: bytes, identity: Identity, counts: dict[str, int]) -> bytes:
    """The last line: the counts, the SHA-256 of all lines before, and the device's signature over it."""
    signature = identity.signing.sign(EXPORT_TAG + digest)
    return _encode_line({**counts, "sha256": digest.hex(), "signature": base64.b64encode(signature).decode()})


def _encode_line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def read_export(path: Path, identity: Identity) -> LedgerExport:
    """Check an existing export of this device. ExitError(DISK) unless it is complete and its signature is valid."""
    hashed, last = sha256(), b""
    try:
        with path.open("rb") as file:
            for line in file:
                hashed.update(last)
                last = line
        end = msgspec.json.decode(last, type=_LastLine)
        signature = base64.b64decode(end.signature, validate=True)
        identity.signing.public_key().verify(signature, EXPORT_TAG + hashed.digest())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ValueError, InvalidSignature):
        raise ExitError(
            ExitCode.DISK, f"{path} is there already and is no whole ledger of this device: name another"
        ) from None
    hashed.update(last)
    return LedgerExport(path, end.entries, end.outcomes, hashed.hexdigest())
