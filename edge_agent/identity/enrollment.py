"""Enrols a device at a hub with an invite: generates its keys, sends one request, verifies the signed reply.

Rule: no private key leaves the device, the token goes only to the hub that the invite names, and a folder is enrolled
once. A person in the middle can block the enrolment, not change it: the reply is signed by the CA whose hash the invite
holds. The keys wait in the folder until the reply has come, so that the same invite, typed again, continues where it
stopped.
"""

import base64
import binascii
import hmac
import http
import random
import time
from hashlib import sha256
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from edge_agent.identity.certificates import (
    CertificateReply,
    VerifiedReply,
    encode_key_pem,
    generate_key,
    make_reply_error,
    make_request_pem,
    verify_reply,
)
from edge_agent.identity.identity import Identity, folder_is_enrolled, generate_payload_key
from edge_agent.system.http import HubTrust, post_to_hub, split_address
from policies.monitoring.backoff import compute_delay
from wire.errors import LocalError
from wire.http.client import HttpReply
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file, write_private_file
from wire.process.proxy import NO_PROXY, ForwardProxy
from wire.protocol.topics import validate_device_id

INVITE_PREFIX = "skerry1:"
PROOF_TAG = b"skerry-enrol/1\0"
MAX_INVITE_CHARS = 4096
PENDING_FILE = "enrolling.key"
MAX_TRIES = 6  # if the hub answers 429 or 503
_RETRY_STATUSES = (http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.SERVICE_UNAVAILABLE)
_MACHINE_SERIALS = ("/proc/device-tree/serial-number", "/sys/class/dmi/id/product_serial")


class Invite(msgspec.Struct, frozen=True):
    """An invite as a person brought it to the device; single use.

    `ca_sha256`: hash (hex) of the CA certificate's DER form. `root_sha256`: hash of the update repository's root.
    `made_ms`: hub time when it was made, which becomes the device's first time floor.
    """

    url: str
    ca_sha256: str
    token: str
    device: str
    root_sha256: str = ""
    made_ms: int = 0


class DeviceKeys(msgspec.Struct, frozen=True):
    """The private keys of a new device: TLS certificate, signing (Ed25519), HPKE (X25519)."""

    certificate: ec.EllipticCurvePrivateKey
    signing: Ed25519PrivateKey
    hpke: X25519PrivateKey


class _PendingKeys(msgspec.Struct, frozen=True):
    """Keys that were sent while the reply has not come yet; valid for the same token only."""

    token_sha256: bytes
    certificate: bytes
    signing: bytes
    hpke: bytes


