"""Tests of assignment rules: alone, then on real metadata with real floors and permits."""

import json
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.signing.roles import Permit, read_permit
from models.update.assignments import (
    HeldAssignment,
    InstallTarget,
    ListedBundle,
    RepositoryView,
    check_assignment,
    resolve_assignment,
)
from models.update.client import RefusedError
from models.update.floors import FloorDatabase
from models.update.trust import Refusal, VersionFloor
from tests.models.doubles.road import UpdateClientHarness, open_update_client
from wire.protocol.rollout import Assignment, InstallFailure, RolloutCohort

DEVICE, NOW_MS = "acme--cam-7", 1_000_000_000_000
OLD, NEW = ListedBundle(2, "2" * 64), ListedBundle(3, "3" * 64)
LISTED = {"models/digits/digits-2.skb": OLD, "models/digits/digits-3.skb": NEW}
HOUR_MS = 3_600_000


def to(number, **changes):
    """An assignment of a version, five hours long."""
    said = {
        "epoch": 0,
        "device": DEVICE,
        "counter": 10 + number,
        "issued_ms": NOW_MS,
        "expires_ms": NOW_MS + 5 * HOUR_MS,
        "rollout": "r1",
        "family": "digits",
        "path": f"models/digits/digits-{number}.skb",
        "version": number,
        "digest": str(number) * 64,
    }
    return Assignment(**{**said, **changes})


def failure(found):
    assert isinstance(found, Refusal), found
    return found.failure


def test_an_assignment_of_ours_chooses_a_listed_target():
    assert check_assignment(to(3), HeldAssignment(DEVICE), NOW_MS) is None
    assert resolve_assignment(to(3), RepositoryView(LISTED, floor=2, running=OLD), NOW_MS) == InstallTarget(
        to(3).path, 3, "3" * 64
    )


@pytest.mark.parametrize("device", ["acme--cam-8", "evil--cam-7", "cam-7", ""])
def test_an_assignment_for_another_device_or_tenant_is_refused(device):
    assert failure(check_assignment(to(3, device=device), HeldAssignment(DEVICE), NOW_MS)) is InstallFailure.INTEGRITY


@pytest.mark.parametrize("counter", [1, 12, 13])
def test_a_counter_that_was_used_or_is_lower_is_refused_as_replay(counter):
    held = HeldAssignment(DEVICE, 13, to(3))
    assert failure(check_assignment(to(2, counter=counter), held, NOW_MS)) is InstallFailure.REPLAY


def test_a_counter_stays_used_when_the_assignment_itself_is_forgotten():
    assert failure(check_assignment(to(3), HeldAssignment(DEVICE, 13), NOW_MS)) is InstallFailure.REPLAY


def test_a_model_that_is_not_listed_or_has_another_hash_or_version_is_refused():
    facts = RepositoryView(LISTED)
    strange = to(3, path="models/digits/digits-4.skb", version=4, digest="4" * 64)
    assert failure(resolve_assignment(strange, facts, NOW_MS)) is InstallFailure.INTEGRITY
    assert failure(resolve_assignment(to(3, digest="f" * 64), facts, NOW_MS)) is InstallFailure.INTEGRITY
    assert failure(resolve_assignment(to(3, version=7), facts, NOW_MS)) is InstallFailure.INTEGRITY


def test_the_same_assignment_a_hundred_times_is_one():
    held = HeldAssignment(DEVICE, 13, to(3))
    assert {check_assignment(to(3), held, NOW_MS) for _ in range(100)} == {None}
    # the hub says it again for as long as it must, and it stays the same word to the last bit
    assert failure(check_assignment(to(3, soak_s=1.0), held, NOW_MS)) is InstallFailure.REPLAY


def test_an_assignment_that_is_over_or_of_a_future_that_is_not_ours_is_refused():
    assert failure(check_assignment(to(3), HeldAssignment(DEVICE), NOW_MS + 5 * HOUR_MS)) is InstallFailure.FREEZE
    assert failure(resolve_assignment(to(3), RepositoryView(LISTED), NOW_MS + 5 * HOUR_MS)) is InstallFailure.FREEZE
    assert failure(check_assignment(to(3), HeldAssignment(DEVICE), NOW_MS - 30 * HOUR_MS)) is InstallFailure.FREEZE


