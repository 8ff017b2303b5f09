"""Writes responses of OpenAI's Responses interface for the answers of chat completions, whole and streamed. Pure.

Source: OpenAI API reference, Responses (object, streaming events).
"""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.events import EventSplitter, extract_payload
from cloud_hub.llm.responses import ResponseRequest

_CUT = frozenset({"length", "content_filter"})


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _Function = _Function()


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


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


class _CallItem:
    """One call of a function, an item of the output: what came of it so far."""

    def __init__(self, response_id: str, number: int) -> None:
        self.item_id = f"{response_id.replace('resp_', 'fc_', 1)}_{number}"
        self.call_id = f"{response_id.replace('resp_', 'call_', 1)}_{number}"  # of an engine that names none
        self.name = ""
        self.arguments: list[str] = []
        self.place = 0

    def add(self, call: _ToolCall) -> str:
        """Take in a part of the call; returns the part of its arguments."""
        self.call_id = call.id or self.call_id
        self.name += call.function.name or ""
        part = call.function.arguments or ""
        self.arguments.append(part)
        return part

    def describe(self, status: str) -> dict[str, Any]:
        fields = {"call_id": self.call_id, "name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.item_id, "type": "function_call", "status": status, **fields}


class _TextItem:
    """The text, an item of the output: what came of it so far."""

    def __init__(self, response_id: str) -> None:
        self.item_id = response_id.replace("resp_", "msg_", 1)
        self.texts: list[str] = []
        self.place = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def describe(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [_describe_text(self.text)]
        return {"id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": content}


class ResponseWriter:
    """Writes one response: whole, or as the events of a stream. `now_s`: seconds since 1970.

    Its output is the text, unless there is none beside calls of functions, and these calls.
    """

    def __init__(self, request: ResponseRequest, now_s: float | None = None) -> None:
        self._request = request
        self._created_at = int(time.time() if now_s is None else now_s)
        self._splitter = EventSplitter()
        self._text: _TextItem | None = None
        self._calls: dict[int, _CallItem] = {}
        self._finish = ""
        self._usage: _Usage | None = None
        self._number = 0
        self._began = self._ended = False

    def describe_answer(self, body: bytes) -> bytes:
        """Return the response that the body of a chat completion is. LlmError(502) if it is none."""
        answer = self._read(body)
        for choice in (answer.choices or [])[:1]:
            self._take_message(choice.message)
        self._open_text_alone()
        return msgspec.json.encode(self._describe(self._status))

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
        answer = self._read(payload)
        if answer.error is not None:
            self._ended = True
            failed = {**self._describe("failed"), "error": _describe_error(answer.error)}
            return begun + self._encode("response.failed", response=failed)
        events = [self._take_message(choice.delta) for choice in (answer.choices or [])[:1]]
        return begun + b"".join(events)

    def _read(self, body: bytes) -> _Answer:
        """Read a chunk or a whole answer."""
        try:
            answer = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError):
            raise LlmError(502, "the engine's answer is no chat completion", code="engine_failed") from None
        self._usage = answer.usage or self._usage
        for choice in (answer.choices or [])[:1]:
            self._finish = choice.finish_reason or self._finish
        return answer

    def _take_message(self, message: _Message) -> bytes:
        """Take in a message, or a part of one; returns the events that tell it."""
        events = b""
        if message.content:
            events += self._open_text()
            assert self._text is not None
            self._text.texts.append(message.content)
            place = self._locate(self._text, content_index=0)
            events += self._encode("response.output_text.delta", **place, delta=message.content, logprobs=[])
        for number, call in enumerate(message.tool_calls or []):
            events += self._take_call(number if call.index is None else call.index, call)
        return events

    def _take_call(self, index: int, call: _ToolCall) -> bytes:
        events, item = b"", self._calls.get(index)
        is_new = item is None
        if item is None:
            item = self._calls[index] = _CallItem(self._request.id, len(self._calls))
            item.place = len(self._items) - 1
        part = item.add(call)
        if is_new:
            shown = {**item.describe("in_progress"), "arguments": ""}
            events = self._encode("response.output_item.added", output_index=item.place, item=shown)
        if part:
            place = self._locate(item)
            events += self._encode("response.function_call_arguments.delta", **place, delta=part)
        return events

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish in _CUT else "completed"

    @property
    def _items(self) -> list[_TextItem | _CallItem]:
        """The output so far, in the order in which its items began."""
        items: list[_TextItem | _CallItem] = [*self._calls.values()]
        return sorted([*items, self._text] if self._text else items, key=lambda item: item.place)

    def _locate(self, item: _TextItem | _CallItem, **more: int) -> dict[str, Any]:
        return {"item_id": item.item_id, "output_index": item.place, **more}

    def _begin(self) -> bytes:
        if self._began:
            return b""
        self._began = True
        empty = self._describe("in_progress")
        return self._encode("response.created", response=empty) + self._encode("response.in_progress", response=empty)

    def _open_text(self) -> bytes:
        """Begin the text; returns the events that say so, none if it has begun."""
        if self._text is not None:
            return b""
        place = len(self._calls)
        self._text = _TextItem(self._request.id)
        self._text.place = place
        shown = self._text.describe("in_progress")
        added = self._encode("response.output_item.added", output_index=place, item=shown)
        part = _describe_text("")
        return added + self._encode(
            "response.content_part.added", **self._locate(self._text, content_index=0), part=part
        )

    def _open_text_alone(self) -> bytes:
        """Begin an empty text where there is nothing else."""
        return b"" if self._calls else self._open_text()

    def _end(self) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        begun = self._open_text_alone()
        ended = b"".join(self._end_item(item) for item in self._items)
        return begun + ended + self._encode(f"response.{self._status}", response=self._describe(self._status))

    def _end_item(self, item: _TextItem | _CallItem) -> bytes:
        shown = item.describe(self._status)
        if isinstance(item, _CallItem):
            arguments = shown["arguments"]
            events = self._encode(
                "response.function_call_arguments.done", **self._locate(item), name=item.name, arguments=arguments
            )
        else:
            place = self._locate(item, content_index=0)
            events = self._encode("response.output_text.done", **place, text=item.text, logprobs=[])
            events += self._encode("response.content_part.done", **place, part=_describe_text(item.text))
        return events + self._encode("response.output_item.done", output_index=item.place, item=shown)

    def _encode(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"

    def _describe(self, status: str) -> dict[str, Any]:
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
            "output": [item.describe(self._item_status(status)) for item in self._items],
            "parallel_tool_calls": self._request.parallel_tool_calls,
            "tool_choice": self._request.tool_choice,
            "tools": self._request.tools,
            "store": False,
            "usage": _describe_usage(self._usage) if self._usage else None,
        }

    @staticmethod
    def _item_status(status: str) -> str:
        return "incomplete" if status == "failed" else status


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
