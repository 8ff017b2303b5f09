"""One replica of a language model: the connection to its server, its load, its readiness, its circuit breaker.

Rule: ready means that a completion of one token came back a moment ago. An engine's `/health` says 200 of one that dies
at its first request, so it is not asked.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar

import aiohttp
import msgspec

from cloud_hub.llm.engine_errors import ReplicaFailedError
from cloud_hub.llm.engine_metrics import MAX_METRICS_BYTES, EngineMetrics, parse_metrics
from cloud_hub.llm.events import UpstreamBrokenError, read_whole, tells_each_usage
from cloud_hub.llm.requests import LlmOperation
from cloud_hub.llm.settings import LlmSettings, ReplicaAddress
from policies.serving.replicas import CircuitBreaker, ReplicaLoad
from wire.process.time_limits import describe_failure

DEFAULT_BLOCK_TOKENS = 16  # of engines that do not tell theirs; vLLM's on graphics cards
REPORT_S = 2.0
ASK_AGAIN_S = 60.0  # between two questions of what an engine can do
MAX_CHECK_BYTES = 1024 * 1024
# uvicorn, under vLLM and SGLang, closes an idle connection after 5 s: one that is about to be closed must not be used.
KEEP_ALIVE_S = 3.0
_CHECKS: Mapping[LlmOperation, Mapping[str, object]] = {
    LlmOperation.CHAT: {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1},
    LlmOperation.COMPLETION: {"prompt": "1", "max_tokens": 1},
    LlmOperation.EMBEDDING: {"input": "1"},
}


class _ModelEntry(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[_ModelEntry] = []


class EngineConnection:
    """The connection that a request is sent on, as soon as there is one: before the answer's head has come."""

    def __init__(self) -> None:
        self.found: aiohttp.connector.Connection | None = None

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Find the connection of the request whose task is started in this block."""
        token = _CONNECTION.set(self)
        try:
            yield
        finally:
            _CONNECTION.reset(token)


_CONNECTION: ContextVar[EngineConnection | None] = ContextVar("engine_connection", default=None)


class _EngineResponse(aiohttp.ClientResponse):
    async def start(self, connection: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        watching = _CONNECTION.get()
        if watching is not None:
            watching.found = connection
        return await super().start(connection)


def open_session(key: str) -> aiohttp.ClientSession:
    """Open the HTTP session of one model's engines. `key`: their bearer token, "" = none."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    return aiohttp.ClientSession(
        connector=connector,
        response_class=_EngineResponse,
        headers=headers,
        auto_decompress=False,  # nothing compressed is asked for, and a small answer could hold gigabytes
        skip_auto_headers=("Accept-Encoding", "User-Agent"),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


