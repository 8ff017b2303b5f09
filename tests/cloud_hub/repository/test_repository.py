"""The TUF repository on disk: installing requests, refusals, renewal, and crash safety."""

import os
import threading

import pytest
from tuf.api.metadata import Metadata, Snapshot, Targets, Timestamp

from cloud_hub.repository.repository import Repository
from models.signing import ceremony
from models.signing.request import RequestError, SigningRequest, add_signatures, build_successor
from models.signing.roles import SMALL_THRESHOLDS
from tests.cloud_hub.doubles.fleet import NOW, Device, Holder, Hub, carried, days
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError

DEMO = "policy/demo.toml"


@pytest.fixture
def hub(tmp_path):
    return Hub(tmp_path / "hub")


@pytest.fixture
def holder(tmp_path, hub):
    hub.install(Holder.begin(tmp_path / "ring", hub.export(hold=("policy",))))
    return Holder(tmp_path / "ring")


@pytest.fixture
def device(tmp_path, hub, holder):
    return Device(tmp_path / "device", hub)


def names(hub):
    return {path.name for path in hub.repository.shelf.metadata.iterdir()}


def versions(hub):
    return {role: metadata.signed.version for role, metadata in hub.repository.current_metadata().items()}


def test_before_the_first_root_there_is_nothing_and_nothing_can_be_published(hub):
    assert not hub.repository.has_root
    assert hub.repository.read_root() == b""
    assert hub.repository.current_metadata() == {}
    assert hub.repository.renew_expiring(NOW) == ()
    with pytest.raises(RequestError, match="no root yet"):
        hub.publish(1)


def test_the_first_request_makes_a_repository_that_a_device_accepts(hub, holder, device):
    assert device.sees(DEMO) == 0
    assert versions(hub) == dict.fromkeys(
        ("root", "targets", "snapshot", "timestamp", "keys", "policy", "models-echo"), 1
    )
    hub.publish(1)
    assert device.sees(DEMO) == 1


def test_a_second_first_root_is_refused(tmp_path, hub, holder, device):
    with pytest.raises(RequestError, match="has root 1 already"):
        Holder.begin(tmp_path / "other", hub.export())


def test_expiries_are_those_of_the_table(hub, holder):
    left = {role: (found.signed.expires - NOW).days for role, found in hub.repository.current_metadata().items()}
    assert left["root"] == 365
    assert left["targets"] == 180
    assert (left["snapshot"], left["timestamp"]) == (30, 7)
    assert left["models-echo"] == left["policy"] == left["keys"] == 90


def test_a_snapshot_never_mixes_two_times(hub, holder):
    """Every file the timestamp leads to is there, with the hash it is promised with."""
    for version in range(1, 6):
        hub.publish(version)
        shelf = hub.repository.shelf
        timestamp = Metadata[Timestamp].from_bytes(shelf.read_metadata("timestamp.json")).signed
        snapshot = shelf.read_metadata(f"{timestamp.snapshot_meta.version}.snapshot.json")
        timestamp.snapshot_meta.verify_length_and_hashes(snapshot)
        for name, meta in Metadata[Snapshot].from_bytes(snapshot).signed.meta.items():
            meta.verify_length_and_hashes(shelf.read_metadata(f"{meta.version}.{name}"))
            assert (
                Metadata[Targets].from_bytes(shelf.read_metadata(f"{meta.version}.{name}")).signed.version
                == meta.version
            )


def test_targets_signed_by_one_of_two_is_refused(tmp_path, hub, holder, device):
    holder.give(tmp_path / "other", "targets-2")
    before = names(hub)
    request = holder.sign(ceremony.renew_roles(hub.export(), ("targets",), NOW))
    with pytest.raises(RequestError, match="targets 2 is not signed by enough keys"):
        hub.install(request)
    assert names(hub) == before


