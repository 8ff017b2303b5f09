"""After an erasure no byte of any file of the hub holds what was erased, wherever its schema lets a subject stand."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cloud_hub.core.commands import ErasureRequest
from cloud_hub.database import rewriting
from cloud_hub.database.parts import REGION, DatabaseUrls
from cloud_hub.database.tables import job_bodies, metadata, sealed
from cloud_hub.storage.jobs import JobResult, StoreJob
from cloud_hub.storage.store import Store
from cloud_hub.storage.writer import StoreWriter

DEVICE, SUBJECT, OTHER = "demo--d1", b"\x07" * 32, b"\x08" * 32
ROWS, NOW_MS = 40, 1_000
VERDICT = b"VERDICT-"  # of a question only the verdict goes: its row stays, so that it is not taken once more
ABOUT_SUBJECTS = [
    table for table in metadata.sorted_tables if "subject" in table.c and table.schema != REGION.name
]  # a topic's subject in the region's part is an id or a digest
BELONGS = {"effects": sealed, "jobs": job_bodies}  # rows of these go with the row of their key


def make_row(table: sa.Table, number: int, subject: bytes, mark: str) -> dict[str, Any]:
    """A row whose every text and blob of free form holds `mark`."""
    wide = mark + chr(97 + number % 26) * 700
    row: dict[str, Any] = {}
    for column in table.c:
        if isinstance(column.type, sa.LargeBinary):
            row[column.name] = wide.encode()
        else:
            row[column.name] = wide if isinstance(column.type, sa.Text) else number
    fixed = {"device": DEVICE, "subject": subject, "id": f"j{number}", "made_ms": 1, "kept_ms": 1, "epoch": 7}
    return row | {name: value for name, value in fixed.items() if name in table.c} | _known_keys(table, mark)


def _known_keys(table: sa.Table, mark: str) -> dict[str, Any]:
    own = {"known_by": mark.encode(), "verdict": VERDICT + mark.encode() + b"v" * 900}
    return {name: value for name, value in own.items() if name in table.c}


def fill(store: Store, subject: bytes, first: int) -> list[bytes]:
    """Rows about a subject in every table that can hold one, and what belongs to them; the texts that they hold."""
    marks = []
    with store._engine.begin() as connection:
        for table in ABOUT_SUBJECTS:
            for number in range(first, first + ROWS):
                for place in (table, BELONGS[table.name]):
                    mark = f"CANARY-{place.name}-{number}-"
                    connection.execute(place.insert().values(make_row(place, number, subject, mark)))
                    marks.append((VERDICT if place.name == "effects" else b"") + mark.encode())
    return marks


def find_marks(folder: Path, marks: list[bytes]) -> dict[str, int]:
    """How many of these texts each file holds; files that hold none are left out."""
    texts = {each.name: each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    found = {name: sum(mark in text for mark in marks) for name, text in texts.items()}
    return {name: count for name, count in found.items() if count}


def erasing(subject: bytes = SUBJECT, **more: Any) -> StoreJob:
    return StoreJob(erases=[ErasureRequest(DEVICE, subject, NOW_MS, NOW_MS, ())], **more)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(Store.open(DatabaseUrls(tmp_path).questions)) as opened:
        yield opened


def test_what_was_erased_is_in_no_byte_of_any_file_whichever_table_held_it(store: Store, tmp_path: Path):
    assert {table.name for table in ABOUT_SUBJECTS} == BELONGS.keys(), "a new table about subjects is erased, too"
    gone, kept = fill(store, SUBJECT, 1), fill(store, OTHER, 1 + ROWS)
    store.apply_jobs([erasing()])
    assert find_marks(tmp_path, gone), "else this test finds nothing"
    store.rewrite()
    assert find_marks(tmp_path, gone) == {}
    assert find_marks(tmp_path, kept)


async def test_an_erasure_is_answered_once_its_log_is_empty_and_an_interrupted_one_is_finished(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rewriting, "LOG_WAIT_S", 0.05)
    results: asyncio.Queue[JobResult] = asyncio.Queue()

    def put_results(dones: list[JobResult]) -> None:
        for each in dones:
            results.put_nowait(each)

    writer = StoreWriter(store, asyncio.get_running_loop(), put_results)
    gone = fill(store, SUBJECT, 1)
    with store._engine.connect() as connection:
        connection.exec_driver_sql("pragma busy_timeout=0")
    with contextlib.closing(sqlite3.connect(tmp_path / "hub.db")) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from jobs").fetchone()
        writer.submit(erasing())
        writer.submit(StoreJob(rewrite=True))
        assert not (await results.get()).unfinished
        assert "reads the database" in (await results.get()).unfinished
        assert find_marks(tmp_path, gone)
    assert store.needs_rewrite(), "also for the next process"
    writer.submit(StoreJob(rewrite=True))
    assert not (await results.get()).unfinished
    assert not store.needs_rewrite()
    assert find_marks(tmp_path, gone) == {}
    await writer.close()


def test_on_both_databases_an_erasure_is_unfinished_until_it_was_rewritten_or_vacuumed(urls: DatabaseUrls):
    with contextlib.closing(Store.open(urls.questions)) as store:
        fill(store, SUBJECT, 1)
        assert not store.needs_rewrite()
        store.apply_jobs([erasing()])
        assert store.needs_rewrite()
        store.rewrite()
        assert not store.needs_rewrite()
