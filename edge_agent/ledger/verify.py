"""Verifies an egress ledger: the hash chain, the signed heads on it, and what hubs have logged of them.

Also opens the files around a ledger: the device's database, a hub's export, keys and times as typed.
Rule: each finding names the proof it rests on. `chain` finds an entry edited, deleted, inserted or moved; `head` a tail
cut off or a ledger rewritten, if a hub or an auditor holds the head; `log` and `consistency` a hub that shows two logs.
"""

import base64
import binascii
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from edge_agent.identity.identity import Identity
from edge_agent.storage import ledger, ledger_heads, tables
from edge_agent.storage.ledger_heads import Signed, Witnessed
from wire.errors import RemoteError
from wire.ledger import chain, checkpoint, merkle
from wire.ledger.chain import Head, Leaf
from wire.process.exit_codes import Exit, ExitError
from wire.process.files import read_bytes


class Proof(StrEnum):
    """Kind of evidence that a finding rests on."""

    CHAIN = "chain"
    HEAD = "head"
    LOG = "log"
    CONSISTENCY = "consistency"


class Finding(NamedTuple):
    """One result of a check: good or not, the kind of evidence, and the result in words."""

    good: bool
    proof: Proof
    words: str


class Whose(NamedTuple):
    """Owner of a ledger: device id, its raw Ed25519 key, and the pinned keys of its hubs by name."""

    device: str
    key: bytes
    hubs: Mapping[str, bytes]


class Held(NamedTuple):
    """A head that a hub has logged: the leaf, its index in the log, and its Merkle inclusion proof."""

    leaf: Leaf
    place: int
    inclusion: tuple[bytes, ...]


class HubFile(NamedTuple):
    """A hub's export for one device: all its logged heads under one signed checkpoint."""

    hub: str
    checkpoint: str
    heads: tuple[Held, ...]


def whose(identity: Identity) -> Whose:
    """The owner of the ledger that belongs to this identity."""
    key = identity.signing.public_key().public_bytes_raw()
    return Whose(identity.device, key, {hub.name: hub.signing_key for hub in identity.hubs})


def verify(db: sqlite3.Connection, owner: Whose) -> list[Finding]:
    """Verify the device's own database; all findings good means that nothing in it contradicts itself."""
    signed = {head.entry: head for head in ledger_heads.everything(db)}
    held = ledger_heads.witnesses(db)
    findings, hashes = _chain(db, owner, signed)
    if all(finding.good for finding in findings):
        findings += _heads(owner, tables.get(db, "epoch", 0), signed, hashes)
    findings += _witnesses(owner, tables.get(db, "epoch", 0), signed, held)
    return findings + [_forked(view) for view in ledger_heads.views(db).values() if view.forked]


def _chain(
    db: sqlite3.Connection, owner: Whose, signed: Mapping[int, Signed]
) -> tuple[list[Finding], dict[int, bytes]]:
    """Follow every entry of the chain; returns also the hashes at the entries that have signed heads."""
    start = _start(db, owner, signed)
    if isinstance(start, Finding):
        return [start], {}
    at, before = start
    first, count, at_ms = at, 0, signed[at].at_ms if at in signed else 0
    hashes, used = {at: before}, set()
    for link, written in ledger.links(db):
        at, before = at + 1, chain.follow(before, link)
        if link.entry != at or before != written or link.at_ms < at_ms:
            return [Finding(False, Proof.CHAIN, f"entry {at} was edited, deleted, inserted or moved")], {}
        at_ms, count = link.at_ms, count + 1
        used.add(link.form)
        if at in signed:
            hashes[at], at_ms = before, max(at_ms, signed[at].at_ms)
    forms = ledger.forms(db)
    wrong = sorted(name.hex()[:16] for name in used if name not in forms or chain.form_id(forms[name]) != name)
    if wrong:
        return [Finding(False, Proof.CHAIN, f"the form {wrong[0]}... of an entry was edited or deleted")], {}
    return [Finding(True, Proof.CHAIN, f"{count} entries follow each other, from {first + 1} to {at}")], hashes