def test_a_key_listed_twice_makes_no_threshold(tmp_path, hub):
    """The same key under two ids, once in root and once in a delegation."""
    state = hub.export()
    request = Holder.begin(tmp_path / "ring", state)
    root = request.root
    first, second = root.roles["targets"].keyids
    root.keys[second].keyval = dict(root.keys[first].keyval)
    with pytest.raises(RequestError, match="targets: a key is listed twice"):
        hub.repository.install_request(request, NOW)


def test_one_signature_under_two_ids_counts_once(tmp_path, hub, holder):
    """Signatures are an object by key id, and only ids that the role lists are looked at."""
    holder.give(tmp_path / "other", "targets-2")
    request = holder.sign(ceremony.renew_roles(hub.export(), ("targets",), NOW))
    (keyid,) = request.changes["targets"].signatures
    other = next(each for each in request.root.roles["targets"].keyids if each != keyid)
    request.changes["targets"].signatures[other] = request.changes["targets"].signatures[keyid]
    with pytest.raises(RequestError, match="not signed by enough keys"):
        hub.repository.install_request(request, NOW)


def test_a_root_cannot_be_skipped_and_two_in_order_are_followed(hub, holder, device):
    second = holder.rotate(hub.export(), "root", drop=("root-3",))
    ahead = hub.copy(hub.folder.parent / "ahead")
    ahead.install(second)
    third = Holder(holder.ring.folder).rotate(ahead.export(), "root", drop=("root-4",))
    with pytest.raises(RequestError, match="root 3 where root 2 comes next"):
        hub.install(third)
    assert device.poll()
    hub.install(second)
    hub.install(third)
    hub.publish(1)
    assert device.sees(DEMO) == 1
    assert "3.root.json" in names(hub)


def test_a_root_that_names_foreign_online_keys_is_refused(tmp_path, hub):
    """A hub that could not sign the timestamp would be silent in a week."""
    stranger = Hub(tmp_path / "stranger")
    with pytest.raises(RequestError, match="a key for snapshot that this hub does not have"):
        hub.install(Holder.begin(tmp_path / "ring", stranger.export()))


def test_what_is_listed_must_be_here(tmp_path, hub):
    """A request made at another hub would send devices after bytes that nobody serves."""
    hub.install(Holder.begin(tmp_path / "ring", hub.export()))
    holder = Holder(tmp_path / "ring")
    published = hub.publish(1)
    assert published.request is not None
    for path in (hub.folder / "repository" / "targets").rglob("*.toml"):
        path.unlink()
    with pytest.raises(RequestError, match=r"policy/demo.toml: its bytes are not at this hub"):
        hub.install(holder.sign(published.request))


def test_an_offline_role_waits_for_its_signature_and_devices_see_nothing_of_it(tmp_path, hub):
    hub.install(Holder.begin(tmp_path / "ring", hub.export(), SMALL_THRESHOLDS))
    device = Device(tmp_path / "device", hub)
    published = hub.publish(1)
    assert published.request is not None
    with pytest.raises(RequestError, match="policy 2 is not signed by enough keys"):
        hub.install(published.request)
    assert device.sees(DEMO) == 0
    hub.install(Holder(tmp_path / "ring").sign(carried(published.request)))
    assert device.sees(DEMO) == 1


def test_two_requests_for_the_same_version_the_second_is_refused(tmp_path, hub):
    hub.install(Holder.begin(tmp_path / "ring", hub.export(), SMALL_THRESHOLDS))
    holder = Holder(tmp_path / "ring")
    one, other = hub.publish(1).request, hub.publish(2).request
    hub.install(holder.sign(one))
    with pytest.raises(RequestError, match="the hub went on meanwhile"):
        hub.install(holder.sign(other))


def test_a_request_is_installed_on_what_the_hub_has_not_on_what_it_says(tmp_path, hub, holder):
    """A forged base in the file changes nothing: only the new versions in it are read."""
    request = holder.sign(ceremony.renew_roles(hub.export(), ("targets",), NOW))
    forged = SigningRequest(hub.export(), request.changes)
    forged.state.base["targets"].signed.version = 99
    hub.install(forged)
    assert versions(hub)["targets"] == 2


