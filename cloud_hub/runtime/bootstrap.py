"""What lies in a hub's state folder, opened or made: before anything runs.

A hub for a demo in one call, before its process starts: keys, certificates and an update repository that is full.

Rule: root and targets keys are drawn in memory and forgotten, so nobody can ever change that root: no real fleet.
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
    """`server` and `client` are files that are written anew when the CA changes; their paths stay."""

    state: StateDir
    authorities: Authorities
    server: Pair
    client: Pair
    keys: HubKeys
    anchor: Anchor

    @property
    def repository(self) -> Repository:
        """What devices fetch: models, policies, hub keys."""
        return Repository(self.state.repository, OnlineKeys(self.state.online))

    @property
    def ca(self) -> Path:
        """PEM of every CA that is trusted now."""
        return self.authorities.trusted_file


def lay(config: HubConfig) -> Ground:
    """Open the state folder, making all of it at first start. ExitError(DISK or CREDENTIALS) if a part is unusable."""
    state = config.state_dir().prepare()
    authorities = Authorities.open(state.certificates, utc_now())
    authorities.live(timedelta(days=config.enrol.certificate_days))
    server, client = own_certificates(authorities, config)
    keys = load_or_create(state.keys)
    OnlineKeys(state.online).ensure()
    return Ground(state, authorities, server, client=client, keys=keys, anchor=anchor_of(config))


def anchor_of(config: HubConfig) -> Anchor:
    """Where devices of this hub begin to trust its update repository."""
    return Anchor(config.state_dir().repository, config.repository.url)


def own_certificates(authorities: Authorities, config: HubConfig) -> tuple[Pair, Pair]:
    """(server, client), made where they are missing, old, or of a CA that is gone."""
    now, hub_time = utc_now(), newest(config.state_dir().store)
    server = authorities.ensure_server(config.server_names(), now, hub_time)
    return server, authorities.ensure_client(HUB_NAME, now, hub_time)


def newest(store: Path) -> datetime:
    """The latest hub time that this hub ever stored: devices have heard of it, whatever this machine's clock says."""
    try:
        with contextlib.closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            kept_ms = opened.execute("select max(kept_ms) from effects").fetchone()[0]
    except sqlite3.Error:  # none yet; one that is damaged is said where it is opened
        return EPOCH
    return EPOCH + timedelta(milliseconds=kept_ms or 0)


def found(config_file: Path, bundles: Sequence[Path], policies: Sequence[bytes]) -> bytes:
    """Lay the hub's state folder and publish bundles, policies and the hub's keys. Returns root 1. Under a second."""
    config = load(config_file)
    with Lock(config.state_dir().prepare().root):
        ground = lay(config)
        card = HubCard(config.hub.name, config.hub.region, ground.keys.hpke_public, ground.keys.signing_public)
        return found_demo(ground.repository, card, bundles, policies, utc_now())
