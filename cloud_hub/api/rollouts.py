"""Rollout routes of the web API (`/v1/admin/rollouts`): start, status, pause, resume, abort, approve, undo.

Rule: a rollout is the whole hub's, so no tenant's key reaches it. Who does something is named in the rollout's own
history by the name of the key, beside the audit; two people are two keys.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from cloud_hub.api.auth import caller_of
from cloud_hub.api.interface import ApiContext, RolloutControl
from cloud_hub.api.routing import Route, answer, read_json
from cloud_hub.core.web_requests import InferRefusedError
from cloud_hub.registry.access import Scope
from cloud_hub.rollout.catalog import Catalog
from cloud_hub.rollout.planning import Order
from cloud_hub.rollout.types import TERMINAL, RolloutError, Target
from cloud_hub.rollout.view import View
from wire.http.oip import OipError

_STATUS = {"not_found": 404, "conflict": 409, "refused": 409, "invalid": 400}
PATH = "/v1/admin/rollouts"
T = TypeVar("T")


class StartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/admin/rollouts`.

    `model`: digits@8, published. `to`: class=camera,region=eu|us or all. `back`: "" = what most devices run now.
    `rules`: parameters over their defaults; `id`: "" = made from family, version and time.
    """

    model: str
    to: str = "all"
    back: str = ""
    rules: dict[str, Any] = {}
    id: str = ""


class WhyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of pause, resume and abort. `why`: one line, for the history."""

    why: str = ""


class ApproveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of an approval. `plan`: the digest of what the person looked at; other content is not approved by it."""

    plan: str


class UndoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of an undo. `to_version`: 0 = the one before. Takes a permit in the update repository."""

    why: str = ""
    to_version: int = 0


class Rolling:
    """Rollout routes. A hub without an update repository has neither `context.rollouts` nor `context.catalog`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        one = PATH + "/{rollout}"
        return [
            self._reads("", self.all, "The rollouts, newest first"),
            self._acts("", self.start, "Roll a version out to devices, in waves", StartRequest, 201),
            self._reads("/{rollout}", self.one, "Progress of a rollout, and the result of its gate"),
            self._reads("/{rollout}/devices", self.devices, "Every device of a rollout"),
            self._reads("/{rollout}/history", self.history, "Who did what in a rollout, and when"),
            self._acts("/{rollout}/pause", self.pause, "Pause: no further device is assigned anything", WhyRequest),
            self._acts("/{rollout}/resume", self.resume, "Resume a paused rollout", WhyRequest),
            self._acts("/{rollout}/abort", self.abort, "Abort: what is not committed is withdrawn", WhyRequest),
            self._acts("/{rollout}/approve", self.approve, "Approve the plan as one more person", ApproveRequest),
            self._acts("/{rollout}/undo", self.undo, f"Revert {one} to the version before", UndoRequest),
        ]

    def _reads(self, path: str, handler: Callable[[web.Request], Awaitable[web.Response]], says: str) -> Route:
        return Route("GET", PATH + path, handler, says, scope=Scope.READ, tag="rollouts")

    def _acts(
        self,
        path: str,
        handler: Callable[[web.Request], Awaitable[web.Response]],
        says: str,
        takes: type[msgspec.Struct],
        status: int = 200,
    ) -> Route:
        return Route(
            "POST", PATH + path, handler, says, scope=Scope.OPERATE, takes=takes, status=status, tag="rollouts"
        )

    async def all(self, _request: web.Request) -> web.Response:
        """Answer with every rollout, newest first."""
        return answer({"rollouts": [msgspec.to_builtins(each) for each in self._desk.views()]})

    async def one(self, request: web.Request) -> web.Response:
        """Answer with one rollout's status."""
        return _shown(_refused(lambda: self._desk.view(_named(request))))

    async def devices(self, request: web.Request) -> web.Response:
        """Answer with the state of every device of a rollout."""
        found = _refused(lambda: self._desk.devices(_named(request)))
        return answer({"devices": [msgspec.to_builtins(each) for each in found]})

    async def history(self, request: web.Request) -> web.Response:
        """Answer with a rollout's history, oldest first."""
        found = await _refused_later(self._desk.history(_named(request)))
        return answer({"history": [msgspec.to_builtins(each) for each in found]})

    async def start(self, request: web.Request) -> web.Response:
        """Start a rollout: 201 once it is written.

        409 if this hub cannot serve the version, or if an older version lacks its permit.
        """
        asked = await read_json(request, StartRequest)
        catalog = self._catalog
        family, target = _refused(lambda: catalog.target(asked.model))
        back = _refused(lambda: catalog.target(asked.back)[1] if asked.back else catalog.back(family, target.version))
        permit = self._permit(family, back, target)
        try:
            await self._context.versions.load(f"{family}@{target.version}")
        except InferRefusedError:
            line = f"this hub cannot serve {asked.model}: put its bundle into models_folder, or name it in models"
            raise OipError(409, line) from None
        order = Order(family, target, asked.to, asked.rules, back, permit=permit, id=asked.id)
        return _shown(await _refused_later(self._desk.start(order, caller_of(request).name)), 201)

    async def pause(self, request: web.Request) -> web.Response:
        """Pause a rollout: 200 with its status; no further device is assigned anything. 409 unless it is under way."""
        asked, by = await read_json(request, WhyRequest), caller_of(request).name
        return _shown(await _refused_later(self._desk.pause(_named(request), by, asked.why)))

    async def resume(self, request: web.Request) -> web.Response:
        """Resume a paused rollout: 200 with its status, 409 if it is not paused or cannot go on."""
        await read_json(request, WhyRequest)
        return _shown(await _refused_later(self._desk.resume(_named(request), caller_of(request).name)))

    async def abort(self, request: web.Request) -> web.Response:
        """Abort a rollout: 200 with its status; what is not committed is withdrawn. 409 if it has ended."""
        asked, by = await read_json(request, WhyRequest), caller_of(request).name
        return _shown(await _refused_later(self._desk.abort(_named(request), by, asked.why)))

    async def approve(self, request: web.Request) -> web.Response:
        """Approve a plan: 409 if the same person approved before, or the plan is another one than that looked at."""
        asked, by = await read_json(request, ApproveRequest), caller_of(request).name
        return _shown(await _refused_later(self._desk.approve(_named(request), by, asked.plan)))

    async def undo(self, request: web.Request) -> web.Response:
        """Go back to the version before: abort and revert a rollout under way; after its end start one in reverse.

        409 without a version before, or without the permit that a downgrade needs.
        """
        asked, by = await read_json(request, UndoRequest), caller_of(request).name
        view = _refused(lambda: self._desk.view(_named(request)))
        to = self._before(view, asked.to_version)
        permit = self._permit(view.family, view.target, to)
        if view.state not in TERMINAL and to == view.back:
            return _shown(await _refused_later(self._desk.abort(view.id, by, asked.why, revert=True)))
        order = Order(view.family, to, view.to, view.rules, view.target, permit=permit)
        return _shown(await _refused_later(self._desk.start(order, by)), 200)

    def _before(self, view: View, version: int) -> Target:
        """Return the bundle to go back to: a named version, or the one before. OipError(409) if there is none."""
        if version and (view.back is None or version != view.back.version):
            return _refused(lambda: self._catalog.target(f"{view.family}@{version}")[1])
        if view.back is None:
            raise OipError(409, f"{view.id} had no version before: name one with to_version")
        return view.back

    def _permit(self, family: str, here: Target | None, there: Target) -> str:
        """Return the path of the permit; only a downgrade needs one."""
        if here is None or there.version >= here.version:
            return ""
        return _refused(lambda: self._catalog.permit(family, here.version, there.version))

    @property
    def _desk(self) -> RolloutControl:
        """The rollout controller; OipError(409) if this hub has none."""
        if self._context.rollouts is None:
            raise OipError(409, "this hub has no rollouts")
        return self._context.rollouts

    @property
    def _catalog(self) -> Catalog:
        """The catalog of targets; OipError(409) without an update repository."""
        if self._context.catalog is None:
            raise OipError(409, "this hub has no update repository: docs/trust.md, the first keys")
        return self._context.catalog


def _named(request: web.Request) -> str:
    return request.match_info["rollout"]


def _shown(view: View, status: int = 200) -> web.Response:
    return answer(msgspec.to_builtins(view), status)


def _refused(work: Callable[[], T]) -> T:
    """Run `work`; a RolloutError becomes the HTTP error of its code."""
    try:
        return work()
    except RolloutError as error:
        raise OipError(_STATUS[error.code], str(error)) from None


async def _refused_later(work: Awaitable[T]) -> T:
    try:
        return await work
    except RolloutError as error:
        raise OipError(_STATUS[error.code], str(error)) from None
