"""Witness client: has hubs witness the egress ledger. Sends its signed heads, checks the hubs' checkpoints, keeps both.

It also measures how many bytes the sockets of all lines have sent, and stores that figure.

Rule: a hub's checkpoint counts if its pinned key signed it, our head is in its log (inclusion proof), and that log has
only grown since we last saw it (consistency proof, RFC 9162 section 2.1). A log that did not grow consistently raises a
lasting alarm: the hub shows two views.
"""

import asyncio
from functools import partial
from typing import Any

from edge_agent.identity.identity import HubKeys, Identity
from edge_agent.storage import ledger_heads, tables
from edge_agent.storage.ledger_heads import HeadHistory, HeadRequest, HubLogView, PendingHead, SignedHead, WitnessedHead
from edge_agent.system.settings import AgentSettings
from edge_agent.uplink.outbound import LedgeredSender, read_result
from edge_agent.uplink.services import AgentServices
from wire.errors import RemoteError
from wire.ledger import checkpoint, merkle
from wire.ledger.chain import HeadLeaf
from wire.ledger.merkle import TreeHead
from wire.protocol.messages import CheckpointNote, LedgerHeadReport


class SocketMeter:
    """Counts the bytes that all sockets send, and stores what they add up to; used on the event loop only."""

    def __init__(self, parts: AgentServices, sender: LedgeredSender) -> None:
        self._parts = parts
        self._sender = sender
        self._noted = 0
        self.stored_at = float("-inf")

    def flush(self, at_least: int = 1) -> None:
        """Store what was sent since the last time, if that is `at_least` so many bytes."""
        sent = self._parts.connections.sent_bytes
        if sent - self._noted >= at_least:
            more, self._noted = sent - self._noted, sent
            self.stored_at = self._parts.clock.now()
            self._parts.database.write(
                (partial(tables.add_traffic, at_ms=self._parts.clock.hub_ms(), size=more),), soon=True
            )

    def status_fields(self) -> dict[str, Any]:
        """Status fields in bytes since the start: `by_rule` and `overhead` sum up to `sockets`."""
        rules, sent = dict(self._sender.by_rule), self._parts.connections.sent_bytes
        overhead = sent - sum(rules.values()) if sent else None  # None: this system does not count them
        return {"sent": {"by_rule": rules, "overhead": overhead, "sockets": sent or None}}


HEAD_INTERVAL_S = 900.0  # how often the head of a growing ledger is sent
IDLE_INTERVAL_S = 21_600.0  # and of one that does not grow
CHECK_INTERVAL_S = 60.0  # how often we check whether a head is due
RECONNECT_INTERVAL_S = 60.0  # at most one head in so long because of a new connection
RETRY_INTERVAL_S = 5.0  # while no hub has answered and our spending is not known
FLUSH_BYTES = 512  # fewer bytes are stored with the next question's outcome, or at the next check
METER_INTERVAL_S = 1.0  # between two sums of sent bytes that share the commit of an outcome
FORKED = "hub_log_forked"
_NOTHING = TreeHead(0, b"")


