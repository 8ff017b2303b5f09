"""A hub for a demo in one call, before its process starts: keys, certificates and an update repository that is full.

Rule: root and targets keys are drawn in memory and forgotten, so nobody can ever change that root: no real fleet.
"""

from collections.abc import Sequence
from pathlib import Path

from cloud_hub.config import load
from cloud_hub.ground import lay
from cloud_hub.keys import HubCard
from cloud_hub.pki import utc_now
from cloud_hub.publish import found_demo
from wire.daemon import Lock


def found(config_file: Path, bundles: Sequence[Path], policies: Sequence[bytes]) -> bytes:
    """Lay the hub's state folder and publish bundles, policies and the hub's keys. Returns root 1. Under a second."""
    config = load(config_file)
    with Lock(config.state_dir().prepare().root):
        ground = lay(config)
        card = HubCard(config.hub.name, config.hub.region, ground.keys.hpke_public, ground.keys.signing_public)
        return found_demo(ground.repository, card, bundles, policies, utc_now())
