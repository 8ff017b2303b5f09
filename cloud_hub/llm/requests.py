"""Reads a language-model request: what routing, limits and the bill need of it; all else is passed on as it came.

Rule: a field that the hub acts on is read strictly (type, range, no key twice in any object, bounded depth and bytes);
the value of every other field is kept as the bytes that the caller sent. Pure.
Sources: OpenAI API reference (chat, completions, embeddings); `max_tokens` is deprecated for `max_completion_tokens` in
chat, both are taken.
"""

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from cloud_hub.llm.errors import LlmError
from wire.http.strict_json import parse_strict_json

MAX_DEPTH = 64  # of nested objects and lists; tool schemas that were seen have about 20
MAX_CHOICES = 128
MAX_TOKENS = 2**31 - 1
MAX_MODEL_NAME = 256
_GUESS_TOKENS = 100.0  # what the first guess weighs: as much as a short prompt
BYTES_PER_TOKEN = 4.0  # of English text in common tokenizers; only a first guess, see `TokenEstimate`
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class LlmOperation(StrEnum):
    """The three operations, by the end of their path."""

    CHAT = "chat/completions"
    COMPLETION = "completions"
    EMBEDDING = "embeddings"


_PROMPT_FIELD = {
    LlmOperation.CHAT: "messages",
    LlmOperation.COMPLETION: "prompt",
    LlmOperation.EMBEDDING: "input",
}


class LlmRequest(msgspec.Struct, frozen=True):
    """A request as read.

    `max_tokens`: of each choice, 0 = not said; `choices`: answers asked for, over all prompts; `prompt_tokens`: known
    where the prompt came as token numbers, else 0; `prefix`: the bytes of tools and prompt, in the order in which chat
    templates put them. `wants_usage`: a streamed answer ends with the usage. `fields`: every field's own bytes.
    """

    operation: LlmOperation
    model: str
    stream: bool
    wants_usage: bool
    choices: int
    max_tokens: int
    prompt_tokens: int
    prefix: bytes
    fields: dict[str, msgspec.Raw]

    def encode(self, model: str) -> bytes:
        """Encode the request for an engine that serves it as `model`, a streamed one with its usage asked for."""
        fields = {**self.fields, "model": msgspec.Raw(msgspec.json.encode(model))}
        if self.stream:
            given = self.fields.get("stream_options", msgspec.Raw(b"null"))
            options = msgspec.json.decode(given, type=dict[str, msgspec.Raw] | None) or {}
            options["include_usage"] = msgspec.Raw(b"true")
            fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
        return msgspec.json.encode(fields)


def parse_request(body: bytes, operation: LlmOperation) -> LlmRequest:
    """Parse a request body. LlmError(400) names the field that is wrong, never its value."""
    if measure_depth(body) > MAX_DEPTH:
        raise LlmError(400, f"the JSON is nested more than {MAX_DEPTH} deep", code="invalid_json")
    try:
        read = parse_strict_json(body.decode())
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (ValueError, msgspec.DecodeError, RecursionError):
        said = "the body is no JSON object, or has a key twice"
        raise LlmError(400, said, code="invalid_json") from None
    return _build_request(read, {name: msgspec.Raw(bytes(raw)) for name, raw in fields.items()}, operation)


def measure_depth(body: bytes) -> int:
    """Return how deep objects and lists are nested in a text that may be JSON, without recursion."""
    deepest = depth = 0
    for bracket in _STRING.sub(b"", body).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _build_request(read: Mapping[str, Any], fields: dict[str, msgspec.Raw], operation: LlmOperation) -> LlmRequest:
    prompts, prompt_tokens = _read_prompt(read, operation)
    generates = operation is not LlmOperation.EMBEDDING
    stream = generates and _read_flag(read, "stream")
    return LlmRequest(
        operation=operation,
        model=_read_model(read),
        stream=stream,
        wants_usage=_read_stream_options(read, stream=stream),
        choices=prompts * (_read_choices(read, operation) if generates else 1),
        max_tokens=_read_max_tokens(read, operation) if generates else 0,
        prompt_tokens=prompt_tokens,
        prefix=b"".join(bytes(fields[name]) for name in ("tools", _PROMPT_FIELD[operation]) if name in fields),
        fields=fields,
    )


