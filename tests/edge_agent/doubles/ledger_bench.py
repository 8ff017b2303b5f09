"""A device's egress ledger and a hub's log of it, without agent or link: tests choose what is sent, signed, logged."""

import json
import sqlite3
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_hub.storage.ledger_log import HubLog, Received
from cloud_hub.storage.ledger_service import export
from edge_agent.identity.identity import Identity
from edge_agent.ledger.verify import Finding, HubFile, against, hub_file, verify, whose
from edge_agent.storage import ledger, ledger_heads, tables
from edge_agent.storage.ledger import Item
from edge_agent.storage.ledger_heads import Due, HubView, Signed, Wish, Witnessed
from edge_agent.storage.schema import connect
from tests.edge_agent.doubles.hub_double import DEVICE, HUB_TIME_MS, SIGNING, HubDouble
from wire.ledger.chain import Form, Head, Kind, head_text
from wire.ledger.checkpoint import origin_of, signed
from wire.protocol.messages import Heads

FEATURES = Form({"features": "P2"}, {"features": []}, "clinic@3", "00" * 16, "hub-1", "eu")
FACES = Form({"features": "P2", "face": "P3"}, {}, "clinic@3+ward", "00" * 16, "hub-2", "us")
HOUR_MS = 3_600_000


def said(epoch: int, head: Signed, key: Ed25519PrivateKey = SIGNING) -> Signed:
    """The same head, signed by this key."""
    return head._replace(signature=key.sign(head_text(Head(DEVICE, epoch, head.entry, head.at_ms, head.hash))))


@dataclass
class Bench:
    """A device's ledger, its identity, and a hub's log. `now_ms` advances with every entry.

    The hub's key is the hub double's, which the device has pinned.
    """

    folder: Path
    log: HubLog = field(default_factory=lambda: HubLog.open(":memory:", 0))
    hub: HubDouble = field(default_factory=HubDouble)
    now_ms: int = HUB_TIME_MS
    count: int = 0

    def __post_init__(self) -> None:
        self.db: sqlite3.Connection = connect(self.folder / "agent.db").db
        self.identity: Identity = self.hub.identity()

    @property
    def epoch(self) -> int:
        return tables.get(self.db, "epoch", 0)

    def send(self, count: int = 1, form: Form = FEATURES, kind: Kind = Kind.QUESTION) -> None:
        """Append entries to the ledger, one a second."""
        for _ in range(count):
            self.count, self.now_ms = self.count + 1, self.now_ms + 1000
            digest = sha256(b"%d" % self.count).digest()
            ledger.append(self.db, Item(kind, form, self.now_ms, 400, digest, self.count, f"{self.count:032x}", 400))

    def sign(self) -> Due:
        """Sign a head over all entries so far."""
        due = ledger_heads.due(self.db, Wish(self.now_ms, 0, 0, True), self._signature)
        assert due is not None
        return due

    def _signature(self, epoch: int, entries: int, at_ms: int, hash: bytes) -> bytes:  # noqa: A002 - the chain's word
        return SIGNING.sign(head_text(Head(DEVICE, epoch, entries, at_ms, hash)))

    def tell(self, due: Due | None = None) -> Witnessed:
        """Have the hub log a head, and store its checkpoint on the device."""
        found = due or self.sign()
        head = found.signed
        known = Heads(found.epoch, head.entry, head.at_ms, head.hash, head.signature, 0, found.spend)
        key = SIGNING.public_key().public_bytes_raw()
        logged = self.log.append([Received(DEVICE, key, known, self.now_ms)])[0]
        tree = self.log.tree()
        text = signed(origin_of("hub-1"), tree, self.hub.signing)
        proof = self.log.inclusion(logged.place, tree.size)
        place = (logged.place, logged.leaf.received_ms, logged.leaf.epochs, proof)
        witnessed = Witnessed(head.entry, "hub-1", self.hub.keys.signing_key, text, *place)
        ledger_heads.keep_witnessed(self.db, witnessed)
        ledger_heads.keep_view(self.db, HubView("hub-1", self.hub.keys.signing_key, text))
        return witnessed

    def verify(self) -> list[Finding]:
        """Verify the device's file alone."""
        return verify(self.db, whose(self.identity))

    def exported(self) -> HubFile:
        """What the hub exports of its log, read back from a file."""
        path = self.folder / "heads.json"
        path.write_text(json.dumps(export(self.log, "hub-1", self.hub.signing, DEVICE)))
        return hub_file(path)

    def against(self) -> list[Finding]:
        """Verify the device's file beside the hub's log."""
        return against(self.db, whose(self.identity), self.exported())

    def rows(self, query: str, *values: Any) -> list[Any]:
        return self.db.execute(query, values).fetchall()


def wrong(findings: list[Finding]) -> list[str]:
    """The proofs in which something was found wrong."""
    return [finding.proof.value for finding in findings if not finding.good]
