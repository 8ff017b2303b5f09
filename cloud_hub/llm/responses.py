"""OpenAI's Responses interface over chat completions: a request as the chat that it is, its answer back. Pure.

Rule: what a chat completion cannot do, and whatever rests on something kept between two requests, is refused by the
name of its field: a hub keeps no responses.
Source: OpenAI API reference, Responses (create, object, streaming events).
"""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.events import EventSplitter, extract_payload
from wire.http.json_scan import JsonRefusedError, is_utf8, scan_json

# Fields that mean the same in a chat, by their names there.
_ALIKE = {
    "model": "model",
    "stream": "stream",
    "temperature": "temperature",
    "top_p": "top_p",
    "user": "user",
    "metadata": "metadata",
    "max_output_tokens": "max_completion_tokens",
    "seed": "seed",
}
# What may stand there with a value that asks for nothing.
_EMPTY: dict[str, tuple[object, ...]] = {
    "store": (False,),
    "background": (False,),
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True, False),
    "include": ([],),
    "truncation": ("disabled",),
    "service_tier": ("auto", "default"),
    "stream_options": ({}, {"include_obfuscation": False}),
}
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_CUT = frozenset({"length", "content_filter"})


class ResponseRequest(msgspec.Struct, frozen=True):
    """A request as read. `chat`: the chat completion that it is; `id`: of the response."""

    id: str
    model: str
    stream: bool
    chat: bytes
    instructions: str | None = None


class _Item(msgspec.Struct, frozen=True):
    type: str = "message"
    role: str = ""
    content: msgspec.Raw = msgspec.Raw()


def parse_response_request(body: bytes, response_id: str) -> ResponseRequest:
    """Parse the body of a request. LlmError(400) names the field that is wrong, or that cannot be had here."""
    fields = _decode_fields(body)
    for name, raw in fields.items():
        if name not in {"input", "instructions", "text", *_ALIKE}:
            _require_empty(name, raw)
    chat: dict[str, Any] = {_ALIKE[name]: raw for name, raw in fields.items() if name in _ALIKE and raw != b"null"}
    instructions = _decode(fields.get("instructions"), str | None, "instructions")
    messages = _read_input(fields.get("input"))
    chat["messages"] = [*([{"role": "system", "content": instructions}] if instructions else []), *messages]
    if (response_format := _read_format(fields.get("text"))) is not None:
        chat["response_format"] = response_format
    stream = bool(_decode(fields.get("stream"), bool | None, "stream"))
    if stream:
        chat["stream_options"] = {"include_usage": True}
    model = _decode(fields.get("model"), str, "model")
    return ResponseRequest(response_id, model, stream, msgspec.json.encode(chat), instructions)


