"""The key of a region, `region.key`, and what is sealed under it: the files that its hubs share, in their database.

Rule: nothing is stored in the clear, and a row counts under its own path alone (AES-256-GCM, the path authenticated).
Whoever holds the database without the key can read none of it and forge none of it.
"""

import base64
import binascii
import hmac
import secrets
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file, write_private_file

KEY_BYTES = 32
_NONCE_BYTES = 12


class WrongRegionKeyError(Exception):
    """What was sealed does not open: another region's key, another path, or a changed row."""


class RegionVault:
    """Seals and opens under one region's key."""

    def __init__(self, key: bytes) -> None:
        self._sealing = AESGCM(_derive_key(key, b"skerry region sealing"))
        self._naming = _derive_key(key, b"skerry region digests")

    def seal(self, path: str, data: bytes) -> bytes:
        """Seal the content of a path."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._sealing.encrypt(nonce, data, path.encode())

    def unseal(self, path: str, sealed: bytes) -> bytes:
        """Open what was sealed for a path. WrongRegionKeyError if it was not, or under another key."""
        try:
            return self._sealing.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], path.encode())
        except (InvalidTag, ValueError):
            raise WrongRegionKeyError from None

    def digest(self, path: str, data: bytes) -> bytes:
        """Digest (32 bytes) that tells contents of a path apart, and nothing about them without the key."""
        return hmac.new(self._naming, path.encode() + b"\0" + data, sha256).digest()


def load_region_key(file: Path) -> bytes | None:
    """Read a region's key; None if there is no such file. ExitError(REGION_KEY or CREDENTIALS) if it is none."""
    if not file.exists():
        return None
    try:
        key = base64.b64decode(read_private_file(file).strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise ExitError(ExitCode.REGION_KEY, f"{file} is no region's key: copy it from another hub of the region")
    return key


def create_region_key(file: Path) -> bytes:
    """Draw a region's key and write it, mode 0600."""
    key = secrets.token_bytes(KEY_BYTES)
    write_private_file(file, base64.b64encode(key) + b"\n")
    return key


def _derive_key(key: bytes, purpose: bytes) -> bytes:
    return HKDFExpand(SHA256(), KEY_BYTES, purpose).derive(key)
