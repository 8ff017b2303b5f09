"""HPKE (RFC 9180) in base mode with one suite: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305.

One message under each key, no additional data. A sealed message is the ephemeral public key, then the ciphertext.
"""

import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

_KEM = b"KEM" + (0x0020).to_bytes(2, "big")
_HPKE = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (0x0020, 0x0001, 0x0003))
_HASH_BYTES = _KEY_BYTES = 32
_NONCE_BYTES = 12
_BASE_MODE = b"\0"


def seal(plaintext: bytes, to: bytes, info: bytes, ephemeral: bytes | None = None) -> bytes:
    """Seal to a raw public key. `ephemeral`: the raw private key of one use, drawn if not given."""
    own = X25519PrivateKey.from_private_bytes(ephemeral) if ephemeral else X25519PrivateKey.generate()
    enc = own.public_key().public_bytes_raw()
    shared = _derive_shared(own.exchange(X25519PublicKey.from_public_bytes(to)), enc, to)
    key, nonce = _schedule_key(shared, info)
    return enc + ChaCha20Poly1305(key).encrypt(nonce, plaintext, b"")


def open_sealed(sealed: bytes, key: bytes, info: bytes) -> bytes:
    """Open with a raw private key; ValueError if it does not open."""
    own = X25519PrivateKey.from_private_bytes(key)
    enc, ciphertext = sealed[:_KEY_BYTES], sealed[_KEY_BYTES:]
    shared = _derive_shared(
        own.exchange(X25519PublicKey.from_public_bytes(enc)), enc, own.public_key().public_bytes_raw()
    )
    aead, nonce = _schedule_key(shared, info)
    try:
        return ChaCha20Poly1305(aead).decrypt(nonce, ciphertext, b"")
    except InvalidTag:
        raise ValueError("it does not open") from None


def _derive_shared(secret: bytes, enc: bytes, receiver: bytes) -> bytes:
    return _expand(_KEM, _extract(_KEM, b"", b"eae_prk", secret), b"shared_secret", enc + receiver, _HASH_BYTES)


def _schedule_key(shared: bytes, info: bytes) -> tuple[bytes, bytes]:
    hashes = (_extract(_HPKE, b"", b"psk_id_hash", b""), _extract(_HPKE, b"", b"info_hash", info))
    context = _BASE_MODE + b"".join(hashes)
    secret = _extract(_HPKE, shared, b"secret", b"")
    key = _expand(_HPKE, secret, b"key", context, _KEY_BYTES)
    return key, _expand(_HPKE, secret, b"base_nonce", context, _NONCE_BYTES)


def _extract(suite: bytes, salt: bytes, label: bytes, key: bytes) -> bytes:
    return hmac.digest(salt or bytes(_HASH_BYTES), b"HPKE-v1" + suite + label + key, "sha256")


def _expand(suite: bytes, secret: bytes, label: bytes, info: bytes, size: int) -> bytes:
    # one block of HKDF-Expand (RFC 5869) is enough: nothing here is longer than a hash
    text = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(secret, text + b"\1", "sha256")[:size]
