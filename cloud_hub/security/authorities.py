"""Rotation of the hub's CA: the current one and its successor, which of them signs what, and whom the broker trusts.

Rule: during a rotation both are trusted; the old one signs replies and the server certificate, since devices know only
it, and the new one issues device certificates. `finish_rotation` destroys the old key. A crash between two files is
repaired at the next start.
"""

from datetime import datetime, timedelta
from hashlib import sha1
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from cloud_hub.security.authority import EPOCH, Authority, CertificateFiles, is_matching_pair
from cloud_hub.system.state_folder import make_private_folder
from wire.process.files import sync_folder, write_private_file

TRUSTED_FILE = "trusted.pem"
TRUSTED_FOLDER = "trusted"
NEXT = "ca-next"


class RotationError(Exception):
    """A step of the rotation that is not possible now: one line that says why."""


class RotatingAuthority:
    """The CA and, during a rotation, its successor, in one private folder.

    Open it only while holding the hub's lock.
    """

    def __init__(self, folder: Path, current: Authority, coming: Authority | None) -> None:
        self._folder = folder
        self.current = current
        self.coming = coming
        self._write_trusted()

    @classmethod
    def open(cls, folder: Path, now: datetime) -> "RotatingAuthority":
        """Load or create the CA, and load its successor if a rotation is in progress.

        ExitError(CREDENTIALS) if files do not belong together.
        """
        _complete_rotation(folder)
        current = Authority.open(folder, now)
        under_way = (folder / f"{NEXT}.key").exists()
        return cls(folder, current, Authority.open(folder, now, NEXT) if under_way else None)

    def reload(self, now: datetime) -> None:
        """Read the CAs again: another hub of the region has changed them."""
        life = self.current.device_life
        fresh = RotatingAuthority.open(self._folder, now)
        self.current, self.coming = fresh.current, fresh.coming
        self.set_device_life(life)

    @property
    def trusted_file(self) -> Path:
        """PEM of every trusted CA, for the hub's own clients."""
        return self._folder / TRUSTED_FILE

    @property
    def trusted_folder(self) -> Path:
        """The trusted CAs in an OpenSSL hash directory, so that a running broker sees a new one without a restart."""
        return self._folder / TRUSTED_FOLDER

    # As one authority, for enrolment and renewal

    @property
    def certificate_pem(self) -> bytes:
        """PEM of the CA that signs replies, which invites name."""
        return self.current.certificate_pem

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the CA that signs replies."""
        return self.current.sha256

    @property
    def trusted(self) -> tuple[str, ...]:
        """PEM of every trusted CA."""
        return self.current.trusted + (self.coming.trusted if self.coming else ())

    @property
    def issuer_sha256(self) -> str:
        """SHA-256 (hex) of the CA that issues device certificates."""
        return self._issuer.sha256

    def sign(self, body: bytes) -> bytes:
        """Sign with the CA that every device knows already."""
        return self.current.sign(body)

    def issue_device(self, csr_pem: bytes, device: str, now: datetime) -> x509.Certificate:
        """Issue a device certificate with the newest CA. RequestError if the request is not a proper P-256 one."""
        return self._issuer.issue_device(csr_pem, device, now)

    def set_device_life(self, life: timedelta) -> None:
        """Set the lifetime of device certificates issued from now on."""
        for each in (self.current, self.coming):
            if each is not None:
                each.device_life = life

    # Certificates of the hub itself

    def ensure_server(self, names: tuple[str, ...], now: datetime, hub_time: datetime = EPOCH) -> CertificateFiles:
        """Server certificate of the hub; see `Authority.ensure_server`."""
        return self.current.ensure_server(self._folder, names, now, hub_time)

    def ensure_client(self, name: str, now: datetime, hub_time: datetime = EPOCH) -> CertificateFiles:
        """Client certificate of the hub at its broker; see `Authority.ensure_client`."""
        return self.current.ensure_client(self._folder, name, now, hub_time)

    # Rotation

    def begin_rotation(self, now: datetime) -> str:
        """Create a successor that is trusted beside the CA; returns its SHA-256.

        RotationError if there is one already.
        """
        if self.coming is not None:
            raise RotationError("a rotation is under way: `skerry hub ca finish` ends it")
        self.coming = Authority.open(self._folder, now, NEXT)
        self.coming.device_life = self.current.device_life
        self._write_trusted()
        return self.coming.sha256

    def finish_rotation(self) -> str:
        """Make the successor the CA and destroy the old key; returns its SHA-256. RotationError if there is none."""
        if self.coming is None:
            raise RotationError("no rotation is under way: `skerry hub ca rotate` begins one")
        (self._folder / f"{NEXT}.key").replace(self._folder / "ca.key")
        sync_folder(self._folder)
        _complete_rotation(self._folder)
        self.current, self.coming = self.coming, None
        self._write_trusted()
        return self.current.sha256

    @property
    def _issuer(self) -> Authority:
        return self.coming or self.current

    def _write_trusted(self) -> None:
        make_private_folder(self.trusted_folder)
        wanted = {f"{hash_subject_name(pem)}.0": pem.encode() for pem in self.trusted}
        for name, pem in wanted.items():
            _write_if_changed(self.trusted_folder / name, pem)
        for path in self.trusted_folder.iterdir():
            if path.name not in wanted:
                path.unlink()
        _write_if_changed(self.trusted_file, b"".join(wanted.values()))


def hash_subject_name(certificate_pem: str) -> str:
    """File name under which OpenSSL looks a CA up: SHA-1 of its canonical subject, 32 bits, little-endian, as hex.

    See X509_NAME_hash(3): each attribute as UTF8String in lower case, without the outer SEQUENCE. Subjects here have
    one attribute, the CN.
    """
    subject = x509.load_pem_x509_certificate(certificate_pem.encode()).subject
    (attribute,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    value = str(attribute.value).lower().encode()
    pair = b"\x06\x03\x55\x04\x03" + b"\x0c" + bytes([len(value)]) + value
    canonical = b"\x31" + bytes([len(pair) + 2]) + b"\x30" + bytes([len(pair)]) + pair
    return sha1(canonical, usedforsecurity=False).digest()[:4][::-1].hex()


def _write_if_changed(path: Path, data: bytes) -> None:
    if not path.exists() or path.read_bytes() != data:
        write_private_file(path, data)


def _complete_rotation(folder: Path) -> None:
    """Complete a `finish_rotation` that crashed: the key has been moved already, its certificate follows."""
    following = folder / f"{NEXT}.pem"
    moved = following.exists() and not (folder / f"{NEXT}.key").exists()
    if moved and (folder / "ca.key").exists() and is_matching_pair(following, folder / "ca.key"):
        following.replace(folder / "ca.pem")
        sync_folder(folder)
