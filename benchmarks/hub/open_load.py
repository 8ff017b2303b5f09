"""Open-loop HTTP load: Poisson requests, whether the hub keeps up or not, over kept connections."""

import asyncio
import json
import random
import time
from collections import deque
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.hub.slow_hub import VALUES

MAX_CONNECTIONS = 3000


class RequestKind(NamedTuple):
    """A kind of request: its priority in the protocol, how long its caller waits, its share of all."""

    name: str
    priority: int
    timeout_s: float
    share: float


class RequestOutcome(NamedTuple):
    """Result of one request; `at_s` is the time when it was due."""

    tenant: int
    wish: RequestKind
    status: int
    seconds: float
    retry_after: bool
    model: str
    at_s: float  # when it was due


class _OpenConnection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.answer: asyncio.Future[tuple[int, bytes, bytes]] | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, request: bytes) -> "asyncio.Future[tuple[int, bytes, bytes]]":
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self.answer is None:
            return
        head = bytes(self._buffer[:end]).lower()
        at = head.find(b"content-length:")
        size = int(head[at + 15 :].split(b"\r\n", 1)[0])
        if len(self._buffer) - end - 4 < size:
            return
        body, answer = bytes(self._buffer[end + 4 :]), self.answer
        self._buffer.clear()
        self.answer = None
        answer.set_result((int(head[9:12]), head, body))

    @property
    def closed(self) -> bool:
        return self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(exc or ConnectionResetError("closed"))


class OpenLoad:
    """Open-loop load generator. `model`: as it stands in the path, with a version or without one."""

    def __init__(
        self, url: str, keys: list[str], wishes: tuple[RequestKind, ...], model: str = "slow", seed: int = 1
    ) -> None:
        self.outcomes: list[RequestOutcome] = []
        self.lost: list[str] = []
        self.lags: list[float] = []  # how late this client itself was
        self.sent = 0
        self.nobody = 0  # times that nobody listened any more
        self._where = urlsplit(url)
        self._wishes = wishes
        self._tenants = len(keys)
        self._bytes = {(n, w): self._request(key, w, model) for n, key in enumerate(keys) for w in wishes}
        self._dice = random.Random(seed)
        self._idle: deque[_OpenConnection] = deque()
        self._open = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def _request(self, key: str, wish: RequestKind, model: str) -> bytes:
        parameters = {"priority": wish.priority, "timeout": int(wish.timeout_s * 1e6)}
        tensor = {"name": "input", "shape": [1, VALUES], "datatype": "FP32", "data": [0.5] * VALUES}
        body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        path = f"/v2/models/{model}/infer"
        head = f"POST {path} HTTP/1.1\r\nHost: {self._where.netloc}\r\nAuthorization: Bearer {key}\r\n"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    async def come(self, per_s: float, seconds: float) -> None:
        """Poisson arrivals for so long; then wait for the last answer."""
        began = due = time.perf_counter()
        weights = [wish.share for wish in self._wishes]
        while due < began + seconds:
            due += self._dice.expovariate(per_s)
            pause = due - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            wish = self._dice.choices(self._wishes, weights)[0]
            self.sent += 1
            task = asyncio.create_task(self._one(self._dice.randrange(self._tenants), wish, due - began))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self.lags.append(time.perf_counter() - due)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=30)

    async def _one(self, tenant: int, wish: RequestKind, at_s: float) -> None:
        began = time.perf_counter()
        try:
            line = self._reused() or await self._connect()
        except ConnectionRefusedError:
            self.nobody += 1
            return
        try:
            status, head, body = await line.ask(self._bytes[tenant, wish])
        except (OSError, RuntimeError) as error:
            self.lost.append(str(error) or type(error).__name__)
            return
        model = json.loads(body).get("model_version", "") if status == 200 else ""
        if b"connection: close" in head:
            self._open -= 1
        else:
            self._idle.append(line)
        took = time.perf_counter() - began
        self.outcomes.append(RequestOutcome(tenant, wish, status, took, b"retry-after:" in head, model, at_s))

    def _reused(self) -> _OpenConnection | None:
        while self._idle:
            line = self._idle.pop()
            if not line.closed:
                return line
            self._open -= 1
        return None

    async def _connect(self) -> _OpenConnection:
        if self._open >= MAX_CONNECTIONS:
            raise RuntimeError("too many connections of the client")
        self._open += 1
        _, line = await asyncio.get_running_loop().create_connection(
            _OpenConnection, self._where.hostname or "", self._where.port or 80
        )
        return line

    def close(self) -> None:
        for line in self._idle:
            line.transport.close()
