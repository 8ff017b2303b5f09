"""Signed and sealed frames of one device: seals questions, signs notes, verifies and opens what hubs send.

The only place of the agent that uses its signing key and its HPKE key (RFC 9180).

Rule: what is not signed by a hub that enrolment pinned, not addressed to this device, not for its epoch, or bound to
another question is a `RemoteError`; nothing of it is used.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from edge_agent.identity.identity import HubKeys, Identity
from wire.errors import Fault, LocalError, RemoteError
from wire.ledger.chain import LedgerHead, encode_head_text
from wire.protocol import codec, sealing
from wire.protocol.codec import Frame
from wire.protocol.messages import CipherSuite, DownNote, FrameHeader, LedgerHeadReport, UpNote, Verdict
from wire.protocol.rollout import InstallReport
from wire.protocol.topics import TopicChannel, compute_shard

_SEAL_OVERHEAD_BYTES = 48


class SealedQuestion(NamedTuple):
    """A sealed question, ready to be sent. `digest`: SHA-256 of the frame, its name in the ledger and in refusals.

    `padded`: the plaintext; `fingerprint`: its hash, which the verdict is bound to; `key_id`: of the hub's HPKE key.
    """

    frame: bytes
    padded: bytes
    fingerprint: bytes
    digest: bytes
    key_id: bytes


class VerdictBinding(NamedTuple):
    """What a verdict is cryptographically bound to: the question's fingerprint, the model and the policy."""

    fingerprint: bytes
    model: str  # name@version
    policy: str


def channel_for_note(note: UpNote) -> TopicChannel:
    """The topic channel on which a note is published: `up/report` for sums and heads, `up/ask` for the rest."""
    return TopicChannel.REPORT if isinstance(note, LedgerHeadReport | InstallReport) else TopicChannel.ASK


