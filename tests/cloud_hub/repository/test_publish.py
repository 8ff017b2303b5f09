"""Publishing bundles, policies and hub keys: paths, versions, refusals, withdrawal and revocation."""

import base64
import json
import time
from io import StringIO

import msgspec
import pytest
from onnx import TensorProto, helper

from cloud_hub.repository.publish import (
    BundleOptions,
    create_demo_repository,
    publish_bundle,
    publish_hub_keys,
    publish_policy,
    revoke_published,
    unlist_target,
)
from cloud_hub.repository.repository import Repository
from cloud_hub.repository.signing_keys import OnlineKeys
from cloud_hub.runtime.maintenance import NumberedCard, RepositoryMaintainer
from cloud_hub.security.hub_keys import HubCard, load_or_create_keys
from models.bundle.archive import unpack_bundle
from models.bundle.manifest import BundleError
from models.signing.request import RequestError
from policies.language.document import PolicyError
from tests.cloud_hub.doubles.demo_hub import create_demo_hub
from tests.cloud_hub.doubles.fleet import CARD, NOW, POLICY, Device, Hub, days, policy
from tests.cloud_hub.doubles.versions import make_joint
from tests.models.conftest import contents
from wire.process.exit_codes import ExitError
from wire.process.logging import JsonLog

ECHO = "models/echo/echo-1.skb"


@pytest.fixture
def hub(begun_hub):
    """Everything is signed at the hub but root and targets."""
    return begun_hub


@pytest.fixture
def device(tmp_path, hub):
    return Device(tmp_path / "device", hub)


def listed(hub, role, path):
    return hub.repository.read_state().base[role].signed.targets[path]


def test_a_bundle_is_one_file_whose_bytes_unpack_to_it(tmp_path, hub, device):
    bundle = make_joint(tmp_path / "echo-1")
    published = publish_bundle(hub.repository, bundle.path, NOW)
    assert (published.path, published.version, published.request, published.new) == (ECHO, 1, None, True)
    assert device.sees(ECHO) == 1
    info = listed(hub, "models-echo", ECHO)
    file = hub.repository.shelf.targets / "models" / "echo" / f"{published.sha256}.echo-1.skb"
    (tmp_path / "unpacked").mkdir()
    with file.open("rb") as packed:
        assert unpack_bundle(packed, tmp_path / "unpacked") == published.sha256
    assert (tmp_path / "unpacked" / "edge.onnx").read_bytes() == bundle.read_file("edge.onnx")
    assert info.custom == {
        "version": 1,
        "min_agent": "0.1.0",
        "target": json.loads(msgspec.json.encode(bundle.manifest.target)),
    }


def test_the_same_bundle_again_is_no_new_version(tmp_path, hub):
    make_joint(tmp_path / "echo-1")
    publish_bundle(hub.repository, tmp_path / "echo-1", NOW)
    before = hub.repository.read_state().base["models-echo"].signed.version
    assert not publish_bundle(hub.repository, tmp_path / "echo-1", NOW).new
    assert hub.repository.read_state().base["models-echo"].signed.version == before


def test_that_a_bundle_may_change_its_interface_is_signed_beside_it_also_afterwards(tmp_path, hub):
    make_joint(tmp_path / "echo-1")
    publish_bundle(hub.repository, tmp_path / "echo-1", NOW)
    revoke_published(hub.repository, ECHO, NOW)
    said = publish_bundle(hub.repository, tmp_path / "echo-1", NOW, BundleOptions(new_interface=True))
    custom = listed(hub, "models-echo", ECHO).custom
    assert (said.new, custom["new_interface"], custom["revoked"], custom["version"]) == (True, True, True, 1)
    assert not publish_bundle(hub.repository, tmp_path / "echo-1", NOW).new
    assert listed(hub, "models-echo", ECHO).custom == custom


def test_another_bundle_under_a_published_version_is_refused(tmp_path, hub):
    make_joint(tmp_path / "one")
    publish_bundle(hub.repository, tmp_path / "one", NOW)
    make_joint(tmp_path / "other", temperature=2.0)
    with pytest.raises(RequestError, match="published already; raise the version"):
        publish_bundle(hub.repository, tmp_path / "other", NOW)


def test_a_damaged_bundle_is_refused(tmp_path, hub):
    bundle = make_joint(tmp_path / "echo-1")
    (bundle.path / "edge.onnx").write_bytes(contents()["edge.onnx"] + b"!")
    with pytest.raises(BundleError):
        publish_bundle(hub.repository, bundle.path, NOW)


def test_a_family_that_nobody_delegated_says_how(tmp_path, hub):
    make_joint(tmp_path / "other", name="other")
    with pytest.raises(RequestError, match="skerry keys add other"):
        publish_bundle(hub.repository, tmp_path / "other", NOW)


