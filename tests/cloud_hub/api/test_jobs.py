"""Routes of jobs: exact statuses, one line, nothing half done; a tenant sees its own."""

import asyncio
import json
from typing import Any

import pytest

from cloud_hub.jobs.decisions import JobSettings
from cloud_hub.registry.access import Scope
from tests.cloud_hub.doubles.job_site import JobSite, job_body, job_site
from tests.examples import further

DEVICE = {"device": "acme--cam-1", "subject": "ab" * 32}


@pytest.fixture
async def site(tmp_path, urls):
    async with job_site(tmp_path, urls) as opened:
        yield opened


async def listed(site: JobSite, query: str = "", key: dict[str, str] | None = None) -> list[dict[str, Any]]:
    status, told = await site.ask("GET", f"/v1/jobs{query}", key)
    assert status == 200, told
    return list(told["jobs"])


async def test_a_job_is_taken_with_its_place_and_answered_as_an_inference_is(site: JobSite):
    headers = {"Authorization": site.key["Authorization"]}
    async with site.api.client.post(f"{site.api.url}/v1/jobs", json=job_body(1.0), headers=headers) as response:
        told = await response.json()
        assert (response.status, response.headers["Location"]) == (202, f"/v1/jobs/{told['id']}")
    ended = await site.ended(told["id"])
    assert (ended["state"], ended["why"], ended["tries"], ended["tenant"]) == ("answered", "", 1, "acme")
    assert ended["answer"]["model_name"] == "echo"
    (tensor, *_) = ended["answer"]["outputs"]
    assert tensor["shape"][0] == 1
    assert [job["id"] for job in await listed(site)] == [told["id"]]


@pytest.mark.parametrize(
    ("body", "status", "line"),
    [
        (b"{", 400, "the body is not valid JSON, or has a duplicate key"),
        further(b"\xff", 400, "the body is not valid JSON, or has a duplicate key"),
        further(b"[" * 9000, 400, None),
        further(b'{"model":"echo"}', 400, "Object missing required field `request`"),
        (json.dumps(job_body(wrong=1)).encode(), 400, "Object contains unknown field `wrong`"),
        further(b'{"model":"echo","model":"echo","request":{}}', 400, None),
        (json.dumps(job_body(model="nobody")).encode(), 404, "this hub serves no such model or version"),
        further(json.dumps(job_body(timeout_s=-1)).encode(), 400, None),
        further(json.dumps(job_body(timeout_s=1e9)).encode(), 400, None),
        (json.dumps(job_body(subject="ab" * 32)).encode(), 400, None),
        (json.dumps(job_body(device="clinic--cam-1")).encode(), 403, "this key belongs to another tenant"),
        further(json.dumps(job_body(*range(11))).encode(), 400, None),
        (json.dumps(job_body(1e9)).encode(), 400, "the input does not fit the model"),
        further(json.dumps({"model": "echo", "request": {"inputs": []}}).encode(), 400, None),
        (json.dumps({"model": "echo", "request": {"inputs": [], "parameters": {"priority": 1}}}).encode(), 400, None),
        (b" " * 20_000, 413, None),
    ],
)
async def test_what_is_wrong_is_told_in_one_line_and_nothing_is_stored(site: JobSite, body, status, line):
    found, told = await site.ask("POST", "/v1/jobs", data=body)
    assert (found, list(told)) == (status, ["error"])
    assert "\n" not in told["error"]
    assert line in (None, told["error"])
    assert await listed(site) == []


async def test_without_a_key_nobody_hands_over_or_sees_anything(site: JobSite):
    job = await site.submit()
    for method, path in (
        ("POST", ""),
        ("GET", ""),
        ("GET", f"/{job}"),
        ("DELETE", f"/{job}"),
        ("POST", f"/{job}/requeue"),
    ):
        assert (await site.api.ask(method, f"/v1/jobs{path}"))[0] == 401
        assert (await site.ask(method, f"/v1/jobs{path}", site.api.key("acme", Scope.READ)))[0] == 403


