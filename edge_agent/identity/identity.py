"""The identity folder of a device: id, keys, certificate, pinned CAs, broker address and hub keys.

Made by enrolment; renewal replaces certificate, addresses and hub keys. Hub keys from here are used where no update
repository publishes them: for additional hubs, and before the first refresh.
Rule: every secret is in a file with mode 0600; `identity.json` holds nothing secret. Certificate and key are in one
file, so that one rename replaces both. Files of format 1 (two files, no address of the hub) can still be read.
"""

import contextlib
import os
import re
import secrets
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from edge_agent.system import http
from policies.decisions.routing import HubSite
from wire.errors import LocalError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file, write_private_file
from wire.protocol.sealing import compute_key_id
from wire.protocol.topics import validate_device_id

FORMAT = 2
IDENTITY_FILE = "identity.json"
CERTIFICATE_FILE = "device.pem"
CERTIFICATE_KEY_FILE = "device.key"  # format 1 only; in format 2 the key follows its certificate
CA_FILE = "ca.pem"
ROOT_FILE = "root.json"  # root of trust of the update repository
SIGNING_KEY_FILE = "signing.key"
HPKE_KEY_FILE = "hpke.key"
PAYLOAD_KEY_FILE = "payload.key"
MAX_ROOT_BYTES = 1 << 20
_KEY_BYTES = 32
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


class HubKeys(msgspec.Struct, frozen=True, gc=False):
    """Public keys of one hub, raw 32 bytes each: X25519 to seal to, Ed25519 that signs its messages."""

    name: str
    region: str
    hpke_key: bytes
    signing_key: bytes

    @property
    def seal_to(self) -> X25519PublicKey:
        """The HPKE key that questions are sealed to."""
        return X25519PublicKey.from_public_bytes(self.hpke_key)

    @property
    def signed_by(self) -> Ed25519PublicKey:
        """The key that verifies this hub's messages."""
        return Ed25519PublicKey.from_public_bytes(self.signing_key)

    @property
    def key_id(self) -> bytes:
        """Short id of the HPKE key, sent with each question that is sealed to it."""
        return compute_key_id(self.hpke_key)


def make_hub_sites(hubs: Iterable[HubKeys], prices: Mapping[str, int] | None = None) -> tuple[HubSite, ...]:
    """The hubs as policies see them: name, region, and price per question (0 if none is given)."""
    told = prices or {}
    return tuple(HubSite(hub.name, hub.region, told.get(hub.name, 0)) for hub in hubs)


