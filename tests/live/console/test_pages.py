"""Every page in Chromium: nothing breaks, nothing leaves, everybody can use it, with few devices and with very many."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.registry.access import Scope
from tests.cloud_hub.doubles.console_site import EVIL, ConsoleSite, list_pages
from tests.live.doubles.chromium import PHONE, Chromium, Visitor, session_code

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ConsoleSite]:
    opened = ConsoleSite(tmp_path)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def hostile(tmp_path: Path) -> AsyncIterator[ConsoleSite]:
    opened = ConsoleSite(tmp_path, EVIL)
    await opened.open()
    yield opened
    await opened.close()


async def visit(chromium: Chromium, site: ConsoleSite, **more: Any) -> Visitor:
    visitor = await chromium.visit(site.url, **more)
    await visitor.page.goto(await session_code(site.url, site.token_file.read_text().strip()))
    return visitor


@pytest.mark.parametrize("devices", [3, 10_000])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everybody_can_use_every_page_and_nothing_on_it_fails(chromium, site, devices, scheme):
    site.fill(devices)
    visitor = await visit(chromium, site, color_scheme=scheme)
    for path in list_pages(site, "demo--cam-000000"):
        await visitor.open(path)
        assert await visitor.find_barriers() == [], path
    assert visitor.faults == []
    assert visitor.strangers == []


async def test_every_page_fits_a_phone(chromium, site):
    site.fill(200)
    visitor = await visit(chromium, site, viewport=PHONE)
    for path in list_pages(site, "demo--cam-000000"):
        page = await visitor.open(path)
        assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
    assert visitor.faults == []


async def test_hostile_names_are_text_on_every_page(chromium, hostile):
    """Device ids, labels, model, rule and key names, reasons, upstream errors: as a browser renders them."""
    hostile.fill(5)
    device = hostile.add_hostile_devices()
    hostile.hub.facts |= {"store_fault": EVIL, "engines_down": [EVIL], "stores_damaged": [EVIL], "hub": EVIL}
    hostile.hub.facts["language_models"] = {EVIL: {"ready": 0, "replicas": 1, "waiting": 0, "running": 0}}
    hostile.keys.create(_key(EVIL[:64]), 1)
    visitor = await visit(chromium, hostile)
    for path in list_pages(hostile, device):
        await visitor.open(path)
        await visitor.page.wait_for_timeout(50)
        assert await visitor.page.locator("img[src=x], main script").count() == 0, path
        assert "49" not in await visitor.page.title(), path
        assert visitor.faults == [], path
    await visitor.open("/")
    assert "<script>alert(1)</script>" in await visitor.text()
    assert visitor.strangers == []


def _key(name: str) -> Any:
    from cloud_hub.registry.access import KeyRequest  # noqa: PLC0415

    return KeyRequest(name, (Scope.READ,))


async def test_hostile_text_in_a_refusal_is_text_in_its_dialog(chromium, hostile):
    hostile.fill(1)
    visitor = await visit(chromium, hostile)
    await visitor.open(list_pages(hostile, "demo--cam-000000")[4])
    await visitor.page.get_by_role("button", name="Resume", exact=True).click()
    await visitor.page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    line = visitor.page.get_by_role("dialog").get_by_role("alert")
    await line.wait_for()
    assert "it cannot go on: <script>alert(1)</script>" in await line.inner_text()
    assert [each for each in visitor.faults if "409" not in each] == []


async def test_a_hundred_thousand_devices_are_paged_and_found(chromium, site):
    site.fill(100_000)
    visitor = await visit(chromium, site)
    page = await visitor.open("/")
    assert "1 to 50 of 100,000 devices" in await visitor.text()
    assert await page.locator("table.rows tbody tr").count() == 50
    await page.get_by_role("link", name="Next").click()
    await page.get_by_text("51 to 100 of 100,000 devices").wait_for()
    await page.get_by_role("searchbox").fill("cam-099999")
    await page.get_by_role("button", name="Show").click()
    await page.get_by_role("link", name="demo--cam-099999").wait_for()
    await visitor.open("/?page=999999999")
    assert "of 100,000 devices" in await visitor.text()
    assert visitor.faults == []


@pytest.mark.parametrize("query", ["?page=x", "?page=0", "?page=-1", "?page=" + "9" * 40])
async def test_a_wrong_page_number_is_said_and_no_fault(site, query):
    status, text = await site.ask("GET", "/" + query, headers=site.admin)
    assert status == 400
    assert "page is a whole number" in text


async def test_every_open_page_that_follows_the_hub_recovers_after_a_restart(chromium, site):
    """Each in a browser of its own, as of so many people."""
    site.fill(3)
    visitors = []
    for path in list_pages(site, "demo--cam-000000"):
        visitor = await visit(chromium, site)
        page = await visitor.open(path)
        if await page.locator("meta[name=topic]:not([content=''])").count():
            visitors.append(visitor)
    assert len(visitors) >= 10
    await site.api.stop()
    for visitor in visitors:
        await visitor.page.get_by_text("The hub does not answer").wait_for()
    await site.open_again()
    for visitor in visitors:
        await visitor.page.get_by_text("The hub does not answer").wait_for(state="hidden")
        assert await visitor.page.locator("h1").count() == 1
        assert "/signin" not in visitor.page.url


async def test_an_address_that_there_is_not_is_said_on_a_page_and_to_programs_in_json(chromium, site):
    visitor = await visit(chromium, site)
    await visitor.open("/nothing")
    assert "There is nothing at this address." in await visitor.text()
    assert await visitor.page.get_by_role("link", name="Rollouts").count() == 1
    stranger = await chromium.visit(site.url)
    await stranger.open("/nothing")
    assert "There is nothing at this address." in await stranger.text()
    assert await stranger.page.get_by_role("link", name="Rollouts").count() == 0
    assert await stranger.find_barriers() == []
    status, text = await site.ask("GET", "/nothing", headers=site.admin)
    assert (status, text) == (404, {"error": "not found"})


async def test_a_person_pauses_by_the_button_what_the_command_line_would(chromium, site):
    site.fill(3)
    visitor = await visit(chromium, site)
    page = await visitor.open(list_pages(site, "demo--cam-000000")[4])
    await page.get_by_role("button", name="Abort", exact=True).click()
    await page.get_by_role("dialog").get_by_label("Why").fill("enough seen")
    await page.get_by_role("dialog").get_by_role("button", name="Abort").click()
    await page.get_by_text("Done.").wait_for()
    assert site.context.rollouts.asked == [("abort", "admin", "enough seen")]
    entry = site.audit.last_entries(1)[0]
    assert (entry.caller, entry.route, entry.status) == ("admin", "/v1/admin/rollouts/{rollout}/abort", 200)


async def test_by_keyboard_alone_a_device_is_suspended(chromium, site):
    await site.enrolled("demo--cam-1")
    visitor = await visit(chromium, site)
    page = await visitor.open("/devices/demo--cam-1")
    await page.get_by_role("button", name="Suspend", exact=True).focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog").wait_for()
    await page.keyboard.press("Escape")
    assert not await page.get_by_role("dialog").is_visible()
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog").get_by_role("button", name="Suspend").focus()
    await page.keyboard.press("Enter")
    await page.locator("h1 + .state.suspended").wait_for()
    assert site.registry.device("demo--cam-1").state == "suspended"


async def test_who_may_only_read_sees_no_button_that_changes_anything(chromium, site):
    site.fill(3)
    _, token = site.keys.create(_key("viewer"), 1)
    visitor = await chromium.visit(site.url)
    await visitor.sign_in(token)
    for path in list_pages(site, "demo--cam-000000"):
        page = await visitor.open(path)
        names = [await each.inner_text() for each in await page.get_by_role("button").all()]
        assert set(names) <= {"◐", "Sign out", "Show", "Compare"}, path


async def test_a_tenant_sees_its_own_devices_and_no_page_of_the_whole_hub(chromium, site):
    site.fill(3)
    await site.enrolled("clinic--cam-1")
    headers = site.key("clinic", Scope.READ, Scope.OPERATE)
    visitor = await chromium.visit(site.url)
    await visitor.sign_in(headers["Authorization"].removeprefix("Bearer "))
    text = await visitor.text()
    assert "clinic--cam-1" in text
    assert "demo--cam" not in text
    for path in ("/rollouts", "/models", "/policies", "/hub", "/alarms", "/activity", "/devices/demo--cam-000000"):
        status, _ = await site.ask("GET", path, headers=headers)
        assert status in (403, 404), path


async def test_a_policy_is_compared_before_it_is_published(chromium, site):
    visitor = await visit(chromium, site)
    page = await visitor.open("/policies/compare")
    document = (Path(__file__).parents[3] / "policies/templates/demo.toml").read_text()
    await page.get_by_label("Policy document").fill(document.replace("threshold = 0.9 ", "threshold = 0.95 "))
    await page.get_by_role("button", name="Compare").click()
    await page.get_by_text("lets more leave").wait_for()
    assert "0.95" in await visitor.text()
    await page.get_by_label("Policy document").fill(f"name = '{EVIL.replace(chr(39), '')}'")
    await page.get_by_role("button", name="Compare").click()
    await page.get_by_role("alert").first.wait_for()
    assert visitor.faults == []


async def test_another_site_can_neither_frame_the_console_nor_use_its_session(chromium, site):
    """Clickjacking, and a form of another origin that is sent with the person's browser."""
    visitor = await visit(chromium, site)
    other = site.url.replace("127.0.0.1", "localhost")
    await visitor.page.route(f"{other}/evil", lambda route: route.fulfill(
        content_type="text/html",
        body=f"<iframe src='{site.url}/'></iframe>"
        f"<form id=f method=post action='{site.url}/v1/admin/deny-all'><input name=x></form>",
    ))  # fmt: skip
    await visitor.page.goto(f"{other}/evil")
    frame = visitor.page.frames[1]
    assert "chrome-error" in frame.url or await frame.locator("h1").count() == 0
    async with visitor.page.expect_navigation():
        await visitor.page.evaluate("document.getElementById('f').submit()")
    assert site.context.orders.notices == ()
    assert site.hub.announced == []
