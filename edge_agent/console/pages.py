"""Routes of the device's console: one page, its script and its style, from the package.

Rule: the page itself holds nothing of the device; what it shows it asks of the API, with the token where there is one.
It runs and loads nothing that does not come from this agent.
"""

from importlib import resources
from pathlib import Path

from aiohttp import web

from wire.http.oip import OipError

PAGE_ROUTES = frozenset({"/", "/console/{name}"})
_STATIC = Path(str(resources.files("edge_agent.console"))) / "static"
_TYPES = {"agent.js": "text/javascript", "agent.css": "text/css", "icon.svg": "image/svg+xml"}
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_table() -> list[web.RouteDef]:
    """All routes with their handlers, for `web.Application.add_routes`."""
    return [web.get("/", send_page), web.get("/console/{name}", send_file)]


async def send_page(_: web.Request) -> web.StreamResponse:
    """`GET /`: the page."""
    return web.FileResponse(_STATIC / "index.html", headers={**_SECURITY, "Content-Type": "text/html; charset=utf-8"})


async def send_file(request: web.Request) -> web.StreamResponse:
    """`GET /console/{name}`: one of its files. 404 for any other name."""
    name = request.match_info["name"]
    if name not in _TYPES:
        raise OipError(404, "no such file")
    return web.FileResponse(_STATIC / name, headers={**_SECURITY, "Content-Type": _TYPES[name]})