class Replica:
    """One server of a model. `ready`: it completed a token at the last check; `why`: what was wrong, "" = nothing.

    `answered`, `failed`: requests, by its own doing.
    """

    def __init__(
        self, address: ReplicaAddress, settings: LlmSettings, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.address = address
        self.name = address.base
        self.ready = False
        self.why = "not checked yet"
        self.in_flight = 0
        self.tokens_in_flight = 0
        self.answered = self.failed = 0
        self.context_tokens = 0
        self.breaker = CircuitBreaker()
        self.metrics = EngineMetrics()
        self.counts_each = False  # tells the tokens so far with each event of a stream, as far as was seen
        self.settings = settings
        self.suspicion = asyncio.Event()  # a request failed: it is checked at once
        self._asked_again_at = 0.0
        self._now = now

    @property
    def block_tokens(self) -> int:
        """Tokens of one block of the engine's prefix cache."""
        return self.metrics.block_tokens or DEFAULT_BLOCK_TOKENS

    def admits(self) -> bool:
        """Whether the replica gets requests now: ready, and its breaker is closed."""
        return self.ready and self.breaker.admits

    def is_last_resort(self) -> bool:
        """Whether it gets requests only where no other one has room."""
        return self.breaker.is_last_resort(self._now())

    def has_room(self, tokens: int) -> bool:
        """Whether it takes so many tokens more at once. One request alone always fits."""
        room = self.tokens_in_flight + tokens <= self.settings.max_running_tokens
        return not self.in_flight or (room and self.in_flight < self.settings.max_running)

    def measure_load(self, prefix_blocks: int = 0) -> ReplicaLoad:
        """Return its load, for ranking."""
        metrics = self.metrics
        return ReplicaLoad(
            self.name,
            self.in_flight,
            metrics.waiting,
            metrics.running,
            kv_usage=metrics.kv_usage,
            prefix_blocks=prefix_blocks,
            region=self.region,
        )

    def occupy(self, tokens: int) -> None:
        """Count a request as under way there."""
        self.in_flight += 1
        self.tokens_in_flight += tokens

    def release(self, tokens: int) -> None:
        """Count it as ended."""
        self.in_flight -= 1
        self.tokens_in_flight -= tokens

    def on_success(self) -> None:
        """Record an answer."""
        self.answered += 1
        self.breaker = self.breaker.on_success()

    def on_fault(self, caller: str) -> None:
        """Record a request of a caller that failed, maybe by the replica's fault: it is checked at once."""
        self.failed += 1
        self.breaker = self.breaker.on_fault(caller, self._now())
        self.suspicion.set()

    @property
    def region(self) -> str:
        """Where it stands."""
        return self.address.region or self.settings.region

    def url_for(self, operation: LlmOperation) -> str:
        """Return the URL of an operation."""
        return f"{self.name}/v1/{operation}"

    async def check(self, session: aiohttp.ClientSession) -> bool:
        """Complete one token; returns whether it came back. What the engine reports of itself is read too."""
        self.suspicion.clear()
        try:
            async with asyncio.timeout(self.settings.check_s):
                self.why = await self._complete_token(session)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            said = describe_failure(error, "the check", self.settings.check_s)
            self.why = f"no completion of one token: {said}"
        except (UpstreamBrokenError, ReplicaFailedError) as error:
            self.why = str(error)
        passed = not self.why
        if passed and not (self.ready and self._now() < self._asked_again_at):
            self._asked_again_at = self._now() + ASK_AGAIN_S  # another engine may have come in its place
            self.counts_each = await self._counts_each_event(session)
        self.ready = passed
        self.breaker = self.breaker.on_check(passed=passed)
        if self.ready:
            await self._read_report(session)
        return self.ready

    async def _complete_token(self, session: aiohttp.ClientSession) -> str:
        """Return what is wrong with the completion of one token, "" = nothing."""
        check = self.settings.check
        asked = {"model": self.settings.engine_model, **_CHECKS[check]}
        async with session.post(self.url_for(check), json=asked, allow_redirects=False) as response:
            body = await _read_all(response)
            if response.status != 200:
                return f"status {response.status} to the completion of one token"
        read_whole(body)
        return ""

    async def _counts_each_event(self, session: aiohttp.ClientSession) -> bool:
        """Whether it takes `continuous_usage_stats`, and tells the tokens so far beside the first one of a stream."""
        check = self.settings.check
        if check is LlmOperation.EMBEDDING:
            return False
        options = {"include_usage": True, "continuous_usage_stats": True}
        asked = {"model": self.settings.engine_model, **_CHECKS[check], "stream": True, "stream_options": options}
        try:
            async with (
                asyncio.timeout(self.settings.check_s),
                session.post(self.url_for(check), json=asked, allow_redirects=False) as response,
            ):
                body = await _read_all(response) if response.status == 200 else b""
            return tells_each_usage(body)
        except (TimeoutError, aiohttp.ClientError, OSError, UpstreamBrokenError):
            return False

    async def _read_report(self, session: aiohttp.ClientSession) -> None:
        """Read the engine's load and the model's context length; both may be missing."""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError, msgspec.DecodeError, RecursionError):
            async with asyncio.timeout(REPORT_S):
                text = await _fetch(session, f"{self.name}/metrics")
                self.metrics = parse_metrics(text.decode(errors="replace"))
                if not self.context_tokens:
                    await self._read_context(session)

    async def _read_context(self, session: aiohttp.ClientSession) -> None:
        models = msgspec.json.decode(await _fetch(session, f"{self.name}/v1/models"), type=_ModelList)
        sizes = [each.max_model_len or 0 for each in models.data if each.id == self.settings.engine_model]
        self.context_tokens = max(sizes, default=0)


async def _read_all(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of a check. UpstreamBrokenError if it is far longer than one token's."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > MAX_CHECK_BYTES:
            raise UpstreamBrokenError("the completion of one token is too long")
    return bytes(body)


async def _fetch(session: aiohttp.ClientSession, url: str) -> bytes:
    """Return the body of a GET, "" unless the status is 200; at most 4 MiB."""
    async with session.get(url, allow_redirects=False) as response:
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > MAX_METRICS_BYTES:
                return b""
        return bytes(body) if response.status == 200 else b""
