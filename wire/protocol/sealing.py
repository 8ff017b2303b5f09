"""Encryption and signatures of frames: HPKE (RFC 9180) to the receiver, Ed25519 (RFC 8032) by the sender. Pure.

Base-mode HPKE does not authenticate the sender, so every frame is signed as well. The clear header and the channel
are bound twice: as HPKE `info` and under the signature. A verdict also binds the question it answers
(`compute_verdict_binding`), so it opens for that question alone.

The second part signs erasure requests (GDPR): what a device signs to have a subject's data deleted, and the hub's
signed statement that it is done. A subject goes over the link as a hash under a key that only its device has; the
hub keeps a hash of that hash.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM
from cryptography.hazmat.primitives.hpke import Suite as HpkeSuite

from wire.errors import Fault, LocalError, RemoteError
from wire.protocol.codec import MAX_FRAME_BYTES, Frame, encode_clear_part
from wire.protocol.messages import CipherSuite, FrameHeader
from wire.protocol.topics import TopicChannel

_hpke = HpkeSuite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
KEY_ID_BYTES = 8


class SigningKey(Protocol):
    """An Ed25519 private key, of `cryptography` or of another library."""

    def sign(self, data: bytes, /) -> bytes: ...


class VerifyingKey(Protocol):
    """An Ed25519 public key, of `cryptography` or of another library; `verify` raises its `InvalidSignature`."""

    def verify(self, signature: bytes, data: bytes, /) -> None: ...


def compute_key_id(public_raw: bytes) -> bytes:
    """Key id of a public key (raw bytes): the first 8 bytes of its SHA-256."""
    return sha256(public_raw).digest()[:KEY_ID_BYTES]


def seal_frame(
    header: FrameHeader,
    padded: bytes,
    *,
    to: X25519PublicKey,
    by: SigningKey,
    channel: TopicChannel,
    binding: bytes = b"",
) -> bytes:
    """Encrypt a padded plaintext to `to`, sign it with `by`, and return the whole frame.

    `binding`: further bytes for the HPKE info, as of `compute_verdict_binding`. Raises LocalError if the frame would be
    longer than `MAX_FRAME_BYTES`.
    """
    clear = encode_clear_part(CipherSuite.SEALED, header)
    body = _hpke.encrypt(padded, to, _hpke_info(clear, channel, binding))
    return append_signature(clear, body, by, channel)


def open_sealed_frame(frame: Frame, *, key: X25519PrivateKey, channel: TopicChannel, binding: bytes = b"") -> bytes:
    """Decrypt a sealed frame and return the padded plaintext.

    Call `verify` first: an unverified frame proves nothing about its sender. Raises RemoteError(SUITE) for a frame that
    is only signed, RemoteError(SEAL) if it does not decrypt with this key, channel and binding.
    """
    if frame.suite is not CipherSuite.SEALED:
        raise RemoteError(Fault.SUITE, "a sealed message was expected")
    try:
        return _hpke.decrypt(frame.body, key, _hpke_info(frame.clear, channel, binding))
    except (InvalidTag, ValueError):
        raise RemoteError(Fault.SEAL) from None


def sign_frame(
    header: FrameHeader, body: bytes, *, by: SigningKey, channel: TopicChannel, binding: bytes = b""
) -> bytes:
    """Sign a readable body and return the whole frame: for notes that carry nothing derived from a sample.

    `binding`: what the signature holds for beside the frame, and the frame does not carry; `compute_order_binding`.
    """
    return append_signature(encode_clear_part(CipherSuite.SIGNED, header), body, by, channel, binding)


def verify_frame(frame: Frame, *, by: VerifyingKey, channel: TopicChannel, binding: bytes = b"") -> None:
    """Verify the signature of a frame.

    Raises RemoteError(SIGNATURE) unless `by` signed exactly this header and body for this channel and binding.
    """
    try:
        by.verify(frame.signature, _channel_tag(channel) + binding + frame.clear + frame.body)
    except InvalidSignature:
        raise RemoteError(Fault.SIGNATURE) from None


def compute_verdict_binding(fingerprint: bytes, model: str, policy: str) -> bytes:
    """Hash that binds a verdict to its question, beside the header's (device, epoch, seq).

    `model`: `name@version` of the question's ModelRef, `policy`: the hash that the question names.
    Each part goes in with its length, so that no two questions share a binding by moving a border.
    """
    parts = (fingerprint, model.encode(), policy.encode())
    return sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()


def compute_order_binding(signing_public: bytes) -> bytes:
    """Hash that binds an order on `down/desired` to one enrolment of a device: of its signing key (raw bytes).

    Whoever kept orders of an earlier enrolment cannot send them again to what bears the name now.
    """
    return sha256(ORDER_TAG + signing_public).digest()


def hash_frame(frame: bytes) -> bytes:
    """SHA-256 of a whole sealed frame: its name in the egress ledger and in a refusal."""
    return sha256(frame).digest()


def append_signature(clear: bytes, body: bytes, by: SigningKey, channel: TopicChannel, binding: bytes = b"") -> bytes:
    """The whole frame of these parts. LocalError if it would be longer than `MAX_FRAME_BYTES`."""
    frame = clear + body + by.sign(_channel_tag(channel) + binding + clear + body)
    if len(frame) > MAX_FRAME_BYTES:
        raise LocalError(f"frame of {len(frame)} bytes, at most {MAX_FRAME_BYTES}")
    return frame


def _hpke_info(clear: bytes, channel: TopicChannel, binding: bytes) -> bytes:
    return _channel_tag(channel) + clear + binding


def _channel_tag(channel: TopicChannel) -> bytes:
    return b"skerry/1/" + channel.encode() + b"\0"


ORDER_TAG = b"skerry-order/1\0"
ERASE_TAG = b"skerry-erase/1\0"
ERASED_TAG = b"skerry-erased/1\0"
STATEMENT_TAG = b"skerry-statement/1\0"  # before what a hub's reply key signs beside frames
SUBJECT_BYTES = 32
MAX_NAMED_QUESTIONS = 256  # in one erasure request: they fit the 16 KiB of a JSON body
QUESTION_NAME = r"^([0-7][0-9a-f]{15}|[0-9a-f]{1,15})-[0-9]{1,18}$"  # both numbers fit 63 bits


class ErasureTombstone(msgspec.Struct, frozen=True):
    """Statement that the data of one subject was erased.

    `rows` about the subject that `mark` stands for, kept until `before_ms` of hub time, are gone since `at_ms`: all
    that this and earlier requests found. `named`: questions that this request named; `found`: rows that it found, by
    name or by subject, which still held anything.
    """

    device: str
    mark: str
    before_ms: int
    rows: int
    at_ms: int
    hub: str
    region: str
    named: int = 0
    found: int = 0


class SignedStatement(msgspec.Struct, frozen=True):
    """An `ErasureTombstone` with the hub's signature.

    `body`: its JSON text; `signature`: of the hub's reply key over STATEMENT_TAG and the body, base64.
    """

    body: str
    signature: str


def hash_subject_mark(device: str, subject: bytes) -> bytes:
    """Hash that identifies a subject of a device to whoever already knows the subject's keyed hash."""
    return sha256(ERASED_TAG + device.encode() + b"\0" + subject).digest()


def name_question(epoch: int, seq: int) -> str:
    """Name of a question in an erasure request: `EPOCH-SEQ`, the epoch in hexadecimal. See `QUESTION_NAME`."""
    return f"{epoch:x}-{seq}"


def build_erase_text(device: str, subject: str, before_ms: int, questions: Sequence[str] = ()) -> bytes:
    """Bytes of an erasure request, to be signed by the device's identity key.

    `subject`: the keyed hash, hex. `before_ms`: hub time up to which rows are to be erased. `questions`: names of
    further questions of the device.
    """
    return sha256(ERASE_TAG + "\0".join((device, subject, str(before_ms), *questions)).encode()).digest()
