"""Online signing keys of the update repository: Ed25519 files of mode 0600, several of a role during a rotation.

Rule: a private key is made here and never leaves. The newest of a role is offered to the holders of the offline keys;
which of them count is for root and targets to say, so an older one goes only once nothing names it any more.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner, SSlibKey

from cloud_hub.system.state_folder import make_private_folder
from models.signing.keyring import build_signer
from models.signing.roles import KEYS, ONLINE
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file, write_private_file

DEFAULT_ROLES = (*ONLINE, KEYS)  # hub keys change weekly, so their role is the hub's
_FILE = re.compile(r"([a-z0-9._-]+)-(\d{4})\.key")


class OnlineKeys:
    """One folder of signing keys, read anew at every call: a command beside the running hub may have changed it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ensure_keys(self, roles: Iterable[str] = DEFAULT_ROLES) -> None:
        """Create the folder, and the first key of each role that has none."""
        make_private_folder(self._folder)
        there = self._files_by_role()
        for role in roles:
            if role not in there:
                self._write_key(role, 1)

    def add_key(self, role: str) -> None:
        """Create one more key for a role, the one that is offered from now on."""
        self.ensure_keys((role,))
        self._write_key(role, self._files_by_role()[role][-1][0] + 1)

    def offered_keys(self) -> dict[str, SSlibKey]:
        """Return the newest public key of each role."""
        return {
            role: self._load_signer(path).public_key
            for role, files in self._files_by_role().items()
            for _, path in files[-1:]
        }

    def load_signers(self, keyids: Iterable[str]) -> list[CryptoSigner]:
        """Return signers for those of the named keys that are here."""
        wanted = set(keyids)
        held = (self._load_signer(path) for files in self._files_by_role().values() for _, path in files)
        return [signer for signer in held if signer.public_key.keyid in wanted]

    def delete_unused(self, named: Iterable[str]) -> None:
        """Delete every key that is neither named nor its role's newest."""
        keep = set(named)
        for files in self._files_by_role().values():
            for _, path in files[:-1]:
                if self._load_signer(path).public_key.keyid not in keep:
                    path.unlink()

    def _files_by_role(self) -> dict[str, list[tuple[int, Path]]]:
        """Return for each role its (number, file) pairs, oldest first."""
        found: dict[str, list[tuple[int, Path]]] = {}
        names = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        for path in names:
            if match := _FILE.fullmatch(path.name):
                found.setdefault(match[1], []).append((int(match[2]), path))
        return found

    def _write_key(self, role: str, number: int) -> None:
        pem = Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private_file(self._folder / f"{role}-{number:04d}.key", pem)

    def _load_signer(self, path: Path) -> CryptoSigner:
        try:
            key = serialization.load_pem_private_key(read_private_file(path), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ExitError(ExitCode.CREDENTIALS, f"{path} is not a private key in PEM form: restore it") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ExitError(ExitCode.CREDENTIALS, f"{path} is not an Ed25519 key: restore it from a backup")
        return build_signer(key, f"hub-{path.stem}")
