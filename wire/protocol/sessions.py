"""Session keys of a device and a hub: their agreement, and frames sealed under keys derived from them. Pure.

Agreement: X25519 between two keys of one use, and between the device's and the hub's HPKE key; HKDF-SHA256 (RFC 5869)
of both over the whole terms. Each side signs its key of one use, so the session is with those two and nobody between;
a signing key alone opens nothing without the HPKE key, and neither opens what was sealed before both keys of one use
were dropped.

Frames: each has a key of its own, HMAC-SHA256 of the session's key over direction, salt, clear header and binding,
for one ChaCha20-Poly1305 (RFC 8439) with the nonce 0. Rule: the salt, 16 random bytes in the frame, is drawn for each
sealing, so that no key is used twice, whatever clocks, counters or restarts do. A changed header, channel or binding
is another key. A verdict's key is of its question alone, so that whoever keeps it for an open question can drop the
session's.
"""

import hmac
from hashlib import sha256
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from wire.errors import Fault, LocalError, RemoteError
from wire.protocol.codec import MAX_FRAME_BYTES, Frame, encode_clear_part
from wire.protocol.messages import CipherSuite, FrameHeader
from wire.protocol.sealing import KEY_ID_BYTES, SigningKey, append_signature
from wire.protocol.topics import TopicChannel

SESSION_S = 3600.0  # how long a device seals in one
SALT_BYTES = 16
SHARE_BYTES = 32
_KEY_BYTES = 32
_SESSION_TAG = b"skerry-session/2\0"
_VERDICT_TAG = b"skerry-verdict-key/2\0"
_QUESTIONS = b"skerry/2/" + TopicChannel.QUESTION.encode() + b"\0"
_VERDICTS = b"skerry/2/" + TopicChannel.REPLY.encode() + b"\0"
_NONCE = bytes(12)
_encoder = msgspec.msgpack.Encoder()


class SessionTerms(NamedTuple):
    """All that both sides of a session agree on; keys are raw, 32 bytes each.

    `device_key`, `hub_key`: their Ed25519 keys. `hpke_key`: the hub's. `offered`, `share`: the keys of one use of
    device and hub.
    """

    device: str
    device_key: bytes
    hub: str
    hub_key: bytes
    hpke_key: bytes
    epoch: int
    offered: bytes
    share: bytes
    ends_ms: int


class SessionKeys(NamedTuple):
    """Secrets of a session. `id`: its name in headers, which tells nothing of them."""

    id: bytes
    questions: bytes
    verdicts: bytes


class VerdictKey(NamedTuple):
    """Key of the verdicts to one question of a session."""

    session: bytes
    key: bytes


def agree_as_device(terms: SessionTerms, own: X25519PrivateKey) -> SessionKeys:
    """Keys of the session, at the device. `own`: the private half of `offered`.

    RemoteError(SEAL) for a key with which no secret can be agreed (RFC 7748, section 6.1).
    """
    return _derive_keys(terms, _exchange(own, terms.share), _exchange(own, terms.hpke_key))


def agree_as_hub(terms: SessionTerms, own: X25519PrivateKey, hpke: X25519PrivateKey) -> SessionKeys:
    """Keys of the session, at the hub. `own`: the private half of `share`, `hpke`: of the HPKE key.

    RemoteError(SEAL) as `agree_as_device`.
    """
    return _derive_keys(terms, _exchange(own, terms.offered), _exchange(hpke, terms.offered))


def _exchange(own: X25519PrivateKey, other: bytes) -> bytes:
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise RemoteError(Fault.SEAL, "no secret can be agreed with this key") from None


def _derive_keys(terms: SessionTerms, between_shares: bytes, with_hpke: bytes) -> SessionKeys:
    salt = sha256(_SESSION_TAG + _encoder.encode(tuple(terms))).digest()
    size = KEY_ID_BYTES + 2 * _KEY_BYTES
    made = HKDF(SHA256(), size, salt=salt, info=_SESSION_TAG).derive(between_shares + with_hpke)
    return SessionKeys(made[:KEY_ID_BYTES], made[KEY_ID_BYTES:-_KEY_BYTES], made[-_KEY_BYTES:])


def seal_in_session(header: FrameHeader, padded: bytes, *, keys: SessionKeys, salt: bytes) -> bytes:
    """Seal a padded question; the header names the session. `salt`: 16 bytes, drawn for this very call.

    LocalError if the frame would be longer than `MAX_FRAME_BYTES`.
    """
    clear = encode_clear_part(CipherSuite.SESSION, header)
    frame = clear + salt + _make_cipher(keys.questions, _QUESTIONS, salt, clear).encrypt(_NONCE, padded, None)
    if len(frame) > MAX_FRAME_BYTES:
        raise LocalError(f"frame of {len(frame)} bytes, at most {MAX_FRAME_BYTES}")
    return frame


def open_in_session(frame: Frame, *, keys: SessionKeys) -> bytes:
    """Padded plaintext of a question that was sealed in this session: whoever has its keys has sealed exactly this.

    RemoteError(SUITE) for a frame of another suite, RemoteError(SEAL) otherwise.
    """
    if frame.suite is not CipherSuite.SESSION:
        raise RemoteError(Fault.SUITE, "a question of a session was expected")
    return _open_body(frame, keys.questions, _QUESTIONS)


def derive_verdict_key(keys: SessionKeys, epoch: int, seq: int, fingerprint: bytes) -> VerdictKey:
    """Key of the verdicts to this question, the same for each time that it is sealed in this session."""
    named = _VERDICT_TAG + epoch.to_bytes(8, "big") + seq.to_bytes(8, "big") + fingerprint
    return VerdictKey(keys.id, hmac.digest(keys.verdicts, named, "sha256"))


def seal_session_verdict(
    header: FrameHeader, padded: bytes, *, key: VerdictKey, by: SigningKey, salt: bytes, binding: bytes
) -> bytes:
    """Seal a padded verdict under its question's key and sign it; `salt` as in `seal_in_session`.

    `binding`: of `wire.protocol.sealing.compute_verdict_binding`. LocalError if the frame would be too long.
    """
    clear = encode_clear_part(CipherSuite.SESSION_SIGNED, header)
    body = salt + _make_cipher(key.key, _VERDICTS, salt, clear + binding).encrypt(_NONCE, padded, None)
    return append_signature(clear, body, by, TopicChannel.REPLY)


def open_session_verdict(frame: Frame, *, key: VerdictKey, binding: bytes) -> bytes:
    """Padded plaintext of a verdict; call `wire.protocol.sealing.verify_frame` first.

    RemoteError(SUITE) for a frame of another suite, RemoteError(SEAL) if it does not open with this key and binding.
    """
    if frame.suite is not CipherSuite.SESSION_SIGNED:
        raise RemoteError(Fault.SUITE, "a verdict of a session was expected")
    return _open_body(frame, key.key, _VERDICTS, binding)


def _open_body(frame: Frame, secret: bytes, direction: bytes, binding: bytes = b"") -> bytes:
    salt = frame.body[:SALT_BYTES]
    try:
        return _make_cipher(secret, direction, salt, frame.clear + binding).decrypt(
            _NONCE, frame.body[SALT_BYTES:], None
        )
    except (InvalidTag, ValueError):
        raise RemoteError(Fault.SEAL) from None


def _make_cipher(secret: bytes, direction: bytes, salt: bytes, bound: bytes) -> ChaCha20Poly1305:
    """Cipher of one frame. `bound`: the clear header, which says its own length, and the binding."""
    return ChaCha20Poly1305(hmac.digest(secret, direction + salt + bound, "sha256"))
