"""Tests of key thresholds, rotations, and the recovery after online keys were stolen."""

import pytest

from tests.models.doubles.repository import Repository, signer
from tests.models.doubles.road import open_update_client
from wire.protocol.rollout import InstallFailure


@pytest.fixture
def road(tmp_path):
    with open_update_client(tmp_path / "trust") as road:
        yield road


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_a_role_signed_by_another_roles_key_is_refused(road, role):
    road.repo.keys[role] = road.repo.keys["snapshot" if role != "snapshot" else "timestamp"]
    road.repo.publish_all()
    road.refused(InstallFailure.INTEGRITY, "signed by 0/1")


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_one_signature_of_two_is_refused_and_two_are_accepted(road, role):
    second = road.repo.add_key(role)
    road.repo.root.roles[role].threshold = 2
    road.repo.publish("root")
    road.repo.keys[role] = [second]
    road.repo.publish_all()
    road.refused(InstallFailure.INTEGRITY, "signed by 1/2")
    assert road.version("root") == 2
    road.repo.keys[role].append(1 + ["root", "targets", "snapshot", "timestamp"].index(role))
    road.repo.publish_all()
    road.refresh()


@pytest.mark.parametrize("role", ["root", "timestamp", "snapshot", "targets"])
def test_unsigned_metadata_stops_the_refresh_where_it_is(road, role):
    road.repo.keys[role] = []
    road.repo.publish(*(("root",) if role == "root" else ("targets", "snapshot", "timestamp")))
    road.refused(InstallFailure.INTEGRITY, "signed by 0/1")
    order = ["root", "timestamp", "snapshot", "targets"]
    assert list(road.versions()) == sorted(order[: max(1, order.index(role))])
    assert road.version("root") == 1


def test_more_keys_wanted_than_there_are_is_refused(road):
    road.repo.root.roles["snapshot"].threshold = 6
    for _ in range(4):
        road.repo.add_key("snapshot")
    road.repo.publish("root")
    road.repo.publish_all()
    road.refused(InstallFailure.INTEGRITY, "5/6")


def test_one_key_id_listed_twice_is_refused(road):
    data = road.repo.root
    data.roles["snapshot"].keyids *= 2
    data.roles["snapshot"].threshold = 2
    road.repo.publish("root")
    road.repo.publish_all()
    road.refused(InstallFailure.INTEGRITY)


def test_one_key_under_two_ids_is_refused(road):
    """Key ids are free text; TUF counts them, we count keys."""
    root, key = road.repo.root, signer(road.repo.keys["snapshot"][0]).public_key
    root.keys["another-id"] = type(key)("another-id", key.keytype, key.scheme, key.keyval)
    root.roles["snapshot"].keyids.append("another-id")
    root.roles["snapshot"].threshold = 2
    road.repo.publish("root")
    snapshot = road.repo.md["snapshot"]
    road.repo.publish("snapshot")
    first = next(iter(snapshot.signatures.values()))
    snapshot.signatures["another-id"] = type(first)("another-id", first.signature)
    road.repo.files["metadata/3.snapshot.json"] = snapshot.to_bytes()
    road.repo.publish("timestamp")
    road.refused(InstallFailure.INTEGRITY, "snapshot: 1 different keys, threshold 2")


def test_a_root_that_skips_a_version_is_refused_and_in_order_it_is_accepted(road):
    road.repo.publish("root")
    second = road.repo.files["metadata/2.root.json"]
    road.repo.publish("root")
    road.mirror.files = road.repo.files | {"metadata/2.root.json": road.repo.files["metadata/3.root.json"]}
    road.refused(InstallFailure.ROLLBACK, "root version 2")
    road.mirror.files = road.repo.files | {"metadata/2.root.json": second}
    road.refresh()
    assert road.version("root") == 3


# keys, threshold and signatures of each root in turn; the last one is accepted or not
ROOTS = {
    "rotated": ([([1], 1, [1]), ([2], 1, [2, 1]), ([2], 1, [2])], True),
    "strangers may sign too": ([([1], 1, [3, 1, 4]), ([2], 1, [3, 2, 1, 4]), ([2], 1, [3, 2, 4])], True),
    "other three of five": ([([1, 2, 3, 4, 5], 3, [1, 3, 5]), ([1, 2, 3, 4, 5], 3, [1, 5, 2])], True),
    "one of five rotated": ([([1, 2, 3, 4, 5], 3, [1, 3, 5]), ([1, 2, 4, 5, 6], 3, [1, 5, 2])], True),
    "all of five rotated": ([([1, 2, 3, 4, 5], 3, [1, 3, 5]), ([6, 7, 8, 9, 10], 3, [1, 3, 5, 6, 7, 8])], True),
    "threshold up": ([([1, 2, 3], 1, [1]), ([1, 2, 3], 2, [1, 2])], True),
    "threshold down": ([([1, 2, 3], 2, [1, 2]), ([1, 2, 3], 1, [1, 2]), ([1, 2, 3], 1, [1])], True),
    "a second key wanted": ([([1], 1, [1]), ([1, 2], 2, [1, 2])], True),
    "not by the old key": ([([1], 1, [1]), ([2], 1, [2, 3, 4])], False),
    "not by the new key": ([([1], 1, [1]), ([2], 1, [1, 3, 4])], False),
    "two of three new": ([([1, 2, 3, 4, 5], 3, [1, 3, 5]), ([1, 2, 4, 5, 6], 3, [1, 3, 5])], False),
    "two of three old": ([([1, 2, 3, 4, 5], 3, [1, 3, 5]), ([1, 2, 4, 5, 6], 3, [1, 5, 6])], False),
    "threshold up, not met": ([([1, 2, 3], 1, [1]), ([1, 2, 3], 2, [2])], False),
    "threshold down, old not met": ([([1, 2, 3], 2, [1, 2]), ([1, 2, 3], 1, [1])], False),
}


