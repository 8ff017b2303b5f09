"""Folder of signing keys, each sealed under a passphrase, with a record of what it signed before.

Rule: a private key is on disk only sealed (scrypt, RFC 7914, then AES-256-GCM over the whole file). A version that was
signed once is never signed again with other content unless a person says so: two contents under one number are a fork.
"""

import base64
import binascii
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from securesystemslib.signer import CryptoSigner, Key, SSlibKey

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import MAX_FILE_BYTES, read_file_bytes, write_private_file

KEY_FORMAT = "skerry-key/1"
NAME_FIELD = "x-skerry-name"  # beside a public key in the metadata: what people call it
MIN_PASSPHRASE_CHARS = 12
_SALT_BYTES, _NONCE_BYTES = 16, 12
_MAX_N, _MAX_R, _MAX_P = 1 << 20, 16, 4  # a hostile key file must not take all memory
_KEY_FILE_NAME = re.compile(r"([a-z0-9._-]+)-(\d{1,4})\.key")
PassphrasePrompt = Callable[[str], bytes]  # key name -> passphrase; b"" = this key is not to be used


@dataclass(frozen=True)
class ScryptCost:
    """Cost of scrypt: 128 * n * r bytes of memory. The default takes 128 MiB and about half a second."""

    n: int = 1 << 17
    r: int = 8
    p: int = 1


@dataclass(frozen=True)
class SealedKey:
    """Sealed key file. `public` raw Ed25519; `role` is what it was made for."""

    name: str
    role: str
    public: bytes
    data: bytes

    @property
    def keyid(self) -> str:
        """Key id as metadata has it."""
        return build_public_key(self.public, self.name).keyid


def build_public_key(raw: bytes, name: str) -> SSlibKey:
    """Build a public key as metadata holds it. The name is beside the key, not part of its id."""
    keyid = KeyId(raw).keyid
    return SSlibKey(keyid, "ed25519", "ed25519", {"public": raw.hex()}, {NAME_FIELD: name})


class KeyId:
    """Key id of a raw Ed25519 public key: the SHA-256 of its canonical form (TUF specification 4.2)."""

    def __init__(self, raw: bytes) -> None:
        value = {"keytype": "ed25519", "keyval": {"public": raw.hex()}, "scheme": "ed25519"}
        self.keyid = sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def build_signer(private: Ed25519PrivateKey, name: str) -> CryptoSigner:
    """Build a signer from a private key and its name."""
    return CryptoSigner(private, build_public_key(private.public_key().public_bytes_raw(), name))


def seal_key(private: Ed25519PrivateKey, name: str, passphrase: bytes, cost: ScryptCost) -> bytes:
    """Seal a private key: the bytes of a key file."""
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    head = {
        "format": KEY_FORMAT,
        "name": name,
        "public": private.public_key().public_bytes_raw().hex(),
        "kdf": {"name": "scrypt", "n": cost.n, "r": cost.r, "p": cost.p, "salt": salt.hex()},
    }
    sealed = nonce + AESGCM(_derive_key(passphrase, salt, cost)).encrypt(
        nonce, private.private_bytes_raw(), _bound_header(head)
    )
    return json.dumps({**head, "sealed": base64.b64encode(sealed).decode()}, indent=1).encode() + b"\n"


def unseal_key(key: SealedKey, passphrase: bytes) -> CryptoSigner | None:
    """Open a sealed key: None if the passphrase is wrong or a byte of the file was changed.

    ExitError(CREDENTIALS) if it is no key file.
    """
    try:
        head: dict[str, Any] = json.loads(key.data)
        sealed = base64.b64decode(head.pop("sealed"), validate=True)
        kdf = head["kdf"]
        cost = ScryptCost(int(kdf["n"]), int(kdf["r"]), int(kdf["p"]))
        _check_cost(cost)
        stretched = _derive_key(passphrase, bytes.fromhex(kdf["salt"]), cost)
        raw = AESGCM(stretched).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _bound_header(head))
        return build_signer(Ed25519PrivateKey.from_private_bytes(raw), key.name)
    except InvalidTag:
        return None
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise ExitError(ExitCode.CREDENTIALS, f"{key.name}: the key file is damaged; take its copy") from None


def _check_cost(cost: ScryptCost) -> None:
    if not (2 <= cost.n <= _MAX_N and 1 <= cost.r <= _MAX_R and 1 <= cost.p <= _MAX_P):
        raise ValueError("cost out of bounds")


def _derive_key(passphrase: bytes, salt: bytes, cost: ScryptCost) -> bytes:
    return Scrypt(salt=salt, length=32, n=cost.n, r=cost.r, p=cost.p).derive(passphrase)


def _bound_header(head: dict[str, Any]) -> bytes:
    return json.dumps(head, sort_keys=True, separators=(",", ":")).encode()


