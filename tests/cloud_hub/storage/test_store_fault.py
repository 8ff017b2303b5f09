"""What a hub says of its database: a fault stands until the database takes what a full disk has no place for."""

import asyncio
import gc
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.core.commands import StoreQuestion
from cloud_hub.jobs.table import SweepJobs
from cloud_hub.security.envelopes import HubEnvelopes
from cloud_hub.storage.gateway import StoreGateway
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import HUB, NOW_S
from tests.cloud_hub.storage.test_store import question
from wire.process.logging import JsonLog

FULL = "the disk of the database is full"


class Site:
    """A store gateway whose core is told nothing."""

    def __init__(self) -> None:
        self._reported = asyncio.Event()
        bench = Bench()
        self.gateway = StoreGateway(
            core=bench.core,
            envelopes=HubEnvelopes(HUB),
            now=lambda: NOW_S,
            hears=(lambda *_: None, self._reported.set),
            on_ended=lambda _: None,
            log=JsonLog(io.StringIO()),
        )

    async def until_reported(self) -> None:
        """Wait until what was submitted has been written, or could not be."""
        await asyncio.wait_for(self._reported.wait(), 60)
        self._reported.clear()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site()
    made.gateway.open(f"sqlite:///{tmp_path}/hub.db")
    yield made
    await made.gateway.close()


async def test_a_question_that_still_fits_on_a_full_disk_ends_no_fault_and_a_look_for_room_does(site: Site):
    site.gateway.fault = FULL
    site.gateway.store_question(StoreQuestion(question(1)))
    site.gateway.submit_job()
    await site.until_reported()
    assert site.gateway.fault == FULL
    site.gateway.probe()
    await site.until_reported()
    assert site.gateway.fault == ""


async def test_a_look_from_before_the_fault_does_not_end_it(site: Site):
    site.gateway._served = True  # a server that nobody has asked for a second is looked at
    site.gateway.probe()
    site.gateway.fault = FULL
    await site.until_reported()
    assert site.gateway.fault == FULL


async def test_work_whose_caller_has_gone_fails_without_a_word_of_the_event_loop(site: Site):
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: heard.append(context))
    site.gateway.store_question(StoreQuestion(question(1)))
    site.gateway.submit_job()
    await site.until_reported()
    site.gateway.store_question(StoreQuestion(question(1)))  # its row is there already: the transaction fails
    caller = asyncio.create_task(site.gateway.run_work(SweepJobs(0, 0)))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    del caller
    await site.until_reported()
    gc.collect()
    assert site.gateway.fault
    assert heard == []
