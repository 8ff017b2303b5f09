"""The files of a broker that is no hub's child: of a hub on files here, of a region on a real PostgreSQL server."""

import shutil
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from cloud_hub.runtime.bootstrap import open_state
from cloud_hub.runtime.broker_files import RESTART_STAMP, BrokerFiles, NoRegionYetError
from cloud_hub.runtime.config import HubConfig
from cloud_hub.security.authority import utc_now
from tests.postgres import PostgresServer
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError

OUTSIDE = {"start": False, "host": "broker.example", "port": 18883, "names": ["mqtt.example"]}
EVERY = {"mosquitto.conf", "acl", "server.pem", "server.key", "ca.pem", RESTART_STAMP}


def configured(tmp_path: Path, **more: object) -> HubConfig:
    return HubConfig(state=tmp_path / "hub", broker=OUTSIDE, **more)  # type: ignore[arg-type]


@pytest.fixture
def config(tmp_path: Path) -> HubConfig:
    """A hub on files that has been started once."""
    open_state(configured(tmp_path))
    return configured(tmp_path)


def refused(config: HubConfig, folder: Path) -> ExitError:
    with pytest.raises(ExitError) as stop:
        BrokerFiles(config, folder, "0.0.0.0").write()
    assert "\n" not in str(stop.value)
    return stop.value


def test_a_broker_gets_its_configuration_rules_and_a_certificate_for_its_own_names_alone(config, tmp_path):
    folder = tmp_path / "broker"
    BrokerFiles(config, folder, "0.0.0.0").write()
    assert {path.name for path in folder.iterdir()} == EVERY | {"ca"}
    assert stat.S_IMODE((folder / "server.key").stat().st_mode) == 0o600
    text = (folder / "mosquitto.conf").read_text()
    assert "listener 18883 0.0.0.0\n" in text
    assert f"capath {folder}/ca\n" in text
    assert str(config.state) not in text
    issued = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    named = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(each.value) for each in named} == {"localhost", "127.0.0.1", "broker.example", "mqtt.example"}


def test_no_key_of_the_authority_lies_in_the_brokers_folder(config, tmp_path):
    BrokerFiles(config, tmp_path / "broker", "0.0.0.0").write()
    secrets = [path.read_bytes() for path in (tmp_path / "hub").rglob("*.key")]
    assert secrets
    found = b"".join(path.read_bytes() for path in (tmp_path / "broker").rglob("*") if path.is_file())
    assert not [secret for secret in secrets if secret in found]


def test_what_is_as_it_should_be_is_not_written_again(config, tmp_path):
    files = BrokerFiles(config, tmp_path / "broker", "0.0.0.0")
    assert set(files.write()) >= EVERY - {RESTART_STAMP}
    before = (tmp_path / "broker" / RESTART_STAMP).read_text()
    assert files.write() == []
    assert (tmp_path / "broker" / RESTART_STAMP).read_text() == before


def test_a_second_authority_is_added_without_a_restart_and_the_end_of_a_rotation_asks_for_one(config, tmp_path):
    files, stamp = BrokerFiles(config, tmp_path / "broker", "0.0.0.0"), tmp_path / "broker" / RESTART_STAMP
    files.write()
    before = stamp.read_text()
    authorities = open_state(config).authorities
    authorities.begin_rotation(utc_now() + timedelta(seconds=1))
    assert all(name.startswith("ca") for name in files.write())
    assert len(list((tmp_path / "broker" / "ca").iterdir())) == 2
    assert stamp.read_text() == before
    authorities.finish_rotation()
    assert {"server.pem", "server.key"} <= set(files.write())
    assert len(list((tmp_path / "broker" / "ca").iterdir())) == 1
    assert stamp.read_text() != before


def test_a_hub_that_runs_its_broker_itself_writes_its_files_itself(tmp_path):
    with pytest.raises(ExitError, match="start is true") as stop:
        BrokerFiles(HubConfig(state=tmp_path / "hub"), tmp_path / "broker", "0.0.0.0")
    assert stop.value.code is ExitCode.CONFIG


def test_without_a_hub_or_beside_a_running_one_on_files_nothing_is_written(tmp_path):
    assert refused(configured(tmp_path), tmp_path / "broker").code is ExitCode.CONFIG
    state = open_state(configured(tmp_path)).state
    with FolderLock(state.root):
        assert refused(configured(tmp_path), tmp_path / "broker").code is ExitCode.LOCKED
    assert not list((tmp_path / "broker").iterdir())


@pytest.mark.postgres
@pytest.mark.timeout(120)
def test_the_broker_of_a_region_waits_for_its_first_hub_and_stands_beside_running_ones(
    tmp_path: Path, postgres: PostgresServer
):
    store = {"url": postgres.create_database()}
    files = BrokerFiles(configured(tmp_path / "other", store=store), tmp_path / "broker", "0.0.0.0")
    with pytest.raises(NoRegionYetError):
        files.write()
    first = configured(tmp_path, store=store)
    ground = open_state(first)
    with FolderLock(ground.state.root):
        refusal = refused(configured(tmp_path / "other", store=store), tmp_path / "broker")
        assert refusal.code is ExitCode.REGION_KEY, "it has no key yet"
        assert str(tmp_path / "other" / "hub" / "region.key") in str(refusal)
        (tmp_path / "other" / "hub").mkdir(parents=True)
        shutil.copy2(ground.state.root / "region.key", tmp_path / "other" / "hub")
        files.write()
        assert (tmp_path / "broker" / "ca.pem").read_bytes() == ground.ca_file.read_bytes()
        BrokerFiles(first, tmp_path / "broker", "0.0.0.0").write()
    assert [path.name for path in (tmp_path / "other" / "hub").iterdir()] == ["region.key"]