@pytest.mark.parametrize(
    "changes",
    [
        {"counter": 0},
        {"counter": 2**60},
        {"version": 0},
        {"path": "models/other/other-3.skb"},
        {"path": "../../etc/passwd"},
        {"path": "policy/demo.toml"},
        {"digest": "3"},
        {"family": ""},
        {"rollout": "r" * 500},
        {"expires_ms": NOW_MS},
        {"expires_ms": NOW_MS + 400 * 24 * HOUR_MS},
        {"audit_share": nan},
        {"audit_share": 1.5},
        {"soak_s": -1.0},
        {"max_soak_s": inf},
        {"report_s": nan},
        {"min_inferences": -1},
    ],
)
def test_what_no_hub_of_ours_would_say_is_refused(changes):
    assert failure(check_assignment(to(3, **changes), HeldAssignment(DEVICE), NOW_MS)) is InstallFailure.INTEGRITY


def test_a_withdrawal_needs_no_target():
    assert check_assignment(to(3, withdraw=True, path="", version=0, digest=""), HeldAssignment(DEVICE), NOW_MS) is None


def test_a_control_device_is_told_to_stay_what_it_is():
    stay = to(2, cohort=RolloutCohort.CONTROL)
    assert resolve_assignment(stay, RepositoryView(LISTED, floor=3, running=OLD), NOW_MS) == InstallTarget(
        stay.path, 2, "2" * 64
    )


def test_a_downgrade_without_a_permit_is_refused_as_rollback():
    for facts in (RepositoryView(LISTED, floor=3), RepositoryView(LISTED, running=NEW)):
        assert failure(resolve_assignment(to(2), facts, NOW_MS)) is InstallFailure.ROLLBACK


def test_a_permit_lets_down_to_its_version_from_below_its_bound_until_it_ends():
    permit = Permit("digits", 4, 2, NOW_MS + HOUR_MS, "3 mistakes sevens")
    facts = RepositoryView(LISTED, floor=3, running=NEW, permits=(permit,))
    assert resolve_assignment(to(2), facts, NOW_MS) == InstallTarget(to(2).path, 2, "2" * 64, permit)
    assert failure(resolve_assignment(to(2), facts, NOW_MS + HOUR_MS)) is InstallFailure.ROLLBACK


@pytest.mark.parametrize(
    "permit",
    [
        Permit("other", 4, 2, NOW_MS + HOUR_MS),
        Permit("digits", 3, 2, NOW_MS + HOUR_MS),  # for devices below 3: this one ran 3
        Permit("digits", 4, 1, NOW_MS + HOUR_MS),
    ],
)
def test_a_permit_for_something_else_permits_nothing(permit):
    assert (
        failure(resolve_assignment(to(2), RepositoryView(LISTED, floor=3, permits=(permit,)), NOW_MS))
        is InstallFailure.ROLLBACK
    )


def test_a_permit_that_names_devices_lets_no_other_one_down():
    ours = Permit("digits", 4, 2, NOW_MS + HOUR_MS, devices=(DEVICE,))
    other = Permit("digits", 4, 2, NOW_MS + 2 * HOUR_MS, devices=("demo--other",))
    found = resolve_assignment(to(2), RepositoryView(LISTED, floor=3, permits=(other, ours)), NOW_MS)
    assert isinstance(found, InstallTarget)
    assert found.permit == ours
    refused = resolve_assignment(to(2), RepositoryView(LISTED, floor=3, permits=(other,)), NOW_MS)
    assert failure(refused) is InstallFailure.ROLLBACK


def test_a_permit_is_read_with_the_devices_that_were_signed_and_stands_apart_from_that_of_others():
    named = [Permit("digits", 4, 2, NOW_MS, devices=each) for each in ((), ("demo--a",), ("demo--a", "demo--b"))]
    assert [read_permit(each.path, json.loads(json.dumps(each.custom_fields()))) for each in named] == named
    assert len({each.path for each in named}) == 3
    assert "2 devices (demo--a, demo--b) below digits@4" in named[2].describe()
    with pytest.raises(ValueError, match="belongs at"):
        read_permit(named[0].path, named[1].custom_fields())


