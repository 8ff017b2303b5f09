"""Loss of each signing key as a drill: what an attacker can do, how people recover, what a device accepts."""

import pytest
from tuf.api.metadata import Metadata, Targets

from cloud_hub.repository.publish import publish_hub_keys
from models.signing.ceremony import list_offline_roles, renew_roles
from models.signing.request import (
    RepositoryState,
    RequestError,
    SigningRequest,
    add_signatures,
    build_successor,
    encode_metadata,
)
from models.signing.roles import SMALL_THRESHOLDS
from models.update.client import RefusedError
from tests.cloud_hub.doubles.fleet import CARD, NOW, Device, Holder, Hub, carried, days
from wire.protocol.rollout import InstallFailure

DEMO = "policy/demo.toml"


@pytest.fixture
def hub(tmp_path):
    return Hub(tmp_path / "hub")


@pytest.fixture
def holder(tmp_path, hub):
    """All keys in one place; the policy role at the hub, so that publishing needs nobody."""
    hub.install(Holder.begin(tmp_path / "ring", hub.export(hold=("policy",))))
    return Holder(tmp_path / "ring")


@pytest.fixture
def device(tmp_path, hub, holder):
    hub.publish(1)
    found = Device(tmp_path / "device", hub)
    assert found.sees(DEMO) == 1
    return found


def test_one_root_key_of_three_lost_the_other_two_replace_it(hub, holder, device):
    (holder.ring.folder / "root-3.key").unlink()
    hub.install(holder.rotate(hub.export(), "root", drop=("root-3",)))
    hub.publish(2)
    assert device.sees(DEMO) == 2
    names = [key.name for key in holder.ring.key_files() if key.role == "root"]
    assert names == ["root-1", "root-2", "root-4"]


def test_two_root_keys_of_three_lost_no_request_can_ever_be_complete(tmp_path, hub, holder, device):
    """The end of a repository: devices serve on, a new root needs a new enrolment."""
    holder.give(tmp_path / "sea", "root-2", "root-3")
    request = holder.rotate(hub.export(), "root", drop=("root-2", "root-3"))
    with pytest.raises(RequestError, match="root 2 is not signed by enough keys"):
        hub.install(request)
    hub.publish(2)
    assert device.sees(DEMO) == 2


def test_a_stolen_root_key_alone_makes_no_root(tmp_path, hub, holder, device):
    thief = holder.give(tmp_path / "thief", "root-3")
    request = thief.rotate(hub.export(), "root", drop=("root-1", "root-2"))
    with pytest.raises(RequestError, match="not signed by enough keys"):
        hub.install(request)


def test_stolen_targets_keys_are_worthless_once_root_has_replaced_them(tmp_path, hub, holder, device):
    thief = hub.copy(tmp_path / "thief")  # hub and targets keys stolen at once: the worst there is but root
    stolen = [holder.key("targets-1"), holder.key("targets-2")]
    hub.install(holder.rotate(hub.export(new=("snapshot", "timestamp")), "targets", "snapshot", "timestamp"))
    hub.publish(2)
    assert device.sees(DEMO) == 2
    _sign_over_everything(thief, stolen)
    Device(tmp_path / "naive", thief).poll()  # until root says otherwise, it is what the keys say
    _serve_our_roots(hub, thief)
    device.reads = thief
    with pytest.raises(RefusedError) as refused:
        device.poll()
    assert refused.value.refusal.failure is InstallFailure.INTEGRITY
    device.reads = hub
    assert device.sees(DEMO) == 2


def _sign_over_everything(thief, stolen):
    """Delegate the policies to a key of the thief, and publish a policy with it."""
    state = thief.repository.read_state()
    evil = Holder.begin(thief.folder / "ring", RepositoryState(state.online), SMALL_THRESHOLDS)
    targets: Metadata[Targets] = build_successor(state.base["targets"])
    targets.signed.delegations = evil.targets.delegations
    for signer in stolen:
        targets.sign(signer, append=True)
    with thief.repository.write_lock():
        thief.repository._commit_changes(state, {"targets": targets}, NOW)


def _serve_our_roots(hub, thief):
    for number, data in enumerate(hub.repository.shelf.read_roots(), start=1):
        (thief.repository.shelf.metadata / f"{number}.root.json").write_bytes(data)


def test_one_targets_key_of_two_lost_root_replaces_it(hub, holder, device):
    (holder.ring.folder / "targets-2.key").unlink()
    hub.install(holder.rotate(hub.export(), "targets", drop=("targets-2",)))
    assert device.sees(DEMO) == 1


