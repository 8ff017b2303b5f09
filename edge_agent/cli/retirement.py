"""Retirement of a device: close open questions, export the ledger, tell the hub, wipe keys and records.

Rule: in this order, each step finished before the next; nothing is wiped before the ledger is stored elsewhere and the
hub has been told, or a person has said that it cannot be. Stopped half way, the same command goes on where it was.
"""

import base64
import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from edge_agent.identity.enrollment import PENDING_FILE
from edge_agent.identity.identity import (
    CA_FILE,
    CERTIFICATE_FILE,
    CERTIFICATE_KEY_FILE,
    HPKE_KEY_FILE,
    IDENTITY_FILE,
    PAYLOAD_KEY_FILE,
    ROOT_FILE,
    SIGNING_KEY_FILE,
    Identity,
    load_identity,
)
from edge_agent.ledger_audit.export import LedgerExport, export_ledger, read_export
from edge_agent.storage import answers, outbox, tables
from edge_agent.storage.schema import open_connection
from edge_agent.system.clock import HubClock
from edge_agent.system.http import HubTrust, post_to_hub
from edge_agent.system.settings import ADDRESS_FILE
from edge_agent.update.installed import UPDATES_FOLDER_NAME
from policies.model.reasons import DecisionReason
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import sync_folder, write_private_file
from wire.process.proxy import NO_PROXY, ForwardProxy

RETIRE_TAG = b"skerry-retire/1\0"
DATABASE_FILE = "agent.db"
WIPING_FILE = "wiping"  # there from the first key that is wiped to the last
_SECRETS = (SIGNING_KEY_FILE, HPKE_KEY_FILE, PAYLOAD_KEY_FILE, CERTIFICATE_KEY_FILE, CERTIFICATE_FILE, PENDING_FILE)
_OTHER_FILES = (CA_FILE, ROOT_FILE, ADDRESS_FILE, IDENTITY_FILE)


class RetirementResult(msgspec.Struct, frozen=True):
    """`ledger` None: it was exported before, this time only the wiping was finished. `left`: files that stay.

    `expired`: how many open questions were closed.
    """

    ledger: LedgerExport | None
    expired: int
    left: tuple[str, ...]


def retire_device(
    folder: Path, ledger: Path, *, offline: bool = False, proxy: ForwardProxy = NO_PROXY
) -> RetirementResult:
    """Retire the device in `folder`, which no agent may be using: the caller holds its lock.

    `ledger`: the new file to export to. `offline`: the hub cannot be told; a person retires the device there.
    `proxy`: on the way to the hub.
    After ExitError(HUB, DISK, DATABASE, ...) nothing is wiped, and the exported file stays.
    """
    if (folder / WIPING_FILE).exists():
        return RetirementResult(None, 0, wipe_folder(folder))
    identity = load_identity(folder)
    _check_export_path(folder, ledger)
    clock = HubClock(identity.hub_time_ms)
    with _open_database(folder) as db:
        clock.raise_floor(tables.read_value(db, "floor_ms", 0))
        expired = expire_questions(db, clock.hub_ms())
        # A file that exists already is from an earlier try that did not reach the hub.
        exported = (
            read_export(ledger, identity) if ledger.exists() else export_ledger(db, identity, ledger, clock.hub_ms())
        )
    if not offline:
        notify_hub(identity, exported.sha256, proxy)
    return RetirementResult(exported, expired, wipe_folder(folder))


def expire_questions(db: sqlite3.Connection, at_ms: int) -> int:
    """End every open question, on record, in one transaction. How many there were."""
    rows = outbox.read_rows(db)
    db.execute("begin immediate")
    for row in rows:
        answers.expire_question(db, row, DecisionReason.RETIRED, at_ms)
    db.execute("commit")
    return len(rows)


def notify_hub(identity: Identity, ledger_sha256: str, proxy: ForwardProxy = NO_PROXY) -> None:
    """Tell the hub, with a signed proof. ExitError(HUB) unless it confirms that the device is retired there."""
    text = sha256(RETIRE_TAG + identity.device.encode() + b"\0" + ledger_sha256.encode()).digest()
    proof = base64.b64encode(identity.signing.sign(text)).decode()
    body = msgspec.json.encode({"device": identity.device, "ledger": ledger_sha256, "proof": proof})
    if not identity.hub_url:
        raise ExitError(
            ExitCode.HUB, "this folder does not know its hub's address: use --offline, and retire it at the hub"
        )
    trust = HubTrust(identity.hub_time_ms, identity.trusted)
    reply = post_to_hub(identity.hub_url, "/v1/retire", body, trust, proxy)
    if not reply.ok:
        line = reply.error_line or "no reason given"
        raise ExitError(ExitCode.HUB, f"the hub refused ({reply.status}): {line}; nothing was wiped")


def wipe_folder(folder: Path) -> tuple[str, ...]:
    """Overwrite and remove keys, certificate and records; the names of files that stay. Flash may keep old blocks."""
    write_private_file(folder / WIPING_FILE, b"")
    databases = sorted(path.name for path in folder.glob(f"{DATABASE_FILE}*"))
    for name in (*_SECRETS, *databases):
        _shred_file(folder / name)
    # models and policies: no secrets, but of no use now
    shutil.rmtree(folder / UPDATES_FOLDER_NAME, ignore_errors=True)
    for name in _OTHER_FILES:
        _shred_file(folder / name)
    sync_folder(folder)
    (folder / WIPING_FILE).unlink()
    sync_folder(folder)
    return tuple(sorted(path.name for path in folder.iterdir() if path.name != "lock"))


def _shred_file(path: Path) -> None:
    """Overwrite a small file with zeros, and remove it. ExitError(DISK) if the disk refuses."""
    try:
        if path.stat().st_size <= 65536:  # keys; a large file is only removed
            with path.open("r+b") as file:
                file.write(bytes(path.stat().st_size))
                file.flush()
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{path}: {error.strerror}; type the command again to go on wiping") from None


def _check_export_path(folder: Path, ledger: Path) -> None:
    """Raise ExitError(USAGE) if the ledger would be exported into the folder that is wiped."""
    if ledger.absolute().is_relative_to(folder.absolute()):
        raise ExitError(ExitCode.USAGE, f"{ledger} lies in the folder that is wiped: name a place outside of it")


@contextlib.contextmanager
def _open_database(folder: Path) -> Iterator[sqlite3.Connection]:
    """The device's database, closed at the end.

    ExitError(DATABASE) if it cannot be used or was damaged: nothing is wiped.
    """
    try:
        opened = open_connection(folder / DATABASE_FILE)
    except sqlite3.Error as error:
        raise ExitError(ExitCode.DATABASE, f"{folder / DATABASE_FILE}: {error}; nothing was wiped") from None
    try:
        if opened.damaged:
            raise ExitError(
                ExitCode.DATABASE, f"agent.db was damaged and is now {opened.damaged}: save it, then type this again"
            )
        yield opened.db
    except sqlite3.Error as error:
        raise ExitError(ExitCode.DATABASE, f"{folder / DATABASE_FILE}: {error}; nothing was wiped") from None
    finally:
        opened.db.close()
