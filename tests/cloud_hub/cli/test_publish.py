"""The update repository by its commands: export, first keys, publish, sign elsewhere, finish, rotate."""

import base64
import json
from hashlib import sha256

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from cloud_hub.cli import publish
from cloud_hub.cli.hub_operations import HubOperations
from cloud_hub.cli.publish import open_repository
from cloud_hub.registry.registry import DeviceInvitation
from cloud_hub.repository.files import TrustAnchor
from cloud_hub.runtime.config import load_hub_config
from models.cli import keys as keys_cli
from tests.cloud_hub.doubles.fleet import CHEAP, POLICY, Device, Hub, policy
from tests.cloud_hub.doubles.versions import HUB_BYTES, HUB_FILES, SHARDS, make_joint, make_version
from wire.process.exit_codes import ExitCode, ExitError

PASSPHRASE = "a long enough passphrase"


class Place:
    """A machine: commands run in a folder of its own."""

    def __init__(self, folder, *more):
        self.folder = folder
        self.config = self.passphrase = more  # what ends every command
        folder.mkdir()
        self.models, self.policy = (_single(name) for name in ("models_publish", "policy_publish"))

    def at(self, name):
        return str(self.folder / name)

    def types(self, app, *words, code=0, text=None):
        result = CliRunner().invoke(app, [str(word) for word in words], input=text)
        if isinstance(result.exception, ExitError):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output


def _single(name):
    app = typer.Typer()
    app.command()(getattr(publish, name))
    return app


@pytest.fixture(autouse=True)
def cheap_keys(monkeypatch):
    """A guess at the passphrase of a key that is made here costs nothing, whatever `--memory` says."""
    monkeypatch.setattr("models.cli.keys.ScryptCost", lambda n: CHEAP)


@pytest.fixture
def hub(tmp_path):
    place = Place(tmp_path / "hub", "--config", str(tmp_path / "hub" / "hub.toml"))
    (place.folder / "hub.toml").write_text('state = "state"\n')
    return place


@pytest.fixture
def keys(tmp_path):
    place = Place(tmp_path / "keys", "--passphrase-file", str(tmp_path / "keys" / "passphrase"))
    (place.folder / "passphrase").write_text(PASSPHRASE + "\n")
    return place


def repository(hub, *words, **how):
    return hub.types(publish.app, *words, *hub.config, **how)


def ring(keys, *words, **how):
    return keys.types(keys_cli.app, *words, *keys.passphrase, **how)


def begin(hub, keys, *words, hold=()):
    repository(hub, "export", hub.at("hub.json"), *(word for role in hold for word in ("--hold", role)))
    made = ring(keys, "init", keys.at("ring"), "--hub", hub.at("hub.json"), "--memory", 16, "--family", "echo", *words)
    repository(hub, "install", keys.at("ring/first.json"))
    return made


def disk(hub):
    """The hub's repository as a device reads it."""
    return Hub(hub.folder / "state")


def test_the_road_of_a_small_fleet(tmp_path, hub, keys):
    told = begin(hub, keys, "--small")
    assert "small fleet:" in told
    bundle = make_joint(hub.folder / "echo-1").path
    request = hub.at("echo.json")
    told = hub.types(hub.models, bundle, "--request", request, *hub.config)
    assert "skerry keys sign echo.json" in told
    told = ring(keys, "sign", request, "--dir", keys.at("ring"), "--check", bundle, "--yes")
    assert "adds models/echo/echo-1.skb" in told
    assert "signed models-echo with models-echo-1" in told
    hub.types(hub.models, "--finish", request, *hub.config)
    device = Device(tmp_path / "device", disk(hub))
    assert device.sees("models/echo/echo-1.skb") == 1
    facts = json.loads(repository(hub, "status", "--json"))
    assert facts["root_sha256"] == sha256(device.root).hexdigest()
    assert facts["targets"] == 1
    assert {row["role"]: row["signed"] for row in facts["roles"]}["keys"] == "at the hub"


