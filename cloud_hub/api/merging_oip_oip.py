"""Open Inference Protocol v2 for every model of the hub: a raw sample through the whole model.

Rule: the protocol's text and bytes are `wire.http.merging_oip_oip`'s; here a request becomes inputs, and predictions
become tensors.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from cloud_hub.api.auth import caller_of
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.merging_oip_oip_shapes import INFER_BODY, INFER_REPLY
from cloud_hub.api.merging_oip_wishes import NOTHING, span_of, wish_of
from cloud_hub.api.merging_routing_bodies import answer
from cloud_hub.api.merging_routing_routes import Door, Route
from cloud_hub.core.merging_web_requests_requests import InferRefusedError, StillRunningError
from cloud_hub.engine.base import ModelCard as EngineCard
from cloud_hub.registry.access import Scope
from wire.http import merging_oip_oip
from wire.http.guards import read_body, refusal
from wire.http.merging_oip_oip import OipError, TensorSpec
from wire.http.merging_oip_oip_answers import answer_outputs, answer_tensors
from wire.protocol.messages import Prediction, Reason

MAX_ROWS = 256  # of one request; larger batches are several requests
EXTENSIONS = ("model_repository", "statistics", "schedule_policy", "parameters")
_MODEL = "/v2/models/{model}"
_VERSIONED = _MODEL + "/versions/{version}"
_STATUS = {
    Reason.RATE: 429,
    Reason.BUSY: 503,
    Reason.DRAINING: 503,
    Reason.EXPIRED: 504,
    Reason.MODEL_GONE: 404,
    Reason.SCHEMA: 400,
    Reason.CONFLICT: 422,
    Reason.ENGINE: 500,
}
_LINE = {
    Reason.RATE: "this tenant asks for more than its share, ask again later",
    Reason.BUSY: "the hub is busy, ask again",
    Reason.DRAINING: "the hub is stopping, ask again",
    Reason.EXPIRED: "the request's own timeout passed before it was computed",
    Reason.MODEL_GONE: "the model is not served any more",
    Reason.SCHEMA: "the input does not fit the model",
    Reason.CONFLICT: "this Idempotency-Key came with another payload before",
    Reason.ENGINE: "the model failed on this input",
}


class Models:
    """The protocol's routes over the models the hub serves now. `body`: its most bytes, and seconds it may take."""

    def __init__(self, context: ApiContext, version: str, body: tuple[int, float]) -> None:
        self._inference = context.inference
        self._observer = context.observer
        self._version = version
        self._body = body

    def routes(self) -> list[Route]:
        fixed = [
            _read("/v2", self.server, "The server and its extensions"),
            _read("/v2/health/live", self.live, "Whether the server lives"),
            _read("/v2/health/ready", self.ready, "Whether models are loaded"),
        ]
        return [*fixed, *self._per_model(_MODEL), *self._per_model(_VERSIONED)]

    def _per_model(self, base: str) -> list[Route]:
        infer: dict[str, Any] = {"takes": INFER_BODY, "gives": INFER_REPLY, "tag": "inference"}
        return [
            _read(base, self.metadata, "What a model takes and gives"),
            _read(base + "/ready", self.model_ready, "Whether a model is ready"),
            Route("POST", base + "/infer", self.infer, "Infer", Door.HERE, scope=Scope.INFER, **infer),
        ]

    async def server(self, _request: web.Request) -> web.Response:
        return answer(merging_oip_oip.server_metadata("skerry-hub", self._version, EXTENSIONS))

    async def live(self, _request: web.Request) -> web.Response:
        return answer({"live": True})

    async def ready(self, _request: web.Request) -> web.Response:
        """Whether models are loaded; `/readyz` asks each of them."""
        ready = bool(self._inference.cards)
        return answer({"ready": ready}, 200 if ready else 503)

    async def metadata(self, request: web.Request) -> web.Response:
        return answer(merging_oip_oip.model_metadata(self._card(request)[1]))

    async def model_ready(self, request: web.Request) -> web.Response:
        return answer({"name": self._card(request)[1].name, "ready": True})

    async def infer(self, request: web.Request) -> web.Response:
        engine, card = self._card(request)
        began = time.time()
        wish = NOTHING
        try:
            self._inference.overrun(caller_of(request).tenant)
            body = await read_body(request, *self._body)
            asked = merging_oip_oip.parse_infer(body, request.headers.get(merging_oip_oip.HEADER_LENGTH))
            wish = wish_of(request, asked.parameters, caller_of(request), body)
            merging_oip_oip.check_wanted(asked, [spec.name for spec in card.outputs])
            inputs = merging_oip_oip.require(asked, card.inputs, MAX_ROWS)[engine.input_name]
            reply = _reply(asked, engine, await self._inference.infer(engine.name, inputs, wish))
        except InferRefusedError as refused:
            reply = refused_answer(refused)
        if wish.trace:
            given = request.headers["traceparent"], span_of(wish.trace)
            self._observer.served(*given, (began, time.time()), reply.status)
        return reply

    def _card(self, request: web.Request) -> tuple[EngineCard, merging_oip_oip.ModelCard]:
        """The engine's card and the protocol's for the model in the path; the newest version where none is named."""
        name, version = request.match_info["model"], request.match_info.get("version")
        served = sorted((c for c in self._inference.cards if c.ref.name == name), key=lambda c: c.ref.version)
        found = [c for c in served if version is None or str(c.ref.version) == version]
        if not found:
            raise OipError(404, "this hub serves no such model or version")
        return found[-1], describe(found[-1], [str(c.ref.version) for c in served])


def describe(card: EngineCard, versions: Sequence[str]) -> merging_oip_oip.ModelCard:
    """The protocol's card: one raw input with a free batch, and the outputs of its kind of model."""
    given = TensorSpec(card.input_name, card.input_dtype, (-1, *card.input_shape))
    outputs = answer_outputs(card.labels, card.outputs)
    return merging_oip_oip.ModelCard(card.ref.name, tuple(versions), "skerry_hub", (given,), outputs)


def refused_answer(refused: InferRefusedError) -> web.Response:
    """The refusal's status and one line; how long to wait where asking again helps."""
    if isinstance(refused, StillRunningError):
        return refusal(409, "the same Idempotency-Key is being computed, ask again", {"Retry-After": "1"})
    status = _STATUS.get(refused.reason, 503)
    wait = {"Retry-After": str(max(1, math.ceil(refused.retry_after_s)))} if status in (429, 503, 504) else None
    response = refusal(status, _LINE.get(refused.reason, refused.reason.value), wait)
    if refused.reason is Reason.DRAINING:
        response.force_close()  # whoever comes again connects anew, and finds another hub or none
    return response


def _read(path: str, handler: Handler, says: str) -> Route:
    return Route("GET", path, handler, says, Door.HERE, scope=Scope.INFER, tag="inference")


def _reply(asked: merging_oip_oip.InferRequest, card: EngineCard, predictions: Sequence[Prediction]) -> web.Response:
    version = str(card.ref.version)
    facts: dict[str, merging_oip_oip.Parameter] = {"source": "hub", "model_version": version}
    reply = merging_oip_oip.InferResponse(
        card.ref.name, version, asked.id, answer_tensors(predictions, card.labels), facts
    )
    encoded = merging_oip_oip.encode_infer(reply, asked)
    return web.Response(body=encoded.body, headers=encoded.headers())
