"""Device enrolment: checks an invite, a proof of possession and the machine's serial number, then issues a certificate.

Rule: the token is used up and the device is written in one transaction.
Rule: the reply proves itself to whoever holds the invite: the CA, whose hash the invite carries, signs it. One request
binds the certificate key, the signing key and the HPKE key under one proof of possession.
Rule: the list of machines that may enrol (`HardwareList`) is closed: a file that cannot be read allows nobody.
"""

import base64
import binascii
from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cloud_hub.enrollment.replies import (
    CertificateIssuer,
    EnrollmentReply,
    HubAddress,
    IssuedCertificate,
    read_validity,
    sign_reply,
)
from cloud_hub.registry.registry import DeviceKeys, InviteFault, Registry
from cloud_hub.security.authority import CertificateRequestError, encode_certificate, read_csr_key, utc_now
from cloud_hub.security.hub_keys import HubCard
from cloud_hub.security.signatures import SodiumVerifyingKey
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog, safe_name

MAX_FILE_BYTES = 8 << 20


class HardwareList:
    """Allow list of machines: a text file with one serial number per line, read again when it changes.

    `path` None: every machine may enrol. Empty lines and lines that begin with # are ignored.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._serials: frozenset[str] = frozenset()

    def check_file(self) -> None:
        """Raise ExitError(CONFIG) if the file cannot be read now."""
        if self._path is not None and not self._refresh_serials():
            raise ExitError(ExitCode.CONFIG, f"enrol.hardware_file: {self._path} cannot be read, or is too long")

    def allows_serial(self, serial: str) -> bool:
        """Whether a machine with this serial number may enrol."""
        return self._path is None or (self._refresh_serials() and serial in self._serials)

    def _refresh_serials(self) -> bool:
        """Read the file if it changed. False if it cannot be read."""
        if self._path is None:
            return True
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if stamp != self._seen:
                self._serials = _read_serials(self._path)
        except (OSError, UnicodeDecodeError):
            self._seen = None
            return False
        self._seen = stamp
        return True


def _read_serials(path: Path) -> frozenset[str]:
    with path.open("rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise OSError(f"{path} is longer than {MAX_FILE_BYTES} bytes")
    lines = (line.strip() for line in raw.decode().splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


INVITE_PREFIX = "skerry1:"
PROOF_TAG = b"skerry-enrol/1\0"
_KEY_BYTES = 32


class EnrolRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of an enrolment request.

    `csr` is PEM; keys and proof are base64 of 32, 32 and 64 raw bytes. `hardware`: the machine's serial number, or "".
    """

    token: str
    csr: str
    signing_key: str
    hpke_key: str
    proof: str
    hardware: str = ""


@dataclass(frozen=True)
class Rejection:
    """Why a request was refused: its invite or proof is not valid (`invite`, HTTP 403), or its content is not (400).

    `kind` names the reason in the counters.
    """

    error: str
    invite: bool
    kind: str = "request"


