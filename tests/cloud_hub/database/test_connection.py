"""Parts of a hub's state on both databases: creation, older and newer schemas, damaged files, widths of numbers."""

import contextlib
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from cloud_hub.database.connection import as_url, connect_part, open_part, read_snapshot, sqlite_file
from cloud_hub.database.parts import (
    ACCESS,
    LEDGER,
    PARTS,
    QUESTIONS,
    REGION,
    REGISTRY,
    ROLLOUTS,
    DatabasePart,
    DatabaseUrls,
)
from cloud_hub.database.statements import build_upsert, lock_exclusively, write_rows
from cloud_hub.database.tables import devices, meta, metadata, spend, tallies
from cloud_hub.registry.access import ApiKeys
from cloud_hub.rollout.store import RolloutStore, read_counters
from cloud_hub.storage.ledger_log import LedgerLog
from cloud_hub.storage.versions import ModelUsageStore
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.messages import ModelRef

YEAR_3000_MS = 32_503_680_000_000
of_each_part = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)


@contextlib.contextmanager
def opened(urls: DatabaseUrls, part: DatabasePart) -> Iterator[sa.Engine]:
    engine = open_part(urls.url_of(part), part)
    yield engine
    engine.dispose()


@of_each_part
def test_a_part_is_created_once_and_opened_afterwards(urls: DatabaseUrls, part: DatabasePart):
    number = meta[part.name]
    for _ in range(2):
        with opened(urls, part) as engine, engine.begin() as connection:
            assert connection.execute(number.select()).all() == [("schema", str(part.schema))]
            for table in part.tables:
                connection.execute(sa.select(sa.func.count()).select_from(table)).one()


@of_each_part
def test_a_part_of_a_newer_program_is_refused_and_left_alone(urls: DatabaseUrls, part: DatabasePart):
    number = meta[part.name]
    with opened(urls, part) as engine, engine.begin() as connection:
        connection.execute(number.update().values(value="99"))
    with pytest.raises(ExitError, match="update the program") as stop:
        open_part(urls.url_of(part), part)
    assert stop.value.code is ExitCode.DATABASE
    assert "\n" not in str(stop.value)
    engine = connect_part(urls.url_of(part), part)
    with engine.connect() as connection:
        assert connection.execute(number.select()).all() == [("schema", "99")]
    engine.dispose()


@of_each_part
def test_a_file_is_private_and_a_damaged_one_is_refused_in_one_line(tmp_path: Path, part: DatabasePart):
    with opened(DatabaseUrls(tmp_path), part):
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    path = tmp_path / part.file
    path.write_bytes(b"this is no database, but long enough to be read as one" * 40)
    with pytest.raises(ExitError, match="restore") as stop:
        open_part(path, part)
    assert stop.value.code is ExitCode.DATABASE
    assert "\n" not in str(stop.value)


def test_every_table_belongs_to_one_part_and_no_number_is_narrower_than_64_bits() -> None:
    assert {table.schema for table in metadata.sorted_tables} == {part.name for part in (*PARTS, REGION)}
    times = [column for table in metadata.sorted_tables for column in table.c if column.name.endswith("_ms")]
    assert len(times) > 20
    assert [str(column) for column in times if not isinstance(column.type, sa.BigInteger)] == []


def test_times_far_beyond_32_bits_come_back_as_they_were_written(urls: DatabaseUrls):
    row = {"device": "demo--d1", "account": "bytes", "period": YEAR_3000_MS, "amount": 2**62}
    with opened(urls, LEDGER) as engine:
        with engine.begin() as connection:
            write_rows(connection, spend, [row])
        with read_snapshot(engine) as connection:
            assert [dict(found) for found in connection.execute(spend.select()).mappings()] == [row]


def test_an_upsert_keeps_the_larger_adds_or_replaces_as_it_is_told(urls: DatabaseUrls):
    first = {"day": 1, "model": "m", "label": 2, "count": 5}
    with opened(urls, QUESTIONS) as engine, engine.begin() as connection:
        lock_exclusively(connection, "tallies")
        for more, expected in (((), 3), (("count",), 6)):
            connection.execute(build_upsert(connection, tallies, added=more), {**first, "count": 3})
            assert connection.execute(sa.select(tallies.c["count"])).scalar_one() == expected
        write_rows(connection, tallies, [{**first, "count": 4}], raised=("count",))
        assert connection.execute(sa.select(tallies.c["count"])).scalar_one() == 6
        write_rows(connection, tallies, [])


