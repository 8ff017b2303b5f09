"""Tests of the floor database: floors survive and never sink, and a damaged file is set aside and reported."""

import sqlite3

import pytest

from models.update.floors import FLOORS_FILE, FloorDatabase
from models.update.trust import VersionFloor
from wire.process.exit_codes import ExitCode, ExitError

KEYS = frozenset({"a", "b"})


def test_what_was_written_is_there_after_a_restart(tmp_path):
    with FloorDatabase(tmp_path) as db:
        db.raise_root(3, b"root")
        db.raise_floors((VersionFloor("timestamp", 7, KEYS), VersionFloor("meta/targets.json", 2, KEYS)))
        db.write_note("frozen_polls", 2)
    with FloorDatabase(tmp_path) as db:
        assert db.read_floors()["timestamp"] == VersionFloor("timestamp", 7, KEYS)
        assert db.read_floors()["root"] == VersionFloor("root", 3)
        assert db.read_root() == b"root"
        assert db.read_note("frozen_polls") == 2
        assert not db.damaged


def test_every_commit_reaches_the_disk_before_it_returns(tmp_path):
    with FloorDatabase(tmp_path) as db:
        assert db._db.execute("pragma synchronous").fetchone()[0] == 2  # FULL
        assert db._db.execute("pragma journal_mode").fetchone()[0] == "wal"


def test_a_floor_does_not_go_down_on_the_word_of_the_same_keys(tmp_path):
    with FloorDatabase(tmp_path) as db:
        db.raise_floors((VersionFloor("timestamp", 7, KEYS),))
        with pytest.raises(ValueError, match="lowered"):
            db.raise_floors((VersionFloor("snapshot", 1, KEYS), VersionFloor("timestamp", 6, KEYS)))
        assert db.read_floors() == {"timestamp": VersionFloor("timestamp", 7, KEYS)}
        db.raise_floors((VersionFloor("timestamp", 1, frozenset({"new"})),))
        assert db.read_floors()["timestamp"].version == 1


def test_an_older_root_changes_nothing(tmp_path):
    with FloorDatabase(tmp_path) as db:
        db.raise_root(3, b"three")
        db.raise_root(2, b"two")
        db.raise_root(3, b"other three")
        assert db.read_root() == b"three"
        with pytest.raises(ValueError, match="root"):
            db.raise_floors((VersionFloor("root", 9),))


@pytest.mark.parametrize("damage", [b"", b"\0" * 8192, b"no database at all, but long enough to be looked at" * 9])
def test_a_damaged_file_is_set_aside_and_said(tmp_path, damage):
    with FloorDatabase(tmp_path) as db:
        db.raise_floors((VersionFloor("timestamp", 7, KEYS),))
    (tmp_path / FLOORS_FILE).write_bytes(damage)
    with FloorDatabase(tmp_path) as db:
        assert db.damaged
        assert db.read_floors() == {}


def test_floors_of_a_newer_version_are_not_touched(tmp_path):
    connection = sqlite3.connect(tmp_path / FLOORS_FILE)
    connection.execute("pragma user_version = 99")
    connection.close()
    with pytest.raises(ExitError) as caught, FloorDatabase(tmp_path):
        pass
    assert caught.value.code is ExitCode.DATABASE


def test_a_folder_that_cannot_be_written_is_an_error_of_the_disk_not_damage(tmp_path):
    with pytest.raises(sqlite3.OperationalError), FloorDatabase(tmp_path / "nowhere"):
        pass
