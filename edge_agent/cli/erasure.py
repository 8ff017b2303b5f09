"""Erasure of a data subject: on this device first, then at each of its hubs, whose signed tombstones are kept.

Rule: nothing more is sent about the subject before a hub is asked. The device names each question that it asked about
the subject, by number: a hub knows the subject itself only where the policy lets its hash travel. Hubs that could not
be reached are named, and the same command asks them again; the ledger keeps what it has: digests, sizes and rules.
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
from edge_agent.storage.erasing import LocalErasure, list_left_aside, rewrite_files
from edge_agent.storage.outbox import PayloadVault
from edge_agent.storage.schema import open_connection
from edge_agent.system.clock import HubClock
from edge_agent.system.http import HubTrust, post_to_hub
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file
from wire.process.proxy import NO_PROXY, ForwardProxy
from wire.protocol.sealing import (
    MAX_NAMED_QUESTIONS,
    STATEMENT_TAG,
    ErasureTombstone,
    SignedStatement,
    build_erase_text,
    hash_subject_mark,
    name_question,
)

DATABASE_FILE = "agent.db"
STONES_FILE = "tombstones.jsonl"
MAX_STONES_BYTES = 64 * 1024 * 1024


class ErasureResult(msgspec.Struct, frozen=True):
    """The result of an erasure. `answers`: how many were erased here; `stones`: the hubs' tombstones.

    `questions`: how many were named to each hub; `unreached`: hubs that did not erase, and why. `readable`: a line for
    each file of this device that may still hold what was erased.
    """

    answers: int
    questions: int
    stones: tuple[ErasureTombstone, ...]
    unreached: tuple[str, ...]
    readable: tuple[str, ...] = ()

    @property
    def found(self) -> dict[str, int]:
        """By hub: how many rows it found, of this erasure, that still held anything."""
        return {hub: sum(stone.found for stone in self.stones if stone.hub == hub) for hub in self.rows}

    @property
    def rows(self) -> dict[str, int]:
        """By hub: how many rows of the subject it has ever erased for this device."""
        return {stone.hub: stone.rows for stone in self.stones}


def erase_subject(
    folder: Path, subject: str, further: Iterable[Path] = (), proxy: ForwardProxy = NO_PROXY
) -> ErasureResult:
    """Erase a data subject here and at all hubs. `further`: folders of enrolments with other hubs. `proxy`: on the way.

    A hub that fails is part of the result. Raises ExitError(DATABASE, LOCKED, ...) if it cannot be done on this device.
    """
    home = load_identity(folder)
    keyed = SubjectHasher(PayloadVault(home.payload_key)).hash_subject(subject)
    if not keyed:
        raise ExitError(ExitCode.USAGE, "a subject is a text of at least one character")
    gone = _erase_locally(folder, home, keyed)
    requests = _HubRequests(keyed, _read_question_names(folder, keyed), folder / STONES_FILE, proxy)
    stones: list[ErasureTombstone] = []
    unreached: list[str] = []
    for identity in (home, *map(load_identity, further)):
        try:
            stones.extend(requests.send_to(identity))
        except ExitError as stop:
            unreached.append(f"{identity.hub_url or identity.broker_host}: {stop}")
    return ErasureResult(gone.answers, len(requests.names), tuple(stones), tuple(unreached), gone.left)


def _erase_locally(folder: Path, home: Identity, keyed: bytes) -> LocalErasure:
    """Erase through the agent that runs on the folder, or in its database while none does."""
    running = find_running_agent(folder)
    if running is not None:
        return msgspec.convert(request_json(running, f"/v1/subjects/{keyed.hex()}/erase", "POST"), LocalErasure)
    path = folder / DATABASE_FILE
    if not path.exists():
        return LocalErasure(0, list_left_aside(path))
    with FolderLock(folder), closing(open_connection(path).db) as db:
        deleted = answer_table.erase_subject(db, keyed, HubClock(home.hub_time_ms).hub_ms())
        return LocalErasure(deleted, rewrite_files(db, path))


def _read_question_names(folder: Path, keyed: bytes) -> list[str]:
    """Names of all questions about the subject that were erased on this device, now and in the last days."""
    path = folder / DATABASE_FILE
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return [name_question(epoch, seq) for epoch, seq in answer_table.read_erased(db, keyed)]
    except sqlite3.Error as error:
        raise ExitError(ExitCode.DATABASE, f"{path}: {error}; nothing was asked of a hub") from None


class _HubRequests(msgspec.Struct, frozen=True):
    """What every hub is asked to erase: the subject's keyed hash and the names of its questions.

    Tombstones are appended to `stones_file`.
    """

    keyed: bytes
    names: list[str]
    stones_file: Path
    proxy: ForwardProxy

    def send_to(self, identity: Identity) -> list[ErasureTombstone]:
        """The tombstones of the identity's hub, verified and stored, one for each request. ExitError(HUB) otherwise."""
        if not identity.hub_url:
            raise ExitError(ExitCode.HUB, "this folder does not know its hub's address: enrol it anew")
        before_ms = HubClock(identity.hub_time_ms).hub_ms()
        starts = range(0, max(1, len(self.names)), MAX_NAMED_QUESTIONS)
        stones = [self._send(identity, before_ms, self.names[at : at + MAX_NAMED_QUESTIONS]) for at in starts]
        last = stones[-1]
        if last.before_ms < last.at_ms:  # our clock is behind: ask for all that was kept until now by the hub's clock
            stones.append(self._send(identity, last.at_ms, []))
        return stones

    def _send(self, identity: Identity, before_ms: int, names: list[str]) -> ErasureTombstone:
        """Ask the hub to erase what it kept about the subject until `before_ms`, and these questions. Signed."""
        subject = self.keyed.hex()
        proof = identity.signing.sign(build_erase_text(identity.device, subject, before_ms, names))
        asked = {"device": identity.device, "subject": subject, "before_ms": before_ms, "questions": names}
        body = msgspec.json.encode({**asked, "proof": base64.b64encode(proof).decode()})
        trust = HubTrust(identity.hub_time_ms, identity.trusted)
        reply = post_to_hub(identity.hub_url, "/v1/erase", body, trust, self.proxy)
        if not reply.ok:
            raise ExitError(ExitCode.HUB, f"the hub refused ({reply.status}): {reply.error_line or 'no reason given'}")
        stone = _verify_tombstone(identity, reply.body, hash_subject_mark(identity.device, self.keyed).hex())
        _append_tombstone(self.stones_file, reply.body)
        return stone


def _verify_tombstone(identity: Identity, reply: bytes, mark: str) -> ErasureTombstone:
    """The tombstone of a hub's reply, if a hub of ours signed it for this device and subject.

    ExitError(HUB) otherwise.
    """
    try:
        signed = msgspec.json.decode(reply, type=SignedStatement)
        stone = msgspec.json.decode(signed.body, type=ErasureTombstone)
        signature = base64.b64decode(signed.signature, validate=True)
    except (msgspec.DecodeError, ValueError, RecursionError):
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