class EnrollmentService:
    """Enrolment service: turns a request into a signed reply or a rejection. `counts`: outcomes of requests by name."""

    def __init__(
        self,
        registry: Registry,
        authority: CertificateIssuer,
        place: HubAddress,
        hardware: HardwareList | None = None,
        log: JsonLog | None = None,
    ) -> None:
        self._log = log or JsonLog(least="error")
        self._registry = registry
        self._authority = authority
        self._place = place
        self._hardware = hardware or HardwareList(None)
        self.counts: Counter[str] = Counter()

    def set_card(self, card: HubCard) -> None:
        """Set the hub's card that new devices are given."""
        self._place = replace(self._place, hubs=(card,))

    def set_url(self, url: str) -> None:
        """Set the web API's URL, where devices renew."""
        self._place = replace(self._place, url=url)

    def enrol_device(self, request: EnrolRequest, now_ms: int) -> EnrollmentReply | Rejection:
        """Enrol a device. The token is checked first, so that a caller without one makes the hub compute nothing.

        `now_ms`: hub time in ms since 1970.
        """
        reply = self._enrol_device(request, now_ms)
        if isinstance(reply, Rejection):
            self.counts[f"refused.{reply.kind}"] += 1
            self._log.warning("enrolment_refused", why=safe_name(reply.kind))
        else:
            self.counts["enrolled"] += 1
        return reply

    def _enrol_device(self, request: EnrolRequest, now_ms: int) -> EnrollmentReply | Rejection:
        invited = self._registry.open_invite(request.token, now_ms, request.hardware, _claimed_key(request))
        if isinstance(invited, InviteFault):
            return _reject_invite(invited)
        if not self._hardware.allows_serial(request.hardware):
            return _reject_invite(InviteFault.HARDWARE)
        try:
            signing, hpke = verify_enrolment(request)
            certificate = self._authority.issue_device(request.csr.encode(), invited, utc_now())
        except CertificateRequestError as error:
            return Rejection(str(error), invite=False)
        facts, authority = read_validity(certificate), self._authority.issuer_sha256
        keys = DeviceKeys(signing, hpke, *facts, authority=authority, hardware=request.hardware)
        device = self._registry.enrol(request.token, keys, now_ms)
        if isinstance(device, InviteFault):
            return _reject_invite(device)
        self._log.info("device_enrolled", device=safe_name(device.id))
        return sign_reply(
            self._authority,
            self._place,
            IssuedCertificate(device.id, encode_certificate(certificate), now_ms, first=True),
        )


def _reject_invite(fault: InviteFault) -> Rejection:
    return Rejection(fault.value, invite=True, kind=fault.name.lower())


def _claimed_key(request: EnrolRequest) -> bytes:
    """Return the signing key that a request names; its proof is checked before anything is changed."""
    try:
        return base64.b64decode(request.signing_key, validate=True)
    except (binascii.Error, ValueError):
        return b""


def verify_enrolment(request: EnrolRequest) -> tuple[bytes, bytes]:
    """Check the proof of possession and return the raw signing and HPKE keys. RequestError names what is wrong."""
    signing = _decode_exact(request.signing_key, "signing_key", _KEY_BYTES)
    hpke = _decode_exact(request.hpke_key, "hpke_key", _KEY_BYTES)
    proof = _decode_exact(request.proof, "proof", 64)
    read_csr_key(request.csr.encode())
    try:
        SodiumVerifyingKey(signing).verify(proof, build_proof_text(request, signing, hpke))
    except (InvalidSignature, ValueError):
        raise CertificateRequestError("the proof does not fit the keys") from None
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(hpke))
    except ValueError:  # a point of small order: whatever is sealed to it can be opened by anybody
        raise CertificateRequestError("hpke_key is not a usable X25519 key") from None
    return signing, hpke


def build_proof_text(request: EnrolRequest, signing: bytes, hpke: bytes) -> bytes:
    """Return what the device's signing key signs: a SHA-256 over token, request, both raw public keys and serial."""
    words = (request.token.encode(), request.csr.encode(), signing, hpke, request.hardware.encode())
    return sha256(PROOF_TAG + b"".join(words)).digest()


def encode_invite(url: str, ca_sha256: str, token: str, device: str, *, root_sha256: str = "", made_ms: int = 0) -> str:
    """Encode an invite, the string that a person carries to the device: hub URL, CA hash and one-time token.

    `root_sha256`: of the root of trust for models, policies and hub keys, hex. `made_ms`: hub time, the device's first
    lower bound for the time.
    """
    packed = msgspec.msgpack.encode(
        {
            "url": url,
            "ca_sha256": ca_sha256,
            "token": token,
            "device": device,
            "root_sha256": root_sha256,
            "made_ms": made_ms,
        }
    )
    return INVITE_PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def _decode_exact(text: str, name: str, size: int) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CertificateRequestError(f"{name} is not base64") from None
    if len(data) != size:
        raise CertificateRequestError(f"{name} has {len(data)} bytes, not {size}")
    return data
