"""Cuts a streamed answer into whole server-sent events, and reads the few facts that the hub needs of each. Pure.

Rule: an event is passed on as the bytes that came, or not at all; half an event is never passed on, so that an error
event may follow at any time.
Sources: WHATWG HTML, "Server-sent events"; OpenAI API reference, `chat.completion.chunk`.
"""

import msgspec

from cloud_hub.llm.errors import encode_error

DONE = b"data: [DONE]\n\n"
MAX_EVENT_BYTES = 1024 * 1024
MAX_USAGE_TOKENS = 2**31


class UpstreamBrokenError(Exception):
    """An engine whose answer cannot be used: one line that says what was wrong."""


class PromptDetails(msgspec.Struct, frozen=True):
    """Part of the usage: tokens of the prompt that the engine had in its prefix cache."""

    cached_tokens: int | None = None


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens that the engine counted for a request."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None

    @property
    def plausible(self) -> bool:
        """Whether the counts can be: what cannot is not billed."""
        counts = (self.prompt_tokens, self.generated, self.cached)
        return all(0 <= count <= MAX_USAGE_TOKENS for count in counts) and self.cached <= self.prompt_tokens

    @property
    def generated(self) -> int:
        """Tokens that were generated."""
        return self.completion_tokens or 0

    @property
    def cached(self) -> int:
        """Tokens of the prompt that came out of the prefix cache."""
        return (self.prompt_tokens_details.cached_tokens or 0) if self.prompt_tokens_details else 0


class _ChunkBody(msgspec.Struct, frozen=True):
    choices: list[msgspec.Raw] = []
    usage: TokenUsage | None = None
    error: msgspec.Raw | None = None


class _AnswerBody(msgspec.Struct, frozen=True):
    usage: TokenUsage | None = None


_CHUNK = msgspec.json.Decoder(_ChunkBody)
_ANSWER = msgspec.json.Decoder(_AnswerBody)


class EventSplitter:
    """Splits a stream of bytes into whole events; at most `max_bytes` of one are held."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._rest = b""
        self._max_bytes = max_bytes

    def split(self, data: bytes) -> list[bytes]:
        """Return the events that `data` completes, each with its end. UpstreamBrokenError if one is too long."""
        data = self._rest + data if self._rest else data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > self._max_bytes or any(len(event) > self._max_bytes for event in events):
            raise UpstreamBrokenError(f"the engine sent an event of more than {self._max_bytes} bytes")
        return [event + b"\n\n" for event in events if event.strip()]


class StreamReader:
    """Reads the events of one streamed answer: which are passed on, the usage, and whether it is complete.

    `wants_usage`: the caller asked for the usage; else the event that holds nothing but the usage is kept back.
    `generated` counts events with content: the tokens of an engine that tells no usage.
    """

    def __init__(self, *, wants_usage: bool, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._splitter = EventSplitter(max_event_bytes)
        self._wants_usage = wants_usage
        self.usage: TokenUsage | None = None
        self.done = False
        self.generated = 0

    def read(self, data: bytes) -> bytes:
        """Return what of `data` is passed on, whole events only. UpstreamBrokenError if the answer is broken."""
        return b"".join([event for event in self._splitter.split(data) if not self.done and self._accept(event)])

    def _accept(self, event: bytes) -> bool:
        payload = extract_payload(event)
        if payload is None:
            return True  # a comment, which keeps connections open
        if payload == b"[DONE]":
            self.done = True
            return True
        chunk = _decode_chunk(payload)
        if chunk.usage is not None and chunk.usage.plausible:
            self.usage = chunk.usage
        if chunk.choices:
            self.generated += 1
            return True
        return chunk.usage is None or self._wants_usage


def _decode_chunk(payload: bytes) -> _ChunkBody:
    try:
        chunk = _CHUNK.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UpstreamBrokenError("the engine sent an event that is no chunk of an answer") from None
    if chunk.error is not None:
        raise UpstreamBrokenError("the engine ended the answer with an error")
    return chunk


def extract_payload(event: bytes) -> bytes | None:
    """Return the data of an event, None if it has none."""
    if event.startswith(b"data:") and event.find(b"\n", 0, -2) < 0:
        return event[5:].strip()
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def read_usage(body: bytes) -> TokenUsage | None:
    """Return the usage in a whole answer, None if it tells none that can be.

    UpstreamBrokenError if the body is no JSON object.
    """
    try:
        usage = _ANSWER.decode(body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UpstreamBrokenError("the engine's answer is no JSON object") from None
    return usage if usage is not None and usage.plausible else None


def encode_error_event(message: str, code: str) -> bytes:
    """Return the event that ends a stream which could not be completed; no `[DONE]` follows it."""
    return b"data: " + encode_error(502, message, code) + b"\n\n"
