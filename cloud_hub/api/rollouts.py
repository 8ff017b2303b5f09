"""`/v1/admin/rollouts`: who gets which version next, how far it is, and the people who stop it or let it go on.

Rule: a rollout is the whole hub's, so no tenant's key reaches it. Who does something stands in the rollout's own
history by the name of his key, beside the audit; two people are two keys.
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
    """`model`: digits@8, published. `to`: class=camera,region=eu|us or all. `back`: "" = what most devices run now.

    `rules`: parameters over their defaults; `id`: "" = made from family, version and time.
    """

    model: str
    to: str = "all"
    back: str = ""
    rules: dict[str, Any] = {}
    id: str = ""


class WhyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`why`: one line, for the history."""

    why: str = ""


class ApproveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`plan`: the digest of what was looked at; another content is not approved by it."""

    plan: str


class UndoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`to_version`: 0 = the one before. Takes a permit in the update repository."""

    why: str = ""
    to_version: int = 0


class Rolling:
    """`context.rollouts` and `context.catalog` do the work; a hub without an update repository has neither."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        one = PATH + "/{rollout}"
        return [
            self._reads("", self.all, "The rollouts, newest first"),
            self._acts("", self.start, "Give devices another version, wave by wave", StartRequest, 201),
            self._reads("/{rollout}", self.one, "How far a rollout is, and what its gate says"),
            self._reads("/{rollout}/devices", self.devices, "Every device of a rollout"),
            self._reads("/{rollout}/history", self.history, "Who did what in a rollout, and when"),
            self._acts("/{rollout}/pause", self.pause, "Tell no further device", WhyRequest),
            self._acts("/{rollout}/resume", self.resume, "Go on where it was paused", WhyRequest),
            self._acts("/{rollout}/abort", self.abort, "End it: what is not committed is called back", WhyRequest),
            self._acts("/{rollout}/approve", self.approve, "A person has seen the plan and says yes", ApproveRequest),
            self._acts("/{rollout}/undo", self.undo, f"Back to the version before, of {one}", UndoRequest),
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
        return answer({"rollouts": [msgspec.to_builtins(each) for each in self._desk.views()]})

    async def one(self, request: web.Request) -> web.Response:
        return _shown(_refused(lambda: self._desk.view(_named(request))))

    async def devices(self, request: web.Request) -> web.Response:
        found = _refused(lambda: self._desk.devices(_named(request)))
        return answer({"devices": [msgspec.to_builtins(each) for each in found]})

    async def history(self, request: web.Request) -> web.Response:
        found = await _refused_later(self._desk.history(_named(request)))
        return answer({"history": [msgspec.to_builtins(each) for each in found]})

    async def start(self, request: web.Request) -> web.Response:
        """201 once it is written; 409 if this hub could not serve the version, or an older one lacks its permit."""
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
        asked, by = await read_json(request, WhyRequest), caller_of(request).name
        return _shown(await _refused_later(self._desk.pause(_named(request), by, asked.why)))

    async def resume(self, request: web.Request) -> web.Response:
        await read_json(request, WhyRequest)
        return _shown(await _refused_later(self._desk.resume(_named(request), caller_of(request).name)))

    async def abort(self, request: web.Request) -> web.Response:
        asked, by = await read_json(request, WhyRequest), caller_of(request).name
        return _shown(await _refused_later(self._desk.abort(_named(request), by, asked.why)))

    async def approve(self, request: web.Request) -> web.Response:
        """409 if the same person approved before, or what would be done is not what was looked at."""
        asked, by = await read_json(request, ApproveRequest), caller_of(request).name
        return _shown(await _refused_later(self._desk.approve(_named(request), by, asked.plan)))

    async def undo(self, request: web.Request) -> web.Response:
        """One that is under way is aborted and what has committed goes back; after its end a new rollout goes back."""
        asked, by = await read_json(request, UndoRequest), caller_of(request).name
        view = _refused(lambda: self._desk.view(_named(request)))
        to = self._before(view, asked.to_version)
        permit = self._permit(view.family, view.target, to)
        if view.state not in TERMINAL and to == view.back:
            return _shown(await _refused_later(self._desk.abort(view.id, by, asked.why, revert=True)))
        order = Order(view.family, to, view.to, view.rules, view.target, permit=permit)
        return _shown(await _refused_later(self._desk.start(order, by)), 200)

    def _before(self, view: View, version: int) -> Target:
        if version and (view.back is None or version != view.back.version):
            return _refused(lambda: self._catalog.target(f"{view.family}@{version}")[1])
        if view.back is None:
            raise OipError(409, f"{view.id} had no version before: name one with to_version")
        return view.back

    def _permit(self, family: str, here: Target | None, there: Target) -> str:
        """Only who goes down needs one."""
        if here is None or there.version >= here.version:
            return ""
        return _refused(lambda: self._catalog.permit(family, here.version, there.version))

    @property
    def _desk(self) -> RolloutControl:
        if self._context.rollouts is None:
            raise OipError(409, "this hub has no rollouts")
        return self._context.rollouts

    @property
    def _catalog(self) -> Catalog:
        if self._context.catalog is None:
            raise OipError(409, "this hub has no update repository: docs/trust.md, the first keys")
        return self._context.catalog


def _named(request: web.Request) -> str:
    return request.match_info["rollout"]


def _shown(view: View, status: int = 200) -> web.Response:
    return answer(msgspec.to_builtins(view), status)


def _refused(work: Callable[[], T]) -> T:
    """A refusal as the web API says it."""
    try:
        return work()
    except RolloutError as error:
        raise OipError(_STATUS[error.code], str(error)) from None


async def _refused_later(work: Awaitable[T]) -> T:
    try:
        return await work
    except RolloutError as error:
        raise OipError(_STATUS[error.code], str(error)) from None
