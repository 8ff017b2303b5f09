"""Backup and restore of a device as typed: what comes back, and what each refusal ends with."""

import json
import os
from pathlib import Path

import pytest

from edge_agent.identity.identity import load_identity
from tests.edge_agent.doubles.device import DEVICE, write_device
from tests.in_process import skerry
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "one").mkdir()
    return write_device(tmp_path / "one")


@pytest.fixture
def archive(config: Path, tmp_path: Path) -> Path:
    file = tmp_path / "cam.backup"
    done = skerry("agent", "backup", str(file), "--config", str(config), "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    told = json.loads(done.stdout)
    assert (told["kind"], told["name"], told["sealed"]) == ("agent", DEVICE, False)
    return file


def test_a_device_comes_back_with_its_configuration_on_another_machine(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    config = tmp_path / "two" / "agent.toml"
    done = skerry("agent", "restore", str(archive), "--config", str(config))
    assert done.returncode == ExitCode.OK, done.stderr
    assert "start the agent" in done.stdout
    assert load_identity(tmp_path / "two" / "device").device == DEVICE
    assert config.read_text() == (tmp_path / "one" / "agent.toml").read_text()


def test_a_passphrase_may_come_from_a_pipe(config: Path, tmp_path: Path) -> None:
    def piped(*words: str) -> int:
        reading, writing = os.pipe()
        os.write(writing, b"correct horse\n")
        os.close(writing)
        done = skerry(*words, "--passphrase-file", f"/dev/fd/{reading}")
        os.close(reading)
        return done.returncode

    (tmp_path / "two").mkdir()
    assert piped("agent", "backup", str(tmp_path / "x"), "--config", str(config)) == ExitCode.OK
    again = str(tmp_path / "two" / "agent.toml")  # of the configuration, too, the backup has the only copy
    assert piped("agent", "restore", str(tmp_path / "x"), "--config", again) == ExitCode.OK


def test_a_restore_beside_a_running_agent_is_refused_and_so_is_one_over_a_device(config: Path, archive: Path) -> None:
    words = ("agent", "restore", str(archive), "--config", str(config))
    with FolderLock(config.parent / "device"):
        assert skerry(*words, "--force").returncode == ExitCode.LOCKED
    done = skerry(*words)
    assert (done.returncode, "--force" in done.stderr) == (ExitCode.USAGE, True)
    assert skerry(*words, "--force").returncode == ExitCode.OK


def test_no_hub_is_made_of_a_device_and_no_configuration_is_left(archive: Path, tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    done = skerry("hub", "restore", str(archive), "--config", str(config))
    assert (done.returncode, "of an agent, not of a hub" in done.stderr) == (ExitCode.DATABASE, True)
    assert not config.exists()
    done = skerry("keys", "restore", str(archive), "--dir", str(tmp_path / "ring"))
    assert (done.returncode, "of an agent, not of a folder of keys" in done.stderr) == (ExitCode.DATABASE, True)


def test_a_backup_without_an_identity_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = skerry("agent", "backup", str(tmp_path / "x"), "--dir", str(tmp_path / "empty"))
    assert done.returncode == ExitCode.MISSING
    assert not (tmp_path / "x").exists()
