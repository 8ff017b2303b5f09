"""CA-signed replies to devices: the certificate, the trusted CAs, and the addresses of broker, hubs and repository.

Rule: the CA that signs is one the device knows already; `request` names the very request that is answered, so that an
old reply cannot be replayed.
"""

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec
from cryptography import x509

from cloud_hub.repository.files import NO_ANCHOR, TrustAnchor
from cloud_hub.security.hub_keys import HubCard


class CertificateIssuer(Protocol):
    """The CA as replies need it: one `Authority`, or `RotatingAuthority`, of which one signs and one issues."""

    @property
    def certificate_pem(self) -> bytes: ...
    @property
    def trusted(self) -> tuple[str, ...]: ...
    @property
    def issuer_sha256(self) -> str: ...

    def sign(self, body: bytes) -> bytes: ...

    def issue_device(self, csr_pem: bytes, device: str, now: datetime) -> x509.Certificate: ...


class EnrollmentReply(msgspec.Struct, frozen=True):
    """`body` is JSON text, `signature` base64 ECDSA P-256 SHA-256 (DER) of the CA key over its UTF-8 bytes."""

    body: str
    signature: str


class BrokerAddress(msgspec.Struct, frozen=True):
    """Host and port of the MQTT broker."""

    host: str
    port: int


@dataclass(frozen=True)
class HubAddress:
    """Addresses that a device needs: broker, hubs and update repository.

    `url`: of the hub's web API, where certificates are renewed.
    """

    broker: BrokerAddress
    hubs: tuple[HubCard, ...]
    url: str = ""
    anchor: TrustAnchor = NO_ANCHOR


@dataclass(frozen=True)
class IssuedCertificate:
    """A certificate (PEM) just made. `request`: SHA-256 of the certificate request it answers, hex.

    `first`: the device has no root of trust for updates yet and is given one.
    """

    device: str
    certificate: str
    now_ms: int
    request: str = ""
    first: bool = False


def sign_reply(authority: CertificateIssuer, place: HubAddress, issued: IssuedCertificate) -> EnrollmentReply:
    """Build the reply to an enrolment or a renewal as JSON and sign it with the CA key."""
    body: dict[str, Any] = {
        "device": issued.device,
        "certificate": issued.certificate,
        "ca": authority.certificate_pem.decode(),
        "trusted": authority.trusted,
        "broker": place.broker,
        "hubs": place.hubs,
        "hub_url": place.url,
        "hub_time_ms": issued.now_ms,
        "request": issued.request,
        **(place.anchor.reply_fields(place.url) if issued.first else {}),
    }
    text = msgspec.json.encode(body)
    return EnrollmentReply(text.decode(), base64.b64encode(authority.sign(text)).decode())


def read_validity(certificate: x509.Certificate) -> tuple[str, int]:
    """Return a certificate's serial number (hex) and end (ms since 1970)."""
    return f"{certificate.serial_number:x}", int(certificate.not_valid_after_utc.timestamp() * 1000)
