"""Two hubs over a real PostgreSQL run a file of jobs while one is killed: none lost, none answered twice."""

import asyncio
import io
import json
from typing import Any

import pytest
import sqlalchemy as sa

from tests.live.doubles.fleet import BUSY_S, samples
from tests.live.regions.test_news import Region, region, server

__all__ = ["region", "server"]  # fixtures
pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]

JOBS = 3000
KILLS = 3
IN_HAND = """select count(*) from questions.jobs j join region.leases l on l.kind = 'shard' and l.number = j.shard
  where j.state = 'running' and l.hub = 'hub-2'"""
COUNTS = "select state, count(*), sum(claims), sum(crashes), sum(case when claims = crashes + 1 then 0 else 1 end)"


def write_file(region: Region) -> bytes:
    spec, model = region.bundle.manifest.input, region.bundle.manifest.name
    lines = []
    for x in samples(50):
        tensor = {"name": spec.name, "shape": [1, *x.shape], "datatype": "FP32", "data": x.ravel().tolist()}
        lines.append(json.dumps({"model": model, "request": {"inputs": [tensor]}}).encode() + b"\n")
    return b"".join(lines) * (JOBS // len(lines))


async def ask(region: Region, method: str, path: str, body: bytes | None = None) -> Any:
    """Ask the hub that is not killed."""
    hub = region.first.hub
    assert hub is not None
    headers = {"Authorization": f"Bearer {hub.token}"}
    async with region.first.session.request(
        method, hub.url + path, data=io.BytesIO(body) if body else None, headers=headers
    ) as response:
        text = await response.text()
        assert response.status < 300, text
        return json.loads(text) if response.content_type == "application/json" else text


async def test_of_a_file_of_jobs_none_is_lost_and_none_answered_twice_though_a_hub_is_killed(region: Region):
    first, second = region.first.hub, region.second.hub
    assert first is not None
    assert second is not None
    engine = sa.create_engine(str(first.questions), poolclass=sa.NullPool)

    def query(text: str) -> list[Any]:
        with engine.connect() as connection:
            return list(connection.exec_driver_sql(text).all())

    batch = (await ask(region, "POST", "/v1/batches", write_file(region)))["id"]
    async with asyncio.timeout(BUSY_S):
        for _ in range(KILLS):
            while not query(IN_HAND)[0][0] and (await ask(region, "GET", f"/v1/batches/{batch}"))["state"] != "ended":
                await asyncio.sleep(0.005)
            await second.child.kill()
            await region.second.launch_hub()
        while (progress := await ask(region, "GET", f"/v1/batches/{batch}"))["state"] != "ended":
            await asyncio.sleep(0.1)
    assert (progress["lines"], progress["jobs"]["answered"]) == (JOBS, JOBS)

    (row,) = query(f"{COUNTS} from questions.jobs group by state")
    state, count, claims, crashes, odd = row
    assert (state, count) == ("answered", JOBS)
    assert crashes > 0, "a hub was killed while it had jobs in hand"
    assert claims == JOBS + crashes
    assert odd == 0, "each was begun once, and once more for each time that its hub was lost"
    seen: list[int] = []
    while text := await ask(region, "GET", f"/v1/batches/{batch}/answers?after={seen[-1] if seen else 0}"):
        answers = [json.loads(line) for line in text.splitlines()]
        assert all(each["answer"]["outputs"] for each in answers)
        seen += [each["line"] for each in answers]
    assert seen == list(range(1, JOBS + 1))
    engine.dispose()
