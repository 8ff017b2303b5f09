"""A PostgreSQL database of the first version that knew one is brought to this one's schema, with what is in it."""

import io
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cloud_hub.database.connection import open_part
from cloud_hub.database.contraction import read_number
from cloud_hub.database.parts import ALL_PARTS, REGION
from cloud_hub.database.tables import effects, sealed
from cloud_hub.region.schema_upgrade import SchemaUpgrade
from tests.cloud_hub.database.first_on_postgres import ROWS, TABLES
from tests.postgres import PostgresServer
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog
from wire.protocol.topics import compute_shard

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

QUESTIONS_THEN = 2000
_SHAPE = (
    "select table_schema, table_name, column_name, data_type, is_nullable from information_schema.columns "
    "where table_schema in ('questions', 'registry', 'access', 'ledger', 'versions', 'rollouts', 'region')"
)
_INDEXES = "select schemaname, indexname from pg_indexes where schemaname not in ('pg_catalog', 'information_schema')"
_CHECKS = "select conname from pg_constraint where contype = 'c' and connamespace = 'region'::regnamespace"


@pytest.fixture
def old(postgres: PostgresServer) -> Iterator[str]:
    url = postgres.create_database()
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for script in (TABLES, ROWS):
            connection.execute(sa.text(script.replace(":", r"\:")))
    yield url
    postgres.drop_database(url)


def read_shape(url: str) -> list[set[tuple[object, ...]]]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return [{tuple(row) for row in connection.exec_driver_sql(text)} for text in (_SHAPE, _INDEXES, _CHECKS)]


def open_all(url: str) -> None:
    for part in ALL_PARTS:
        open_part(url, part).dispose()


def test_every_part_of_the_first_version_on_postgres_gets_the_shape_of_a_new_database(
    old: str, postgres: PostgresServer
):
    new = postgres.create_database()
    open_all(new)
    open_all(old)
    SchemaUpgrade(old, JsonLog(io.StringIO())).advance()
    assert read_shape(old) == read_shape(new)
    engine = sa.create_engine(old, poolclass=sa.NullPool)
    with engine.connect() as connection:
        assert {part.name: read_number(connection, part) for part in ALL_PARTS} == {
            part.name: part.newest for part in ALL_PARTS
        }
    postgres.drop_database(new)


def test_questions_of_schema_2_keep_their_rows_and_get_the_shard_of_their_device(old: str):
    open_all(old)
    engine = sa.create_engine(old, poolclass=sa.NullPool)
    with engine.connect() as connection:
        kept = connection.execute(sa.select(effects.c.device, effects.c.seq, effects.c.verdict, effects.c.shard)).all()
        waiting = connection.execute(sa.select(sealed.c.device, sealed.c.frame, sealed.c.shard)).all()
        devices = connection.exec_driver_sql("select id, state, device_class from registry.devices").all()
        assert connection.exec_driver_sql("select revision from region.changes").scalar_one() == 41
    assert len(kept) == QUESTIONS_THEN
    assert len(waiting) == QUESTIONS_THEN // 2
    assert all((row.verdict == b"v") is (row.seq % 2 == 0) for row in kept)
    assert all(row.shard == compute_shard(row.device) for row in [*kept, *waiting])
    assert {row.frame for row in waiting} == {b"sealed"}
    assert [tuple(row) for row in devices] == [("demo--d1", "active", "")]


def test_a_start_that_is_broken_off_in_the_middle_of_a_migration_leaves_the_database_as_it_was(
    old: str, monkeypatch: pytest.MonkeyPatch
):
    before = read_shape(old)

    def end(_device: str) -> int:
        raise ExitError(ExitCode.SERVER_DOWN, "the server is gone")

    monkeypatch.setattr("cloud_hub.database.parts.compute_shard", end)
    with pytest.raises(ExitError, match="gone"):
        open_all(old)
    monkeypatch.undo()
    after = read_shape(old)
    assert {row for row in after[0] if row[0] == "questions"} == {row for row in before[0] if row[0] == "questions"}
    open_all(old)
    engine = sa.create_engine(old, poolclass=sa.NullPool)
    with engine.connect() as connection:
        assert read_number(connection, REGION) == 1, "it is contracted by a hub that runs"
        assert connection.execute(sa.select(sa.func.count()).select_from(effects)).scalar_one() == QUESTIONS_THEN
