"""Hands one request to a replica and its answer back, as the bytes that came.

Rule: until the caller has been sent a byte, a replica that fails is replaced by another; afterwards the answer ends
with one error event and no `[DONE]`, so that nothing is told twice and nothing incomplete looks complete.
Rule: a caller that hangs up ends the request at the engine: the connection is closed towards the engine, and read up to
its end, since what the engine sent before it stopped says what was computed.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import aiohttp

from cloud_hub.llm.assembly import AnswerAssembler
from cloud_hub.llm.engine_errors import (
    MAX_ERROR_BYTES,
    EngineFault,
    EngineReport,
    ReplicaFailedError,
    describe_error_body,
    describe_failure,
    encode_refusal,
    is_callers_fault,
    read_report,
)
from cloud_hub.llm.events import (
    StreamReader,
    TokenUsage,
    UpstreamBrokenError,
    encode_error_event,
    read_whole,
)
from cloud_hub.llm.replica import EngineConnection, Replica
from cloud_hub.llm.requests import LlmRequest
from cloud_hub.llm.settings import LlmSettings
from cloud_hub.llm.step_limit import StepLimit
from wire.process.futures import await_shared

_FRESH_S = 0.001  # what was waited for so long was computed just now

EventWriter = Callable[[bytes], Awaitable[None]]


class LlmAnswer:
    """An answer of one replica. `status`, `body` of a whole one; `send` hands on a stream. `caller`: whose it is.

    `usage`: of the engine, None = not told, or not yet; `generated`: tokens counted in its stream. `complete`: it was
    given in full; `broken`: the engine ended it in the middle; `streamed`: the hub is sent it as a stream. Times in
    seconds of `time.time`; `left_at`: when its caller went, 0 = it did not.
    """

    def __init__(self, request: LlmRequest, settings: LlmSettings, replica: Replica, caller: str = "") -> None:
        self.status = 200
        self.body = b""
        self.stream = request.stream
        self.complete = False
        self.broken = False
        self.first_at = time.time()
        self.left_at = 0.0
        self.connection = EngineConnection()
        self.replica = replica
        self.request = request
        self._caller = caller
        self.streamed = request.stream or (replica.counts_each and request.streams_alike)
        self._reader = StreamReader(request, settings.max_event_bytes)
        self._usage: TokenUsage | None = None
        self._settings = settings
        self._response: aiohttp.ClientResponse | None = None
        self._first = b""
        self._sends = False  # what is waited for is the caller, not the engine
        self._overdue = False  # the engine still computes it, and nobody waits

    @property
    def usage(self) -> TokenUsage | None:
        """The usage as the engine told it."""
        return self._usage or self._reader.usage

    @property
    def generated(self) -> int:
        """Events with content that came."""
        return self._reader.generated

    def encode_request(self) -> bytes:
        """Encode the request as this replica is asked it."""
        each_usage = self.streamed and self.replica.counts_each
        return self.request.encode(self._settings.engine_model, stream=self.streamed, each_usage=each_usage)

    async def begin(self, response: aiohttp.ClientResponse) -> None:
        """Read up to the first event of a stream, or a whole answer. ReplicaFailedError if there is none."""
        self._response = response
        if is_callers_fault(response.status):
            await self._read_refusal(response)
        elif response.status != 200:
            report = read_report(await _read_error(response))
            raise describe_failure(response.status, report, response.headers.get("Retry-After", ""), datetime.now(UTC))
        elif "Content-Encoding" in response.headers:
            raise ReplicaFailedError("the engine compressed its answer, which was not asked for")
        elif self.streamed:
            await self._begin_stream(response)
        else:
            await self._read_whole(response)
        self.first_at = time.time()

    async def _read_refusal(self, response: aiohttp.ClientResponse) -> None:
        self._refuse(response.status, read_report(await _read_error(response)))

    def _refuse(self, status: int, report: EngineReport) -> None:
        """Answer with what the engine says is wrong with the request."""
        self.stream = False
        self.status, self.body = status, encode_refusal(status, report)

    async def _begin_stream(self, response: aiohttp.ClientResponse) -> None:
        try:
            await self._read_first(response)
            if not self.stream:
                await self._assemble()
        except ReplicaFailedError as error:  # an event said so
            if error.fault is not EngineFault.REQUEST or not is_callers_fault(error.status):
                raise
            self._refuse(error.status, EngineReport(str(error), param=error.param))

    async def send(self, write: EventWriter) -> None:
        """Hand a stream's events to `write` as they come; the last one says what was wrong if it is not complete.

        TimeoutError if the caller does not take them in time, and what `write` raises.
        """
        try:
            await self._send_events(write)
        except (ReplicaFailedError, UpstreamBrokenError) as error:
            async with asyncio.timeout(self._settings.send_s):
                await write(self._end_broken(error))

    async def _send_events(self, write: EventWriter) -> None:
        """As `send`, without the last event. ReplicaFailedError, UpstreamBrokenError if the answer is not complete."""
        limit = StepLimit(self._settings.answer_s)
        try:
            async with limit:
                await self._hand_on(write, limit)
        except TimeoutError:
            if self._sends:
                raise
            self._overdue = limit.is_over
            why = "the answer took too long" if self._overdue else "the engine stalled in the middle of the answer"
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
            passed = await self._read_events()

    def _end_complete(self) -> None:
        self.complete = True
        self.replica.on_success()

    def _end_broken(self, error: ReplicaFailedError | UpstreamBrokenError) -> bytes:
        self.broken = True
        if not isinstance(error, ReplicaFailedError):
            return self._end_failed(ReplicaFailedError(str(error), fault=EngineFault.UNCLEAR))
        return self._end_failed(error)

    def _end_failed(self, error: ReplicaFailedError) -> bytes:
        if error.fault is not EngineFault.REQUEST:
            self.replica.on_fault(self._caller)
        return encode_error_event(str(error), error.code, error.status, error.param)

    async def _read_first(self, response: aiohttp.ClientResponse) -> None:
        if response.content_type != "text/event-stream":
            report = read_report(await _read_error(response))
            if report != EngineReport():
                raise describe_error_body(report)
            raise ReplicaFailedError("the engine did not answer with a stream", fault=EngineFault.UNCLEAR)
        while not self._first and not self._reader.done:
            self._first = await self._read_events()

    async def _assemble(self) -> None:
        """Put the whole answer together of a stream that was read up to its first event."""
        assembler = AnswerAssembler(self.request.operation, self._settings.max_answer_bytes)
        assembler.add(self._first)
        async with StepLimit(self._settings.answer_s) as limit:
            while not self._reader.done:
                limit.begin(self._settings.stall_s)
                assembler.add(await self._read_events())
        self.body = assembler.build(self._reader.usage_json)
        self._end_complete()

    async def _read_whole(self, response: aiohttp.ClientResponse) -> None:
        body = await _read_body(response, self._settings.max_answer_bytes)
        try:
            self._usage = read_whole(body)
        except ReplicaFailedError as error:
            if error.fault is not EngineFault.REQUEST or not is_callers_fault(error.status):
                raise
            self._refuse(error.status, EngineReport(str(error), param=error.param))
            return
        self.body = body
        self._end_complete()

    async def _read_events(self) -> bytes:
        """Return the next events that are passed on, maybe none. ReplicaFailedError if the connection was lost."""
        assert self._response is not None
        try:
            part = await self._response.content.readany()
        except (aiohttp.ClientError, OSError):
            raise ReplicaFailedError("the engine ended in the middle of the answer", lost=True) from None
        return self._reader.read(part) if part else self._reader.finish()

    async def abandon(self, posting: "asyncio.Future[aiohttp.ClientResponse]") -> None:
        """Read what the engine says of a stream whose caller went before its head came; bounded in time."""
        self.left_at = time.time()
        try:
            if self.streamed:
                _close_one_way(self.connection.found)
                await asyncio.wait({posting}, timeout=self._settings.settle_s)
            if posting.done() and not posting.cancelled() and posting.exception() is None:
                self._response = posting.result()
                await self.settle()
        finally:
            _drop_response(posting)

    async def settle(self) -> None:
        """Read what the engine has sent of an answer that nobody waits for any more, for what it says of its usage.

        Goes on if it is cancelled once: a caller that goes while it is sent an event is noticed twice.
        """
        response = self._response
        ended = self.complete or (self.broken and not self._overdue)
        if response is None or response.status != 200 or ended or not self.streamed:
            return
        self.left_at = self.left_at or time.time()
        reading = asyncio.create_task(self._read_rest(response))
        try:
            await await_shared(reading)
        except asyncio.CancelledError:
            await reading
            raise

    async def _read_rest(self, response: aiohttp.ClientResponse) -> None:
        """Close the connection one way, and read up to its end.

        So the engine sees at once that its caller has gone, and nothing is lost of what it sent before it saw that.
        Over TLS, which cannot be closed one way, reading ends at an event that was computed just now: an engine that
        is left at once after it ends before the next one.
        """
        closed = _close_one_way(response.connection)
        failures = (TimeoutError, aiohttp.ClientError, OSError, ReplicaFailedError, UpstreamBrokenError)
        with contextlib.suppress(*failures):
            async with asyncio.timeout(self._settings.settle_s):
                loop = asyncio.get_running_loop()
                while not self._reader.done:
                    since = loop.time()
                    part = await response.content.readany()
                    self._reader.read(part)
                    if not part or (not closed and loop.time() - since > _FRESH_S):
                        return


def _close_one_way(connection: aiohttp.connector.Connection | None) -> bool:
    """Tell the engine that nothing more is sent to it; False if the connection cannot be closed one way."""
    transport = connection.transport if connection else None
    if transport is None or not transport.can_write_eof():
        return False
    transport.write_eof()
    return True


@contextlib.asynccontextmanager
async def open_answer(session: aiohttp.ClientSession, answer: LlmAnswer) -> AsyncIterator[LlmAnswer]:
    """Ask the replica of an answer; yields it once it has begun. ReplicaFailedError if it does not."""
    settings = answer.replica.settings
    async with contextlib.AsyncExitStack() as stack:
        limit = asyncio.timeout(settings.first_s if answer.request.stream else settings.answer_s)
        try:
            async with limit:
                response = await _post(session, answer, limit)
                stack.callback(response.close)  # a connection that was not read to its end is not used again
                await answer.begin(response)
        except asyncio.CancelledError:
            await answer.settle()
            raise
        except TimeoutError:
            raise ReplicaFailedError("the engine did not begin to answer in time", 504) from None
        except UpstreamBrokenError as error:
            raise ReplicaFailedError(str(error), fault=EngineFault.UNCLEAR) from None
        except (aiohttp.ClientError, OSError) as error:
            lost = not isinstance(error, aiohttp.ClientConnectorError)
            raise ReplicaFailedError("the engine is not there, or ended before its answer", lost=lost) from None
        stack.push_async_callback(answer.settle)
        yield answer


async def _post(session: aiohttp.ClientSession, answer: LlmAnswer, limit: asyncio.Timeout) -> aiohttp.ClientResponse:
    """Send the request; returns the response once its head has come.

    If the caller goes before that, and not `limit` ends it, the answer is read as far as it says what was computed.
    """
    settings = answer.replica.settings
    asked = session.post(
        answer.replica.url_for(answer.request.operation),
        data=answer.encode_request(),
        headers={"Content-Type": "application/json"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_s),
        allow_redirects=False,
    )
    with answer.connection.watch():
        posting = asyncio.ensure_future(asked)
    try:
        return await await_shared(posting)
    except asyncio.CancelledError:
        if limit.expired():
            _drop_response(posting)
        else:
            await answer.abandon(posting)
        raise


def _drop_response(posting: "asyncio.Future[aiohttp.ClientResponse]") -> None:
    """Close the response to a request that nobody waits for, or give it up if it is not there yet."""
    posting.cancel()
    posting.add_done_callback(_close_response)


def _close_response(posting: "asyncio.Future[aiohttp.ClientResponse]") -> None:
    if not posting.cancelled() and posting.exception() is None:
        posting.result().close()


async def _read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > max_bytes:
            raise UpstreamBrokenError(f"the engine's answer is longer than {max_bytes} bytes")
    return bytes(body)


async def _read_error(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an error, empty if it is longer than an error is."""
    try:
        return await _read_body(response, MAX_ERROR_BYTES)
    except UpstreamBrokenError:
        return b""
