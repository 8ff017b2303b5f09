"""A hub with keys, bundles and policies published, made in one call."""

from collections.abc import Sequence
from pathlib import Path

from cloud_hub.repository.publish import create_demo_repository
from cloud_hub.runtime.bootstrap import open_state
from cloud_hub.runtime.config import load_hub_config
from cloud_hub.security.authority import utc_now
from cloud_hub.security.hub_keys import HubCard
from wire.process.daemon import FolderLock


def create_demo_hub(config_file: Path, bundles: Sequence[Path], policies: Sequence[bytes]) -> bytes:
    """Create a demo hub: its state folder, bundles, policies and the hub's keys published. Returns root 1."""
    config = load_hub_config(config_file)
    with FolderLock(config.state_dir().prepare().root):
        ground = open_state(config)
        card = HubCard(config.hub.name, config.hub.region, ground.keys.hpke_public, ground.keys.signing_public)
        return create_demo_repository(ground.repository, card, bundles, policies, utc_now())
