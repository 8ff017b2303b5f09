"""The hub's CA and, while it is being replaced, its successor: who signs what, and whom the broker trusts.

Rule: during a rotation both are trusted; the old one speaks (replies, server certificate), since devices know only it,
and the new one issues. `finish` destroys the old key. A crash between two files is healed at the next start.
"""

from datetime import datetime, timedelta
from hashlib import sha1
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from cloud_hub.security.authority import EPOCH, Authority, Pair, belongs
from cloud_hub.system.state_folder import private_folder
from wire.process.files import sync_folder, write_private

TRUSTED_FILE = "trusted.pem"
TRUSTED_FOLDER = "trusted"
NEXT = "ca-next"


class RotationError(Exception):
    """A step of the rotation that cannot be taken now: one line that says why."""


class Authorities:
    """Opened once by whoever holds the hub's lock. The files lie in one private folder."""

    def __init__(self, folder: Path, current: Authority, coming: Authority | None) -> None:
        self._folder = folder
        self.current = current
        self.coming = coming
        self._write_trusted()

    @classmethod
    def open(cls, folder: Path, now: datetime) -> "Authorities":
        """Load or make the CA, and its successor if a rotation is under way.

        ExitError(CREDENTIALS) if files do not fit.
        """
        _heal(folder)
        current = Authority.open(folder, now)
        under_way = (folder / f"{NEXT}.key").exists()
        return cls(folder, current, Authority.open(folder, now, NEXT) if under_way else None)

    @property
    def trusted_file(self) -> Path:
        """PEM of every CA whose certificates count now: what the hub's own clients are given."""
        return self._folder / TRUSTED_FILE

    @property
    def trusted_folder(self) -> Path:
        """The same as OpenSSL looks them up by name, so that a running broker meets a new one without a restart."""
        return self._folder / TRUSTED_FOLDER

    # As one authority: what enrolment and renewal need

    @property
    def certificate_pem(self) -> bytes:
        """Of the CA that speaks: what invites name."""
        return self.current.certificate_pem

    @property
    def sha256(self) -> str:
        return self.current.sha256

    @property
    def trusted(self) -> tuple[str, ...]:
        return self.current.trusted + (self.coming.trusted if self.coming else ())

    @property
    def issuer_sha256(self) -> str:
        return self._issuer.sha256

    def sign(self, body: bytes) -> bytes:
        """By the CA that every device knows already."""
        return self.current.sign(body)

    def device(self, csr_pem: bytes, device: str, now: datetime) -> x509.Certificate:
        """By the newest CA. RequestError if the request is not a proper P-256 one."""
        return self._issuer.device(csr_pem, device, now)

    def live(self, life: timedelta) -> None:
        """How long certificates of devices last from now on."""
        for each in (self.current, self.coming):
            if each is not None:
                each.device_life = life

    # The hub's own

    def ensure_server(self, names: tuple[str, ...], now: datetime, hub_time: datetime = EPOCH) -> Pair:
        return self.current.ensure_server(self._folder, names, now, hub_time)

    def ensure_client(self, name: str, now: datetime, hub_time: datetime = EPOCH) -> Pair:
        return self.current.ensure_client(self._folder, name, now, hub_time)

    # Rotation

    def rotate(self, now: datetime) -> str:
        """Make a successor that is trusted beside the CA; its SHA-256. RotationError if there is one already."""
        if self.coming is not None:
            raise RotationError("a rotation is under way: `skerry hub ca finish` ends it")
        self.coming = Authority.open(self._folder, now, NEXT)
        self.coming.device_life = self.current.device_life
        self._write_trusted()
        return self.coming.sha256

    def finish(self) -> str:
        """The successor becomes the CA and the old key is destroyed; its SHA-256. RotationError if there is none."""
        if self.coming is None:
            raise RotationError("no rotation is under way: `skerry hub ca rotate` begins one")
        (self._folder / f"{NEXT}.key").replace(self._folder / "ca.key")
        sync_folder(self._folder)
        _heal(self._folder)
        self.current, self.coming = self.coming, None
        self._write_trusted()
        return self.current.sha256

    @property
    def _issuer(self) -> Authority:
        return self.coming or self.current

    def _write_trusted(self) -> None:
        private_folder(self.trusted_folder)
        wanted = {f"{name_hash(pem)}.0": pem.encode() for pem in self.trusted}
        for name, pem in wanted.items():
            _write(self.trusted_folder / name, pem)
        for path in self.trusted_folder.iterdir():
            if path.name not in wanted:
                path.unlink()
        _write(self.trusted_file, b"".join(wanted.values()))


def name_hash(certificate_pem: str) -> str:
    """The file name under which OpenSSL looks a CA up: SHA-1 of its subject in canonical form, 32 bits, little-endian.

    X509_NAME_hash(3): each attribute as UTF8String in lower case, without the outer SEQUENCE. Ours have one, the CN.
    """
    subject = x509.load_pem_x509_certificate(certificate_pem.encode()).subject
    (attribute,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    value = str(attribute.value).lower().encode()
    pair = b"\x06\x03\x55\x04\x03" + b"\x0c" + bytes([len(value)]) + value
    canonical = b"\x31" + bytes([len(pair) + 2]) + b"\x30" + bytes([len(pair)]) + pair
    return sha1(canonical, usedforsecurity=False).digest()[:4][::-1].hex()


def _write(path: Path, data: bytes) -> None:
    if not path.exists() or path.read_bytes() != data:
        write_private(path, data)


def _heal(folder: Path) -> None:
    """The second half of `finish`: the key has moved already, its certificate follows."""
    following = folder / f"{NEXT}.pem"
    moved = following.exists() and not (folder / f"{NEXT}.key").exists()
    if moved and (folder / "ca.key").exists() and belongs(following, folder / "ca.key"):
        following.replace(folder / "ca.pem")
        sync_folder(folder)
