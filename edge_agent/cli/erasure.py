"""Erasure of a data subject: on this device first, then at each of its hubs, whose signed tombstones are kept.

Rule: nothing more is sent about the subject before a hub is asked. Hubs that could not be reached are named, and the
same command asks them again; the ledger keeps what it has: digests, sizes and rules, never a name.
"""

import base64
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature

from edge_agent.cli.client import find_running_agent, request_json
from edge_agent.identity.identity import Identity, load_identity
from edge_agent.inference.requests import SubjectHasher
from edge_agent.storage import answers as answer_table
from edge_agent.storage import outbox
from edge_agent.storage.outbox import PayloadVault
from edge_agent.storage.schema import open_connection
from edge_agent.system.clock import HubClock
from edge_agent.system.http import HubTrust, post_to_hub
from policies.model.reasons import DecisionReason
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file
from wire.protocol.sealing import STATEMENT_TAG, ErasureTombstone, SignedStatement, build_erase_text, hash_subject_mark

DATABASE_FILE = "agent.db"
STONES_FILE = "tombstones.jsonl"
MAX_STONES_BYTES = 64 * 1024 * 1024


class ErasureResult(msgspec.Struct, frozen=True):
    """The result of an erasure. `answers`: how many were erased here; `stones`: the hubs' tombstones.

    `unreached`: hubs that did not erase, and why.
    """

    answers: int
    stones: tuple[ErasureTombstone, ...]
    unreached: tuple[str, ...]


def erase_subject(folder: Path, subject: str, further: Iterable[Path] = ()) -> ErasureResult:
    """Erase a data subject here and at all hubs. `further`: folders of enrolments with other hubs.

    A hub that fails is part of the result. Raises ExitError(DATABASE, LOCKED, ...) if it cannot be done on this device.
    """
    home = load_identity(folder)
    keyed = SubjectHasher(PayloadVault(home.payload_key)).hash_subject(subject)
    if not keyed:
        raise ExitError(ExitCode.USAGE, "a subject is a text of at least one character")
    gone = _erase_locally(folder, home, keyed)
    stones: list[ErasureTombstone] = []
    unreached: list[str] = []
    for identity in (home, *map(load_identity, further)):
        try:
            stones.append(_erase_at_hub(identity, keyed, folder))
        except ExitError as stop:
            unreached.append(f"{identity.hub_url or identity.broker_host}: {stop}")
    return ErasureResult(gone, tuple(stones), tuple(unreached))


def _erase_locally(folder: Path, home: Identity, keyed: bytes) -> int:
    """Erase through the agent that runs on the folder, or in its database while none does. How many answers went."""
    running = find_running_agent(folder)
    if running is not None:
        return int(request_json(running, f"/v1/subjects/{keyed.hex()}/erase", "POST")["answers"])
    if not (folder / DATABASE_FILE).exists():
        return 0
    with FolderLock(folder), closing(open_connection(folder / DATABASE_FILE).db) as db:
        return erase_rows(db, keyed, HubClock(home.hub_time_ms).hub_ms())


def erase_rows(db: sqlite3.Connection, keyed: bytes, at_ms: int) -> int:
    """Erase in one transaction: open questions end, answers are deleted. How many answers went.

    `keyed`: the keyed hash of the subject. `at_ms`: hub time of the end of its questions.
    """
    db.execute("begin immediate")
    for row in outbox.read_rows(db):
        if row.subject == keyed:
            answer_table.expire_question(db, row, DecisionReason.ERASED, at_ms)
    gone = answer_table.erase_subject(db, keyed)
    db.execute("commit")
    return gone


def _erase_at_hub(identity: Identity, keyed: bytes, folder: Path) -> ErasureTombstone:
    """The hub's tombstone, verified and stored. ExitError(HUB) otherwise."""
    if not identity.hub_url:
        raise ExitError(ExitCode.HUB, "this folder does not know its hub's address: enrol it anew")
    stone, body = _request_erasure(identity, keyed, HubClock(identity.hub_time_ms).hub_ms())
    if stone.before_ms < stone.at_ms:  # our clock is behind: ask for all that was kept until now by the hub's clock
        stone, body = _request_erasure(identity, keyed, stone.at_ms)
    _append_tombstone(folder / STONES_FILE, body)
    return stone


def _request_erasure(identity: Identity, keyed: bytes, before_ms: int) -> tuple[ErasureTombstone, bytes]:
    """Ask the hub to erase what it kept until `before_ms`, with a signed proof. Its tombstone and the reply's bytes."""
    proof = identity.signing.sign(build_erase_text(identity.device, keyed.hex(), before_ms))
    asked = {"device": identity.device, "subject": keyed.hex(), "before_ms": before_ms}
    body = msgspec.json.encode({**asked, "proof": base64.b64encode(proof).decode()})
    reply = post_to_hub(identity.hub_url, "/v1/erase", body, HubTrust(identity.hub_time_ms, identity.trusted))
    if not reply.ok:
        raise ExitError(ExitCode.HUB, f"the hub refused ({reply.status}): {reply.error_line or 'no reason given'}")
    return _verify_tombstone(identity, reply.body, hash_subject_mark(identity.device, keyed).hex()), reply.body


def _verify_tombstone(identity: Identity, reply: bytes, mark: str) -> ErasureTombstone:
    """The tombstone of a hub's reply, if a hub of ours signed it for this device and subject.

    ExitError(HUB) otherwise.
    """
    try:
        signed = msgspec.json.decode(reply, type=SignedStatement)
        stone = msgspec.json.decode(signed.body, type=ErasureTombstone)
        signature = base64.b64decode(signed.signature, validate=True)
    except (msgspec.DecodeError, ValueError):
        raise ExitError(ExitCode.HUB, "the hub's reply is no tombstone") from None
    for hub in identity.hubs:
        try:
            hub.signed_by.verify(signature, STATEMENT_TAG + signed.body.encode())
        except InvalidSignature:
            continue
        if (stone.device, stone.mark) == (identity.device, mark):
            return stone
    raise ExitError(ExitCode.HUB, "the hub's tombstone is not signed by a hub of ours, or is another's")


def _append_tombstone(path: Path, reply: bytes) -> None:
    """Append a tombstone to the folder's file of them; the oldest go at 64 MiB."""
    kept = path.read_bytes() if path.exists() else b""
    write_private_file(path, (kept + reply + b"\n")[-MAX_STONES_BYTES:])
