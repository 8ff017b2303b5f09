"""A region of three hubs is upgraded one by one under load, from the released version to this one. Nothing is lost."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from simulations.postgres import PostgresServer, find_programs
from tests.live.regions.upgrading import BETWEEN, UpgradedRegion, extract_released, upgrade_one_by_one, upgraded_region
from wire.process.exit_codes import ExitCode, ExitError

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract_released(tmp_path_factory.mktemp("released"))


@pytest.fixture
async def region(tmp_path: Path, bundle: Bundle, released: Path) -> AsyncIterator[UpgradedRegion]:
    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: ./setup.sh dev installs it")
    with PostgresServer() as server:
        async with upgraded_region(tmp_path, bundle, server, released) as region:
            yield region


async def test_three_hubs_are_upgraded_one_by_one_under_load_and_nothing_is_lost(region: UpgradedRegion):
    report = await upgrade_one_by_one(region)
    print(f"\n{report}")
    assert (report.lost, report.doubled) == (0, 0), report
    assert set(report.refusals) <= {"draining"}, report
    assert report.answered >= 4 * BETWEEN


async def test_an_older_hub_serves_on_beside_newer_ones_until_the_contraction_and_is_refused_after_it(
    region: UpgradedRegion, released: Path
):
    async with region.loaded():
        await region.swap(0)
        await region.swap(1)
        assert region.read_schema() == (1, ("hub-3 of an earlier release",))
        await region.swap(1, released)  # back to the version before
        await region.until_answered(BETWEEN)
        assert region.read_schema() == (1, ("hub-2 of an earlier release", "hub-3 of an earlier release"))
        await region.swap(1)
        await region.drain(2)
        await region.until_contracted(2)
        with pytest.raises(ExitError, match="has schema 2 of region, newer than this program's 1: update the program"):
            await region.start(2, released)
        child = region.harnesses[2].hub.child if region.harnesses[2].hub else None
        assert child is not None
        assert child.process is not None
        assert child.process.returncode == ExitCode.DATABASE
        await region.start(2)
        await region.until_shared()
        await region.until_answered(BETWEEN)
    report = region.judge((), 0.0)
    print(f"\n{report}")
    assert (report.lost, report.doubled) == (0, 0), report
    assert set(report.refusals) <= {"draining"}, report
