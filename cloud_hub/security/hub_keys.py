"""Files of the hub's HPKE and signing keys (mode 0600), their rotation, and the card with the public halves.

Rule: several HPKE keys are valid at once, each under its key id, so that a question sealed before a rotation still
opens; `retire_hpke_key` destroys one. Devices get the newest at enrolment.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file, write_private_file
from wire.protocol.sealing import compute_key_id

_HPKE_FILE = re.compile(r"hpke-(\d{4})\.key")
_SIGNING_FILE = "reply.key"


class HubCard(msgspec.Struct, frozen=True):
    """Public description of a hub that a device may use: raw public keys, 32 bytes each."""

    name: str
    region: str
    hpke_key: bytes
    signing_key: bytes


@dataclass(frozen=True)
class HubKeys:
    """Private keys of a hub: HPKE keys by key id, the id of the newest (`current`), and the signing key."""

    hpke: Mapping[bytes, X25519PrivateKey]
    current: bytes
    signing: Ed25519PrivateKey

    @property
    def hpke_public(self) -> bytes:
        """Raw X25519 public key (32 bytes) that devices seal to."""
        return self.hpke[self.current].public_key().public_bytes_raw()

    @property
    def signing_public(self) -> bytes:
        """Raw Ed25519 public key (32 bytes) that devices verify replies with."""
        return self.signing.public_key().public_bytes_raw()


def generate_keys() -> HubKeys:
    """Generate keys in memory, for tests and simulations."""
    return _bind_keys([X25519PrivateKey.generate()], Ed25519PrivateKey.generate())


def load_or_create_keys(folder: Path) -> HubKeys:
    """Read the keys of `folder`, creating folder and keys at first start.

    ExitError(CREDENTIALS) if a file is not a key.
    """
    _make_key_folder(folder)
    if not _list_hpke_files(folder):
        _add_hpke_key(folder, 1)
    signing_file = folder / _SIGNING_FILE
    if not signing_file.exists():
        write_private_file(signing_file, _encode_pem(Ed25519PrivateKey.generate()))
    signing = _load_key(signing_file)
    if not isinstance(signing, Ed25519PrivateKey):
        raise ExitError(ExitCode.CREDENTIALS, f"{signing_file} is not an Ed25519 key: restore it from a backup")
    return _bind_keys([_load_hpke_key(path) for path in _list_hpke_files(folder)], signing)


def rotate_hpke_key(folder: Path) -> HubKeys:
    """Add a new HPKE key; the older ones still open what was sealed to them."""
    _add_hpke_key(folder, newest_key_number(folder) + 1)
    return load_or_create_keys(folder)


RESTORE_JUMP = 100  # keys; one is added a week
_MAX_NUMBER = 9999


def add_key_after_restore(folder: Path) -> None:
    """Add an HPKE key under a number that the hub cannot have given since the backup: devices refuse a lower one."""
    load_or_create_keys(folder)
    number = newest_key_number(folder) + RESTORE_JUMP
    if number > _MAX_NUMBER:
        raise ExitError(ExitCode.CREDENTIALS, f"{folder}: it was restored too often, there are no numbers left")
    _add_hpke_key(folder, number)


def retire_hpke_key(folder: Path, old: bytes) -> HubKeys:
    """Destroy the HPKE key with id `old`: questions sealed to it are refused as KEY_EXPIRED.

    The newest is never destroyed.
    """
    for path in _list_hpke_files(folder)[:-1]:
        if compute_key_id(_load_hpke_key(path).public_key().public_bytes_raw()) == old:
            path.unlink()
    return load_or_create_keys(folder)


def newest_key_number(folder: Path) -> int:
    """Serial number of the newest HPKE key, counted from 1."""
    return int(_HPKE_FILE.fullmatch(_list_hpke_files(folder)[-1].name)[1])  # type: ignore[index]


def _make_key_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"cannot make {folder}: {error.strerror}; choose another state folder") from None


def _bind_keys(hpke: list[X25519PrivateKey], signing: Ed25519PrivateKey) -> HubKeys:
    by_id = {compute_key_id(key.public_key().public_bytes_raw()): key for key in hpke}
    return HubKeys(by_id, compute_key_id(hpke[-1].public_key().public_bytes_raw()), signing)


def _list_hpke_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _HPKE_FILE.fullmatch(path.name))


def _add_hpke_key(folder: Path, number: int) -> None:
    write_private_file(folder / f"hpke-{number:04d}.key", _encode_pem(X25519PrivateKey.generate()))


def _encode_pem(key: X25519PrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load_hpke_key(path: Path) -> X25519PrivateKey:
    key = _load_key(path)
    if not isinstance(key, X25519PrivateKey):
        raise ExitError(ExitCode.CREDENTIALS, f"{path} is not an X25519 key: restore it from a backup")
    return key


def _load_key(path: Path) -> object:
    parse: Callable[[bytes, None], object] = serialization.load_pem_private_key
    try:
        return parse(read_private_file(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ExitError(
            ExitCode.CREDENTIALS, f"{path} is not a private key in PEM form: restore it from a backup"
        ) from None
