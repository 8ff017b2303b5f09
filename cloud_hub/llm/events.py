"""Cuts a streamed answer into whole server-sent events, and reads the few facts that the hub needs of each. Pure.

Rule: an event is passed on as the bytes that came, or not at all, but for the usage that the hub alone asked for, which
becomes null; half an event is never passed on, so that an error event may follow at any time.
Rule: what is no event of an answer is refused, not passed on: lines that are no fields, bytes that are no UTF-8.
Sources: WHATWG HTML, "Server-sent events"; OpenAI API reference, `chat.completion.chunk`; vLLM 0.32, continuous usage.
"""

import re
from collections.abc import Iterator

import msgspec

from cloud_hub.llm.engine_errors import EngineReport, describe_error_body, read_report
from cloud_hub.llm.errors import encode_error
from cloud_hub.llm.requests import LlmRequest
from wire.http.json_scan import is_utf8

DONE = b"data: [DONE]\n\n"
MAX_EVENT_BYTES = 1024 * 1024
MAX_USAGE_TOKENS = 2**31
_PIECE_BYTES = 65_536
_NOTHING = frozenset({b"", b"null", b"[]"})
_SHORT_BYTES = 16  # an empty list with some blanks
_LINE = re.compile(rb"(?:data|event|id|retry)(?::|\Z)|:")
_ENDS = re.compile(rb'"finish_reason"[ \t\r\n]*+:[ \t\r\n]*+"')


