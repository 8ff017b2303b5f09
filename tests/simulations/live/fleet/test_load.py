"""Samples of a live run: kept in a file for its processes, and the same arrivals however many there are."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np

from simulations.live.fleet.load import LoadDriver, SamplePool, SamplePools
from simulations.scenario.types import Load, Scenario

POOLS = SamplePools(
    SamplePool(np.arange(12, dtype=np.float32).reshape(3, 4), [0, 1, 2]),
    SamplePool(np.arange(8, dtype=np.float32).reshape(2, 4), [3, 4]),
)


class Agent:
    """Double of an agent: keeps what it is given."""

    def __init__(self) -> None:
        self.taken = 0

    def answer_now(self, sample: Any) -> "asyncio.Future[Any]":
        assert sample.x.shape == (4,)
        self.taken += 1
        return asyncio.get_running_loop().create_future()


class Fleet:
    """Double of the agents of one process."""

    def __init__(self, numbers: range) -> None:
        self.agents = {number: Agent() for number in numbers}


def test_samples_are_read_as_they_were_saved(tmp_path: Path):
    POOLS.save(tmp_path / "samples.npz")
    again = SamplePools.read(tmp_path / "samples.npz")
    for pool, kept in zip(POOLS, again, strict=True):
        assert pool.labels == kept.labels
        assert pool.x.dtype == kept.x.dtype
        assert np.array_equal(pool.x, kept.x)


async def test_arrivals_are_the_same_however_many_processes_share_the_agents():
    scenario = Scenario(devices=9, duration_s=20.0, load=Load(samples_per_s=1.0), seed=5)
    taken: list[dict[int, int]] = []
    for processes in (1, 2, 3):
        found: dict[int, int] = {}
        for index in range(processes):
            fleet = Fleet(range(index, 9, processes))
            driver = LoadDriver(scenario, POOLS, fleet, index)  # type: ignore[arg-type]
            await driver.run(time.monotonic() - 1000.0)  # as if it were far behind: nothing waits
            found |= {number: agent.taken for number, agent in fleet.agents.items()}
            assert driver.samples == sum(agent.taken for agent in fleet.agents.values())
        taken.append(dict(sorted(found.items())))
    assert taken[0] == taken[1] == taken[2]
    assert sum(taken[0].values()) > 100
