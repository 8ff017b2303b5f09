"""The console as pages of the hub's web server: its routes, headers, static files, errors as pages.

Rule: a page shows what the API shows to the same caller, and nothing on it changes anything by itself: buttons send the
API's own requests. Rule: no page runs or loads anything that does not come from this hub.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from cloud_hub.api.alarms import list_alarms
from cloud_hub.api.auth import SIGN_IN_PATH, Authenticator, caller_of
from cloud_hub.api.browser import ENTER_PATH
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.routing import Route, RouteAccess
from cloud_hub.console.devices import DevicePages
from cloud_hub.console.fleet import FleetIndex, FleetPages
from cloud_hub.console.live import LIVE_PATH, LiveFeed
from cloud_hub.console.load import LoadHistory
from cloud_hub.console.models import ModelPages
from cloud_hub.console.operation import OperationPages
from cloud_hub.console.pages import ConsolePage, PageContent, Viewer
from cloud_hub.console.policies import PolicyPages
from cloud_hub.console.rendering import STATIC, digest_static, make_environment
from cloud_hub.console.rollouts import RolloutPages
from cloud_hub.console.sign_in import SignInPages
from cloud_hub.registry.access import NOBODY, Scope
from cloud_hub.registry.sessions import csrf_token
from wire.http.guards import parse_bearer_token
from wire.http.oip import OipError

_FILE = re.compile(r"(?:vendor/)?[A-Za-z0-9][A-Za-z0-9._-]{0,60}")
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
ALARMS_S = 10.0
_FOREVER = "public, max-age=31536000, immutable"


class NavEntry(NamedTuple):
    """One entry of the navigation. `key`: as pages name it; `whole`: not shown to a tenant's key."""

    key: str
    path: str
    text: str
    whole: bool = True


NAV = (
    NavEntry("fleet", "/", "Fleet", whole=False),
    NavEntry("rollouts", "/rollouts", "Rollouts"),
    NavEntry("models", "/models", "Models"),
    NavEntry("policies", "/policies", "Policies"),
    NavEntry("hub", "/hub", "Hub"),
    NavEntry("jobs", "/jobs", "Jobs", whole=False),
    NavEntry("costs", "/costs", "Costs", whole=False),
    NavEntry("alarms", "/alarms", "Alarms"),
    NavEntry("activity", "/activity", "Activity"),
)