def test_a_name_that_makes_no_path_is_refused(tmp_path, hub):
    """What a device would refuse is not published."""
    make_joint(tmp_path / "odd", name="a..b")
    with pytest.raises(RequestError, match="cannot name a family"):
        publish_bundle(hub.repository, tmp_path / "odd", NOW)


def test_a_policy_replaces_the_one_before_and_never_goes_back(hub, device):
    hub.publish(1)
    hub.publish(3)
    assert device.sees("policy/demo.toml") == 3
    with pytest.raises(RequestError, match="version 3 is published already"):
        hub.publish(2)
    with pytest.raises(RequestError, match="raise the version"):
        publish_policy(hub.repository, policy(3) + b"# changed\n", NOW)


def test_an_unsound_policy_is_refused(hub):
    with pytest.raises(PolicyError):
        publish_policy(hub.repository, POLICY.replace(b"answer_now", b"answer_never"), NOW)


def test_withdrawn_targets_are_listed_no_more(tmp_path, hub, device):
    make_joint(tmp_path / "echo-1")
    publish_bundle(hub.repository, tmp_path / "echo-1", NOW)
    assert device.sees(ECHO) == 1
    assert unlist_target(hub.repository, ECHO, NOW).version == 1
    assert device.sees(ECHO) == 0
    with pytest.raises(RequestError, match="nothing of that name"):
        unlist_target(hub.repository, ECHO, NOW)


def test_a_revoked_model_stays_listed_and_says_so(tmp_path, hub, device):
    make_joint(tmp_path / "echo-1")
    publish_bundle(hub.repository, tmp_path / "echo-1", NOW)
    revoke_published(hub.repository, ECHO, NOW)
    found = device.poll().approved_target(ECHO)
    assert found.info.custom["revoked"] is True
    assert found.info.custom["version"] == 1


def test_a_model_that_no_device_would_load_is_not_published(tmp_path, hub):
    """An operator of a custom domain."""
    strange = helper.make_node("Mul", ["scores", "scores"], ["logits"], domain="com.example")
    codes = helper.make_node("Cast", ["scores"], ["features"], to=TensorProto.UINT8)
    edge = onnx_model(strange, codes)
    make_joint(tmp_path / "echo-1", edge=edge)
    with pytest.raises(BundleError, match=r"com\.example"):
        publish_bundle(hub.repository, tmp_path / "echo-1", NOW)


def onnx_model(*nodes):
    values = [("scores", TensorProto.FLOAT), ("logits", TensorProto.FLOAT), ("features", TensorProto.UINT8)]
    given, *made = (helper.make_tensor_value_info(name, kind, ["batch", 10]) for name, kind in values)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
    graph = helper.make_graph(list(nodes), "edge", [given], made)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def published_keys(hub, card, serial, now):
    """The version that was published; 0 for none."""
    published = publish_hub_keys(hub.repository, card, serial, now)
    return published.version if published else 0


def keys_document(hub):
    return json.loads(hub.repository.shelf.read_target(listed(hub, "keys", "keys/local.json")))


def test_the_hubs_keys_are_published_for_its_region(hub, device):
    assert published_keys(hub, CARD, 4, NOW) == 1
    assert device.sees("keys/local.json") == 1
    assert keys_document(hub) == {
        "region": "local",
        "version": 1,
        "hubs": [
            {
                "name": "hub-1",
                "region": "local",
                "hpke_key": base64.b64encode(b"h" * 32).decode(),
                "signing_key": base64.b64encode(b"s" * 32).decode(),
                "not_after_ms": int(days(14).timestamp() * 1000),
                "serial": 4,
            }
        ],
    }


def test_hub_keys_are_published_again_weekly_or_when_they_change_and_not_else(hub):
    publish_hub_keys(hub.repository, CARD, 1, NOW)
    assert published_keys(hub, CARD, 1, days(6.9)) == 0
    assert published_keys(hub, CARD, 1, days(7)) == 2
    fresh = HubCard("hub-1", "local", b"n" * 32, b"s" * 32)
    assert published_keys(hub, fresh, 2, days(7)) == 3
    assert [entry["serial"] for entry in keys_document(hub)["hubs"]] == [2]


def test_two_hubs_of_a_region_share_its_file(hub):
    publish_hub_keys(hub.repository, CARD, 1, NOW)
    publish_hub_keys(hub.repository, HubCard("hub-0", "local", b"x" * 32, b"y" * 32), 1, NOW)
    assert [entry["name"] for entry in keys_document(hub)["hubs"]] == ["hub-0", "hub-1"]
    assert keys_document(hub)["version"] == 2


