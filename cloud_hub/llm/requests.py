"""Reads a language-model request: what routing, limits and the bill need of it; all else is passed on as it came.

Rule: a field that the hub acts on is read strictly (type, range, no key twice in any object, bounded depth and bytes);
the value of every other field is kept as the bytes that the caller sent. Pure.
Sources: OpenAI API reference (chat, completions, embeddings); `max_tokens` is deprecated for `max_completion_tokens` in
chat, both are taken.
"""

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property

import msgspec

from cloud_hub.llm.errors import LlmError
from wire.http.json_scan import JsonRefusedError, is_utf8, scan_json
from wire.http.strict_json import parse_strict_json

MAX_CHOICES = 128
MAX_TOKENS = 2**31 - 1
MAX_MODEL_NAME = 256
MAX_OPTION_BYTES = 4096  # of a field that the hub acts on, the prompt aside
# Keys under which a chat's message holds a picture, a recording or a file, as data or by address (content parts).
_MEDIA_KEYS = frozenset({b"url", b"image_url", b"data", b"file_data", b"file_id", b"video_url", b"audio_url"})
_BLANK = rb"[ \t\r\n]*+"
_NUMBERS = rb"\[" + _BLANK + rb"\d++(?:" + _BLANK + rb"," + _BLANK + rb"\d++)*+" + _BLANK + rb"\]"
_TEXT = rb'"(?:[^"\\]++|\\.)++"'


def _compile_list(item: bytes) -> re.Pattern[bytes]:
    """Return the pattern of a list of at least one such item. Every repeat is possessive: no byte is read twice."""
    pattern = rb"\[" + _BLANK + item + rb"(?:" + _BLANK + rb"," + _BLANK + item + rb")*+" + _BLANK + rb"\]"
    return re.compile(pattern, re.DOTALL)


# Fields of a request whose answer is the same in one piece and in parts. Tools are not among them, since engines parse
# their calls in two ways, nor log probabilities and whatever an engine has beside these.
_STREAMED_ALIKE = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "stream",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "stop",
        "seed",
        "user",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "ignore_eos",
        "min_tokens",
        "response_format",
        "metadata",
    }
)
_TEXT_ONLY = re.compile(_TEXT, re.DOTALL)
_NUMBERS_ONLY = re.compile(_NUMBERS)
_TEXTS_ONLY = _compile_list(_TEXT)
_LISTS_ONLY = _compile_list(_NUMBERS)


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


class PromptSize(msgspec.Struct, frozen=True):
    """How much a prompt is: `prompts` in it; `tokens`, known where it came as token numbers, else 0; bytes of its text.

    `media`: pictures, recordings and files in it, whose bytes are no text.
    """

    prompts: int = 1
    tokens: int = 0
    text_bytes: int = 0
    media: int = 0


class LlmRequest(msgspec.Struct, frozen=True, dict=True):
    """A request as read.

    `max_tokens`: of each choice, 0 = not said; `choices`: answers computed, over all prompts, `shown` of them are
    returned. `wants_usage`: a streamed answer ends with the usage, `wants_each_usage`: each of its events has it.
    `fields`: every field's own bytes.
    """

    operation: LlmOperation
    model: str
    stream: bool
    wants_usage: bool
    wants_each_usage: bool
    choices: int
    shown: int
    max_tokens: int
    size: PromptSize
    fields: dict[str, msgspec.Raw]

    @cached_property
    def prefix(self) -> bytes:
        """The bytes of tools and prompt, in the order in which chat templates put them."""
        named = ("tools", _PROMPT_FIELD[self.operation])
        return b"".join(bytes(self.fields[name]) for name in named if name in self.fields)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt where it came as token numbers, else 0."""
        return self.size.tokens

    @property
    def streams_alike(self) -> bool:
        """Whether a whole answer can be put together of a streamed one with nothing missing or different."""
        return self.operation is not LlmOperation.EMBEDDING and self.fields.keys() <= _STREAMED_ALIKE

    def encode(self, model: str, *, stream: bool, each_usage: bool = False) -> bytes:
        """Encode the request for an engine that serves it as `model`.

        `stream`: the answer comes as a stream, with its usage at the end, and with `each_usage` in each event.
        """
        fields = {**self.fields, "model": msgspec.Raw(msgspec.json.encode(model))}
        if stream:
            given = self.fields.get("stream_options", msgspec.Raw(b"null"))
            options = msgspec.json.decode(given, type=dict[str, msgspec.Raw] | None) or {}
            options["include_usage"] = msgspec.Raw(b"true")
            if each_usage:
                options["continuous_usage_stats"] = msgspec.Raw(b"true")
            fields["stream"] = msgspec.Raw(b"true")
            fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
        return msgspec.json.encode(fields)


class _AnyObject(msgspec.Struct):
    """Any JSON object: decoding it checks the syntax and builds nothing."""


_check_syntax = msgspec.json.Decoder(_AnyObject)
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decode_name = msgspec.json.Decoder(str)


def parse_request(body: bytes, operation: LlmOperation) -> LlmRequest:
    """Parse a request body, in time and memory linear in its length. LlmError(400) names the field that is wrong.

    What was in the field is never repeated.
    """
    try:
        media = _measure_media(body)
        _check_syntax.decode(body)
        fields = _decode_fields.decode(body)
    except JsonRefusedError as error:
        raise LlmError(400, str(error), code="invalid_json") from None
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise LlmError(400, "the body is no JSON object", code="invalid_json") from None
    return _build_request(fields, operation, media)


def _measure_media(body: bytes) -> tuple[int, int]:
    """Check a text's keys and nesting; return how many media are in its messages, and their bytes."""
    if not is_utf8(body):
        raise JsonRefusedError("the body is not UTF-8")
    media = size_bytes = 0
    for text in scan_json(body):
        if text.key in _MEDIA_KEYS and text.outermost == b"messages":
            media += 1
            size_bytes += text.end - text.start
    return media, size_bytes


