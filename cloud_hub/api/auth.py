"""Authentication and authorisation of the web API: bearer tokens, API keys, browser sessions, scopes, tenants, audit.

Rule: closed unless a route says otherwise. 401 = not authenticated; 403 = not allowed; 404 = no such thing for this
caller: what belongs to another tenant looks exactly like what does not exist. Every refusal and change is audited.
Rule: a browser's session may do what its key may, by the same routes; what changes anything also takes the session's
CSRF token, which only a page of this hub can know.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from cloud_hub.api.routing import LOCAL_OPEN, Route, RouteAccess
from cloud_hub.registry.access import ADMIN, LOCAL, NOBODY, ApiKeys, Caller, Scope, is_hub_key
from cloud_hub.registry.audit import AuditEntry, AuditLog
from cloud_hub.registry.sessions import BrowserSession, BrowserSessions, SessionOwner, csrf_token
from wire.http.callers import is_forwarded
from wire.http.guards import compare_token, error_response, parse_bearer_token
from wire.http.oip import OipError, shorten_name
from wire.http.path_prefix import PathPrefix

_CALLER: "web.RequestKey[Caller]" = web.RequestKey("caller", Caller)
CSRF_HEADER = "X-CSRF-Token"
SIGN_IN_PATH = "/signin"
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_WHOLE_HUB = frozenset({RouteAccess.HUB_KEY, RouteAccess.LOCAL_OR_HUB_KEY, RouteAccess.HIDDEN})
_AUDITED_STATUSES = frozenset({401, 403})


def caller_of(request: web.Request) -> Caller:
    """Return the authenticated caller of a request; `NOBODY` on a route without authentication."""
    found: Caller = request.get(_CALLER, NOBODY)
    return found


def require_tenant(request: web.Request, tenant: str) -> None:
    """Raise OipError(403) if a tenant's key names another tenant in a body."""
    if not caller_of(request).sees_tenant(tenant):
        raise OipError(403, "this key belongs to another tenant")


@dataclass(frozen=True)
class Authenticator:
    """Authenticator: maps a token to a caller.

    `admin_sha256` is of the admin token; `local`: the server is reached from this machine alone, so that routes marked
    HERE need no token; `keys` and `audit`: API keys, and where refusals and changes are written; `now_ms`: hub time;
    `hears_region`: whether this hub would know of a key that another one has revoked. `sessions`: of browsers.
    `prefix`: the path below which browsers reach the hub.
    """

    admin_sha256: bytes
    local: bool
    keys: ApiKeys
    audit: AuditLog
    now_ms: Callable[[], int]
    hears_region: Callable[[], bool] = lambda: True
    sessions: BrowserSessions = field(default_factory=BrowserSessions)
    prefix: PathPrefix = field(default_factory=PathPrefix)

    def find_caller(self, token: str) -> Caller | None:
        """Return the caller of a token, None if no key has it."""
        if compare_token(token, self.admin_sha256):
            return ADMIN
        return self.keys.find_caller(token, self.now_ms())

    def find_session(self, request: web.Request) -> tuple[BrowserSession, Caller] | None:
        """Return the session of a request's cookie and the caller it is now; None without a valid one.

        A session whose key was revoked, or whose admin token was replaced, is over with that.
        """
        token = request.cookies.get(self.cookie_name(request), "")
        session = self.sessions.find(token, self.now_ms()) if token else None
        if session is None:
            return None
        caller = self.find_owner(session.owner)
        if caller is None:
            self.sessions.end(session)
            return None
        return session, caller

    def find_owner(self, owner: SessionOwner) -> Caller | None:
        """Return the caller whose session it is; None if its key is not valid any more."""
        if owner.caller != ADMIN.name:
            return self.keys.find_key_caller(owner.caller, self.now_ms())
        return ADMIN if hmac.compare_digest(owner.secret, self.admin_sha256.hex()) else None

    def describe_owner(self, token: str, caller: Caller) -> SessionOwner:
        """Return what a session keeps of the key that began it."""
        return SessionOwner(caller.name, sha256(token.encode()).hexdigest())

    @property
    def cookie_path(self) -> str:
        """The path below which browsers send the session's cookie."""
        return self.prefix.text or "/"

    def cookie_name(self, request: web.Request) -> str:
        """Return the name of the session's cookie.

        Browsers share cookies between the ports of a machine, and send those of "/" below every prefix too. A cookie
        `__Host-` is one of the path "/".
        """
        name = f"skerry-session-{request.url.port}{self.prefix.text.replace('/', '-')}"
        if not request.secure:
            return name
        return f"__Secure-{name}" if self.prefix.text else f"__Host-{name}"

    def has_csrf_token(self, request: web.Request) -> bool:
        """Whether a request carries the CSRF token of the session in its cookie."""
        expected = csrf_token(request.cookies.get(self.cookie_name(request), ""))
        given = request.headers.getall(CSRF_HEADER, [])
        return len(given) == 1 and hmac.compare_digest(given[0].encode(errors="surrogateescape"), expected.encode())


