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
from edge_agent.storage.ledger_heads import SignedHead, WitnessedHead
from wire.errors import RemoteError
from wire.ledger import chain, checkpoint, merkle
from wire.ledger.chain import HeadLeaf, LedgerHead
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_file_bytes


class EvidenceKind(StrEnum):
    """Kind of evidence that a finding rests on."""

    CHAIN = "chain"
    HEAD = "head"
    LOG = "log"
    CONSISTENCY = "consistency"


class Finding(NamedTuple):
    """One result of a check: good or not, the kind of evidence, and the result in words."""

    good: bool
    proof: EvidenceKind
    words: str


class LedgerOwner(NamedTuple):
    """Owner of a ledger: device id, its raw Ed25519 key, and the pinned keys of its hubs by name."""

    device: str
    key: bytes
    hubs: Mapping[str, bytes]


class LoggedHead(NamedTuple):
    """A head that a hub has logged: the leaf, its index in the log, and its Merkle inclusion proof."""

    leaf: HeadLeaf
    place: int
    inclusion: tuple[bytes, ...]


class HubLogExport(NamedTuple):
    """A hub's export for one device: all its logged heads under one signed checkpoint."""

    hub: str
    checkpoint: str
    heads: tuple[LoggedHead, ...]


def make_owner(identity: Identity) -> LedgerOwner:
    """The owner of the ledger that belongs to this identity."""
    key = identity.signing.public_key().public_bytes_raw()
    return LedgerOwner(identity.device, key, {hub.name: hub.signing_key for hub in identity.hubs})


def verify_ledger(db: sqlite3.Connection, owner: LedgerOwner) -> list[Finding]:
    """Verify the device's own database; all findings good means that nothing in it contradicts itself."""
    signed = {head.entry: head for head in ledger_heads.iterate_heads(db)}
    held = ledger_heads.iterate_witnessed(db)
    findings, hashes = _verify_chain(db, owner, signed)
    if all(finding.good for finding in findings):
        findings += _verify_heads(owner, tables.read_value(db, "epoch", 0), signed, hashes)
    findings += _verify_witnesses(owner, tables.read_value(db, "epoch", 0), signed, held)
    return findings + [_report_fork(view) for view in ledger_heads.read_views(db).values() if view.forked]


def _verify_chain(
    db: sqlite3.Connection, owner: LedgerOwner, signed: Mapping[int, SignedHead]
) -> tuple[list[Finding], dict[int, bytes]]:
    """Follow every entry of the chain; returns also the hashes at the entries that have signed heads."""
    start = _find_start(db, owner, signed)
    if isinstance(start, Finding):
        return [start], {}
    at, before = start
    first, count, at_ms = at, 0, signed[at].at_ms if at in signed else 0
    hashes, used = {at: before}, set()
    for link, written in ledger.iterate_links(db):
        at, before = at + 1, chain.chain_hash(before, link)
        if link.entry != at or before != written or link.at_ms < at_ms:
            return [Finding(False, EvidenceKind.CHAIN, f"entry {at} was edited, deleted, inserted or moved")], {}
        at_ms, count = link.at_ms, count + 1
        used.add(link.form)
        if at in signed:
            hashes[at], at_ms = before, max(at_ms, signed[at].at_ms)
    forms = ledger.read_forms(db)
    wrong = sorted(name.hex()[:16] for name in used if name not in forms or chain.hash_form(forms[name]) != name)
    if wrong:
        return [Finding(False, EvidenceKind.CHAIN, f"the form {wrong[0]}... of an entry was edited or deleted")], {}
    return [Finding(True, EvidenceKind.CHAIN, f"{count} entries follow each other, from {first + 1} to {at}")], hashes


def _find_start(
    db: sqlite3.Connection, owner: LedgerOwner, signed: Mapping[int, SignedHead]
) -> tuple[int, bytes] | Finding:
    """(number, hash) before the first stored entry: the genesis, or the signed head up to which was pruned."""
    first = db.execute("select min(entry) from entries").fetchone()[0]
    if first is None or first == 1:
        return 0, chain.genesis_hash(tables.read_value(db, "epoch", 0))
    anchor = signed.get(first - 1)
    if anchor is None:
        return Finding(False, EvidenceKind.CHAIN, f"entries before {first} are gone and no signed head stands for them")
    if not _is_signed(owner, tables.read_value(db, "epoch", 0), anchor):
        return Finding(False, EvidenceKind.HEAD, "the head that stands for what was pruned is not signed by the device")
    return anchor.entry, anchor.hash


