"""`/v1/admin/models`: which versions this hub has, who still speaks them, and the end of one."""

from typing import Any

import msgspec
from aiohttp import web

from cloud_hub.api.interface import ApiContext
from cloud_hub.api.merging_routing_bodies import answer, read_json
from cloud_hub.api.merging_routing_routes import Route
from cloud_hub.core.merging_web_requests_requests import InferRefusedError, Kept
from cloud_hub.registry.access import Scope
from cloud_hub.serving.versions import ModelInUseError
from wire.http.guards import refusal
from wire.http.merging_oip_oip import OipError

SHOWN_DEVICES = 1000  # devices named in one answer


class RetireRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`force`: although devices still speak it; their questions for it end `model_gone`."""

    force: bool = False


class Retiring:
    """For who runs the whole hub."""

    def __init__(self, context: ApiContext) -> None:
        self._versions = context.versions
        self._now_ms = context.now_ms

    def routes(self) -> list[Route]:
        path, retires = "/v1/admin/models", "The end of a version: refused while devices speak it, unless forced"
        return [
            Route("GET", path, self.models, "Every version, its state, how many devices speak it", scope=Scope.READ),
            Route("POST", path + "/{model}/retire", self.retire, retires, scope=Scope.OPERATE, takes=RetireRequest),
        ]

    async def models(self, _request: web.Request) -> web.Response:
        return answer({"models": [self._shown(kept) for kept in self._versions.list()]})

    async def retire(self, request: web.Request) -> web.Response:
        """200 once it is gone; 404 if there is no such version, 409 with who speaks it."""
        asked = await read_json(request, RetireRequest)
        model = request.match_info["model"]
        if "@" not in model:
            raise OipError(400, "name one version: MODEL@VERSION")
        try:
            spoke = self._versions.retire(model, self._now_ms(), force=asked.force)
        except InferRefusedError:
            raise OipError(404, "this hub has no such version") from None
        except ModelInUseError as spoken:
            return refusal(409, still_spoken(model, spoken.devices))
        return answer({"retired": model, "spoke": spoke_json(spoke)})

    def _shown(self, kept: Kept) -> dict[str, Any]:
        model = f"{kept.name}@{kept.version}"
        spoke = self._versions.speaking(model, self._now_ms())
        return {"model": model, "state": kept.state, "reason": kept.reason, "speaking": len(spoke)}


def spoke_json(spoke: dict[str, int]) -> list[dict[str, Any]]:
    return [{"device": device, "heard_ms": at_ms} for device, at_ms in list(spoke.items())[:SHOWN_DEVICES]]


def still_spoken(model: str, devices: dict[str, int]) -> str:
    """One line for a person."""
    named = ", ".join(list(devices)[:5]) + (f" and {len(devices) - 5} more" if len(devices) > 5 else "")
    return f"{model} is still spoken by {named}: move them to another version first, or use --force"