class Console:
    """All pages of one hub. `entrance`: who a browser is."""

    def __init__(self, context: ApiContext, entrance: Authenticator) -> None:
        self._context = context
        self._entrance = entrance
        self._static = digest_static()
        prefix = entrance.prefix.text
        status = context.hub.status()
        self._hub = {"name": status["hub"], "region": status.get("region", "")}
        self._templates = make_environment({"prefix": prefix, "static": f"{prefix}/static/{self._static}"})
        self._sign_in = SignInPages(context, entrance)
        self._load = LoadHistory(context.hub, context.now_ms)
        self._alarms = AlarmCount(context)
        groups = [
            FleetPages(context, FleetIndex(context)).group(),
            DevicePages(context).group(),
            RolloutPages(context).group(),
            ModelPages(context).group(),
            PolicyPages(context).group(),
            OperationPages(context, self._load).group(),
        ]
        self._pages = [page for group in groups for page in group.pages]
        topics = {name: digest for group in groups for name, digest in group.topics.items()}
        self._live = LiveFeed(topics, self._is_still_valid)
        self._sampling: asyncio.Task[None] | None = None

    def routes(self) -> list[Route]:
        """Return the pages' routes."""
        page, open_ = RouteAccess.PAGE, RouteAccess.OPEN
        found = [
            Route(each.method, each.path, self._make_handler(each), each.nav, page, scope=Scope.READ)
            for each in self._pages
        ]
        opened = {
            SIGN_IN_PATH: self._sign_in.show,
            ENTER_PATH: self._sign_in.enter,
        }
        found += [Route("GET", path, self._make_open(show), "Sign in", open_) for path, show in opened.items()]
        return [
            *found,
            Route("POST", SIGN_IN_PATH, self._make_open(self._sign_in.sign_in), "Sign in", open_),
            Route("GET", LIVE_PATH, self._live.stream, "Changes", page, scope=Scope.READ),
            Route("GET", "/static/{digest}/{name:.+}", self.send_static, "Style, script, icon", open_),
            Route("GET", "/favicon.ico", self.send_icon, "Icon", open_),
        ]

    def make_middleware(self) -> Middleware:
        """Return the middleware that shows a page, not JSON, where a browser opened what there is not."""

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            response = await handler(request)
            opened = request.method == "GET" and request.headers.get("Sec-Fetch-Dest") == "document"
            if response.status != 404 or not opened or response.content_type == "text/html":
                return response
            return self._render_fault(self._find_viewer(request), 404, "There is nothing at this address.")

        return middleware

    async def open(self, _app: web.Application) -> None:
        """Begin to sample the hub's load."""
        self._sampling = asyncio.create_task(self._load.run(), name="console-load")

    async def close(self, _app: web.Application) -> None:
        """End the streams of open pages."""
        if self._sampling is not None:
            self._sampling.cancel()
        await self._live.close()

    async def send_static(self, request: web.Request) -> web.StreamResponse:
        """Send a static file. Its address has the digest of them all, so that a browser may keep it for ever."""
        name = request.match_info["name"]
        path = STATIC / name
        if not _FILE.fullmatch(name) or path.suffix not in _TYPES or not path.is_file():
            raise OipError(404, "no such file")
        keep = _FOREVER if request.match_info["digest"] == self._static else "no-cache"
        headers = {**_SECURITY, "Content-Type": _TYPES[path.suffix], "Cache-Control": keep}
        return web.FileResponse(path, headers=headers)

    async def send_icon(self, _request: web.Request) -> web.StreamResponse:
        """Send the icon that browsers ask for by themselves."""
        headers = {**_SECURITY, "Content-Type": "image/svg+xml", "Cache-Control": "max-age=86400"}
        return web.FileResponse(STATIC / "icon.svg", headers=headers)

    def _make_handler(self, page: ConsolePage) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            viewer = self._viewer_of(request)
            if page.whole and not viewer.whole:
                return self._render_fault(viewer, 403, "This page is the whole hub's, and your key is one tenant's.")
            try:
                content = await page.handler(request, viewer)
            except OipError as error:
                return self._render_fault(viewer, error.status, str(error))
            return self._render(content, viewer, page.nav)

        return handle

    def _make_open(self, show: Callable[[web.Request], Awaitable[PageContent | web.Response]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            found = await show(request)
            if isinstance(found, web.Response):
                found.headers.update(_SECURITY)
                return found
            return self._render(found, Viewer(NOBODY), "")

        return handle

    def _find_viewer(self, request: web.Request) -> Viewer:
        """Return who looks at an address that no route has: whose session it is, or nobody."""
        found = self._entrance.find_session(request)
        token = request.cookies.get(self._entrance.cookie_name(request), "")
        return Viewer(found[1], csrf_token(token)) if found else Viewer(NOBODY)

    def _viewer_of(self, request: web.Request) -> Viewer:
        token = request.cookies.get(self._entrance.cookie_name(request), "")
        return Viewer(caller_of(request), csrf_token(token) if self._entrance.find_session(request) else "")

    def _is_still_valid(self, request: web.Request) -> bool:
        """Whether the caller of an open stream may still read: its session is not over, its key not revoked."""
        token = parse_bearer_token(request)
        return (self._entrance.find_caller(token) if token else self._entrance.find_session(request)) is not None

    def _render_fault(self, viewer: Viewer, status: int, line: str) -> web.Response:
        return self._render(PageContent("fault.html", {"line": line}, "Not here", status=status), viewer, "")

    def _render(self, content: PageContent, viewer: Viewer, nav: str) -> web.Response:
        shown = {
            **content.values,
            "title": content.title,
            "topic": content.topic,
            "viewer": viewer,
            "nav": [entry for entry in NAV if viewer.whole or not entry.whole],
            "here": nav,
            "hub": self._hub,
            "alarms": self._alarms.read() if viewer.whole and nav else 0,
        }
        text = self._templates.get_template(content.template).render(shown)
        return web.Response(
            text=text,
            status=content.status,
            content_type="text/html",
            headers={**_SECURITY, "Cache-Control": "no-store"},
        )


class AlarmCount:
    """How many alarms there are, counted anew once a few seconds at most."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._counted_s = float("-inf")
        self._count = 0

    def read(self) -> int:
        """Return the number of alarms."""
        if time.monotonic() - self._counted_s >= ALARMS_S:
            self._counted_s, self._count = time.monotonic(), len(list_alarms(self._context))
        return self._count