def _decode_fields(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        if is_utf8(body):
            for _ in scan_json(body):
                pass
            return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except JsonRefusedError as error:
        raise LlmError(400, str(error), code="invalid_json") from None
    except (msgspec.DecodeError, RecursionError):
        pass
    raise LlmError(400, "the body is no JSON object", code="invalid_json")


def _require_empty(name: str, raw: msgspec.Raw) -> None:
    """LlmError(400) unless a field asks for nothing."""
    value = msgspec.json.decode(raw) if len(raw) <= 1024 else raw
    if value is not None and value not in _EMPTY.get(name, ()):
        said = f"'{name}' cannot be had here: ask by chat completions, and keep what you need between requests"
        raise LlmError(400, said, param=name[:64], code="unsupported_parameter")


def _decode(raw: msgspec.Raw | None, kind: Any, name: str) -> Any:
    try:
        return msgspec.json.decode(raw if raw is not None else b"null", type=kind)
    except (msgspec.DecodeError, RecursionError):
        raise LlmError(400, f"'{name}' is of a wrong type", param=name, code="invalid_value") from None


def _read_input(raw: msgspec.Raw | None) -> list[dict[str, Any]]:
    if raw is not None and bytes(raw).startswith(b'"'):
        return [{"role": "user", "content": msgspec.Raw(bytes(raw))}]
    items: list[_Item] = _decode(raw, list[_Item], "input")
    if not items:
        raise LlmError(400, "'input' is a text, or a list of at least one message", param="input", code="invalid_value")
    return [_read_item(item) for item in items]


def _read_item(item: _Item) -> dict[str, Any]:
    if item.type != "message" or item.role not in _ROLES:
        said = "'input' holds messages of user, assistant, system or developer, and nothing else"
        raise LlmError(400, said, param="input", code="unsupported_parameter")
    if bytes(item.content).startswith(b'"'):
        return {"role": _ROLES[item.role], "content": item.content}
    parts = [_read_part(part) for part in _decode(item.content, list[dict[str, Any]], "input")]
    if all(part["type"] == "text" for part in parts):
        return {"role": _ROLES[item.role], "content": "\n".join(part["text"] for part in parts)}
    return {"role": _ROLES[item.role], "content": parts}


def _read_part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind, text, url, detail = (part.get(name) for name in ("type", "text", "image_url", "detail"))
    if kind in ("input_text", "output_text") and isinstance(text, str):
        return {"type": "text", "text": text}
    if kind == "input_image" and isinstance(url, str) and url and isinstance(detail, str | None):
        return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
    said = "'input' holds texts and pictures with an 'image_url', and nothing else"
    raise LlmError(400, said, param="input", code="unsupported_parameter")


def _read_format(raw: msgspec.Raw | None) -> dict[str, Any] | None:
    """Return the `response_format` of a chat, None for plain text."""
    text = _decode(raw, dict[str, Any] | None, "text") or {}
    found = text.get("format") or {"type": "text"}
    kind = found.get("type") if isinstance(found, dict) else None
    if kind == "json_schema":
        return {"type": kind, "json_schema": {name: value for name, value in found.items() if name != "type"}}
    if kind == "json_object":
        return {"type": kind}
    if kind != "text":
        raise LlmError(400, "'text' has a format of text, json_object or json_schema", param="text")
    return None


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message = _Message()
    delta: _Message = _Message()
    finish_reason: str | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | float = 0
    completion_tokens: int | float | None = 0
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_decoder = msgspec.json.Decoder(_Answer)


class ResponseWriter:
    """Writes one response: whole, or as the events of a stream. `now_s`: seconds since 1970."""

    def __init__(self, request: ResponseRequest, now_s: float | None = None) -> None:
        self._request = request
        self._created_at = int(time.time() if now_s is None else now_s)
        self._splitter = EventSplitter()
        self._texts: list[str] = []
        self._finish = ""
        self._usage: _Usage | None = None
        self._number = 0
        self._began = self._ended = False

    def describe_answer(self, body: bytes) -> bytes:
        """Return the response that the body of a chat completion is. LlmError(502) if it is none."""
        self._read(body)
        return msgspec.json.encode(self._describe(self._status, "".join(self._texts)))

    def translate(self, events: bytes) -> bytes:
        """Return the events of a response for events of a chat completion."""
        found = [self._translate_event(event) for event in self._splitter.split(events)]
        return b"".join(found)

    def _translate_event(self, event: bytes) -> bytes:
        payload = extract_payload(event)
        if payload is None:
            return event  # a comment
        begun = self._begin()
        if payload == b"[DONE]":
            return begun + self._end()
        before = len(self._texts)
        error = self._read(payload)
        if error is not None:
            self._ended = True
            failed = {**self._describe("failed", "".join(self._texts)), "error": _describe_error(error)}
            return begun + self._encode("response.failed", response=failed)
        deltas = [
            self._encode("response.output_text.delta", **self._place, delta=text, logprobs=[])
            for text in self._texts[before:]
        ]
        return begun + b"".join(deltas)

    def _read(self, body: bytes) -> _Error | None:
        """Take in a chunk or a whole answer; returns the error that it is."""
        try:
            answer = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError):
            raise LlmError(502, "the engine's answer is no chat completion", code="engine_failed") from None
        self._usage = answer.usage or self._usage
        for choice in (answer.choices or [])[:1]:
            self._finish = choice.finish_reason or self._finish
            text = choice.message.content or choice.delta.content
            if text:
                self._texts.append(text)
        return answer.error

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish in _CUT else "completed"

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    @property
    def _item_id(self) -> str:
        return self._request.id.replace("resp_", "msg_", 1)

    def _begin(self) -> bytes:
        if self._began:
            return b""
        self._began = True
        empty = self._describe("in_progress", None)
        item = {**self._describe_item("", "in_progress"), "content": []}
        return b"".join(
            (
                self._encode("response.created", response=empty),
                self._encode("response.in_progress", response=empty),
                self._encode("response.output_item.added", output_index=0, item=item),
                self._encode("response.content_part.added", **self._place, part=_describe_text("")),
            )
        )

    def _end(self) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        text = "".join(self._texts)
        item = self._describe_item(text, self._status)
        return b"".join(
            (
                self._encode("response.output_text.done", **self._place, text=text, logprobs=[]),
                self._encode("response.content_part.done", **self._place, part=_describe_text(text)),
                self._encode("response.output_item.done", output_index=0, item=item),
                self._encode(f"response.{self._status}", response=self._describe(self._status, text)),
            )
        )

    def _encode(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"

    def _describe_item(self, text: str, status: str) -> dict[str, Any]:
        content = [_describe_text(text)]
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _describe(self, status: str, text: str | None) -> dict[str, Any]:
        cut = {"length": "max_output_tokens"}.get(self._finish, self._finish)
        return {
            "id": self._request.id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": cut} if status == "incomplete" else None,
            "instructions": self._request.instructions,
            "model": self._request.model,
            "output": [] if text is None else [self._describe_item(text, status)],
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "store": False,
            "usage": _describe_usage(self._usage) if self._usage else None,
        }


def _describe_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _describe_error(error: _Error) -> dict[str, Any]:
    return {"code": "server_error", "message": error.message}


def _describe_usage(usage: _Usage) -> dict[str, Any]:
    given, made = int(usage.prompt_tokens), int(usage.completion_tokens or 0)
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": _read_detail(usage.prompt_tokens_details, "cached_tokens")},
        "output_tokens": made,
        "output_tokens_details": {
            "reasoning_tokens": _read_detail(usage.completion_tokens_details, "reasoning_tokens")
        },
        "total_tokens": given + made,
    }


def _read_detail(details: Mapping[str, Any] | None, name: str) -> int:
    found = (details or {}).get(name)
    return int(found) if isinstance(found, int | float) else 0
