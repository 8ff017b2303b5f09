"""Life cycle of a device in the registry: hardware limits, retirement, clone suspicion, lost replies, old schemas."""

import sqlite3

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cloud_hub.registry.device_states import DeviceState, StateReason
from cloud_hub.registry.registry import (
    DeviceInvitation,
    DeviceKeys,
    EnrolledDevice,
    InviteFault,
    Registry,
    RegistryError,
)
from wire.process.exit_codes import ExitError

DEVICE = "demo--cam-1"
HOUR_S = 3600.0
SCHEMA_1 = """
create table meta(key text primary key, value text);
insert into meta values('schema', '1');
create table devices(id text primary key, state text not null, signing_key blob not null, hpke_key blob not null,
    serial text not null, certificate_ends_ms integer not null, enrolled_ms integer not null,
    changed_ms integer not null);
create table invites(token_hash blob primary key, device text not null, created_ms integer not null,
    expires_ms integer not null, used_ms integer);
"""


def keys(hardware: str = "", **changes: str) -> DeviceKeys:
    signing = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    hpke = X25519PrivateKey.generate().public_key().public_bytes_raw()
    return DeviceKeys(signing, hpke, "1", 7, hardware=hardware, **changes)


@pytest.fixture
def registry(urls):
    opened = Registry.open(urls.registry)
    yield opened
    opened.close()


def enrolled(registry: Registry) -> EnrolledDevice:
    found = registry.enrol(registry.invite(DEVICE, 0, HOUR_S).token, keys(), 0)
    assert isinstance(found, EnrolledDevice)
    return found


def test_an_invite_for_one_machine_is_refused_to_another(registry):
    token = registry.invite(DeviceInvitation(DEVICE, ("SN-1", "SN-2")), 0, HOUR_S).token
    assert registry.enrol(token, keys("SN-3"), 0) is InviteFault.HARDWARE
    assert registry.enrol(token, keys(), 0) is InviteFault.HARDWARE
    found = registry.enrol(token, keys("SN-2"), 0)
    assert isinstance(found, EnrolledDevice)
    assert found.hardware == "SN-2"


@pytest.mark.parametrize("serial", ["", "a" * 65, "SN\n1", "Sériel"])
def test_a_serial_number_no_maker_prints_is_refused(registry, serial):
    with pytest.raises(RegistryError, match="serial number"):
        registry.invite(DeviceInvitation(DEVICE, (serial,)), 0, HOUR_S)


def test_a_lost_reply_can_be_asked_for_again_by_the_same_key_alone(registry):
    token = registry.invite(DEVICE, 0, HOUR_S).token
    mine = keys()
    first = registry.enrol(token, mine, 0)
    again = registry.enrol(token, mine, 5)
    assert isinstance(first, EnrolledDevice)
    assert isinstance(again, EnrolledDevice)
    assert again.signing_key.public_bytes_raw() == mine.signing
    assert registry.enrol(token, keys(), 6) is InviteFault.USED
    assert registry.enrol(token, mine, int(HOUR_S * 1000)) is InviteFault.EXPIRED


@pytest.mark.parametrize("state", [DeviceState.SUSPENDED, DeviceState.RETIRED, DeviceState.REVOKED])
@pytest.mark.parametrize("replace", [False, True])
def test_a_used_token_brings_nobody_back(registry, state, replace):
    mine = keys()
    token = registry.invite(DeviceInvitation(DEVICE, replace=replace), 0, HOUR_S).token
    registry.enrol(token, mine, 0)
    registry.set_state(DEVICE, state, 1)
    assert registry.enrol(token, mine, 2) is InviteFault.USED
    assert registry.device(DEVICE).state is state


def test_a_suspended_device_enrols_anew_only_where_a_person_said_so(registry):
    enrolled(registry)
    registry.set_state(DEVICE, DeviceState.SUSPENDED, 1)
    with pytest.raises(RegistryError, match="--replace"):
        registry.invite(DEVICE, 2, HOUR_S)
    token = registry.invite(DeviceInvitation(DEVICE, replace=True), 2, HOUR_S).token
    fresh = keys()
    found = registry.enrol(token, fresh, 3)
    assert isinstance(found, EnrolledDevice)
    assert (found.state, found.signing_key.public_bytes_raw()) == (DeviceState.ACTIVE, fresh.signing)


