"""Rollout routes of the web API (`/v1/admin/rollouts`): start, status, pause, resume, abort, approve, undo.

Rule: a rollout is the whole hub's, so no tenant's key reaches it. Who does something is named in the rollout's own
history by the name of the key, beside the audit; two people are two keys.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web

from cloud_hub.api.auth import caller_of
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.routing import Route, answer_json, read_json
from cloud_hub.core.web_requests import InferRefusedError
from cloud_hub.registry.access import Scope
from cloud_hub.rollout.catalog import BundleTargets
from cloud_hub.rollout.controller import RolloutController
from cloud_hub.rollout.planning import RolloutOrder
from cloud_hub.rollout.types import TERMINAL, BundleTarget, RolloutError
from cloud_hub.rollout.view import RolloutView
from models.signing.roles import MODEL_PATTERN
from wire.http.oip import OipError

_STATUS = {"not_found": 404, "conflict": 409, "refused": 409, "invalid": 400}
ROLLOUTS_PATH = "/v1/admin/rollouts"
_MODEL_SCHEMA = {"pattern": f"^{MODEL_PATTERN}$", "maxLength": 66}
_OPTIONAL_MODEL_SCHEMA = {"pattern": f"^({MODEL_PATTERN})?$", "maxLength": 66}
T = TypeVar("T")


class StartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/admin/rollouts`.

    `model`: digits@8, published. `to`: class=camera,region=eu|us or all. `back`: "" = what most devices run now.
    `rules`: parameters over their defaults; `id`: "" = made from family, version and time.
    """

    model: Annotated[str, msgspec.Meta(extra_json_schema=_MODEL_SCHEMA)]
    to: str = "all"
    back: Annotated[str, msgspec.Meta(extra_json_schema=_OPTIONAL_MODEL_SCHEMA)] = ""
    rules: dict[str, Any] = {}
    id: str = ""


class ReasonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of pause and abort. `why`: one line, for the history."""

    why: str = ""


class ResumeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a resume. `accept`: the wave passes although the evidence does not decide; harm still stops it."""

    why: str = ""
    accept: bool = False


class ApproveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of an approval. `plan`: the digest of what the person looked at; other content is not approved by it."""

    plan: str


class UndoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of an undo. `to_version`: 0 = the one before. Takes a permit in the update repository."""

    why: str = ""
    to_version: int = 0


