"""A hostile or broken repository against the whole client: what is refused, how it is called, what is left on disk.

The list is that of the public TUF client conformance suite and of docs/attacks.md.
"""

import json

import pytest

from models.update.floors import FLOORS_FILE, FloorDatabase
from tests.models.doubles.repository import Repository, days, signer
from tests.models.doubles.road import DAY_S, open_update_client
from wire.protocol.rollout import InstallFailure


@pytest.fixture
def road(tmp_path):
    with open_update_client(tmp_path / "trust") as road:
        yield road


def test_first_refresh_asks_in_order_and_keeps_what_it_verified(road):
    road.refresh()
    assert road.mirror.asked == ["2.root", "timestamp", "2.snapshot", "2.targets"]
    assert road.versions() == {"root": 1, "snapshot": 2, "targets": 2, "timestamp": 2}


def test_a_steady_refresh_is_two_requests(road):
    road.refresh()
    road.refresh()
    assert road.mirror.asked[4:] == ["2.root", "timestamp"]
    assert road.fetcher.requests == 2


def test_an_older_timestamp_is_a_rollback(road):
    old = road.repo.copy()
    road.repo.publish_all()
    road.refresh()
    road.mirror.files = old
    road.refused(InstallFailure.ROLLBACK)
    assert road.version("timestamp") == 3


def test_the_same_version_with_other_content_changes_nothing(road):
    road.refresh()
    road.repo.timestamp.snapshot_meta.version = 100
    road.repo.put("timestamp")
    road.refresh()
    assert road.mirror.asked[-1] == "timestamp"


def test_an_expired_timestamp_is_a_freeze_and_the_second_poll_alarms(road):
    road.refresh()
    road.at_s += 8 * DAY_S
    alarms = []
    for _ in range(3):
        road.refused(InstallFailure.FREEZE)
        errand = road.errand()
        with FloorDatabase(road.folder) as db:
            alarms.append(db.read_note("frozen_polls"))
    assert alarms == [1, 2, 3]
    assert not errand.alarm  # it has not polled yet
    road.repo.timestamp.expires = days(30)
    road.repo.publish("timestamp")
    errand.refresh()
    assert errand.frozen_polls == 0


@pytest.mark.parametrize("role", ["root", "timestamp", "snapshot", "targets"])
def test_any_expired_role_is_a_freeze_and_is_not_believed(road, role):
    road.refresh()
    before = road.versions()
    road.repo.md[role].signed.expires = days(-1)
    road.repo.publish(*(("root",) if role == "root" else ("targets", "snapshot", "timestamp")))
    road.refused(InstallFailure.FREEZE)
    accepted = {"root"} if role == "root" else {"timestamp", "snapshot"}
    assert all(road.version(name) == before[name] for name in before.keys() - accepted)
    assert road.floor("timestamp") == 2


def test_an_expired_cache_is_still_a_start(road):
    road.refresh()
    road.repo.timestamp.expires = days(21)
    road.repo.publish_all()
    road.at_s += 18 * DAY_S
    road.refresh()
    assert road.version("timestamp") == 3


def test_an_expired_root_in_the_middle_of_the_chain_is_no_obstacle(road):
    road.repo.root.expires = days(-1)
    road.repo.publish("root")
    road.repo.root.expires = days(365)
    road.repo.publish("root")
    road.refresh()
    assert road.version("root") == 3


def test_a_snapshot_from_another_time_is_refused(road):
    old_snapshot = road.repo.files["metadata/2.snapshot.json"]
    road.repo.publish_all()
    road.repo.files["metadata/3.snapshot.json"] = old_snapshot
    road.refused(InstallFailure.ROLLBACK, "snapshot")
    assert road.versions() == {"root": 1, "timestamp": 3}


