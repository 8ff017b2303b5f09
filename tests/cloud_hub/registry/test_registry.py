"""Registry of devices: invites, enrolment, states, and what survives a restart."""

import os
import stat
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cloud_hub.registry.device_states import DeviceState
from cloud_hub.registry.registry import (
    DeviceInvitation,
    DeviceKeys,
    EnrolledDevice,
    InviteFault,
    Registry,
    RegistryError,
    split_device_id,
)

DEVICE = "demo--cam-1"
HOUR_S = 3600.0
DAY_MS = 86_400_000


def keys(serial: str = "1") -> DeviceKeys:
    signing = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    hpke = X25519PrivateKey.generate().public_key().public_bytes_raw()
    return DeviceKeys(signing, hpke, serial, 7 * DAY_MS)


@pytest.fixture
def registry(urls):
    opened = Registry.open(urls.registry)
    yield opened
    opened.close()


def enrolled(registry: Registry, device: str = DEVICE, now_ms: int = 0) -> EnrolledDevice:
    found = registry.enrol(registry.invite(device, now_ms, HOUR_S).token, keys(), now_ms)
    assert isinstance(found, EnrolledDevice)
    return found


def test_invited_device_becomes_active_and_survives_a_restart(registry, urls):
    device = enrolled(registry)
    assert registry.device(DEVICE) == device
    assert device.active
    assert device.tenant == "demo"
    again = Registry.open(urls.registry)
    found = again.device(DEVICE)
    again.close()
    assert found is not None
    assert found.signing_key.public_bytes_raw() == device.signing_key.public_bytes_raw()


def test_unknown_device_is_none(registry):
    assert registry.device("demo--nobody") is None


def test_token_used_twice_is_refused_and_changes_nothing(registry):
    token = registry.invite(DEVICE, 0, HOUR_S).token
    first = registry.enrol(token, keys("1"), 0)
    assert registry.enrol(token, keys("2"), 1) is InviteFault.USED
    assert registry.device(DEVICE) == first


def test_token_expired_is_refused_at_its_last_millisecond(registry):
    token = registry.invite(DEVICE, 0, 1.0).token
    assert registry.open_invite(token, 999) == DEVICE
    assert registry.enrol(token, keys(), 1000) is InviteFault.EXPIRED
    assert registry.device(DEVICE) is None


def test_guessed_token_is_unknown(registry):
    registry.invite(DEVICE, 0, HOUR_S)
    assert registry.enrol("x" * 43, keys(), 0) is InviteFault.UNKNOWN
    assert registry.enrol("", keys(), 0) is InviteFault.UNKNOWN


def test_a_stolen_database_holds_no_token(tmp_path):
    registry = Registry.open(tmp_path / "devices.db")
    token = registry.invite(DEVICE, 0, HOUR_S).token
    registry.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert DEVICE.encode() in stored
    assert token.encode() not in stored


@pytest.mark.parametrize(
    "attack",
    [
        "+",
        "#",
        "a/b",
        "",
        "a" * 65,
        "$SYS",
        "tür--1",
        "hub",
        "demo--",
        "--cam",
        "demo--a--b",
        "Demo--cam",
        "demo--cam\n",
    ],
)
def test_an_id_that_may_not_stand_in_a_topic_is_never_invited(registry, attack):
    with pytest.raises(RegistryError):
        registry.invite(attack, 0, HOUR_S)
    assert registry.count_open_invites(0) == 0


def test_the_longest_id_is_invited(registry):
    longest = "demo--" + "a" * 58
    assert registry.invite(longest, 0, HOUR_S).device == longest
    assert split_device_id(longest) == ("demo", "a" * 58)