def test_a_version_with_a_hub_part_is_signed_elsewhere_as_one_request_that_shows_and_checks_both(tmp_path, hub, keys):
    begin(hub, keys, "--small")
    version = make_version(hub.folder / "echo-1")
    request, part = hub.at("echo.json"), version.manifest.hub_part
    told = hub.types(hub.models, version.path, "--request", request, *hub.config)
    assert f"with its hub part, {HUB_BYTES:,} bytes for hubs alone  sha256 {part}" in told
    shard = version.path / "hub" / SHARDS[0]
    shard.rename(tmp_path / "shard")
    shard.write_bytes(bytes(len(HUB_FILES[SHARDS[0]])))
    with pytest.raises(ExitError, match="SHA-256 differs") as stop:
        ring(keys, "sign", request, "--dir", keys.at("ring"), "--check", version.path, "--yes")
    assert stop.value.code is ExitCode.MODEL
    (tmp_path / "shard").rename(shard)
    other = make_version(tmp_path / "other", {**HUB_FILES, SHARDS[0]: b"x"})
    with pytest.raises(ExitError, match="adds no such content"):
        ring(keys, "sign", request, "--dir", keys.at("ring"), "--check", other.path, "--yes")
    told = ring(keys, "sign", request, "--dir", keys.at("ring"), "--check", version.path, "--yes")
    assert f"adds models/echo/echo-1.hub.json sha256 {part} hub part of {HUB_BYTES} B in 3 files" in told
    assert f", hub part {part}" in told
    hub.types(hub.models, "--finish", request, *hub.config)
    again = json.loads(hub.types(hub.models, version.path, "--json", *hub.config))
    assert (again["hub_sha256"], again["hub_size_bytes"], again["done"]) == (part, HUB_BYTES, True)
    facts = json.loads(repository(hub, "status", "--json"))
    assert (facts["targets"], facts["hub_parts"], facts["hub_bytes"]) == (2, 1, HUB_BYTES)
    assert f"2 targets; hub parts: 1 of {HUB_BYTES:,} bytes" in repository(hub, "status")


def test_a_policy_is_published_at_once_where_its_key_is_at_the_hub(tmp_path, hub, keys):
    begin(hub, keys, hold=("policy",))
    (hub.folder / "demo.toml").write_bytes(POLICY)
    told = json.loads(hub.types(hub.policy, hub.at("demo.toml"), "--json", *hub.config))
    assert told == {
        "path": "policy/demo.toml",
        "version": 1,
        "sha256": sha256(POLICY).hexdigest(),
        "done": True,
        "request": "",
    }
    assert Device(tmp_path / "device", disk(hub)).sees("policy/demo.toml") == 1
    assert "withdrew" in repository(hub, "withdraw", "policy/demo.toml")
    (hub.folder / "demo.toml").write_bytes(policy(2) + b"[oops]\n")
    with pytest.raises(ExitError) as stop:
        hub.types(hub.policy, hub.at("demo.toml"), *hub.config)
    assert stop.value.code is ExitCode.POLICY
    with pytest.raises(ExitError) as stop:
        hub.types(hub.policy, hub.at("nowhere.toml"), *hub.config)
    assert stop.value.code is ExitCode.MISSING


@pytest.mark.further
def test_two_holders_of_the_targets_keys_sign_one_after_the_other(tmp_path, hub, keys):
    told = begin(hub, keys)
    assert "No one place may hold two root keys" in told
    other = tmp_path / "other"
    other.mkdir()
    for name in ("targets-2.key", "root-2.key", "root-3.key"):
        (keys.folder / "ring" / name).rename(other / name)
    (other / "root.json").write_bytes((keys.folder / "ring" / "root.json").read_bytes())
    repository(hub, "export", hub.at("hub.json"))
    told = ring(keys, "add", "faces", "--hub", hub.at("hub.json"), "--dir", keys.at("ring"))
    assert "targets needs 1 more of: targets-2" in told
    request = keys.at("ring/add-faces.json")
    with pytest.raises(ExitError, match="not signed by enough keys") as stop:
        repository(hub, "install", request)
    assert stop.value.code is ExitCode.CHECK_FAILED
    assert "next  at the hub:" in ring(keys, "sign", request, "--dir", other, "--yes")
    repository(hub, "install", request)
    assert "models-faces" in repository(hub, "status")


