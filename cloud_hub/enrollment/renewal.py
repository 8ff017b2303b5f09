"""Certificate renewal and retirement of enrolled devices, both requested under the device's identity key.

Rule: no client certificate is needed here, an expired one least of all: the Ed25519 key of the enrolment proves who
asks. Only an active device is given anything; an unknown device and a wrong proof get the same answer.
"""

import base64
import binascii
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature

from cloud_hub.enrollment.enrollment import Rejection
from cloud_hub.enrollment.replies import (
    CertificateIssuer,
    EnrollmentReply,
    HubAddress,
    IssuedCertificate,
    read_validity,
    sign_reply,
)
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.registry.registry import DeviceKeys, EnrolledDevice, Registry, RegistryError
from cloud_hub.security.authority import CertificateRequestError, encode_certificate, utc_now
from cloud_hub.security.hub_keys import HubCard
from cloud_hub.security.signatures import SodiumVerifyingKey
from policies.serving.admission import TokenBucket, take_token
from wire.process.logging import JsonLog, safe_name

RENEW_TAG = b"skerry-renew/1\0"
RETIRE_TAG = b"skerry-retire/1\0"
RENEW_BURST = 10.0  # certificates that one device may get at once ...
RENEW_PER_S = 1 / 600  # ... and over time
UNKNOWN_DEVICE = "the device is not known here, or the proof does not fit it"
_HEX64 = r"^[0-9a-f]{64}$"


class RenewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a renewal request.

    `csr` is PEM, of a new key; `proof` base64 Ed25519 of the device's signing key over `build_renew_text`.
    """

    device: str
    csr: str
    proof: str


class DeviceRetireRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a retirement request.

    `ledger`: SHA-256 of the file that the device exported, hex. `proof` base64 Ed25519 over `build_retire_text`.
    """

    device: str
    ledger: Annotated[str, msgspec.Meta(pattern=_HEX64)]
    proof: str


class RetireReply(msgspec.Struct, frozen=True):
    """Answer to a retirement: the device may wipe its keys."""

    device: str
    state: str


class RenewalService:
    """Renewal service: certificates for devices that exist. `counts`: outcomes of requests by name."""

    def __init__(
        self, registry: Registry, authority: CertificateIssuer, place: HubAddress, log: JsonLog | None = None
    ) -> None:
        self._log = log or JsonLog(least="error")
        self._registry = registry
        self._authority = authority
        self._place = place
        self._buckets: dict[str, TokenBucket] = {}
        self.counts: Counter[str] = Counter()

    def set_card(self, card: HubCard) -> None:
        """Set the hub's card that devices are given."""
        self._place = replace(self._place, hubs=(card,))

    def set_url(self, url: str) -> None:
        """Set the web API's URL, which is known once it is open."""
        self._place = replace(self._place, url=url)

    def renew(self, request: RenewRequest, now_ms: int, now: float) -> EnrollmentReply | Rejection:
        """Issue the next certificate of a device, or say why not.

        `now_ms`: hub time; `now`: monotonic seconds, for the rate. A rejection with `invite` set is an attempt to
        count.
        """
        reply = self._renew_certificate(request, now_ms, now)
        self.counts["renewed" if not isinstance(reply, Rejection) else f"refused.{reply.kind}"] += 1
        return reply

    def _renew_certificate(self, request: RenewRequest, now_ms: int, now: float) -> EnrollmentReply | Rejection:
        device = authenticate_device(
            self._registry, request.device, request.proof, build_renew_text(request.device, request.csr)
        )
        if device is None:
            return Rejection(UNKNOWN_DEVICE, invite=True, kind="stranger")
        if not device.active:
            return Rejection(f"the device is {device.state}", invite=False, kind=device.state)
        if not self._within_rate(device.id, now):
            return Rejection("too many certificates for this device: try again later", invite=False, kind="rate")
        try:
            certificate = self._authority.issue_device(request.csr.encode(), device.id, utc_now())
        except CertificateRequestError as error:
            return Rejection(str(error), invite=False)
        facts = DeviceKeys(b"", b"", *read_validity(certificate), self._authority.issuer_sha256)
        try:
            self._registry.record_renewal(device.id, facts)
        except RegistryError as error:  # changed by another hub at this moment
            return Rejection(str(error), invite=False, kind="changed")
        self._log.info("certificate_issued", device=safe_name(device.id))
        asked = sha256(request.csr.encode()).hexdigest()
        return sign_reply(
            self._authority, self._place, IssuedCertificate(device.id, encode_certificate(certificate), now_ms, asked)
        )

    def retire(self, request: DeviceRetireRequest, now_ms: int) -> RetireReply | Rejection:
        """Retire a device whose ledger is exported: its keys no longer count. A repetition changes nothing."""
        device = authenticate_device(
            self._registry, request.device, request.proof, build_retire_text(request.device, request.ledger)
        )
        if device is None:
            return Rejection(UNKNOWN_DEVICE, invite=True, kind="stranger")
        if device.state is DeviceState.RETIRED:
            return RetireReply(device.id, device.state.value)
        if not device.heard:  # a suspended device may be stolen: a person decides
            return Rejection(f"the device is {device.state}", invite=False, kind=device.state)
        self.counts["retired"] += 1
        self._log.info("device_retired", device=safe_name(device.id))
        retired = self._registry.record_retirement(device.id, request.ledger, now_ms)
        return RetireReply(retired.id, retired.state.value)

    def _within_rate(self, device: str, now: float) -> bool:
        left = take_token(self._buckets.get(device, TokenBucket(RENEW_BURST, now)), RENEW_PER_S, RENEW_BURST, now)
        if left is not None:
            self._buckets[device] = left  # bounded: one for each device that exists
        return left is not None


def authenticate_device(registry: Registry, device_id: str, proof: str, text: bytes) -> EnrolledDevice | None:
    """Return the device whose identity key signed `text`, None if it is unknown or the base64 `proof` is wrong."""
    device = registry.device(device_id)
    if device is None:
        return None
    try:
        key = SodiumVerifyingKey(device.signing_key.public_bytes_raw())
        key.verify(base64.b64decode(proof, validate=True), text)
    except (InvalidSignature, binascii.Error, ValueError):
        return None
    return device


def build_renew_text(device: str, csr: str) -> bytes:
    """Return what the identity key signs to renew: a SHA-256 over the certificate request and whose it is."""
    return sha256(RENEW_TAG + device.encode() + b"\0" + csr.encode()).digest()


def build_retire_text(device: str, ledger_sha256: str) -> bytes:
    """Return what the identity key signs to retire: a SHA-256 over the device and its ledger's hash."""
    return sha256(RETIRE_TAG + device.encode() + b"\0" + ledger_sha256.encode()).digest()
