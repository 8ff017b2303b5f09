"""Open jobs of a tenant: a hub alone never goes above the limit, and never refuses what there is room for."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.engine.base import EchoEngine
from cloud_hub.jobs import quota
from cloud_hub.jobs.decisions import JobSettings
from cloud_hub.jobs.quota import OpenJobs, needs_count, recount, refuse_jobs, take_jobs
from cloud_hub.registry.access import Scope
from policies.serving.admission import MAX_RETRY_S
from tests.cloud_hub.doubles.devices import CARD
from tests.cloud_hub.doubles.job_site import JobSite, job_body, job_site

MOST = 20
steps = st.lists(st.tuples(st.sampled_from(["ask", "end", "wait"]), st.integers(1, 25)), max_size=80)


@given(steps)
def test_a_hub_alone_never_goes_above_the_limit_and_refuses_nothing_that_a_fresh_count_would_let_in(changes):
    known: OpenJobs | None = None
    there, now = 0, 0.0
    for kind, number in changes:
        if kind == "wait":
            now += number / 10
        elif kind == "end":
            there -= min(there, number)
        else:
            counted = needs_count(known, number, MOST, now, shared=False)
            if counted:
                known = recount(known, there, known.taken if known else 0, now)
            assert known is not None
            taken = take_jobs(known, number, MOST)
            if taken is not None:
                known, there = taken, there + number
            elif counted:
                assert there + number > MOST
        assert there <= MOST
        assert known is None or known.total >= there


@given(steps)
def test_what_is_being_written_while_it_is_counted_is_not_forgotten(changes):
    known: OpenJobs | None = None
    written, unwritten, now = 0, 0, 0.0
    for kind, number in changes:
        if kind == "wait":
            now += number / 10
            known = recount(known, written, known.taken - unwritten if known else 0, now) if known else None
        elif kind == "end":
            done = min(unwritten, number)
            written, unwritten = written + done, unwritten - done
        else:
            known = known or recount(None, 0, 0, now)
            taken = take_jobs(known, number, MOST)
            if taken is not None:
                known, unwritten = taken, unwritten + number
        assert written + unwritten <= MOST


@given(st.integers(1, 500), st.floats(0, 1000))
def test_the_refused_are_told_to_come_back_one_after_another_and_never_beyond_a_minute(count, pace):
    known, times = OpenJobs(MOST, 0.0, pace=pace), []
    for _ in range(count):
        known, refused = refuse_jobs(known, 1, MOST, 0.0)
        times.append(refused.retry_after_s)
    assert times == sorted(times)
    assert all(1.0 <= each <= MAX_RETRY_S for each in times)


def test_several_hubs_count_once_a_second():
    known = OpenJobs(3, 10.0)
    assert [needs_count(known, 1, MOST, now, shared=True) for now in (10.5, 11.0, 9.0)] == [False, True, True]
    assert not needs_count(known, 1, MOST, 99.0, shared=False)


@pytest.fixture
async def site(tmp_path, urls):
    engine = EchoEngine(CARD)
    engine.broken = True  # nothing ends
    async with job_site(tmp_path, urls, JobSettings(tenant_open=5), engine=engine, drain_s=0.05) as opened:
        yield opened


LINE = "5 jobs are open, as many as a tenant may have: ask again when some have ended"


async def test_a_tenant_with_too_many_open_jobs_is_refused_with_a_time_and_another_one_is_not(site: JobSite, set_times):
    set_times(quota, COUNT_S=0.05)
    key = {"Idempotency-Key": "order-1"}
    status, first = await site.ask("POST", "/v1/jobs", json=job_body(), headers=key)
    assert status == 202
    for _ in range(4):
        await site.submit()
    async with site.api.client.post(f"{site.api.url}/v1/jobs", json=job_body(), headers=site.key) as response:
        assert (response.status, (await response.json())["error"]) == (429, LINE)
        assert 1 <= int(response.headers["Retry-After"]) <= MAX_RETRY_S
    status, again = await site.ask("POST", "/v1/jobs", json=job_body(), headers=key)
    assert (status, again["id"]) == (202, first["id"]), "a repeat of what is there needs no room"
    assert (await site.ask("POST", "/v1/jobs", site.api.key("clinic", Scope.INFER), json=job_body()))[0] == 202
    assert (await site.ask("DELETE", f"/v1/jobs/{first['id']}"))[0] == 200
    async with asyncio.timeout(60):
        while (await site.ask("POST", "/v1/jobs", json=job_body()))[0] != 202:
            await asyncio.sleep(0.05)


async def test_a_file_beyond_the_limit_is_refused_whole_and_one_that_never_fits_says_so(site: JobSite):
    await site.submit()
    line = json.dumps(job_body()).encode() + b"\n"
    assert await site.ask("POST", "/v1/batches", data=line * 5) == (429, {"error": LINE})
    told = {"error": "the file has more jobs than a tenant may have open, 5"}
    assert await site.ask("POST", "/v1/batches", data=line * 6) == (413, told)
    assert len((await site.ask("GET", "/v1/jobs"))[1]["jobs"]) == 1
    assert (await site.ask("POST", "/v1/batches", data=line * 4))[0] == 202
