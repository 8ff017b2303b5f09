"""Open Inference Protocol extensions: model repository (index, load, unload) and statistics.

Source: Triton's documents "Model Repository Extension" and "Statistics Extension".
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from aiohttp import web

from cloud_hub.api.interface import ApiContext
from cloud_hub.api.oip import answer_refused
from cloud_hub.api.routing import MAX_JSON_BYTES, Route, RouteAccess, answer_json, parse_json
from cloud_hub.core.web_requests import InferRefusedError
from cloud_hub.engine.base import ModelCard
from cloud_hub.registry.access import Scope
from cloud_hub.serving.telemetry import ModelTimings, TimeSum, sum_times
from wire.http.guards import read_body
from wire.http.oip import OipError, shorten_name
from wire.http.openapi import ApiLink
from wire.protocol.messages import RefusalReason

_NS = 1e9


_LOAD_PARAMETERS: dict[str, Any] = {
    "properties": {"version": {"type": ["string", "integer"]}, "unload_dependents": {"type": "boolean"}},
    "propertyNames": {"enum": ["version", "unload_dependents"]},
}


class IndexRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of the index request. `ready`: only loaded models."""

    ready: bool = False


class LoadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a load or unload request.

    `parameters`: `version`, the newest one without it; `unload_dependents`, true or false: no model here has any.
    """

    parameters: Annotated[dict[str, bool | int | float | str], msgspec.Meta(extra_json_schema=_LOAD_PARAMETERS)] = {}


_INDEX: dict[str, Any] = {"type": "array", "items": {"type": "object", "required": ["name", "version", "state"]}}
_INDEX_LINKS = tuple(
    ApiLink(f"GET /v2/models/{{model}}{path}", {"model": "/0/name", **version})
    for suffix in ("", "/ready", "/stats")
    for path, version in ((suffix, {}), (f"/versions/{{version}}{suffix}", {"version": "/0/version"}))
)


class ModelRepositoryRoutes:
    """Routes for loading models, which needs a key of the whole hub, and for statistics, for whoever may read."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        model, whole, operate = "/v2/repository/models/{model}", RouteAccess.HUB_KEY, Scope.OPERATE
        stats, tag = "How often and how long it was asked, waited for and computed", "inference"
        one, here = "/v2/models/{model}", RouteAccess.LOCAL_OR_HUB_KEY
        return [
            Route("GET", "/v2/models/stats", self.all_stats, stats, here, scope=Scope.READ, tag=tag),
            Route("GET", one + "/stats", self.model_stats, stats, here, scope=Scope.READ, tag=tag),
            Route("GET", one + "/versions/{version}/stats", self.model_stats, stats, here, scope=Scope.READ, tag=tag),
            Route(
                "POST", "/v2/repository/index", self.list_index, "Every version of every model, loaded or not",
                RouteAccess.LOCAL_OR_KEY, scope=Scope.INFER, takes=IndexRequest, needs_body=False, gives=_INDEX,
                links=_INDEX_LINKS, tag=tag,
            ),
            Route(
                "POST", model + "/load", self.load, "Load", whole,
                scope=operate, takes=LoadRequest, needs_body=False, tag=tag,
            ),
            Route(
                "POST", model + "/unload", self.unload, "Unload", whole,
                scope=operate, takes=LoadRequest, needs_body=False, tag=tag,
            ),
        ]  # fmt: skip

    async def list_index(self, request: web.Request) -> web.Response:
        """Answer with every version of every model, or the loaded ones."""
        asked = await _read_optional(request, IndexRequest)
        return answer_json(
            [kept for kept in self._context.versions.list_models() if kept.state == "READY" or not asked.ready]
        )

    async def load(self, request: web.Request) -> web.Response:
        """Load a model: 200 once it is ready, 404 if it is not in the repository."""
        return await _load_or_unload(request, self._context.versions.load)

    async def unload(self, request: web.Request) -> web.Response:
        """Unload a model: 200 once it is gone, 404 if it is not in the repository."""
        return await _load_or_unload(request, self._context.versions.unload)

    async def all_stats(self, _request: web.Request) -> web.Response:
        """Answer with the statistics of every model."""
        return answer_json({"model_stats": [self._card_stats(card) for card in self._context.inference.cards]})

    async def model_stats(self, request: web.Request) -> web.Response:
        """Answer with the statistics of one model, of all its versions or of one."""
        name, version = request.match_info["model"], request.match_info.get("version")
        served = self._context.inference.cards
        cards = [c for c in served if c.ref.name == name and version in (None, str(c.ref.version))]
        if not cards:
            raise OipError(404, "this hub serves no such model or version")
        return answer_json({"model_stats": [self._card_stats(card) for card in cards]})

    def _card_stats(self, card: ModelCard) -> dict[str, Any]:
        return stats_json(card, self._context.observer.timings.timings_for(card.name))


