"""Backup and restore of a hub as typed: its numbers rise, those of a region stay, what it cannot read is refused."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cloud_hub.registry.registry import Registry
from cloud_hub.security.hub_keys import RESTORE_JUMP, newest_key_number
from tests.in_process import skerry
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "hub.toml"
    file.write_text(f'state = "{tmp_path / "hub"}"\n')
    assert skerry("hub", "init", "--config", str(file)).returncode == ExitCode.OK
    return file


def back_up(config: Path, name: str) -> Path:
    file = config.parent / name
    done = skerry("hub", "backup", str(file), "--config", str(config), "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    assert json.loads(done.stdout)["kind"] == "hub"
    return file


def test_a_restored_hub_has_its_authority_and_a_key_of_a_higher_number(config: Path, tmp_path: Path) -> None:
    archive = back_up(config, "hub.backup")
    (tmp_path / "hub").rename(tmp_path / "lost")
    config.unlink()
    done = skerry("hub", "restore", str(archive), "--config", str(config))
    assert done.returncode == ExitCode.OK, done.stderr
    assert "revoked, retired or denied since" in done.stdout
    assert newest_key_number(tmp_path / "hub" / "keys") == 1 + RESTORE_JUMP
    for name in ("pki/ca.key", "keys/reply.key"):
        assert (tmp_path / "hub" / name).read_bytes() == (tmp_path / "lost" / name).read_bytes()
    checked = skerry("hub", "init", "--config", str(config))
    assert checked.returncode == ExitCode.OK, checked.stderr


def test_a_hub_that_runs_and_one_that_is_there_are_left_alone(config: Path) -> None:
    archive = back_up(config, "hub.backup")
    words = ("hub", "restore", str(archive), "--config", str(config))
    with FolderLock(config.parent / "hub"):
        assert skerry(*words, "--force").returncode == ExitCode.LOCKED
    assert skerry(*words).returncode == ExitCode.USAGE
    assert newest_key_number(config.parent / "hub" / "keys") == 1


def test_a_database_of_a_newer_version_is_refused_and_nothing_is_changed(config: Path, tmp_path: Path) -> None:
    database = tmp_path / "hub" / "devices.db"
    Registry.open(database).close()
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("insert or replace into meta values ('schema', '99')")
    archive = back_up(config, "hub.backup")
    (tmp_path / "hub").rename(tmp_path / "lost")
    done = skerry("hub", "restore", str(archive), "--config", str(config))
    assert (done.returncode, "newer" in done.stderr) == (ExitCode.DATABASE, True), done.stderr
    assert {path.name for path in (tmp_path / "hub").iterdir()} == {"lock"}


def test_of_a_hub_on_a_server_only_the_folder_is_in_it_and_its_keys_stay(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text() + '[store]\nurl = "postgresql+psycopg://hub@127.0.0.1:1/skerry"\n')
    archive = back_up(config, "hub.backup")
    (tmp_path / "hub").rename(tmp_path / "lost")
    done = skerry("hub", "restore", str(archive), "--config", str(config))
    assert done.returncode == ExitCode.OK, done.stderr
    assert "pg_dump" in done.stdout
    assert newest_key_number(tmp_path / "hub" / "keys") == 1
