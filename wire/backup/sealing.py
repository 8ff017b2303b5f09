"""Encryption of a backup as a stream, under a passphrase or to the public key of whoever may restore it.

A sealed file is one line of JSON behind `MAGIC`, which says how its key is found, then chunks of `CHUNK_BYTES`, each
under AES-256-GCM. The nonce is the number of the chunk and whether it is the last one, so that chunks cannot be moved,
left out or cut off (the STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizar, 2015). A passphrase gives the
key by scrypt (RFC 7914); for a recipient it is drawn, and sealed by HPKE (RFC 9180) to an X25519 key.
"""

import base64
import getpass
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_file_bytes, read_private_file

MAGIC = b"skerry-backup/1\n"
CHUNK_BYTES = 1 << 20
_TAG_BYTES = 16
_KEY_BYTES = 32
_MAX_HEADER_BYTES = 4096
_MIN_PASSPHRASE_CHARS = 8
_SCRYPT_N, _SCRYPT_R = 1 << 16, 8  # 64 MiB a guess: a small device has to make one
_MAX_SCRYPT_N = 1 << 20
_HPKE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_HPKE_INFO = b"skerry-backup/1 file key"
_NOT_SEALED_SO = "is damaged: a chunk of it was changed, moved or cut off"


class ByteSink(Protocol):
    """Where an archive is written to."""

    def write(self, data: bytes, /) -> int:
        """Take bytes; returns how many."""
        ...


class Seal(NamedTuple):
    """How a backup is sealed: its header, and the key of its chunks."""

    header: bytes
    key: bytes


class Secrets(NamedTuple):
    """What opens a sealed backup: its passphrase, or the private key of its recipient."""

    passphrase: bytes | None = None
    identity: X25519PrivateKey | None = None


def choose_seal(passphrase: Path | None, recipient: Path | None) -> Seal | None:
    """The seal that the options ask for; None for a backup that is not sealed.

    `passphrase`: a file, or `-` to be asked. `recipient`: an X25519 public key in PEM. ExitError(USAGE) for both.
    """
    if passphrase is not None and recipient is not None:
        raise ExitError(ExitCode.USAGE, "name a passphrase or a recipient, not both")
    if passphrase is not None:
        return make_passphrase_seal(read_passphrase(passphrase, twice=True))
    return make_recipient_seal(load_recipient(recipient)) if recipient is not None else None


def choose_secrets(passphrase: Path | None, identity: Path | None) -> Secrets:
    """What the options name, read once, as from a pipe: a backup may be opened several times. `-` asks."""
    return Secrets(
        read_passphrase(passphrase) if passphrase is not None else None,
        load_identity_key(identity) if identity is not None else None,
    )


def make_passphrase_seal(passphrase: bytes) -> Seal:
    """A seal under a passphrase. ExitError(USAGE) if it is too short."""
    if len(passphrase.decode(errors="replace")) < _MIN_PASSPHRASE_CHARS:
        raise ExitError(ExitCode.USAGE, f"the passphrase needs at least {_MIN_PASSPHRASE_CHARS} characters")
    salt = secrets.token_bytes(16)
    key = _stretch(passphrase, salt, _SCRYPT_N, _SCRYPT_R)
    return Seal(_encode_header({"seal": "passphrase", "salt": salt.hex(), "n": _SCRYPT_N, "r": _SCRYPT_R}), key)


def make_recipient_seal(recipient: X25519PublicKey) -> Seal:
    """A seal that the owner of this public key opens."""
    key = secrets.token_bytes(_KEY_BYTES)
    sealed = base64.b64encode(_HPKE.encrypt(key, recipient, _HPKE_INFO)).decode()
    return Seal(_encode_header({"seal": "recipient", "key": sealed}), key)


def _encode_header(facts: dict[str, Any]) -> bytes:
    return MAGIC + json.dumps(facts).encode() + b"\n"


def _stretch(passphrase: bytes, salt: bytes, n: int, r: int) -> bytes:
    return Scrypt(salt=salt, length=_KEY_BYTES, n=n, r=r, p=1).derive(passphrase)


def read_passphrase(file: Path, *, twice: bool = False) -> bytes:
    """The first line of a file, or what is typed for `-`. ExitError(USAGE) if what was typed twice differs."""
    if str(file) != "-":
        return read_file_bytes(file, ExitCode.CREDENTIALS).split(b"\n", 1)[0].rstrip(b"\r")
    told = getpass.getpass("passphrase of the backup: ")
    if twice and told != getpass.getpass("once more: "):
        raise ExitError(ExitCode.USAGE, "the two differ: nothing was written")
    return told.encode()


def load_recipient(file: Path) -> X25519PublicKey:
    """Read an X25519 public key in PEM. ExitError(CREDENTIALS) if it is none."""
    try:
        key = serialization.load_pem_public_key(read_file_bytes(file, ExitCode.CREDENTIALS))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, X25519PublicKey):
        raise ExitError(ExitCode.CREDENTIALS, f"{file} is no X25519 public key in PEM: docs/running.md makes one")
    return key