def _build_request(fields: dict[str, msgspec.Raw], operation: LlmOperation, media: tuple[int, int]) -> LlmRequest:
    size = _measure_prompt(fields, operation, media)
    generates = operation is not LlmOperation.EMBEDDING
    stream = generates and _read_flag(fields, "stream")
    shown = _read_count(fields, "n", MAX_CHOICES) or 1 if generates else 1
    best = _read_count(fields, "best_of", MAX_CHOICES) if operation is LlmOperation.COMPLETION else 0
    options = _read_stream_options(fields, stream=stream)
    return LlmRequest(
        operation=operation,
        model=_read_model(fields),
        stream=stream,
        wants_usage=_read_flag(options, "include_usage"),
        wants_each_usage=_read_flag(options, "continuous_usage_stats"),
        choices=size.prompts * max(shown, best),
        shown=size.prompts * shown,
        max_tokens=_read_max_tokens(fields, operation) if generates else 0,
        size=size,
        fields=fields,
    )


def _read_model(fields: Mapping[str, msgspec.Raw]) -> str:
    rule = f"a text of 1 to {MAX_MODEL_NAME} characters"
    raw = fields.get("model", msgspec.Raw(b"null"))
    try:
        model = _decode_name.decode(raw) if len(raw) <= MAX_OPTION_BYTES else ""
    except msgspec.DecodeError:
        raise _wrong("model", rule) from None
    if not 0 < len(model) <= MAX_MODEL_NAME:
        raise _wrong("model", rule)
    return model


def _read_option(fields: Mapping[str, msgspec.Raw], name: str, rule: str) -> object:
    """Return the value of a short field, None where it is not said."""
    raw = fields.get(name, msgspec.Raw(b"null"))
    if len(raw) > MAX_OPTION_BYTES:
        raise _wrong(name, rule)
    try:
        value: object = parse_strict_json(bytes(raw))
    except ValueError:
        raise _wrong(name, rule) from None
    return value


def _read_flag(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    value = _read_option(fields, name, "true or false")
    if value is not None and not isinstance(value, bool):
        raise _wrong(name, "true or false")
    return bool(value)


def _read_count(fields: Mapping[str, msgspec.Raw], name: str, most: int) -> int:
    """Return a whole number from 1 to `most`; 0 where it is not said."""
    rule = f"a whole number from 1 to {most}"
    value = _read_option(fields, name, rule)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise _wrong(name, rule)
    return value


def _read_max_tokens(fields: Mapping[str, msgspec.Raw], operation: LlmOperation) -> int:
    found = _read_count(fields, "max_tokens", MAX_TOKENS)
    newer = _read_count(fields, "max_completion_tokens", MAX_TOKENS) if operation is LlmOperation.CHAT else 0
    return newer or found


def _read_stream_options(fields: Mapping[str, msgspec.Raw], *, stream: bool) -> dict[str, msgspec.Raw]:
    """Return the options of a stream, {} where there are none."""
    rule = "an object, and only with stream = true"
    options = _read_option(fields, "stream_options", rule)
    if options is None:
        return {}
    if not isinstance(options, dict) or not stream:
        raise _wrong("stream_options", rule)
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in options.items()}


def _measure_prompt(fields: Mapping[str, msgspec.Raw], operation: LlmOperation, media: tuple[int, int]) -> PromptSize:
    """Measure the prompt without building its values. LlmError(400) if it is none."""
    name = _PROMPT_FIELD[operation]
    raw = bytes(fields.get(name, b"")).strip()
    size = PromptSize(text_bytes=len(raw) + len(fields.get("tools", b"")))
    if operation is LlmOperation.CHAT:
        if not is_list_of_objects(raw):
            raise _wrong(name, "a list of at least one message")
        return msgspec.structs.replace(size, text_bytes=size.text_bytes - media[1], media=media[0])
    if _TEXT_ONLY.fullmatch(raw):
        return size
    if _TEXTS_ONLY.fullmatch(raw):
        return msgspec.structs.replace(size, prompts=sum(1 for _ in _TEXT_ONLY.finditer(raw)))
    if _NUMBERS_ONLY.fullmatch(raw):
        return msgspec.structs.replace(size, tokens=raw.count(b",") + 1)
    if _LISTS_ONLY.fullmatch(raw):
        return msgspec.structs.replace(size, prompts=raw.count(b"[") - 1, tokens=raw.count(b",") + 1)
    raise _wrong(name, "a text, a list of texts, or token numbers")


class _Message(msgspec.Struct, gc=False):
    """One message: an object, whatever is in it."""


_decode_messages = msgspec.json.Decoder(list[_Message])


def is_list_of_objects(raw: bytes) -> bool:
    """Whether a JSON text is a list of at least one object."""
    try:
        return bool(_decode_messages.decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return False


def _wrong(name: str, rule: str) -> LlmError:
    return LlmError(400, f"'{name}' is {rule}", param=name, code="invalid_value")