def test_before_the_next_version_is_listed_the_one_before_is_named_as_committed(tmp_path, hub, device):
    """A rollout begins after its bundle is published: a device that enrols between the two must not take it."""
    publish_hub_keys(hub.repository, CARD, 1, NOW)
    publish_bundle(hub.repository, make_joint(tmp_path / "echo-1").path, NOW)
    assert "committed" not in keys_document(hub)
    for version in (2, 3):
        publish_bundle(hub.repository, make_joint(tmp_path / f"echo-{version}", version=version).path, NOW)
        assert keys_document(hub)["committed"] == {"echo": 1}
    assert device.sees("keys/local.json") == 2


def test_the_running_hub_says_what_its_fleet_has_committed_when_that_changes(hub):
    assert publish_hub_keys(hub.repository, CARD, 1, NOW, {"echo": 1})
    assert publish_hub_keys(hub.repository, CARD, 1, NOW) is None
    assert publish_hub_keys(hub.repository, CARD, 1, NOW, {"echo": 1}) is None
    assert publish_hub_keys(hub.repository, CARD, 1, NOW, {"echo": 2})
    assert keys_document(hub)["committed"] == {"echo": 2}
    assert published_keys(hub, CARD, 1, days(7)) == 3
    assert keys_document(hub)["committed"] == {"echo": 2}


def keeper(hub, lines, at):
    return RepositoryMaintainer(
        hub.repository, NumberedCard(CARD, 1), lambda: int(at[0].timestamp() * 1000), JsonLog(lines)
    )


def test_the_keeper_publishes_the_keys_signs_daily_and_warns_once_a_day(hub, device):
    lines, at = StringIO(), [NOW]
    keep = keeper(hub, lines, at)
    keep.renew_once()
    keep.renew_once()
    assert device.sees("keys/local.json") == 1
    assert lines.getvalue().count('"published"') == 1
    at[0] = days(1.1)
    keep.renew_once()
    assert '"role":"timestamp"' in lines.getvalue()
    at[0] = days(121)
    keep.renew_once()
    keep.renew_once()
    assert device.poll(days(121))
    warnings = [line for line in lines.getvalue().splitlines() if "sign_again_soon" in line]
    assert len(warnings) == 1
    assert json.loads(warnings[0])["role"] == "targets"
    assert json.loads(warnings[0])["left_days"] == 59


def test_a_keeper_without_a_repository_has_nothing_to_do(tmp_path):
    lines = StringIO()
    keeper(Hub(tmp_path / "empty"), lines, [NOW]).renew_once()
    assert lines.getvalue() == ""


def test_a_keeper_says_what_it_cannot_do_and_goes_on(hub):
    lines = StringIO()
    (hub.repository.shelf.metadata / "timestamp.json").write_bytes(b"{")
    with pytest.raises(ExitError, match="restore it from a backup or a mirror"):
        hub.repository.read_state()
    keeper(hub, lines, [NOW]).renew_once()
    assert '"event":"repository"' in lines.getvalue()


def test_a_demo_hub_is_founded_in_one_call_with_its_own_keys(tmp_path):
    (tmp_path / "hub.toml").write_text('state = "state"\n')
    root = create_demo_hub(tmp_path / "hub.toml", [make_joint(tmp_path / "echo-1").path], [POLICY])
    hub = Hub(tmp_path / "state")
    device = Device(tmp_path / "device", hub)
    assert device.root == root
    assert [device.sees(path) for path in (ECHO, "policy/demo.toml", "keys/local.json")] == [1, 1, 1]
    keys = load_or_create_keys(tmp_path / "state" / "keys")
    assert base64.b64decode(keys_document(hub)["hubs"][0]["hpke_key"]) == keys.hpke_public


def test_a_demo_has_everything_within_a_second_of_processor_time(tmp_path):
    make_joint(tmp_path / "echo-1")
    repository = Repository(tmp_path / "demo" / "repository", OnlineKeys(tmp_path / "demo" / "online"))
    began = time.process_time()
    root = create_demo_repository(repository, CARD, [tmp_path / "echo-1"], [POLICY], NOW)
    assert time.process_time() - began < 1.0
    hub = Hub(tmp_path / "demo")
    assert root == hub.repository.read_root()
    device = Device(tmp_path / "device", hub)
    assert [device.sees(path) for path in (ECHO, "policy/demo.toml", "keys/local.json")] == [1, 1, 1]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "demo" / "online").iterdir())


def test_the_keys_change_only_where_devices_learn_the_next_one(tmp_path, hub):
    lines, turns = StringIO(), iter([NumberedCard(CARD, 2), None])
    for each in (Hub(tmp_path / "empty"), hub):
        keep = RepositoryMaintainer(
            each.repository,
            NumberedCard(CARD, 1),
            lambda: int(NOW.timestamp() * 1000),
            JsonLog(lines),
            turn=lambda _: next(turns),
        )
        keep.rotate_once()
        keep.rotate_once()
    assert lines.getvalue().count("hub_key_changed") == 1
    assert list(turns) == []