def test_targets_from_another_time_are_refused(road):
    old_targets = road.repo.files["metadata/2.targets.json"]
    road.repo.publish_all()
    road.repo.files["metadata/3.targets.json"] = old_targets
    road.refused(InstallFailure.ROLLBACK, "targets")
    assert road.version("targets") == 0


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("role", ["snapshot", "targets"])
def test_a_newer_timestamp_cannot_bring_an_older_role(tmp_path, role, hashed):
    with open_update_client(tmp_path / "trust", Repository(hashed=hashed)) as road:
        road.repo.publish_all()
        road.refresh()
        road.repo.md[role].signed.version = 1
        road.repo.put(role)
        road.repo.publish(*(("timestamp",) if role == "snapshot" else ("snapshot", "timestamp")))
        road.refused(InstallFailure.ROLLBACK)
        assert road.version(role) == 3


@pytest.mark.parametrize("role", ["snapshot", "targets"])
def test_content_that_is_not_the_promised_hash_is_refused(tmp_path, role):
    with open_update_client(tmp_path / "trust", Repository(hashed=True)) as road:
        road.repo.md[role].signed.unrecognized_fields["other"] = 1
        data = road.repo.files.copy()
        road.repo.put(role)
        road.mirror.files = data | {f"metadata/2.{role}.json": road.repo.files[f"metadata/2.{role}.json"]}
        road.refused(InstallFailure.INTEGRITY)
        assert road.version(role) == 0


def test_targets_the_snapshot_does_not_name_yet_are_not_fetched(road):
    road.refresh()
    road.repo.publish("targets")
    road.refresh()
    assert road.version("targets") == 2


def test_a_role_that_vanishes_is_refused(road):
    road.repo.delegate("policy", ["policy/*"])
    road.repo.publish_all("policy", "targets")
    road.refresh()
    del road.repo.snapshot.meta["policy.json"]
    road.repo.publish("snapshot", "timestamp")
    road.refused(InstallFailure.INTEGRITY)
    road.lose_cache(zeroed=False)
    road.refused(InstallFailure.ROLLBACK, "gone")


@pytest.mark.further
def test_two_hundred_root_rotations_are_caught_up_in_one_refresh(road):
    road.refresh()
    for _ in range(200):
        road.repo.rotate("root")
        road.repo.publish("root")
        road.repo.keys["root"] = road.repo.keys["root"][:1]
    road.refresh()
    assert road.version("root") == road.floor("root") == 201
    road.refresh()
    assert road.fetcher.requests == 2


def test_an_endless_chain_of_roots_stops_at_the_limit_and_goes_on_next_time(road):
    for _ in range(300):
        road.repo.publish("root")
    road.refresh()
    assert road.version("root") == 257
    assert road.fetcher.requests <= 260
    road.refresh()
    assert road.version("root") == 301


@pytest.mark.parametrize("zeroed", [True, False])
def test_an_older_repository_is_refused_by_our_own_floor_when_the_cache_is_lost(road, zeroed):
    old = road.repo.copy()
    road.repo.publish_all()
    road.refresh()
    road.lose_cache(zeroed=zeroed)
    road.mirror.files = old
    road.refused(InstallFailure.ROLLBACK, "seen before: 3")
    assert (road.version("timestamp"), road.version("snapshot"), road.version("targets")) == (0, 0, 0)
    road.refused(InstallFailure.ROLLBACK, "seen before: 3")  # nor does a second try find an older start
    road.mirror.files = road.repo.files
    road.refresh()
    assert road.version("timestamp") == 3


def test_an_older_cache_planted_beside_the_floor_is_not_even_a_start(road):
    road.refresh()
    planted = {path: path.read_bytes() for path in road.folder.glob("*.json") if not path.is_symlink()}
    old = road.repo.copy()
    road.repo.publish_all()
    road.refresh()
    url, road.mirror.url = road.mirror.url, "http://127.0.0.1:1/"
    for path, data in planted.items():
        path.write_bytes(data)
    road.refused(InstallFailure.NETWORK)
    assert (road.version("timestamp"), road.version("snapshot"), road.version("targets")) == (0, 0, 0)
    road.mirror.url = url
    for path, data in planted.items():
        path.write_bytes(data)
    road.mirror.files = old
    road.refused(InstallFailure.ROLLBACK)


