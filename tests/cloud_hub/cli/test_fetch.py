"""`skerry hub fetch`: a version, both parts, from another hub; every mistake is one line that says what to do."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from cloud_hub.repository.publish import publish_bundle
from tests.cloud_hub.doubles.fleet import NOW, Holder, Hub
from tests.cloud_hub.doubles.versions import make_version
from tests.cloud_hub.repository.test_fetch import served
from tests.in_process import skerry
from tests.models.doubles.mirror import Mirror
from wire.process.exit_codes import ExitCode


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    hub = Hub(tmp_path / "there")
    hub.install(Holder.begin(tmp_path / "ring", hub.export(hold=("policy", "models-echo"))))
    publish_bundle(hub.repository, make_version(tmp_path / "made").path, NOW)
    return hub


@pytest.fixture
def mirror(hub: Hub) -> Iterator[Mirror]:
    with Mirror(served(hub)) as mirror:
        yield mirror


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The hub that fetches."""
    (tmp_path / "models").mkdir()
    config = tmp_path / "hub.toml"
    config.write_text('state = "state"\nmodels_folder = "models"\n')
    token = tmp_path / "there.key"
    token.write_text("key\n")
    token.chmod(0o600)
    return tmp_path


def fetched(here, mirror, *words, model="echo@1"):
    given = ("--from", mirror.url, "--config", str(here / "hub.toml"), "--token-file", str(here / "there.key"))
    return skerry("hub", "fetch", model, *given, *words)


def root_of(hub):
    return sha256(hub.repository.read_root()).hexdigest()


def test_the_root_is_named_once_and_the_version_lies_where_the_hub_serves_from(hub, mirror, here):
    first = fetched(here, mirror, "--root", root_of(hub), "--json")
    assert (first.returncode, first.stderr) == (0, "")
    facts = json.loads(first.stdout)
    assert (facts["model"], facts["new"], facts["folder"]) == ("echo@1", True, str(here / "models" / "echo@1"))
    assert (here / "models" / "echo@1" / "hub" / "part.json").is_file()
    again = fetched(here, mirror)
    assert again.stdout.startswith("there already: echo@1 in ")


def test_another_folder_can_be_named(hub, mirror, here):
    (here / "else").mkdir()
    assert fetched(here, mirror, "--root", root_of(hub), "--out", str(here / "else")).returncode == 0
    assert (here / "else" / "echo@1" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ((), ExitCode.CREDENTIALS, "say whose it is by --root"),
        (("--root", "abc"), ExitCode.USAGE, "64 hex digits"),
        (("--root", "0" * 64), ExitCode.CREDENTIALS, "has no root with this SHA-256"),
        (("--from", "ftp://x/tuf"), ExitCode.USAGE, "is no address"),
        (("--from", "http://user@127.0.0.1/"), ExitCode.USAGE, "is no address"),
        (("--from", "http://hub.example/tuf"), ExitCode.USAGE, "would read the key; use https"),
        (("--from", "https://127.0.0.1:9/tuf", "--ca", "/nowhere"), ExitCode.MISSING, "/nowhere"),
        (("--out", "/nowhere"), ExitCode.MISSING, "/nowhere: no such file or folder"),
        (("--token-file", "/nowhere"), ExitCode.MISSING, "/nowhere"),
    ],
)
def test_every_mistake_is_one_line_and_leaves_nothing(mirror, here, words, code, line):
    result = fetched(here, mirror, *words)
    assert result.returncode == code
    assert line in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list((here / "models").iterdir()) == []


def test_a_hub_that_serves_from_no_folder_is_told_to_name_one(mirror, here):
    (here / "hub.toml").write_text('state = "state"\n')
    result = fetched(here, mirror)
    assert (result.returncode, "set models_folder" in result.stderr) == (ExitCode.CONFIG, True)
