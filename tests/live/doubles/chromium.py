"""Debian's Chromium, driven by Playwright: pages that record what they ask for and what goes wrong on them."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",  # tests run as root in a container
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--metrics-recording-only",
]
AXE = Path(__file__).parents[1] / "console/axe.min.js"
WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}


def find_chromium() -> str | None:
    """The browser's program; None where it is not installed."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Visitor:
    """A browser profile of its own, with one page. `asked`: addresses of its requests; `faults`: what went wrong."""

    def __init__(self, context: BrowserContext, page: Page, url: str) -> None:
        self.context, self.page, self.url = context, page, url
        self.asked: list[str] = []
        self.faults: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: self.faults.append(f"a script ran: {dialog.message}"))

    @property
    def strangers(self) -> list[str]:
        """Addresses that were asked for anywhere but at the hub."""
        home = urlsplit(self.url).netloc
        return [url for url in self.asked if not url.startswith("data:") and urlsplit(url).netloc != home]

    async def sign_in(self, token: str) -> None:
        """Sign in with a key, as a person does."""
        await self.page.goto(f"{self.url}/signin")
        await self.page.get_by_label("Key").fill(token)
        await self.page.get_by_role("button", name="Sign in").click()
        await self.page.wait_for_selector("#page")

    async def open(self, path: str) -> Page:
        """Open a page of the hub and return it."""
        await self.page.goto(self.url + path)
        return self.page

    async def find_barriers(self) -> list[str]:
        """What axe-core finds against WCAG 2.2, levels A and AA, on the page as it is."""
        await self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = await self.page.evaluate("options => axe.run(document, options)", WCAG)
        return [f"{each['id']}: {node['html'][:200]}" for each in found["violations"] for node in each["nodes"]]

    async def text(self) -> str:
        """What a person reads on the page."""
        return await self.page.inner_text("body")


class Chromium:
    """The browser; every visitor has a profile of its own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    async def visit(self, url: str, **more: Any) -> Visitor:
        """A new visitor of a hub. `more`: options of Playwright's context."""
        context = await self._browser.new_context(**{"viewport": DESK, **more})
        context.set_default_timeout(20_000)
        return Visitor(context, await context.new_page(), url)


@asynccontextmanager
async def open_chromium(program: str) -> AsyncIterator[Chromium]:
    """A running browser, ended on leaving."""
    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield Chromium(browser)
        finally:
            await browser.close()


async def session_code(url: str, token: str) -> str:
    """The address with a one-time code that signs a browser in, as `skerry hub console` prints it."""
    async with aiohttp.ClientSession() as client:
        headers = {"Authorization": f"Bearer {token}"}
        async with client.post(f"{url}/v1/session/code", json={}, headers=headers) as response:
            return url + str((await response.json())["path"])
