"""Enrols a whole fleet with a hub that is not running: the same requests, registry and CA as the product, no HTTP.

Rule: every device draws its own keys and checks its enrolment reply as the product does; every certificate and every
row of the registry is real. The keys of a device stay in this process; its certificate lies in its folder, for TLS.
"""

import os
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cloud_hub.database.connection import Location, open_part
from cloud_hub.database.parts import REGISTRY
from cloud_hub.enrollment.enrollment import EnrollmentService, EnrolRequest, Rejection
from cloud_hub.enrollment.replies import BrokerAddress, HubAddress
from cloud_hub.registry.registry import Registry
from cloud_hub.runtime.bootstrap import HubState, open_state
from cloud_hub.runtime.config import HubConfig
from cloud_hub.security.hub_keys import HubCard
from cloud_hub.storage.ledger_log import LedgerLog
from edge_agent.identity.certificates import encode_key_pem
from edge_agent.identity.enrollment import Invite, check_reply, generate_keys, make_enrolment_request, make_identity
from edge_agent.identity.identity import CERTIFICATE_FILE, Identity
from edge_agent.system.http import make_tls_context
from wire.process.exit_codes import ExitCode, ExitError

TENANT = "fleet"
_LIFE_S = 600.0
_FIRST_PART = 500  # so many files in one folder


@dataclass(frozen=True, repr=False)
class FleetIdentity(Identity):
    """Identity whose CA is in memory, shared by all: a thousand devices need not read one file a thousand times."""

    authorities: tuple[str, ...] = ()

    @property
    def trusted(self) -> tuple[str, ...]:
        """CA certificates that the identity trusts, in PEM."""
        return self.authorities

    def tls_context(self) -> ssl.SSLContext:
        """TLS context with the device's certificate and the CA in memory."""
        made = make_tls_context(self.authorities, self.hub_time_ms)
        made.load_cert_chain((self.folder or Path()) / CERTIFICATE_FILE)
        return made


@dataclass(frozen=True)
class FleetConfig:
    """Where and how a fleet is enrolled.

    `brokers`: device number -> port of the broker, or of the proxy before it.
    """

    folder: Path
    config: HubConfig
    url: str
    brokers: Callable[[int], int]


def format_live_device_id(number: int) -> str:
    """Id of the device of that number."""
    return f"{TENANT}--d{number:05}"


def find_device_folder(fleet: Path, number: int) -> Path:
    """Folder of the device of that number, with all that is its own."""
    return fleet / f"{number // _FIRST_PART:03}" / format_live_device_id(number)


def prepare_hub(config: HubConfig) -> None:
    """Make the hub's state: before several processes enrol devices at once, each with a connection of its own."""
    open_state(config)
    urls = config.database_urls()
    Registry.open(urls.registry).close()
    # as the hub's first start: a device older than its log might have spent
    LedgerLog.open(urls.ledger, time.time_ns() // 1_000_000).close()


def enrol_fleet(fleet: FleetConfig, numbers: Iterable[int]) -> Iterator[FleetIdentity]:
    """Enrol the devices of these numbers with a hub that was prepared, yielding each identity.

    ExitError(ENROLMENT) if one is refused.
    """
    ground, config = open_state(fleet.config), fleet.config
    card = HubCard(config.hub.name, config.hub.region, ground.keys.hpke_public, ground.keys.signing_public)
    registry = _open_registry(config.database_urls().registry)
    now_ms = time.time_ns() // 1_000_000
    try:
        for number in numbers:
            address = BrokerAddress("127.0.0.1", fleet.brokers(number))
            issuer = EnrollmentService(registry, ground.authorities, HubAddress(address, (card,), fleet.url))
            yield _enrol_device(fleet, (registry, issuer, ground), number, now_ms)
    finally:
        registry.close()


def _open_registry(where: Location) -> Registry:
    """Open the registry of a hub that was prepared; it is not synced, as it is gone with the run."""
    engine = open_part(where, REGISTRY)
    connection = engine.raw_connection()
    connection.cursor().execute("pragma synchronous=off")
    connection.close()  # back to the engine, which keeps this one
    return Registry(engine)


def _enrol_device(
    fleet: FleetConfig, hub: tuple[Registry, EnrollmentService, HubState], number: int, now_ms: int
) -> FleetIdentity:
    registry, issuer, ground = hub
    token = registry.invite(format_live_device_id(number), now_ms, _LIFE_S).token
    invite = Invite(
        url=fleet.url,
        ca_sha256=ground.authorities.sha256,
        token=token,
        device=format_live_device_id(number),
        root_sha256="",
        made_ms=now_ms,
    )
    keys = generate_keys()
    request = msgspec.json.decode(make_enrolment_request(invite, keys), type=EnrolRequest)
    reply = issuer.enrol_device(request, now_ms)
    if isinstance(reply, Rejection):
        raise ExitError(ExitCode.ENROLMENT, f"{invite.device}: {reply.error}")
    letter = check_reply(msgspec.json.encode(reply), invite, keys)
    folder = find_device_folder(fleet.folder, number)
    folder.mkdir(mode=0o700, parents=True)
    _write_private(folder / CERTIFICATE_FILE, letter.body.certificate.encode() + encode_key_pem(keys.certificate))
    plain = make_identity(letter, invite, keys)
    values = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
    return FleetIdentity(**{**values, "folder": folder}, authorities=letter.body.authorities)


def _write_private(path: Path, data: bytes) -> None:
    """Write a private file, not synced: it is gone with the run."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