class UpstreamBrokenError(Exception):
    """An engine whose answer cannot be used: one line that says what was wrong."""


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens that the engine counted for a request; `cached`: those of the prompt out of its prefix cache."""

    prompt_tokens: int = 0
    generated: int = 0
    cached: int = 0


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | float | None = None


class _UsageBody(msgspec.Struct, frozen=True):
    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _ChunkBody(msgspec.Struct, frozen=True):
    choices: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _AnswerBody(msgspec.Struct, frozen=True):
    choices: msgspec.Raw = msgspec.Raw()
    data: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _ChoiceIndex(msgspec.Struct, frozen=True):
    index: int = 0


_CHUNK = msgspec.json.Decoder(_ChunkBody)
_ANSWER = msgspec.json.Decoder(_AnswerBody)
_USAGE = msgspec.json.Decoder(_UsageBody)
_INDEX = msgspec.json.Decoder(tuple[_ChoiceIndex])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class EventSplitter:
    """Splits a stream of bytes into whole events, in time linear in its length; at most `max_bytes` of one are held."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._rest = bytearray()
        self._max_bytes = max_bytes
        self._ends_in_cr = False

    def split(self, data: bytes) -> list[bytes]:
        """Return the events that `data` completes, each with its end. UpstreamBrokenError if one is too long."""
        data = self._unify_ends(data)
        searched = max(0, len(self._rest) - 1)
        self._rest += data
        if self._rest.find(b"\n\n", searched) < 0:
            self._check_length(len(self._rest))
            return []
        *events, rest = bytes(self._rest).split(b"\n\n")
        self._rest = bytearray(rest)
        self._check_length(max(len(rest), *map(len, events)))
        return [event + b"\n\n" for event in events if event.strip()]

    def take_rest(self) -> bytes:
        """Return what came after the last whole event."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest

    def _unify_ends(self, data: bytes) -> bytes:
        """Return bytes with the ends of their lines as one line feed, also where one came in two parts."""
        if self._ends_in_cr:
            data = b"\r" + data
        self._ends_in_cr = data.endswith(b"\r")
        if b"\r" not in data:
            return data
        data = data[:-1] if self._ends_in_cr else data
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check_length(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise UpstreamBrokenError(f"the engine sent an event of more than {self._max_bytes} bytes")


class StreamReader:
    """Reads the events of one streamed answer: which are passed on, the usage, and whether it is complete.

    The event that holds nothing but the usage is kept back unless the caller asked for it. `generated` counts events
    with content: the tokens of an engine that tells no usage. `began`: an event of the answer came.
    """

    def __init__(self, request: LlmRequest, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._splitter = EventSplitter(max_event_bytes)
        self._request = request
        self._last: TokenUsage | None = None  # of all choices, as told at the end
        self._each: dict[int, TokenUsage] = {}  # as told so far, by choice
        self._ended = 0  # choices that have ended
        self.began = self.done = False
        self.generated = 0
        self.usage_json = b""  # at the end, as the engine wrote it

    @property
    def usage(self) -> TokenUsage | None:
        """The usage as the engine told it: at the end, or with each event; None = not told."""
        if self._last is not None or not self._each:
            return self._last
        each = max(1, self._request.shown // self._request.size.prompts)  # choices of one prompt
        prompts = {index // each: usage for index, usage in self._each.items()}
        return TokenUsage(
            prompt_tokens=sum(usage.prompt_tokens for usage in prompts.values()),
            generated=sum(usage.generated for usage in self._each.values()),
            cached=sum(usage.cached for usage in prompts.values()),
        )

    def read(self, data: bytes) -> bytes:
        """Return what of `data` is passed on, whole events only.

        UpstreamBrokenError if the answer is broken, ReplicaFailedError if the engine ends it with an error.
        """
        return b"".join([self._accept(event) for event in self._splitter.split(data) if not self.done])

    def finish(self) -> bytes:
        """Return what is passed on once the engine has closed the stream in order.

        An answer all of whose choices have ended is complete without `[DONE]`, which is added. UpstreamBrokenError if
        it is not complete.
        """
        if self.done:
            return b""
        rest = self._splitter.take_rest()
        passed = self._accept(rest.rstrip(b"\n") + b"\n\n") if rest.strip() else b""
        if not self.done and self._ended < self._request.shown:
            raise UpstreamBrokenError("the engine ended in the middle of the answer")
        passed += b"" if self.done else DONE
        self.done = True
        return passed

    def _accept(self, event: bytes) -> bytes:
        """Return what of an event is passed on."""
        payload = extract_payload(event)
        if payload is None:
            return event if self.began else b""  # a comment, which keeps connections open
        if payload == b"[DONE]":
            self.done = self.began = True
            return event
        chunk = _decode_chunk(payload)
        usage = read_usage_field(chunk.usage)
        if _is_nothing(chunk.choices):
            if usage is not None:
                self._last, self.usage_json = usage, bytes(chunk.usage)
            passes = _is_nothing(chunk.usage) or self._request.wants_usage
            self.began = self.began or passes
            return event if passes else b""
        self.began = True
        self.generated += 1
        self._ended += len(_ENDS.findall(chunk.choices))
        if usage is not None:
            self._each[self._find_index(chunk.choices)] = usage
        if _is_nothing(chunk.usage) or self._request.wants_each_usage:
            return event
        return _hide_usage(payload)

    def _find_index(self, choices: msgspec.Raw) -> int:
        """Return the choice that an event is of."""
        if self._request.shown == 1:
            return 0
        try:
            return _INDEX.decode(choices)[0].index
        except msgspec.DecodeError:
            return 0


def _is_nothing(raw: msgspec.Raw) -> bool:
    """Whether a field is not there, null or an empty list."""
    return len(raw) < _SHORT_BYTES and b"".join(bytes(raw).split()) in _NOTHING


def _hide_usage(payload: bytes) -> bytes:
    """Return the event of a chunk without the usage so far, for a caller that did not ask for it."""
    return b"data: " + msgspec.json.encode({**_FIELDS.decode(payload), "usage": None}) + b"\n\n"


def _decode_chunk(payload: bytes) -> _ChunkBody:
    try:
        chunk = _CHUNK.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UpstreamBrokenError("the engine sent an event that is no chunk of an answer") from None
    if not _is_nothing(chunk.error):
        raise describe_error_body(read_report(payload))
    if not _is_nothing(chunk.choices) and not bytes(chunk.choices).startswith(b"["):
        raise UpstreamBrokenError("the engine sent an event that is no chunk of an answer")
    return chunk


def tells_each_usage(stream: bytes) -> bool:
    """Whether a whole stream tells its usage beside the first text, and not only at its end."""
    for event in _split_stream(stream):
        payload = extract_payload(event)
        if payload is not None and payload != b"[DONE]":
            chunk = _decode_chunk(payload)
            if not _is_nothing(chunk.choices):
                return read_usage_field(chunk.usage) is not None
    return False


def _split_stream(stream: bytes) -> Iterator[bytes]:
    """Yield the events of a whole stream, those of one piece at a time."""
    splitter = EventSplitter()
    for at in range(0, len(stream), _PIECE_BYTES):
        yield from splitter.split(stream[at : at + _PIECE_BYTES])


def extract_payload(event: bytes) -> bytes | None:
    """Return the data of an event, None if it has none. UpstreamBrokenError for what is no event."""
    if not is_utf8(event):
        raise UpstreamBrokenError("the engine sent bytes that are no UTF-8")
    if event.startswith(b"data:") and event.find(b"\n", 0, -2) < 0:
        return event[5:].strip()
    lines = event.strip(b"\n").split(b"\n")
    if not all(map(_LINE.match, lines)):
        raise UpstreamBrokenError("the engine sent lines that are no server-sent events")
    data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    return b"\n".join(data) if data else None


def read_usage_field(raw: msgspec.Raw) -> TokenUsage | None:
    """Return the usage that an engine tells, None if it tells none, or none that can be."""
    if _is_nothing(raw):
        return None
    try:
        told = _USAGE.decode(raw)
    except msgspec.DecodeError:
        return None
    cached = told.prompt_tokens_details.cached_tokens if told.prompt_tokens_details else None
    counts = (told.prompt_tokens, told.completion_tokens or 0, cached or 0)
    if not all(count is not None and 0 <= count <= MAX_USAGE_TOKENS and count == int(count) for count in counts):
        return None
    usage = TokenUsage(*(int(count or 0) for count in counts))
    return usage if usage.cached <= usage.prompt_tokens else None


def read_whole(body: bytes) -> TokenUsage | None:
    """Return the usage in a whole answer, None if it tells none that can be.

    UpstreamBrokenError if the body is no answer, ReplicaFailedError if it is an error.
    """
    try:
        answer = _ANSWER.decode(body) if is_utf8(body) else None
    except (msgspec.DecodeError, RecursionError):
        answer = None
    if answer is None:
        raise UpstreamBrokenError("the engine's answer is no JSON object")
    if not _is_nothing(answer.error):
        raise describe_error_body(read_report(body))
    if _is_nothing(answer.choices) and _is_nothing(answer.data):
        report = read_report(body)
        if report != EngineReport():
            raise describe_error_body(report)
        raise UpstreamBrokenError("the engine's answer holds neither choices nor data")
    return read_usage_field(answer.usage)


def encode_error_event(message: str, code: str, status: int = 502, param: str = "") -> bytes:
    """Return the event that ends a stream which could not be completed; no `[DONE]` follows it."""
    return b"data: " + encode_error(status, message, code, param) + b"\n\n"
