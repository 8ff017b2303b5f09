"""A hub for a demo in one call, before its process starts: keys, certificates and an update repository that is full.

Rule: root and targets keys are drawn in memory and forgotten, so nobody can ever change that root: no real fleet.
"""

from collections.abc import Sequence
from pathlib import Path

from cloud_hub.repository.publish import found_demo
from cloud_hub.runtime.config import load
from cloud_hub.runtime.merging_bootstrap_ground import lay
from cloud_hub.security.authority import utc_now
from cloud_hub.security.hub_keys import HubCard
from wire.process.daemon import Lock


def found(config_file: Path, bundles: Sequence[Path], policies: Sequence[bytes]) -> bytes:
    """Lay the hub's state folder and publish bundles, policies and the hub's keys. Returns root 1. Under a second."""
    config = load(config_file)
    with Lock(config.state_dir().prepare().root):
        ground = lay(config)
        card = HubCard(config.hub.name, config.hub.region, ground.keys.hpke_public, ground.keys.signing_public)
        return found_demo(ground.repository, card, bundles, policies, utc_now())