class Keyring:
    """Folder of keys: `root-1.key`, ..., the newest root it trusts (`root.json`), what it signed (`signed.json`)."""

    def __init__(self, folder: Path, cost: ScryptCost | None = None) -> None:
        self.folder = folder
        self._cost = cost or ScryptCost()
        self._passphrases: list[bytes] = []
        self._drawn: dict[str, Ed25519PrivateKey] = {}

    @classmethod
    def create(cls, folder: Path, cost: ScryptCost | None = None) -> "Keyring":
        """Create an empty folder of keys.

        ExitError(CREDENTIALS) if it holds keys already: they are never written over.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{folder}: {error.strerror}") from None
        ring = cls(folder, cost)
        if ring.key_files():
            raise ExitError(ExitCode.CREDENTIALS, f"{folder} holds keys already; use another folder")
        return ring

    def key_files(self) -> tuple[SealedKey, ...]:
        """List every key file, in order of name. ExitError(MISSING or CREDENTIALS) if one cannot be read."""
        if not self.folder.is_dir():
            raise ExitError(ExitCode.MISSING, f"{self.folder}: no such folder; `skerry keys init` makes one")
        found = [(path, match[1]) for path in self.folder.iterdir() if (match := _KEY_FILE_NAME.fullmatch(path.name))]
        return tuple(_read_key(path, role) for path, role in sorted(found))

    def draw_key(self, role: str) -> CryptoSigner:
        """Generate a key for a role, named `{role}-{next number}`; in memory until `save_keys`."""
        private = Ed25519PrivateKey.generate()
        name = f"{role}-{self._next_number(role)}"
        self._drawn[name] = private
        return build_signer(private, name)

    def draw_public_key(self, role: str) -> Key:
        """Generate a key like `draw_key`, and return its public half."""
        return self.draw_key(role).public_key

    def save_keys(self, fresh: Callable[[], bytes]) -> list[CryptoSigner]:
        """Seal the generated keys under the passphrase that `fresh` gives, asked only if there is something to seal."""
        if not self._drawn:
            return []
        passphrase = fresh()
        if len(passphrase.decode(errors="replace")) < MIN_PASSPHRASE_CHARS:
            raise ExitError(ExitCode.USAGE, f"the passphrase needs at least {MIN_PASSPHRASE_CHARS} characters")
        for name, private in self._drawn.items():
            write_private_file(self.folder / f"{name}.key", seal_key(private, name, passphrase, self._cost))
        signers = [build_signer(private, name) for name, private in self._drawn.items()]
        self._drawn.clear()
        return signers

    def unlock_keys(self, keyids: frozenset[str], ask: PassphrasePrompt) -> list[CryptoSigner]:
        """Unlock the wanted keys that are here. A passphrase that opened one key is tried on the next before asking."""
        wanted = [key for key in self.key_files() if key.keyid in keyids]
        signers = (self._unlock_key(key, ask) for key in wanted)
        return [signer for signer in signers if signer is not None]

    def read_root(self) -> bytes | None:
        """Read the newest root this folder trusts."""
        path = self.folder / "root.json"
        return read_key_file(path) if path.exists() else None

    def keep_root(self, data: bytes) -> None:
        """Store the newest root this folder trusts."""
        write_private_file(self.folder / "root.json", data)

    def claim_version(self, role: str, version: int, payload: bytes, *, again: bool = False) -> None:
        """Record what is about to be signed, before it is signed. ExitError as `check_claim`."""
        signed = self.check_claim(role, version, payload, again=again)
        signed.setdefault(role, {})[str(version)] = sha256(payload).hexdigest()
        write_private_file(self._claims_path, json.dumps(signed, indent=1, sort_keys=True).encode() + b"\n")

    def check_claim(self, role: str, version: int, payload: bytes, *, again: bool = False) -> dict[str, dict[str, str]]:
        """Return all claims so far.

        ExitError(CHECK_FAILED) if other content was claimed under this number, unless `again`.
        """
        signed: dict[str, dict[str, str]] = (
            json.loads(read_key_file(self._claims_path)) if self._claims_path.exists() else {}
        )
        before = signed.get(role, {}).get(str(version))
        if before not in (None, sha256(payload).hexdigest()) and not again:
            raise ExitError(
                ExitCode.CHECK_FAILED,
                f"{role} {version} was signed here before with other content; if that request was thrown away: --again",
            )
        return signed

    @property
    def _claims_path(self) -> Path:
        return self.folder / "signed.json"

    def _next_number(self, role: str) -> int:
        """Return the next number of a role's keys: never used twice, also after a key file was taken elsewhere."""
        names = [path.name for path in self.folder.iterdir()] + [f"{name}.key" for name in self._drawn]
        found = [match for name in names if (match := _KEY_FILE_NAME.fullmatch(name))]
        numbers = [int(match[2]) for match in found if match[1] == role]
        named = re.findall(rf'"{re.escape(role)}-(\d{{1,4}})"', (self.read_root() or b"").decode(errors="replace"))
        return max([0, *numbers, *map(int, named)]) + 1

    def _unlock_key(self, key: SealedKey, ask: PassphrasePrompt) -> CryptoSigner | None:
        for passphrase in self._passphrases:
            if signer := unseal_key(key, passphrase):
                return signer
        passphrase = ask(key.name)
        if not passphrase:
            return None
        signer = unseal_key(key, passphrase)
        if signer is None:
            raise ExitError(ExitCode.CREDENTIALS, f"{key.name}: wrong passphrase, or the file was changed")
        self._passphrases.append(passphrase)
        return signer


def _read_key(path: Path, role: str) -> SealedKey:
    data = read_key_file(path)
    try:
        head = json.loads(data)
        ours = head["format"] == KEY_FORMAT and head["name"] == path.stem
        public = bytes.fromhex(head["public"])
    except (ValueError, KeyError, TypeError, RecursionError):
        ours = False
    if not ours:
        raise ExitError(ExitCode.CREDENTIALS, f"{path} is not a key of ours")
    return SealedKey(path.stem, role, public, data)


def read_key_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a public or sealed file: any mode will do (a USB stick knows none).

    ExitError(CREDENTIALS) if it cannot be read.
    """
    return read_file_bytes(path, ExitCode.CREDENTIALS, max_bytes)