def test_two_parts_with_a_table_of_one_name_do_not_meet(urls: DatabaseUrls):
    with opened(urls, REGISTRY) as registry, opened(urls, ROLLOUTS) as rollouts:
        for engine, columns in ((registry, len(devices.c)), (rollouts, 3)):
            part = REGISTRY if engine is registry else ROLLOUTS
            table = metadata.tables[f"{part.name}.devices"]
            with engine.connect() as connection:
                assert len(connection.execute(table.select()).keys()) == columns


def test_what_names_a_file_and_what_does_not(tmp_path: Path):
    path = tmp_path / "with a space?.db"
    assert sqlite_file(as_url(path)) == path
    assert sqlite_file("sqlite://") is None
    assert sqlite_file("postgresql+psycopg://hub@db/skerry") is None
    assert ACCESS.schema == 1


# Files as the versions before wrote them, without a `meta` table.

OLD_ACCESS = """
create table keys (
  id text primary key, name text not null, tenant text not null, scopes text not null,
  made_ms integer not null, ends_ms integer not null, revoked_ms integer not null, digest blob not null
) strict;
insert into keys values ('3f9a2c3f9a2c', 'ward', 'clinic', 'infer read', 5, 0, 0, x'00');
"""
OLD_LEDGER = """
create table nodes(level integer, place integer, hash blob not null, primary key(level, place)) without rowid;
create table leaves(
  place integer primary key, device text not null, signer blob not null, epoch integer not null,
  entries integer not null, at_ms integer not null, head blob not null, signature blob not null,
  received_ms integer not null, epochs integer not null, flaw text not null);
create index leaves_device on leaves(device, epoch, entries);
create table spend(
  device text not null, account text not null, period integer not null, amount integer not null,
  primary key(device, account, period)) without rowid;
create table facts(name text primary key, value integer not null) without rowid;
insert into facts values ('begun_ms', 42);
insert into spend values ('demo--d1', 'bytes', 20, 700);
pragma user_version=1;
"""
OLD_VERSIONS = """
create table spoken (device text, name text, version integer, cut text, codec text, at_ms integer,
    primary key (device, name, version, cut, codec)) without rowid;
create table retired (model text primary key, at_ms integer) without rowid;
insert into spoken values ('demo--d1', 'digits', 7, 'tail', 'raw', 9);
insert into retired values ('digits@1', 3);
"""
OLD_ROLLOUTS = """
create table rollouts(
  id text primary key, family text not null, made_ms integer not null, changed_ms integer not null,
  open integer not null, revision integer not null, plan blob not null, head blob not null) without rowid;
create table devices(
  rollout text not null, device text not null, facts blob not null, primary key(rollout, device)) without rowid;
create index devices_device on devices(device);
create table history(
  rollout text not null, seq integer not null, at_ms integer not null, by text not null, what text not null,
  why text not null, state text not null, primary key(rollout, seq)) without rowid;
create table counters(
  family text not null, device text not null, counter integer not null, primary key(family, device)) without rowid;
insert into rollouts values ('r1', 'digits', 5, 6, 1, 3, x'7b7d', x'7b7d');
insert into counters values ('digits', 'demo--d1', 8);
pragma user_version=1;
"""


def write_old(path: Path, script: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(script)
    return path


def test_files_of_the_versions_before_open_as_they_are(tmp_path: Path):
    for _ in range(2):
        keys = ApiKeys.open(write_old(tmp_path / "access.db", "" if _ else OLD_ACCESS))
        assert [(key.id, key.tenant, sorted(key.scopes)) for key in keys.list_keys()] == [
            ("3f9a2c3f9a2c", "clinic", ["infer", "read"])
        ]
        keys.close()
        log = LedgerLog.open(write_old(tmp_path / "ledger.db", "" if _ else OLD_LEDGER), 99)
        assert (log.begun_ms, log.size, log.spend_mirror("demo--d1")) == (42, 0, (("bytes", 20, 700),))
        log.close()
        uses = ModelUsageStore.open(write_old(tmp_path / "versions.db", "" if _ else OLD_VERSIONS))
        assert uses.read_uses()["demo--d1"].models == (ModelRef("digits", 7, "tail", "raw"),)
        assert uses.retired_models() == {"digits@1"}
        uses.close()
        rollouts = RolloutStore.open(write_old(tmp_path / "rollouts.db", "" if _ else OLD_ROLLOUTS))
        assert rollouts.list_revisions() == {"r1": 3}
        with rollouts._engine.connect() as connection:
            assert read_counters(connection, "digits") == {"demo--d1": 8}
        rollouts.close()
