"""What rests in the outbox is unreadable without the device's payload key: AES-256-GCM, one random nonce per row.

Law: the row's (epoch, seq) is bound in, so a payload opens in its own row and nowhere else.
"""

import hmac
import os
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from wire.protocol.messages import Prediction

_NONCE_BYTES = 12


class VaultError(Exception):
    """The payload was altered, moved, or closed with another key."""


class Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a row keeps of its question: the padded plaintext as it was transformed, and the local answer."""

    padded: bytes
    local: Prediction
    trace: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


class Vault:
    """Closes and opens payloads with one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._key = key

    def derived(self, purpose: bytes) -> bytes:
        """32 bytes for another use: of this key, and unlike those of any other purpose."""
        return hmac.digest(self._key, b"skerry " + purpose, sha256)

    def close(self, epoch: int, seq: int, kept: Kept) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, _encoder.encode(kept), _row(epoch, seq))

    def open(self, epoch: int, seq: int, closed: bytes) -> Kept:
        """VaultError if it is not what `close` made for this row."""
        try:
            plain = self._cipher.decrypt(closed[:_NONCE_BYTES], closed[_NONCE_BYTES:], _row(epoch, seq))
            return _decoder.decode(plain)
        except (InvalidTag, ValueError, msgspec.DecodeError):
            raise VaultError(f"payload of row {seq} does not open") from None


def _row(epoch: int, seq: int) -> bytes:
    return epoch.to_bytes(8, "big") + seq.to_bytes(8, "big")
