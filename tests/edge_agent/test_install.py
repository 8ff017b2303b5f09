"""A device and what is assigned to it: it installs, tries, commits, or goes back; with a hub, and without one."""

import pytest

from models.floors import FloorsDb
from tests.edge_agent.installing import living
from tests.edge_agent.updates_bench import bench
from wire.rollout import InstallState

S = InstallState


@pytest.fixture
def device(tmp_path):
    with bench(tmp_path) as made:
        made.offer(1)
        yield made


def floor(device) -> int:
    with FloorsDb(device.store / "metadata") as floors:
        found = floors.read().get("target/models/echo")
        return found.version if found else 0


async def test_an_assigned_version_is_tried_and_committed_and_each_step_is_reported(device, tmp_path):
    async with living(device, tmp_path / "agent") as life:
        assert life.version == 1
        device.offer(2)
        life.assign(1, 2)
        await life.reaches(S.PROBATION)
        assert await life.answer() == "echo@2"
        await life.answers_until(lambda: life.told(S.COMMITTED))
        assert (life.state, life.version, floor(device)) == (S.IDLE, 2, 2)
        told = [report.state for report in life.reports if report.rollout == "r1"]
        passed = [state for state in S if state in told]
        assert passed == [S.CHECKING, S.DOWNLOADING, S.SELF_TEST, S.PROBATION, S.COMMITTED]
        last = life.told(S.COMMITTED)[-1]
        assert (last.version, last.counter, last.failure) == (2, 1, None)
        assert last.signals is not None
