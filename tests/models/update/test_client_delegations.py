"""Tests of TUF delegations: delegation graphs, odd names, and the search order of the specification (5.6.7)."""

from typing import Any
from urllib.parse import quote

import pytest
from tuf.api.metadata import Delegations, Metadata, SuccinctRoles, Targets

from models.update.client import RefusedError
from tests.models.doubles.repository import days, signer
from tests.models.doubles.road import open_update_client
from wire.protocol.rollout import InstallFailure


@pytest.fixture
def road(tmp_path):
    with open_update_client(tmp_path / "trust") as road:
        yield road


def publish(road, *delegations):
    """(delegator, role) pairs, or (delegator, role, further arguments)."""
    for each in delegations:
        delegator, role, extra = each[0], each[1], dict(each[2]) if len(each) > 2 else {}
        road.repo.delegate(role, extra.pop("paths", ["*"]), delegator=delegator, **extra)
    roles = dict.fromkeys(role for each in delegations for role in each[:2])
    road.repo.publish(*[role for role in roles if role != "targets"], "targets", "snapshot", "timestamp")


def visited(road):
    return [name.partition(".")[2] for name in road.mirror.asked[4:]]


LAST = {"terminating": True}
PYTHON = {"paths": ["*.py"]}
GRAPHS: dict[str, tuple[list[tuple[Any, ...]], str]] = {
    "one": ([("targets", "A")], "A"),
    "two beside": ([("targets", "A"), ("targets", "B")], "AB"),
    "two levels": ([("targets", "A"), ("targets", "B"), ("B", "C")], "ABC"),
    "depth first": ([("targets", "A"), ("targets", "B"), ("A", "C"), ("A", "D")], "ACDB"),
    "three levels": ([("targets", "A"), ("targets", "B"), ("A", "C"), ("C", "D")], "ACDB"),
    "terminating": ([("targets", "A"), ("targets", "B"), ("A", "C", LAST), ("A", "D")], "AC"),
    "terminating, but its own": ([("targets", "A"), ("targets", "B"), ("A", "C", LAST), ("C", "D")], "ACD"),
    "other paths": ([("targets", "A", PYTHON), ("targets", "B"), ("A", "C")], "B"),
    "other paths below": ([("targets", "A"), ("targets", "B"), ("A", "C", PYTHON), ("C", "D")], "AB"),
    "a circle": ([("targets", "A"), ("targets", "B"), ("B", "C"), ("C", "D"), ("D", "B")], "ABCD"),
    "two to a third": ([("targets", "A"), ("targets", "B"), ("B", "C"), ("A", "C")], "ACB"),
    "two to a third, one for others": ([("targets", "A"), ("targets", "B"), ("B", "C"), ("A", "C", PYTHON)], "ABC"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_missing_target_is_searched_in_order_and_not_found(road, name):
    delegations, order = GRAPHS[name]
    publish(road, *delegations)
    assert road.refresh().find_target("missing") is None
    assert "".join(visited(road)) == order


TREE = [
    ("targets", "A", {"paths": ["*.doc", "*.md"]}),
    ("targets", "B", {"paths": ["releases/*/*"]}),
    ("B", "C", {"paths": ["releases/x/*"]}),
    ("B", "D", {"paths": ["releases/y/*.zip"]}),
]
LISTED = {"targetfile": "targets", "readme.md": "A", "releases/x/x_v1": "C", "releases/y/y_v1.zip": "D"}


@pytest.mark.parametrize(
    ("path", "order"),
    [("targetfile", ""), ("readme.md", "A"), ("releases/x/x_v1", "BC"), ("releases/y/y_v1.zip", "BD")],
)
def test_a_target_is_found_with_the_role_that_is_trusted_for_it(road, path, order):
    publish(road, *TREE)
    for each, role in LISTED.items():
        road.repo.add(each, each.encode(), role)
    road.repo.publish_all("A", "B", "C", "D", "targets")
    found = road.refresh().find_target(path)
    assert found.info.length == len(path)
    assert found.signers == found.role.keys
    assert "".join(visited(road)) == order


def test_a_family_cannot_list_a_bundle_of_another_family(road):
    families = [("targets", f"models-{name}", {"paths": [f"models/{name}/*"]}) for name in ("a", "b")]
    publish(road, *families)
    road.repo.add("models/b/b-9.skb", b"not mine", "models-a", version=9)
    road.repo.add("models/b/b-1.skb", b"mine", "models-b", version=1)
    road.repo.publish_all("models-a", "models-b")
    session = road.refresh()
    session.find_target("models/a/-")  # the false one's list is loaded
    assert session.approved_target("models/b/b-9.skb") is None
    assert [info.path for info in session.targets_below("models/b")] == ["models/b/b-1.skb"]


def test_hub_keys_come_from_the_role_for_keys_alone(road):
    publish(road, ("targets", "keys", {"paths": ["keys/*"]}), ("targets", "policy", {"paths": ["policy/*"]}))
    road.repo.add("keys/local.json", b"false", "policy")
    road.repo.publish_all("policy")
    assert road.refresh().approved_target("keys/local.json") is None


def test_a_delegated_role_with_one_signature_of_two_is_refused(road):
    publish(road, ("targets", "policy", {"paths": ["policy/*"]}))
    second = road.repo.add_key("policy")
    road.repo.targets().delegations.roles["policy"].threshold = 2
    road.repo.keys["policy"] = [second]
    road.repo.publish_all("policy", "targets")
    session = road.refresh()
    with pytest.raises(RefusedError, match="signed by 1/2"):
        session.find_target("policy/demo.toml")


def test_a_delegation_to_one_key_under_two_ids_is_refused(road):
    publish(road, ("targets", "policy", {"paths": ["policy/*"]}))
    delegations, metadata = road.repo.targets().delegations, road.repo.md["policy"]
    key = next(iter(delegations.keys.values()))
    delegations.keys["another-id"] = type(key)("another-id", key.keytype, key.scheme, key.keyval)
    delegations.roles["policy"].keyids.append("another-id")
    delegations.roles["policy"].threshold = 2
    road.repo.add("policy/demo.toml", b"x", "policy")
    road.repo.publish("policy")
    first = next(iter(metadata.signatures.values()))
    metadata.signatures["another-id"] = type(first)("another-id", first.signature)
    road.repo.files[f"metadata/{metadata.signed.version}.policy.json"] = metadata.to_bytes()
    road.repo.publish_all()
    session = road.refresh()
    with pytest.raises(RefusedError, match="1 different keys, threshold 2"):
        session.approved_target("policy/demo.toml")


def test_a_role_known_by_one_delegator_is_verified_again_for_another(road):
    """Two delegators, two keys for the same role, signed by the first only."""
    publish(road, ("targets", "A", {"paths": ["a/*"]}), ("targets", "B", {"paths": ["b/*"]}))
    road.repo.delegate("C", ["a/*"], delegator="A")
    road.repo.add_key("C", delegator="A")
    mine = road.repo.keys["C"]
    road.repo.delegate("C", ["b/*"], delegator="B")
    road.repo.targets("B").delegations.roles["C"].keyids.clear()
    road.repo.add_key("C", delegator="B")
    road.repo.keys["C"] = mine[:1]
    for path in ("a/x", "b/x"):
        road.repo.add(path, b"x", "C")
    road.repo.publish_all("C", "A", "B")
    session = road.refresh()
    assert session.find_target("a/x")
    with pytest.raises(RefusedError) as caught:
        session.find_target("b/x")
    assert caught.value.refusal.failure is InstallFailure.INTEGRITY


def test_an_expired_delegated_role_is_a_freeze_and_is_not_kept(road):
    publish(road, ("targets", "policy", {"paths": ["policy/*"]}))
    road.repo.targets("policy").expires = days(-1)
    road.repo.publish_all("policy")
    session = road.refresh()
    with pytest.raises(RefusedError) as caught:
        session.find_target("policy/demo.toml")
    assert caught.value.refusal.failure is InstallFailure.FREEZE
    assert road.version("policy") == 0


def test_an_older_delegated_role_is_a_rollback_even_without_a_cache(road):
    publish(road, ("targets", "policy", {"paths": ["policy/*"]}))
    road.refresh()
    road.lose_cache(zeroed=True)
    road.repo.publish("policy")
    road.repo.publish_all()
    road.refresh()
    road.lose_cache(zeroed=True)
    road.repo.targets("policy").version = 1
    road.repo.put("policy")
    road.repo.publish("snapshot", "timestamp")
    road.refused(InstallFailure.ROLLBACK, "meta/policy.json 1, seen before: 2")


@pytest.mark.parametrize("role", ["?", "#", "/role", "../role", "..", ".", "a b", "ä"])
def test_an_odd_role_name_stays_in_the_folder_and_in_the_address(road, role):
    publish(road, ("targets", role))
    before = {path for path in road.folder.parent.rglob("*") if road.folder not in path.parents}
    assert road.refresh().find_target("missing") is None
    assert visited(road) == [role]
    assert (road.folder / f"{quote(role, '')}.json").is_file()
    assert {path for path in road.folder.parent.rglob("*") if road.folder not in path.parents} == before


@pytest.mark.parametrize("path", ["../../x", "/etc/passwd", "policy/a\0b", "policy/" + "a" * 300, "policy/dеmo.toml"])
def test_a_target_path_that_is_not_ours_is_refused_even_if_it_is_signed(road, path):
    road.repo.add(path, b"x")
    road.repo.publish_all()
    session = road.refresh()
    with pytest.raises(RefusedError) as caught:
        session.approved_target(path)
    assert caught.value.refusal.failure is InstallFailure.INTEGRITY
    assert road.mirror.asked[-1] == "3.targets"


def test_a_repository_without_consistent_snapshots_works(road):
    road.repo.root.consistent_snapshot = False
    road.repo.publish("root")
    publish(road, ("targets", "A"))
    assert road.refresh().find_target("missing") is None
    assert road.mirror.asked[-4:] == ["timestamp", "snapshot", "targets", "A"]


def test_succinct_delegation_finds_its_bin(road):
    key = road.repo.new_key()
    bins = SuccinctRoles([], 1, 2, "bin")
    road.repo.targets().delegations = Delegations({}, None, bins)
    road.repo.targets().add_key(signer(key).public_key)
    for name in bins.get_roles():
        road.repo.md[name] = Metadata(Targets(expires=days(9)))
        road.repo.keys[name] = [key]
    home = bins.get_role_for_target("policy/demo.toml")
    road.repo.add("policy/demo.toml", b"x", home)
    road.repo.publish(*bins.get_roles())
    road.repo.publish_all()
    session = road.refresh()
    assert session.approved_target("policy/demo.toml")
    assert [info.path for info in session.targets_below("policy")] == ["policy/demo.toml"]
