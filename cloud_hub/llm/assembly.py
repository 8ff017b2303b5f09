"""Puts a whole answer together of the chunks of a streamed one, for a caller that asked for it in one piece. Pure.

The hub asks for a stream where the engine counts tokens in each event, so that a caller who hangs up is billed for what
was computed. Only for requests whose answer is the same either way (`LlmRequest.streams_alike`).
Source: OpenAI API reference, chat completions and completions, as objects and as chunks.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from cloud_hub.llm.events import UpstreamBrokenError, extract_payload
from cloud_hub.llm.requests import LlmOperation

_OBJECTS = {LlmOperation.CHAT: "chat.completion", LlmOperation.COMPLETION: "text_completion"}
_APART = frozenset({"choices", "usage", "object"})


class _Choice:
    """One choice so far: texts in their parts, by name; of everything else the last that was no null."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.fields: dict[str, Any] = {}
        self.message: dict[str, Any] = {}
        self.texts: dict[str, list[str]] = {}

    def add(self, choice: Mapping[str, Any]) -> None:
        for name, value in choice.items():
            if name == "text" and isinstance(value, str):
                self.texts.setdefault(name, []).append(value)
            elif name == "delta" and isinstance(value, dict):
                self._add_delta(value)
            elif name != "index" and (value is not None or name not in self.fields):
                self.fields[name] = value

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for name, value in delta.items():
            if isinstance(value, str) and name != "role":
                self.texts.setdefault(name, []).append(value)
            elif value is not None or name not in self.message:
                self.message[name] = value

    def build(self, operation: LlmOperation) -> dict[str, Any]:
        texts = {name: "".join(parts) for name, parts in self.texts.items()}
        if operation is LlmOperation.COMPLETION:
            return {"index": self.index, "text": "", **self.fields, **texts}
        message = {"role": "assistant", "content": "", **self.message, **texts}
        return {"index": self.index, "message": message, **self.fields}


class AnswerAssembler:
    """Gathers the events of one streamed answer. `max_bytes`: of all of them together."""

    def __init__(self, operation: LlmOperation, max_bytes: int) -> None:
        self._operation = operation
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._head: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, events: bytes) -> None:
        """Add whole events. UpstreamBrokenError for what is no chunk, or more than fits."""
        self._size_bytes += len(events)
        if self._size_bytes > self._max_bytes:
            raise UpstreamBrokenError(f"the engine's answer is longer than {self._max_bytes} bytes")
        for event in events.split(b"\n\n"):
            payload = extract_payload(event + b"\n\n") if event else None
            if payload is not None and payload != b"[DONE]":
                self._add_chunk(payload)

    def _add_chunk(self, payload: bytes) -> None:
        try:
            chunk = msgspec.json.decode(payload, type=dict[str, Any])
            self._head |= {name: value for name, value in chunk.items() if name not in _APART}
            for choice in chunk.get("choices") or ():
                index = choice.get("index") or 0
                self._choices.setdefault(index, _Choice(index)).add(choice)
        except (msgspec.DecodeError, AttributeError, TypeError, RecursionError):
            raise UpstreamBrokenError("the engine sent an event that is no chunk of an answer") from None

    def build(self, usage: bytes) -> bytes:
        """Return the whole answer. `usage`: the engine's own JSON, empty where it told none."""
        choices = [self._choices[index].build(self._operation) for index in sorted(self._choices)]
        told = {"usage": msgspec.Raw(usage)} if usage else {}
        return msgspec.json.encode({**self._head, "object": _OBJECTS[self._operation], "choices": choices, **told})
