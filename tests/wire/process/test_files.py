"""Private files: mode 0600, written whole, and refused if others can read them."""

import os
import stat
from pathlib import Path

import pytest

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import list_set_aside, read_private_file, set_database_aside, write_private_file


def test_a_secret_is_private_whole_and_replaced_as_one(tmp_path):
    path = tmp_path / "key"
    old = os.umask(0)
    try:
        for text in (b"first", b"second"):
            write_private_file(path, text)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert read_private_file(path) == text
    finally:
        os.umask(old)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(tmp_path, mode):
    path = tmp_path / "key"
    write_private_file(path, b"x")
    path.chmod(mode)
    with pytest.raises(ExitError, match="chmod 600") as caught:
        read_private_file(path)
    assert caught.value.code is ExitCode.CREDENTIALS


def test_what_cannot_be_written_or_read_is_one_line_and_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    for path, code in ((tmp_path / "no" / "key", ExitCode.DISK), (tmp_path / "taken", ExitCode.DISK)):
        with pytest.raises(ExitError) as caught:
            write_private_file(path, b"x")
        assert caught.value.code is code
    with pytest.raises(ExitError) as caught:
        read_private_file(tmp_path / "nothing")
    assert caught.value.code is ExitCode.MISSING
    assert [p.name for p in Path(tmp_path).iterdir()] == ["taken"]


def test_a_damaged_database_is_set_aside_with_its_side_files_and_listed_until_it_is_moved(tmp_path):
    path = tmp_path / "x.db"
    assert list_set_aside(path) == []
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).write_text(suffix)
    name = set_database_aside(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == [name, f"{name}-shm", f"{name}-wal"]
    assert list_set_aside(path) == [name]
    (tmp_path / name).unlink()
    assert list_set_aside(path) == []