async def _read_optional(request: web.Request, kind: type[msgspec.Struct]) -> Any:
    """Return the body as `kind`. Clients of this protocol also send none, which counts as {}."""
    body = await read_body(request, MAX_JSON_BYTES)
    return parse_json(body or b"{}", kind)


async def _load_or_unload(request: web.Request, turn: Callable[[str], Awaitable[None]]) -> web.Response:
    """Load or unload: 200 once it is done; 404 for a model that is not in the repository."""
    asked = await _read_optional(request, LoadRequest)
    version = _parse_version(asked)
    name = request.match_info["model"]
    try:
        await turn(f"{name}@{version}" if version else name)
    except InferRefusedError as refused:
        if refused.reason is RefusalReason.MODEL_GONE:
            raise OipError(404, "there is no such model in the repository") from None
        return answer_refused(refused)
    return answer_json({})


def _parse_version(asked: LoadRequest) -> str:
    """Return the version that is asked for, "" = the newest. OipError(400) for what is not offered, by name."""
    for key, value in asked.parameters.items():
        if key == "config" or key.startswith("file:"):
            line = (
                f"parameter '{shorten_name(key)}': overrides are not offered, a version is loaded as it was published"
            )
            raise OipError(400, line)
        if key not in _LOAD_PARAMETERS["properties"]:
            raise OipError(400, f"unknown parameter '{shorten_name(key)}': version and unload_dependents are known")
        if isinstance(value, float) or isinstance(value, bool) != (key == "unload_dependents"):
            raise OipError(400, f"parameter '{key}' is not of its type")
    return str(asked.parameters.get("version", ""))


def stats_json(card: ModelCard, found: ModelTimings) -> dict[str, Any]:
    """Return one entry of `model_stats`, in nanoseconds. `inference_stats` counts requests, whatever their batch size.

    `inference_count` counts items, `execution_count` and `batch_stats` batches of the engine; `compute_s` is their time
    in seconds. A question of a device is a request of one item. Input, output and cache times are not measured here and
    are 0.
    """
    executions, computed_s = sum_times(found.batches.values())
    kinds = {
        "success": _duration_json(found.succeeded),
        "fail": _duration_json(found.refused),
        "queue": _duration_json(found.waited),
        "compute_infer": _duration_json(found.computed),
    }
    none = {kind: {"count": 0, "ns": 0} for kind in ("compute_input", "compute_output", "cache_hit", "cache_miss")}
    return {
        "name": card.ref.name,
        "version": str(card.ref.version),
        "last_inference": found.last_ms,
        "inference_count": found.items,
        "execution_count": executions,
        "inference_stats": {**kinds, **none},
        "batch_stats": [_batch_stats(size, found.batches[size]) for size in sorted(found.batches)],
        "compute_s": round(computed_s, 6),
    }


def _batch_stats(size: int, batches: TimeSum) -> dict[str, Any]:
    """Return the statistics of one batch size."""
    nothing = {"count": batches.count, "ns": 0}
    return {
        "batch_size": size,
        "compute_input": nothing,
        "compute_infer": _duration_json(batches),
        "compute_output": nothing,
    }


def _duration_json(found: TimeSum) -> dict[str, int]:
    return {"count": found.count, "ns": _seconds_to_ns(found.seconds)}


def _seconds_to_ns(seconds: float) -> int:
    return int(seconds * _NS)