@pytest.mark.further
def test_rotation_of_the_hubs_own_keys_and_of_root(tmp_path, hub, keys):
    begin(hub, keys)
    device = Device(tmp_path / "device", disk(hub))
    device.poll()
    with pytest.raises(ExitError, match="older than 1"):  # it was exported before there was a root
        ring(keys, "rotate", "timestamp", "--hub", hub.at("hub.json"), "--dir", keys.at("ring"))
    repository(hub, "export", hub.at("hub.json"))
    with pytest.raises(ExitError, match="offers no fresh key for timestamp"):
        ring(keys, "rotate", "timestamp", "--hub", hub.at("hub.json"), "--dir", keys.at("ring"))
    repository(hub, "export", hub.at("hub.json"), "--new", "timestamp", "--new", "snapshot")
    ring(keys, "rotate", "timestamp", "snapshot", "--hub", hub.at("hub.json"), "--dir", keys.at("ring"))
    repository(hub, "install", keys.at("ring/rotate-timestamp-snapshot.json"))
    device.poll()
    repository(hub, "export", hub.at("hub.json"))
    ring(keys, "rotate", "root", "--drop", "root-3", "--hub", hub.at("hub.json"), "--dir", keys.at("ring"))
    repository(hub, "install", keys.at("ring/rotate-root.json"))
    device.poll()
    repository(hub, "export", hub.at("hub.json"))
    ring(keys, "renew", "--hub", hub.at("hub.json"), "--dir", keys.at("ring"))
    repository(hub, "install", keys.at("ring/renew.json"))
    device.poll()
    assert json.loads(repository(hub, "status", "--json"))["roles"][0]["version"] == 4


def test_a_person_who_says_no_signs_nothing(hub, keys):
    begin(hub, keys, "--small")
    (hub.folder / "demo.toml").write_bytes(POLICY)
    request = hub.at("policy.json")
    hub.types(hub.policy, hub.at("demo.toml"), "--request", request, *hub.config)
    before = (hub.folder / "policy.json").read_bytes()
    with pytest.raises(ExitError, match="not signed"):
        ring(keys, "sign", request, "--dir", keys.at("ring"), text="n\n")
    assert (hub.folder / "policy.json").read_bytes() == before
    (keys.folder / "other.toml").write_bytes(policy(2))
    with pytest.raises(ExitError, match="do not sign it"):
        ring(keys, "sign", request, "--dir", keys.at("ring"), "--yes", "--check", keys.at("other.toml"))
    told = ring(keys, "sign", request, "--dir", keys.at("ring"), "--check", hub.at("demo.toml"), text="y\n")
    assert "checked" in told


def test_a_passphrase_is_asked_for_and_confirmed(hub, keys):
    repository(hub, "export", hub.at("hub.json"))
    first = ("init", keys.at("ring"), "--hub", hub.at("hub.json"), "--memory", 16, "--small")
    keys.types(keys_cli.app, *first, text=f"{PASSPHRASE}\n{PASSPHRASE}\n")
    repository(hub, "install", keys.at("ring/first.json"))
    repository(hub, "export", hub.at("hub.json"))
    words = ("renew", "root", "--hub", hub.at("hub.json"), "--dir", keys.at("ring"))
    with pytest.raises(ExitError, match="wrong passphrase"):
        keys.types(keys_cli.app, *words, text="another passphrase\n")
    assert "signed root with root-1" in keys.types(keys_cli.app, *words, text=f"{PASSPHRASE}\n")
    (keys.folder / "ring" / "signed.json").write_text('{"root": {"2": "0"}}')
    with pytest.raises(ExitError, match="root 2 was signed here before"):
        keys.types(keys_cli.app, *words, text=f"{PASSPHRASE}\n")
    keys.types(keys_cli.app, *words, "--again", text=f"{PASSPHRASE}\n")


