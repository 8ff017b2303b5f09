"""After an erasure no byte of the device's files holds what was erased, wherever the schema lets a subject stand."""

import contextlib
import sqlite3
from pathlib import Path

import msgspec
import pytest

from edge_agent.storage import answers, erasing
from edge_agent.storage.erasing import rewrite_files
from edge_agent.storage.schema import open_connection
from policies.decisions.egress import EgressPlan
from tests.edge_agent.doubles.hub_double import AgentRig, HubDouble, policy, until
from wire.protocol.messages import SensitivityLevel

SUBJECT, OTHER = b"s" * 32, b"o" * 32
ROWS = 40
EGRESS = msgspec.msgpack.encode(EgressPlan((), "r", SensitivityLevel.P2, fixed_size=True))
NUMBERS_ONLY = {"erased"}  # the numbers of erased questions, by which hubs are asked


def list_columns(db: sqlite3.Connection, table: str) -> dict[str, str]:
    """Name and declared type of each column."""
    return {row[1]: row[2] for row in db.execute(f"pragma table_info({table})")}


def list_subject_tables(db: sqlite3.Connection) -> list[str]:
    """Tables of which a row can be about a subject, by the schema."""
    tables = [row[0] for row in db.execute("select name from sqlite_master where type='table'")]
    return [table for table in tables if "subject" in list_columns(db, table) and table not in NUMBERS_ONLY]


def fill_table(db: sqlite3.Connection, table: str, subject: bytes, first: int) -> list[bytes]:
    """Write rows about a subject; returns a text of each that stands in every column that takes one."""
    columns = list_columns(db, table)
    marks = [f"CANARY-{table}-{subject[:1].decode()}-{number}-".encode() for number in range(first, first + ROWS)]
    for number, mark in enumerate(marks, first):
        wide = mark + bytes([97 + number % 26]) * 700
        texts = {"text": wide.decode(), "blob": wide}
        values = {name: texts.get(kind.lower(), number) for name, kind in columns.items()} | {"subject": subject}
        if table == "outbox":
            values |= {"state": 0, "egress": EGRESS, "id": f"{number:032x}"}
        names = ",".join(values)
        db.execute(f"insert into {table}({names}) values({','.join('?' * len(values))})", tuple(values.values()))
    return marks


def find_marks(folder: Path, marks: list[bytes]) -> dict[str, int]:
    """How many of these texts each file holds; files that hold none are left out."""
    found = {
        each.name: sum(mark in each.read_bytes() for mark in marks) for each in folder.rglob("*") if each.is_file()
    }
    return {name: count for name, count in found.items() if count}


def test_what_was_erased_is_in_no_byte_of_any_file_whichever_table_held_it(tmp_path: Path):
    path = tmp_path / "agent.db"
    with contextlib.closing(open_connection(path).db) as db:
        tables = list_subject_tables(db)
        assert set(tables) >= {"answers", "outbox"}
        gone, kept = [], []
        for table in tables:
            gone += fill_table(db, table, SUBJECT, 1)
            kept += fill_table(db, table, OTHER, 1 + ROWS)
        assert find_marks(tmp_path, gone), "else this test finds nothing"
        answers.erase_subject(db, SUBJECT, 10)
        assert rewrite_files(db, path) == ()
        assert find_marks(tmp_path, gone) == {}, "while the database is open"
        assert find_marks(tmp_path, kept)
    assert find_marks(tmp_path, gone) == {}


def test_a_log_that_another_process_reads_is_named_and_a_repeated_erasure_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(erasing, "LOG_WAIT_S", 0.05)
    path = tmp_path / "agent.db"
    with contextlib.closing(open_connection(path).db) as db, contextlib.closing(sqlite3.connect(path)) as reader:
        db.execute("pragma busy_timeout=0")
        marks = fill_table(db, "answers", SUBJECT, 1)
        reader.execute("begin")
        reader.execute("select count(*) from answers").fetchone()
        answers.erase_subject(db, SUBJECT, 10)
        (line,) = rewrite_files(db, path)
        assert "agent.db-wal" in line
        assert find_marks(tmp_path, marks)
        reader.execute("commit")
        assert rewrite_files(db, path) == ()
        assert find_marks(tmp_path, marks) == {}


def test_a_damaged_database_that_lies_beside_it_is_named(tmp_path: Path):
    (tmp_path / "agent.db.damaged-1").write_bytes(b"x")
    with contextlib.closing(open_connection(tmp_path / "agent.db").db) as db:
        (line,) = rewrite_files(db, tmp_path / "agent.db")
    assert "agent.db.damaged-1" in line


async def test_a_running_agent_leaves_nothing_readable_and_goes_on(tmp_path: Path):
    async with AgentRig(tmp_path, policy(), HubDouble()) as rig:
        with contextlib.closing(sqlite3.connect(tmp_path / "agent.db")) as db:
            marks = fill_table(db, "answers", SUBJECT, 1000)
            db.commit()
        assert find_marks(tmp_path, marks)
        done = await rig.agent.erase(SUBJECT)
        assert (done.answers, done.left) == (ROWS, ())
        assert find_marks(tmp_path, marks) == {}
        await until(lambda: rig.agent._db.trouble is None)
