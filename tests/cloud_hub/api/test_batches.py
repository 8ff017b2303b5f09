"""Files of jobs: progress, answers in the order of lines; a wrong line, a flood, a break leave nothing behind."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cloud_hub.jobs.decisions import BatchLimits, JobSettings
from cloud_hub.registry.access import Scope
from tests.cloud_hub.doubles.job_site import JobSite, job_body, job_site
from tests.cloud_hub.jobs.test_running import BAD, until
from tests.examples import further

LIMITS = BatchLimits(max_bytes=400_000, max_lines=400)


@pytest.fixture
async def site(tmp_path, urls):
    async with job_site(tmp_path, urls, JobSettings(batches=LIMITS)) as opened:
        yield opened


def lines(*jobs: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in jobs)


async def ended(site: JobSite, batch: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            status, told = await site.ask("GET", f"/v1/batches/{batch}")
            assert status == 200, told
            if told["state"] == "ended":
                return dict(told)
            await asyncio.sleep(0.02)


async def listed(site: JobSite) -> list[Any]:
    return list((await site.ask("GET", "/v1/jobs"))[1]["jobs"])


async def test_a_file_is_computed_and_its_answers_come_in_the_order_of_its_lines(site: JobSite):
    file = lines(*(job_body(number / 300) for number in range(300)), job_body(*BAD))
    status, told = await site.ask("POST", "/v1/batches", data=file)
    assert (status, told["lines"]) == (202, 301)
    found = await ended(site, told["id"])
    assert (found["ended"], found["jobs"]["answered"], found["jobs"]["dead"]) == (301, 300, 1)
    _, text = await site.ask("GET", f"/v1/batches/{told['id']}/answers?after=290")
    answers = [json.loads(line) for line in text.splitlines()]
    assert [each["line"] for each in answers] == list(range(291, 301))
    assert {each["answer"]["model_name"] for each in answers} == {"echo"}
    line = "every job of the batch has ended already"
    assert await site.ask("DELETE", f"/v1/batches/{told['id']}") == (409, {"error": line})


@pytest.mark.parametrize(
    ("file", "status", "line"),
    [
        (lines(*[job_body()] * 200) + b"no json\n" + lines(job_body()), 400, "line 201: the body is not valid JSON"),
        further(lines(job_body()) + b'{"model": "echo"', 400, "line 2: the body is not valid JSON"),
        (lines(job_body(), job_body(model="nobody")), 404, "line 2: this hub serves no such model"),
        further(lines(job_body(), job_body(1e9)), 400, "line 2: the input does not fit the model"),
        (lines(*[job_body()] * 401), 413, "the file has more than 400 lines"),
        (b" " * 20_000, 413, "a line is longer than 16384 bytes"),
        further(b"\n" * 500_000, 413, "the file is longer than 400000 bytes"),
        further(b"\n\n", 400, "the file has no line"),
    ],
)
async def test_a_wrong_line_is_named_and_nothing_is_left_of_its_file(site: JobSite, file, status, line):
    found, told = await site.ask("POST", "/v1/batches", data=file)
    assert found == status
    assert told["error"].startswith(line)
    assert await listed(site) == []


async def test_a_gigabyte_is_refused_before_it_is_read(site: JobSite):
    sent = 0

    async def flood() -> AsyncIterator[bytes]:
        nonlocal sent
        part = lines(job_body()) * 100
        while sent < 1 << 30:
            sent += len(part)
            yield part

    try:
        status, _ = await site.ask("POST", "/v1/batches", data=flood())
    except OSError:  # the hub hung up on it
        status = 413
    assert status == 413
    assert sent < 1 << 26
    assert await listed(site) == []


async def test_a_caller_that_hangs_up_in_the_middle_leaves_nothing(site: JobSite):
    async def broken() -> AsyncIterator[bytes]:
        yield lines(*[job_body()] * 300)
        await asyncio.sleep(0.05)
        raise ConnectionError

    with pytest.raises((OSError, ConnectionError)):
        await site.ask("POST", "/v1/batches", data=broken())
    async with asyncio.timeout(60):
        while await listed(site):
            await asyncio.sleep(0.02)


async def test_a_file_under_a_key_is_taken_once(site: JobSite):
    key, file = {"Idempotency-Key": "night-17"}, lines(*[job_body()] * 5)
    _, first = await site.ask("POST", "/v1/batches", data=file, headers=key)
    status, again = await site.ask("POST", "/v1/batches", data=file, headers=key)
    assert (status, again["id"]) == (202, first["id"])
    line = "this Idempotency-Key came with another file before"
    assert await site.ask("POST", "/v1/batches", data=file * 2, headers=key) == (422, {"error": line})
    await ended(site, first["id"])
    assert len(await listed(site)) == 5


@pytest.mark.usefixtures("quick_rechecks")
async def test_a_batch_is_cancelled_and_another_tenants_is_none(site: JobSite):
    site.site.engine.broken = True  # type: ignore[attr-defined]  # so that all of them wait
    _, told = await site.ask("POST", "/v1/batches", data=lines(*[job_body()] * 200))
    other = site.api.key("clinic", Scope.INFER)
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/answers")):
        assert await site.ask(method, f"/v1/batches/{told['id']}{path}", other) == (404, {"error": "no such batch"})
    status, found = await site.ask("DELETE", f"/v1/batches/{told['id']}")
    assert (status, found["state"], found["jobs"]["cancelled"]) == (200, "ended", 200)
    site.site.engine.broken = False  # type: ignore[attr-defined]
    await until(lambda: not site.site.hub.jobs._runner._held)
    assert (await ended(site, told["id"]))["jobs"]["cancelled"] == 200