def _start(db: sqlite3.Connection, owner: Whose, signed: Mapping[int, Signed]) -> tuple[int, bytes] | Finding:
    """(number, hash) before the first stored entry: the genesis, or the signed head up to which was pruned."""
    first = db.execute("select min(entry) from entries").fetchone()[0]
    if first is None or first == 1:
        return 0, chain.genesis(tables.get(db, "epoch", 0))
    anchor = signed.get(first - 1)
    if anchor is None:
        return Finding(False, Proof.CHAIN, f"entries before {first} are gone and no signed head stands for them")
    if not _is_signed(owner, tables.get(db, "epoch", 0), anchor):
        return Finding(False, Proof.HEAD, "the head that stands for what was pruned is not signed by the device")
    return anchor.entry, anchor.hash


def _is_signed(owner: Whose, epoch: int, head: Signed) -> bool:
    said = Head(owner.device, epoch, head.entry, head.at_ms, head.hash)
    return chain.is_signed(said, head.signature, owner.key)


def _heads(owner: Whose, epoch: int, signed: Mapping[int, Signed], hashes: Mapping[int, bytes]) -> list[Finding]:
    """Check that every head is signed by the device over the chain's hash."""
    for entry, head in signed.items():
        if not _is_signed(owner, epoch, head):
            return [Finding(False, Proof.HEAD, f"the head of entry {entry} is not signed by the device")]
        if entry not in hashes:
            return [Finding(False, Proof.HEAD, f"a head was signed at entry {entry}, and the ledger ends before it")]
        if hashes[entry] != head.hash:
            return [Finding(False, Proof.HEAD, f"the head of entry {entry} was signed over another ledger")]
    newest = max(signed, default=0)
    words = f"{len(signed)} signed on it, the newest at entry {newest}" if signed else "none is signed yet"
    return [Finding(True, Proof.HEAD, words)]


def _witnesses(owner: Whose, epoch: int, signed: Mapping[int, Signed], held: Iterable[Witnessed]) -> list[Finding]:
    """Check every hub's witness record; reports the newest of each hub."""
    newest: dict[str, Witnessed] = {}
    for each in held:
        head = signed.get(each.entry)
        if head is None or not is_witnessed(owner, epoch, head, each):
            return [Finding(False, Proof.LOG, f"what {each.hub} signed of the head at entry {each.entry} is wrong")]
        newest[each.hub] = each
    return [
        Finding(
            True, Proof.LOG, f"{hub} logged the head of entry {each.entry} as number {each.place}{_known(owner, each)}"
        )
        for hub, each in newest.items()
    ]


def _known(owner: Whose, each: Witnessed) -> str:
    return "" if owner.hubs.get(each.hub) == each.key else " (under a key that is not pinned now)"


def is_witnessed(owner: Whose, epoch: int, head: Signed, said: Witnessed) -> bool:
    """Whether a hub's checkpoint includes this head and is signed by the key named."""
    try:
        seen = checkpoint.opened(said.checkpoint, said.key)
    except RemoteError:
        return False
    leaf = Leaf(
        device=owner.device, key=owner.key, epoch=epoch, entries=head.entry, at_ms=head.at_ms, head=head.hash,
        signature=head.signature, received_ms=said.received_ms, epochs=said.epochs,
    )  # fmt: skip
    right = seen.origin == checkpoint.origin_of(said.hub)
    return right and merkle.includes(seen.tree, said.place, merkle.leaf_hash(leaf.encoded()), said.inclusion)


def _forked(view: ledger_heads.HubView) -> Finding:
    words = f"{view.hub} has shown two inconsistent logs; both signed checkpoints are kept"
    return Finding(False, Proof.CONSISTENCY, words)


def against(db: sqlite3.Connection, owner: Whose, file: HubFile) -> list[Finding]:
    """Compare the device's ledger with a hub's export: finds entries cut off, rewritten, or a second ledger.

    The export's checkpoint must be signed by a hub whose key the device has pinned.
    """
    key = owner.hubs.get(file.hub)
    try:
        seen = checkpoint.opened(file.checkpoint, key or b"")
    except RemoteError:
        return [Finding(False, Proof.LOG, f"the checkpoint is not signed by a hub {file.hub} that this device knows")]
    if seen.origin != checkpoint.origin_of(file.hub):
        return [Finding(False, Proof.LOG, f"the checkpoint is of {seen.origin}")]
    mine = {link.entry: written for link, written in ledger.links(db)}
    mine |= {head.entry: head.hash for head in ledger_heads.everything(db) if head.entry < min(mine, default=1)}
    found = [
        _check_held(each, owner, seen.tree) or _compared(each.leaf, tables.get(db, "epoch", 0), mine)
        for each in file.heads
    ]
    wrong = [each for each in found if each is not None]
    return wrong or [Finding(True, Proof.LOG, f"all {len(file.heads)} heads that {file.hub} logged are of this ledger")]


