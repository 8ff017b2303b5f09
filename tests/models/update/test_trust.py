"""Tests of the pure trust rules: what a floor is, when it holds, and that nothing below it passes."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuf.api import exceptions

from models.bundle.manifest import BundleError
from models.update.downloader import UnreachableError
from models.update.trust import (
    MAX_VERSION,
    TIME_FLOOR,
    TrustedRole,
    VerifiedRefresh,
    VersionFloor,
    check_refresh,
    check_target_version,
    classify_failure,
    compute_raised_floors,
    count_frozen_polls,
    find_stale,
    floor_name_of,
    is_target_path,
    lift_clock,
)
from wire.protocol.rollout import InstallFailure

HUB = frozenset({"hub"})
OTHER = frozenset({"other"})
HOUR_MS = 1_800_000_000_000


def roles(timestamp=HUB, snapshot=HUB, threshold=1):
    return {"timestamp": TrustedRole(timestamp, threshold), "snapshot": TrustedRole(snapshot, threshold)}


def seen(root=1, timestamp=1, snapshot=1, targets=1, signed_ms=0, keys=None, signers=HUB, **more):
    versions = {"timestamp": timestamp, "snapshot": snapshot, "meta/targets.json": targets, **more}
    signed = {"timestamp": signers, "snapshot": signers}
    return VerifiedRefresh(root, keys or roles(), versions, signed, signed_ms, HOUR_MS * 2)


def floors(*after):
    found: dict[str, VersionFloor] = {}
    for each in after:
        found |= {floor.name: floor for floor in compute_raised_floors(found, each)}
        found["root"] = VersionFloor("root", each.root)
    return found


versions = st.integers(1, 50)
any_seen = st.builds(seen, root=versions, timestamp=versions, snapshot=versions, targets=versions)


@given(any_seen, any_seen)
def test_whatever_came_first_nothing_lower_passes_after_it(first, second):
    lower = second.root < first.root or any(second.versions[name] < first.versions[name] for name in first.versions)
    refusal = check_refresh(floors(first), second)
    assert (refusal is not None) == lower
    assert refusal is None or refusal.failure is InstallFailure.ROLLBACK


@given(st.lists(any_seen, min_size=1, max_size=6))
def test_a_floor_only_rises_while_its_keys_stay(steps):
    held: dict[str, VersionFloor] = {}
    for step in steps:
        before = dict(held)
        if check_refresh(held, step) is None:
            held |= {floor.name: floor for floor in compute_raised_floors(held, step)}
        assert all(held[name].version >= before[name].version for name in before)


def test_a_repeated_refresh_changes_nothing_and_so_costs_no_write():
    assert compute_raised_floors(floors(seen(timestamp=7)), seen(timestamp=7)) == ()


def test_keys_withdrawn_by_a_root_void_what_they_had_said():
    held = floors(seen(timestamp=99999, snapshot=99999, targets=99999, keys=roles()))
    recovered = seen(2, timestamp=1, snapshot=1, targets=1, keys=roles(OTHER, OTHER), signers=OTHER)
    assert check_refresh(held, recovered) is None
    assert {floor.name: floor.version for floor in compute_raised_floors(held, recovered)}["timestamp"] == 1


def test_new_timestamp_keys_do_not_void_what_the_snapshot_said():
    held = floors(seen(targets=9))
    refusal = check_refresh(held, seen(2, targets=8, keys=roles(timestamp=OTHER)))
    assert refusal
    assert refusal.detail.startswith("meta/targets.json 8")


def test_a_key_that_is_added_voids_nothing():
    held = floors(seen(timestamp=9))
    assert check_refresh(held, seen(2, timestamp=8, keys=roles(HUB | OTHER, HUB)))


def test_an_older_root_is_refused_even_if_it_would_void_everything_else():
    held = floors(seen(5))
    refusal = check_refresh(held, seen(4, keys=roles(OTHER, OTHER)))
    assert refusal
    assert refusal.detail.startswith("root 4")


def test_a_role_that_vanishes_from_the_snapshot_is_a_rollback():
    held = floors(seen(**{"meta/policy.json": 3}))
    refusal = check_refresh(held, seen(timestamp=2))
    assert refusal
    assert "meta/policy.json is gone" in refusal.detail


def test_the_same_key_under_two_ids_does_not_make_a_threshold_of_two():
    refusal = check_refresh({}, seen(keys=roles(threshold=2)))
    assert refusal
    assert refusal.failure is InstallFailure.INTEGRITY


def test_a_version_beyond_counting_is_refused_before_it_becomes_a_floor():
    refusal = check_refresh({}, seen(timestamp=MAX_VERSION + 1))
    assert refusal
    assert refusal.failure is InstallFailure.INTEGRITY


def test_cached_files_below_their_floor_are_named_before_a_refresh():
    held = floors(seen(timestamp=5, targets=5))
    cached = {"timestamp": 4, "snapshot": 1, "meta/targets.json": 4, "meta/stranger.json": 1}
    assert find_stale(held, roles(), cached) == ("timestamp", "meta/targets.json")
    assert find_stale(held, roles(OTHER, OTHER), cached) == ()


def test_the_hour_is_never_before_what_is_known_to_have_passed():
    held = floors(seen(signed_ms=HOUR_MS))
    assert lift_clock(0, 0, held, roles()) == HOUR_MS
    assert lift_clock(0, HOUR_MS + 5, held, roles()) == HOUR_MS + 5
    assert lift_clock(HOUR_MS + 9, 0, held, roles()) == HOUR_MS + 9
    assert lift_clock(5, 0, held, roles(timestamp=OTHER)) == 5  # the key that said so was withdrawn
    assert lift_clock(5, 0, {}, {}) == 5


@pytest.mark.parametrize("signed_ms", [0, -5, HOUR_MS * 2, HOUR_MS * 3])
def test_an_online_key_cannot_say_an_hour_beyond_what_the_offline_keys_signed_for(signed_ms):
    assert TIME_FLOOR not in {floor.name for floor in compute_raised_floors({}, seen(signed_ms=signed_ms))}


def test_a_target_below_its_floor_is_refused_until_its_role_has_new_keys():
    floor = VersionFloor("target/policy/demo.toml", 5, HUB)
    old = check_target_version(floor, TrustedRole(HUB, 1), "policy/demo.toml", 4)
    assert old
    assert old.failure is InstallFailure.ROLLBACK
    assert check_target_version(floor, TrustedRole(OTHER, 1), "policy/demo.toml", 4) is None
    assert check_target_version(floor, TrustedRole(HUB, 1), "policy/demo.toml", 5) is None


@pytest.mark.parametrize("version", [0, -1, MAX_VERSION + 1])
def test_a_target_without_a_possible_version_is_refused(version):
    assert check_target_version(None, TrustedRole(HUB, 1), "policy/demo.toml", version)


def test_a_target_of_a_role_with_a_faked_threshold_is_refused():
    assert check_target_version(None, TrustedRole(HUB, 2), "policy/demo.toml", 1)


def test_all_bundles_of_a_family_stand_on_one_floor():
    assert (
        floor_name_of("models/digits/digits-7.skb")
        == floor_name_of("models/digits/digits-8.skb")
        == "target/models/digits"
    )
    assert floor_name_of("policy/demo.toml") == "target/policy/demo.toml"


HOSTILE = ["../../x", "/etc/passwd", "policy/a\0b", "policy/" + "a" * 300, "policy/demо.toml", "policy/../keys/x.json"]
HOSTILE += [
    "policy//x",
    "policy/.hidden",
    "policy/x/",
    "x",
    "",
    "policy/X.toml",
    "policy/a b",
    "a/b/c/d/e/f",
    "policy\\x",
]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_path_that_is_not_plainly_ours_is_refused(path):
    assert not is_target_path(path)


@pytest.mark.parametrize("path", ["policy/demo.toml", "keys/eu-1.json", "models/digits/digits-7.skb"])
def test_paths_of_ours_fit(path):
    assert is_target_path(path)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (exceptions.ExpiredMetadataError(), InstallFailure.FREEZE),
        (exceptions.BadVersionNumberError(), InstallFailure.ROLLBACK),
        (exceptions.EqualVersionNumberError(), InstallFailure.ROLLBACK),
        (exceptions.UnsignedMetadataError(), InstallFailure.INTEGRITY),
        (exceptions.LengthOrHashMismatchError(), InstallFailure.INTEGRITY),
        (exceptions.DownloadLengthMismatchError(), InstallFailure.INTEGRITY),
        (exceptions.SlowRetrievalError(), InstallFailure.SLOW_RETRIEVAL),
        (exceptions.DownloadHTTPError("", 503), InstallFailure.NETWORK),
        (UnreachableError(), InstallFailure.NETWORK),
        (FileNotFoundError(), InstallFailure.DISK),
        (sqlite3.OperationalError(), InstallFailure.DISK),
        (BundleError(), InstallFailure.INTEGRITY),
        (ZeroDivisionError(), InstallFailure.INTERNAL),
    ],
)
def test_each_exception_has_its_class(error, failure):
    assert classify_failure(error) is failure


def test_only_expired_metadata_counts_towards_the_alarm_and_only_success_clears_it():
    polls = [
        InstallFailure.FREEZE,
        InstallFailure.NETWORK,
        InstallFailure.FREEZE,
        InstallFailure.ROLLBACK,
        None,
        InstallFailure.FREEZE,
    ]
    counted, before = [], 0
    for failure in polls:
        before = count_frozen_polls(before, failure)
        counted.append(before)
    assert counted == [1, 1, 2, 2, 0, 1]
