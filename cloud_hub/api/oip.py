"""Inference routes of the web API: Open Inference Protocol v2 for every model of the hub.

A request's tensors are raw samples that go through the whole model. The protocol's JSON and binary encoding is
`wire.http.oip`'s; here a request becomes inputs and options, and predictions become tensors.

Rule: a parameter that is not known or not of its type is refused by name; a damaged traceparent counts as none (W3C
Trace Context, section 4.3).
Sources: Open Inference Protocol v2; W3C Trace Context; the Idempotency-Key header draft of the IETF HTTPAPI group.
"""

import math
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from cloud_hub.api.auth import caller_of
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.routing import Route, RouteAccess, answer_json
from cloud_hub.core.web_requests import InferOptions, InferRefusedError, StillRunningError
from cloud_hub.engine.base import ModelCard
from cloud_hub.registry.access import Caller, Scope
from cloud_hub.serving.infer_answers import encode_answer, read_samples
from models.bundle.manifest import is_text_input
from models.runtime.text import describe_input
from wire.http import oip
from wire.http.answer_tensors import list_answer_outputs
from wire.http.guards import error_response, read_body
from wire.http.oip import (
    OipError,
    OipParameter,
    shorten_name,
)
from wire.http.openapi import INFER_REPLY, MODEL_METADATA, SERVER_METADATA, Schema, describe_infer_body
from wire.process.tracing import parse_traceparent
from wire.protocol.messages import RefusalReason

MAX_TIMEOUT_US = 3_600_000_000
PARAMETERS = ("priority", "timeout")
NO_OPTIONS = InferOptions()
_KEY = re.compile(r'"?([\x21\x23-\x7e]{1,128})"?')  # RFC 9651 string, or the same without its quotes


def parse_options(
    request: web.Request, parameters: Mapping[str, OipParameter], caller: Caller, body: bytes
) -> InferOptions:
    """Return a request's options from its headers and parameters. OipError(400) names what is wrong.

    `parameters`: of the protocol (priority, timeout in microseconds, ...); `caller` gives tenant and flow for fair
    queueing; `body` is hashed for the idempotency check, together with the path.
    """
    oip.refuse_sequences(parameters)
    for key in parameters:
        if key not in (*PARAMETERS, *oip.SEQUENCE_PARAMETERS):
            raise OipError(400, f"unknown parameter '{shorten_name(key)}': the hub takes {' and '.join(PARAMETERS)}")
    key = read_idempotency_key(request)
    fingerprint = sha256(request.path.encode(errors="surrogateescape") + b"\n" + body).digest() if key else b""
    return InferOptions(
        tenant=caller.tenant,
        priority=_whole_number(parameters, "priority", 2**32 - 1),
        timeout_s=_whole_number(parameters, "timeout", MAX_TIMEOUT_US) / 1e6,
        trace=child_traceparent(request.headers.get("traceparent", "")),
        idempotency=key,
        fingerprint=fingerprint,
        flow=caller.name,
        request_bytes=len(body),
    )


def child_traceparent(traceparent: str) -> str:
    """Return the traceparent of the hub's own span below the caller's; "" if there is none, or none to be recorded.

    The new span id is random, the flags say sampled (W3C Trace Context, section 3.2).
    """
    given = parse_traceparent(traceparent)
    return f"00-{given.trace}-{secrets.token_hex(8)}-01" if given else ""


def extract_span(traceparent: str) -> str:
    """Return the span id in a traceparent made here."""
    return traceparent[36:52]


def read_idempotency_key(request: web.Request) -> str:
    """Return the idempotency key, "" where none was sent. OipError(400) if it is malformed."""
    found = request.headers.getall("Idempotency-Key", [])
    if not found:
        return ""
    match = _KEY.fullmatch(found[0].strip()) if len(found) == 1 else None
    if match is None:
        raise OipError(400, "Idempotency-Key is one string of 1 to 128 visible ASCII characters")
    return match[1]


def _whole_number(parameters: Mapping[str, OipParameter], name: str, most: int) -> int:
    """Return an integer parameter between 0 and `most`, 0 if absent. OipError(400) otherwise."""
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise OipError(400, f"parameter '{name}' is a whole number from 0 to {most}")
    return value


INFER_BODY = describe_infer_body("priority (1 = highest, 0 = default), timeout (microseconds), binary_data_output")
EXTENSIONS = ("model_repository", "statistics", "schedule_policy", "parameters")
_MODEL = "/v2/models/{model}"
_VERSIONED = _MODEL + "/versions/{version}"
_STATUS = {
    RefusalReason.RATE: 429,
    RefusalReason.BUSY: 503,
    RefusalReason.DRAINING: 503,
    RefusalReason.EXPIRED: 504,
    RefusalReason.MODEL_GONE: 404,
    RefusalReason.SCHEMA: 400,
    RefusalReason.CONFLICT: 422,
    RefusalReason.ENGINE: 500,
}
REFUSAL_MESSAGES = {
    RefusalReason.RATE: "this tenant asks for more than its share, ask again later",
    RefusalReason.BUSY: "the hub is busy, ask again",
    RefusalReason.DRAINING: "the hub is stopping, ask again",
    RefusalReason.EXPIRED: "the request's own timeout passed before it was computed",
    RefusalReason.MODEL_GONE: "the model is not served any more",
    RefusalReason.SCHEMA: "the input does not fit the model",
    RefusalReason.CONFLICT: "this Idempotency-Key came with another payload before",
    RefusalReason.ENGINE: "the model failed on this input",
}


