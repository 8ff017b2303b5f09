"""Signing in: the page that takes a key once, the one-time code of a command, and signing out without a script.

Rule: a key is sent once, in the body of a form, and stands in no address, cookie or log. Wrong keys are audited as
those of the API are; how fast they may be tried is limited as for enrolment.
"""

import time

from aiohttp import web

from cloud_hub.api.auth import Authenticator
from cloud_hub.api.browser import begin_session, enter_by_code, safe_next, set_session_cookie
from cloud_hub.api.interface import ApiContext
from cloud_hub.console.pages import PageContent, read_form
from cloud_hub.registry.audit import AuditEntry

MAX_FORM_BYTES = 4096
FORM_TIMEOUT_S = 10.0
_NOT_VALID = "This key is not valid here, or may not read. Keys are made with: skerry hub key create NAME --scope read"
_NO_CODE = "This link was used already, or is older than a minute. Get a new one with: skerry hub console"
_TOO_MANY = "Too many keys were tried. Wait a minute, then try again."


class SignInPages:
    """The page and what its form sends. `entrance`: who a key is."""

    def __init__(self, context: ApiContext, entrance: Authenticator) -> None:
        self._context = context
        self._entrance = entrance

    async def show(self, request: web.Request) -> PageContent:
        """Show the form."""
        return self._form(request, "", 200)

    async def sign_in(self, request: web.Request) -> PageContent | web.Response:
        """Take a key: a redirect with the session's cookie, or the form again with why not."""
        form = await read_form(request, MAX_FORM_BYTES, FORM_TIMEOUT_S)
        gate, where = self._context.gates.sign_in, request.remote or "unix"
        if not gate.admit_attempt(where, time.monotonic()):
            return self._form(request, _TOO_MANY, 429)
        token = begin_session(self._entrance, form.get("key", "").strip())
        if not token:
            gate.record_failure(where, time.monotonic())
            self._audit(request, 401)
            return self._form(request, _NOT_VALID, 401)
        return self._go_in(request, token, safe_next(form.get("next", "/"), self._entrance.prefix))

    async def enter(self, request: web.Request) -> PageContent | web.Response:
        """Use a one-time code (`?code=...`): a redirect with the session's cookie, or the form with why not."""
        gate, where = self._context.gates.sign_in, request.remote or "unix"
        if not gate.admit_attempt(where, time.monotonic()):
            return self._form(request, _TOO_MANY, 429)
        token = enter_by_code(self._entrance, request.query.get("code", ""))
        if not token:
            gate.record_failure(where, time.monotonic())
            self._audit(request, 401)
            return self._form(request, _NO_CODE, 401)
        return self._go_in(request, token, safe_next(request.query.get("next", "/"), self._entrance.prefix))

    def _form(self, request: web.Request, fault: str, status: int) -> PageContent:
        values = {"fault": fault, "next": safe_next(request.query.get("next", "/"), self._entrance.prefix)}
        return PageContent("sign_in.html", values, "Sign in", status=status)

    def _audit(self, request: web.Request, status: int) -> None:
        entry = AuditEntry(
            at_ms=self._context.now_ms(),
            caller="nobody",
            tenant="",
            method=request.method,
            route=request.path[:64],
            subject="",
            status=status,
            address=request.remote or "unix",
        )
        self._context.audit.write(entry)

    def _go_in(self, request: web.Request, token: str, where: str) -> web.Response:
        response = web.Response(status=303, headers={"Location": where, "Cache-Control": "no-store"})
        set_session_cookie(self._entrance, request, response, token)
        return response
