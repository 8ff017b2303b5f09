"""Binary codec of the link: frame layout, msgpack messages, padding to size classes. Pure.

Frame (big-endian lengths)::

    version u8 | suite u8 | header_len u16 | header (positional msgpack) | body | signature (64)

`body` is the ciphertext of a padded message (suite SEALED) or the message itself (suite SIGNED).

Rule: decoding arbitrary bytes returns a value or raises `RemoteError`, and nothing else.
Sizes are in bytes; `MAX_FRAME_BYTES` limits a whole frame, signature included.
"""

from hashlib import sha256
from typing import TypeVar

import msgspec

from wire.errors import Fault, LocalError, RemoteError
from wire.protocol.messages import CipherSuite, DownNote, Escalation, FrameHeader, UpNote, Verdict

VERSION = 1
MAX_FRAME_BYTES = 128 * 1024  # AWS IoT's publish limit, the smallest of the common brokers'
MAX_HEADER_BYTES = 256
SIGNATURE_BYTES = 64
SIZE_CLASS_BYTES = 64
TEXT_CLASS_BYTES = 512
_PREFIX_BYTES = 4
_DETAIL_CHARS = 120

_SUITES = {int(suite): suite for suite in CipherSuite}
_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(FrameHeader)
_escalation_decoder = msgspec.msgpack.Decoder(Escalation)
_verdict_decoder = msgspec.msgpack.Decoder(Verdict)
_up_decoder: msgspec.msgpack.Decoder[UpNote] = msgspec.msgpack.Decoder(UpNote)
_down_decoder: msgspec.msgpack.Decoder[DownNote] = msgspec.msgpack.Decoder(DownNote)

T = TypeVar("T")


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A received frame, split into its parts and not yet verified.

    `clear`: the bytes before the body, exactly as signed. `signature`: 64 bytes of Ed25519.
    """

    suite: CipherSuite
    header: FrameHeader
    clear: bytes
    body: bytes
    signature: bytes


def encode_clear_part(suite: CipherSuite, header: FrameHeader) -> bytes:
    """Encode version, suite and header: the bytes that HPKE binds as `info` and that the signature covers.

    Raises LocalError if the encoded header is longer than `MAX_HEADER_BYTES`.
    """
    encoded = _encoder.encode(header)
    if len(encoded) > MAX_HEADER_BYTES:
        raise LocalError(f"header of {len(encoded)} bytes, at most {MAX_HEADER_BYTES}: device id too long")
    return bytes((VERSION, suite)) + len(encoded).to_bytes(2, "big") + encoded


def split_frame(data: bytes, max_bytes: int = MAX_FRAME_BYTES) -> Frame:
    """Split received bytes into a `Frame`; no cryptography is done here.

    The cheap checks come first: size, version, suite, then the header. Raises RemoteError with the fault
    TOO_BIG, VERSION, SUITE or MALFORMED.
    """
    if len(data) > max_bytes:
        raise RemoteError(Fault.TOO_BIG, f"{len(data)} bytes, at most {max_bytes}")
    if len(data) < _PREFIX_BYTES + SIGNATURE_BYTES:
        raise RemoteError(Fault.MALFORMED, f"{len(data)} bytes are too few for a frame")
    if data[0] != VERSION:
        raise RemoteError(Fault.VERSION, f"version {data[0]}, this side speaks {VERSION}")
    suite = parse_suite(data[1])
    end = _PREFIX_BYTES + int.from_bytes(data[2:4], "big")
    if end - _PREFIX_BYTES > MAX_HEADER_BYTES or end + SIGNATURE_BYTES > len(data):
        raise RemoteError(Fault.MALFORMED, "header length")
    header = _decode_with(_header_decoder, data[_PREFIX_BYTES:end])
    return Frame(suite, header, data[:end], data[end:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:])


def is_spoken(frame: bytes) -> bool:
    """Whether this release speaks the wire version of a frame; one that an earlier release stored may be of another."""
    return frame[:1] == bytes((VERSION,))


def parse_suite(value: int) -> CipherSuite:
    suite = _SUITES.get(value)
    if suite is None:
        raise RemoteError(Fault.SUITE, f"suite {value:#04x} is not spoken here")
    return suite


class _PlainPrediction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prediction as it was before there were texts: devices of that time refuse a longer one."""

    label: int
    confidence: float
    scores: tuple[float, ...]
    model: str
    in_domain: bool | None


