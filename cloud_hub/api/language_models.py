"""Routes for language models in the form of OpenAI's interface: chat, completions, embeddings, models.

The unmodified `openai` client is served. Answers are handed on as the bytes that the engine sent.
Rule: whatever is refused on these routes is told in OpenAI's form, by the checks before the handlers too.
Source: OpenAI API reference.
"""

import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from cloud_hub.api.auth import caller_of
from cloud_hub.api.oip import child_traceparent, extract_span
from cloud_hub.api.routing import Route, RouteAccess, answer_json
from cloud_hub.llm.errors import LlmError, encode_error
from cloud_hub.llm.model import LanguageModel, LlmCaller
from cloud_hub.llm.relay import LlmAnswer
from cloud_hub.llm.requests import MAX_CHOICES, MAX_MODEL_NAME, MAX_TOKENS, LlmOperation
from cloud_hub.llm.response_writer import ResponseWriter
from cloud_hub.llm.responses import parse_response_request
from cloud_hub.llm.service import LanguageModels
from cloud_hub.registry.access import Scope
from cloud_hub.serving.telemetry import InferenceObserver
from wire.http.guards import read_body
from wire.http.openapi import Schema, describe_json_body

PATHS = frozenset(
    {"/v1/models", "/v1/models/{model}", "/v1/responses", *(f"/v1/{operation}" for operation in LlmOperation)}
)
STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # a proxy before the hub must not collect the events
}

_COUNT: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_TOKENS}
_MODEL: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_MODEL_NAME}
_FLAG: Schema = {"type": ["boolean", "null"]}
_TEXT: Schema = {"type": "string", "minLength": 1}
_TOKENS: Schema = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_PROMPT: Schema = {
    "anyOf": [
        _TEXT,
        _TOKENS,
        {"type": "array", "minItems": 1, "items": _TEXT},
        {"type": "array", "minItems": 1, "items": _TOKENS},
    ]
}
_MESSAGES: Schema = {"type": "array", "minItems": 1, "items": {"type": "object"}}
_CHOICES: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_CHOICES}
_GENERATION = {"stream": _FLAG, "max_tokens": _COUNT, "n": _CHOICES}


def _describe_body(required: str, properties: dict[str, Schema]) -> Schema:
    """Return a request body. Fields that are not named are the engine's."""
    named = {"model": _MODEL, **properties}
    return describe_json_body({"type": "object", "required": ["model", required], "properties": named})


_BODIES = {
    LlmOperation.CHAT: _describe_body(
        "messages", {"messages": _MESSAGES, "max_completion_tokens": _COUNT, **_GENERATION}
    ),
    LlmOperation.COMPLETION: _describe_body("prompt", {"prompt": _PROMPT, "best_of": _CHOICES, **_GENERATION}),
    LlmOperation.EMBEDDING: _describe_body("input", {"input": _PROMPT}),
}
_RESPONSE_TEXT: Schema = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"enum": ["input_text", "output_text"]}, "text": {"type": "string"}},
}
_RESPONSE_PICTURE: Schema = {
    "type": "object",
    "required": ["type", "image_url"],
    "properties": {"type": {"const": "input_image"}, "image_url": _TEXT, "detail": {"type": ["string", "null"]}},
}
_RESPONSE_PARTS: Schema = {"type": "array", "items": {"anyOf": [_RESPONSE_TEXT, _RESPONSE_PICTURE]}}
_RESPONSE_CONTENT: Schema = {"anyOf": [{"type": "string"}, _RESPONSE_PARTS]}
_RESPONSE_MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "type": {"const": "message"},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": _RESPONSE_CONTENT,
    },
}
_FUNCTION_CALL: Schema = {
    "type": "object",
    "required": ["type", "call_id", "name"],
    "properties": {
        "type": {"const": "function_call"},
        "call_id": _TEXT,
        "name": _TEXT,
        "arguments": {"type": "string"},
    },
}
_FUNCTION_OUTPUT: Schema = {
    "type": "object",
    "required": ["type", "call_id", "output"],
    "properties": {"type": {"const": "function_call_output"}, "call_id": _TEXT, "output": _RESPONSE_CONTENT},
}
_RESPONSE_ITEM: Schema = {"anyOf": [_RESPONSE_MESSAGE, _FUNCTION_CALL, _FUNCTION_OUTPUT]}
_RESPONSE_TOOL: Schema = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {"type": {"const": "function"}, "name": _TEXT},
}
_RESPONSE = _describe_body(
    "input",
    {
        "input": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _RESPONSE_ITEM}]},
        "instructions": {"type": ["string", "null"]},
        "max_output_tokens": _COUNT,
        "stream": _FLAG,
        "tools": {"type": ["array", "null"], "items": _RESPONSE_TOOL},
    },
)
_SUMMARIES = {
    LlmOperation.CHAT: "Answer a chat, as a stream of events if `stream` is set",
    LlmOperation.COMPLETION: "Continue a text, as a stream of events if `stream` is set",
    LlmOperation.EMBEDDING: "Embed texts",
}