def _check_held(held: Held, owner: Whose, tree: merkle.Tree) -> Finding | None:
    """Check one logged head: included in the tree, and signed by the device."""
    leaf = held.leaf
    if leaf.device != owner.device or not merkle.includes(
        tree, held.place, merkle.leaf_hash(leaf.encoded()), held.inclusion
    ):
        return Finding(False, Proof.LOG, f"number {held.place} is not in the log of that checkpoint")
    if not chain.is_signed(leaf.said, leaf.signature, leaf.key):
        return Finding(False, Proof.HEAD, f"number {held.place} is not signed by the key it names")
    return None


def _compared(leaf: Leaf, epoch: int, mine: Mapping[int, bytes]) -> Finding | None:
    """Compare one logged head with the local chain; None if it agrees."""
    if leaf.epoch != epoch:
        return Finding(False, Proof.HEAD, f"the hub knows another ledger of this device, of epoch {leaf.epoch:x}")
    if leaf.entries > max(mine, default=0):
        words = f"the hub logged a head at entry {leaf.entries}, this ledger ends at {max(mine, default=0)}: cut off"
        return Finding(False, Proof.HEAD, words)
    if leaf.entries in mine and mine[leaf.entries] != leaf.head:
        return Finding(False, Proof.HEAD, f"the hub logged another entry {leaf.entries}: this ledger was rewritten")
    return None


DATABASE_FILE = "agent.db"
MAX_FILE_BYTES = 1 << 30
_KEY_BYTES = 32
_AGO = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class _HubHead(msgspec.Struct, frozen=True):
    """One head of a hub's export; bytes are base64, `epoch` hexadecimal."""

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
    """Open the database of an agent, running or not, as one read transaction.

    ExitError(NOT_FOUND or DATABASE) if it cannot be read.
    """
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
    """Read a file of at most 1 GiB. ExitError(SAMPLE) if it cannot be read."""
    return read_bytes(path, Exit.SAMPLE, MAX_FILE_BYTES)


def hub_file(path: Path) -> HubFile:
    """Read a file written by `skerry devices heads`. ExitError(SAMPLE) for anything else."""
    try:
        found = msgspec.json.decode(content(path), type=_HubExport)
        return HubFile(found.hub, found.checkpoint, tuple(_held(each) for each in found.heads))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ExitError(Exit.SAMPLE, f"{path} is not an export of a hub: {str(error)[:120]}") from None


def _held(found: _HubHead) -> Held:
    leaf = Leaf(
        device=found.device, key=found.key, epoch=int(found.epoch, 16), entries=found.entries, at_ms=found.at_ms,
        head=found.head, signature=found.signature, received_ms=found.received_ms, epochs=found.epochs,
    )  # fmt: skip
    return Held(leaf, found.index, found.inclusion)


def key_of(text: str) -> bytes:
    """Parse a raw Ed25519 key in base64 or hex; b"" for "". ExitError(USAGE) for anything else."""
    if not text:
        return b""
    try:
        key = bytes.fromhex(text) if len(text) == 2 * _KEY_BYTES else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ExitError(Exit.USAGE, f"{text[:60]!r} is not an Ed25519 key: give 64 hexadecimal or 44 base64 characters")
    return key


def moment_ms(text: str, now_ms: int) -> int:
    """Parse a time to milliseconds since 1970.

    `7d`, `12h`, `30m`, `2w` ago; `2026-11-22` or `2026-11-22T14:00`, UTC where no zone is given; `now`.
    ExitError(USAGE) otherwise.
    """
    if text == "now":
        return now_ms
    ago = _AGO.fullmatch(text)
    if ago:
        return now_ms - int(timedelta(**{_UNITS[ago[2]]: int(ago[1])}).total_seconds() * 1000)
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        raise ExitError(Exit.USAGE, f"{text[:40]!r} is not a time: 7d, 12h, 2026-11-22 or 2026-11-22T14:00") from None
    return int((said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp() * 1000)