def test_a_suspect_is_suspended_named_and_told_apart(registry, urls):
    enrolled(registry)
    assert registry.suspect(DEVICE, 5)
    assert not registry.suspect(DEVICE, 6)
    assert not registry.suspect("demo--nobody", 6)
    assert registry.list_suspects() == (DEVICE,)
    again = Registry.open(urls.registry)
    assert again.list_suspects() == (DEVICE,)
    found = again.device(DEVICE)
    again.close()
    assert found is not None
    assert (found.state, found.why) == (DeviceState.SUSPENDED, StateReason.CLONE_SUSPECT)
    registry.set_state(DEVICE, DeviceState.ACTIVE, 7)
    assert registry.list_suspects() == ()


def test_retirement_drains_and_ends_by_itself(registry):
    enrolled(registry)
    device = registry.set_state(DEVICE, DeviceState.RETIRING, 1000, drain_s=60.0)
    assert (device.heard, device.gone, device.retire_at_ms) == (True, False, 61_000)
    assert registry.end_retirements(60_999) == ()
    assert registry.end_retirements(61_000) == (DEVICE,)
    found = registry.device(DEVICE)
    assert (found.state, found.why, found.gone) == (DeviceState.RETIRED, StateReason.RETIREMENT_OVER, True)


def test_a_retiring_device_may_be_wanted_back(registry):
    enrolled(registry)
    registry.set_state(DEVICE, DeviceState.RETIRING, 0, drain_s=60.0)
    assert registry.set_state(DEVICE, DeviceState.ACTIVE, 1).retire_at_ms == 0
    assert registry.end_retirements(10**12) == ()


def test_a_device_that_retires_itself_leaves_the_hash_of_its_ledger(registry):
    enrolled(registry)
    found = registry.record_retirement(DEVICE, "ab" * 32, 5)
    assert (found.state, found.why, found.ledger) == (DeviceState.RETIRED, StateReason.DEVICE, "ab" * 32)


def test_the_name_of_a_retired_device_is_free_for_another_machine(registry):
    enrolled(registry)
    registry.set_state(DEVICE, DeviceState.RETIRED, 1)
    found = registry.enrol(registry.invite(DEVICE, 2, HOUR_S).token, keys(), 3)
    assert isinstance(found, EnrolledDevice)
    assert found.active
    registry.set_state(DEVICE, DeviceState.REVOKED, 4)
    with pytest.raises(RegistryError, match="revoked"):
        registry.invite(DEVICE, 5, HOUR_S)


def test_a_renewal_changes_the_certificate_and_nothing_else(registry):
    before = enrolled(registry)
    after = registry.record_renewal(DEVICE, DeviceKeys(b"", b"", "2", 99, "ca"))
    assert (after.serial, after.certificate_ends_ms, after.authority) == ("2", 99, "ca")
    assert (after.signing_key, after.hpke_key, after.changed_ms) == (
        before.signing_key,
        before.hpke_key,
        before.changed_ms,
    )


def test_a_file_of_the_first_schema_is_migrated_with_all_it_holds(tmp_path):
    path = tmp_path / "devices.db"
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA_1)
    signing, hpke = keys().signing, keys().hpke
    connection.execute("insert into devices values(?,'suspended',?,?,'1',7,1,2)", (DEVICE, signing, hpke))
    connection.commit()
    connection.close()
    for _ in range(2):  # and a migrated file opens like any other
        registry = Registry.open(path)
        found = registry.device(DEVICE)
        assert found is not None
        assert (found.state, found.why, found.authority) == (DeviceState.SUSPENDED, "", "")
        registry.close()


def test_a_migration_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "devices.db"
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA_1 + "alter table invites add column replace integer;")
    connection.close()
    for _ in range(2):
        with pytest.raises(ExitError, match="duplicate column"):
            Registry.open(path)
    connection = sqlite3.connect(path)
    assert connection.execute("select value from meta").fetchone() == ("1",)
    assert len(connection.execute("pragma table_info(devices)").fetchall()) == 8
    connection.close()
