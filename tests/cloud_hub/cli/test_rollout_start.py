"""`skerry rollout start FOLDER`: publishing and copying a bundle before the hub is asked."""

from contextlib import nullcontext
from pathlib import Path

import pytest

import models
from cloud_hub.cli.publish import prepare_bundle
from cloud_hub.repository.signing_keys import OnlineKeys
from cloud_hub.runtime.config import load_hub_config
from models.signing.request import load_request
from models.signing.review import describe_request
from tests.cloud_hub.doubles.fleet import Holder, Hub
from tests.models.conftest import echo_graph, make
from wire.process.exit_codes import ExitCode, ExitError

TOML = 'state = "state"\nmodels_folder = "models"\n'


def hub(folder: Path, *hold: str) -> Path:
    """A hub that signs these roles itself; its configuration."""
    made = Hub(folder / "state")
    made.repository.online = OnlineKeys(folder / "state" / "keys" / "online")
    made.install(Holder.begin(folder / "ring", made.export(hold=hold)))
    (folder / "models").mkdir()
    (folder / "hub.toml").write_text(TOML)
    return folder / "hub.toml"


def test_a_bundle_is_published_once_and_laid_where_the_hub_finds_it(tmp_path):
    config, bundle = hub(tmp_path, "models-echo"), make(tmp_path / "mine", version=3)
    assert load_hub_config(config).models_folder == tmp_path / "models"
    for _ in range(2):
        assert prepare_bundle(bundle.path, config, None) == "echo@3"
    (laid,) = (tmp_path / "models").iterdir()
    assert sorted(path.name for path in laid.iterdir()) == sorted(path.name for path in bundle.path.iterdir())


@pytest.mark.parametrize("named", [False, True])
def test_a_bundle_whose_key_lies_elsewhere_waits_for_its_signature(tmp_path, named):
    config, bundle = hub(tmp_path), make(tmp_path / "mine" / "echo", version=3)
    folder = tmp_path / "requests" if named else tmp_path / "mine"
    with pytest.raises(ExitError, match=rf"skerry keys sign {folder}/echo-3\.request\.json") as caught:
        prepare_bundle(bundle.path, config, None, folder if named else None)
    assert caught.value.code is ExitCode.WAITING
    (line, _) = describe_request(load_request((folder / "echo-3.request.json").read_bytes()))
    assert line.startswith("models-echo 2")
    assert not list((tmp_path / "models").iterdir())


@pytest.mark.parametrize("hold", [(), ("models-echo",)])
def test_nothing_new_lies_in_the_current_folder_or_in_the_package(tmp_path, monkeypatch, hold):
    (tmp_path / "site").mkdir()
    (tmp_path / "elsewhere").mkdir()
    config, bundle = hub(tmp_path / "site", *hold), make(tmp_path / "mine" / "echo", version=3)
    package = Path(models.__path__[0])
    before = set(package.iterdir())
    monkeypatch.chdir(tmp_path / "elsewhere")
    with nullcontext() if hold else pytest.raises(ExitError):
        prepare_bundle(bundle.path, config, None)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert set(package.iterdir()) == before


def test_a_folder_that_takes_no_request_is_said(tmp_path):
    config, bundle = hub(tmp_path), make(tmp_path / "mine" / "echo", version=3)
    with pytest.raises(ExitError, match="--out") as caught:
        prepare_bundle(bundle.path, config, None, config)
    assert caught.value.code is ExitCode.DISK


def test_what_is_no_bundle_is_said(tmp_path):
    with pytest.raises(ExitError) as caught:
        prepare_bundle(tmp_path, hub(tmp_path, "models-echo"), None)
    assert caught.value.code is ExitCode.MODEL


def test_another_content_under_a_published_version_is_refused(tmp_path):
    config = hub(tmp_path, "models-echo")
    prepare_bundle(make(tmp_path / "one", version=3).path, config, None)
    with pytest.raises(ExitError, match="raise the version") as caught:
        prepare_bundle(make(tmp_path / "two", echo_graph(2.0), version=3).path, config, None)
    assert caught.value.code is ExitCode.CHECK_FAILED