class LanguageModelRoutes:
    """Routes of the language models. `body_s`: seconds that a request's body may take to arrive."""

    def __init__(self, models: LanguageModels, observer: InferenceObserver, body_s: float) -> None:
        self._models = models
        self._observer = observer
        self._body_s = body_s

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        here = RouteAccess.LOCAL_OR_KEY
        shared: dict[str, Any] = {"tag": "language", "refusal": "LlmError", "ignores_strange_keys": True}
        handlers = {
            LlmOperation.CHAT: self.answer_chat,
            LlmOperation.COMPLETION: self.complete_text,
            LlmOperation.EMBEDDING: self.embed_texts,
        }
        listed = "The language models that this caller may use"
        return [
            Route("GET", "/v1/models", self.list_models, listed, here, scope=Scope.INFER, **shared),
            Route(
                "GET", "/v1/models/{model}", self.show_model, "One language model", here, scope=Scope.INFER, **shared
            ),
            Route(
                "POST",
                "/v1/responses",
                self.respond,
                "Answer by OpenAI's Responses interface, as a stream of events if `stream` is set",
                here,
                scope=Scope.INFER,
                takes=_RESPONSE,
                **shared,
            ),
            *(
                Route(
                    "POST",
                    f"/v1/{operation}",
                    handler,
                    _SUMMARIES[operation],
                    here,
                    scope=Scope.INFER,
                    takes=_BODIES[operation],
                    **shared,
                )
                for operation, handler in handlers.items()
            ),
        ]

    async def list_models(self, request: web.Request) -> web.Response:
        """Answer with the models; `ready` is ours and not OpenAI's."""
        found = self._models.list_models(caller_of(request).tenant)
        return answer_json({"object": "list", "data": [_describe_model(model) for model in found]})

    async def show_model(self, request: web.Request) -> web.Response:
        """Answer with one model: 200; 404 for one that this caller may not use too."""
        found = self._models.list_models(caller_of(request).tenant)
        named = [model for model in found if model.settings.name == request.match_info["model"]]
        if not named:
            missing = LlmError(404, "this hub serves no such language model", code="model_not_found", param="model")
            return answer_error(missing)
        return answer_json(_describe_model(named[0]))

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Answer by the Responses interface."""
        return await self._answer(request, LlmOperation.CHAT, responds=True)

    async def answer_chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat."""
        return await self._answer(request, LlmOperation.CHAT)

    async def complete_text(self, request: web.Request) -> web.StreamResponse:
        """Continue a text."""
        return await self._answer(request, LlmOperation.COMPLETION)

    async def embed_texts(self, request: web.Request) -> web.StreamResponse:
        """Embed texts."""
        return await self._answer(request, LlmOperation.EMBEDDING)

    async def _answer(
        self, request: web.Request, operation: LlmOperation, *, responds: bool = False
    ) -> web.StreamResponse:
        trace = child_traceparent(request.headers.get("traceparent", ""))
        began = time.time()
        response = await (
            self._send_response(request, trace) if responds else self._send_answer(request, operation, trace)
        )
        if trace:
            given = request.headers["traceparent"], extract_span(trace)
            self._observer.on_web_reply(*given, (began, time.time()), response.status)
        return response

    async def _send_answer(self, request: web.Request, operation: LlmOperation, trace: str) -> web.StreamResponse:
        caller = caller_of(request)
        body = await read_body(request, self._models.max_body_bytes, self._body_s)
        asker = LlmCaller(caller.tenant, caller.name, trace)
        try:
            async with self._models.answer(body, operation, asker) as answer:
                if answer.stream:
                    return await _send_stream(request, answer)
                return web.Response(status=answer.status, body=answer.body, content_type="application/json")
        except LlmError as error:
            return answer_error(error)

    async def _send_response(self, request: web.Request, trace: str) -> web.StreamResponse:
        caller = caller_of(request)
        body = await read_body(request, self._models.max_body_bytes, self._body_s)
        try:
            asked = parse_response_request(body, f"resp_{secrets.token_hex(16)}")
            writer = ResponseWriter(asked)
            asker = LlmCaller(caller.tenant, caller.name, trace)
            async with self._models.answer(asked.chat, LlmOperation.CHAT, asker) as answer:
                if answer.stream:
                    return await _send_stream(request, answer, writer.translate)
                told = answer.body if answer.status != 200 else writer.describe_answer(answer.body)
                return web.Response(status=answer.status, body=told, content_type="application/json")
        except LlmError as error:
            return answer_error(error)


def _pass_on(events: bytes) -> bytes:
    return events


async def _send_stream(
    request: web.Request, answer: LlmAnswer, translate: Callable[[bytes], bytes] = _pass_on
) -> web.StreamResponse:
    """Send a stream's events as they come. A caller that does not read them in time is cut off."""
    response = web.StreamResponse(headers=STREAM_HEADERS)
    await response.prepare(request)
    try:
        await answer.send(lambda events: response.write(translate(events)))
        await response.write_eof()
    except (TimeoutError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()
    return response


def answer_error(error: LlmError) -> web.Response:
    """Return a refusal as a response. A draining hub also closes the connection."""
    response = web.Response(
        status=error.status, body=error.encode(), content_type="application/json", headers=error.headers
    )
    if error.code == "draining":
        response.force_close()
    return response


def error_form_middleware() -> Middleware:
    """Return the middleware that tells the refusals of other checks in OpenAI's form, on these routes alone."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        resource = request.match_info.route.resource
        if (
            resource is None
            or resource.canonical not in PATHS
            or response.status < 400
            or not isinstance(response, web.Response)
        ):
            return response
        line = _read_line(response.body)
        if line:
            response.body = encode_error(response.status, line)
        return response

    return middleware


class _Refusal(msgspec.Struct):
    error: str = ""


def _read_line(body: object) -> str:
    """Return the hub's own one-line refusal, "" if the body is something else."""
    try:
        return msgspec.json.decode(body, type=_Refusal).error if isinstance(body, bytes) else ""
    except (msgspec.DecodeError, RecursionError):
        return ""


def _describe_model(model: LanguageModel) -> dict[str, object]:
    return {
        "id": model.settings.name,
        "object": "model",
        "created": 0,
        "owned_by": "skerry",
        "ready": model.ready,
        "max_model_len": model.context_tokens or None,
    }
