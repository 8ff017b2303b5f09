"""Frames of simulated nodes: unsealed, with a signature of zeros, for a fleet too large for cryptography.

Rule: for simulations and tests, never for a network.
"""

from typing import ClassVar

from cloud_hub.registry.device_states import Device
from cloud_hub.security.envelopes import QuestionAddress, make_note_header, pad_verdict
from wire.errors import Fault, RemoteError
from wire.protocol.codec import SIGNATURE_BYTES, Frame, encode_clear_part, encode_wire_message
from wire.protocol.messages import CipherSuite, DownNote, FrameHeader, Verdict
from wire.protocol.topics import TopicChannel, compute_shard


class PlainEnvelopes:
    """`Envelopes` without cryptography: frames of the right form with a readable body."""

    reader_id: ClassVar[bytes] = bytes(8)

    def knows_key(self, key: bytes) -> bool:
        return key == self.reader_id

    def verify(self, frame: Frame, device: Device, channel: TopicChannel) -> None:
        if frame.signature != bytes(SIGNATURE_BYTES) or frame.header.device != device.id:
            raise RemoteError(Fault.SIGNATURE, channel.value)

    def open(self, frame: Frame, channel: TopicChannel = TopicChannel.QUESTION) -> bytes:
        del channel
        return frame.body

    def reader_key_id(self, device: Device) -> bytes:
        del device
        return self.reader_id

    def sign_note(self, device: str, note: DownNote, now: float, receiver: Device | None = None) -> bytes:
        del receiver
        return _make_plain_frame(
            CipherSuite.SIGNED, make_note_header(device, note, now, self.reader_id), encode_wire_message(note)
        )

    def seal_verdict(self, device: Device, key: QuestionAddress, verdict: Verdict, binding: bytes, now: float) -> bytes:
        del binding
        header = FrameHeader(
            compute_shard(device.id),
            device.id,
            key.epoch,
            seq=key.seq,
            created_ms=int(now * 1000),
            key_id=self.reader_id,
        )
        return _make_plain_frame(CipherSuite.SEALED, header, pad_verdict(verdict))


def _make_plain_frame(suite: CipherSuite, header: FrameHeader, body: bytes) -> bytes:
    return encode_clear_part(suite, header) + body + bytes(SIGNATURE_BYTES)
