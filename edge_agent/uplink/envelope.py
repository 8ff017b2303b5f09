"""Seals questions and opens what comes back; the only place of the agent that touches its signing and HPKE keys.

Law: what is not signed by a hub that enrolment pinned, not addressed to us, not for our epoch, or bound to another
question is a `RemoteError`; nothing of it is used.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edge_agent.identity.identity import HubKeys, Identity
from wire.errors import Fault, LocalError, RemoteError
from wire.ledger.chain import Head, head_text
from wire.protocol import codec, sealing
from wire.protocol.codec import Frame
from wire.protocol.messages import DownNote, Header, Heads, Suite, UpNote, Verdict
from wire.protocol.rollout import InstallReport
from wire.protocol.topics import Channel, shard_of

_SEAL_OVERHEAD_BYTES = 48


class Sealed(NamedTuple):
    """A question ready for the link. `digest`: SHA-256 of the frame, its name in ledger and refusals."""

    frame: bytes
    padded: bytes
    fingerprint: bytes
    digest: bytes
    key_id: bytes


class Binding(NamedTuple):
    """What of a question its verdict is bound to."""

    fingerprint: bytes
    model: str  # name@version
    policy: str


def channel_of(note: UpNote) -> Channel:
    return Channel.REPORT if isinstance(note, Heads | InstallReport) else Channel.ASK


class Envelopes:
    """One device's keys at work, on its home line. `others`: who it is on further lines, by the line's name."""

    def __init__(self, identity: Identity, others: Mapping[str, Identity] | None = None) -> None:
        self._id = identity
        self._further = {line: Envelopes(each) for line, each in (others or {}).items()}
        self._signing_id = identity.signing_id
        self._hpke_id = identity.hpke_id
        self._shard = shard_of(identity.device)
        self.hubs: dict[str, HubKeys] = {}
        self._voices: tuple[tuple[bytes, Ed25519PublicKey], ...] = ()
        self._turn = 0
        self.use(identity.hubs)

    @property
    def device(self) -> str:
        return self._id.device

    def on(self, line: str) -> "Envelopes":
        """Those of one line; "" is home."""
        return self._further[line] if line else self

    def keys_of(self, hub: str) -> HubKeys | None:
        """Of a hub on any line; None if there is none of that name."""
        return self._of(hub).hubs.get(hub)

    def everybody(self) -> tuple[HubKeys, ...]:
        """The hubs of all lines, home first."""
        return tuple(hub for each in (self, *self._further.values()) for hub in each.hubs.values())

    @property
    def lines(self) -> dict[str, str]:
        """Hub -> line, of those that are not on the home line."""
        return {hub: line for line, each in self._further.items() for hub in each.hubs}

    def _of(self, hub: str) -> "Envelopes":
        return next((each for each in self._further.values() if hub in each.hubs), self)

    def use(self, hubs: tuple[HubKeys, ...]) -> None:
        """Hub keys may be replaced while we run."""
        self.hubs = {hub.name: hub for hub in hubs}
        self._voices = tuple((sealing.key_id(hub.signing_key), hub.signed_by) for hub in hubs)

    def frame_bytes(self, padded_bytes: int) -> int:
        """Size on the link of a question of this padded size; an upper bound, exact for full-size numbers."""
        longest = max((each.device for each in (self, *self._further.values())), key=len)
        header = Header(
            shard=255,
            device=longest,
            epoch=2**63 - 1,
            seq=2**40,
            created_ms=2**42,
            key_id=bytes(sealing.KEY_ID_BYTES),
        )
        clear = len(codec.clear_part(Suite.SEALED, header))
        return clear + padded_bytes + _SEAL_OVERHEAD_BYTES + codec.SIGNATURE_BYTES

    def sealed(self, epoch: int, seq: int, created_ms: int, hub: str, padded: bytes) -> Sealed:
        """Seal a padded question to `hub`. LocalError if the frame would be too big, KeyError if the hub is unknown."""
        at = self._of(hub)
        if at is not self:
            return at.sealed(epoch, seq, created_ms, hub, padded)
        keys = self.hubs[hub]
        header = Header(
            shard=self._shard, device=self._id.device, epoch=epoch, seq=seq, created_ms=created_ms, key_id=keys.key_id
        )
        frame = sealing.seal(header, padded, to=keys.seal_to, by=self._id.signing, channel=Channel.QUESTION)
        return Sealed(frame, padded, codec.fingerprint(padded), sealing.digest(frame), keys.key_id)

    def note(self, note: UpNote, created_ms: int) -> bytes:
        """A signed frame; one that is sealed as well for a report, which holds sums over samples."""
        if isinstance(note, InstallReport):
            return self._report(note, created_ms)
        header = Header(
            shard=self._shard, device=self._id.device, epoch=note.epoch, seq=0, created_ms=created_ms,
            key_id=self._signing_id,
        )  # fmt: skip
        return sealing.sign(header, codec.encode(note), by=self._id.signing, channel=channel_of(note))

    def _report(self, report: InstallReport, created_ms: int) -> bytes:
        """Sealed to the home line's hubs in turn: which of them serves this device is theirs to know."""
        if not self.hubs:
            raise LocalError("no hub to seal to")
        hub = tuple(self.hubs.values())[self._turn % len(self.hubs)]
        self._turn += 1
        header = Header(
            shard=self._shard, device=self._id.device, epoch=report.epoch, seq=0, created_ms=created_ms,
            key_id=hub.key_id,
        )  # fmt: skip
        padded = codec.pad(codec.encode(report))
        return sealing.seal(header, padded, to=hub.seal_to, by=self._id.signing, channel=Channel.REPORT)

    def head(self, epoch: int, entries: int, at_ms: int, hash: bytes) -> bytes:  # noqa: A002 - the chain's word
        """Our signature on how far the egress ledger has come."""
        return self._id.signing.sign(head_text(Head(self._id.device, epoch, entries, at_ms, hash)))

    def believe(self, payload: bytes, channel: Channel = Channel.REPLY) -> Frame:
        """A frame that one of our hubs signed for us and for this channel. RemoteError otherwise."""
        frame = codec.split(payload)
        if frame.header.device != self._id.device or frame.header.shard != self._shard:
            raise RemoteError(Fault.TOPIC, "addressed to another device")
        self._verify(frame, channel)
        return frame

    def open_note(self, frame: Frame) -> DownNote:
        """The note in a believed frame."""
        if frame.suite is not Suite.SIGNED:
            raise RemoteError(Fault.SUITE, "a signed note was expected")
        note = codec.decode_down(frame.body)
        if note.epoch != frame.header.epoch:
            raise RemoteError(Fault.MALFORMED, "note and header name two epochs")
        return note

    def open_verdict(self, frame: Frame, binding: Binding) -> Verdict:
        """The verdict in a believed frame, if it was made for exactly this question."""
        bound = sealing.verdict_binding(*binding)
        padded = sealing.open_sealed(frame, key=self._id.hpke, channel=Channel.REPLY, binding=bound)
        return codec.decode_verdict(codec.unpad(padded))

    def _verify(self, frame: Frame, channel: Channel) -> None:
        # A signed note names its signer; a sealed verdict names our own key, so every pinned voice is tried.
        named = [key for name, key in self._voices if frame.suite is Suite.SEALED or name == frame.header.key_id]
        if frame.suite is Suite.SEALED and frame.header.key_id != self._hpke_id:
            raise RemoteError(Fault.SEAL, "sealed to another key")
        for key in named:
            try:
                sealing.verify(frame, by=key, channel=channel)
            except RemoteError:
                continue
            return
        raise RemoteError(Fault.SIGNATURE, "not signed by a hub of ours")