class _PlainVerdict(msgspec.Struct, frozen=True, array_like=True, tag="v"):
    prediction: _PlainPrediction
    hub: str
    region: str
    queue_s: float
    compute_s: float


def encode_wire_message(message: Escalation | Verdict | UpNote | DownNote) -> bytes:
    """Encode a message as positional msgpack, its tag first."""
    if type(message) is Verdict and message.prediction.text is None:
        p = message.prediction
        plain = _PlainPrediction(p.label, p.confidence, p.scores, p.model, p.in_domain)
        return _encoder.encode(_PlainVerdict(plain, message.hub, message.region, message.queue_s, message.compute_s))
    return _encoder.encode(message)


def decode_escalation(data: bytes) -> Escalation:
    """Decode an unpadded question. Raises RemoteError(MALFORMED)."""
    return _decode_with(_escalation_decoder, data)


def decode_verdict(data: bytes) -> Verdict:
    """Decode an unpadded verdict; text and usage come together. Raises RemoteError(MALFORMED)."""
    verdict = _decode_with(_verdict_decoder, data)
    usage = verdict.prediction.usage
    if (usage is None) is not (verdict.prediction.text is None):
        raise RemoteError(Fault.MALFORMED, "a text without its usage, or a usage without a text")
    if (usage and not 0 <= usage.cached_tokens <= usage.prompt_tokens) or (usage and usage.generated_tokens < 0):
        raise RemoteError(Fault.MALFORMED, "a usage that cannot be")
    return verdict


def choose_text_class(size_bytes: int) -> int:
    """Return the padded size of a message that carries a text: the next power of two, at least `TEXT_CLASS_BYTES`.

    Steps of 64 bytes would tell the length of what was written to within a dozen words.
    """
    return max(TEXT_CLASS_BYTES, 1 << (size_bytes + 4 - 1).bit_length())


def decode_up_note(data: bytes) -> UpNote:
    """Decode a note from a device, told apart by its tag. Raises RemoteError(MALFORMED)."""
    return _decode_with(_up_decoder, data)


def decode_down_note(data: bytes) -> DownNote:
    """Decode a note from a hub, told apart by its tag. Raises RemoteError(MALFORMED)."""
    return _decode_with(_down_decoder, data)


def _decode_with(decoder: "msgspec.msgpack.Decoder[T]", data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        # cut short: the text may quote what was sent, and it ends in a log
        raise RemoteError(Fault.MALFORMED, str(error)[:_DETAIL_CHARS]) from None


def pad_plaintext(data: bytes, fixed_bytes: int = 0) -> bytes:
    """Pad a plaintext to `u32 length | data | zeros`, so that its size does not leak the content.

    Filled to the next multiple of `SIZE_CLASS_BYTES`, or to `fixed_bytes`: from level P2 up the schema names one size
    for every sample. Raises LocalError if `data` does not fit `fixed_bytes`.
    """
    size = len(data) + 4
    target = fixed_bytes or -(-size // SIZE_CLASS_BYTES) * SIZE_CLASS_BYTES
    if size > target:
        raise LocalError(f"{size} bytes do not fit the schema's fixed size of {fixed_bytes}")
    return len(data).to_bytes(4, "big") + data + bytes(target - size)


def unpad_plaintext(padded: bytes) -> bytes:
    """Remove the padding. Raises RemoteError(PADDING) if the length is wrong or a filling byte is not zero."""
    size = int.from_bytes(padded[:4], "big")
    if len(padded) < 4 or size > len(padded) - 4 or padded.count(0, 4 + size) < len(padded) - 4 - size:
        raise RemoteError(Fault.PADDING)
    return padded[4 : 4 + size]


def hash_plaintext(padded: bytes) -> bytes:
    """SHA-256 of the padded plaintext, the key for idempotency.

    Two sealings of one question have different ciphertexts and the same fingerprint.
    """
    return sha256(padded).digest()