class OipRoutes:
    """Inference routes over the models the hub serves now.

    `version`: of the server, as reported; `body`: the largest request body in bytes, and the seconds it may take to
    arrive. Paths without a version mean the newest one that is loaded.
    """

    def __init__(self, context: ApiContext, version: str, body: tuple[int, float]) -> None:
        self._inference = context.inference
        self._observer = context.observer
        self._version = version
        self._body = body

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        fixed = [
            _read_route("/v2", self.show_server, "The server and its extensions", SERVER_METADATA),
            _read_route("/v2/health/live", self.live, "Whether the server lives"),
            _read_route("/v2/health/ready", self.ready, "Whether models are loaded"),
        ]
        return [*fixed, *self._model_routes(_MODEL), *self._model_routes(_VERSIONED)]

    def _model_routes(self, base: str) -> list[Route]:
        """Return the routes of one model path, with or without a version."""
        infer: dict[str, Any] = {"takes": INFER_BODY, "gives": INFER_REPLY, "tag": "inference"}
        return [
            _read_route(base, self.show_model, "What a model takes and gives", MODEL_METADATA),
            _read_route(base + "/ready", self.model_ready, "Whether a model is ready"),
            Route("POST", base + "/infer", self.infer, "Infer", RouteAccess.LOCAL_OR_KEY, scope=Scope.INFER, **infer),
        ]

    async def show_server(self, _request: web.Request) -> web.Response:
        """Answer with the server's metadata and extensions."""
        return answer_json(oip.build_server_metadata("skerry-hub", self._version, EXTENSIONS))

    async def live(self, _request: web.Request) -> web.Response:
        """Answer 200: the server lives."""
        return answer_json({"live": True})

    async def ready(self, _request: web.Request) -> web.Response:
        """Answer whether models are loaded; `/readyz` asks each of them."""
        ready = bool(self._inference.cards)
        return answer_json({"ready": ready}, 200 if ready else 503)

    async def show_model(self, request: web.Request) -> web.Response:
        """Answer with a model's inputs and outputs."""
        return answer_json(oip.build_model_metadata(self._find_card(request)[1]))

    async def model_ready(self, request: web.Request) -> web.Response:
        """Answer whether a model is ready; 404 if it is not served, or not loaded."""
        card, described = self._find_card(request)
        if card not in self._inference.cards:
            raise OipError(404, "it is not loaded: a request for it loads it")
        return answer_json({"name": described.name, "ready": True})

    async def infer(self, request: web.Request) -> web.Response:
        """Compute one request: 200 with tensors, or a status by the reason of the refusal.

        400 schema, 404 no such model, 409 or 422 idempotency key, 429 rate, 503 busy or stopping, 504 the request's own
        timeout.
        """
        engine = self._find_card(request)[0]
        began = time.time()
        wish = NO_OPTIONS
        try:
            self._inference.check_overload(caller_of(request).tenant)
            body = await read_body(request, *self._body)
            asked = oip.parse_infer_request(body, request.headers.get(oip.HEADER_LENGTH))
            wish = parse_options(request, asked.parameters, caller_of(request), body)
            inputs = read_samples(asked, engine)
            predictions = await self._inference.infer(engine.name, inputs, wish)
            encoded = encode_answer(asked, engine, predictions)
            reply = web.Response(body=encoded.body, headers=encoded.headers())
        except InferRefusedError as refused:
            reply = answer_refused(refused)
        if wish.trace:
            given = request.headers["traceparent"], extract_span(wish.trace)
            self._observer.on_web_reply(*given, (began, time.time()), reply.status)
        return reply

    def _find_card(self, request: web.Request) -> tuple[ModelCard, oip.ModelMetadata]:
        """Return the engine's and the protocol's card of the model in the path, the newest version by default.

        One that made room for others counts where no loaded one is meant: a request loads it.
        """
        name, version = request.match_info["model"], request.match_info.get("version")
        served = sorted((c for c in self._inference.cards if c.ref.name == name), key=lambda c: c.ref.version)
        found = [c for c in served if version is None or str(c.ref.version) == version]
        card = found[-1] if found else self._inference.card_for(name if version is None else f"{name}@{version}")
        if card is None or card.ref.name != name:
            raise OipError(404, "this hub serves no such model or version")
        return card, describe_model(card, [str(c.ref.version) for c in served])


def describe_model(card: ModelCard, versions: Sequence[str]) -> oip.ModelMetadata:
    """Return the protocol's model card: one raw input with a free batch dimension, and the model's outputs."""
    spec = card.input
    outputs = list_answer_outputs(card.labels, card.outputs, text=is_text_input(spec))
    return oip.ModelMetadata(card.ref.name, tuple(versions), "skerry_hub", (describe_input(spec),), outputs)


def answer_refused(refused: InferRefusedError) -> web.Response:
    """Return a refusal as a response: status, one line, and how long to wait where asking again helps.

    `Retry-After` is in whole seconds, at least 1. A draining hub also closes the connection.
    """
    if isinstance(refused, StillRunningError):
        return error_response(409, "the same Idempotency-Key is being computed, ask again", {"Retry-After": "1"})
    status = _STATUS.get(refused.reason, 503)
    wait = {"Retry-After": str(max(1, math.ceil(refused.retry_after_s)))} if status in (429, 503, 504) else None
    response = error_response(status, REFUSAL_MESSAGES.get(refused.reason, refused.reason.value), wait)
    if refused.reason is RefusalReason.DRAINING:
        response.force_close()  # a retry then connects anew, to another hub or none
    return response


def _read_route(path: str, handler: Handler, says: str, gives: Schema | None = None) -> Route:
    """Return a GET route that needs the scope `infer`, except on this machine."""
    return Route("GET", path, handler, says, RouteAccess.LOCAL_OR_KEY, scope=Scope.INFER, gives=gives, tag="inference")
