"""A region of three hubs is upgraded one by one under load, from the release before to this tree. Nothing is lost."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from tests.live.doubles.release import extract_release, find_release
from tests.live.regions.upgrading import BETWEEN, NEWEST, UpgradedRegion, upgrade_one_by_one, upgraded_region
from tests.postgres import PostgresServer, find_programs
from wire.process.exit_codes import ExitCode, ExitError

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(900)]
# The last version whose database of a region has an older schema than this tree's: only from there is one contracted.
OLDER_SCHEMA = "bef99398aa020e422b59d653929593430f7eca49"

OpenRegion = Callable[[Path], AbstractAsyncContextManager[UpgradedRegion]]


@pytest.fixture
def open_region(tmp_path: Path, bundle: Bundle) -> OpenRegion:
    """Opens a region whose hubs run the version in a folder."""
    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: ./setup.sh dev installs it")

    @asynccontextmanager
    async def open_with(earlier: Path) -> AsyncIterator[UpgradedRegion]:
        with PostgresServer() as server:
            async with upgraded_region(tmp_path, bundle, server, earlier) as region:
                yield region

    return open_with


async def test_three_hubs_are_upgraded_one_by_one_under_load_and_nothing_is_lost(
    open_region: OpenRegion, tmp_path: Path
):
    release = find_release()
    async with open_region(extract_release(release, tmp_path / "release")) as region:
        report = await upgrade_one_by_one(region)
    print(f"\nfrom {release}: {report}")
    assert (report.lost, report.doubled) == (0, 0), report
    assert set(report.refusals) <= {"draining"}, report
    assert report.answered >= 4 * BETWEEN


async def test_an_older_hub_serves_on_beside_newer_ones_until_the_contraction_and_is_refused_after_it(
    open_region: OpenRegion, tmp_path: Path
):
    earlier = extract_release(OLDER_SCHEMA, tmp_path / "release")
    async with open_region(earlier) as region:
        async with region.loaded():
            await region.swap(0)
            await region.swap(1)
            assert region.read_schema() == (NEWEST - 1, ("hub-3 of an earlier release",))
            await region.swap(1, earlier)  # back to the version before
            await region.until_answered(BETWEEN)
            waits_for = ("hub-2 of an earlier release", "hub-3 of an earlier release")
            assert region.read_schema() == (NEWEST - 1, waits_for)
            await region.swap(1)
            await region.drain(2)
            await region.until_contracted(NEWEST)
            newer = f"has schema {NEWEST} of region, newer than this program's {NEWEST - 1}: update the program"
            with pytest.raises(ExitError, match=newer):
                await region.start(2, earlier)
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
