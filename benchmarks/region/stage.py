"""Three hub processes over one PostgreSQL and one broker that is nobody's child; agents whose callers never rest."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import sqlalchemy as sa

from benchmarks.harness.rig import POLICY, BenchmarkRig
from models.bundle.bundle import Bundle, open_bundle
from models.forge.data.digits import corrupt_pictures, load_heldout
from simulations.checking.databases import judge_run
from simulations.checking.events import HistoryReport
from simulations.processes import AgentHandle, HubHandle, ProcessHarness
from tests.postgres import PostgresServer
from wire.protocol.topics import HUB_NAMES

HUBS, AGENTS, CALLERS = 3, 4, 2
LEASE_S = 6.0
SHARDS = 256
WAIT_S = 120.0  # for what takes seconds on a quiet machine
_QUICK = {"link": {"reconnect_base_s": 0.2, "reconnect_cap_s": 1.0}, "outbox": {"ask_interval_s": 5.0}}
_COUNT_SHARDS = (
    "select hub, count(*) from region.leases where kind = 'shard' and hub <> '' "
    "and until_ms > extract(epoch from clock_timestamp()) * 1000 group by hub"
)


class RegionStage:
    """`members`: one harness of each hub, in the order of their names. The first one's also has the agents."""

    def __init__(self, rig: BenchmarkRig, server: PostgresServer, bundle: Bundle, drain_s: float | None = None) -> None:
        self.server, self.bundle = server, bundle
        self.url = server.create_database()
        self.members: list[ProcessHarness] = [rig.stage]
        self.agents: list[AgentHandle] = []
        self._rig = rig
        self._told: dict[str, Any] = {} if drain_s is None else {"drain_s": drain_s}
        self._engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        self._x = corrupt_pictures(load_heldout()[0], np.random.default_rng(3), 0.5)

    async def start(self, stack: AsyncExitStack) -> None:
        """Start hubs and agents."""
        broker = {"start": False, "host": "127.0.0.1", "port": self._rig.broker.port}
        shared: dict[str, dict[str, Any]] = {"broker": broker, "store": {"url": self.url, "lease_s": LEASE_S}}
        shared |= {"hub": self._told}
        first = await self.members[0].start_hub(self._rig.bundle, shared)
        for name in HUB_NAMES[1:HUBS]:
            folder = self._rig.folder / name
            folder.mkdir()
            member = await stack.enter_async_context(ProcessHarness(folder))
            extra: dict[str, dict[str, Any]] = {
                "broker": broker,
                "store": {"url": self.url, "lease_s": LEASE_S},
                "hub": {"member": name, **self._told},
            }
            _share_keys(first, await member.configure_hub(self._rig.bundle, extra))
            await member.launch_hub()
            self.members.append(member)
        policy = self._rig.folder / "policy.toml"
        text = POLICY.format(mode="hub_first", threshold=0.9)
        policy.write_text(text.replace("budget_s = 10.0", "budget_s = 0.5"))
        for number in range(AGENTS):
            agent = await self.members[0].add_agent(f"agent-{number}", self._rig.bundle, policy, _QUICK)
            self.agents.append(agent)
            await self.members[0].start_agent(agent)
        await self.until_shared()

    def hub(self, number: int) -> HubHandle:
        found = self.members[number].hub
        assert found is not None
        return found

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(text)]

    async def until_shared(self, hubs: int = HUBS) -> None:
        """Wait until so many hubs have equal shares of the shards, and serve them."""
        await self.until(lambda: self._are_shared(hubs), "the shards are not divided")

    async def _are_shared(self, hubs: int) -> bool:
        shares = [int(row[1]) for row in self.query(_COUNT_SHARDS)]
        return len(shares) == hubs and sum(shares) == SHARDS and max(shares) - min(shares) <= 1

    async def count_served(self, *numbers: int) -> int:
        """How many shards these hubs say that they serve."""
        found = [await self.members[each].call_admin("GET", "/v1/admin/status") for each in numbers]
        return sum(int(each["shards"]) for each in found)

    async def until(self, met: Callable[[], Awaitable[bool]], otherwise: str, every_s: float = 0.02) -> float:
        """Wait until it is so; how many seconds that took. RuntimeError with `otherwise` after two minutes."""
        began = time.monotonic()
        while not await met():
            if time.monotonic() > began + WAIT_S:
                raise RuntimeError(otherwise)
            await asyncio.sleep(every_s)
        return time.monotonic() - began

    async def are_ready(self) -> bool:
        """Whether every hub is ready."""
        return all([await _is_ready(member) for member in self.members])

    @contextlib.asynccontextmanager
    async def under_load(self) -> AsyncIterator[list[int]]:
        """Callers ask every agent without rest until the block ends; then every question gets its outcome.

        Yields how many they were answered so far, in one number.
        """
        answered = [0]
        callers = [asyncio.create_task(self._ask(each, answered)) for each in self.agents for _ in range(CALLERS)]
        try:
            await self.until(lambda: _is_over(answered, AGENTS * CALLERS * 2), "no answers")
            yield answered
        finally:
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            await self.until(self._is_settled, "questions stay open", 0.1)

    async def _ask(self, agent: AgentHandle, answered: list[int]) -> None:
        spec, name = self.bundle.manifest.input, self.bundle.manifest.name
        while True:
            x = self._x[answered[0] % len(self._x)]
            tensor = {"name": spec.name, "shape": [1, *x.shape], "datatype": "FP32", "data": x.ravel().tolist()}
            target = f"{agent.url}/v2/models/{name}/infer"
            async with self.members[0].session.post(target, json={"inputs": [tensor]}) as response:
                await response.read()
                answered[0] += response.status == 200

    async def _is_settled(self) -> bool:
        return not any([(await self.members[0].fetch_status(agent))["open"] for agent in self.agents])

    def judge(self) -> HistoryReport:
        """Everything that was asked since the beginning, by the devices' databases and the hubs'."""
        return judge_run([agent.database for agent in self.agents], self.url)


async def _is_ready(member: ProcessHarness) -> bool:
    assert member.hub is not None
    with contextlib.suppress(aiohttp.ClientError):
        async with member.session.get(f"{member.hub.url}/readyz") as response:
            return response.status == 200
    return False


async def _is_over(answered: list[int], least: int) -> bool:
    return answered[0] >= least


def _share_keys(one: HubHandle, two: HubHandle) -> None:
    """Give a hub that was configured what the region's first one has, as `skerry hub join` does."""
    for name in ("pki", "keys", "repository"):
        if (one.folder / name).exists():
            shutil.copytree(one.folder / name, two.folder / name, symlinks=True)
    shutil.copy(one.folder / "region.key", two.folder)


@contextlib.asynccontextmanager
async def open_stage(folder: Path, bundle: Path, drain_s: float | None = None) -> AsyncIterator[RegionStage]:
    """Yield a region whose hubs are ready and whose agents are connected. `drain_s`: theirs, None = as they come."""
    async with BenchmarkRig(folder, bundle) as rig, AsyncExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        stage = RegionStage(rig, server, open_bundle(bundle), drain_s)
        await stage.start(stack)
        yield stage
