"""Hub double that speaks of sessions: it invites, agrees on keys, opens questions of sessions and keeps lists."""

import os
from dataclasses import dataclass, field

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.edge_agent.doubles.hub_double import DEVICE, SIGNING, HubDouble, public_bytes
from tests.wire.doubles import other_side
from wire.protocol import codec, sessions
from wire.protocol.codec import Frame
from wire.protocol.messages import CipherSuite, Escalation, HelloNote, RefusalReason, StatusRequest
from wire.protocol.session_notes import (
    SealedFrameList,
    SealedFrameReceipt,
    SessionAccept,
    SessionInvite,
    SessionOffer,
)
from wire.protocol.sessions import SessionKeys, SessionTerms, VerdictKey
from wire.protocol.topics import TopicChannel, parse_up_topic
from wire.transport.base import IncomingMessage


@dataclass
class SessionHub(HubDouble):
    """`invites`, `accepts`, `acknowledges_lists`: whether it answers so. `sessions`: the keys of each, by its name.

    `speaks`: False makes it a hub of an earlier release, which drops what it does not know. `life_s`: of a session.
    """

    invites: bool = True
    accepts: bool = True
    acknowledges_lists: bool = True
    speaks: bool = True
    life_s: float = sessions.SESSION_S
    sessions: dict[bytes, SessionKeys] = field(default_factory=dict)
    offers: list[SessionOffer] = field(default_factory=list)
    accepted: list[SessionAccept] = field(default_factory=list)
    lists: list[SealedFrameList] = field(default_factory=list)
    sealed: list[Frame] = field(default_factory=list)  # frames of sessions, as they came

    def on_message(self, message: IncomingMessage) -> None:
        if message.payload[1] == CipherSuite.SESSION:
            if self.speaks:
                self._on_session_question(codec.split_frame(message.payload), message.payload)
            return
        super().on_message(message)
        channel = parse_up_topic(message.topic)[1]
        frame = other_side.read_frame(message.payload, SIGNING.public_key(), channel)
        if frame.suite is CipherSuite.SIGNED and channel in (TopicChannel.ASK, TopicChannel.REPORT) and self.speaks:
            self._on_session_note(other_side.decode_up_note(frame.body))

    def on_note(self, note: StatusRequest | HelloNote) -> None:
        super().on_note(note)
        if isinstance(note, HelloNote) and self.invites and self.speaks:
            self.send_note(SessionInvite(note.epoch, "hub-1"))

    def _on_session_note(self, note: object) -> None:
        if isinstance(note, SessionOffer):
            self.offers.append(note)
            if self.accepts:
                self.send_note(self.accept(note))
        elif isinstance(note, SealedFrameList):
            self.lists.append(note)
            if self.acknowledges_lists:
                self.send_note(SealedFrameReceipt(note.epoch, note.hub, note.entries))

    def accept(self, offer: SessionOffer) -> SessionAccept:
        own = X25519PrivateKey.generate()
        ends_ms = self.now_ms + int(self.life_s * 1000)
        terms = SessionTerms(
            DEVICE, SIGNING.public_key().public_bytes_raw(), "hub-1", self.keys.signing_key, self.keys.hpke_key,
            offer.epoch, offer.share, public_bytes(own), ends_ms,
        )  # fmt: skip
        keys = sessions.agree_as_hub(terms, own, self.hpke)
        self.sessions[keys.id] = keys
        self.accepted.append(SessionAccept(offer.epoch, "hub-1", offer.share, terms.share, ends_ms))
        return self.accepted[-1]

    def _on_session_question(self, frame: Frame, data: bytes) -> None:
        self.sealed.append(frame)
        if frame.header.key_id in self.sessions:
            self.on_question(frame, data)
        else:
            self.send_note(self.make_refusal(data, RefusalReason.KEY_EXPIRED, final=False))

    def open_question(self, frame: Frame) -> bytes:
        if frame.suite is not CipherSuite.SESSION:
            return super().open_question(frame)
        return sessions.open_in_session(frame, keys=self.sessions[frame.header.key_id])

    def seal_verdict(self, frame: Frame, question: Escalation, by: Ed25519PrivateKey | None = None) -> bytes:
        if frame.suite is not CipherSuite.SESSION:
            return super().seal_verdict(frame, question, by)
        header, fingerprint = frame.header, codec.hash_plaintext(self.open_question(frame))
        key = sessions.derive_verdict_key(self.sessions[header.key_id], header.epoch, header.seq, fingerprint)
        return self.seal_with(key, frame, question, by)

    def seal_with(
        self, key: VerdictKey, frame: Frame, question: Escalation, by: Ed25519PrivateKey | None = None
    ) -> bytes:
        header = msgspec.structs.replace(frame.header, created_ms=self.now_ms, key_id=key.session)
        return sessions.seal_session_verdict(
            header, self.pad_verdict(), key=key, by=by or self.signing, salt=os.urandom(16),
            binding=self.bind_verdict(frame, question),
        )  # fmt: skip

    def digests(self) -> set[bytes]:
        """Digests on the lists that came."""
        return {digest for listed in self.lists for digest in listed.digests}