def test_suspended_device_comes_back_and_revoked_does_not(registry):
    enrolled(registry)
    assert not registry.set_state(DEVICE, DeviceState.SUSPENDED, 5).active
    assert registry.device(DEVICE).changed_ms == 5
    assert registry.set_state(DEVICE, DeviceState.ACTIVE, 6).active
    registry.set_state(DEVICE, DeviceState.REVOKED, 7)
    with pytest.raises(RegistryError, match="for good"):
        registry.set_state(DEVICE, DeviceState.ACTIVE, 8)
    assert registry.device(DEVICE).state is DeviceState.REVOKED


def test_state_survives_a_restart(registry, urls):
    enrolled(registry)
    registry.set_state(DEVICE, DeviceState.SUSPENDED, 5)
    again = Registry.open(urls.registry)
    found = again.device(DEVICE)
    again.close()
    assert found is not None
    assert found.state is DeviceState.SUSPENDED


def test_state_of_an_unknown_device_is_refused(registry):
    with pytest.raises(RegistryError, match="no device"):
        registry.set_state(DEVICE, DeviceState.SUSPENDED, 5)


def test_suspended_device_cannot_slip_back_through_an_old_invite(registry):
    enrolled(registry)
    old = registry.invite(DEVICE, 0, HOUR_S).token
    registry.set_state(DEVICE, DeviceState.SUSPENDED, 5)
    assert registry.enrol(old, keys(), 6) is InviteFault.BLOCKED
    with pytest.raises(RegistryError, match="suspended"):
        registry.invite(DEVICE, 7, HOUR_S)


def test_second_enrolment_replaces_the_keys(registry):
    first = enrolled(registry)
    second = enrolled(registry, now_ms=9)
    assert second.signing_key.public_bytes_raw() != first.signing_key.public_bytes_raw()
    assert registry.devices() == (second,)


def test_expired_invites_are_forgotten_after_a_day(registry):
    registry.invite(DEVICE, 0, 1.0)
    registry.invite(DEVICE, DAY_MS + 2000, 1.0)
    assert registry.count_open_invites(0) == 1


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_its_log_of_devices_is_as_private_as_the_file(tmp_path, umask):
    """The first connection came before the file's mode was set: `devices.db-wal` could be read by everybody."""
    path = tmp_path / "devices.db"
    before = os.umask(umask)
    try:
        for _ in range(2):
            open_one = Registry.open(path)
            open_one.invite(DeviceInvitation(DEVICE), 0, HOUR_S)
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
            assert modes == dict.fromkeys(("devices.db", "devices.db-shm", "devices.db-wal", "devices.mark"), 0o600)
            open_one.close()
            (tmp_path / "devices.db-wal").touch(0o644)  # as an older program left it
    finally:
        os.umask(before)


class LateRegistry(Registry):
    """Of a hub that has read an invite, and is then late."""

    late: Any = None

    def _find_invite(self, token):
        return self.late or super()._find_invite(token)


def test_of_two_hubs_that_are_given_one_invite_at_once_one_enrols(registry, urls):
    """Both had read it as unused; the second would have given the device other keys."""
    invite = registry.invite(DEVICE, 0, HOUR_S)
    other = LateRegistry.open(urls.registry)
    assert isinstance(other, LateRegistry)
    other.late = other._find_invite(invite.token)
    assert registry.enrol(invite.token, first := keys(), 1) == registry.device(DEVICE)
    assert other.enrol(invite.token, keys(), 2) is InviteFault.USED
    other.close()
    again = Registry.open(urls.registry)
    found = again.device(DEVICE)
    again.close()
    assert found is not None
    assert found.signing_key.public_bytes_raw() == first.signing


def test_what_an_invite_says_of_a_device_is_what_the_registry_knows_of_it(registry, urls):
    invite = registry.invite(DeviceInvitation(DEVICE, device_class="camera", region="eu-de"), 0, HOUR_S)
    registry.enrol(invite.token, keys(), 0)
    again = Registry.open(urls.registry)
    found = again.device(DEVICE)
    again.close()
    assert found is not None
    assert (found.device_class, found.region) == ("camera", "eu-de")