def _is_signed(owner: LedgerOwner, epoch: int, head: SignedHead) -> bool:
    said = LedgerHead(owner.device, epoch, head.entry, head.at_ms, head.hash)
    return chain.verify_head(said, head.signature, owner.key)


def _verify_heads(
    owner: LedgerOwner, epoch: int, signed: Mapping[int, SignedHead], hashes: Mapping[int, bytes]
) -> list[Finding]:
    """Check that every head is signed by the device over the chain's hash."""
    for entry, head in signed.items():
        if not _is_signed(owner, epoch, head):
            return [Finding(False, EvidenceKind.HEAD, f"the head of entry {entry} is not signed by the device")]
        if entry not in hashes:
            return [
                Finding(False, EvidenceKind.HEAD, f"a head was signed at entry {entry}, and the ledger ends before it")
            ]
        if hashes[entry] != head.hash:
            return [Finding(False, EvidenceKind.HEAD, f"the head of entry {entry} was signed over another ledger")]
    newest = max(signed, default=0)
    words = f"{len(signed)} signed on it, the newest at entry {newest}" if signed else "none is signed yet"
    return [Finding(True, EvidenceKind.HEAD, words)]


def _verify_witnesses(
    owner: LedgerOwner, epoch: int, signed: Mapping[int, SignedHead], held: Iterable[WitnessedHead]
) -> list[Finding]:
    """Check every hub's witness record; reports the newest of each hub."""
    newest: dict[str, WitnessedHead] = {}
    for each in held:
        head = signed.get(each.entry)
        if head is None or not is_witnessed(owner, epoch, head, each):
            return [
                Finding(False, EvidenceKind.LOG, f"what {each.hub} signed of the head at entry {each.entry} is wrong")
            ]
        newest[each.hub] = each
    return [
        Finding(
            True,
            EvidenceKind.LOG,
            f"{hub} logged the head of entry {each.entry} as number {each.place}{_note_unpinned(owner, each)}",
        )
        for hub, each in newest.items()
    ]


def _note_unpinned(owner: LedgerOwner, each: WitnessedHead) -> str:
    return "" if owner.hubs.get(each.hub) == each.key else " (under a key that is not pinned now)"


def is_witnessed(owner: LedgerOwner, epoch: int, head: SignedHead, said: WitnessedHead) -> bool:
    """Whether a hub's checkpoint includes this head and is signed by the key named."""
    try:
        seen = checkpoint.open_checkpoint(said.checkpoint, said.key)
    except RemoteError:
        return False
    leaf = HeadLeaf(
        device=owner.device, key=owner.key, epoch=epoch, entries=head.entry, at_ms=head.at_ms, head=head.hash,
        signature=head.signature, received_ms=said.received_ms, epochs=said.epochs,
    )  # fmt: skip
    right = seen.origin == checkpoint.build_origin(said.hub)
    return right and merkle.verify_inclusion(
        seen.tree, said.place, merkle.hash_leaf(leaf.encode_leaf()), said.inclusion
    )


def _report_fork(view: ledger_heads.HubLogView) -> Finding:
    words = f"{view.hub} has shown two inconsistent logs; both signed checkpoints are kept"
    return Finding(False, EvidenceKind.CONSISTENCY, words)


def compare_with_hub(db: sqlite3.Connection, owner: LedgerOwner, file: HubLogExport) -> list[Finding]:
    """Compare the device's ledger with a hub's export: finds entries cut off, rewritten, or a second ledger.

    The export's checkpoint must be signed by a hub whose key the device has pinned.
    """
    key = owner.hubs.get(file.hub)
    try:
        seen = checkpoint.open_checkpoint(file.checkpoint, key or b"")
    except RemoteError:
        return [
            Finding(False, EvidenceKind.LOG, f"the checkpoint is not signed by a hub {file.hub} that this device knows")
        ]
    if seen.origin != checkpoint.build_origin(file.hub):
        return [Finding(False, EvidenceKind.LOG, f"the checkpoint is of {seen.origin}")]
    mine = {link.entry: written for link, written in ledger.iterate_links(db)}
    mine |= {head.entry: head.hash for head in ledger_heads.iterate_heads(db) if head.entry < min(mine, default=1)}
    found = [
        _check_logged(each, owner, seen.tree) or _compare_leaf(each.leaf, tables.read_value(db, "epoch", 0), mine)
        for each in file.heads
    ]
    wrong = [each for each in found if each is not None]
    return wrong or [
        Finding(True, EvidenceKind.LOG, f"all {len(file.heads)} heads that {file.hub} logged are of this ledger")
    ]