@pytest.mark.further
def test_what_lies_here_is_shown_without_a_passphrase(hub, keys):
    begin(hub, keys)
    facts = json.loads(keys.types(keys_cli.app, "show", keys.at("ring"), "--json"))
    assert [row["key"] for row in facts["rows"]] == [
        "models-echo-1",
        "policy-1",
        "root-1",
        "root-2",
        "root-3",
        "targets-1",
        "targets-2",
    ]
    facts = json.loads(keys.types(keys_cli.app, "show", keys.at("ring/first.json"), "--json"))
    assert {row["signatures missing"] for row in facts["rows"]} == {0}
    repository(hub, "export", hub.at("hub.json"))
    facts = json.loads(keys.types(keys_cli.app, "show", hub.at("hub.json"), "--json"))
    assert {row["role"]: row["signed"] for row in facts["rows"]}["policy"] == "offline"
    assert "models-echo" in keys.types(keys_cli.app, "show", hub.at("hub.json"))
    with pytest.raises(ExitError) as stop:
        keys.types(keys_cli.app, "show", hub.at("hub.toml"))
    assert stop.value.code is ExitCode.CHECK_FAILED


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("export", "x.json", "--hold", "root"), ExitCode.USAGE),
        (("export", "x.json", "--new", "A B"), ExitCode.USAGE),
        (("install", "nowhere.json"), ExitCode.MISSING),
        (("withdraw", "policy/demo.toml"), ExitCode.CHECK_FAILED),
    ],
)
def test_what_cannot_be_is_one_line(hub, words, code):
    with pytest.raises(ExitError) as stop:
        repository(hub, *words)
    assert stop.value.code is code
    assert "\n" not in str(stop.value)


def test_before_the_first_root_status_says_what_to_do(hub):
    assert "skerry keys init" in repository(hub, "status")


def test_publish_needs_one_thing_to_do(hub):
    (hub.folder / "r.json").write_bytes(b"{}")
    (hub.folder / "echo-1").mkdir()
    for words in ((), (hub.at("echo-1"), "--finish", hub.at("r.json"))):
        with pytest.raises(ExitError) as stop:
            hub.types(hub.models, *words, *hub.config)
        assert stop.value.code is ExitCode.USAGE
    with pytest.raises(ExitError) as stop:
        hub.types(hub.models, hub.at("nowhere"), *hub.config)
    assert stop.value.code is ExitCode.MISSING


def invite_fields(text):
    packed = text.removeprefix("skerry1:")
    return msgspec.msgpack.decode(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))


def test_invites_carry_the_hash_of_the_newest_root(hub, keys):
    repository(hub, "export", hub.at("hub.json"))
    office = HubOperations(load_hub_config(hub.folder / "hub.toml"))
    assert invite_fields(office.create_invite(DeviceInvitation("demo--cam-1"), 60.0)["invite"])["root_sha256"] == ""
    begin(hub, keys, "--small")
    found = open_repository(hub.folder / "hub.toml")
    fields = invite_fields(office.create_invite(DeviceInvitation("demo--cam-1"), 60.0)["invite"])
    assert fields["root_sha256"] == sha256(found.read_root()).hexdigest()
    anchor = TrustAnchor(hub.folder / "state" / "repository", "https://cdn.example/fleet/")
    assert anchor.reply_fields("https://hub")["tuf_url"] == "https://cdn.example/fleet"
    assert TrustAnchor(anchor.folder).reply_fields("https://hub")["tuf_url"] == "https://hub/tuf"
