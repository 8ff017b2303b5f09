"""Values that the console's pages are made of: who looks, what a page shows, and how long tables are cut."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec
from aiohttp import web

from cloud_hub.registry.access import NOBODY, Caller, Scope
from wire.http.guards import read_body
from wire.http.oip import OipError

PAGE_ROWS = 50  # rows of a table on one page


class Viewer(msgspec.Struct, frozen=True):
    """Who looks at a page. `csrf`: token that its changes carry, "" of a caller without a session."""

    caller: Caller
    csrf: str = ""

    @property
    def known(self) -> bool:
        """Whether somebody is signed in."""
        return self.caller is not NOBODY

    @property
    def whole(self) -> bool:
        """Whether its key is the whole hub's."""
        return not self.caller.tenant

    @property
    def may_operate(self) -> bool:
        """Whether its key may change devices."""
        return Scope.OPERATE in self.caller.scopes

    @property
    def may_operate_hub(self) -> bool:
        """Whether its key may change what is the whole hub's: rollouts, models, policies."""
        return self.may_operate and self.whole


class PageContent(NamedTuple):
    """What a page shows: a template's name and its values. `title`: of the page; `topic`: what it follows, or ""."""

    template: str
    values: Mapping[str, Any]
    title: str
    topic: str = ""
    status: int = 200


PageHandler = Callable[[web.Request, Viewer], Awaitable[PageContent]]
LiveDigest = Callable[[str, Viewer], object]


class ConsolePage(NamedTuple):
    """A page. `nav`: the entry of the navigation that it belongs to; `whole`: never for a tenant's key.

    `method` POST: of a form that only shows something; it changes nothing.
    """

    path: str
    handler: PageHandler
    nav: str
    whole: bool = True
    method: str = "GET"


class PageGroup(NamedTuple):
    """Pages of one subject. `topics`: by name, a value that changes when what such a page shows may have changed."""

    pages: tuple[ConsolePage, ...]
    topics: Mapping[str, LiveDigest] = {}


class PageCut(NamedTuple):
    """Which rows of a long table are shown. `number` of the page from 1; `pages`: how many there are."""

    number: int
    pages: int
    rows: int

    @property
    def start(self) -> int:
        """Index of the first row shown."""
        return (self.number - 1) * PAGE_ROWS

    @property
    def stop(self) -> int:
        """Index after the last row shown."""
        return min(self.number * PAGE_ROWS, self.rows)


def cut_page(request: web.Request, rows: int) -> PageCut:
    """Return the page that a request asks for (`?page=2`), the last one where there are fewer.

    OipError(400) if that is no number.
    """
    text = request.query.get("page", "1")
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise OipError(400, "page is a whole number from 1")
    pages = max(1, -(-rows // PAGE_ROWS))
    return PageCut(min(int(text), pages), pages, rows)


async def read_form(request: web.Request, max_bytes: int, within_s: float) -> dict[str, str]:
    """Return the fields of a form in the request's body. OipError(413 or 408) as `read_body`, 400 if it is none."""
    body = await read_body(request, max_bytes, within_s)
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=8)
    except ValueError:
        raise OipError(400, "the form has too many fields") from None
    return {name: values[0] for name, values in fields.items()}


def read_choice(request: web.Request, key: str, allowed: tuple[str, ...]) -> str:
    """Return what a query says at a key, the first of the allowed words for anything else."""
    word = request.query.get(key, "")
    return word if word in allowed else allowed[0]
