"""Signing in: by key, by one-time code; what ends a session, and what a page does then."""

import pytest

from cloud_hub.registry.access import Scope
from tests.cloud_hub.doubles.api_site import DEVICE, Site
from tests.live.doubles.chromium import Chromium, session_code

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def token_of(headers: dict[str, str]) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


async def test_a_key_that_may_read_signs_in_once_and_the_cookie_is_out_of_reach_of_scripts(chromium, site: Site):
    await site.enrolled(DEVICE)
    visitor = await chromium.visit(site.url)
    await visitor.sign_in(token_of(site.key("", Scope.READ)))
    assert await visitor.page.locator("h1").inner_text() == "Fleet"
    assert DEVICE in await visitor.text()
    [cookie] = await visitor.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert await visitor.page.evaluate("document.cookie") == ""
    assert visitor.strangers == []
    assert visitor.faults == []


async def test_who_has_no_session_is_sent_to_sign_in_and_then_to_where_he_wanted(chromium, site: Site):
    await site.enrolled(DEVICE)
    visitor = await chromium.visit(site.url)
    page = await visitor.open(f"/devices/{DEVICE}")
    assert "/signin" in page.url
    await page.get_by_label("Key").fill("wrong")
    await page.get_by_role("button", name="Sign in").click()
    assert "not valid here" in await page.get_by_role("alert").inner_text()
    await visitor.open(f"/devices/{DEVICE}")
    await page.get_by_label("Key").fill(token_of(site.key("", Scope.READ)))
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(f"**/devices/{DEVICE}")


async def test_a_one_time_code_signs_in_once(chromium, site: Site):
    address = await session_code(site.url, token_of(site.admin))
    first, second = await chromium.visit(site.url), await chromium.visit(site.url)
    await first.page.goto(address)
    assert first.page.url == f"{site.url}/"
    await second.page.goto(address)
    assert "used already" in await second.page.get_by_role("alert").inner_text()


async def test_a_key_that_is_taken_back_ends_its_open_page_at_once(chromium, site: Site):
    headers = site.key("", Scope.READ)
    visitor = await chromium.visit(site.url)
    await visitor.sign_in(token_of(headers))
    [key] = site.keys.list_keys()
    site.keys.revoke(key.id, 1)
    await visitor.page.wait_for_url("**/signin**")
    status, _ = await site.ask("GET", "/", allow_redirects=False)
    assert status == 303


async def test_signing_out_ends_the_session_for_its_cookie_too(chromium, site: Site):
    visitor = await chromium.visit(site.url)
    await visitor.sign_in(token_of(site.admin))
    [cookie] = await visitor.context.cookies()
    await visitor.page.get_by_role("button", name="Sign out").click()
    await visitor.page.wait_for_url("**/signin**")
    status, _ = await site.ask("GET", "/v1/session", cookies={cookie["name"]: cookie["value"]})
    assert status == 401


async def test_a_page_shows_what_moves_by_itself(chromium: Chromium, site: Site):
    await site.enrolled(DEVICE)
    visitor = await chromium.visit(site.url)
    await visitor.sign_in(token_of(site.admin))
    await site.enrolled("demo--cam-2")
    await visitor.page.get_by_role("link", name="demo--cam-2").wait_for()
    assert visitor.faults == []


async def test_a_page_finds_the_hub_again_by_itself(chromium: Chromium, site: Site):
    visitor = await chromium.visit(site.url)
    await visitor.sign_in(token_of(site.admin))
    await site.api.stop()
    lost = visitor.page.get_by_text("The hub does not answer")
    await lost.wait_for()
    await site.open_again()
    await site.enrolled(DEVICE)
    await visitor.page.get_by_role("link", name=DEVICE).wait_for()
    assert await lost.is_hidden()
