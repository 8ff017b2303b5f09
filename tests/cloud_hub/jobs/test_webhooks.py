"""Webhooks: an ending is told until it is taken, under one event id; never inwards, whatever leads there."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from cloud_hub.jobs import webhooks
from cloud_hub.jobs.addresses import check_hook, is_outward
from cloud_hub.jobs.decisions import JobSettings
from cloud_hub.jobs.webhooks import HttpHooks
from tests.cloud_hub.doubles.job_site import job_body, job_site
from tests.cloud_hub.jobs.test_running import BAD, until
from wire.http.oip import OipError

INWARDS = JobSettings(webhooks_inwards=True)


@pytest.fixture(autouse=True)
def quick_posts(set_times):
    set_times(webhooks, RETRY_BASE_S=0.02, LOOK_S=0.02)


class Owner:
    """A web server that is told of endings. `answers`: statuses it gives first, one for each request."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.types: list[str] = []
        self.answers: list[int] = []
        self.hang_s = 0.0
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.events.append(json.loads(await request.read()))
        self.types.append(request.headers["Content-Type"])
        await asyncio.sleep(self.hang_s)
        status = self.answers.pop(0) if self.answers else 204
        return web.Response(status=status, headers={"Location": self.url} if 300 <= status < 400 else {})


@asynccontextmanager
async def owner() -> AsyncIterator[Owner]:
    found, app = Owner(), web.Application()
    app.router.add_post("/told", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/told"
    yield found
    await runner.cleanup()


async def test_the_end_of_a_job_is_told_as_a_cloud_event_until_it_is_taken(tmp_path, urls):
    async with owner() as told, job_site(tmp_path, urls, INWARDS) as site:
        told.answers = [500, 302]
        good = await site.submit(0.5, webhook=told.url)
        bad = await site.submit(*BAD, webhook=told.url)
        await until(lambda: len(told.events) >= 4)
        await until(lambda: site.site.hub.counters().get("jobs.told") == 2)
        assert set(told.types) == {"application/cloudevents+json; charset=utf-8"}
        kinds = {event["subject"]: event["type"] for event in told.events}
        assert kinds == {f"/v1/jobs/{good}": "skerry.job.answered", f"/v1/jobs/{bad}": "skerry.job.dead"}
        assert len({event["id"] for event in told.events}) == 2, "a repeat has the same id"
        (event, *_) = [each for each in told.events if each["subject"].endswith(bad)]
        assert (event["specversion"], event["data"]["state"]) == ("1.0", "dead")
        assert "the input is at fault" in event["data"]["why"]
        assert "answer" not in event["data"]


async def test_an_owner_that_hangs_or_is_away_delays_no_job(tmp_path, urls):
    async with owner() as told, job_site(tmp_path, urls, INWARDS) as site:
        told.hang_s = 5.0
        await site.submit(0.1, webhook=told.url)
        await site.submit(0.2, webhook="http://127.0.0.1:9/nobody")
        assert (await site.ended(await site.submit(0.3)))["state"] == "answered"


async def test_nothing_is_posted_inwards_though_a_name_or_a_redirect_leads_there():
    async with owner() as told:
        outward = HttpHooks(inwards=False, timeout_s=5.0)
        assert not await outward.post(told.url, b"{}")
        assert not await outward.post(told.url.replace("127.0.0.1", "localhost"), b"{}")
        assert not await outward.post(told.url.replace("127.0.0.1", "[::ffff:127.0.0.1]"), b"{}")
        await outward.close()
        assert told.events == []
        inward = HttpHooks(inwards=True, timeout_s=0.5)
        told.answers = [307, 200]
        assert not await inward.post(told.url, b"{}"), "a redirect is not followed"
        assert len(told.events) == 1
        assert await inward.post(told.url, b"{}")
        told.hang_s = 5.0
        assert not await inward.post(told.url, b"{}"), "who hangs has not taken it"
        await inward.close()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/", "http://", "http:///x", "http://user:secret@example.org/", "http://example.org/#x",
        "http://127.0.0.1/", "http://10.1.2.3:80/", "http://[::1]/", "http://[fe80::1]/", "http://169.254.169.254/latest",
        "http://localhost:8080/", "http://printer.local/", "http://2130706433/", "http://0x7f000001/", "http://127.1/",
        "http://[::ffff:10.0.0.1]/", "http://[64:ff9b::a00:1]/", "http://[2002:a00:1::]/", "http://example.org:x/",
        "http://ex ample.org/", "http://exämple.org/", "http://" + "a" * 600,
    ],
)  # fmt: skip
async def test_a_webhook_that_is_none_or_inwards_is_refused_when_the_job_is_handed_over(tmp_path, url):
    with pytest.raises(OipError) as refused:
        check_hook(url, inwards=False)
    assert refused.value.status == 400
    assert str(refused.value).startswith("webhook: ")


