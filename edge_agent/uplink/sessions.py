"""Session client: agrees on keys of an hour with the home line's hub, and signs lists of the frames sealed with them.

Rule: a session is an invitation of the hub; without one, before it stands, or once the hub has forgotten it, questions
are sealed and signed one by one, and none waits for a session. Its keys are in memory alone and are dropped at its end;
what an open question needs to read its verdict is kept encrypted with it.
Rule: the list that names a frame follows within `LIST_INTERVAL_S`; a hub whose lists lack one opens no other session.
"""

import asyncio
from functools import partial
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from edge_agent.identity.identity import Identity
from edge_agent.storage import frame_lists
from edge_agent.system.settings import AgentSettings
from edge_agent.uplink.envelope import DeviceSession
from edge_agent.uplink.outbound import LedgeredSender, read_result
from edge_agent.uplink.services import AgentServices
from wire.errors import RemoteError
from wire.protocol.messages import Seqs
from wire.protocol.session_notes import (
    SealedFrameList,
    SealedFrameReceipt,
    SessionAccept,
    SessionInvite,
    SessionOffer,
)
from wire.protocol.sessions import SESSION_S, SessionTerms, agree_as_device

RENEW_BEFORE_S = 600.0  # before the end of one session the next is offered
OFFER_RETRY_S = 30.0
OFFER_TRIES = 3  # then offers wait for `OFFER_PAUSE_S`: the hub has its reasons, or is away
OFFER_PAUSE_S = 300.0
LIST_WAIT_S = 5.0  # an offer waits so long for the hub to acknowledge the lists that are due before it
LIST_INTERVAL_S = 900.0
LIST_RETRY_S = 60.0  # until the hub has acknowledged a list
SILENT_S = 20.0  # a hub that answers nothing of a session for so long ...
SILENT_TRIES = 3  # ... though a question was sent so often, may be one that cannot speak of sessions


class _Offer(NamedTuple):
    """An offer under way, with the private half of its key of one use."""

    own: X25519PrivateKey
    note: SessionOffer
    tries: int