def load_identity_key(file: Path) -> X25519PrivateKey:
    """Read a recipient's private key in PEM, a private file. ExitError(CREDENTIALS) if it is none."""
    try:
        key: object = serialization.load_pem_private_key(read_private_file(file), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, X25519PrivateKey):
        raise ExitError(ExitCode.CREDENTIALS, f"{file} is no X25519 private key in PEM")
    return key


class SealingWriter:
    """Encrypts what is written to it into `out`; `close` writes the last chunk, without which nothing opens."""

    def __init__(self, out: ByteSink, seal: Seal) -> None:
        self._out = out
        self._seal = seal
        self._cipher = AESGCM(seal.key)
        self._held = bytearray()
        self._number = 0
        out.write(seal.header)

    def write(self, data: bytes, /) -> int:
        """Take bytes; whole chunks go out, but the last one only with `close`."""
        self._held += data
        while len(self._held) > CHUNK_BYTES:
            self._write_chunk(bytes(self._held[:CHUNK_BYTES]), last=False)
            del self._held[:CHUNK_BYTES]
        return len(data)

    def close(self) -> None:
        """Write the last chunk."""
        self._write_chunk(bytes(self._held), last=True)

    def _write_chunk(self, data: bytes, *, last: bool) -> None:
        self._out.write(self._cipher.encrypt(_nonce(self._number, last=last), data, self._seal.header))
        self._number += 1


class OpeningReader:
    """Reads a sealed stream decrypted. ExitError(DATABASE) at a chunk that was changed, moved or cut off."""

    def __init__(self, source: BinaryIO, seal: Seal, name: str) -> None:
        self._source = source
        self._seal = seal
        self._name = name
        self._cipher = AESGCM(seal.key)
        self._number = 0
        self._rest = b""
        self._ahead = source.read(CHUNK_BYTES + _TAG_BYTES)
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        while len(self._rest) < size and not self._ended:
            self._rest += self._open_chunk()
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def _open_chunk(self) -> bytes:
        chunk, self._ahead = self._ahead, self._source.read(CHUNK_BYTES + _TAG_BYTES)
        self._ended = not self._ahead
        try:
            opened = self._cipher.decrypt(_nonce(self._number, last=self._ended), chunk, self._seal.header)
        except (InvalidTag, ValueError):
            if self._number == 0:
                raise ExitError(
                    ExitCode.CREDENTIALS, f"{self._name} does not open: another passphrase or key, or it is damaged"
                ) from None
            raise ExitError(ExitCode.DATABASE, f"{self._name} {_NOT_SEALED_SO}") from None
        self._number += 1
        return opened


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes((last,))


class ByteSource(Protocol):
    """Where an archive is read from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        ...


def open_source(source: BinaryIO, name: str, opening: Secrets) -> ByteSource:
    """The archive's bytes, decrypted if the file is sealed. ExitError(CREDENTIALS) without what opens it."""
    if source.read(len(MAGIC)) != MAGIC:
        source.seek(0)
        return source
    header = source.readline(_MAX_HEADER_BYTES)
    return OpeningReader(source, Seal(MAGIC + header, _find_key(header, name, opening)), name)


def _find_key(header: bytes, name: str, opening: Secrets) -> bytes:
    broken = ExitError(ExitCode.DATABASE, f"{name} is damaged: its first lines are not those of a backup")
    try:
        facts = json.loads(header)
        finders: dict[str, Callable[[dict[str, Any], str, Secrets], bytes]] = {
            "passphrase": _find_passphrase_key, "recipient": _find_recipient_key,
        }  # fmt: skip
        return finders[facts["seal"]](facts, name, opening)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise broken from None


def _find_passphrase_key(facts: dict[str, Any], name: str, opening: Secrets) -> bytes:
    if opening.passphrase is None:
        raise ExitError(ExitCode.CREDENTIALS, f"{name} is sealed under a passphrase: add --passphrase-file")
    n, r, salt = int(facts["n"]), int(facts["r"]), bytes.fromhex(facts["salt"])
    if not 2 <= n <= _MAX_SCRYPT_N or r != _SCRYPT_R or n & (n - 1):
        raise ValueError
    return _stretch(opening.passphrase, salt, n, r)


def _find_recipient_key(facts: dict[str, Any], name: str, opening: Secrets) -> bytes:
    if opening.identity is None:
        raise ExitError(ExitCode.CREDENTIALS, f"{name} is sealed to a key: add --identity with its private key")
    try:
        return _HPKE.decrypt(base64.b64decode(facts["key"], validate=True), opening.identity, _HPKE_INFO)
    except InvalidTag:
        raise ExitError(ExitCode.CREDENTIALS, f"{name} does not open: it is sealed to another key") from None
