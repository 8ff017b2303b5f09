"""The two transports: they obey an operation's commands over HTTP, once blocking and once on asyncio.

Rule: nothing is decided here. No redirect is followed and no proxy or credential of the environment is used, so that a
token goes to the address named and nowhere else.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from typing import Any, TypeVar

import httpx2

from skerry_client.addresses import Address
from skerry_client.errors import APIConnectionError, APITimeoutError
from skerry_client.exchange.commands import Command, Item, Items, Open, Pause, Read, Reply, Request, Steps, advance

CONNECT_TIMEOUT_S = 5.0
T = TypeVar("T")


class BlockingTransport:
    """A connection pool that obeys operations in the caller's thread. `timeout_s`: for each step of a reply."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        transport = httpx2.HTTPTransport(verify=address.tls_context(), uds=address.unix or None)
        self._http = httpx2.Client(transport=transport, base_url=address.base, headers=address.headers, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run_steps(self, steps: Steps[T]) -> T:
        """Obey an operation to its end, and return its result."""
        with closing(_BlockingStream(steps)) as stream:
            try:
                command = next(steps)
                while True:
                    command = advance(steps, self._perform(command, stream))
            except StopIteration as ended:
                result: T = ended.value
        return result

    def iterate_items(self, steps: Items[T]) -> Iterator[T]:
        """Obey an iteration, and yield its items. Closing the iterator closes its connection."""
        with closing(_BlockingStream(steps)) as stream:
            while (item := self._find_item(steps, stream)) is not None:
                yield item.value

    def _find_item(self, steps: Items[T], stream: "_BlockingStream") -> Item[T] | None:
        """Obey commands until the next item; None at the end."""
        try:
            command = next(steps)
            while not isinstance(command, Item):
                command = advance(steps, self._perform(command, stream))
        except StopIteration:
            return None
        return command

    def _perform(self, command: Command, stream: "_BlockingStream") -> Any:
        """Return what came of a command, or its error."""
        began = time.monotonic()
        try:
            match command:
                case Request():
                    reply = self._http.send(_build(self._http, command, command.timeout_s or self._timeout_s))
                    return _make_reply(reply, reply.content, began)
                case Pause():
                    time.sleep(random.uniform(command.least_s, command.most_s))  # noqa: S311 - jitter
                    return None
                case Open():
                    asked = _build(self._http, command.request, command.idle_s)
                    reply = self._http.send(asked, stream=True)
                    return _make_reply(reply, stream.set_reply(reply), began)
                case Read():
                    return stream.read()
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            return _explain(error, self._address, began)


class AsyncTransport:
    """A connection pool that obeys operations on the running asyncio loop. `timeout_s`: for each step of a reply."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        transport = httpx2.AsyncHTTPTransport(verify=address.tls_context(), uds=address.unix or None)
        self._http = httpx2.AsyncClient(
            transport=transport, base_url=address.base, headers=address.headers, trust_env=False
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run_steps(self, steps: Steps[T]) -> T:
        """Obey an operation to its end, and return its result."""
        async with aclosing(_AsyncStream(steps)) as stream:
            try:
                command = next(steps)
                while True:
                    command = advance(steps, await self._perform(command, stream))
            except StopIteration as ended:
                result: T = ended.value
        return result

    async def iterate_items(self, steps: Items[T]) -> AsyncIterator[T]:
        """Obey an iteration, and yield its items. Closing the iterator closes its connection."""
        async with aclosing(_AsyncStream(steps)) as stream:
            while (item := await self._find_item(steps, stream)) is not None:
                yield item.value

    async def _find_item(self, steps: Items[T], stream: "_AsyncStream") -> Item[T] | None:
        """Obey commands until the next item; None at the end."""
        try:
            command = next(steps)
            while not isinstance(command, Item):
                command = advance(steps, await self._perform(command, stream))
        except StopIteration:
            return None
        return command

    async def _perform(self, command: Command, stream: "_AsyncStream") -> Any:
        """Return what came of a command, or its error."""
        began = time.monotonic()
        try:
            match command:
                case Request():
                    reply = await self._http.send(_build(self._http, command, command.timeout_s or self._timeout_s))
                    return _make_reply(reply, reply.content, began)
                case Pause():
                    await asyncio.sleep(random.uniform(command.least_s, command.most_s))  # noqa: S311 - jitter
                    return None
                case Open():
                    asked = _build(self._http, command.request, command.idle_s)
                    reply = await self._http.send(asked, stream=True)
                    return _make_reply(reply, await stream.set_reply(reply), began)
                case Read():
                    return await stream.read()
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            return _explain(error, self._address, began)


class _BlockingStream:
    """The operation under way and the reply that it has opened, if it has opened one; both are closed with it."""

    def __init__(self, steps: Steps[Any] | Items[Any]) -> None:
        self._steps = steps
        self._reply: httpx2.Response | None = None
        self._pieces: Iterator[bytes] = iter(())

    def set_reply(self, reply: httpx2.Response) -> bytes:
        """Take an opened reply in place of the one before; return its body if it is a refusal."""
        self._close_reply()
        self._reply = reply
        body = b"" if reply.is_success else reply.read()
        self._pieces = reply.iter_raw() if reply.is_success else iter(())
        return body

    def read(self) -> bytes:
        """Return the next piece, empty at the end."""
        return next(self._pieces, b"")

    def _close_reply(self) -> None:
        if self._reply is not None:
            self._reply.close()

    def close(self) -> None:
        self._close_reply()
        self._steps.close()


class _AsyncStream:
    """As `_BlockingStream`, on asyncio."""

    def __init__(self, steps: Steps[Any] | Items[Any]) -> None:
        self._steps = steps
        self._reply: httpx2.Response | None = None
        self._pieces: AsyncIterator[bytes] = _no_pieces()

    async def set_reply(self, reply: httpx2.Response) -> bytes:
        """Take an opened reply in place of the one before; return its body if it is a refusal."""
        await self._close_reply()
        self._reply = reply
        body = b"" if reply.is_success else await reply.aread()
        self._pieces = reply.aiter_raw() if reply.is_success else _no_pieces()
        return body

    async def read(self) -> bytes:
        """Return the next piece, empty at the end."""
        return await anext(self._pieces, b"")

    async def _close_reply(self) -> None:
        if self._reply is not None:
            await self._reply.aclose()

    async def aclose(self) -> None:
        await self._close_reply()
        self._steps.close()


async def _no_pieces() -> AsyncIterator[bytes]:
    for _ in range(0):
        yield b""


def _build(client: httpx2.Client | httpx2.AsyncClient, asked: Request, timeout_s: float) -> httpx2.Request:
    timeout = httpx2.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
    return client.build_request(asked.method, asked.path, content=asked.body, headers=asked.headers, timeout=timeout)


def _make_reply(reply: httpx2.Response, body: bytes, began: float) -> Reply:
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return Reply(reply.status_code, headers, body, time.monotonic() - began)


def _explain(error: Exception, address: Address, began: float) -> APIConnectionError:
    """Return our error of an exchange that failed, with what to do."""
    kind = APITimeoutError if isinstance(error, httpx2.TimeoutException) else APIConnectionError
    unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.InvalidURL)
    why = str(error) or type(error).__name__
    line = f"{address.shown}: nobody answers ({why}); is the {address.server} running there?"
    if not unsent:
        line = f"{address.shown}: no whole reply came ({why}); the {address.server} may have ended"
    return kind(line, sent=not unsent, elapsed_s=time.monotonic() - began)