def test_the_timestamp_is_signed_daily_the_snapshot_in_its_last_third(hub, holder, device):
    assert hub.repository.renew_expiring(days(0.9)) == ()
    assert hub.repository.renew_expiring(days(1)) == ("timestamp",)
    assert versions(hub)["snapshot"] == 1
    assert device.poll(days(7)) is not None
    assert set(hub.repository.renew_expiring(days(20))) == {"snapshot", "timestamp"}
    assert set(hub.repository.renew_expiring(days(60))) == {"snapshot", "timestamp", "keys", "policy"}
    assert device.poll(days(65)) is not None


def test_the_hub_says_in_time_what_only_people_can_sign(hub, holder):
    assert hub.repository.expiring_roles(days(59)) == {}
    assert set(hub.repository.expiring_roles(days(60))) == {"models-echo"}
    assert set(hub.repository.expiring_roles(days(250))) == {"models-echo", "targets", "root"}


def test_old_versions_go_roots_and_what_devices_read_stay(hub, holder):
    for version in range(1, 8):
        hub.publish(version)
    kept = sorted(int(name.split(".")[0]) for name in names(hub) if name.endswith(".policy.json"))
    assert kept == [6, 7, 8]
    hub.install(holder.rotate(hub.export(), "root", drop=("root-3",)))
    assert {"1.root.json", "2.root.json", "1.targets.json"} <= names(hub)


def test_targets_that_nobody_lists_go_after_a_month(hub, holder):
    for version in range(1, 6):
        hub.publish(version)
    old = NOW.timestamp() - 31 * 86_400
    for path in (hub.folder / "repository" / "targets").rglob("*.toml"):
        os.utime(path, (old, old))
    hub.publish(6)
    left = list((hub.folder / "repository" / "targets").rglob("*.toml"))
    assert len(left) == 3


def test_two_writers_take_turns(hub, holder):
    """A command beside the running hub: nothing is lost, whoever is first."""
    threads = [threading.Thread(target=Hub(hub.folder).publish, args=(1,)) for _ in range(2)]
    threads += [threading.Thread(target=Hub(hub.folder).repository.renew_expiring, args=(days(1),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions(hub)["policy"] == 2
    assert versions(hub)["timestamp"] >= 2


def test_a_writer_that_never_ends_is_not_waited_for_for_ever(hub, holder):
    repository = Repository(hub.folder / "repository", hub.repository.online, patience_s=0.1)
    with FolderLock(hub.folder / "repository"), pytest.raises(ExitError) as stop:
        repository.renew_expiring(days(1))
    assert stop.value.code is ExitCode.LOCKED


def test_a_damaged_file_is_said_and_nothing_is_signed_over_it(hub, holder):
    path = hub.repository.shelf.metadata / "1.targets.json"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ExitError) as stop:
        hub.publish(1)
    assert stop.value.code is ExitCode.DATABASE


def test_installing_the_same_request_again_changes_nothing(hub, holder):
    """Installing the same request twice is harmless."""
    request = holder.rotate(hub.export(), "root", drop=("root-3",))
    hub.install(request)
    before = versions(hub)
    hub.install(request)
    assert versions(hub) == before


def test_a_foreign_signature_of_another_role_does_not_count(hub, holder):
    """The policy key signs the family's files."""
    fresh: Metadata[Targets] = build_successor(hub.export().base["models-echo"])
    request = SigningRequest(hub.export(), {"models-echo": fresh})
    (key,) = hub.repository.online.load_signers(hub.repository.read_state().targets.delegations.roles["policy"].keyids)
    assert add_signatures(request, [key]) == []
    fresh.sign(key, append=True)
    with pytest.raises(RequestError, match="not signed by enough keys"):
        hub.install(request)
