"""A PostgreSQL server that commits and is cut off before it says so: nothing is lost, nothing is counted twice."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_hub.core.commands import QuestionEnding, QuestionKey
from cloud_hub.storage.jobs import JobResult, StoreError, StoreJob
from cloud_hub.storage.retention import LabelTally
from cloud_hub.storage.store import Store, read_tallies_aside
from cloud_hub.storage.writer import StoreWriter
from tests.cloud_hub.doubles.silent_commit import SilentCommit
from tests.cloud_hub.storage.test_store import key, question
from tests.postgres import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    made = postgres.create_database()
    yield made
    postgres.drop_database(made)


@pytest.fixture
def wire(postgres: PostgresServer) -> Iterator[SilentCommit]:
    with tempfile.TemporaryDirectory(prefix="skerry-wire-") as folder, SilentCommit(postgres, Path(folder)) as wire:
        yield wire


@pytest.fixture
def store(wire: SilentCommit, url: str) -> Iterator[Store]:
    opened = Store.open(wire.url_of(url))
    yield opened
    opened.close()


def ended(seq: int) -> QuestionEnding:
    return QuestionEnding(key(seq), 2000, verdict=b"verdict", label=3, model="echo@1")


async def test_the_writer_asks_again_and_finds_what_it_wrote(wire: SilentCommit, store: Store, url: str):
    dones: list[JobResult] = []
    heard = asyncio.Event()

    def on_done(found: list[JobResult]) -> None:
        dones.extend(found)
        heard.set()

    writer = StoreWriter(store, asyncio.get_running_loop(), on_done)
    wire.armed = True
    writer.submit(StoreJob(keeps=[question(1), question(2)], endings=[ended(1)]))
    await heard.wait()
    await writer.close()
    assert wire.cuts == 1
    assert [(done.error, done.vanished) for done in dones] == [("", set())]
    after = Store.open(url)
    assert [owed.key for owed in after.read_unanswered()] == [key(2)]
    after.close()
    assert read_tallies_aside(url) == [LabelTally(0, "echo@1", 3, 1)]


def test_an_ending_that_is_written_again_later_is_counted_once(wire: SilentCommit, store: Store, url: str):
    store.apply_jobs([StoreJob(keeps=[question(1)])])
    wire.armed = True
    with pytest.raises(StoreError) as stop:
        store.apply_jobs([StoreJob(endings=[ended(1)])])
    assert stop.value.lost
    (done,) = store.apply_jobs([StoreJob(endings=[ended(1)])])
    assert done.vanished == set()
    assert read_tallies_aside(url) == [LabelTally(0, "echo@1", 3, 1)]


def test_what_was_cut_off_before_its_commit_is_written_the_second_time(
    store: Store, url: str, postgres: PostgresServer
):
    store.apply_jobs([StoreJob(keeps=[question(1)])])
    postgres.run_statement(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'skerry-hub'"
    )
    job = StoreJob(keeps=[question(2)], endings=[ended(1)])
    with pytest.raises(StoreError) as stop:
        store.apply_jobs([job])
    assert (stop.value.lost, stop.value.reason) == (True, "the database does not answer")
    (done,) = store.apply_jobs([job])
    assert done.vanished == set()
    assert [owed.key for owed in store.read_unanswered()] == [QuestionKey("demo--d1", 7, 2)]
    assert read_tallies_aside(url) == [LabelTally(0, "echo@1", 3, 1)]


def test_an_unreachable_server_fails_all_jobs_at_once_and_not_each_after_its_own_wait(postgres: PostgresServer):
    url = postgres.create_database()
    store = Store.open(url)
    postgres.drop_database(url)
    with pytest.raises(StoreError) as stop:
        store.apply_jobs([StoreJob(keeps=[question(1)])])
    assert stop.value.unavailable
    with pytest.raises(StoreError) as stop:
        store.apply_jobs([StoreJob(keeps=[question(1)])])
    assert (stop.value.unavailable, stop.value.reason) == (True, "the database refuses this hub")
    store.close()
