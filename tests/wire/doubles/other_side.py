"""The other side of the link, for doubles of hubs and devices: the product's values, every byte by the second
implementation.

So a double takes and gives what tests know, and a change of the product's formats is noticed by it.
"""

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tests.second_implementation import frames
from tests.second_implementation.records import DOWN_TAGS, UP_TAGS, decode_record, encode_record
from tests.wire.doubles.translation import to_record, to_struct
from wire.errors import Fault, RemoteError
from wire.protocol.codec import Frame
from wire.protocol.messages import CipherSuite, DownNote, Escalation, FrameHeader, UpNote, Verdict
from wire.protocol.topics import TopicChannel


def make_header(device: str, epoch: int, seq: int, created_ms: int, key_id: bytes) -> FrameHeader:
    header: FrameHeader = to_struct(frames.header(device, epoch, seq, created_ms, key_id))
    return header


def name_key(key: Ed25519PublicKey | X25519PublicKey) -> bytes:
    """Id of a public key."""
    return frames.key_id(key.public_bytes_raw())


def encode_message(message: Any) -> bytes:
    return encode_record(to_record(message))


def decode_question(padded: bytes) -> Escalation:
    question: Escalation = to_struct(decode_record(frames.unpad(padded), "Escalation"))
    return question


def decode_up_note(data: bytes) -> UpNote:
    note: UpNote = to_struct(decode_record(data, *UP_TAGS.values()))
    return note


def decode_down_note(data: bytes) -> DownNote:
    note: DownNote = to_struct(decode_record(data, *DOWN_TAGS.values()))
    return note


def decode_verdict(padded: bytes) -> Verdict:
    verdict: Verdict = to_struct(decode_record(frames.unpad(padded), "Verdict"))
    return verdict


def pad_message(message: Any, size: int = 0) -> bytes:
    return frames.pad(encode_message(message), size)


def bind_verdict(padded_question: bytes, model: str, policy: str) -> bytes:
    return frames.verdict_binding(padded_question, model, policy)


def bind_order(receiver: Ed25519PublicKey) -> bytes:
    return frames.order_binding(receiver.public_bytes_raw())


def sign_message(
    header: FrameHeader, message: Any, by: Ed25519PrivateKey, channel: TopicChannel, binding: bytes = b""
) -> bytes:
    """A signed frame of a note."""
    return frames.sign(to_record(header), encode_message(message), by.private_bytes_raw(), channel.value, binding)


def seal_padded(
    header: FrameHeader,
    padded: bytes,
    *,
    to: X25519PublicKey,
    by: Ed25519PrivateKey,
    channel: TopicChannel,
    binding: bytes = b"",
) -> bytes:
    """A sealed frame."""
    raw = to.public_bytes_raw(), by.private_bytes_raw()
    return frames.seal(to_record(header), padded, *raw, channel.value, binding=binding)


def read_frame(data: bytes, by: Ed25519PublicKey, channel: TopicChannel, binding: bytes = b"") -> Frame:
    """The parts of a frame of version 1 that `by` signed for this channel. RemoteError otherwise."""
    try:
        found = frames.split(data)
    except ValueError as error:
        raise RemoteError(Fault.MALFORMED, str(error)) from None
    if not frames.is_signed_by(found, by.public_bytes_raw(), channel.value, binding):
        raise RemoteError(Fault.SIGNATURE)
    return Frame(CipherSuite(found.suite), to_struct(found.header), found.clear, found.body, found.signature)


def open_frame(frame: Frame, key: X25519PrivateKey, channel: TopicChannel, binding: bytes = b"") -> bytes:
    """The padded plaintext of a sealed frame. RemoteError(SEAL) if it does not open."""
    parts = frames.Frame(frame.suite, to_record(frame.header), frame.clear, frame.body, frame.signature)
    try:
        return frames.open_sealed(parts, key.private_bytes_raw(), channel.value, binding)
    except ValueError:
        raise RemoteError(Fault.SEAL) from None
