"""Files that hubs of a region share in a real PostgreSQL database: sealed, copied, and refused under another key."""

import contextlib
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from cloud_hub.database.tables import changes
from cloud_hub.database.tables import shared_files as rows
from cloud_hub.region.shared_files import RegionFacts, SharedFiles
from tests.postgres import PostgresServer
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]
FACTS = RegionFacts("north", "eu-north", "broker.example", 18883)
SECRET = b"the CA's own key"


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.create_database()


def write(folder: Path, path: str, data: bytes) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    write_private_file(folder / path, data)


@pytest.fixture
def first(tmp_path: Path, url: str) -> Iterator[SharedFiles]:
    """The hub that a region begins with, its files stored."""
    folder = tmp_path / "first"
    write(folder, "pki/ca.key", SECRET)
    write(folder, "keys/hpke-0001.key", b"one")
    write(folder, "repository/metadata-1/timestamp.json", b"{}")
    (folder / "repository" / "metadata").symlink_to("metadata-1")
    with contextlib.closing(SharedFiles.open(url, folder, FACTS)) as shared:
        shared.sync()
        yield shared


@pytest.fixture
def second(tmp_path: Path, url: str, first: SharedFiles) -> Iterator[SharedFiles]:
    """A hub that has joined."""
    assert first.facts == FACTS
    (tmp_path / "second").mkdir()
    shutil.copy(tmp_path / "first" / "region.key", tmp_path / "second")
    with contextlib.closing(SharedFiles.open(url, tmp_path / "second")) as shared:
        shared.sync()
        yield shared


def refused(url: str, folder: Path) -> str:
    with pytest.raises(ExitError) as stop, contextlib.closing(SharedFiles.open(url, folder, FACTS)) as shared:
        shared.sync()
    assert stop.value.code is ExitCode.REGION_KEY
    assert "\n" not in str(stop.value)
    return str(stop.value)


def test_a_hub_that_joins_has_what_the_region_has(second: SharedFiles, tmp_path: Path):
    folder = tmp_path / "second"
    assert second.facts == FACTS
    assert (folder / "pki" / "ca.key").read_bytes() == SECRET
    assert stat.S_IMODE((folder / "pki" / "ca.key").stat().st_mode) == 0o600
    assert (folder / "repository" / "metadata" / "timestamp.json").read_bytes() == b"{}"
    assert (folder / "repository" / "metadata").is_symlink()


def test_nothing_lies_in_the_database_in_the_clear(first: SharedFiles, url: str):
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        found = list(connection.execute(rows.select()))
    assert len(found) == 5
    assert not [row for row in found if any(part in bytes(row.sealed) for part in (SECRET, b"one", b"north"))]
    assert first.sync() == first.sync()


def test_what_one_hub_adds_changes_or_destroys_the_other_does_too(
    first: SharedFiles, second: SharedFiles, tmp_path: Path
):
    mine, theirs = tmp_path / "first", tmp_path / "second"
    write(mine, "keys/hpke-0002.key", b"two")
    (mine / "keys" / "hpke-0001.key").unlink()
    first.sync()
    assert second.sync().fetch == ("keys/hpke-0002.key",)
    assert sorted(path.name for path in (theirs / "keys").iterdir()) == ["hpke-0002.key"]
    write(theirs, "pki/ca-next.key", b"next")
    second.sync()
    assert first.sync().fetch == ("pki/ca-next.key",)


def test_of_two_that_changed_one_file_the_first_counts_and_the_other_is_told(
    first: SharedFiles, second: SharedFiles, tmp_path: Path
):
    write(tmp_path / "first", "keys/hpke-0002.key", b"mine")
    write(tmp_path / "second", "keys/hpke-0002.key", b"theirs")
    first.sync()
    assert second.sync().conflicts == ("keys/hpke-0002.key",)
    assert (tmp_path / "second" / "keys" / "hpke-0002.key").read_bytes() == b"mine"


def test_a_database_restored_from_yesterday_gets_what_came_since(first: SharedFiles, url: str, tmp_path: Path):
    write(tmp_path / "first", "keys/hpke-0002.key", b"two")
    first.sync()
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(rows.delete().where(rows.c.path == "keys/hpke-0002.key"))
        connection.execute(changes.update().values(revision=1))
    assert first.sync().store == ("keys/hpke-0002.key",)
    assert (tmp_path / "first" / "keys" / "hpke-0002.key").exists()


def test_another_regions_key_is_refused(first: SharedFiles, postgres: PostgresServer, url: str, tmp_path: Path):
    assert first.facts == FACTS
    (tmp_path / "other").mkdir()
    with contextlib.closing(SharedFiles.open(postgres.create_database(), tmp_path / "other", FACTS)):
        assert "another region's key" in refused(url, tmp_path / "other")


def test_a_hub_without_the_key_is_told_where_to_copy_it(first: SharedFiles, url: str, tmp_path: Path):
    assert first.facts == FACTS
    (tmp_path / "bare").mkdir()
    assert str(tmp_path / "bare" / "region.key") in refused(url, tmp_path / "bare")
    write(tmp_path / "bare", "region.key", b"no key")
    assert "is no region's key" in refused(url, tmp_path / "bare")


def test_a_hub_with_a_ca_of_its_own_cannot_slip_in(first: SharedFiles, url: str, tmp_path: Path):
    assert first.facts == FACTS
    write(tmp_path / "own", "pki/ca.key", b"another")
    shutil.copy(tmp_path / "first" / "region.key", tmp_path / "own")
    assert "a CA of its own" in refused(url, tmp_path / "own")
    assert (tmp_path / "own" / "pki" / "ca.key").read_bytes() == b"another"


def test_a_row_that_was_changed_or_moved_is_refused(first: SharedFiles, second: SharedFiles, url: str, tmp_path: Path):
    write(tmp_path / "first", "keys/reply.key", b"reply")
    first.sync()
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        other = sa.select(rows.c.sealed).where(rows.c.path == "pki/ca.key").scalar_subquery()
        connection.execute(rows.update().where(rows.c.path == "keys/reply.key").values(sealed=other))
    with pytest.raises(ExitError, match="was changed") as stop:
        second.sync()
    assert stop.value.code is ExitCode.REGION_KEY
