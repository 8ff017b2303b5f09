"""Weekly rotation of the HPKE key: after two weeks nothing sealed to an old key can be opened."""

import shutil
from pathlib import Path

import pytest

from cloud_hub.runtime.maintenance import DAY_MS, HubKeyRotation
from cloud_hub.security.hub_keys import HubCard, HubKeys, load_or_create_keys

NOW_MS = 1_800_000_000_000


class Hub:
    """Records the keys that were applied."""

    def __init__(self, folder: Path) -> None:
        self.keys = load_or_create_keys(folder)
        self.card = HubCard("hub-1", "local", self.keys.hpke_public, self.keys.signing_public)
        self.change = HubKeyRotation(folder, self.card, self.apply)

    def apply(self, keys: HubKeys, card: HubCard) -> None:
        self.keys, self.card = keys, card


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    hub = Hub(tmp_path / "keys")
    assert hub.change.rotate_if_due(NOW_MS) is None
    return hub


def test_a_key_changes_after_a_week_and_the_old_one_opens_for_another(hub: Hub):
    first = hub.keys.current
    assert hub.change.rotate_if_due(NOW_MS + 7 * DAY_MS - 1) is None
    turned = hub.change.rotate_if_due(NOW_MS + 7 * DAY_MS)
    assert turned is not None
    assert (turned[0].hpke_key, turned[1]) == (hub.keys.hpke_public, 2)
    assert first in hub.keys.hpke
    assert hub.keys.current != first


def test_after_a_fortnight_a_key_is_on_no_disk_any_more(hub: Hub, tmp_path: Path):
    first = hub.keys.current
    secret = hub.keys.hpke[first].private_bytes_raw()
    hub.change.rotate_if_due(NOW_MS + 7 * DAY_MS)
    hub.change.rotate_if_due(NOW_MS + 14 * DAY_MS)
    assert first not in hub.keys.hpke
    assert len(hub.keys.hpke) == 2
    assert first not in load_or_create_keys(tmp_path / "keys").hpke
    assert not any(secret in path.read_bytes() for path in tmp_path.rglob("*.key"))


def test_a_folder_that_was_copied_back_makes_no_old_key_young(hub: Hub, tmp_path: Path):
    first = hub.keys.current
    shutil.copytree(tmp_path / "keys", tmp_path / "backup")
    hub.change.rotate_if_due(NOW_MS + 7 * DAY_MS)
    restored = Hub(tmp_path / "backup")
    restored.change.rotate_if_due(NOW_MS + 15 * DAY_MS)  # it changes at once ...
    assert restored.keys.current != first
    restored.change.rotate_if_due(NOW_MS + 15 * DAY_MS + 1)  # ... and what is too old goes with the next look
    assert first not in restored.keys.hpke


def test_a_hub_that_was_off_for_months_keeps_a_key_that_is_told(hub: Hub):
    hub.change.rotate_if_due(NOW_MS + 200 * DAY_MS)
    hub.change.rotate_if_due(NOW_MS + 200 * DAY_MS + 1)
    assert list(hub.keys.hpke) == [hub.keys.current]
    assert hub.card.hpke_key == hub.keys.hpke_public


def test_a_clock_that_went_back_destroys_nothing(hub: Hub):
    hub.change.rotate_if_due(NOW_MS + 7 * DAY_MS)
    held = set(hub.keys.hpke)
    assert hub.change.rotate_if_due(NOW_MS) is None
    assert set(hub.keys.hpke) == held
