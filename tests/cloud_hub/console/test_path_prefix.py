"""The console and the API below a path, as behind a proxy that serves the hub at `/skerry/`."""

import functools
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from yarl import URL

from cloud_hub.api.app import ApiLimits, ApiServer
from cloud_hub.api.auth import CSRF_HEADER
from cloud_hub.console.app import Console
from cloud_hub.console.rendering import STATIC
from cloud_hub.registry.access import Scope
from tests.cloud_hub.doubles.console_site import ConsoleSite, list_pages
from wire.http.access import ServerAccess
from wire.http.path_prefix import PathPrefix
from wire.process.exit_codes import ExitCode, ExitError

PREFIX = "/skerry"
DEVICE = "demo--cam-000000"
ADDRESSES = {"href", "src", "action"}


class Attributes(HTMLParser):
    """Every attribute of a page that has a value."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [(name, value) for name, value in attrs if value]


def has_prefix(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ConsoleSite]:
    opened = ConsoleSite(tmp_path, prefix=PREFIX)
    opened.fill(130)
    await opened.open()
    yield opened
    await opened.close()


async def sign_in(site: ConsoleSite, after: str = "/rollouts") -> tuple[str, str]:
    """Sign in as a proxy that does not strip passes it on; returns the redirect and the cookie as the hub set it."""
    key = site.key("", Scope.READ, Scope.OPERATE, Scope.INFER)["Authorization"].removeprefix("Bearer ")
    asked = site.client.post(f"{site.url}{PREFIX}/signin", data={"key": key, "next": after}, allow_redirects=False)
    async with asked as reply:
        assert reply.status == 303
        return reply.headers["Location"], reply.headers["Set-Cookie"]


async def read_page(site: ConsoleSite, path: str, cookie: str) -> str:
    status, page = await site.ask("GET", path, headers={"Cookie": cookie.partition(";")[0]})
    assert status == 200, path
    return str(page)


async def test_no_page_sends_a_browser_beside_the_prefix(site):
    _, cookie = await sign_in(site)
    addresses = set()
    for path in [*list_pages(site, DEVICE), "/signin", f"/devices/{DEVICE}?hours=24", "/jobs?state=dead"]:
        found = [
            each for asked in (path, PREFIX + path) for each in Attributes(await read_page(site, asked, cookie)).found
        ]
        assert [each for each in found if each[1].startswith("/") and not has_prefix(each[1])] == [], path
        addresses |= {value for name, value in found if name in ADDRESSES and value.startswith("/")}
    assert len(addresses) > 60
    for address in addresses - {each for each in addresses if each.startswith(f"{PREFIX}/v1/")}:
        status, answer = await site.ask("GET", address, headers={"Cookie": cookie.partition(";")[0]})
        assert status in {200, 405} or isinstance(answer, str), address  # a page says which devices there are not


async def test_a_page_that_is_not_there_links_below_the_prefix(site):
    headers = {"Sec-Fetch-Dest": "document"}
    status, page = await site.ask("GET", f"{PREFIX}/nothing", headers=headers)
    assert status == 404
    assert [value for name, value in Attributes(page).found if name == "href" and not has_prefix(value)] == ["#page"]


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")), ids=lambda path: path.name)
def test_no_script_asks_for_a_path_beside_the_prefix(path):
    assert re.findall(r"[\"'`]/[A-Za-z][^\"'`]*", path.read_text()) == []


@pytest.mark.parametrize("stripped", [False, True])
async def test_a_redirect_stays_below_the_prefix_whether_the_proxy_strips_it_or_not(site, stripped):
    base = site.url + ("" if stripped else PREFIX)
    cookie = (await sign_in(site))[1].partition(";")[0]
    found = []
    for path, headers in {"/rollouts?x=1": {}, "/devices?site=eu-de&n=0": {"Cookie": cookie}}.items():
        async with site.client.get(base + path, headers=headers, allow_redirects=False) as reply:
            found.append(reply.headers["Location"])
    async with site.client.get(f"{base}/rollouts", headers={"HX-Request": "true"}) as reply:
        found.append(reply.headers["HX-Redirect"])
    assert found == [
        f"{PREFIX}/signin?next=/rollouts%3Fx%3D1", f"{PREFIX}/devices/{DEVICE}", f"{PREFIX}/signin?next=/rollouts",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("after", "where"),
    [
        ("/rollouts", "/skerry/rollouts"),
        ("/skerry/rollouts?x=1", "/skerry/rollouts?x=1"),
        ("/skerry", "/skerry/"),
        ("/skerry//other.example/", "/skerry/"),
        ("//other.example/", "/skerry/"),
        ("https://other.example/", "/skerry/"),
    ],
)
async def test_signing_in_goes_to_a_page_below_the_prefix_and_its_cookie_to_no_other_path(site, after, where):
    location, cookie = await sign_in(site, after)
    assert location == where
    assert f"; Path={PREFIX};" in f"{cookie};"


async def test_signing_out_takes_away_the_cookie_of_the_prefix(site):
    cookie = (await sign_in(site))[1].partition(";")[0]
    csrf = re.search('name="csrf-token" content="([^"]+)"', await read_page(site, "/", cookie))
    assert csrf is not None
    headers = {"Cookie": cookie, CSRF_HEADER: csrf[1]}
    async with site.client.delete(f"{site.url}{PREFIX}/v1/session", headers=headers) as reply:
        assert reply.status == 200
        assert f"Path={PREFIX}" in reply.headers["Set-Cookie"]


async def test_behind_tls_a_cookie_below_a_prefix_is_not_named_as_one_of_the_whole_host(site):
    """A browser refuses a cookie `__Host-` of any path but "/"."""

    request = cast("web.Request", SimpleNamespace(secure=True, url=URL("https://hub.example/")))
    assert site.entrance.cookie_name(request) == "__Secure-skerry-session-443-skerry"


async def test_the_command_that_opens_the_console_opens_it_below_the_prefix(site):
    status, made = await site.ask("POST", "/v1/session/code", json={"next": "/hub"}, headers=site.admin)
    assert status == 201
    assert made["path"].startswith(f"{PREFIX}/enter?code=")
    async with site.client.get(site.url + made["path"], allow_redirects=False) as reply:
        assert (reply.status, reply.headers["Location"]) == (303, f"{PREFIX}/hub")


async def test_the_api_answers_below_the_prefix_and_audits_the_route_without_it(site):
    for path in ("/v2/health/live", "/healthz", f"{PREFIX}/v2/health/live"):
        assert (await site.ask("GET", path))[0] == 200, path
    assert (await site.ask("GET", f"{PREFIX}/v1/admin/devices"))[0] == 401
    assert (await site.ask("GET", f"{PREFIX}ed/v2/health/live"))[0] == 404
    assert (await site.ask("GET", f"{PREFIX}{PREFIX}/v2/health/live"))[0] == 404
    assert site.audit.last_entries(1)[0].route == "/v1/admin/devices"


@pytest.mark.parametrize("prefix", ["/v1", "/hub", "/static", "/devices/x"])
async def test_a_prefix_that_begins_as_a_path_of_the_hub_is_refused(site, prefix):
    context = replace(site.context, jobs=None)
    access, limits = ServerAccess(token_file=str(site.token_file)), ApiLimits(prefix=PathPrefix(prefix))
    with pytest.raises(ExitError, match=r"api\.path_prefix") as caught:
        ApiServer(context, access, limits, functools.partial(Console, context))
    assert caught.value.code == ExitCode.CONFIG