async def test_another_tenants_job_looks_like_none_and_the_whole_hub_sees_all(site: JobSite):
    job, other = await site.submit(), site.api.key("clinic", Scope.INFER)
    for method, path in (("GET", job), ("DELETE", job), ("POST", f"{job}/requeue"), ("GET", "0" * 32)):
        assert await site.ask(method, f"/v1/jobs/{path}", other) == (404, {"error": "no such job"})
    assert await listed(site, key=other) == []
    assert [each["id"] for each in await listed(site, key=site.api.admin)] == [job]


async def test_a_key_makes_one_job_and_with_another_body_none(site: JobSite):
    key = {"Idempotency-Key": "order-17"}
    answers = await asyncio.gather(*(site.ask("POST", "/v1/jobs", json=job_body(1.0), headers=key) for _ in range(8)))
    assert {status for status, _ in answers} == {202}
    assert len({told["id"] for _, told in answers}) == 1
    assert await site.ask("POST", "/v1/jobs", json=job_body(0.2), headers=key) == (
        422,
        {"error": "this Idempotency-Key came with another job before"},
    )
    other = site.api.key("clinic", Scope.INFER)
    assert (await site.ask("POST", "/v1/jobs", other, json=job_body(0.2), headers=key))[0] == 202
    assert len(await listed(site)) == 1
    status, told = await site.ask("POST", "/v1/jobs", json=job_body(), headers={"Idempotency-Key": "two words"})
    assert (status, "Idempotency-Key" in told["error"]) == (400, True)


async def test_what_has_ended_is_not_cancelled_and_only_the_dead_are_queued_again(site: JobSite):
    job = await site.submit()
    await site.ended(job)
    assert await site.ask("DELETE", f"/v1/jobs/{job}") == (409, {"error": "the job has ended already: it is answered"})
    line = "only a dead job is queued again: this one is answered"
    assert await site.ask("POST", f"/v1/jobs/{job}/requeue") == (409, {"error": line})
    assert (await site.ended(job))["state"] == "answered"


async def test_lists_come_in_pages_and_by_state_and_a_wrong_question_is_refused(site: JobSite):
    jobs = [await site.submit(number / 100) for number in range(5)]
    for job in jobs:
        await site.ended(job)
    _, page = await site.ask("GET", "/v1/jobs?limit=2")
    assert [each["id"] for each in page["jobs"]] == jobs[:2]
    _, rest = await site.ask("GET", f"/v1/jobs?limit=9&after={page['next']}")
    assert ([each["id"] for each in rest["jobs"]], rest["next"]) == (jobs[2:], "")
    assert len(await listed(site, "?state=answered")) == 5
    assert await listed(site, "?state=dead&state=failed") == []
    for query in ("state=gone", "limit=0", "limit=x", "limit=1001"):
        assert (await site.ask("GET", f"/v1/jobs?{query}"))[0] == 400


async def test_a_hub_that_stops_takes_no_job(site: JobSite):
    site.api.hub.facts["draining"] = True
    assert (await site.ask("POST", "/v1/jobs", json=job_body()))[0] == 503


async def test_what_ended_goes_after_its_time(tmp_path, urls):
    async with job_site(tmp_path, urls, JobSettings(keep_s=0.05)) as site:
        job = await site.submit()
        async with asyncio.timeout(60):
            while (await site.ask("GET", f"/v1/jobs/{job}"))[0] != 404:
                await asyncio.sleep(0.05)


async def test_jobs_stand_in_the_description_of_the_api_and_are_counted(site: JobSite):
    await site.ended(await site.submit(**DEVICE))
    _, page = await site.ask("GET", "/openapi.json", site.api.admin)
    assert {"/v1/jobs", "/v1/jobs/{job}", "/v1/jobs/{job}/requeue"} <= set(page["paths"])
    counts = site.site.hub.counters()
    assert [counts[f"jobs.{name}"] for name in ("accepted", "begun", "answered")] == [1, 1, 1]