def test_public_addresses_are_taken():
    check_hook("https://hooks.example.org:8443/skerry?of=ward", inwards=False)
    check_hook("http://8.8.8.8/", inwards=False)
    check_hook("http://127.0.0.1:9000/", inwards=True)


# Every known way to put an IPv4 address into an IPv6 one, whether or not a gateway is there that takes it out again
WRAPPINGS = {
    "compatible": lambda number: number,
    "mapped": lambda number: 0xFFFF_0000_0000 | number,
    "translated (SIIT)": lambda number: 0xFFFF_0000_0000_0000 | number,
    "NAT64": lambda number: int(IPv6Address("64:ff9b::")) | number,
    "local NAT64": lambda number: int(IPv6Address("64:ff9b:1::")) | number,
    "6to4": lambda number: (0x2002 << 112) | (number << 80),
    "Teredo server": lambda number: (0x20010000 << 96) | (number << 64),
    "Teredo client": lambda number: (0x20010000 << 96) | (0x08080808 << 64) | (number ^ 0xFFFF_FFFF),
    "ISATAP": lambda number: int(IPv6Address("2a00:1450::5efe:0:0")) | number,
}


@pytest.mark.parametrize("name", WRAPPINGS)
@given(number=st.integers(0, 2**32 - 1))
@example(0xE0000000)  # a group of machines
@example(0x7F000001)
@example(0x0A000001)
@example(0xC0000008)  # 192.0.0.8
@example(0xA9FEA9FE)  # where clouds hand out credentials
def test_no_private_address_is_outward_however_it_is_wrapped(name: str, number: int):
    plain = IPv4Address(number)
    wrapped = IPv6Address(WRAPPINGS[name](number))
    if not plain.is_global or plain.is_multicast:
        assert not is_outward(str(plain))
        assert not is_outward(str(wrapped))
    elif not is_outward(str(plain)):
        assert plain in IPv4Network("192.0.0.0/24") or plain in IPv4Network("192.88.99.0/24")


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
@example(IPv6Address("fec0::1"))
@example(IPv6Address("::1"))
@example(IPv6Address("fd00::1"))
@example(IPv6Address("ff02::1"))
@example(IPv6Address("5f00::1"))
@example(IPv6Address("100::1"))
@example(IPv6Address("2001:db8::1"))
@example(IPv6Address("3fff::1"))
def test_only_global_unicast_of_ipv6_is_outward(address: IPv6Address):
    if is_outward(str(address)):
        assert address.is_global
        assert address in IPv6Network("2000::/3") or address.ipv4_mapped or address in IPv6Network("64:ff9b::/96")
        assert address not in IPv6Network("2001::/23")


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2a00:1450:4001::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
)
def test_an_address_of_another_network_is_outward(address: str):
    assert is_outward(address)


async def test_a_job_with_an_inward_webhook_is_not_stored(tmp_path, urls):
    async with job_site(tmp_path, urls) as site:
        status, told = await site.ask("POST", "/v1/jobs", json=job_body(webhook="http://169.254.169.254/"))
        assert (status, told["error"]) == (400, "webhook: this address is inside the hub's own network")
        assert (await site.ask("GET", "/v1/jobs"))[1]["jobs"] == []
