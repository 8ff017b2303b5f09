"""Writer thread of the database: group commit, and a failing job that does not affect the others."""

import asyncio
import threading

import pytest

from cloud_hub.storage.jobs import JobResult, StoreJob
from cloud_hub.storage.store import Store
from cloud_hub.storage.writer import StoreWriter
from tests.cloud_hub.storage.test_store import ending, question


class Site:
    def __init__(self, folder) -> None:
        self.store = Store.open(f"sqlite:///{folder}/hub.db")
        self.dones: list[JobResult] = []
        self.threads: set[int] = set()
        self.writer = StoreWriter(self.store, asyncio.get_running_loop(), self.on_done)

    def on_done(self, dones: list[JobResult]) -> None:
        self.threads.add(threading.get_ident())
        self.dones += dones

    async def written(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.dones) < count:
                await asyncio.sleep(0.001)


@pytest.fixture
async def site(tmp_path):
    site = Site(tmp_path)
    yield site
    await site.writer.close()


async def test_jobs_that_wait_share_one_commit_and_come_back_in_order_on_the_loop(site):
    jobs = [StoreJob(keeps=[question(seq)]) for seq in range(1, 101)]
    for job in jobs:
        site.writer.submit(job)
    await site.written(100)
    assert [done.job for done in site.dones] == jobs
    assert site.writer.commits < 50
    assert site.threads == {threading.get_ident()}
    assert len(site.store.read_unanswered()) == 100


async def test_a_bad_job_fails_alone(site):
    good = [StoreJob(keeps=[question(seq)]) for seq in (1, 2, 3)]
    bad = StoreJob(keeps=[question(1), question(9)])
    for job in (good[0], bad, *good[1:]):
        site.writer.submit(job)
    await site.written(4)
    assert [bool(done.error) for done in site.dones] == [False, True, False, False]
    assert [owed.key.seq for owed in site.store.read_unanswered()] == [1, 2, 3]


async def test_close_writes_what_was_submitted(tmp_path):
    site = Site(tmp_path)
    site.writer.submit(StoreJob(keeps=[question(1)]))
    site.writer.submit(StoreJob(endings=[ending(1)]))
    await site.writer.close()
    assert not site.writer.alive
    again = Store.open(f"sqlite:///{tmp_path}/hub.db")
    assert again.read_unanswered() == []
    assert again.newest_ms() == 1000
    again.close()
