"""Routes of browser sessions: who is signed in, sign out, and the one-time code by which a command opens a browser."""

from urllib.parse import quote

import msgspec
from aiohttp import web

from cloud_hub.api.auth import SIGN_IN_PATH, Authenticator, caller_of
from cloud_hub.api.routing import Route, RouteAccess, answer_json, read_json
from cloud_hub.registry.access import Scope
from cloud_hub.registry.sessions import CODE_MS, SESSION_MS
from wire.http.guards import parse_bearer_token
from wire.http.oip import OipError
from wire.http.path_prefix import PathPrefix

SESSION_PATH = "/v1/session"
ENTER_PATH = "/enter"


class CodeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/session/code`. `next`: the page that the browser is sent to, a path of this hub."""

    next: str = "/"


class SessionRoutes:
    """Routes `GET` and `DELETE /v1/session`, and `POST /v1/session/code`."""

    def __init__(self, entrance: Authenticator) -> None:
        self._entrance = entrance

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        key, read, tag = RouteAccess.KEY, Scope.READ, "access"
        codes = "A one-time code that signs a browser in as this caller, for a minute"
        return [
            Route("GET", SESSION_PATH, self.show, "Who this caller is, and what it may do", key, scope=read, tag=tag),
            Route("DELETE", SESSION_PATH, self.end, "End this browser's session", key, scope=read, tag=tag),
            Route(
                "POST", SESSION_PATH + "/code", self.make_code, codes, key, scope=read,
                takes=CodeRequest, status=201, tag=tag,
            ),
        ]  # fmt: skip

    async def show(self, request: web.Request) -> web.Response:
        """Answer with the caller; `ends_ms`: when its session ends, 0 of a caller with a token."""
        caller = caller_of(request)
        found = self._entrance.find_session(request)
        return answer_json(
            {
                "caller": caller.name,
                "tenant": caller.tenant,
                "scopes": sorted(caller.scopes),
                "ends_ms": found[0].ends_ms if found else 0,
            },
            headers={"Cache-Control": "no-store"},
        )

    async def end(self, request: web.Request) -> web.Response:
        """End the session of the request's cookie: 200; 409 of a caller that has none."""
        found = self._entrance.find_session(request)
        if found is None:
            raise OipError(409, "this caller has no session: it came with a token")
        self._entrance.sessions.end(found[0])
        response = answer_json({"ended": True}, headers={"Cache-Control": "no-store"})
        response.del_cookie(self._entrance.cookie_name(request), path=self._entrance.cookie_path)
        return response

    async def make_code(self, request: web.Request) -> web.Response:
        """Make a one-time code: 201 with the path that it opens; 409 of a session, which may not make another."""
        asked = await read_json(request, CodeRequest)
        token = parse_bearer_token(request)
        if not token:
            raise OipError(409, "a session makes no other: sign in with a key")
        owner = self._entrance.describe_owner(token, caller_of(request))
        code = self._entrance.sessions.make_code(owner, self._entrance.now_ms())
        prefix = self._entrance.prefix
        path = f"{prefix.add(ENTER_PATH)}?code={code}&next={quote(safe_next(asked.next, prefix), safe='/')}"
        body = {"path": path, "seconds": CODE_MS // 1000}
        return answer_json(body, 201, {"Cache-Control": "no-store"})


def begin_session(entrance: Authenticator, token: str) -> str:
    """Begin a session for a key or the admin token; returns the session's token, "" if the key is not valid."""
    caller = entrance.find_caller(token)
    if caller is None or Scope.READ not in caller.scopes:
        return ""
    return entrance.sessions.begin(entrance.describe_owner(token, caller), entrance.now_ms())[1]


def enter_by_code(entrance: Authenticator, code: str) -> str:
    """Begin the session of a one-time code; returns its token, "" if the code or its key is not valid any more."""
    owner = entrance.sessions.use_code(code, entrance.now_ms())
    if owner is None or entrance.find_owner(owner) is None:
        return ""
    return entrance.sessions.begin(owner, entrance.now_ms())[1]


def set_session_cookie(entrance: Authenticator, request: web.Request, response: web.StreamResponse, token: str) -> None:
    """Put a session's token into a cookie that scripts cannot read and other sites cannot send."""
    response.set_cookie(
        entrance.cookie_name(request),
        token,
        path=entrance.cookie_path,
        httponly=True,
        samesite="Strict",
        secure=request.secure,
        max_age=SESSION_MS // 1000,
    )


def safe_next(given: str, prefix: PathPrefix) -> str:
    """Return where to go after signing in: a path of this hub without its prefix, or "/" for anything else."""
    path = prefix.strip(given)
    plain = path.startswith("/") and not path.startswith(("//", "/\\"))
    fits = plain and len(path) <= 2000 and path.isprintable() and not path.startswith(SIGN_IN_PATH)
    return path if fits and "\\" not in path else "/"
