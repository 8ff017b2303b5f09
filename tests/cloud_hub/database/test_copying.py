"""A hub's state is copied from one kind of database to the other and back: every row, or none."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cloud_hub.database.connection import open_part, read_snapshot
from cloud_hub.database.copying import ROWS_AT_ONCE, copy_state
from cloud_hub.database.parts import ACCESS, PARTS, DatabaseUrls
from cloud_hub.database.tables import api_keys, effects
from tests.postgres import PostgresServer
from wire.process.exit_codes import ExitCode, ExitError

pytestmark = pytest.mark.postgres
MANY = ROWS_AT_ONCE * 2 + 7


def fill(urls: DatabaseUrls) -> None:
    """Rows in every table: odd bytes, the largest numbers, texts of every alphabet, and what may be missing."""
    for part, url in urls.items():
        engine = open_part(url, part)
        with engine.begin() as connection:
            for table in part.tables:
                if table.name != "meta":
                    count = MANY if table is effects else 3
                    connection.execute(table.insert(), [make_row(table, number) for number in range(count)])
        engine.dispose()


def make_row(table: sa.Table, number: int) -> dict[str, Any]:
    return {column.name: make_value(column, number) for column in table.c}


def make_value(column: sa.Column[Any], number: int) -> Any:
    if column.nullable and number % 2:
        return None
    kind = column.type.python_type
    if kind is bytes:
        return bytes([0, 255, number % 256]) * 10 + number.to_bytes(2)
    if kind is bool:
        return bool(number % 2)
    return (
        2**62 + number
        if kind is int and column.name in ("epoch", "at_ms")
        else number
        if kind is int
        else f"ё'{number}"
    )


def contents(urls: DatabaseUrls) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for part, url in urls.items():
        engine = open_part(url, part)
        with read_snapshot(engine) as connection:
            for table in part.tables:
                rows = connection.execute(table.select().order_by(*table.primary_key))
                found[f"{part.name}.{table.name}"] = [tuple(row) for row in rows]
        engine.dispose()
    return found


def ignore(_table: str, _rows: int) -> None: ...


@pytest.fixture
def server_urls(postgres: PostgresServer, tmp_path: Path) -> Iterator[DatabaseUrls]:
    url = postgres.create_database()
    yield DatabaseUrls(tmp_path, url)
    postgres.drop_database(url)


@pytest.fixture
def files(tmp_path: Path) -> DatabaseUrls:
    return DatabaseUrls(tmp_path)


def test_every_row_arrives_and_comes_back_as_it_was(files: DatabaseUrls, server_urls: DatabaseUrls, tmp_path: Path):
    fill(files)
    before = contents(files)
    told: dict[str, int] = {}
    counts = copy_state(files, server_urls, told.__setitem__)
    assert contents(server_urls) == before
    assert counts == {name: len(rows) for name, rows in before.items() if not name.endswith(".meta")}
    assert told == counts
    assert contents(files) == before
    home = DatabaseUrls(tmp_path / "home")
    home.folder.mkdir()
    copy_state(server_urls, home, ignore)
    assert contents(home) == before


def test_a_hub_that_never_ran_is_copied_as_empty(files: DatabaseUrls, server_urls: DatabaseUrls):
    assert set(copy_state(files, server_urls, ignore).values()) == {0}


def test_a_target_that_holds_anything_is_refused_and_stays_as_it_was(files: DatabaseUrls, server_urls: DatabaseUrls):
    fill(files)
    engine = open_part(server_urls.access, ACCESS)
    with engine.begin() as connection:
        connection.execute(api_keys.insert(), [make_row(api_keys, 9)])
    engine.dispose()
    before = contents(server_urls)
    with pytest.raises(ExitError, match=r"holds access\.keys already: name an empty database") as stop:
        copy_state(files, server_urls, ignore)
    assert stop.value.code is ExitCode.CHECK_FAILED
    assert contents(server_urls) == before
    assert str(sa.make_url(server_urls.server).password) not in str(stop.value)


def test_what_cannot_be_written_leaves_an_empty_target(files: DatabaseUrls, server_urls: DatabaseUrls):
    """The last part has a text that PostgreSQL cannot hold; by then five parts were written, and none is kept."""
    fill(files)
    with closing(sqlite3.connect(files.folder / PARTS[-1].file)) as db, db:
        db.execute("update history set why = 'a' || char(0) || 'b'")
    with pytest.raises(ExitError) as stop:
        copy_state(files, server_urls, ignore)
    assert "\n" not in str(stop.value)
    assert {name for name, rows in contents(server_urls).items() if rows} == {f"{part.name}.meta" for part in PARTS}


def test_a_part_waits_for_a_large_one_longer_than_the_server_lets_others_idle(
    files: DatabaseUrls, server_urls: DatabaseUrls
):
    fill(files)
    limit_s = 3.0
    hasty = sa.make_url(server_urls.server).update_query_dict(
        {"options": f"-c idle_in_transaction_session_timeout={limit_s:g}s"}
    )

    def take_long(table: str, rows: int) -> None:
        if (table, rows) == ("questions.effects", MANY):
            time.sleep(limit_s + 0.5)

    copy_state(files, DatabaseUrls(files.folder, hasty.render_as_string(hide_password=False)), take_long)
    assert contents(server_urls) == contents(files)
