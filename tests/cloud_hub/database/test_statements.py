"""Many rows in one statement: on files and on a server they are inserted, changed, added up and deleted alike."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import QUESTIONS, DatabaseUrls
from cloud_hub.database.statements import change_rows, check_room, delete_rows, insert_rows, write_rows
from cloud_hub.database.tables import costs, effects, sealed, tallies, tombstones

DEVICE = "demo--device"


@pytest.fixture
def engine(urls: DatabaseUrls) -> Iterator[sa.Engine]:
    opened = open_part(urls.url_of(QUESTIONS), QUESTIONS)
    yield opened
    opened.dispose()


def frame(seq: int, data: bytes = b"") -> dict[str, object]:
    return {"device": DEVICE, "epoch": 1 << 60, "seq": seq, "frame": data, "shard": 7}


def key(seq: int) -> dict[str, object]:
    return {"key_device": DEVICE, "key_epoch": 1 << 60, "key_seq": seq}


def read(engine: sa.Engine, table: sa.Table, *columns: str) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        query = sa.select(*(table.c[name] for name in columns)).order_by(*table.primary_key)
        return [tuple(row) for row in connection.execute(query)]


def test_rows_are_inserted_and_those_of_some_keys_deleted(engine: sa.Engine):
    with engine.begin() as connection:
        insert_rows(connection, sealed, [frame(seq, bytes([seq, 0, 255])) for seq in range(70)])
        delete_rows(connection, sealed, [key(seq) for seq in (*range(68), 1000)])
        insert_rows(connection, sealed, [])
        delete_rows(connection, sealed, [])
    assert read(engine, sealed, "seq", "frame") == [(68, b"\x44\x00\xff"), (69, b"\x45\x00\xff")]


def test_a_row_that_is_there_already_fails_the_whole_transaction(engine: sa.Engine):
    with engine.begin() as connection:
        insert_rows(connection, sealed, [frame(2)])
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        insert_rows(connection, sealed, [frame(1), frame(2)])
    assert read(engine, sealed, "seq") == [(2,)]


def test_only_rows_whose_column_is_empty_are_changed(engine: sa.Engine):
    def question(seq: int) -> dict[str, object]:
        texts, times = {"model": "m", "policy": "p"}, {"created_ms": 1, "kept_ms": 1}
        return {"device": DEVICE, "epoch": 1 << 60, "seq": seq, **texts, **times, "digest": b"d", "fingerprint": b"f"}

    def ending(seq: int, at_ms: int) -> dict[str, object]:
        return key(seq) | {"ended_ms": at_ms, "refusal": None, "verdict": b"v"}

    with engine.begin() as connection:
        insert_rows(connection, effects, [question(seq) for seq in range(4)])
        assert change_rows(connection, effects, [ending(1, 5), ending(2, 6)], unset="ended_ms") == 2
        assert change_rows(connection, effects, [ending(2, 7), ending(3, 8), ending(9, 9)], unset="ended_ms") == 1
        assert change_rows(connection, effects, [], unset="ended_ms") == 0
    assert read(engine, effects, "ended_ms") == [(None,), (5,), (6,), (8,)]


def test_amounts_are_added_up_also_of_rows_that_are_given_twice(engine: sa.Engine):
    def amount(kind: str, more: int) -> dict[str, object]:
        return {"day": 1, "tenant": "t", "model": "m", "region": "r", "kind": kind, "amount": more}

    for rows in ([amount("a", 1), amount("b", 2)], [amount("a", 3), amount("b", 1 << 40)], [amount("a", 1)] * 2):
        with engine.begin() as connection:
            write_rows(connection, costs, rows, added=("amount",))
    assert read(engine, costs, "kind", "amount") == [("a", 6), ("b", (1 << 40) + 2)]


def test_of_two_values_the_larger_remains_where_it_is_asked_for(engine: sa.Engine):
    def stone(mark: int, before_ms: int) -> dict[str, object]:
        return {"mark": bytes([mark]) * 32, "device": DEVICE, "before_ms": before_ms, "rows": 1, "at_ms": before_ms}

    for rows in ([stone(1, 5), stone(2, 5)], [stone(1, 3), stone(2, 8)]):
        with engine.begin() as connection:
            write_rows(connection, tombstones, rows, raised=("before_ms",), added=("rows",))
    assert read(engine, tombstones, "before_ms", "rows", "at_ms") == [(5, 2, 3), (8, 2, 8)]


def test_a_look_whether_there_is_room_leaves_nothing_behind_and_may_be_repeated(engine: sa.Engine):
    for _ in range(2):
        with engine.begin() as connection:
            check_room(connection)
    with engine.connect() as connection:
        assert "room" not in sa.inspect(connection).get_temp_table_names()


def test_a_text_that_is_too_long_is_refused_and_never_cut(engine: sa.Engine):
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite's texts have no length")
    with pytest.raises(sa.exc.DataError), engine.begin() as connection:
        insert_rows(connection, sealed, [frame(1) | {"device": "d" * 65}])


def test_a_server_keeps_no_plan_that_it_made_when_a_table_was_empty(engine: sa.Engine):
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite plans by its schema alone")
    with engine.connect() as connection:
        for _ in range(20):
            connection.execute(sa.select(tallies.c.count).where(tallies.c.day == sa.bindparam("day")), {"day": 1})
        plans = connection.exec_driver_sql("select count(*), sum(generic_plans) from pg_prepared_statements").one()
    assert plans[0] > 0
    assert plans[1] == 0