def test_an_older_root_with_the_keys_it_had_does_not_void_the_floor(road):
    old = road.repo.copy()
    road.repo.rotate("timestamp")
    road.repo.rotate("snapshot")
    road.repo.publish("root")
    road.repo.publish_all()
    road.refresh()
    road.lose_cache(zeroed=False)
    road.mirror.files = old
    road.refused(InstallFailure.INTEGRITY)  # we begin with the root we kept: the old keys sign nothing any more


def test_the_floors_alone_lost_leave_what_tuf_itself_protects(road):
    old = road.repo.copy()
    road.repo.publish_all()
    road.refresh()
    (road.folder / FLOORS_FILE).write_bytes(b"\0" * 4096)
    road.mirror.files = old
    road.refused(InstallFailure.ROLLBACK)


def test_a_hub_away_for_thirty_days_stops_nothing_but_installs_and_one_poll_recovers(road):
    road.refresh()
    road.at_s += 30 * DAY_S
    files, road.mirror.files = road.mirror.files, {}
    road.refused(InstallFailure.NETWORK)
    road.mirror.files = files
    road.refused(InstallFailure.FREEZE)
    for role, day in (("timestamp", 37), ("snapshot", 60)):
        road.repo.md[role].signed.expires = days(day)
    road.repo.publish("snapshot", "timestamp")
    road.refresh()


def test_no_one_there_is_the_network_and_not_an_attack(road):
    road.mirror.url = "http://127.0.0.1:1/"
    road.refused(InstallFailure.NETWORK)


@pytest.mark.parametrize("at", ["metadata/timestamp.json", "metadata/2.snapshot.json", "metadata/2.targets.json"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"signed":{}}', b"[" * 100_000])
def test_bytes_that_are_no_metadata_are_refused(road, at, body):
    road.mirror.files = road.repo.files | {at: body}
    road.refused(InstallFailure.INTEGRITY)


def test_one_role_served_as_another_is_refused(road):
    road.mirror.files = road.repo.files | {"metadata/timestamp.json": road.repo.files["metadata/2.snapshot.json"]}
    road.refused(InstallFailure.INTEGRITY)


@pytest.mark.parametrize("at", ["metadata/timestamp.json", "metadata/2.snapshot.json", "metadata/2.targets.json"])
def test_a_missing_role_is_the_network(road, at):
    road.mirror.files = {path: data for path, data in road.repo.files.items() if path != at}
    road.refused(InstallFailure.NETWORK, "404")


def test_unknown_fields_are_signed_and_kept(road):
    road.refresh()
    road.repo.root.unrecognized_fields["field"] = "value"
    road.repo.root.roles["root"].unrecognized_fields["field"] = {"a": [1, 2]}
    road.repo.publish("root")
    road.refresh()
    assert json.loads((road.folder / "root.json").read_bytes())["signed"]["field"] == "value"


def test_an_unsigned_first_root_is_refused_before_a_request(road):
    broken = json.loads(road.root)
    broken["signatures"][0]["sig"] = "00" * 64
    road.root = json.dumps(broken).encode()
    road.refused(InstallFailure.INTEGRITY)
    assert road.mirror.requests == []


@pytest.mark.parametrize("root", [b"", b"{}", b"no root", "timestamp"])
def test_a_first_root_that_is_none_is_refused_before_a_request(road, root):
    road.root = road.repo.files["metadata/timestamp.json"] if root == "timestamp" else root
    road.refused(InstallFailure.INTEGRITY)
    assert road.mirror.requests == []


def test_a_version_beyond_counting_is_refused_and_leaves_no_floor(road):
    road.refresh()
    road.repo.timestamp.version = 2**70
    road.repo.put("timestamp")
    road.refused(InstallFailure.INTEGRITY, "beyond counting")
    assert road.floor("timestamp") == 2


def test_a_second_signer_number_is_another_key():
    assert signer(1).public_key.keyid == signer(1).public_key.keyid != signer(2).public_key.keyid