class RolloutRoutes:
    """Rollout routes. A hub without an update repository has neither `context.rollouts` nor `context.catalog`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        one = ROLLOUTS_PATH + "/{rollout}"
        return [
            self._read_route("", self.list_all, "The rollouts, newest first"),
            self._action_route("", self.start, "Roll a version out to devices, in waves", StartRequest, 201),
            self._read_route("/{rollout}", self.show_one, "Progress of a rollout, and the result of its gate"),
            self._read_route("/{rollout}/devices", self.list_devices, "Every device of a rollout"),
            self._read_route("/{rollout}/history", self.show_history, "Who did what in a rollout, and when"),
            self._read_route("/{rollout}/looks", self.list_looks, "What each look of a rollout's gate saw"),
            self._action_route(
                "/{rollout}/pause", self.pause, "Pause: no further device is assigned anything", ReasonRequest
            ),
            self._action_route("/{rollout}/resume", self.resume, "Resume a paused rollout", ResumeRequest),
            self._action_route(
                "/{rollout}/abort", self.abort, "Abort: what is not committed is withdrawn", ReasonRequest
            ),
            self._action_route(
                "/{rollout}/approve", self.approve, "Approve the plan as one more person", ApproveRequest
            ),
            self._action_route("/{rollout}/undo", self.undo, f"Revert {one} to the version before", UndoRequest),
        ]

    def _read_route(self, path: str, handler: Callable[[web.Request], Awaitable[web.Response]], says: str) -> Route:
        return Route("GET", ROLLOUTS_PATH + path, handler, says, scope=Scope.READ, tag="rollouts")

    def _action_route(
        self,
        path: str,
        handler: Callable[[web.Request], Awaitable[web.Response]],
        says: str,
        takes: type[msgspec.Struct],
        status: int = 200,
    ) -> Route:
        return Route(
            "POST", ROLLOUTS_PATH + path, handler, says, scope=Scope.OPERATE, takes=takes, status=status, tag="rollouts"
        )

    async def list_all(self, _request: web.Request) -> web.Response:
        """Answer with every rollout, newest first."""
        return answer_json({"rollouts": [msgspec.to_builtins(each) for each in self._controller.views()]})

    async def show_one(self, request: web.Request) -> web.Response:
        """Answer with one rollout's status."""
        return _answer_view(_map_errors(lambda: self._controller.view(_rollout_id(request))))

    async def list_devices(self, request: web.Request) -> web.Response:
        """Answer with the state of every device of a rollout."""
        found = _map_errors(lambda: self._controller.devices(_rollout_id(request)))
        return answer_json({"devices": [msgspec.to_builtins(each) for each in found]})

    async def list_looks(self, request: web.Request) -> web.Response:
        """Answer with what each look of the gate saw since this hub was started, oldest first."""
        found = _map_errors(lambda: self._controller.looks(_rollout_id(request)))
        return answer_json({"looks": [msgspec.to_builtins(each) for each in found]})

    async def show_history(self, request: web.Request) -> web.Response:
        """Answer with a rollout's history, oldest first."""
        found = await _map_errors_async(self._controller.history(_rollout_id(request)))
        return answer_json({"history": [msgspec.to_builtins(each) for each in found]})

    async def start(self, request: web.Request) -> web.Response:
        """Start a rollout: 201 once it is written.

        409 if this hub cannot serve the version, or if an older version lacks its permit.
        """
        asked = await read_json(request, StartRequest)
        catalog = self._catalog
        family, target = _map_errors(lambda: catalog.find_target(asked.model))
        back = _map_errors(
            lambda: catalog.find_target(asked.back)[1] if asked.back else catalog.find_previous(family, target.version)
        )
        permit = self._required_permit(family, back, target)
        try:
            await self._context.versions.load(f"{family}@{target.version}")
        except InferRefusedError:
            line = f"this hub cannot serve {asked.model}: put its bundle into models_folder, or name it in models"
            raise OipError(409, line) from None
        order = RolloutOrder(family, target, asked.to, asked.rules, back, permit=permit, id=asked.id)
        return _answer_view(await _map_errors_async(self._controller.start(order, caller_of(request).name)), 201)

    async def pause(self, request: web.Request) -> web.Response:
        """Pause a rollout: 200 with its status; no further device is assigned anything. 409 unless it is under way."""
        asked, by = await read_json(request, ReasonRequest), caller_of(request).name
        return _answer_view(await _map_errors_async(self._controller.pause(_rollout_id(request), by, asked.why)))

    async def resume(self, request: web.Request) -> web.Response:
        """Resume a paused rollout: 200 with its status, 409 if it is not paused or cannot go on."""
        asked, by = await read_json(request, ResumeRequest), caller_of(request).name
        resumed = self._controller.resume(_rollout_id(request), by, asked.why, accept=asked.accept)
        return _answer_view(await _map_errors_async(resumed))

    async def abort(self, request: web.Request) -> web.Response:
        """Abort a rollout: 200 with its status; what is not committed is withdrawn. 409 if it has ended."""
        asked, by = await read_json(request, ReasonRequest), caller_of(request).name
        return _answer_view(await _map_errors_async(self._controller.abort(_rollout_id(request), by, asked.why)))

    async def approve(self, request: web.Request) -> web.Response:
        """Approve a plan: 409 if the same person approved before, or the plan is another one than that looked at."""
        asked, by = await read_json(request, ApproveRequest), caller_of(request).name
        return _answer_view(await _map_errors_async(self._controller.approve(_rollout_id(request), by, asked.plan)))

    async def undo(self, request: web.Request) -> web.Response:
        """Go back to the version before: abort and revert a rollout under way; after its end start one in reverse.

        409 without a version before, or without the permit that a downgrade needs.
        """
        asked, by = await read_json(request, UndoRequest), caller_of(request).name
        view = _map_errors(lambda: self._controller.view(_rollout_id(request)))
        to = self._previous_target(view, asked.to_version)
        permit = self._required_permit(view.family, view.target, to)
        if view.state not in TERMINAL and to == view.back:
            return _answer_view(await _map_errors_async(self._controller.abort(view.id, by, asked.why, revert=True)))
        order = RolloutOrder(view.family, to, view.to, view.rules, view.target, permit=permit)
        return _answer_view(await _map_errors_async(self._controller.start(order, by)), 200)

    def _previous_target(self, view: RolloutView, version: int) -> BundleTarget:
        """Return the bundle to go back to: a named version, or the one before. OipError(409) if there is none."""
        if version and (view.back is None or version != view.back.version):
            return _map_errors(lambda: self._catalog.find_target(f"{view.family}@{version}")[1])
        if view.back is None:
            raise OipError(409, f"{view.id} had no version before: name one with to_version")
        return view.back

    def _required_permit(self, family: str, here: BundleTarget | None, there: BundleTarget) -> str:
        """Return the path of the permit; only a downgrade needs one."""
        if here is None or there.version >= here.version:
            return ""
        return _map_errors(lambda: self._catalog.find_permit(family, here.version, there.version))

    @property
    def _controller(self) -> RolloutController:
        """The rollout controller; OipError(409) if this hub has none."""
        if self._context.rollouts is None:
            raise OipError(409, "this hub has no rollouts")
        return self._context.rollouts

    @property
    def _catalog(self) -> BundleTargets:
        """The catalog of targets; OipError(409) without an update repository."""
        if self._context.catalog is None:
            raise OipError(409, "this hub has no update repository: docs/trust.md, the first keys")
        return self._context.catalog


def _rollout_id(request: web.Request) -> str:
    return request.match_info["rollout"]


def _answer_view(view: RolloutView, status: int = 200) -> web.Response:
    return answer_json(msgspec.to_builtins(view), status)


def _map_errors(work: Callable[[], T]) -> T:
    """Run `work`; a RolloutError becomes the HTTP error of its code."""
    try:
        return work()
    except RolloutError as error:
        raise OipError(_STATUS[error.code], str(error)) from None


async def _map_errors_async(work: Awaitable[T]) -> T:
    try:
        return await work
    except RolloutError as error:
        raise OipError(_STATUS[error.code], str(error)) from None