@pytest.mark.parametrize(
    "devices", [[], "demo--a", [1], ["b", "a"], ["a", "a"], ["A b"], [f"d{n:04}" for n in range(1001)]]
)
def test_a_permit_with_devices_that_are_no_sorted_ids_is_none(devices):
    with pytest.raises(ValueError, match="a permit names"):
        read_permit("permits/digits/to-2-from-below-4.json", {"permit": GOOD["permit"] | {"devices": devices}})


LEAF = st.none() | st.integers() | st.text(max_size=5)
JSON = LEAF | st.lists(LEAF) | st.dictionaries(st.text(), LEAF)
GOOD = Permit("digits", 4, 2, NOW_MS).custom_fields()


@given(JSON, st.fixed_dictionaries({name: st.integers() | st.text(max_size=9) for name in GOOD["permit"]}))
def test_anything_read_as_a_permit_is_one_or_a_value_error(value, permit):
    for custom in (value, {"permit": value}, {"permit": permit}):
        with pytest.raises(ValueError, match="permit"):
            read_permit("permits/digits/to-2-from-below-4.json", custom)


@pytest.mark.parametrize(
    "changes",
    [
        {"to_version": 4},
        {"to_version": 0},
        {"from_below": 2**60},
        {"from_below": 5},  # its path says 4
        {"family": "other"},
        {"to_version": True},
        {"expires_ms": 2**52},
        {"why": "x" * 500},
        {"more": 1},
    ],
)
def test_a_permit_that_leads_nowhere_or_says_something_else_than_its_path_is_none(changes):
    assert (
        read_permit("permits/digits/to-2-from-below-4.json", GOOD)
        .describe()
        .startswith("lets devices below digits@4 go")
    )
    with pytest.raises(ValueError, match="permit"):
        read_permit("permits/digits/to-2-from-below-4.json", {"permit": GOOD["permit"] | changes})


# -- with real metadata


@dataclass
class Scene:
    road: UpdateClientHarness
    floor: int = 3

    def session(self) -> Any:
        return self.road.refresh()


PERMIT = Permit("digits", 4, 2, 2**41)


@pytest.fixture
def scene(tmp_path):
    folder = tmp_path / "metadata"
    with open_update_client(folder) as road:
        road.repo.delegate("models-digits", ["models/digits/*"], terminating=True)
        for version in (2, 3):
            road.repo.add(f"models/digits/digits-{version}.skb", b"x" * version, "models-digits", version=version)
        road.repo.publish_all("models-digits", "targets")
        listed = road.refresh().find_target("models/digits/digits-3.skb")
        assert listed is not None
        with FloorDatabase(folder) as db:
            db.raise_floors((VersionFloor("target/models/digits", 3, listed.signers),))
        yield Scene(road)


def test_the_floor_under_a_target_refuses_what_is_older(scene):
    session = scene.session()
    assert session.floor_under("models/digits/digits-2.skb") == 3
    with pytest.raises(RefusedError, match="seen before: 3"):
        session.approved_target("models/digits/digits-2.skb")


def test_a_permit_that_targets_lists_opens_the_floor_for_its_version_alone(scene):
    scene.road.repo.add(PERMIT.path, b"for people", "targets", **PERMIT.custom_fields())
    scene.road.repo.publish_all("targets")
    session = scene.session()
    (permit,) = session.permits("digits")
    assert permit == PERMIT
    assert session.approved_target("models/digits/digits-2.skb", permit) is not None
    with pytest.raises(RefusedError):
        session.approved_target("models/digits/digits-2.skb", replace(permit, to_version=1))
    assert session.permits("other") == ()


def test_a_permit_that_a_delegated_role_lists_is_none(scene):
    scene.road.repo.add(PERMIT.path, b"for people", "models-digits", **PERMIT.custom_fields())
    scene.road.repo.publish_all("models-digits", "targets")
    assert scene.session().permits("digits") == ()


def test_a_permit_that_says_something_else_than_its_path_permits_nothing(scene):
    scene.road.repo.add(PERMIT.path, b"for people", "targets", **replace(PERMIT, from_below=9).custom_fields())
    scene.road.repo.publish_all("targets")
    assert scene.session().permits("digits") == ()
