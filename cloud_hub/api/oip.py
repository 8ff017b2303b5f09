"""Open Inference Protocol v2 for every model of the hub: a raw sample through the whole model.

Rule: the protocol's text and bytes are `wire.oip`'s; here a request becomes `hub.infer` and predictions become tensors.
"""

from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler

from cloud_hub.api.face import HubFace
from cloud_hub.engine.base import ModelCard as EngineCard
from cloud_hub.loop import InferRefused
from wire import oip
from wire.doors import read_body, refusal
from wire.messages import Prediction, Reason
from wire.oip import OipError, TensorSpec
from wire.oip_answers import answer_outputs, answer_tensors

MAX_ROWS = 256  # of one request; larger batches are several requests
_MODEL = "/v2/models/{model}"
_VERSIONED = _MODEL + "/versions/{version}"
_HARMLESS = frozenset({"priority", "timeout", "sequence_id", "sequence_start", "sequence_end"})
_STATUS = {Reason.BUSY: 503, Reason.DRAINING: 503, Reason.MODEL_GONE: 404, Reason.SCHEMA: 400, Reason.ENGINE: 500}
_LINE = {
    Reason.BUSY: "the hub is busy, ask again",
    Reason.DRAINING: "the hub is stopping, ask again",
    Reason.MODEL_GONE: "the model is not served any more",
    Reason.SCHEMA: "the input does not fit the model",
    Reason.ENGINE: "the model failed on this input",
}


class Models:
    """The protocol's routes over the models the hub serves now."""

    def __init__(self, hub: HubFace, version: str, max_body_bytes: int) -> None:
        self._hub = hub
        self._version = version
        self._max_body_bytes = max_body_bytes

    def routes(self) -> list[web.RouteDef]:
        per_model: tuple[tuple[str, str, Handler], ...] = (
            ("GET", "", self.metadata),
            ("GET", "/ready", self.model_ready),
            ("POST", "/infer", self.infer),
        )
        fixed = [
            web.get("/v2", self.server),
            web.get("/v2/health/live", self.live),
            web.get("/v2/health/ready", self.ready),
        ]
        return fixed + [
            web.route(method, base + path, handler)
            for base in (_MODEL, _VERSIONED)
            for method, path, handler in per_model
        ]

    async def server(self, _request: web.Request) -> web.Response:
        return web.json_response(oip.server_metadata("skerry-hub", self._version))

    async def live(self, _request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def ready(self, _request: web.Request) -> web.Response:
        """Whether models are loaded; `/readyz` asks each of them."""
        ready = bool(self._hub.cards)
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def metadata(self, request: web.Request) -> web.Response:
        return web.json_response(oip.model_metadata(self._card(request)[1]))

    async def model_ready(self, request: web.Request) -> web.Response:
        return web.json_response({"name": self._card(request)[1].name, "ready": True})

    async def infer(self, request: web.Request) -> web.Response:
        engine, card = self._card(request)
        body = await read_body(request, self._max_body_bytes)
        asked = oip.parse_infer(body, request.headers.get(oip.HEADER_LENGTH))
        _check_parameters(asked)
        oip.check_wanted(asked, [spec.name for spec in card.outputs])
        inputs = oip.require(asked, card.inputs, MAX_ROWS)[engine.input_name]
        try:
            predictions = await self._hub.infer(engine.name, inputs)
        except InferRefused as refused:
            return _refused(refused)
        return _reply(asked, engine, predictions)

    def _card(self, request: web.Request) -> tuple[EngineCard, oip.ModelCard]:
        """The engine's card and the protocol's for the model in the path; the newest version where none is named."""
        name, version = request.match_info["model"], request.match_info.get("version")
        served = sorted((c for c in self._hub.cards if c.ref.name == name), key=lambda c: c.ref.version)
        found = [c for c in served if version is None or str(c.ref.version) == version]
        if not found:
            raise OipError(404, "this hub serves no such model or version")
        return found[-1], describe(found[-1], [str(c.ref.version) for c in served])


def describe(card: EngineCard, versions: Sequence[str]) -> oip.ModelCard:
    """The protocol's card: one raw input with a free batch, and the outputs of its kind of model."""
    given = TensorSpec(card.input_name, card.input_dtype, (-1, *card.input_shape))
    outputs = answer_outputs(card.labels, card.outputs)
    return oip.ModelCard(card.ref.name, tuple(versions), "skerry_hub", (given,), outputs)


def _reply(asked: oip.InferRequest, card: EngineCard, predictions: Sequence[Prediction]) -> web.Response:
    version = str(card.ref.version)
    facts: dict[str, oip.Parameter] = {"source": "hub", "model_version": version}
    reply = oip.InferResponse(card.ref.name, version, asked.id, answer_tensors(predictions, card.labels), facts)
    encoded = oip.encode_infer(reply, asked)
    return web.Response(body=encoded.body, headers=encoded.headers())


def _check_parameters(asked: oip.InferRequest) -> None:
    for key in asked.parameters:
        if key not in _HARMLESS:
            raise OipError(400, f"unknown parameter '{oip.short(key)}': the hub takes none")


def _refused(refused: InferRefused) -> web.Response:
    status = _STATUS.get(refused.reason, 503)
    wait = {"Retry-After": str(max(1, round(refused.retry_after_s)))} if status == 503 else None
    return refusal(status, _LINE.get(refused.reason, refused.reason.value), wait)
