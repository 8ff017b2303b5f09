"""The hub's certificate authority (X.509, P-256): issues server, client and device certificates, signs replies.

Rule: every name in a certificate is chosen here; of a request only the public key is used. Profiles follow RFC 5280
(they pass `openssl verify -x509_strict`): path length 0, critical key usages, one extended key usage per leaf.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file, write_private_file

CA_LIFE = timedelta(days=3650)
DEVICE_LIFE = timedelta(days=7)
OWN_LIFE = timedelta(days=397)  # the hub's own certificates; reissued at a start after two thirds of it
SKEW = timedelta(minutes=5)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_CSR_BYTES = 4096
_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class CertificateRequestError(Exception):
    """A certificate request that is refused: one line that says why."""


@dataclass(frozen=True)
class CertificateFiles:
    """Paths of a certificate chain and its key (0600)."""

    certificate: Path
    key: Path


class Authority:
    """The CA with its key. Devices pin `sha256`, the hex fingerprint of its DER certificate."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self.device_life = DEVICE_LIFE
        self.certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.sha256 = certificate.fingerprint(hashes.SHA256()).hex()

    @property
    def ends(self) -> datetime:
        """When the CA's own certificate ends."""
        return self._certificate.not_valid_after_utc

    @classmethod
    def open(cls, folder: Path, now: datetime, stem: str = "ca") -> "Authority":
        """Load `ca.key` and `ca.pem`, creating both at first start.

        ExitError(CREDENTIALS) if they do not belong together.
        """
        key_file, file = folder / f"{stem}.key", folder / f"{stem}.pem"
        if not key_file.exists():
            write_private_file(key_file, _encode_key_pem(ec.generate_private_key(ec.SECP256R1())))
        key = _load_key(key_file)
        if not file.exists():
            write_private_file(file, _encode_pem(_make_root(key, now)))
        if not is_matching_pair(file, key_file):
            raise ExitError(ExitCode.CREDENTIALS, f"{file} does not belong to {key_file}: restore both")
        return cls(key, _load_certificate(file))

    @property
    def trusted(self) -> tuple[str, ...]:
        """PEM of every trusted CA; see `cloud_hub.security.authorities` for two at once."""
        return (self.certificate_pem.decode(),)

    @property
    def issuer_sha256(self) -> str:
        """SHA-256 (hex) of the CA that issues device certificates."""
        return self.sha256

    def sign(self, body: bytes) -> bytes:
        """Sign `body` by ECDSA P-256 with SHA-256 (DER): proves an enrolment reply to a holder of `sha256`."""
        return self._key.sign(body, ec.ECDSA(hashes.SHA256()))

    def issue_device(self, csr_pem: bytes, device: str, now: datetime) -> x509.Certificate:
        """Issue a client certificate for `device_life`, CN = `device`.

        RequestError if the request is not a proper P-256 one.
        """
        return self._issue_leaf(read_csr_key(csr_pem), device, self.device_life, now)

    def issue_stand_in(self, folder: Path, device: str, now: datetime) -> CertificateFiles:
        """Issue a five-minute certificate in a device's name to the hub itself: see `cloud_hub.enrollment.eviction`."""
        key = ec.generate_private_key(ec.SECP256R1())
        pair = CertificateFiles(folder / "stand-in.pem", folder / "stand-in.key")
        self._write_files(pair, key, self._issue_leaf(key.public_key(), device, SKEW, now))
        return pair

    def ensure_client(self, folder: Path, name: str, now: datetime, hub_time: datetime = EPOCH) -> CertificateFiles:
        """Client certificate `name.pem` and `name.key` for the broker.

        Reissued when less than a third of its life is left.
        """
        pair = CertificateFiles(folder / f"{name}.pem", folder / f"{name}.key")
        if not self._is_usable(pair, (), now, hub_time):
            key = ec.generate_private_key(ec.SECP256R1())
            self._write_files(
                pair, key, self._issue_leaf(key.public_key(), name, _hub_certificate_life(now, hub_time), now)
            )
        return pair

    def ensure_server(
        self, folder: Path, names: tuple[str, ...], now: datetime, hub_time: datetime = EPOCH
    ) -> CertificateFiles:
        """Server certificate `server.pem` and `server.key` for localhost, 127.0.0.1 and `names`.

        The CA is appended to the certificate. It is valid by this machine's clock (`now`) and also by `hub_time`, with
        which devices check its end.
        """
        pair = CertificateFiles(folder / "server.pem", folder / "server.key")
        wanted = tuple(dict.fromkeys(("localhost", "127.0.0.1", *names)))
        if not self._is_usable(pair, wanted, now, hub_time):
            key = ec.generate_private_key(ec.SECP256R1())
            self._write_files(
                pair,
                key,
                self._issue_leaf(key.public_key(), wanted[0], _hub_certificate_life(now, hub_time), now, wanted),
            )
        return pair

    def _write_files(
        self, pair: CertificateFiles, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> None:
        # The certificate is written first: after a crash in between, `_is_usable` finds a mismatch and replaces both.
        write_private_file(pair.certificate, _encode_pem(certificate) + self.certificate_pem)
        write_private_file(pair.key, _encode_key_pem(key))

    def _is_usable(self, pair: CertificateFiles, names: tuple[str, ...], now: datetime, hub_time: datetime) -> bool:
        if not (pair.certificate.exists() and pair.key.exists()):
            return False
        certificate = _load_certificate(pair.certificate)
        return (
            is_matching_pair(pair.certificate, pair.key)
            and is_issued_by(certificate, self._certificate)
            and certificate.not_valid_before_utc <= now
            and max(now, hub_time) < certificate.not_valid_after_utc - OWN_LIFE / 3
            and set(names) <= set(_alternative_names(certificate))
        )

    def _issue_leaf(
        self,
        public_key: ec.EllipticCurvePublicKey,
        name: str,
        life: timedelta,
        now: datetime,
        servers: tuple[str, ...] = (),
    ) -> x509.Certificate:
        usage = ExtendedKeyUsageOID.SERVER_AUTH if servers else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _start_certificate(name, self._certificate.subject, public_key, (now - min(SKEW, life / 10), now + life))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(_authority_id(self._key), critical=False)
        )
        if servers:
            builder = builder.add_extension(x509.SubjectAlternativeName([*map(_general_name, servers)]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def utc_now() -> datetime:
    """Current time of this machine, in UTC."""
    return datetime.now(UTC)


def encode_certificate(certificate: x509.Certificate) -> str:
    """PEM text of a certificate."""
    return _encode_pem(certificate).decode()


def read_csr_key(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    """The P-256 key of a certificate request; its subject and extensions are ignored.

    RequestError if it is unusable.
    """
    if len(csr_pem) > MAX_CSR_BYTES:
        raise CertificateRequestError(f"the certificate request has {len(csr_pem)} bytes, at most {MAX_CSR_BYTES}")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        key = request.public_key()
        valid = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CertificateRequestError("the certificate request cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateRequestError("the certificate request must carry a P-256 key")
    if not valid:
        raise CertificateRequestError("the certificate request is not signed by its own key")
    return key


def is_matching_pair(certificate: Path, key: Path) -> bool:
    """Whether a certificate file and a key file are a pair."""
    return _load_certificate(certificate).public_key() == _load_key(key).public_key()


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether `authority` is named as issuer and signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def chain_contains(chain: Path, sha256: str) -> bool:
    """Whether a server's chain file contains the CA with this fingerprint (hex), as devices check."""
    try:
        found = x509.load_pem_x509_certificates(chain.read_bytes())
    except (OSError, ValueError):
        return False
    return any(each.fingerprint(hashes.SHA256()).hex() == sha256 for each in found)


def _hub_certificate_life(now: datetime, hub_time: datetime) -> timedelta:
    return max(now, hub_time) - now + OWN_LIFE


def _make_root(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    # Each CA has its own name, so that the issuer of a certificate is clear while two are trusted.
    common = f"Skerry hub CA {x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest.hex()[:8]}"
    return (
        _start_certificate(common, _common_name(common), key.public_key(), (now - SKEW, now + CA_LIFE))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA256())
    )


def _start_certificate(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid[0])
        .not_valid_after(valid[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _common_name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _key_usage(*on: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in on for usage in _USAGES})


def _authority_id(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found]


def _encode_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _encode_key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_private_file(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ExitError(ExitCode.CREDENTIALS, f"{path} is not a private key in PEM form: restore it") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ExitError(ExitCode.CREDENTIALS, f"{path} is not an elliptic-curve key: restore it")
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_private_file(path))
    except ValueError:
        raise ExitError(ExitCode.CREDENTIALS, f"{path} is not a certificate in PEM form: restore it") from None
