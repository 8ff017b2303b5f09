"""Administration routes of the web API: model versions, API keys with the audit log, and deny-all notices.

Rule: keys of tenants are made, listed and revoked with the admin token alone. A notice that denies all stays for good
and is written before any device is told.
"""

from typing import Annotated, Any

import msgspec
from aiohttp import web

from cloud_hub.api.auth import caller_of
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.routing import Route, RouteAccess, answer_json, read_json
from cloud_hub.core.web_requests import InferRefusedError, StoredModel
from cloud_hub.registry.access import UNPRINTABLE, AccessError, ApiKey, KeyRequest, Scope
from cloud_hub.registry.orders import MAX_WHY_CHARS, DenyNotice, OrdersState
from cloud_hub.serving.versions import ModelInUseError
from wire.errors import LocalError
from wire.http.guards import error_response
from wire.http.oip import OipError
from wire.http.openapi import ApiLink

SHOWN_DEVICES = 1000  # devices named in one answer


class ModelRetireRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/admin/models/{model}/retire`. `force`: although devices still use it; they get `model_gone`."""

    force: bool = False


class ModelRoutes:
    """Routes that list model versions and retire them, for operators of the whole hub."""

    def __init__(self, context: ApiContext) -> None:
        self._hub = context.hub
        self._versions = context.versions
        self._engines = context.engines
        self._now_ms = context.now_ms

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        path, retires = "/v1/admin/models", "Retire a version: refused while devices use it, unless forced"
        return [
            Route("GET", path, self.list_models, "Every version, its state, how many devices use it", scope=Scope.READ),
            Route(
                "POST",
                path + "/{model}/retire",
                self.retire_model,
                retires,
                scope=Scope.OPERATE,
                takes=ModelRetireRequest,
                parameters={"model": {"type": "string", "pattern": "@", "examples": ["digits@7"]}},
            ),
        ]

    async def list_models(self, _request: web.Request) -> web.Response:
        """Answer with every version, its state and how many devices use it."""
        return answer_json({"models": [self._model_json(kept) for kept in self._versions.list_models()]})

    async def retire_model(self, request: web.Request) -> web.Response:
        """Retire a version: 200 once it is gone; 404 if there is no such version, 409 with the devices that use it."""
        asked = await read_json(request, ModelRetireRequest)
        model = request.match_info["model"]
        if "@" not in model:
            raise OipError(400, "name one version: MODEL@VERSION")
        try:
            spoke = await self._versions.retire(model, self._now_ms(), force=asked.force)
        except InferRefusedError:
            raise OipError(404, "this hub has no such version") from None
        except ModelInUseError as spoken:
            return error_response(409, in_use_message(model, spoken.devices))
        return answer_json({"retired": model, "spoke": users_json(spoke)})

    def _model_json(self, kept: StoredModel) -> dict[str, Any]:
        """Return a version as the API shows it.

        `speaking`: how many devices use it; `setup`: what it runs on; `replicas`: of one that follows its load.
        """
        model = f"{kept.name}@{kept.version}"
        spoke = self._versions.devices_using(model, self._now_ms())
        setup = self._engines.setups().get(model)
        runs_on = msgspec.to_builtins(setup) if setup else None
        found = {"model": model, "state": kept.state, "reason": kept.reason, "speaking": len(spoke), "setup": runs_on}
        return found | {"replicas": self._hub.status().get("replicas", {}).get(model)}


def users_json(spoke: dict[str, int]) -> list[dict[str, Any]]:
    """Return the devices that used a retired version, with the time they were last heard; 1000 at most."""
    return [{"device": device, "heard_ms": at_ms} for device, at_ms in list(spoke.items())[:SHOWN_DEVICES]]


def in_use_message(model: str, devices: dict[str, int]) -> str:
    """Return the error message for a version that devices still use."""
    named = ", ".join(list(devices)[:5]) + (f" and {len(devices) - 5} more" if len(devices) > 5 else "")
    return f"{model} is still used by {named}: move them to another version first, or use --force"


SHOWN_ENTRIES = 200
_PATH = "/v1/admin/keys"


class KeyRoutes:
    """Routes for API keys (`context.keys`) and the audit log (`context.audit`)."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        whole, admin, tag = RouteAccess.HUB_KEY, Scope.ADMIN, "access"
        makes, takes_back = "Create a key; only this answer shows its token", "Revoke a key"
        return [
            Route("GET", _PATH, self.list_keys, "Every key, without its token", whole, scope=admin, tag=tag),
            Route(
                "POST",
                _PATH,
                self.create_key,
                makes,
                whole,
                scope=admin,
                takes=KeyRequest,
                status=201,
                tag=tag,
                links=(ApiLink(f"DELETE {_PATH}/{{key}}", {"key": "/key"}),),
            ),
            Route("DELETE", _PATH + "/{key}", self.revoke_key, takes_back, whole, scope=admin, tag=tag),
            Route(
                "GET",
                "/v1/admin/audit",
                self.list_audit,
                "The last changes and refusals",
                whole,
                scope=Scope.READ,
                tag=tag,
            ),
        ]

    async def list_keys(self, _request: web.Request) -> web.Response:
        """Answer with every key, without its token."""
        now_ms = self._context.now_ms()
        return answer_json({"keys": [key_json(key, now_ms) for key in self._context.keys.list_keys()]})

    async def create_key(self, request: web.Request) -> web.Response:
        """Create a key: 201 with its token, which is never shown again; 400 if it may not be."""
        wanted = await read_json(request, KeyRequest)
        now_ms = self._context.now_ms()
        try:
            key, token = await self._context.work.run(self._context.keys.create, wanted, now_ms)
        except AccessError as error:
            raise OipError(400, str(error)) from None
        return answer_json({**key_json(key, now_ms), "token": token}, 201, {"Cache-Control": "no-store"})

    async def revoke_key(self, request: web.Request) -> web.Response:
        """Revoke a key: 200 with the key, 404 if it does not exist."""
        now_ms = self._context.now_ms()
        try:
            revoked = await self._context.work.run(self._context.keys.revoke, request.match_info["key"], now_ms)
        except AccessError as error:
            raise OipError(404, str(error)) from None
        return answer_json(key_json(revoked, now_ms))

    async def list_audit(self, _request: web.Request) -> web.Response:
        """Answer with the last audit entries, oldest first."""
        return answer_json(
            {"entries": [msgspec.to_builtins(entry) for entry in self._context.audit.last_entries(SHOWN_ENTRIES)]}
        )


def key_json(key: ApiKey, now_ms: int) -> dict[str, Any]:
    """Return a key as the API and the CLI show it; `tenant` "" is the whole hub."""
    state = "good" if key.is_valid(now_ms) else "revoked" if key.revoked_ms else "ended"
    facts = {"key": key.id, "name": key.name, "tenant": key.tenant, "scopes": [scope.value for scope in key.scopes]}
    return {**facts, "state": state, "made_ms": key.made_ms, "ends_ms": key.ends_ms, "revoked_ms": key.revoked_ms}


class DenyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/admin/deny-all`.

    `scope`: a device's id, a tenant, or "" for everybody. `why`: one line, shown on the devices.
    """

    why: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"[^ {UNPRINTABLE}]", "maxLength": MAX_WHY_CHARS})]
    scope: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[a-z0-9-]{0,64}$"})] = ""


class DenyRoutes:
    """Routes for deny-all notices: `context.orders` stores them, `context.announcer` sends them."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        path, denies = "/v1/admin/deny-all", "From now on nothing leaves the devices of this scope"
        return [
            Route("GET", path, self.list_notices, "The notices that deny all", RouteAccess.KEY, scope=Scope.READ),
            Route(
                "POST", path, self.deny_all, denies, RouteAccess.KEY, scope=Scope.OPERATE, takes=DenyRequest, status=201
            ),
        ]

    async def list_notices(self, request: web.Request) -> web.Response:
        """Answer with the notices. A tenant's key sees its own, and those for everybody."""
        caller = caller_of(request)
        shown = [
            n for n in self._context.orders.notices if not n.scope or caller.sees_tenant(n.scope.partition("--")[0])
        ]
        return answer_json({"notices": [notice_json(notice) for notice in shown]})

    async def deny_all(self, request: web.Request) -> web.Response:
        """Create a notice: 201 once it is on disk and sent to the devices; 400 bad scope, 403 another tenant's."""
        asked = await read_json(request, DenyRequest)
        if not caller_of(request).sees_tenant(asked.scope.partition("--")[0]):
            raise OipError(403, "this key belongs to another tenant")
        try:
            issue = self._context.orders.issue_notice
            notice = await self._context.work.run(issue, asked.scope, asked.why, self._context.now_ms())
        except LocalError as error:
            raise OipError(400, str(error)) from None
        self._context.orders.take_news(OrdersState((notice,)))
        met = [
            device.id for device in self._context.registry.devices() if device.heard and notice.applies_to(device.id)
        ]
        self._context.announcer.publish_notice(notice, met)
        return answer_json(notice_json(notice, len(met)), 201)


def notice_json(notice: DenyNotice, told: int | None = None) -> dict[str, Any]:
    """Return a notice as the API and the CLI show it; `told`: to how many devices it was sent just now."""
    facts = {"counter": notice.counter, "scope": notice.scope or "everybody", "why": notice.why}
    return {**facts, "issued_ms": notice.issued_ms, **({} if told is None else {"told": told})}
