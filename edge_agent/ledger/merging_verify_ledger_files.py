"""The files around a ledger, opened to be read: the device's database, what a hub exported, keys and times as typed."""

import base64
import binascii
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from edge_agent.ledger.merging_verify_ledger_verify import Held, HubFile
from wire.ledger.chain import Leaf
from wire.process.exit_codes import Exit, ExitError
from wire.process.files import read_bytes

DATABASE_FILE = "agent.db"
MAX_FILE_BYTES = 1 << 30
_KEY_BYTES = 32
_AGO = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class _HubHead(msgspec.Struct, frozen=True):
    """One head of a hub's export; bytes are base64, `epoch` hex."""

    index: int
    device: str
    key: bytes
    epoch: str
    entries: int
    at_ms: int
    head: bytes
    signature: bytes
    received_ms: int
    epochs: int
    inclusion: tuple[bytes, ...]


class _HubExport(msgspec.Struct, frozen=True):
    hub: str
    checkpoint: str
    heads: tuple[_HubHead, ...]


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """The database of an agent that may run meanwhile: one transaction, so that all is of one moment."""
    path = folder / DATABASE_FILE
    if not path.is_file():
        raise ExitError(Exit.NOT_FOUND, f"{path} is not there: is this an agent's state folder?")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as db:
            db.execute("begin")
            if db.execute("select 1 from sqlite_master where name='entries'").fetchone() is None:
                raise ExitError(Exit.DATABASE, f"{path} is of an older version: start its agent once")
            yield db
    except sqlite3.Error as error:
        raise ExitError(Exit.DATABASE, f"{path}: {error}") from None


def content(path: Path) -> bytes:
    """ExitError(SAMPLE) if it cannot be read."""
    return read_bytes(path, Exit.SAMPLE, MAX_FILE_BYTES)


def hub_file(path: Path) -> HubFile:
    """What `skerry devices heads` wrote. ExitError(SAMPLE) for anything else."""
    try:
        found = msgspec.json.decode(content(path), type=_HubExport)
        return HubFile(found.hub, found.checkpoint, tuple(_held(each) for each in found.heads))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ExitError(Exit.SAMPLE, f"{path} is no export of a hub: {str(error)[:120]}") from None


def _held(found: _HubHead) -> Held:
    leaf = Leaf(
        device=found.device, key=found.key, epoch=int(found.epoch, 16), entries=found.entries, at_ms=found.at_ms,
        head=found.head, signature=found.signature, received_ms=found.received_ms, epochs=found.epochs,
    )  # fmt: skip
    return Held(leaf, found.index, found.inclusion)


def key_of(text: str) -> bytes:
    """A raw Ed25519 key in base64 or hex; b"" for "". ExitError(USAGE) for anything else."""
    if not text:
        return b""
    try:
        key = bytes.fromhex(text) if len(text) == 2 * _KEY_BYTES else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ExitError(Exit.USAGE, f"{text[:60]!r} is no Ed25519 key: 64 hexadecimal or 44 base64 characters")
    return key


def moment_ms(text: str, now_ms: int) -> int:
    """`7d`, `12h`, `30m`, `2w` ago; `2026-11-22` or `2026-11-22T14:00`, UTC where no zone is said; `now`."""
    if text == "now":
        return now_ms
    ago = _AGO.fullmatch(text)
    if ago:
        return now_ms - int(timedelta(**{_UNITS[ago[2]]: int(ago[1])}).total_seconds() * 1000)
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        raise ExitError(Exit.USAGE, f"{text[:40]!r} is no time: 7d, 12h, 2026-11-22 or 2026-11-22T14:00") from None
    return int((said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp() * 1000)
