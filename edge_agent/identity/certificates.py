"""Verifies the hub's signed enrolment and renewal replies, and makes certificate keys and requests.

A reply ("letter") holds the certificate, the CAs, and the addresses and keys of the hubs.
Rule: the signature of a CA that is pinned already is checked first; before it holds, nothing in a reply means anything.
The certificate must be for our key and our id, and a CA that the reply names must have issued it.
"""

import base64
import binascii
from collections.abc import Callable, Sequence

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edge_agent.identity.identity import HubKeys
from edge_agent.system.http import split_address
from wire.process.exit_codes import ExitCode, ExitError

_DAY_MS = 86_400_000


class BrokerAddress(msgspec.Struct, frozen=True):
    """Host and port of the MQTT broker."""

    host: str
    port: int


class CertificateReply(msgspec.Struct, frozen=True):
    """Contents of a reply, signed by the hub's CA.

    Certificates are PEM, keys raw base64, times milliseconds since 1970. `trusted`: every CA of the hub from now on
    (older hubs name only `ca`). `request`: SHA-256, hex, of the certificate request that is answered. `tuf_root`: the
    update repository's newest root, `tuf_url` where that repository is; only in the reply to an enrolment.
    """

    device: str
    certificate: str
    ca: str
    broker: BrokerAddress
    hubs: tuple[HubKeys, ...]
    hub_time_ms: int
    trusted: tuple[str, ...] = ()
    hub_url: str = ""
    request: str = ""
    tuf_root: bytes = b""
    tuf_url: str = ""

    @property
    def authorities(self) -> tuple[str, ...]:
        """All CAs to pin, as PEM; one for a hub of an older version."""
        return self.trusted or (self.ca,)


class _SignedReply(msgspec.Struct, frozen=True):
    """The reply as received: the contents as JSON text, and the CA's ECDSA signature over it in base64."""

    body: str
    signature: str


PinnedAuthorities = Callable[[CertificateReply], Sequence[x509.Certificate]]


class VerifiedReply(msgspec.Struct, frozen=True):
    """A verified reply. `certificate_ms`: begin and end of the certificate, in hub time."""

    body: CertificateReply
    certificate_ms: tuple[int, int]


def verify_reply(reply: bytes, device: str, key: ec.EllipticCurvePublicKey, pinned: PinnedAuthorities) -> VerifiedReply:
    """Verify a reply and return its contents.

    `key`: the public key that the certificate must be for. `pinned`: returns the CAs whose signature counts.
    ExitError(ENROLMENT) with the reason if anything does not fit.
    """
    try:
        signed = msgspec.json.decode(reply, type=_SignedReply)
        body = msgspec.json.decode(signed.body, type=CertificateReply)
        _check_signature(signed, pinned(body))
        certificate = x509.load_pem_x509_certificate(body.certificate.encode())
        _check_certificate(certificate, body, device, key)
        if body.hub_url:
            split_address(body.hub_url)
    except (msgspec.DecodeError, UnicodeError, RecursionError, binascii.Error):
        raise make_reply_error("it is not a reply of a hub") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise make_reply_error("a certificate or an address in it cannot be read") from None
    except InvalidSignature:
        raise make_reply_error("a signature in it is wrong") from None
    if not body.hubs or any(len(k) != 32 for hub in body.hubs for k in (hub.hpke_key, hub.signing_key)):
        raise make_reply_error("it names no usable hub keys")
    span = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    begins_ms, ends_ms = (int(each.timestamp() * 1000) for each in span)
    # the hub's machine may have a wrong clock: then hub time says when the certificate began
    astray_ms = body.hub_time_ms - begins_ms if abs(body.hub_time_ms - begins_ms) > _DAY_MS else 0
    return VerifiedReply(body, (begins_ms + astray_ms, ends_ms + astray_ms))


def make_reply_error(reason: str) -> ExitError:
    """The ExitError(ENROLMENT) for a reply that was not accepted."""
    return ExitError(ExitCode.ENROLMENT, f"the hub's reply was not accepted: {reason}; nothing was saved")


def make_request_pem(device: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate signing request (PEM) for our key; the hub takes nothing but the key from it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def generate_key() -> ec.EllipticCurvePrivateKey:
    """Generate a P-256 key for the TLS certificate."""
    return ec.generate_private_key(ec.SECP256R1())


def encode_key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private key as unencrypted PKCS #8 PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _check_signature(signed: _SignedReply, authorities: Sequence[x509.Certificate]) -> None:
    signature = base64.b64decode(signed.signature, validate=True)
    for authority in authorities:
        key = authority.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            continue
        try:
            key.verify(signature, signed.body.encode(), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        return
    raise InvalidSignature


def _check_certificate(
    certificate: x509.Certificate, body: CertificateReply, device: str, key: ec.EllipticCurvePublicKey
) -> None:
    if body.device != device:
        raise make_reply_error(f"it is for {body.device[:64]!r}, not for {device!r}")
    if not any(_is_issued_by(certificate, x509.load_pem_x509_certificate(each.encode())) for each in body.authorities):
        raise make_reply_error("its certificate was not issued by a CA that it names")
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if [name.value for name in names] != [device]:
        raise make_reply_error("its certificate is for another device")
    if certificate.public_key() != key:
        raise make_reply_error("its certificate is for another key")


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
