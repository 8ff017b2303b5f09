"""Frames of version 1: header, padding, signatures, sealing, bindings, topics, and statements beside frames.

Keys are raw bytes of 32.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.second_implementation import hpke
from tests.second_implementation.records import Record, decode_record, encode_record

VERSION = 1
SIGNED, SEALED = 0x01, 0x11
SIGNATURE_BYTES = 64
QUESTION, ASK, STATE, REPORT, REPLY, DESIRED = "up/q", "up/ask", "up/state", "up/report", "down/r", "down/desired"


@dataclass(frozen=True)
class Frame:
    """The parts of a frame. `clear`: prefix and header, as they are signed."""

    suite: int
    header: Record
    clear: bytes
    body: bytes
    signature: bytes


def signing_public(key: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


def hpke_public(key: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


def key_id(public: bytes) -> bytes:
    return sha256(public).digest()[:8]


def shard(device: str) -> int:
    return sha256(device.encode()).digest()[0]


def topic(device: str, channel: str) -> str:
    return f"v1/{shard(device):02x}/{device}/{channel}"


def header(device: str, epoch: int, seq: int, created_ms: int, key: bytes) -> Record:
    """A header. `key`: id of the receiver's HPKE key if the frame is sealed, of the signer's key if it is not."""
    fields = {"shard": shard(device), "device": device, "epoch": epoch, "seq": seq, "created_ms": created_ms}
    return Record("FrameHeader", {**fields, "key_id": key})


def pad(message: bytes, size: int = 0) -> bytes:
    """Length, message, zeros: up to `size`, or to the next multiple of 64."""
    needed = 4 + len(message)
    whole = size or (needed + 63) // 64 * 64
    if needed > whole:
        raise ValueError(f"{needed} bytes do not fit {whole}")
    return (len(message).to_bytes(4, "big") + message).ljust(whole, b"\0")


def unpad(padded: bytes) -> bytes:
    size = int.from_bytes(padded[:4], "big")
    if len(padded) < 4 + size or padded[4 + size :].strip(b"\0"):
        raise ValueError("padding")
    return padded[4 : 4 + size]


def text_size(message_bytes: int) -> int:
    """Padded size of a verdict that carries a text: a power of two, at least 512."""
    size = 512
    while size < message_bytes + 4:
        size *= 2
    return size


def fingerprint(padded: bytes) -> bytes:
    return sha256(padded).digest()


def digest(frame: bytes) -> bytes:
    return sha256(frame).digest()


def verdict_binding(padded_question: bytes, model: str, policy: str) -> bytes:
    """`model`: name@version, `policy`: as the question names it."""
    joined = b""
    for part in (fingerprint(padded_question), model.encode(), policy.encode()):
        joined += len(part).to_bytes(4, "big") + part
    return sha256(joined).digest()


def order_binding(device_signing_public: bytes) -> bytes:
    return sha256(b"skerry-order/1\0" + device_signing_public).digest()


def _channel_text(channel: str) -> bytes:
    return b"skerry/1/" + channel.encode() + b"\0"


def clear_part(suite: int, about: Record) -> bytes:
    encoded = encode_record(about)
    return bytes((VERSION, suite)) + len(encoded).to_bytes(2, "big") + encoded


def sign(about: Record, body: bytes, by: bytes, channel: str, binding: bytes = b"") -> bytes:
    """A signed frame with a readable body."""
    return _append_signature(clear_part(SIGNED, about), body, by, channel, binding)


def seal(
    about: Record, padded: bytes, to: bytes, by: bytes, channel: str, *, binding: bytes = b"", once: bytes | None = None
) -> bytes:
    """A sealed frame. `once`: the ephemeral private key of HPKE, drawn if not given."""
    clear = clear_part(SEALED, about)
    body = hpke.seal(padded, to, _channel_text(channel) + clear + binding, once)
    return _append_signature(clear, body, by, channel, b"")


def _append_signature(clear: bytes, body: bytes, by: bytes, channel: str, binding: bytes) -> bytes:
    signed = _channel_text(channel) + binding + clear + body
    return clear + body + Ed25519PrivateKey.from_private_bytes(by).sign(signed)


def split(data: bytes) -> Frame:
    """The parts of a frame, nothing verified; ValueError if it is none of version 1."""
    if len(data) < 4 + SIGNATURE_BYTES or data[0] != VERSION or data[1] not in (SIGNED, SEALED):
        raise ValueError("no frame of version 1")
    end = 4 + int.from_bytes(data[2:4], "big")
    if end > len(data) - SIGNATURE_BYTES:
        raise ValueError("header length")
    about = decode_record(data[4:end], "FrameHeader")
    return Frame(data[1], about, data[:end], data[end:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:])


def is_signed_by(frame: Frame, public: bytes, channel: str, binding: bytes = b"") -> bool:
    signed = _channel_text(channel) + binding + frame.clear + frame.body
    return verify(public, frame.signature, signed)


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def open_sealed(frame: Frame, key: bytes, channel: str, binding: bytes = b"") -> bytes:
    """The padded plaintext of a sealed frame; ValueError if it does not open."""
    if frame.suite != SEALED:
        raise ValueError("not sealed")
    return hpke.open_sealed(frame.body, key, _channel_text(channel) + frame.clear + binding)


# Statements beside frames


def enrolment_text(token: str, csr: str, signing: bytes, hpke: bytes, hardware: str = "") -> bytes:
    """What a device signs to enrol. `signing`, `hpke`: its raw public keys."""
    return sha256(b"skerry-enrol/1\0" + token.encode() + csr.encode() + signing + hpke + hardware.encode()).digest()


def renewal_text(device: str, csr: str) -> bytes:
    return sha256(b"skerry-renew/1\0" + device.encode() + b"\0" + csr.encode()).digest()


def retirement_text(device: str, ledger_hex: str) -> bytes:
    return sha256(b"skerry-retire/1\0" + device.encode() + b"\0" + ledger_hex.encode()).digest()


def is_ledger_export_signed(lines: bytes, public: bytes) -> bool:
    """Whether the last line of an exported ledger is signed over the SHA-256 of those before."""
    before, _, last = lines.removesuffix(b"\n").rpartition(b"\n")
    end, found = json.loads(last), sha256(before + b"\n").digest()
    signed = verify(public, base64.b64decode(end["signature"]), b"skerry-ledger/1\0" + found)
    return signed and end["sha256"] == found.hex()


def erase_text(device: str, subject_hex: str, before_ms: int, questions: Sequence[str] = ()) -> bytes:
    """What a device signs to have a subject's rows erased."""
    return sha256(b"skerry-erase/1\0" + "\0".join((device, subject_hex, str(before_ms), *questions)).encode()).digest()


def subject_mark(device: str, subject: bytes) -> bytes:
    return sha256(b"skerry-erased/1\0" + device.encode() + b"\0" + subject).digest()


def question_name(epoch: int, seq: int) -> str:
    return f"{epoch:x}-{seq}"


def sign_statement(body: str, by: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(by).sign(b"skerry-statement/1\0" + body.encode())


def is_statement_signed(body: str, signature: bytes, public: bytes) -> bool:
    return verify(public, signature, b"skerry-statement/1\0" + body.encode())


def tombstone_text(**facts: object) -> str:
    """JSON of an erasure's statement, keys in the order given."""
    return json.dumps(facts, separators=(",", ":"), ensure_ascii=False)
