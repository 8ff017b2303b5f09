"""Encryption and signatures of the hub: opens questions, signs notes, seals verdicts.

And a double without cryptography.

Rule: `HubCore` decides, this module seals. Only here does the hub use its private message keys.
"""

from typing import ClassVar, Protocol

from cloud_hub.registry.device_states import Device
from cloud_hub.security.hub_keys import HubKeys
from wire.errors import Fault, LocalError, RemoteError
from wire.protocol.codec import SIGNATURE_BYTES, Frame, clear_part, encode, pad
from wire.protocol.messages import DenyAll, DownNote, Header, Refusal, Suite, Verdict
from wire.protocol.rollout import Assignment
from wire.protocol.sealing import STATEMENT_TAG, key_id, open_sealed, seal, sign, verify
from wire.protocol.topics import Channel, shard_of


class Addressee(Protocol):
    """Epoch and seq of the question that a verdict answers, as its header names them."""

    @property
    def epoch(self) -> int: ...
    @property
    def seq(self) -> int: ...


class Envelopes(Protocol):
    """Cryptographic seam of the hub, so that a simulation of a thousand devices can do without cryptography."""

    def knows(self, key: bytes) -> bool:
        """Whether the hub has the HPKE key with this id."""
        ...

    def verify(self, frame: Frame, device: Device, channel: Channel) -> None:
        """RemoteError(SIGNATURE) unless the device signed it for this channel."""
        ...

    def open(self, frame: Frame, channel: Channel = Channel.QUESTION) -> bytes:
        """Padded plaintext of a frame sealed for this channel.

        RemoteError if it was not sealed to one of the hub's keys.
        """
        ...

    def reader(self, device: Device) -> bytes:
        """Id of the key that verdicts to this device are sealed to now."""
        ...

    def note(self, device: str, note: DownNote, now: float) -> bytes:
        """Make a signed frame of a note. `now` in hub seconds."""
        ...

    def verdict(self, device: Device, key: Addressee, verdict: Verdict, binding: bytes, now: float) -> bytes:
        """Make a sealed frame of a verdict that opens only for the question with this binding.

        LocalError if that is impossible.
        """
        ...


class HubEnvelopes:
    """The real implementation: HPKE (RFC 9180) and Ed25519 with the hub's keys."""

    def __init__(self, keys: HubKeys) -> None:
        self._keys = keys
        self._signer = key_id(keys.signing_public)

    def use(self, keys: HubKeys) -> None:
        """Replace the keys that open questions, after a rotation; the signing key stays the same."""
        self._keys = keys

    def knows(self, key: bytes) -> bool:
        return key in self._keys.hpke

    def verify(self, frame: Frame, device: Device, channel: Channel) -> None:
        verify(frame, by=device.signing_key, channel=channel)

    def open(self, frame: Frame, channel: Channel = Channel.QUESTION) -> bytes:
        key = self._keys.hpke.get(frame.header.key_id)
        if key is None:
            raise RemoteError(Fault.SEAL, "sealed to a key that is not ours any more")
        return open_sealed(frame, key=key, channel=channel)

    def reader(self, device: Device) -> bytes:
        return key_id(device.hpke_key.public_bytes_raw())

    def note(self, device: str, note: DownNote, now: float) -> bytes:
        header = _note_header(device, note, now, self._signer)
        return sign(header, encode(note), by=self._keys.signing, channel=channel_of(note))

    def testify(self, text: bytes) -> bytes:
        """Sign a statement under a domain tag of its own, so that it cannot pass as a frame."""
        return self._keys.signing.sign(STATEMENT_TAG + text)

    def verdict(self, device: Device, key: Addressee, verdict: Verdict, binding: bytes, now: float) -> bytes:
        header = Header(
            shard_of(device.id),
            device.id,
            key.epoch,
            seq=key.seq,
            created_ms=int(now * 1000),
            key_id=self.reader(device),
        )
        padded = pad(encode(verdict))
        try:
            return seal(header, padded, to=device.hpke_key, by=self._keys.signing, channel=_DOWN, binding=binding)
        except ValueError:  # a point of low order: no secret can be agreed with it (RFC 7748, section 6.1)
            raise LocalError("the device's HPKE key cannot be sealed to") from None


class PlainEnvelopes:
    """Double without cryptography: frames of the right form with a readable body.

    For simulations only, never for a network.
    """

    reader_id: ClassVar[bytes] = bytes(8)

    def knows(self, key: bytes) -> bool:
        return key == self.reader_id

    def verify(self, frame: Frame, device: Device, channel: Channel) -> None:
        if frame.signature != bytes(SIGNATURE_BYTES) or frame.header.device != device.id:
            raise RemoteError(Fault.SIGNATURE, channel.value)

    def open(self, frame: Frame, channel: Channel = Channel.QUESTION) -> bytes:
        del channel
        return frame.body

    def reader(self, device: Device) -> bytes:
        del device
        return self.reader_id

    def note(self, device: str, note: DownNote, now: float) -> bytes:
        return _plain(Suite.SIGNED, _note_header(device, note, now, self.reader_id), encode(note))

    def verdict(self, device: Device, key: Addressee, verdict: Verdict, binding: bytes, now: float) -> bytes:
        del binding
        header = Header(
            shard_of(device.id), device.id, key.epoch, seq=key.seq, created_ms=int(now * 1000), key_id=self.reader_id
        )
        return _plain(Suite.SEALED, header, pad(encode(verdict)))


_DOWN = Channel.REPLY


def channel_of(note: DownNote) -> Channel:
    """Channel of a note to a device: deny notices and assignments on DESIRED, everything else on REPLY."""
    return Channel.DESIRED if isinstance(note, DenyAll | Assignment) else _DOWN


def _note_header(device: str, note: DownNote, now: float, signer: bytes) -> Header:
    seq = note.seq if isinstance(note, Refusal) else 0
    return Header(shard_of(device), device, note.epoch, seq=seq, created_ms=int(now * 1000), key_id=signer)


def _plain(suite: Suite, header: Header, body: bytes) -> bytes:
    return clear_part(suite, header) + body + bytes(SIGNATURE_BYTES)
