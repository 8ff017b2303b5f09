"""Opens or creates a hub's state folder: keys, certificates and update repository; also a complete demo hub at once.

Rule: a demo's root and targets keys are drawn in memory and forgotten, so nobody can ever change that root: it is not
for a real fleet.
"""

import contextlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from sqlalchemy.exc import DBAPIError

from cloud_hub.database.connection import sqlite_file
from cloud_hub.database.errors import explain_error
from cloud_hub.database.marks import refuse_lost
from cloud_hub.database.parts import PARTS
from cloud_hub.region.lease_keeper import LeaseKeeper
from cloud_hub.region.leases import LeaseTable
from cloud_hub.region.membership import RegionMembership
from cloud_hub.region.shared_files import RegionFacts, SharedFiles
from cloud_hub.repository.files import TrustAnchor
from cloud_hub.repository.repository import Repository
from cloud_hub.repository.signing_keys import OnlineKeys
from cloud_hub.runtime.config import HubConfig
from cloud_hub.security.authorities import RotatingAuthority
from cloud_hub.security.authority import EPOCH, CertificateFiles, utc_now
from cloud_hub.security.hub_keys import HubKeys, load_or_create_keys
from cloud_hub.security.signatures import check_library
from cloud_hub.storage.store import read_newest_aside
from cloud_hub.system.state_folder import StateDir
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog
from wire.process.packages import read_version


class HubState(msgspec.Struct, frozen=True):
    """Opened state of a hub: its folder, CAs, certificates, keys and trust anchor.

    `server` and `client` are files that are written anew when the CA changes; their paths stay.
    """

    state: StateDir
    authorities: RotatingAuthority
    server: CertificateFiles
    client: CertificateFiles
    keys: HubKeys
    anchor: TrustAnchor

    @property
    def repository(self) -> Repository:
        """The update repository, from which devices fetch models, policies and hub keys."""
        return Repository(self.state.repository, OnlineKeys(self.state.online))

    @property
    def ca_file(self) -> Path:
        """PEM file of every CA that is trusted now."""
        return self.authorities.trusted_file


def open_state(config: HubConfig) -> HubState:
    """Open the state folder, creating what is missing.

    ExitError(DISK or CREDENTIALS) if a part is unusable, ExitError(CONFIG) if libsodium is not as strict as needed,
    ExitError(DATABASE_LOST) if a database is gone: before anything is made that would stand in its place.
    """
    check_library()
    state = config.state_dir().prepare()
    config.check_database()
    urls = config.database_urls()
    for part in PARTS:
        file = sqlite_file(urls.url_of(part))
        if file is not None:
            refuse_lost(file)
    with _shared_with_region(config):
        authorities = RotatingAuthority.open(state.certificates, utc_now())
        authorities.set_device_life(timedelta(days=config.enrol.certificate_days))
        keys = load_or_create_keys(state.keys)
        OnlineKeys(state.online).ensure_keys()
    server, client = ensure_certificates(authorities, config)
    return HubState(state, authorities, server, client=client, keys=keys, anchor=trust_anchor(config))


@contextlib.contextmanager
def _shared_with_region(config: HubConfig) -> Iterator[None]:
    """Have what the region has before the body, and give it what the body made; nothing for a hub that is alone."""
    if not config.store.url:
        yield
        return
    share_files(config, config.store.url)
    yield
    share_files(config, config.store.url)


def share_files(config: HubConfig, url: str) -> None:
    """Make the state folder and the files of the region in a database alike; see `open_shared_files`."""
    with contextlib.closing(open_shared_files(config, url)) as shared:
        try:
            shared.sync()
        except DBAPIError as error:
            raise explain_error(error, url) from None


def open_shared_files(config: HubConfig, url: str) -> SharedFiles:
    """Open the files that this hub shares with the region of a database.

    ExitError(REGION_KEY) if they are another region's, CONFIG if the region has another name.
    """
    mine = RegionFacts(config.hub.name, config.hub.region, config.broker_host(), config.broker.port)
    shared = SharedFiles.open(url, config.state_dir().root, mine)
    for key, here, there in (("name", mine.name, shared.facts.name), ("region", mine.region, shared.facts.region)):
        if here != there:
            shared.close()
            raise ExitError(ExitCode.CONFIG, f"[hub] {key} is {here!r}, that of the region's hubs is {there!r}")
    return shared


@contextlib.contextmanager
def hold_place(config: HubConfig) -> Iterator[RegionMembership | None]:
    """Hold the hub's name among those of its region; None of a hub that shares no server.

    ExitError(NAME_TAKEN) if another hub has it.
    """
    if not config.store.url:
        yield None
        return
    opened = RegionMembership.open(config.database_urls().server, config.hub.member, read_version())
    with contextlib.closing(opened) as place:
        yield place


def open_leases(config: HubConfig, log: JsonLog) -> LeaseKeeper | None:
    """Open the leases of a hub whose server others may share; None of one that has its database for itself."""
    url = config.database_urls().server
    return LeaseKeeper(LeaseTable.open(url, config.hub.member, config.store.lease_s), log) if url else None


def trust_anchor(config: HubConfig) -> TrustAnchor:
    """Return the root of trust and the repository address that devices of this hub are given."""
    return TrustAnchor(config.state_dir().repository, config.repository.url)


def ensure_certificates(authorities: RotatingAuthority, config: HubConfig) -> tuple[CertificateFiles, CertificateFiles]:
    """Return the server's and the client's certificate, issued anew if missing, old, or of a CA that is gone."""
    now, hub_time = utc_now(), read_newest_time(config.database_urls().questions)
    server = authorities.ensure_server(config.server_names(), now, hub_time)
    return server, authorities.ensure_client(config.hub.member, now, hub_time)


def read_newest_time(url: str) -> datetime:
    """Return the latest hub time in the database, which devices have seen, whatever this machine's clock says."""
    return EPOCH + timedelta(milliseconds=read_newest_aside(url))