@pytest.mark.parametrize("name", ROOTS)
def test_root_rotations(tmp_path, name):
    steps, accepted = ROOTS[name]
    repo = Repository()
    first = 100
    repo.root.version = 0
    for keys, threshold, signatures in steps:
        repo.root.roles["root"].keyids.clear()
        repo.root.roles["root"].threshold = threshold
        for key in keys:
            repo.root.add_key(signer(first + key).public_key, "root")
        repo.keys["root"] = [first + key for key in signatures]
        repo.publish("root")
    with open_update_client(tmp_path / "trust", repo) as road:
        if accepted:
            road.refresh()
        else:
            road.refused(InstallFailure.INTEGRITY, "root was signed by")
        assert road.version("root") == road.floor("root") == len(steps) - (not accepted)


ONLINE = {
    "rotated": ([2], 1, [2], True),
    "strangers sign too": ([1], 1, [3, 1, 4], True),
    "not by the new key": ([2], 1, [1, 3, 4], False),
    "three of five": ([1, 2, 3, 4, 5], 3, [2, 3, 4], True),
    "two of three": ([1, 2, 4, 5, 6], 3, [1, 5], False),
    "three, but two are listed": ([1, 2, 4, 5, 6], 3, [1, 3, 5], False),
}


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_rotations_of_other_roles(road, role, name):
    keys, threshold, signatures, accepted = ONLINE[name]
    road.refresh()
    road.repo.root.roles[role].keyids.clear()
    road.repo.root.roles[role].threshold = threshold
    for key in keys:
        road.repo.root.add_key(signer(100 + key).public_key, role)
    road.repo.keys[role] = [100 + key for key in signatures]
    road.repo.publish("root")
    road.repo.publish_all()
    if accepted:
        road.refresh()
        assert road.version(role) == 3
    else:
        road.refused(InstallFailure.INTEGRITY, f"{role} was signed by")


@pytest.mark.parametrize("lost", [False, True])
def test_fast_forward_of_the_timestamp_is_undone_by_a_root_with_new_keys(road, lost):
    road.repo.timestamp.version = 99999
    road.repo.put("timestamp")
    road.refresh()
    assert road.floor("timestamp") == 99999
    road.repo.rotate("timestamp")
    road.repo.publish("root")
    road.repo.timestamp.version = 3
    road.repo.put("timestamp")
    if lost:
        road.lose_cache(zeroed=True)
    road.refresh()
    assert road.version("timestamp") == road.floor("timestamp") == 3


@pytest.mark.parametrize("lost", [False, True])
def test_fast_forward_of_the_snapshot_is_undone_by_new_keys_for_it_and_the_timestamp(road, lost):
    road.repo.snapshot.version = 99999
    road.repo.put("snapshot")
    road.repo.publish("timestamp")
    road.refresh()
    road.repo.snapshot.version = 3
    road.repo.rotate("snapshot")
    road.repo.publish("root")
    road.repo.put("snapshot")
    road.repo.publish("timestamp")
    road.refused(InstallFailure.ROLLBACK)  # the timestamp said 99999, and its keys are still good
    road.repo.rotate("timestamp")
    road.repo.publish("root", "timestamp")
    if lost:
        road.lose_cache(zeroed=True)
    road.refresh()
    assert road.version("snapshot") == road.floor("snapshot") == 3


@pytest.mark.parametrize("lost", [False, True])
def test_fast_forward_of_targets_is_undone_by_new_snapshot_keys(road, lost):
    road.repo.targets().version = 99999
    road.repo.put("targets")
    road.repo.publish("snapshot", "timestamp")
    road.refresh()
    road.repo.targets().version = 3
    road.repo.put("targets")
    road.repo.rotate("snapshot")
    road.repo.publish("root", "snapshot", "timestamp")
    if lost:
        road.lose_cache(zeroed=True)
    road.refresh()
    assert road.version("targets") == road.floor("meta/targets.json") == 3


def test_after_a_recovery_the_new_floor_holds(road):
    road.repo.timestamp.version = 99999
    road.repo.put("timestamp")
    road.refresh()
    road.repo.rotate("timestamp")
    road.repo.publish("root")
    road.repo.timestamp.version = 5
    road.repo.put("timestamp")
    road.refresh()
    road.lose_cache(zeroed=True)
    road.repo.timestamp.version = 4
    road.repo.put("timestamp")
    road.refused(InstallFailure.ROLLBACK, "timestamp 4, seen before: 5")


def test_a_crash_between_the_caches_and_the_floors_heals_at_the_next_refresh(road):
    """The cache holds the recovered timestamp, the floors still the stolen one and the old root."""
    road.repo.timestamp.version = 99999
    road.repo.put("timestamp")
    road.refresh()
    floors = {path.name: path.read_bytes() for path in road.folder.glob("floors.db*")}
    road.repo.rotate("timestamp")
    road.repo.publish("root")
    road.repo.timestamp.version = 5
    road.repo.put("timestamp")
    road.refresh()
    for name, data in floors.items():
        (road.folder / name).write_bytes(data)
    road.refresh()
    assert road.floor("timestamp") == 5