class _IdentityFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `identity.json`."""

    device: str
    broker_host: str
    broker_port: int
    hub_time_ms: int
    hubs: tuple[HubKeys, ...]
    hub_url: str = ""
    tuf_url: str = ""
    certificate_ms: tuple[int, int] = (0, 0)
    format: int = 1


class _FormatNumber(msgspec.Struct, frozen=True):
    """The format number of an `identity.json` of any version."""

    format: int = 1


@dataclass(frozen=True, repr=False)  # no repr: it would print keys
class Identity:
    """Keys and addresses of one device.

    `hub_time_ms`: the latest hub time that the CA signed, at enrolment or renewal. `payload_key`: AES-256 key of the
    outbox, which stays here. `hub_url`: where certificates are renewed; "" in a folder of format 1. `certificate_ms`:
    begin and end of our certificate in hub time; (0, 0) if unknown. `tuf_url`: the update repository, above metadata/
    and targets/; "" if the hub had none when this device enrolled.
    """

    device: str
    broker_host: str
    broker_port: int
    hubs: tuple[HubKeys, ...]
    hub_time_ms: int
    signing: Ed25519PrivateKey
    hpke: X25519PrivateKey
    payload_key: bytes
    folder: Path | None = None  # where the certificate files are; None in memory-only tests
    hub_url: str = ""
    tuf_url: str = ""
    certificate_ms: tuple[int, int] = (0, 0)

    @property
    def hpke_id(self) -> bytes:
        """Short id of our HPKE key."""
        return compute_key_id(self.hpke.public_key().public_bytes_raw())

    @property
    def signing_id(self) -> bytes:
        """Short id of our signing key."""
        return compute_key_id(self.signing.public_key().public_bytes_raw())

    @property
    def client_name(self) -> str:
        """Name for a broker of the site: unique there, where devices of several hubs may have one id."""
        return f"{self.device}-{self.signing_id.hex()[:8]}"

    def explain_missing_updates(self) -> str:
        """How this device gets an update repository, if it was enrolled before its hub had one; "" if it has one."""
        if self.tuf_url:
            return ""
        name = self.device
        return (
            f"{name} was enrolled before its hub had signing keys, so it takes no updates; make them (docs/trust.md,"
            f" the first keys), then at the hub: skerry devices suspend {name}; skerry hub invite {name} --replace;"
            " then here: skerry agent enrol INVITE --dir NEW_FOLDER"
        )

    @property
    def trusted(self) -> tuple[str, ...]:
        """PEM of every pinned CA: one, or two while the hub replaces its own. ExitError(CREDENTIALS) if unreadable."""
        path = (self.folder or Path()) / CA_FILE
        return split_pem(read_private_file(path).decode("ascii", "replace"), path)

    @property
    def tuf_root(self) -> bytes:
        """The root metadata that the invite named by its hash. ExitError(CREDENTIALS) if it is gone."""
        return read_private_file((self.folder or Path()) / ROOT_FILE, MAX_ROOT_BYTES)

    def tls_context(self) -> ssl.SSLContext:
        """TLS context for the broker: our certificate, the pinned CAs and no others.

        ExitError(CREDENTIALS) if certificate, key or CAs cannot be used.
        """
        folder = self.folder or Path()
        try:
            context = http.make_tls_context(self.trusted, self.hub_time_ms)
            context.load_cert_chain(*_find_certificate(folder))
        except (OSError, ssl.SSLError) as error:
            raise ExitError(
                ExitCode.CREDENTIALS, f"{folder}: certificate or key unusable ({error}); enrol again"
            ) from None
        return context

    def save(
        self, folder: Path, certificate: bytes = b"", certificate_key: bytes = b"", ca: bytes = b"", root: bytes = b""
    ) -> "Identity":
        """Write the identity folder: keys first and `identity.json` last, so that a folder with that file is complete.

        Certificate, key and CAs are PEM, `root` is the update repository's root metadata. ExitError(DISK) if it cannot
        be written.
        """
        with contextlib.suppress(OSError):  # write_private raises the better error
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = {
            SIGNING_KEY_FILE: self.signing.private_bytes_raw(),
            HPKE_KEY_FILE: self.hpke.private_bytes_raw(),
            PAYLOAD_KEY_FILE: self.payload_key,
            CERTIFICATE_FILE: certificate + certificate_key,
            CA_FILE: ca,
            ROOT_FILE: root,
        }
        for name, data in secret.items():
            if data:
                write_private_file(folder / name, data)
        self._write_identity_file(folder)
        return replace(self, folder=folder)

    def replace_certificate(self, certificate: bytes, certificate_key: bytes, ca: bytes) -> None:
        """Replace certificate, key and CAs (PEM) on disk, each by one rename.

        The CAs are written first: the old certificate is still valid under them if the process ends in between.
        """
        folder = self.folder or Path()
        write_private_file(folder / CA_FILE, ca)
        write_private_file(folder / CERTIFICATE_FILE, certificate + certificate_key)
        with contextlib.suppress(OSError):  # left over from format 1; the new file holds the key
            (folder / CERTIFICATE_KEY_FILE).unlink()
        self._write_identity_file(folder)

    def _write_identity_file(self, folder: Path) -> None:
        where = (self.broker_host, self.broker_port, self.hub_time_ms, self.hubs, self.hub_url)
        card = _IdentityFile(self.device, *where, self.tuf_url, self.certificate_ms, FORMAT)
        text = msgspec.json.format(msgspec.json.encode(card), indent=1) + b"\n"
        if not (folder / IDENTITY_FILE).exists() or (folder / IDENTITY_FILE).read_bytes() != text:
            write_private_file(folder / IDENTITY_FILE, text)


def load_identity(path: Path) -> Identity:
    """Load the identity of a folder (or of the folder of an `identity.json`).

    ExitError(ENROLMENT) if there is none, ExitError(CREDENTIALS) if it cannot be used.
    """
    folder = path.parent if path.name == IDENTITY_FILE else path
    card = _read_identity_file(folder / IDENTITY_FILE)
    secret = {name: _read_key(folder / name) for name in (SIGNING_KEY_FILE, HPKE_KEY_FILE, PAYLOAD_KEY_FILE)}
    return Identity(
        device=card.device,
        broker_host=card.broker_host,
        broker_port=card.broker_port,
        hubs=card.hubs,
        hub_time_ms=card.hub_time_ms,
        signing=Ed25519PrivateKey.from_private_bytes(secret[SIGNING_KEY_FILE]),
        hpke=X25519PrivateKey.from_private_bytes(secret[HPKE_KEY_FILE]),
        payload_key=secret[PAYLOAD_KEY_FILE],
        folder=folder,
        hub_url=card.hub_url,
        tuf_url=card.tuf_url,
        certificate_ms=card.certificate_ms,
    )


def generate_payload_key() -> bytes:
    """Generate the AES-256 key that encrypts payloads in the outbox."""
    return secrets.token_bytes(_KEY_BYTES)


def _read_identity_file(path: Path) -> _IdentityFile:
    try:
        text = path.read_bytes()
        written = msgspec.json.decode(text, type=_FormatNumber).format
        if written > FORMAT:
            raise ExitError(ExitCode.CREDENTIALS, f"{path}: written by a newer version (format {written}): update")
        card = msgspec.json.decode(text, type=_IdentityFile)
        validate_device_id(card.device)
    except FileNotFoundError:
        raise ExitError(ExitCode.MISSING, f"{path} is not there: run `skerry agent enrol` first") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, LocalError) as error:
        raise ExitError(ExitCode.CREDENTIALS, f"{path}: {str(error)[:120]}; enrol again") from None
    if not card.hubs or any(len(key) != _KEY_BYTES for hub in card.hubs for key in (hub.hpke_key, hub.signing_key)):
        raise ExitError(ExitCode.CREDENTIALS, f"{path}: no usable hub keys; enrol again")
    return card


def _read_key(path: Path) -> bytes:
    data = read_private_file(path)
    if len(data) != _KEY_BYTES:
        raise ExitError(ExitCode.CREDENTIALS, f"{path}: {len(data)} bytes, a key has {_KEY_BYTES}; enrol again")
    return data


def split_pem(text: str, path: Path | str) -> tuple[str, ...]:
    """Split a PEM text into its certificates. ExitError(CREDENTIALS) if there is none."""
    found = tuple(match[0] + "\n" for match in _PEM.finditer(text))
    if not found:
        raise ExitError(ExitCode.CREDENTIALS, f"{path}: no certificate; enrol again")
    return found


def _find_certificate(folder: Path) -> tuple[Path, Path | None]:
    """Paths of certificate and key as `load_cert_chain` takes them: one file, or the two of format 1."""
    certificate = folder / CERTIFICATE_FILE
    return certificate, None if b"PRIVATE KEY" in read_private_file(certificate) else folder / CERTIFICATE_KEY_FILE


def folder_is_enrolled(folder: Path) -> bool:
    """Whether the folder holds a complete identity."""
    return os.path.isfile(folder / IDENTITY_FILE)  # noqa: PTH113 - one stat, no exception on odd paths
