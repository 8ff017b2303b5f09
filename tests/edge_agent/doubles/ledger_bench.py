"""A device's egress ledger and a hub's log of it, without agent or link: tests choose what is sent, signed, logged."""

import json
import sqlite3
import weakref
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_hub.database.connection import IN_MEMORY
from cloud_hub.storage.ledger_log import LedgerLog, ReceivedHead
from cloud_hub.storage.ledger_service import export_heads
from edge_agent.identity.identity import Identity
from edge_agent.ledger_audit.verify import (
    Finding,
    HubLogExport,
    compare_with_hub,
    make_owner,
    read_hub_export,
    verify_ledger,
)
from edge_agent.storage import ledger, ledger_heads, tables
from edge_agent.storage.ledger import LedgerItem
from edge_agent.storage.ledger_heads import HeadRequest, HubLogView, PendingHead, SignedHead, WitnessedHead
from edge_agent.storage.schema import open_connection
from tests.edge_agent.doubles.hub_double import DEVICE, HUB_TIME_MS, SIGNING, HubDouble
from tests.second_implementation import ledger as stranger
from wire.ledger.chain import EntryForm, EntryKind
from wire.protocol.messages import LedgerHeadReport

FEATURES = EntryForm({"features": "P2"}, {"features": []}, "clinic@3", "00" * 16, "hub-1", "eu")
FACES = EntryForm({"features": "P2", "face": "P3"}, {}, "clinic@3+ward", "00" * 16, "hub-2", "us")
HOUR_MS = 3_600_000


def resign_head(epoch: int, head: SignedHead, key: Ed25519PrivateKey = SIGNING) -> SignedHead:
    """The same head, signed by this key."""
    return head._replace(signature=sign_values(epoch, head.entry, head.at_ms, head.hash, key))


def sign_values(epoch: int, entries: int, at_ms: int, digest: bytes, key: Ed25519PrivateKey = SIGNING) -> bytes:
    head = {"device": DEVICE, "epoch": epoch, "entries": entries, "at_ms": at_ms, "hash": digest}
    return stranger.sign_head(head, key.private_bytes_raw())


@dataclass
class LedgerBench:
    """A device's ledger, its identity, and a hub's log. `now_ms` advances with every entry.

    The hub's key is the hub double's, which the device has pinned.
    """

    folder: Path
    log: LedgerLog = field(default_factory=lambda: LedgerLog.open(IN_MEMORY, 0))
    hub: HubDouble = field(default_factory=HubDouble)
    now_ms: int = HUB_TIME_MS
    count: int = 0

    def __post_init__(self) -> None:
        self.db: sqlite3.Connection = open_connection(self.folder / "agent.db").db
        weakref.finalize(self, self.db.close)
        self.identity: Identity = self.hub.identity()

    @property
    def epoch(self) -> int:
        return tables.read_value(self.db, "epoch", 0)

    def append_entries(self, count: int = 1, form: EntryForm = FEATURES, kind: EntryKind = EntryKind.QUESTION) -> None:
        """Append entries to the ledger, one a second."""
        for _ in range(count):
            self.count, self.now_ms = self.count + 1, self.now_ms + 1000
            digest = sha256(b"%d" % self.count).digest()
            ledger.append_item(
                self.db, LedgerItem(kind, form, self.now_ms, 400, digest, self.count, f"{self.count:032x}", 400)
            )

    def sign_head(self) -> PendingHead:
        """Sign a head over all entries so far."""
        due = ledger_heads.sign_due_head(self.db, HeadRequest(self.now_ms, 0, 0, True), sign_values)
        assert due is not None
        return due

    def witness_head(self, due: PendingHead | None = None) -> WitnessedHead:
        """Have the hub log a head, and store its checkpoint on the device."""
        found = due or self.sign_head()
        head = found.signed
        known = LedgerHeadReport(found.epoch, head.entry, head.at_ms, head.hash, head.signature, 0, found.spend)
        key = SIGNING.public_key().public_bytes_raw()
        logged = self.log.append([ReceivedHead(DEVICE, key, known, self.now_ms)])[0]
        tree = self.log.tree()
        text = stranger.checkpoint("hub-1", tree.size, tree.root, self.hub.signing.private_bytes_raw())
        proof = self.log.prove_inclusion(logged.place, tree.size)
        place = (logged.place, logged.leaf.received_ms, logged.leaf.epochs, proof)
        witnessed = WitnessedHead(head.entry, "hub-1", self.hub.keys.signing_key, text, *place)
        ledger_heads.store_witnessed(self.db, witnessed)
        ledger_heads.store_view(self.db, HubLogView("hub-1", self.hub.keys.signing_key, text))
        return witnessed

    def verify_ledger(self) -> list[Finding]:
        """Verify the device's file alone."""
        return verify_ledger(self.db, make_owner(self.identity))

    def exported_heads(self) -> HubLogExport:
        """What the hub exports of its log, read back from a file."""
        path = self.folder / "heads.json"
        path.write_text(json.dumps(export_heads(self.log, "hub-1", self.hub.signing, DEVICE)))
        return read_hub_export(path)

    def verify_against_hub(self) -> list[Finding]:
        """Verify the device's file beside the hub's log."""
        return compare_with_hub(self.db, make_owner(self.identity), self.exported_heads())

    def query_rows(self, query: str, *values: Any) -> list[Any]:
        return self.db.execute(query, values).fetchall()


def failed_proofs(findings: list[Finding]) -> list[str]:
    """The proofs in which something was found wrong."""
    return [finding.proof.value for finding in findings if not finding.good]
