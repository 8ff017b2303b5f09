"""The console in Chromium behind a proxy that has other things beside it: all of it lies below `/skerry`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from cloud_hub.registry.access import Scope
from cloud_hub.registry.device_states import DeviceState
from tests.cloud_hub.doubles.console_site import ConsoleSite, list_pages, make_device
from tests.live.doubles.chromium import Chromium

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

PREFIX = "/skerry"
DEVICE = "demo--cam-000000"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ConsoleSite]:
    opened = ConsoleSite(tmp_path, prefix=PREFIX)
    opened.fill(3)
    await opened.open()
    yield opened
    await opened.close()


@asynccontextmanager
async def open_proxy(hub_url: str, *, strips: bool) -> AsyncIterator[str]:
    """A web server that passes to the hub what lies below the prefix, with its `Host`, and answers 404 to the rest."""

    async def pass_on(request: web.Request) -> web.StreamResponse:
        path = request.raw_path.removeprefix(PREFIX) if strips else request.raw_path
        asked = client.request(
            request.method, hub_url + path, headers=request.headers, data=await request.read(), allow_redirects=False
        )
        async with asked as reply:
            answer = web.StreamResponse(status=reply.status, headers=reply.headers)
            await answer.prepare(request)
            async for part in reply.content.iter_any():
                await answer.write(part)
            return answer

    app = web.Application()
    app.router.add_route("*", f"{PREFIX}/{{rest:.*}}", pass_on)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    async with aiohttp.ClientSession(auto_decompress=False) as client:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@pytest.mark.parametrize("strips", [False, True])
async def test_the_whole_console_works_below_a_path_and_asks_for_nothing_beside_it(
    chromium: Chromium, site: ConsoleSite, strips: bool
):
    async with open_proxy(site.url, strips=strips) as url:
        visitor = await chromium.visit(url + PREFIX)
        key = site.key("", Scope.READ, Scope.OPERATE)["Authorization"].removeprefix("Bearer ")
        page = await visitor.open("/rollouts")
        await page.get_by_label("Key").fill(key)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url(f"**{PREFIX}/rollouts")
        for path in list_pages(site, DEVICE):
            await visitor.open(path)
            assert await page.locator("nav.side").count() == 1, path

        await visitor.open("/")
        site.registry.take_news([make_device("demo--newcomer", DeviceState.ACTIVE, region="eu-de")], 0)
        await page.get_by_role("link", name="demo--newcomer").first.wait_for()  # by the stream of events
        await page.locator("canvas[data-map]").first.click(position={"x": 5, "y": 5})
        await page.wait_for_url(f"**{PREFIX}/devices/demo--*")
        await page.get_by_role("button", name="Sign out").click()
        await page.wait_for_url(f"**{PREFIX}/signin")
        assert await visitor.context.cookies() == []
        assert [each for each in visitor.asked if not urlsplit(each).path.startswith(PREFIX)] == []
        assert visitor.strangers == []
        assert visitor.faults == []
