"""Encryption and signatures of the hub: opens questions, signs notes, seals verdicts.

Rule: `HubCore` decides, this module seals. Only here does the hub use its private message keys.
"""

from typing import Protocol

from cloud_hub.registry.device_states import Device
from cloud_hub.security.hub_keys import HubKeys
from cloud_hub.security.signatures import SodiumSigningKey, SodiumVerifyingKey
from wire.errors import Fault, LocalError, RemoteError
from wire.protocol.codec import (
    Frame,
    choose_text_class,
    encode_wire_message,
    pad_plaintext,
)
from wire.protocol.messages import DenyAllNotice, DownNote, FrameHeader, Refusal, Verdict
from wire.protocol.rollout import Assignment
from wire.protocol.sealing import (
    STATEMENT_TAG,
    compute_key_id,
    compute_order_binding,
    open_sealed_frame,
    seal_frame,
    sign_frame,
    verify_frame,
)
from wire.protocol.topics import TopicChannel, compute_shard


class QuestionAddress(Protocol):
    """Epoch and seq of the question that a verdict answers, as its header names them."""

    @property
    def epoch(self) -> int: ...
    @property
    def seq(self) -> int: ...


class Envelopes(Protocol):
    """Cryptographic seam of the hub, so that a simulation of a thousand devices can do without cryptography."""

    def knows_key(self, key: bytes) -> bool:
        """Whether the hub has the HPKE key with this id."""
        ...

    def verify(self, frame: Frame, device: Device, channel: TopicChannel) -> None:
        """RemoteError(SIGNATURE) unless the device signed it for this channel."""
        ...

    def open(self, frame: Frame, channel: TopicChannel = TopicChannel.QUESTION) -> bytes:
        """Padded plaintext of a frame sealed for this channel.

        RemoteError if it was not sealed to one of the hub's keys.
        """
        ...

    def reader_key_id(self, device: Device) -> bytes:
        """Id of the key that verdicts to this device are sealed to now."""
        ...

    def sign_note(self, device: str, note: DownNote, now: float, receiver: Device | None = None) -> bytes:
        """Make a signed frame of a note. `now` in hub seconds.

        `receiver`: the device as it is enrolled now; an order (deny notice, assignment) is bound to its signing key.
        LocalError for an order without one.
        """
        ...

    def seal_verdict(self, device: Device, key: QuestionAddress, verdict: Verdict, binding: bytes, now: float) -> bytes:
        """Make a sealed frame of a verdict that opens only for the question with this binding.

        LocalError if that is impossible.
        """
        ...


class HubEnvelopes:
    """The real implementation: HPKE (RFC 9180) and Ed25519 with the hub's keys."""

    def __init__(self, keys: HubKeys) -> None:
        self._keys = keys
        self._signing = SodiumSigningKey(keys.signing.private_bytes_raw())
        self._signer = compute_key_id(keys.signing_public)

    def use_keys(self, keys: HubKeys) -> None:
        """Replace the keys that open questions, after a rotation; the signing key stays the same."""
        self._keys = keys

    def knows_key(self, key: bytes) -> bool:
        return key in self._keys.hpke

    def verify(self, frame: Frame, device: Device, channel: TopicChannel) -> None:
        key = SodiumVerifyingKey(device.signing_key.public_bytes_raw())
        verify_frame(frame, by=key, channel=channel)

    def open(self, frame: Frame, channel: TopicChannel = TopicChannel.QUESTION) -> bytes:
        key = self._keys.hpke.get(frame.header.key_id)
        if key is None:
            raise RemoteError(Fault.SEAL, "sealed to a key that is not ours any more")
        return open_sealed_frame(frame, key=key, channel=channel)

    def reader_key_id(self, device: Device) -> bytes:
        return compute_key_id(device.hpke_key.public_bytes_raw())

    def sign_note(self, device: str, note: DownNote, now: float, receiver: Device | None = None) -> bytes:
        header, channel, binding = make_note_header(device, note, now, self._signer), choose_note_channel(note), b""
        if channel is TopicChannel.DESIRED:
            if receiver is None:
                raise LocalError("an order is for a device that is enrolled")
            binding = compute_order_binding(receiver.signing_key.public_bytes_raw())
        return sign_frame(header, encode_wire_message(note), by=self._signing, channel=channel, binding=binding)

    def sign_statement(self, text: bytes) -> bytes:
        """Sign a statement under a domain tag of its own, so that it cannot pass as a frame."""
        return self._signing.sign(STATEMENT_TAG + text)

    def seal_verdict(self, device: Device, key: QuestionAddress, verdict: Verdict, binding: bytes, now: float) -> bytes:
        header = FrameHeader(
            compute_shard(device.id),
            device.id,
            key.epoch,
            seq=key.seq,
            created_ms=int(now * 1000),
            key_id=self.reader_key_id(device),
        )
        padded = pad_verdict(verdict)
        try:
            return seal_frame(header, padded, to=device.hpke_key, by=self._signing, channel=_DOWN, binding=binding)
        except ValueError:  # a point of low order: no secret can be agreed with it (RFC 7748, section 6.1)
            raise LocalError("the device's HPKE key cannot be sealed to") from None


_DOWN = TopicChannel.REPLY


def choose_note_channel(note: DownNote) -> TopicChannel:
    """Channel of a note to a device: deny notices and assignments on DESIRED, everything else on REPLY."""
    return TopicChannel.DESIRED if isinstance(note, DenyAllNotice | Assignment) else _DOWN


def make_note_header(device: str, note: DownNote, now: float, signer: bytes) -> FrameHeader:
    seq = note.seq if isinstance(note, Refusal) else 0
    return FrameHeader(compute_shard(device), device, note.epoch, seq=seq, created_ms=int(now * 1000), key_id=signer)


def pad_verdict(verdict: Verdict) -> bytes:
    """Encode and pad a verdict: one with a text to a size class of texts."""
    encoded = encode_wire_message(verdict)
    return pad_plaintext(encoded, 0 if verdict.prediction.text is None else choose_text_class(len(encoded)))