def auth_middleware(entrance: Authenticator, routes: Iterable[Route]) -> Middleware:
    """Return the middleware that answers 401 or 403 unless the route admits the caller, and writes the audit.

    A hidden route answers 404 instead; the audit has what it was.

    Routes are matched by method and canonical path. A path or method that is none of them is 404 or 405 for everybody:
    which routes there are is no secret.
    """
    table = {(route.method, route.canonical): route for route in routes}

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = _match_route(request, table)
        if request.match_info.http_exception is not None or (route is not None and route.access is RouteAccess.OPEN):
            return await handler(request)
        found = _authorize_request(entrance, request, route)
        if route is not None and route.access is RouteAccess.OPEN_IN_PART:
            request[_CALLER] = NOBODY if isinstance(found, web.Response) else found
            return await handler(request)
        if isinstance(found, web.Response):
            if route is not None and route.access is RouteAccess.PAGE and found.status == 401:
                return _send_to_sign_in(request)
            _write_audit(entrance, request, NOBODY if found.status == 401 else caller_of(request), found.status)
            return error_response(404, "no such thing") if route and route.access is RouteAccess.HIDDEN else found
        if _depends_on_region(found, route) and not entrance.hears_region():
            return refuse_unheard()
        request[_CALLER] = found
        status = 500
        try:
            response = await handler(request)
            status = response.status
        except (web.HTTPException, OipError) as error:
            status = error.status
            raise
        finally:
            if _is_audited(route, found, status):
                _write_audit(entrance, request, found, status)
        return response

    return middleware


def _authorize_request(entrance: Authenticator, request: web.Request, route: Route | None) -> Caller | web.Response:
    """Return the caller, or the refusal.

    401 without a valid token or session, 403 without the route's scope, with a tenant's key on a route of the whole
    hub, or for a session's change without its CSRF token.
    """
    token = parse_bearer_token(request)
    found = entrance.find_session(request) if token is None else None
    if found is None and route is not None and _is_local(entrance, request) and _needs_no_token(route, token):
        return LOCAL
    caller = found[1] if found else entrance.find_caller(token) if token else None
    if caller is None:
        line = "this key is not valid" if token else "this route needs the bearer token or a key"
        return error_response(401, line, {"WWW-Authenticate": "Bearer"})
    request[_CALLER] = caller
    if found is not None and request.method not in _SAFE_METHODS and not entrance.has_csrf_token(request):
        return error_response(403, "a browser's session changes things from a page of this hub only")
    refusal = _find_refusal(caller, route) if route is not None else ""
    return error_response(403, refusal) if refusal else caller


def _is_local(entrance: Authenticator, request: web.Request) -> bool:
    """Whether a request is sure to come from this machine: the server is reached from it alone, by no proxy on it."""
    return entrance.local and not is_forwarded(request.headers)


def _needs_no_token(route: Route, token: str | None) -> bool:
    """Whether a route of a hub that this machine alone reaches needs no token, or not the one that was sent.

    Clients of OpenAI's interface always send a key. One that is none of a hub's counts as none there; a hub's key that
    is not valid any more is refused, so that nobody takes the local caller for its tenant.
    """
    if route.access not in LOCAL_OPEN:
        return False
    return token is None or (route.ignores_strange_keys and not is_hub_key(token))


def _find_refusal(caller: Caller, route: Route) -> str:
    """Return why a caller may not use a route, "" if it may."""
    if route.scope not in caller.scopes:
        return f"this key lacks the scope '{route.scope}'"
    if caller.tenant and route.access in _WHOLE_HUB:
        return "this route is the whole hub's, and the key is one tenant's"
    return ""


def _send_to_sign_in(request: web.Request) -> web.Response:
    """Send a browser without a session to the page where it signs in, and from there back.

    What asks for a part of a page (htmx) is told so by a header: a redirect would be followed into the part.
    """
    where = f"{SIGN_IN_PATH}?next={quote(request.path_qs if request.method in _SAFE_METHODS else '/', safe='/')}"
    if request.headers.get("HX-Request"):
        return web.Response(status=401, headers={"HX-Redirect": where, "Cache-Control": "no-store"})
    return web.Response(status=303, headers={"Location": where, "Cache-Control": "no-store"})


def _depends_on_region(caller: Caller, route: Route | None) -> bool:
    """Whether another hub may have taken back what a request rests on: its key, or that it is computed at all."""
    return caller not in (ADMIN, LOCAL) or (route is not None and route.scope is Scope.INFER)


def refuse_unheard() -> web.Response:
    """Refuse what only a hub may do that knows what other hubs have revoked."""
    headers = {"Retry-After": "1"}
    return error_response(503, "this hub cannot hear what the region's other hubs change: try again", headers)


def _match_route(request: web.Request, table: Mapping[tuple[str, str], Route]) -> Route | None:
    """Return the described route of a request, None if there is none. HEAD counts as GET."""
    resource = request.match_info.route.resource
    if resource is None:
        return None
    return table.get(("GET" if request.method == "HEAD" else request.method, resource.canonical))


def _is_audited(route: Route | None, caller: Caller, status: int) -> bool:
    """Whether the request belongs in the audit: changes, refusals, and a tenant's reach for what it cannot see."""
    if status in _AUDITED_STATUSES or (status == 404 and caller.tenant):
        return True
    return route is not None and route.scope in (Scope.OPERATE, Scope.ADMIN) and route.method != "GET"


def _write_audit(entrance: Authenticator, request: web.Request, caller: Caller, status: int) -> None:
    """Append an audit entry; the subject is the path's variables."""
    resource = request.match_info.route.resource
    entrance.audit.write(
        AuditEntry(
            at_ms=entrance.now_ms(),
            caller=caller.name,
            tenant=caller.tenant,
            method=request.method[:16],
            route=resource.canonical if resource is not None else "none",
            subject=" ".join(shorten_name(value) for value in request.match_info.values()),
            status=status,
            address=request.remote or "unix",
        )
    )