def enrol_device(invite_text: str, folder: Path, hardware: str = "", proxy: ForwardProxy = NO_PROXY) -> Identity:
    """Enrol this device into `folder` and return its identity.

    `hardware`: the machine's serial number, for hubs that ask for one. `proxy`: on the way to the hub.
    ExitError(ENROLMENT, HUB, DISK, LOCKED): then no identity was written.
    """
    invite = read_invite(invite_text)
    if folder_is_enrolled(folder):
        raise ExitError(
            ExitCode.ENROLMENT, f"{folder} is enrolled already; use another folder, or remove it to start anew"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{folder}: {error.strerror}") from None
    with FolderLock(folder):  # also checks that the folder is writable before the token is used up
        keys = _prepare_keys(folder, invite)
        reply = _post_request(invite, make_enrolment_request(invite, keys, hardware), proxy)
        if not reply.ok:
            raise _refusal_error(reply, folder / PENDING_FILE)
        letter = check_reply(reply.body, invite, keys)
        made = make_identity(letter, invite, keys).save(
            folder,
            letter.body.certificate.encode(),
            encode_key_pem(keys.certificate),
            "".join(letter.body.authorities).encode(),
            letter.body.tuf_root if invite.root_sha256 else b"",
        )
        (folder / PENDING_FILE).unlink(missing_ok=True)
        return made


def read_invite(text: str) -> Invite:
    """Decode an invite. ExitError(ENROLMENT) unless it is complete and names a valid device id."""
    text = "".join(text.removeprefix("\ufeff").split())
    if not text.startswith(INVITE_PREFIX) or len(text) > MAX_INVITE_CHARS:
        raise ExitError(
            ExitCode.ENROLMENT,
            f"this is not an invite: one begins with {INVITE_PREFIX}; `skerry hub invite` prints one",
        )
    packed = text.removeprefix(INVITE_PREFIX)
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        invite = msgspec.msgpack.decode(raw, type=Invite)
        validate_device_id(invite.device)
        whole = len(bytes.fromhex(invite.ca_sha256)) == 32 and bool(invite.token) and bool(split_address(invite.url))
    except (binascii.Error, msgspec.DecodeError, LocalError, ValueError):
        whole = False
    if not whole:
        raise ExitError(ExitCode.ENROLMENT, "the invite is damaged: copy it again, as one line")
    return invite


def read_machine_serial() -> str:
    """The serial number that the manufacturer wrote into this machine, where the system shows it.

    ExitError(USAGE) otherwise.
    """
    for place in _MACHINE_SERIALS:
        try:
            found = Path(place).read_text(encoding="ascii", errors="replace").strip("\0 \n")
        except OSError:
            continue
        if found:
            return found
    raise ExitError(
        ExitCode.USAGE, f"this machine shows no serial number in {' or '.join(_MACHINE_SERIALS)}: give it by hand"
    )


def generate_keys() -> DeviceKeys:
    """Generate the private keys of a new device."""
    return DeviceKeys(generate_key(), Ed25519PrivateKey.generate(), X25519PrivateKey.generate())


def make_enrolment_request(invite: Invite, keys: DeviceKeys, hardware: str = "") -> bytes:
    """The enrolment request as JSON: token, certificate request, public keys, serial, and one proof over all of them.

    The proof is the signing key's signature, so that no part can be exchanged on the way.
    """
    csr = make_request_pem(invite.device, keys.certificate)
    signing = keys.signing.public_key().public_bytes_raw()
    hpke = keys.hpke.public_key().public_bytes_raw()
    words = (invite.token.encode(), csr, signing, hpke, hardware.encode())
    proof = keys.signing.sign(sha256(PROOF_TAG + b"".join(words)).digest())
    texts = {"signing_key": signing, "hpke_key": hpke, "proof": proof}
    encoded = {key: base64.b64encode(raw).decode() for key, raw in texts.items()}
    serial = {"hardware": hardware} if hardware else {}
    return msgspec.json.encode({"token": invite.token, "csr": csr.decode(), **encoded, **serial})


def check_reply(reply: bytes, invite: Invite, keys: DeviceKeys) -> VerifiedReply:
    """The verified reply: signed by the CA that the invite names, its certificate for our key and id."""

    def invited(body: CertificateReply) -> list[x509.Certificate]:
        authority = x509.load_pem_x509_certificate(body.ca.encode())
        if not hmac.compare_digest(authority.fingerprint(hashes.SHA256()), bytes.fromhex(invite.ca_sha256)):
            raise make_reply_error("its CA is not the one the invite names: somebody may be in between")
        return [authority]

    letter = verify_reply(reply, invite.device, keys.certificate.public_key(), invited)
    if invite.root_sha256:
        _check_root(letter.body, invite.root_sha256)
    return letter


def _check_root(body: CertificateReply, promised: str) -> None:
    """Compare the update repository's root metadata with the hash in the invite.

    This is the only root that is not verified by an earlier one.
    """
    if not hmac.compare_digest(sha256(body.tuf_root).hexdigest(), promised.lower()):
        raise make_reply_error(
            "its update root is not the one the invite names: if it was renewed since, ask for a new invite"
        )
    if not body.tuf_url.startswith(("http://", "https://")):
        raise make_reply_error("it names no address of its update repository")


def _prepare_keys(folder: Path, invite: Invite) -> DeviceKeys:
    """Keys that were sent with this token before, or new ones; stored on disk before they are sent."""
    pending, token = folder / PENDING_FILE, sha256(invite.token.encode()).digest()
    if pending.exists():
        kept = _read_pending(pending)
        if kept is not None and hmac.compare_digest(kept.token_sha256, token):
            return _decode_keys(kept)
    keys = generate_keys()
    raw = (encode_key_pem(keys.certificate), keys.signing.private_bytes_raw(), keys.hpke.private_bytes_raw())
    write_private_file(pending, msgspec.msgpack.encode(_PendingKeys(token, *raw)))
    return keys


def _read_pending(path: Path) -> _PendingKeys | None:
    try:
        return msgspec.msgpack.decode(read_private_file(path), type=_PendingKeys)
    except (msgspec.DecodeError, RecursionError):
        return None


def _decode_keys(kept: _PendingKeys) -> DeviceKeys:
    certificate = serialization.load_pem_private_key(kept.certificate, None)
    if not isinstance(certificate, ec.EllipticCurvePrivateKey):
        raise ExitError(ExitCode.CREDENTIALS, f"{PENDING_FILE} is damaged: remove it and ask for a new invite")
    signing = Ed25519PrivateKey.from_private_bytes(kept.signing)
    return DeviceKeys(certificate, signing, X25519PrivateKey.from_private_bytes(kept.hpke))


def make_identity(letter: VerifiedReply, invite: Invite, keys: DeviceKeys) -> Identity:
    """The identity that a verified reply gives this device; not saved yet."""
    body = letter.body
    return Identity(
        device=body.device,
        broker_host=body.broker.host,
        broker_port=body.broker.port,
        hubs=body.hubs,
        hub_time_ms=body.hub_time_ms,
        signing=keys.signing,
        hpke=keys.hpke,
        payload_key=generate_payload_key(),
        hub_url=body.hub_url or invite.url,
        tuf_url=body.tuf_url if invite.root_sha256 else "",
        certificate_ms=letter.certificate_ms,
    )


def _post_request(invite: Invite, body: bytes, proxy: ForwardProxy) -> HttpReply:
    """POST the request, with retries and backoff while the hub answers 429 or 503.

    A whole fleet may enrol at the same time.
    """
    trust = HubTrust(invite.made_ms, ca_sha256=invite.ca_sha256)
    for attempt in range(1, MAX_TRIES):
        reply = post_to_hub(invite.url, "/v1/enrol", body, trust, proxy)
        if reply.status not in _RETRY_STATUSES:
            return reply
        time.sleep(compute_delay(attempt, random.random(), 1.0, 20.0))  # noqa: S311 - jitter keeps no secret
    return post_to_hub(invite.url, "/v1/enrol", body, trust, proxy)


def _refusal_error(reply: HttpReply, pending: Path) -> ExitError:
    """The error for a refusal; deletes the pending keys if the hub will never accept them."""
    line = reply.error_line
    if not line:
        return ExitError(ExitCode.HUB, f"the hub answered {reply.status} and no reason; is the address right?")
    if reply.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR or reply.status in _RETRY_STATUSES:
        return ExitError(ExitCode.HUB, f"the hub refused ({reply.status}): {line}")
    pending.unlink(missing_ok=True)  # the hub will never accept these keys
    return ExitError(ExitCode.ENROLMENT, f"the hub refused ({reply.status}): {line}")
