"""A database of a hub that is gone is refused at every start, by name, until a backup or a person's word is there."""

import shutil
from pathlib import Path

import pytest

from cloud_hub.database.connection import open_part, open_sound
from cloud_hub.database.marks import find_mark, forget_database
from cloud_hub.database.parts import PARTS, DatabasePart, DatabaseUrls
from cloud_hub.runtime.bootstrap import open_state
from cloud_hub.runtime.config import HubConfig
from cloud_hub.storage.store import Store
from wire.process.exit_codes import ExitCode, ExitError

of_each_part = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder in which every database was open."""
    for part in PARTS:
        open_part(tmp_path / part.file, part).dispose()
    return tmp_path


def lose(file: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()


def empty(file: Path) -> None:
    lose(file)
    file.touch()


def drop_tables(file: Path) -> None:
    lose(file)
    open_bare = DatabasePart("questions", file.name)
    engine = open_sound(f"sqlite:///{file}.other", open_bare)
    with engine.begin() as connection:
        names = [row[0] for row in connection.exec_driver_sql("select name from sqlite_master where type='table'")]
        for name in names:
            connection.exec_driver_sql(f"drop table {name}")
    engine.dispose()
    Path(f"{file}.other").rename(file)


@of_each_part
@pytest.mark.parametrize("damage", [lose, empty, drop_tables], ids=lambda each: each.__name__)
def test_a_lost_database_is_refused_by_name_and_stays_refused(folder: Path, part: DatabasePart, damage):
    damage(folder / part.file)
    for _ in range(2):
        with pytest.raises(ExitError, match=f"{part.file} is missing or empty.*--begin-anew {part.file}") as stop:
            open_part(folder / part.file, part)
        assert stop.value.code is ExitCode.DATABASE_LOST


@of_each_part
def test_a_hub_does_not_start_without_a_database_that_it_had_and_makes_nothing_in_its_place(
    folder: Path, part: DatabasePart
):
    lose(folder / part.file)
    before = sorted(folder.iterdir())
    with pytest.raises(ExitError) as stop:
        open_state(HubConfig(state=folder))
    assert stop.value.code is ExitCode.DATABASE_LOST
    assert [path for path in folder.iterdir() if path not in before and path.suffix == ".db"] == []


@of_each_part
def test_a_person_may_begin_a_lost_database_anew_but_none_that_is_there(folder: Path, part: DatabasePart):
    file = folder / part.file
    with pytest.raises(ExitError, match="move it away first"):
        forget_database(file)
    lose(file)
    forget_database(file)
    open_part(file, part).dispose()
    assert find_mark(file).exists()


@of_each_part
def test_a_folder_of_a_release_without_marks_gets_them(folder: Path, part: DatabasePart):
    find_mark(folder / part.file).unlink()
    open_part(folder / part.file, part).dispose()
    assert find_mark(folder / part.file).exists()


def test_a_database_brought_back_from_a_copy_is_served(folder: Path, tmp_path: Path):
    file = folder / "hub.db"
    shutil.copy(file, tmp_path / "copy")
    lose(file)
    shutil.copy(tmp_path / "copy", file)
    Store.open(DatabaseUrls(folder).questions).close()


def test_a_damaged_database_that_was_set_aside_is_no_lost_one(folder: Path):
    (folder / "hub.db").write_bytes(b"rubbish" * 1000)
    store = Store.open(DatabaseUrls(folder).questions)
    assert store.damaged
    store.close()
    Store.open(DatabaseUrls(folder).questions).close()