class WitnessClient:
    """Sends ledger heads and checks the checkpoints that come back; used on the event loop only. A status provider.

    `every_s`: how often a ledger that grows has its head signed and sent.
    """

    def __init__(
        self, parts: AgentServices, sender: LedgeredSender, identity: Identity, every_s: float = HEAD_INTERVAL_S
    ) -> None:
        self._parts = parts
        self._sender = sender
        self._device, self._key = identity.device, identity.signing.public_key().public_bytes_raw()
        self._every_s = every_s
        self._meter = SocketMeter(parts, sender)
        self._told_at: float | None = None
        self._looked_at = parts.clock.now()
        self._asked: dict[int, int] = {}  # head sent -> size of the log that we said we know
        self._newest: SignedHead | None = None
        self._seen: WitnessedHead | None = None
        self._forked = False

    def use_settings(self, settings: AgentSettings) -> None:
        """Sign heads as often as these settings say, from now on."""
        self._every_s = settings.heads_every_s

    def on_connected(self) -> None:
        """The home hub is connected and may not have had a head for long: send one."""
        now = self._parts.clock.now()
        self._sign_head(now, tell=self._told_at is None or now - self._told_at >= RECONNECT_INTERVAL_S)

    def _sign_head(self, now: float, *, tell: bool) -> None:
        if tell:
            self._told_at = now
        wish = HeadRequest(self._parts.clock.hub_ms(), self._every_s, IDLE_INTERVAL_S, tell)
        found = self._parts.database.read(
            partial(ledger_heads.sign_due_head, wish=wish, sign=self._parts.envelopes.sign_head)
        )
        found.add_done_callback(self._send_head)

    def send_due(self) -> None:
        """Sign and send a head if one is due; called about every second.

        Until a hub has answered with what it remembers of our spending, no question may be sent: then heads go out more
        often.
        """
        parts, now = self._parts, self._parts.clock.now()
        if now - self._looked_at >= min(CHECK_INTERVAL_S, self._every_s):
            self._looked_at = now
            self._meter.flush()
            self._sign_head(now, tell=False)
        self._meter.flush(at_least=FLUSH_BYTES)
        if parts.core.permissions.spend.mirrored or not parts.connections.home.up:
            return
        pause_s = RECONNECT_INTERVAL_S if self._seen is not None else RETRY_INTERVAL_S
        if self._told_at is None or now - self._told_at >= pause_s:
            self._sign_head(now, tell=True)

    def add_meter(self) -> None:
        """A commit is due: store what the sockets have sent with it, about once a second."""
        if self._parts.clock.now() - self._meter.stored_at >= METER_INTERVAL_S:
            self._meter.flush()

    def flush_meter(self) -> None:
        """At the end of the process: store what the sockets have sent."""
        self._meter.flush()

    def _send_head(self, found: "asyncio.Future[PendingHead | None]") -> None:
        due = read_result(found)
        if due is None:
            return
        self._newest = signed = due.signed
        if not self._parts.connections.home.up:
            self._told_at = None
            return  # signed all the same: an anchor for what is pruned
        self._told_at = self._parts.clock.now()
        known = next((_tree_of_view(due.views[hub]).size for hub in self._parts.envelopes.hubs if hub in due.views), 0)
        self._asked = {signed.entry: known}
        told = LedgerHeadReport(
            epoch=due.epoch, entries=signed.entry, at_ms=signed.at_ms, head=signed.hash, signature=signed.signature,
            known=known, spend=due.spend,
        )  # fmt: skip
        self._sender.send_note(told)

    # Checkpoints from hubs

    def on_checkpoint(self, note: CheckpointNote) -> None:
        """Check a hub's checkpoint of our head.

        It is signed on its own, beside the note's signature, for third parties to check.
        """
        if note.epoch == self._parts.core.epoch:
            found = self._parts.database.read(partial(ledger_heads.read_history, entry=note.entries))
            found.add_done_callback(partial(self._check_checkpoint, note))

    def _check_checkpoint(self, note: CheckpointNote, found: "asyncio.Future[HeadHistory]") -> None:
        story = read_result(found)
        hub = self._signing_hub(note.text)
        if story is None or story.signed is None or hub is None:
            self._parts.counts["checkpoints_refused"] += 1
            return
        tree = checkpoint.open_checkpoint(note.text, hub.signing_key).tree
        if not merkle.verify_inclusion(
            tree, note.index, merkle.hash_leaf(self._encode_leaf(note, story.signed)), note.inclusion
        ):
            self._parts.counts["checkpoints_refused"] += 1
            return
        place = (note.index, note.received_ms, note.epochs, note.inclusion)
        self._update_view(note, hub, tree, story.views.get(hub.name))
        self._seen = WitnessedHead(note.entries, hub.name, hub.signing_key, note.text, *place)
        self._parts.counts["checkpoints"] += 1
        self._parts.database.write((partial(ledger_heads.store_witnessed, said=self._seen),))

    def _update_view(self, note: CheckpointNote, hub: HubKeys, tree: TreeHead, view: HubLogView | None) -> None:
        """Advance our view of this hub's log, or detect that the log has forked."""
        kept = _tree_of_view(view) if view else _NOTHING
        self._forked = self._forked or bool(view and view.forked)
        grown = not kept.size or merkle.verify_consistency(kept, tree, note.consistency)
        asked = self._asked.get(note.entries, -1) == kept.size or tree.size <= kept.size
        if grown:
            new = HubLogView(hub.name, hub.signing_key, note.text)
        elif asked and view is not None and kept != tree:
            self._forked = True
            self._parts.counts["hub_log_forks"] += 1
            new = view._replace(forked=note.text)
        else:
            return  # the proof is for another size: next time we ask for this one
        self._parts.database.write((partial(ledger_heads.store_view, view=new),))

    def _signing_hub(self, text: str) -> HubKeys | None:
        for hub in self._parts.envelopes.hubs.values():
            try:
                seen = checkpoint.open_checkpoint(text, hub.signing_key)
            except RemoteError:
                continue
            if seen.origin == checkpoint.build_origin(hub.name):
                return hub
        return None

    def _encode_leaf(self, note: CheckpointNote, signed: SignedHead) -> bytes:
        leaf = HeadLeaf(
            device=self._device, key=self._key, epoch=note.epoch, entries=signed.entry, at_ms=signed.at_ms,
            head=signed.hash, signature=signed.signature, received_ms=note.received_ms, epochs=note.epochs,
        )  # fmt: skip
        return leaf.encode_leaf()

    # For the agent's status

    def status_fields(self) -> dict[str, Any]:
        """Fields of the agent's status: the newest head, the newest that a hub witnessed, and `sent` bytes."""
        newest, seen = self._newest, self._seen
        told = {"entries": newest.entry, "at_ms": newest.at_ms} if newest else {}
        held = {"witnessed": seen.entry, "witnessed_by": seen.hub, "witnessed_ms": seen.received_ms} if seen else {}
        return {"ledger": {**told, **held, "unsent": len(self._parts.pending.unsent)}, **self._meter.status_fields()}

    def alarms(self) -> set[str]:
        """`hub_log_forked` if a hub has shown two views of its log."""
        return {FORKED} if self._forked else set()


def _tree_of_view(view: HubLogView) -> TreeHead:
    """The tree of a checkpoint that was verified before."""
    return checkpoint.open_checkpoint(view.checkpoint, view.key).tree
