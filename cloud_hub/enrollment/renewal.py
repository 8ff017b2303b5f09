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
from cloud_hub.enrollment.replies import Ca, Issued, Place, SignedReply, facts_of, signed_reply
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.registry.registry import Device, Keys, Registry
from cloud_hub.security.authority import RequestError, pem, utc_now
from cloud_hub.security.hub_keys import HubCard
from policies.serving.admission import Bucket, take

RENEW_TAG = b"skerry-renew/1\0"
RETIRE_TAG = b"skerry-retire/1\0"
BURST = 10.0  # certificates that one device may get at once ...
PER_S = 1 / 600  # ... and over time
STRANGER = "the device is not known here, or the proof does not fit it"
_HEX64 = r"^[0-9a-f]{64}$"


class RenewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a renewal request.

    `csr` is PEM, of a new key; `proof` base64 Ed25519 of the device's signing key over `renew_text`.
    """

    device: str
    csr: str
    proof: str


class RetireRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a retirement request.

    `ledger`: SHA-256 of the file that the device exported, hex. `proof` base64 Ed25519 over `retire_text`.
    """

    device: str
    ledger: Annotated[str, msgspec.Meta(pattern=_HEX64)]
    proof: str


class Retired(msgspec.Struct, frozen=True):
    """Answer to a retirement: the device may wipe its keys."""

    device: str
    state: str


class Renewals:
    """Renewal service: certificates for devices that exist. `counts`: outcomes of requests by name."""

    def __init__(self, registry: Registry, authority: Ca, place: Place) -> None:
        self._registry = registry
        self._authority = authority
        self._place = place
        self._buckets: dict[str, Bucket] = {}
        self.counts: Counter[str] = Counter()

    def offer(self, card: HubCard) -> None:
        """Set the hub's card that devices are given."""
        self._place = replace(self._place, hubs=(card,))

    def at(self, url: str) -> None:
        """Set the web API's URL, which is known once it is open."""
        self._place = replace(self._place, url=url)

    def renew(self, request: RenewRequest, now_ms: int, now: float) -> SignedReply | Rejection:
        """Issue the next certificate of a device, or say why not.

        `now_ms`: hub time; `now`: monotonic seconds, for the rate. A rejection with `invite` set is an attempt to
        count.
        """
        reply = self._renew(request, now_ms, now)
        self.counts["renewed" if not isinstance(reply, Rejection) else f"refused.{reply.kind}"] += 1
        return reply

    def _renew(self, request: RenewRequest, now_ms: int, now: float) -> SignedReply | Rejection:
        device = proven(self._registry, request.device, request.proof, renew_text(request.device, request.csr))
        if device is None:
            return Rejection(STRANGER, invite=True, kind="stranger")
        if not device.active:
            return Rejection(f"the device is {device.state}", invite=False, kind=device.state)
        if not self._within_rate(device.id, now):
            return Rejection("too many certificates for this device: try again later", invite=False, kind="rate")
        try:
            certificate = self._authority.device(request.csr.encode(), device.id, utc_now())
        except RequestError as error:
            return Rejection(str(error), invite=False)
        self._registry.renewed(device.id, Keys(b"", b"", *facts_of(certificate), self._authority.issuer_sha256))
        asked = sha256(request.csr.encode()).hexdigest()
        return signed_reply(self._authority, self._place, Issued(device.id, pem(certificate), now_ms, asked))

    def retire(self, request: RetireRequest, now_ms: int) -> Retired | Rejection:
        """Retire a device whose ledger is exported: its keys no longer count. A repetition changes nothing."""
        device = proven(self._registry, request.device, request.proof, retire_text(request.device, request.ledger))
        if device is None:
            return Rejection(STRANGER, invite=True, kind="stranger")
        if device.state is DeviceState.RETIRED:
            return Retired(device.id, device.state.value)
        if not device.heard:  # a suspended device may be stolen: a person decides
            return Rejection(f"the device is {device.state}", invite=False, kind=device.state)
        self.counts["retired"] += 1
        retired = self._registry.retired(device.id, request.ledger, now_ms)
        return Retired(retired.id, retired.state.value)

    def _within_rate(self, device: str, now: float) -> bool:
        left = take(self._buckets.get(device, Bucket(BURST, now)), PER_S, BURST, now)
        if left is not None:
            self._buckets[device] = left  # bounded: one for each device that exists
        return left is not None


def proven(registry: Registry, device_id: str, proof: str, text: bytes) -> Device | None:
    """Return the device whose identity key signed `text`, None if it is unknown or the base64 `proof` is wrong."""
    device = registry.device(device_id)
    if device is None:
        return None
    try:
        device.signing_key.verify(base64.b64decode(proof, validate=True), text)
    except (InvalidSignature, binascii.Error, ValueError):
        return None
    return device


def renew_text(device: str, csr: str) -> bytes:
    """Return what the identity key signs to renew: a SHA-256 over the certificate request and whose it is."""
    return sha256(RENEW_TAG + device.encode() + b"\0" + csr.encode()).digest()


def retire_text(device: str, ledger_sha256: str) -> bytes:
    """Return what the identity key signs to retire: a SHA-256 over the device and its ledger's hash."""
    return sha256(RETIRE_TAG + device.encode() + b"\0" + ledger_sha256.encode()).digest()