class Envelopes:
    """One device's keys in use, on its home line.

    `others`: its identities on further lines, by the name of the line.
    """

    def __init__(self, identity: Identity, others: Mapping[str, Identity] | None = None) -> None:
        self._id = identity
        self._further = {line: Envelopes(each) for line, each in (others or {}).items()}
        self._signing_id = identity.signing_id
        self._hpke_id = identity.hpke_id
        self._order_binding = sealing.compute_order_binding(identity.signing.public_key().public_bytes_raw())
        self._shard = compute_shard(identity.device)
        self.hubs: dict[str, HubKeys] = {}
        self._seals: dict[str, tuple[X25519PublicKey, bytes]] = {}  # by hub: the key to seal to, and its id
        self._voices: tuple[tuple[bytes, Ed25519PublicKey], ...] = ()
        self._turn = 0
        self.set_hubs(identity.hubs)

    @property
    def device(self) -> str:
        """The device's name on this line."""
        return self._id.device

    def for_line(self, line: str) -> "Envelopes":
        """The envelopes of one line; "" is the home line. KeyError if there is no such line."""
        return self._further[line] if line else self

    def keys_for_hub(self, hub: str) -> HubKeys | None:
        """Public keys of a hub on any line; None if no hub has that name."""
        return self._envelopes_for(hub).hubs.get(hub)

    def all_hubs(self) -> tuple[HubKeys, ...]:
        """The hubs of all lines, those of the home line first."""
        return tuple(hub for each in (self, *self._further.values()) for hub in each.hubs.values())

    @property
    def lines(self) -> dict[str, str]:
        """Hub name to line name, of hubs that are not on the home line."""
        return {hub: line for line, each in self._further.items() for hub in each.hubs}

    def _envelopes_for(self, hub: str) -> "Envelopes":
        return next((each for each in self._further.values() if hub in each.hubs), self)

    def set_hubs(self, hubs: tuple[HubKeys, ...]) -> None:
        """Replace the pinned hub keys; allowed at any time."""
        self.hubs = {hub.name: hub for hub in hubs}
        self._seals = {hub.name: (hub.seal_to, hub.key_id) for hub in hubs}
        self._voices = tuple((sealing.compute_key_id(hub.signing_key), hub.signed_by) for hub in hubs)

    def frame_bytes(self, padded_bytes: int) -> int:
        """Size in bytes of a sealed frame for a question of this padded size: an upper bound over all lines."""
        longest = max((each.device for each in (self, *self._further.values())), key=len)
        header = FrameHeader(
            shard=255,
            device=longest,
            epoch=2**63 - 1,
            seq=2**40,
            created_ms=2**42,
            key_id=bytes(sealing.KEY_ID_BYTES),
        )
        clear = len(codec.encode_clear_part(CipherSuite.SEALED, header))
        return clear + padded_bytes + _SEAL_OVERHEAD_BYTES + codec.SIGNATURE_BYTES

    def seal_question(self, epoch: int, seq: int, created_ms: int, hub: str, padded: bytes) -> SealedQuestion:
        """Seal a padded question to `hub` with HPKE, and sign it.

        `created_ms`: hub time in milliseconds. Raises LocalError if the frame would be too big, KeyError for an unknown
        hub.
        """
        at = self._envelopes_for(hub)
        if at is not self:
            return at.seal_question(epoch, seq, created_ms, hub, padded)
        key, key_id = self._seals[hub]
        header = FrameHeader(
            shard=self._shard, device=self._id.device, epoch=epoch, seq=seq, created_ms=created_ms, key_id=key_id
        )
        frame = sealing.seal_frame(header, padded, to=key, by=self._id.signing, channel=TopicChannel.QUESTION)
        return SealedQuestion(frame, padded, codec.hash_plaintext(padded), sealing.hash_frame(frame), key_id)

    def sign_note(self, note: UpNote, created_ms: int) -> bytes:
        """The signed frame of a note. An install report is sealed as well: it holds sums over samples."""
        if isinstance(note, InstallReport):
            return self._seal_report(note, created_ms)
        header = FrameHeader(
            shard=self._shard, device=self._id.device, epoch=note.epoch, seq=0, created_ms=created_ms,
            key_id=self._signing_id,
        )  # fmt: skip
        return sealing.sign_frame(
            header, codec.encode_wire_message(note), by=self._id.signing, channel=channel_for_note(note)
        )

    def _seal_report(self, report: InstallReport, created_ms: int) -> bytes:
        """Seal to the home line's hubs in turn: the device does not know which of them serves it."""
        if not self.hubs:
            raise LocalError("no hub to seal to")
        hub = tuple(self.hubs.values())[self._turn % len(self.hubs)]
        self._turn += 1
        header = FrameHeader(
            shard=self._shard, device=self._id.device, epoch=report.epoch, seq=0, created_ms=created_ms,
            key_id=hub.key_id,
        )  # fmt: skip
        padded = codec.pad_plaintext(codec.encode_wire_message(report))
        return sealing.seal_frame(header, padded, to=hub.seal_to, by=self._id.signing, channel=TopicChannel.REPORT)

    def sign_head(self, epoch: int, entries: int, at_ms: int, hash: bytes) -> bytes:  # noqa: A002 - the chain's word
        """Our signature on a head of the egress ledger: its epoch, number of entries, time and hash."""
        return self._id.signing.sign(encode_head_text(LedgerHead(self._id.device, epoch, entries, at_ms, hash)))

    def verify_frame(self, payload: bytes, channel: TopicChannel = TopicChannel.REPLY) -> Frame:
        """Decode a frame and check that one of our hubs signed it, for this device and this channel.

        An order must be signed for our present signing key too. RemoteError otherwise.
        """
        frame = codec.split_frame(payload)
        if frame.header.device != self._id.device or frame.header.shard != self._shard:
            raise RemoteError(Fault.TOPIC, "addressed to another device")
        self._verify_signature(frame, channel)
        return frame

    def open_note(self, frame: Frame) -> DownNote:
        """Decode the note in a verified frame.

        RemoteError if it is not a signed note, or names another epoch than its header.
        """
        if frame.suite is not CipherSuite.SIGNED:
            raise RemoteError(Fault.SUITE, "a signed note was expected")
        note = codec.decode_down_note(frame.body)
        if note.epoch != frame.header.epoch:
            raise RemoteError(Fault.MALFORMED, "note and header name two epochs")
        return note

    def open_verdict(self, frame: Frame, binding: VerdictBinding) -> Verdict:
        """Decrypt the verdict in a verified frame.

        RemoteError unless it was made for exactly the question of `binding`.
        """
        bound = sealing.compute_verdict_binding(*binding)
        padded = sealing.open_sealed_frame(frame, key=self._id.hpke, channel=TopicChannel.REPLY, binding=bound)
        return codec.decode_verdict(codec.unpad_plaintext(padded))

    def _verify_signature(self, frame: Frame, channel: TopicChannel) -> None:
        # A signed note names its signer; a sealed verdict names our own key, so every pinned hub key is tried.
        named = [key for name, key in self._voices if frame.suite is CipherSuite.SEALED or name == frame.header.key_id]
        if frame.suite is CipherSuite.SEALED and frame.header.key_id != self._hpke_id:
            raise RemoteError(Fault.SEAL, "sealed to another key")
        binding = self._order_binding if channel is TopicChannel.DESIRED else b""
        for key in named:
            try:
                sealing.verify_frame(frame, by=key, channel=channel, binding=binding)
            except RemoteError:
                continue
            return
        raise RemoteError(Fault.SIGNATURE, "not signed by a hub of ours")