def _read_model(read: Mapping[str, Any]) -> str:
    model = read.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= MAX_MODEL_NAME:
        raise _wrong("model", f"a text of 1 to {MAX_MODEL_NAME} characters")
    return model


def _read_flag(read: Mapping[str, Any], name: str) -> bool:
    value = read.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(name, "true or false")
    return bool(value)


def _read_count(read: Mapping[str, Any], name: str, most: int) -> int:
    """Return a whole number from 1 to `most`; 0 where it is not said."""
    value = read.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise _wrong(name, f"a whole number from 1 to {most}")
    return value


def _read_choices(read: Mapping[str, Any], operation: LlmOperation) -> int:
    """Return how many answers the engine computes for one prompt."""
    best = _read_count(read, "best_of", MAX_CHOICES) if operation is LlmOperation.COMPLETION else 0
    return max(1, _read_count(read, "n", MAX_CHOICES), best)


def _read_max_tokens(read: Mapping[str, Any], operation: LlmOperation) -> int:
    found = _read_count(read, "max_tokens", MAX_TOKENS)
    newer = _read_count(read, "max_completion_tokens", MAX_TOKENS) if operation is LlmOperation.CHAT else 0
    return newer or found


def _read_stream_options(read: Mapping[str, Any], *, stream: bool) -> bool:
    """Return whether the caller wants the usage of a stream."""
    options = read.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not stream:
        raise _wrong("stream_options", "an object, and only with stream = true")
    return _read_flag(options, "include_usage")


def _read_prompt(read: Mapping[str, Any], operation: LlmOperation) -> tuple[int, int]:
    """Return the number of prompts, and of their tokens where they came as token numbers, else 0."""
    name = _PROMPT_FIELD[operation]
    value = read.get(name)
    if operation is LlmOperation.CHAT:
        if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
            raise _wrong(name, "a list of at least one message")
        return 1, 0
    if isinstance(value, str) and value:
        return 1, 0
    prompts = [value] if _are_tokens(value) else value
    if not isinstance(prompts, list) or not prompts:
        raise _wrong(name, "a text, a list of texts, or token numbers")
    if all(isinstance(each, str) and each for each in prompts):
        return len(prompts), 0
    if not all(map(_are_tokens, prompts)):
        raise _wrong(name, "a text, a list of texts, or token numbers")
    return len(prompts), sum(map(len, prompts))


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int and each >= 0 for each in value)


def _wrong(name: str, rule: str) -> LlmError:
    return LlmError(400, f"'{name}' is {rule}", param=name, code="invalid_value")


class TokenEstimate:
    """Estimates a prompt's tokens from its bytes; learns the bytes per token of a model from its answers."""

    def __init__(self) -> None:
        self._bytes = BYTES_PER_TOKEN * _GUESS_TOKENS
        self._tokens = _GUESS_TOKENS

    def estimate(self, request: LlmRequest) -> int:
        """Return the estimated number of prompt tokens, at least 1."""
        return request.prompt_tokens or max(1, math.ceil(self.convert_bytes(len(request.prefix))))

    def convert_bytes(self, size_bytes: int) -> float:
        """Return how many tokens so many bytes of prompts are, by what was learnt."""
        return size_bytes * self._tokens / self._bytes

    def learn(self, request: LlmRequest, prompt_tokens: int) -> None:
        """Learn from an answered request; what was learnt long ago fades."""
        if request.prompt_tokens or not prompt_tokens:
            return
        fade = 0.99
        self._bytes = fade * self._bytes + len(request.prefix)
        self._tokens = fade * self._tokens + prompt_tokens
