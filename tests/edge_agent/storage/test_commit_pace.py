"""Which commits the event loop waits for: a property of the pace, and the database with both its writers."""

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.storage import commit_pace, tables
from edge_agent.storage.commit_pace import CREDIT_AT_MOST_S, QUICK_S, STALL_SHARE, CommitPace
from edge_agent.storage.database import Database, DatabaseTrouble
from tests.edge_agent.storage.test_database import FILE, written

_TIMES = st.one_of(st.floats(1e-5, 1e-3), st.floats(1e-3, 0.1))


@given(st.lists(st.tuples(_TIMES, st.floats(0.0, 0.5)), max_size=200))
def test_slow_commits_hold_the_loop_up_for_a_hundredth_of_its_time_and_one_commit(
    steps: list[tuple[float, float]],
) -> None:
    now, stalled_s, longest_s = 0.0, 0.0, 0.0
    pace = CommitPace(now)
    for took_s, pause_s in steps:
        waits = pace.may_wait(now)
        now += took_s
        pace.record(took_s, now, waited=waits)
        if waits and took_s > QUICK_S:
            stalled_s, longest_s = stalled_s + took_s, max(longest_s, took_s)
        assert stalled_s <= STALL_SHARE * now + CREDIT_AT_MOST_S + longest_s + 1e-9
        now += pause_s


@given(st.lists(st.floats(2e-3, 0.1), max_size=50))
def test_a_disk_that_is_slow_is_never_waited_for(times: list[float]) -> None:
    pace, now = CommitPace(0.0), 0.0
    for took_s in times:
        assert not pace.may_wait(now)
        now += took_s
        pace.record(took_s, now, waited=False)


def test_a_quick_disk_is_waited_for_soon_and_again_after_a_stall_is_made_up_for() -> None:
    pace, now = CommitPace(0.0), 0.0
    for _ in range(30):
        pace.record(2e-4, now, waited=False)
    assert pace.may_wait(now)
    pace.record(0.05, now, waited=True)
    assert not pace.may_wait(now + 1.0)
    assert pace.may_wait(now + 6.0)


def _note(told: list[int], number: int, _: DatabaseTrouble | None) -> None:
    told.append(number)


async def opened_quick(folder: Path, monkeypatch) -> Database:
    """A database whose commits count as quick, however busy the machine is, and are known to be."""
    monkeypatch.setattr(commit_pace, "QUICK_S", 60.0)
    database = Database(folder / FILE)
    await database.open()
    for number in range(30):
        await written(database, partial(tables.write_value, key="warm", value=number))
    assert database.inline_commits > 0
    return database


async def test_the_event_loop_commits_in_order_with_what_was_said_in_one_turn(tmp_path: Path, monkeypatch) -> None:
    database = await opened_quick(tmp_path, monkeypatch)
    try:
        before = database.inline_commits
        told: list[int] = []
        for number in range(5):
            database.write((partial(tables.write_value, key="a", value=number),), partial(_note, told, number))
        assert told == []  # never in the call itself
        found = await database.read(lambda db: tables.read_value(db, "a", -1))  # by the thread, after them
        assert (found, told) == (4, [0, 1, 2, 3, 4])
        assert await written(database, partial(tables.write_value, key="b", value=1)) is None
        assert database.inline_commits == before + 1
        assert database.waiting_units == 0
    finally:
        await database.close()


async def test_what_fails_on_the_event_loop_is_tried_by_the_thread_and_spares_its_neighbours(
    tmp_path: Path, monkeypatch
) -> None:
    database = await opened_quick(tmp_path, monkeypatch)
    before, runs = database.inline_commits, list[str]()

    def write_good(db: sqlite3.Connection) -> None:
        runs.append("good")
        tables.write_value(db, "a", 1)

    good = written(database, write_good)
    bad = written(database, lambda db: db.execute("no such sql"))
    last = written(database, partial(tables.write_value, key="b", value=1))
    assert list(await asyncio.gather(good, bad, last)) == [None, DatabaseTrouble.DEFECT, None]
    assert len(runs) == 3  # on the loop, with its neighbours in the thread, and alone
    assert database.inline_commits == before
    await database.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        assert db.execute("select key from meta where key in ('a','b') order by key").fetchall() == [("a",), ("b",)]


async def test_a_unit_that_ends_a_writer_is_not_lost_with_the_event_loops_turn(tmp_path: Path, monkeypatch) -> None:
    class DefectError(Exception):
        """None that a database raises."""

    def fail(db: sqlite3.Connection) -> None:
        tables.write_value(db, "half", 1)
        if fails.pop():
            raise DefectError

    fails = [False, True]
    database = await opened_quick(tmp_path, monkeypatch)
    caught: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context["exception"]))
    try:
        assert await written(database, fail, must=True) is None  # the second time, by the thread
        assert [type(each) for each in caught] == [DefectError]
    finally:
        await database.close()


async def test_what_waits_for_the_event_loop_is_written_before_the_end(tmp_path: Path, monkeypatch) -> None:
    database = await opened_quick(tmp_path, monkeypatch)
    database.write((partial(tables.write_value, key="last", value=7),))
    await database.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        assert db.execute("select value from meta where key='last'").fetchone() == (7,)
    database.write((partial(tables.write_value, key="after", value=1),), must=True)  # kept, and nobody commits it
    await asyncio.sleep(0)
    assert database.waiting_units == 1
