"""A hub restored from an old backup: devices that saw more of it follow it, and it forgets no rule about versions."""

from pathlib import Path

import pytest

from cloud_hub.repository.repository import RESTORE_JUMP
from cloud_hub.security import hub_keys
from models.update.client import RefusedError
from models.update.trust import MAX_VERSION
from tests.cloud_hub.doubles.fleet import Device, Holder, Hub, days
from wire.protocol.rollout import InstallFailure

DEMO = "policy/demo.toml"


@pytest.fixture
def hub(tmp_path):
    hub = Hub(tmp_path / "hub")
    hub.install(Holder.begin(tmp_path / "ring", hub.export(hold=("policy",))))
    hub.publish(1)
    return hub


@pytest.fixture
def device(tmp_path, hub):
    found = Device(tmp_path / "device", hub)
    assert found.sees(DEMO) == 1
    return found


def test_devices_refuse_an_old_backup_as_it_is_and_follow_one_that_was_restored(tmp_path, hub, device):
    old = hub.copy(tmp_path / "old")
    for day in range(1, 30):
        hub.repository.renew_expiring(days(day))
    assert device.sees(DEMO, days(30)) == 1
    device.reads = old
    with pytest.raises(RefusedError) as refused:
        device.poll(days(30))
    assert refused.value.refusal.failure is InstallFailure.ROLLBACK
    roles = old.repository.raise_versions(days(30))
    assert {"timestamp", "snapshot", "policy", "keys"} <= set(roles)
    assert device.sees(DEMO, days(30)) == 1
    old.publish(2, days(30))
    assert device.sees(DEMO, days(30)) == 2


def test_a_thousand_restores_leave_numbers_for_years():
    assert 1000 * RESTORE_JUMP < MAX_VERSION / 1_000_000


def test_a_restored_hub_has_a_key_number_that_it_never_gave(tmp_path: Path):
    folder = tmp_path / "keys"
    first = hub_keys.load_or_create_keys(folder)
    hub_keys.add_key_after_restore(folder)
    again = hub_keys.load_or_create_keys(folder)
    assert hub_keys.newest_key_number(folder) == 1 + hub_keys.RESTORE_JUMP
    assert first.current in again.hpke  # what was sealed to it opens still
    assert again.current != first.current


def test_a_hub_without_a_root_has_nothing_to_raise(tmp_path):
    assert Hub(tmp_path / "new").repository.raise_versions(days(0)) == ()
