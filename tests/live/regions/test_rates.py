"""Two hub processes of one region over a real PostgreSQL: a tenant that asks both has one rate, not two."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests.live.doubles.fleet import BUSY_S
from tests.live.regions.test_news import Region, server, share_keys, until
from tests.postgres import PostgresServer

__all__ = ["server"]  # a fixture
pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]

RATE_PER_S, BURST = 10.0, 10.0
ASKED_S = 6.0
CALLERS = 4  # of each hub: one alone waits for a busy machine longer than for the rate


@pytest.fixture
async def region(tmp_path: Path, bundle: Bundle, server: PostgresServer) -> AsyncIterator[Region]:
    store: dict[str, dict[str, Any]] = {"store": {"url": server.create_database()}}
    rates = {"tenant_rate_per_s": RATE_PER_S, "tenant_burst": BURST}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with ProcessHarness(tmp_path / "first") as first, ProcessHarness(tmp_path / "second") as second:
        one = await first.start_hub(bundle.path, {**store, "hub": rates})
        broker = {"start": False, "port": one.broker_port}
        hub = {"member": "hub-2", **rates}
        two = await second.configure_hub(bundle.path, {**store, "hub": hub, "broker": broker})
        share_keys(one, two)
        await second.launch_hub()
        yield Region(first, second, bundle)


async def count_answers(region: Region, stages: list[ProcessHarness], token: str) -> tuple[int, float]:
    """Ask without rest for a while; how many were answered, in how many seconds."""

    async def ask(stage: ProcessHarness) -> int:
        answered = 0
        while time.monotonic() < began + ASKED_S:
            status = await region.infer(stage, token)
            assert status in {200, 429, 503}  # 503: a busy machine, which has not heard of the other hub for seconds
            answered += status == 200
        return answered

    began = time.monotonic()
    answers = await asyncio.gather(*(ask(stage) for stage in stages for _ in range(CALLERS)))
    return sum(answers), time.monotonic() - began


async def test_a_tenants_rate_is_that_of_the_region_and_of_a_hub_that_is_left_alone(region: Region):
    first, second = region.first, region.second
    wanted = {"name": "ward", "tenant": "demo", "scopes": ["infer"], "expires_s": 3600}
    token = (await first.call_admin("POST", "/v1/admin/keys", wanted))["token"]

    async def known() -> bool:
        return await region.infer(second, token) == 200

    async def divided() -> bool:  # the first has given half away, and so has heard that there are two
        hubs = (await first.call_admin("GET", "/v1/admin/hubs"))["hubs"]
        return [hub["shards"] for hub in hubs] == [128, 128]

    await until(known)
    await until(divided)
    answered, took_s = await count_answers(region, [first, second], token)
    assert 0 < answered <= BURST + RATE_PER_S * took_s
    print(f"\ntwo hubs: {answered / took_s:.1f}/s of {RATE_PER_S:.0f}")
    assert second.hub is not None
    await second.hub.child.kill()
    async with asyncio.timeout(BUSY_S):
        while True:  # its lease has to end first
            answered, took_s = await count_answers(region, [first], token)
            print(f"one hub: {answered / took_s:.1f}/s")
            assert answered <= BURST + RATE_PER_S * took_s
            if answered > (BURST + RATE_PER_S * took_s) / 2:  # more than it could ever give as one of two
                break
