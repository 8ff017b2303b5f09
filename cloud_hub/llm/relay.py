"""Hands one request to a replica and its answer back, as the bytes that came.

Rule: until the caller has been sent a byte, a replica that fails is replaced by another; afterwards the answer ends
with one error event and no `[DONE]`, so that nothing is told twice and nothing incomplete looks complete.
Rule: a caller that hangs up closes the connection to the engine, which ends the request there.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import msgspec

from cloud_hub.llm.errors import LlmError, encode_error
from cloud_hub.llm.events import StreamReader, TokenUsage, UpstreamBrokenError, encode_error_event, read_usage
from cloud_hub.llm.replica import Replica
from cloud_hub.llm.requests import LlmRequest
from cloud_hub.llm.settings import LlmSettings
from cloud_hub.llm.step_limit import StepLimit

_CALLERS_FAULT = frozenset({400, 413, 422})
MAX_ERROR_BYTES = 64 * 1024
RETRY_S = 5.0

EventWriter = Callable[[bytes], Awaitable[None]]


class ReplicaFailedError(Exception):
    """A replica that did not answer. `status`: what the caller is told if no other one does.

    `counted`: the circuit breaker counts it.
    """

    def __init__(self, message: str, status: int = 502, *, counted: bool = True, lost: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.counted = counted
        self.lost = lost  # the connection was lost: it may have been an idle one that the engine closed

    @property
    def code(self) -> str:
        """What went wrong, as callers are told it."""
        return {503: "engine_busy", 504: "engine_timeout"}.get(self.status, "engine_failed")

    def describe(self) -> LlmError:
        """Return what the caller is told."""
        return LlmError(self.status, str(self), code=self.code, retry_after_s=RETRY_S)


class LlmAnswer:
    """An answer that has begun. `status`, `body` of a whole one; `send` hands on a stream.

    `usage`: of the engine, None = not told, or not yet; `generated`: tokens counted in its stream. `complete`: it was
    given in full; `broken`: the engine ended it in the middle. Times in seconds of `time.time`.
    """

    def __init__(self, request: LlmRequest, settings: LlmSettings, replica: Replica) -> None:
        self.status = 200
        self.body = b""
        self.stream = False
        self.complete = False
        self.broken = False
        self.first_at = time.time()
        self.replica = replica
        self._reader = StreamReader(wants_usage=request.wants_usage, max_event_bytes=settings.max_event_bytes)
        self._usage: TokenUsage | None = None
        self._settings = settings
        self._response: aiohttp.ClientResponse | None = None
        self._first = b""
        self._sends = False  # what is waited for is the caller, not the engine

    @property
    def usage(self) -> TokenUsage | None:
        """The usage as the engine told it."""
        return self._reader.usage if self.stream else self._usage

    @property
    def generated(self) -> int:
        """Events with content that came."""
        return self._reader.generated

    async def begin(self, response: aiohttp.ClientResponse, *, stream: bool) -> None:
        """Read up to the first event of a stream, or a whole answer. ReplicaFailedError if there is none."""
        self._response, self.stream = response, stream
        if response.status in _CALLERS_FAULT:
            self.stream = False
            self.body, self.status = await _read_refusal(response), response.status
        elif response.status != 200 or "Content-Encoding" in response.headers:
            raise _describe_status(response.status)
        elif stream:
            await self._read_first(response)
        else:
            await self._read_whole(response)
        self.first_at = time.time()

    async def send(self, write: EventWriter) -> None:
        """Hand a stream's events to `write` as they come; the last one says what was wrong if it is not complete.

        TimeoutError if the caller does not take them in time, and what `write` raises.
        """
        try:
            await self._send_events(write)
        except (ReplicaFailedError, UpstreamBrokenError) as error:
            code = error.code if isinstance(error, ReplicaFailedError) else "engine_failed"
            async with asyncio.timeout(self._settings.send_s):
                await write(self._end_broken(str(error), code))

    async def _send_events(self, write: EventWriter) -> None:
        """As `send`, without the last event. ReplicaFailedError, UpstreamBrokenError if the answer is not complete."""
        limit = StepLimit(self._settings.answer_s)
        try:
            async with limit:
                await self._hand_on(write, limit)
        except TimeoutError:
            if self._sends:
                raise
            why = "the answer took too long" if limit.is_over else "the engine stalled in the middle of the answer"
            raise ReplicaFailedError(why, 504) from None
        self._end_complete()

    async def _hand_on(self, write: EventWriter, limit: StepLimit) -> None:
        """Hand on every event up to the last one. `limit` ends a step that takes too long."""
        settings, reader, passed = self._settings, self._reader, self._first
        while True:
            if passed:
                self._sends = True
                limit.begin(settings.send_s)
                await write(passed)
                self._sends = False
            if reader.done:
                return
            limit.begin(settings.stall_s)
            passed = reader.read(await self._read_part())

    def _end_complete(self) -> None:
        self.complete = True
        self.replica.on_success()

    def _end_broken(self, why: str, code: str) -> bytes:
        self.broken = True
        self.replica.on_failure()
        return encode_error_event(why, code)

    async def _read_first(self, response: aiohttp.ClientResponse) -> None:
        if response.content_type != "text/event-stream":
            raise ReplicaFailedError("the engine did not answer with a stream")
        while not self._first and not self._reader.done:
            self._first = self._reader.read(await self._read_part())

    async def _read_whole(self, response: aiohttp.ClientResponse) -> None:
        self.body = await _read_body(response, self._settings.max_answer_bytes)
        self._usage = read_usage(self.body)
        self._end_complete()

    async def _read_part(self) -> bytes:
        """Return the next bytes of a stream. ReplicaFailedError if it ended."""
        assert self._response is not None
        try:
            part = await self._response.content.readany()
        except (aiohttp.ClientError, OSError):
            part = b""
        if not part:
            raise ReplicaFailedError("the engine ended in the middle of the answer", lost=True)
        return part


@contextlib.asynccontextmanager
async def open_answer(
    session: aiohttp.ClientSession, replica: Replica, request: LlmRequest, settings: LlmSettings
) -> AsyncIterator[LlmAnswer]:
    """Ask one replica; yields its answer once it has begun. ReplicaFailedError if it does not."""
    answer = LlmAnswer(request, settings, replica)
    async with contextlib.AsyncExitStack() as stack:
        within_s = settings.first_s if request.stream else settings.answer_s
        try:
            async with asyncio.timeout(within_s):
                response = await stack.enter_async_context(_post(session, replica, request, settings))
                stack.callback(response.close)  # a connection that was not read to its end is not used again
                await answer.begin(response, stream=request.stream)
        except TimeoutError:
            raise ReplicaFailedError("the engine did not begin to answer in time", 504) from None
        except UpstreamBrokenError as error:
            raise ReplicaFailedError(str(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            lost = not isinstance(error, aiohttp.ClientConnectorError)
            raise ReplicaFailedError("the engine is not there, or ended before its answer", lost=lost) from None
        yield answer


def _post(
    session: aiohttp.ClientSession, replica: Replica, request: LlmRequest, settings: LlmSettings
) -> "contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]":
    return session.post(
        replica.url_for(request.operation),
        data=request.encode(settings.engine_model),
        headers={"Content-Type": "application/json"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_s),
        allow_redirects=False,
    )


async def _read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > max_bytes:
            raise UpstreamBrokenError(f"the engine's answer is longer than {max_bytes} bytes")
    return bytes(body)


class _RefusalBody(msgspec.Struct, frozen=True):
    error: dict[str, msgspec.Raw] | None = None
    message: str = ""


async def _read_refusal(response: aiohttp.ClientResponse) -> bytes:
    """Return what the engine says is wrong with the request, in the form of OpenAI's interface."""
    body = await _read_body(response, MAX_ERROR_BYTES)
    try:
        read = msgspec.json.decode(body, type=_RefusalBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        read = _RefusalBody()
    return body if read.error else encode_error(response.status, read.message or "the engine refuses the request")


def _describe_status(status: int) -> ReplicaFailedError:
    if status in (429, 503):
        return ReplicaFailedError("the engine is busy, ask again", 503, counted=status == 503)
    if status in (401, 403):
        return ReplicaFailedError("the engine refuses the hub's own key")
    if status == 404:
        # its breaker must not open: callers can ask a chat model for embeddings, and that the model is there is checked
        return ReplicaFailedError("the engine does not know the model, or not this operation", counted=False)
    return ReplicaFailedError("the engine failed")