class SessionClient:
    """Opens sessions on the home line; used on the event loop only. A status provider."""

    def __init__(
        self, parts: AgentServices, sender: LedgeredSender, identity: Identity, settings: AgentSettings
    ) -> None:
        self._parts = parts
        self._sender = sender
        self._device = identity.device
        self._key = identity.signing.public_key().public_bytes_raw()
        self._allowed = settings.sessions
        self._every_s = min(settings.heads_every_s, LIST_INTERVAL_S)
        self._invited: dict[str, float] = {}  # by hub: when the next offer is due
        self._offers: dict[str, _Offer] = {}
        self._list_at = 0.0
        self._listed: dict[str, tuple[int, float]] = {}  # by hub: what the newest list begins after, and when it left
        self._heard_at = 0.0  # when the hub answered a question of a session

    def use_settings(self, settings: AgentSettings) -> None:
        """Send lists as often as these settings say, from now on."""
        self._every_s = min(settings.heads_every_s, LIST_INTERVAL_S)

    def on_connected(self) -> None:
        """The home line is connected anew: whoever is there now invites us, or does not speak of sessions."""
        self._invited.clear()
        self._offers.clear()
        self._list_at = self._parts.clock.now() + LIST_WAIT_S

    # Notes of the hub

    def on_note(self, note: SessionInvite | SessionAccept | SealedFrameReceipt) -> None:
        """A verified note about sessions has come on the home line. One of another database is ignored."""
        if note.epoch != self._parts.core.epoch or note.hub not in self._parts.envelopes.hubs:
            return
        if isinstance(note, SessionInvite):
            self._on_invited(note.hub)
        elif isinstance(note, SessionAccept):
            self._on_accepted(note)
        else:
            op = partial(frame_lists.acknowledge_list, hub=note.hub, entries=note.entries)
            self._parts.database.write((op,), lambda _trouble: self._look_for_list(note.hub))

    def on_replied(self, seqs: Seqs) -> None:
        """The hub has said something of these questions."""
        if any(self._parts.pending.is_in_session(seq) for seq in seqs):
            self._heard_at = self._parts.clock.now()

    def is_silent(self, seq: int, attempts: int) -> bool:
        """Whether the hub leaves this question's session unanswered, so that it is better sealed without one."""
        quiet = self._parts.clock.now() - self._heard_at > SILENT_S
        return quiet and attempts > SILENT_TRIES and self._parts.pending.is_in_session(seq)

    def _on_invited(self, hub: str) -> None:
        if not self._allowed:
            return
        self._parts.counts["session_invites"] += 1
        ends = self._parts.envelopes.session_end(hub)
        if ends is None:
            self._offer_soon(hub)
        else:
            self._invited[hub] = ends - RENEW_BEFORE_S

    def _offer_soon(self, hub: str) -> None:
        """Offer a session once the hub has the lists that are due, or has not acknowledged them for some seconds."""
        self._invited[hub] = self._parts.clock.now() + LIST_WAIT_S
        self._look_for_list(hub)

    def _on_accepted(self, note: SessionAccept) -> None:
        offer, hub = self._offers.get(note.hub), self._parts.envelopes.hubs[note.hub]
        clock = self._parts.clock
        if offer is None or note.offered != offer.note.share or offer.note.key_id != hub.key_id:
            return
        terms = SessionTerms(
            self._device, self._key, note.hub, hub.signing_key, hub.hpke_key, note.epoch, note.offered, note.share,
            note.ends_ms,
        )  # fmt: skip
        try:
            keys = agree_as_device(terms, offer.own)
        except RemoteError:
            self._parts.counts["sessions_refused"] += 1
            return
        del self._offers[note.hub]
        left_s = min(SESSION_S, note.ends_ms / 1000 - clock.hub_ms() / 1000)
        self._heard_at = clock.now()
        # before the first question of it is recorded: the database does both in this order
        self._parts.database.write((partial(frame_lists.begin_lists, hub=note.hub),))
        self._parts.envelopes.use_session(note.hub, DeviceSession(keys, note.epoch, clock.now() + left_s))
        self._invited[note.hub] = clock.now() + max(OFFER_RETRY_S, left_s - RENEW_BEFORE_S)
        self._parts.counts["sessions"] += 1

    # Offers

    def send_due(self) -> None:
        """Drop what has ended, offer what is due, and send lists; called about every second."""
        parts, now = self._parts, self._parts.clock.now()
        parts.envelopes.end_sessions(now)
        if not (parts.connections.home.up and parts.database.is_open):
            return
        for hub, at in tuple(self._invited.items()):
            gone = hub not in self._offers and parts.envelopes.session_end(hub) is None
            if now >= at:
                self._offer(hub, now)
            elif gone and at > now + LIST_WAIT_S:
                self._offer_soon(hub)
        if now >= self._list_at:
            self._list_at = now + self._every_s
            for hub in parts.envelopes.hubs:
                self._look_for_list(hub)

    def _offer(self, hub: str, now: float) -> None:
        """Offer a session. A repeat is the same offer, so that the hub begins one session for it."""
        known = self._parts.envelopes.hubs.get(hub)
        if known is None:
            del self._invited[hub]
            return
        offer = self._offers.get(hub)
        if offer is None or offer.note.key_id != known.key_id or offer.tries >= OFFER_TRIES:
            own = X25519PrivateKey.generate()
            share = own.public_key().public_bytes_raw()
            offer = _Offer(own, SessionOffer(self._parts.core.epoch, hub, known.key_id, share), 0)
        self._offers[hub] = offer = offer._replace(tries=offer.tries + 1)
        self._invited[hub] = now + (OFFER_RETRY_S if offer.tries < OFFER_TRIES else OFFER_PAUSE_S)
        self._sender.send_note(offer.note)

    # Lists of frames

    def _look_for_list(self, hub: str) -> None:
        found = self._parts.database.read(partial(frame_lists.make_next_list, hub=hub))
        found.add_done_callback(partial(self._send_list, hub))

    def _send_list(self, hub: str, found: "asyncio.Future[SealedFrameList | None]") -> None:
        """Send the list that is due; if none is, an offer need not wait for it any longer."""
        due, now = read_result(found), self._parts.clock.now()
        if not self._parts.connections.home.up:
            return
        if due is not None:
            after, sent_at = self._listed.get(hub, (-1, 0.0))
            if after < due.after or now - sent_at >= LIST_WAIT_S:  # else the one that was sent is on its way
                self._listed[hub] = (due.after, now)
                self._list_at = min(self._list_at, now + LIST_RETRY_S)
                self._sender.send_note(due)
        elif hub not in self._offers and now < self._invited.get(hub, 0.0) <= now + LIST_WAIT_S:
            self._offer(hub, now)

    # For the agent's status

    def status_fields(self) -> dict[str, Any]:
        """Fields of the agent's status: the hubs that questions are sealed for in a session now."""
        return {"sessions": self._parts.envelopes.list_sessions()}

    def alarms(self) -> set[str]:
        """None: without a session questions are sealed and signed one by one."""
        return set()
