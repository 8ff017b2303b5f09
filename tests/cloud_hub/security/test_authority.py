"""Certificate authority of the hub: certificate profiles, refused requests, renewal of the hub's own certificates."""

import ssl
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cloud_hub.security.authority import DEVICE_LIFE, OWN_LIFE, Authority, CertificateFiles, CertificateRequestError
from wire.process.exit_codes import ExitCode, ExitError

NOW = datetime.now(UTC).replace(microsecond=0)
DEVICE = "demo--cam-1"


def request(key: Any, name: str = "whatever", extensions: Sequence[x509.ExtensionType] = ()) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)


def usages(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


@pytest.fixture
def authority(tmp_path):
    return Authority.open(tmp_path, NOW)


@pytest.fixture
def key():
    return ec.generate_private_key(ec.SECP256R1())


def test_second_start_finds_the_same_authority(tmp_path):
    first, second = Authority.open(tmp_path, NOW), Authority.open(tmp_path, NOW + timedelta(days=400))
    assert first.sha256 == second.sha256
    assert (tmp_path / "ca.key").stat().st_mode & 0o777 == 0o600


def test_authority_lives_ten_years_and_may_sign_no_other_authority(authority):
    ca = x509.load_pem_x509_certificate(authority.certificate_pem)
    assert ca.not_valid_after_utc - NOW == timedelta(days=3650)
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical
    assert (basic.value.ca, basic.value.path_length) == (True, 0)


def test_key_of_another_authority_is_not_used(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Authority.open(tmp_path / folder, NOW)
    (tmp_path / "a" / "ca.pem").write_bytes((tmp_path / "b" / "ca.pem").read_bytes())
    with pytest.raises(ExitError) as stop:
        Authority.open(tmp_path / "a", NOW)
    assert stop.value.code == ExitCode.CREDENTIALS


def test_a_key_that_others_may_read_stops_the_hub(tmp_path):
    Authority.open(tmp_path, NOW)
    (tmp_path / "ca.key").chmod(0o644)
    with pytest.raises(ExitError) as stop:
        Authority.open(tmp_path, NOW)
    assert stop.value.code == ExitCode.CREDENTIALS


def test_a_damaged_key_stops_the_hub(tmp_path):
    Authority.open(tmp_path, NOW)
    (tmp_path / "ca.key").write_bytes(b"not a key")
    with pytest.raises(ExitError) as stop:
        Authority.open(tmp_path, NOW)
    assert stop.value.code == ExitCode.CREDENTIALS


def test_device_certificate_is_for_seven_days_and_clients_only(authority, key):
    certificate = authority.issue_device(request(key), DEVICE, NOW)
    assert certificate.not_valid_after_utc == NOW + DEVICE_LIFE
    assert timedelta(days=7) == DEVICE_LIFE
    assert certificate.not_valid_before_utc < NOW
    assert usages(certificate) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate_pem))


def test_a_request_cannot_choose_its_name_or_extensions(authority, key):
    asked = request(key, name="hub", extensions=[x509.BasicConstraints(ca=True, path_length=None)])
    certificate = authority.issue_device(asked, DEVICE, NOW)
    assert [part.value for part in certificate.subject] == [DEVICE]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    with pytest.raises(x509.ExtensionNotFound):
        certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def flipped(pem: bytes) -> bytes:
    """The same request with its signature damaged."""
    der = bytearray(x509.load_pem_x509_csr(pem).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    "attack",
    [
        b"",
        b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        b"x" * 5000,
        request(ed25519.Ed25519PrivateKey.generate()),
        request(ec.generate_private_key(ec.SECP384R1())),
        request(rsa.generate_private_key(65537, 2048)),
        flipped(request(ec.generate_private_key(ec.SECP256R1()))),
    ],
    ids=["empty", "not-a-request", "too-long", "ed25519", "other-curve", "rsa", "signature-of-another"],
)
def test_a_request_that_is_not_a_proper_p256_one_is_refused(authority, attack):
    with pytest.raises(CertificateRequestError):
        authority.issue_device(attack, DEVICE, NOW)


def test_server_certificate_names_localhost_and_what_was_configured(authority, tmp_path):
    pair = authority.ensure_server(tmp_path, ("hub.example", "10.0.0.7"), NOW)
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "hub.example"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "10.0.0.7"]
    assert usages(certificate) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert pair.key.stat().st_mode & 0o777 == 0o600


def test_own_certificates_are_kept_until_two_thirds_of_their_life(authority, tmp_path):
    def bytes_at(days: float) -> bytes:
        pair: CertificateFiles = authority.ensure_client(tmp_path, "hub", NOW + timedelta(days=days))
        return pair.certificate.read_bytes()

    first = bytes_at(0)
    assert bytes_at(OWN_LIFE.days * 0.6) == first
    assert bytes_at(OWN_LIFE.days * 0.7) != first


def test_a_new_name_gets_a_new_server_certificate(authority, tmp_path):
    first = authority.ensure_server(tmp_path, (), NOW).certificate.read_bytes()
    assert authority.ensure_server(tmp_path, ("127.0.0.1",), NOW).certificate.read_bytes() == first
    assert authority.ensure_server(tmp_path, ("hub.example",), NOW).certificate.read_bytes() != first


def test_a_crash_between_certificate_and_key_is_healed_at_the_next_start(authority, tmp_path):
    pair = authority.ensure_client(tmp_path, "hub", NOW)
    (tmp_path / "other").mkdir()
    other = authority.ensure_client(tmp_path / "other", "hub", NOW)
    pair.certificate.write_bytes(other.certificate.read_bytes())
    healed = authority.ensure_client(tmp_path, "hub", NOW)
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(healed.certificate, healed.key)


def test_reply_signature_holds_for_its_body_alone(authority):
    public = x509.load_pem_x509_certificate(authority.certificate_pem).public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    signature = authority.sign(b"body")
    public.verify(signature, b"body", ec.ECDSA(hashes.SHA256()))
    with pytest.raises(InvalidSignature):
        public.verify(signature, b"Body", ec.ECDSA(hashes.SHA256()))


def test_openssl_accepts_the_chain_under_its_strict_rules(authority, tmp_path, key):
    (tmp_path / "device.pem").write_text(
        authority.issue_device(request(key), DEVICE, NOW).public_bytes(serialization.Encoding.PEM).decode()
    )
    server = authority.ensure_server(tmp_path, (), NOW)
    assert _verified(tmp_path, tmp_path / "device.pem", "sslclient")
    assert _verified(tmp_path, server.certificate, "sslserver")
    assert not _verified(tmp_path, tmp_path / "device.pem", "sslserver")


def _verified(folder: Path, certificate: Path, purpose: str) -> bool:
    command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(folder / "ca.pem")]
    return subprocess.run([*command, str(certificate)], check=False, capture_output=True, timeout=60).returncode == 0


def test_a_pair_names_its_two_files(authority, tmp_path):
    assert authority.ensure_client(tmp_path, "hub", NOW) == CertificateFiles(tmp_path / "hub.pem", tmp_path / "hub.key")
