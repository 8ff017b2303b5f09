"""Opens or creates a hub's state folder: keys, certificates and update repository; also a complete demo hub at once.

Rule: a demo's root and targets keys are drawn in memory and forgotten, so nobody can ever change that root: it is not
for a real fleet.
"""

import contextlib
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from cloud_hub.repository.files import Anchor
from cloud_hub.repository.publish import found_demo
from cloud_hub.repository.repository import Repository
from cloud_hub.repository.signing_keys import OnlineKeys
from cloud_hub.runtime.config import HubConfig, load
from cloud_hub.security.authorities import Authorities
from cloud_hub.security.authority import EPOCH, HUB_NAME, Pair, utc_now
from cloud_hub.security.hub_keys import HubCard, HubKeys, load_or_create
from cloud_hub.system.state_folder import StateDir
from wire.process.daemon import Lock


class Ground(msgspec.Struct, frozen=True):
    """Opened state of a hub: its folder, CAs, certificates, keys and trust anchor.

    `server` and `client` are files that are written anew when the CA changes; their paths stay.
    """

    state: StateDir
    authorities: Authorities
    server: Pair
    client: Pair
    keys: HubKeys
    anchor: Anchor

    @property
    def repository(self) -> Repository:
        """The update repository, from which devices fetch models, policies and hub keys."""
        return Repository(self.state.repository, OnlineKeys(self.state.online))

    @property
    def ca(self) -> Path:
        """PEM file of every CA that is trusted now."""
        return self.authorities.trusted_file


def lay(config: HubConfig) -> Ground:
    """Open the state folder, creating what is missing. ExitError(DISK or CREDENTIALS) if a part is unusable."""
    state = config.state_dir().prepare()
    authorities = Authorities.open(state.certificates, utc_now())
    authorities.live(timedelta(days=config.enrol.certificate_days))
    server, client = own_certificates(authorities, config)
    keys = load_or_create(state.keys)
    OnlineKeys(state.online).ensure()
    return Ground(state, authorities, server, client=client, keys=keys, anchor=anchor_of(config))


def anchor_of(config: HubConfig) -> Anchor:
    """Return the root of trust and the repository address that devices of this hub are given."""
    return Anchor(config.state_dir().repository, config.repository.url)


def own_certificates(authorities: Authorities, config: HubConfig) -> tuple[Pair, Pair]:
    """Return the server's and the client's certificate, issued anew if missing, old, or of a CA that is gone."""
    now, hub_time = utc_now(), newest(config.state_dir().store)
    server = authorities.ensure_server(config.server_names(), now, hub_time)
    return server, authorities.ensure_client(HUB_NAME, now, hub_time)


def newest(store: Path) -> datetime:
    """Return the latest hub time in the database, which devices have seen, whatever this machine's clock says."""
    try:
        with contextlib.closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            kept_ms = opened.execute("select max(kept_ms) from effects").fetchone()[0]
    except sqlite3.Error:  # none yet; a damaged one is reported where it is opened
        return EPOCH
    return EPOCH + timedelta(milliseconds=kept_ms or 0)


def found(config_file: Path, bundles: Sequence[Path], policies: Sequence[bytes]) -> bytes:
    """Create a demo hub: its state folder, bundles, policies and the hub's keys published. Returns root 1."""
    config = load(config_file)
    with Lock(config.state_dir().prepare().root):
        ground = lay(config)
        card = HubCard(config.hub.name, config.hub.region, ground.keys.hpke_public, ground.keys.signing_public)
        return found_demo(ground.repository, card, bundles, policies, utc_now())
