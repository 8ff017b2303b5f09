"""Signed checkpoint of the hub's transparency log: its size and root hash as a C2SP signed note. Pure.

The format is C2SP's: tlog-checkpoint (origin, size, root; a line each) in a signed-note, whose signatures are lines of
their own behind an empty one. So a witness may sign the same text, and whoever has two texts can compare them.
"""

import base64
import binascii
import re
from hashlib import sha256
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from wire.errors import Fault, RemoteError
from wire.ledger.merkle import HASH_BYTES, TreeHead

_ED25519 = b"\x01"
_KEY_HASH_BYTES = 4
_MAX_CHARS = 4096
_BODY = re.compile(r"([^\n+ ]{1,128})\n(0|[1-9][0-9]{0,18})\n([A-Za-z0-9+/]{43}=)\n(?:[^\n]+\n)*")


class VerifiedCheckpoint(NamedTuple):
    """A checkpoint whose signature was verified."""

    origin: str
    tree: TreeHead


def build_origin(hub: str) -> str:
    """Name of a hub's log, and of the key that signs it."""
    return f"skerry/{hub}"


def sign_checkpoint(origin: str, tree: TreeHead, key: Ed25519PrivateKey) -> str:
    """Write and sign a checkpoint; returns the whole note."""
    body = f"{origin}\n{tree.size}\n{base64.b64encode(tree.root).decode()}\n"
    named = _hash_key(origin, key.public_key().public_bytes_raw()) + key.sign(body.encode())
    return f"{body}\n— {origin} {base64.b64encode(named).decode()}\n"


def open_checkpoint(text: str, key: bytes) -> VerifiedCheckpoint:
    """Parse a checkpoint and verify its signature by the raw Ed25519 public key `key`.

    Signatures of other names (witnesses) are passed over. Raises RemoteError(MALFORMED) if the text is no checkpoint,
    RemoteError(SIGNATURE) if this key did not sign it.
    """
    body, gap, signatures = text.rpartition("\n\n")
    match = _BODY.fullmatch(body + "\n") if gap and len(text) <= _MAX_CHARS else None
    if match is None:
        raise RemoteError(Fault.MALFORMED, "no checkpoint")
    origin, root = match[1], base64.b64decode(match[3])
    if len(root) != HASH_BYTES:
        raise RemoteError(Fault.MALFORMED, "the root of a checkpoint")
    for line in signatures.splitlines():
        if _verify_line(line, origin, key, body.encode() + b"\n"):
            return VerifiedCheckpoint(origin, TreeHead(int(match[2]), root))
    raise RemoteError(Fault.SIGNATURE, "a checkpoint")


def _verify_line(line: str, origin: str, key: bytes, body: bytes) -> bool:
    """Whether this signature line is by `key` over `body`."""
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.rpartition(" ")
    if (dash, name) != ("—", origin):
        return False  # a witness's: not ours to judge
    try:
        data = base64.b64decode(encoded, validate=True)
        if data[:_KEY_HASH_BYTES] != _hash_key(origin, key):
            return False
        Ed25519PublicKey.from_public_bytes(key).verify(data[_KEY_HASH_BYTES:], body)
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


def _hash_key(name: str, key: bytes) -> bytes:
    """Key id of a signed note: the first 4 bytes of SHA-256(name, newline, 0x01, public key)."""
    return sha256(name.encode() + b"\n" + _ED25519 + key).digest()[:_KEY_HASH_BYTES]