def _check_logged(held: LoggedHead, owner: LedgerOwner, tree: merkle.TreeHead) -> Finding | None:
    """Check one logged head: included in the tree, and signed by the device."""
    leaf = held.leaf
    if leaf.device != owner.device or not merkle.verify_inclusion(
        tree, held.place, merkle.hash_leaf(leaf.encode_leaf()), held.inclusion
    ):
        return Finding(False, EvidenceKind.LOG, f"number {held.place} is not in the log of that checkpoint")
    if not chain.verify_head(leaf.signed_head, leaf.signature, leaf.key):
        return Finding(False, EvidenceKind.HEAD, f"number {held.place} is not signed by the key it names")
    return None


def _compare_leaf(leaf: HeadLeaf, epoch: int, mine: Mapping[int, bytes]) -> Finding | None:
    """Compare one logged head with the local chain; None if it agrees."""
    if leaf.epoch != epoch:
        return Finding(
            False, EvidenceKind.HEAD, f"the hub knows another ledger of this device, of epoch {leaf.epoch:x}"
        )
    if leaf.entries > max(mine, default=0):
        words = f"the hub logged a head at entry {leaf.entries}, this ledger ends at {max(mine, default=0)}: cut off"
        return Finding(False, EvidenceKind.HEAD, words)
    if leaf.entries in mine and mine[leaf.entries] != leaf.head:
        return Finding(
            False, EvidenceKind.HEAD, f"the hub logged another entry {leaf.entries}: this ledger was rewritten"
        )
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


class _HubExportFile(msgspec.Struct, frozen=True):
    hub: str
    checkpoint: str
    heads: tuple[_HubHead, ...]


@contextmanager
def open_for_reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of an agent, running or not, as one read transaction.

    ExitError(MISSING or DATABASE) if it cannot be read.
    """
    path = folder / DATABASE_FILE
    if not path.is_file():
        raise ExitError(ExitCode.MISSING, f"{path} is not there: is this an agent's state folder?")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as db:
            db.execute("begin")
            if db.execute("select 1 from sqlite_master where name='entries'").fetchone() is None:
                raise ExitError(ExitCode.DATABASE, f"{path} is of an older version: start its agent once")
            yield db
    except sqlite3.Error as error:
        raise ExitError(ExitCode.DATABASE, f"{path}: {error}") from None


def read_content(path: Path) -> bytes:
    """Read a file of at most 1 GiB. ExitError(SAMPLE) if it cannot be read."""
    return read_file_bytes(path, ExitCode.SAMPLE, MAX_FILE_BYTES)


def read_hub_export(path: Path) -> HubLogExport:
    """Read a file written by `skerry devices heads`. ExitError(SAMPLE) for anything else."""
    try:
        found = msgspec.json.decode(read_content(path), type=_HubExportFile)
        return HubLogExport(found.hub, found.checkpoint, tuple(_decode_head(each) for each in found.heads))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ExitError(ExitCode.SAMPLE, f"{path} is not an export of a hub: {str(error)[:120]}") from None


def _decode_head(found: _HubHead) -> LoggedHead:
    leaf = HeadLeaf(
        device=found.device, key=found.key, epoch=int(found.epoch, 16), entries=found.entries, at_ms=found.at_ms,
        head=found.head, signature=found.signature, received_ms=found.received_ms, epochs=found.epochs,
    )  # fmt: skip
    return LoggedHead(leaf, found.index, found.inclusion)


def parse_key(text: str) -> bytes:
    """Parse a raw Ed25519 key in base64 or hex; b"" for "". ExitError(USAGE) for anything else."""
    if not text:
        return b""
    try:
        key = bytes.fromhex(text) if len(text) == 2 * _KEY_BYTES else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ExitError(
            ExitCode.USAGE, f"{text[:60]!r} is not an Ed25519 key: give 64 hexadecimal or 44 base64 characters"
        )
    return key


def parse_time_ms(text: str, now_ms: int) -> int:
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
        raise ExitError(
            ExitCode.USAGE, f"{text[:40]!r} is not a time: 7d, 12h, 2026-11-22 or 2026-11-22T14:00"
        ) from None
    return int((said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp() * 1000)
