"""Two hub processes of one region over a real PostgreSQL: under a key a request is computed once, wherever asked."""

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from simulations.processes import ProcessHarness
from tests.live.doubles.fleet import BUSY_S, samples
from tests.live.regions.test_news import Region, region, server, until

__all__ = ["region", "server"]  # fixtures
pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]

CALLERS = 8  # at each hub


async def ask(region: Region, stage: ProcessHarness, token: str, key: str, number: int) -> tuple[int, Any]:
    """Ask a hub to infer a sample under a key."""
    assert stage.hub is not None
    x, spec = samples(number + 1)[number], region.bundle.manifest.input
    tensor = {"name": spec.name, "shape": [1, *x.shape], "datatype": "FP32", "data": x.ravel().tolist()}
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
    url = f"{stage.hub.url}/v2/models/{region.bundle.manifest.name}/infer"
    async with stage.session.post(url, json={"inputs": [tensor]}, headers=headers) as response:
        return response.status, await response.json()


async def ask_until_answered(region: Region, stage: ProcessHarness, token: str, key: str) -> Any:
    """Ask as a client does: again while the answer is being computed elsewhere."""
    async with asyncio.timeout(BUSY_S):
        while True:
            status, answer = await ask(region, stage, token, key, 0)
            if status == 200:
                return answer
            assert status == 409
            await asyncio.sleep(0.05)


async def test_a_request_under_a_key_is_computed_once_by_either_hub_and_answered_alike_by_both(region: Region):
    first, second = region.first, region.second
    assert first.hub is not None
    wanted = {"name": "ward", "tenant": "demo", "scopes": ["infer"], "expires_s": 3600}
    token = (await first.call_admin("POST", "/v1/admin/keys", wanted))["token"]

    async def known() -> bool:
        return (await ask(region, second, token, "warm", 0))[0] == 200

    await until(known)
    callers = [ask_until_answered(region, stage, token, "order-17") for stage in (first, second) * CALLERS]
    answers = await asyncio.gather(*callers)
    assert all(each == answers[0] for each in answers)
    assert [await ask(region, stage, token, "order-17", 1) for stage in (first, second)] == [
        (422, {"error": "this Idempotency-Key came with another payload before"})
    ] * 2

    engine = sa.create_engine(str(first.hub.questions), poolclass=sa.NullPool)
    counted = sa.text("select coalesce(sum(amount), 0) from questions.costs where kind = 'requests'")

    async def billed() -> bool:
        with engine.connect() as connection:
            return int(connection.execute(counted).scalar_one()) == 2  # "warm" and "order-17"

    await until(billed)
    await first.hub.child.kill()
    assert await ask(region, second, token, "order-17", 0) == (200, answers[0])
