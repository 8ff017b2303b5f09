"""Hubs of a region are killed while they run jobs: none lost, none answered twice, each dead one with a reason."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.jobs.kills import JOBS, KILLS, run_kills
from benchmarks.jobs.region import JobsRegion
from tests.live.regions.test_news import server
from tests.postgres import PostgresServer

__all__ = ["server"]  # a fixture
pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(1800)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for log in tmp_path.glob("*.log"):
        print(f"{log.name}: {log.read_text()[-1000:]}")


@pytest.mark.parametrize(
    ("jobs", "kills"),
    [pytest.param(600, 5, id="few"), pytest.param(JOBS, KILLS, id="all", marks=pytest.mark.heavy)],
)
async def test_however_often_hubs_are_killed_no_job_is_lost_or_answered_twice(server, folder, jobs, kills):
    report, done = await run_kills(folder, server, jobs, kills)
    print(report)
    assert done == kills, "the jobs had ended before so many hubs were killed"
    assert (report.lost, report.doubled, report.unexplained, report.odd) == (0, 0, 0, 0)
    assert report.answered + report.dead == jobs
    assert report.crashes > 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.02)


async def test_a_hub_that_is_told_to_go_gives_its_shards_and_its_jobs_away_and_costs_none_of_them_a_try(
    server: PostgresServer, folder: Path
):
    async with JobsRegion(folder, server, 2, 0.3) as region:
        await region.add_jobs(300)
        await until(lambda: region.held().get("hub-2", 0) > 0)
        took, counted = await region.stop("hub-2")
        assert took < 15 + 5
        assert counted.get("jobs.overtaken", 0) == 0
        await until(lambda: region.count_open() == 0)
        report = region.judge(300)
    assert (report.answered, report.lost, report.doubled, report.odd) == (300, 0, 0, 0)