def test_stolen_timestamp_key_runs_the_versions_away_and_new_online_keys_heal_it(tmp_path, hub, holder, device):
    """Fast-forward attack (TUF specification 5.3.11): the thief makes every honest timestamp look old."""
    thief = hub.copy(tmp_path / "thief")
    timestamp = Metadata.from_bytes(thief.repository.shelf.read_metadata("timestamp.json"))
    timestamp.signed.version = 10**6
    timestamp.signatures.clear()
    for signer in thief.repository.online.load_signers(timestamp_keys(hub)):
        timestamp.sign(signer, append=True)
    thief.repository.shelf.write_metadata({"timestamp.json": encode_metadata(timestamp)})
    device.reads = thief
    device.poll()
    device.reads = hub
    hub.publish(2)
    with pytest.raises(RefusedError) as refused:
        device.poll()
    assert refused.value.refusal.failure is InstallFailure.ROLLBACK
    hub.install(holder.rotate(hub.export(new=("timestamp", "snapshot")), "timestamp", "snapshot"))
    assert device.sees(DEMO) == 2
    device.reads = thief
    _serve_our_roots(hub, thief)
    with pytest.raises(RefusedError):
        device.poll()


def timestamp_keys(hub):
    return hub.repository.read_state().root.roles["timestamp"].keyids


def test_the_old_online_keys_are_destroyed_once_nothing_names_them(hub, holder):
    old = timestamp_keys(hub)
    assert hub.repository.online.load_signers(old)
    hub.install(holder.rotate(hub.export(new=("timestamp",)), "timestamp"))
    assert hub.repository.online.load_signers(old) == []
    assert hub.repository.online.load_signers(timestamp_keys(hub))


def test_the_hub_machine_is_lost_its_repository_lives_on_from_a_mirror(tmp_path, hub, holder, device):
    """Only public files were copied; every online key is new, and the people say so."""
    mirrored = hub.copy(tmp_path / "mirrored")
    for path in (mirrored.folder / "online").iterdir():
        path.unlink()
    fresh = mirrored.export(hold=("policy",))
    mirrored.install(holder.rotate(fresh, "snapshot", "timestamp", "keys", "policy"))
    mirrored.publish(2)
    publish_hub_keys(mirrored.repository, CARD, 1, NOW)
    device.reads = mirrored
    assert device.sees(DEMO) == 2


def test_an_old_backup_of_the_hub_is_refused_until_its_online_keys_are_replaced(tmp_path, hub, holder, device):
    backup = hub.copy(tmp_path / "backup")
    for version in (2, 3):
        hub.publish(version)
    assert device.sees(DEMO) == 3
    device.reads = backup
    with pytest.raises(RefusedError) as refused:
        device.poll()
    assert refused.value.refusal.failure is InstallFailure.ROLLBACK
    backup.install(holder.rotate(backup.export(new=("snapshot", "timestamp")), "snapshot", "timestamp"))
    device.poll()
    backup.publish(4)
    assert device.sees(DEMO) == 4


def test_a_stolen_family_key_is_replaced_without_root(tmp_path, hub, holder, device):
    thief = holder.key("models-echo-1")
    for number in (1, 2, 3):
        (holder.ring.folder / f"root-{number}.key").unlink()
    hub.install(holder.rotate(hub.export(), "models-echo"))
    device.poll()
    state = hub.export()
    fresh = build_successor(state.base["models-echo"])
    fresh.sign(thief, append=True)
    with pytest.raises(RequestError, match="models-echo 3 is not signed by enough keys"):
        hub.install(SigningRequest(state, {"models-echo": fresh}))


def test_the_second_targets_key_lies_elsewhere_and_the_request_travels(tmp_path, hub, holder, device):
    other = holder.give(tmp_path / "other", "targets-2", "root-2", "root-3")
    request = holder.rotate(hub.export(), "models-echo")
    with pytest.raises(RequestError, match="targets 2 is not signed by enough keys"):
        hub.install(request)
    hub.install(other.sign(carried(request)))
    assert device.sees(DEMO) == 1


def test_stolen_snapshot_key_cannot_sign_targets(hub, holder):
    state = hub.export()
    fresh = build_successor(state.base["targets"])
    request = SigningRequest(state, {"targets": fresh})
    snapshot = hub.repository.online.load_signers(hub.repository.read_state().root.roles["snapshot"].keyids)
    assert add_signatures(request, snapshot) == []
    fresh.sign(snapshot[0], append=True)
    with pytest.raises(RequestError, match="targets 2 is not signed by enough keys"):
        hub.install(request)


def test_a_year_without_people_stops_new_things_not_the_hub(hub, holder, device):
    """Root expires after 365 days: the hub goes on signing its own, a device refuses to install, renewing heals."""
    late = days(366)
    hub.repository.renew_expiring(late)
    with pytest.raises(RefusedError) as refused:
        device.poll(late)
    assert refused.value.refusal.failure is InstallFailure.FREEZE
    state = hub.export()
    hub.install(holder.sign(renew_roles(state, list_offline_roles(state), late)), late)
    assert device.sees(DEMO, late) == 1
