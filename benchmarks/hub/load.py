"""Closed-loop HTTP load client for every server that is compared: the same bytes over kept connections.

Its parsing is as little as will do, so that the two cores are left to the servers.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

_LENGTH = b"content-length:"


class HttpTarget(NamedTuple):
    """What is asked, where. `headers` beside Host, Content-Length and Content-Type."""

    url: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    def build_request(self) -> bytes:
        where = urlsplit(self.url)
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        kind = "" if any(name == "Content-Type" for name, _ in self.headers) else "Content-Type: application/json\r\n"
        head = f"POST {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {len(self.body)}\r\n{kind}{more}"
        return head.encode() + b"\r\n" + self.body


class LoadConnection(asyncio.Protocol):
    """One connection that asks again as soon as it is answered, until told to stop."""

    def __init__(self, request: bytes) -> None:
        self.taken: list[float] = []
        self.failed: list[bytes] = []
        self.going = True
        self.idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._buffer = bytearray()
        self._began = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def ask(self) -> None:
        self._began = time.perf_counter()
        if self._transport is not None:
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        if not self._is_complete(head.lower(), end + 4):
            return
        self.taken.append(time.perf_counter() - self._began)
        if b" 200 " not in head[:16]:
            self.failed.append(bytes(self._buffer[:300]))
        self._buffer.clear()
        if self.going:
            self.ask()
        elif not self.idle.done():
            self.idle.set_result(None)

    def _is_complete(self, head: bytes, begin: int) -> bool:
        at = head.find(_LENGTH)
        if at < 0:  # chunked: the last chunk is empty
            return self._buffer.endswith(b"0\r\n\r\n")
        return len(self._buffer) - begin >= int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.idle.done():
            self.idle.set_exception(exc or ConnectionResetError("the server closed the connection"))


class LoadResult(NamedTuple):
    """Throughput of one measurement. `taken`: seconds of each answer of the measured time."""

    per_s: float
    taken: list[float]


async def run_closed_loop(target: HttpTarget, clients: int, seconds: float, warm_s: float = 1.0) -> LoadResult:
    """Closed loop: each client asks again once it has its answer. RuntimeError if an answer is not 200."""
    where = urlsplit(target.url)
    loop, request = asyncio.get_running_loop(), target.build_request()
    pairs = [
        await loop.create_connection(lambda: LoadConnection(request), where.hostname or "", where.port or 80)
        for _ in range(clients)
    ]
    askers = [asker for _, asker in pairs]
    for asker in askers:
        asker.ask()
    await asyncio.sleep(warm_s)
    began, before = time.perf_counter(), [len(asker.taken) for asker in askers]
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    taken = [each for asker, start in zip(askers, before, strict=True) for each in asker.taken[start:]]
    await _stop_connections(pairs)
    failed = next((asker.failed[0] for asker in askers if asker.failed), b"")
    if failed:
        raise RuntimeError(f"{target.url}: {failed.decode(errors='replace')}")
    return LoadResult(len(taken) / took, taken)


async def _stop_connections(pairs: Sequence[tuple[asyncio.BaseTransport, LoadConnection]]) -> None:
    for _, asker in pairs:
        asker.going = False
    await asyncio.wait([asker.idle for _, asker in pairs], timeout=5)
    for transport, asker in pairs:
        transport.close()
        if not asker.idle.done():
            asker.idle.cancel()
