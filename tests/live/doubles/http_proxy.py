"""An HTTP proxy of our own that knows CONNECT and nothing else, with or without a password."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class HttpProxy:
    """On a free port. `credentials`: USER:PASSWORD that it asks for, "" = none; `targets`: what it was asked for.

    `names`: addresses of hosts that only the proxy can look up; `redirects`: targets that it connects to another place.
    """

    credentials: str = ""
    port: int = 0
    targets: list[str] = field(default_factory=list)
    carried: bytearray = field(default_factory=bytearray)
    refused: int = 0
    names: dict[str, str] = field(default_factory=dict)
    redirects: dict[str, tuple[str, int]] = field(default_factory=dict)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            verb, target, _ = head.split("\r\n", 1)[0].split()
            wanted = base64.b64encode(self.credentials.encode()).decode()
            if self.credentials and f"Proxy-Authorization: Basic {wanted}\r\n" not in head:
                self.refused += 1
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n")
                await writer.drain()
                return
            assert verb == "CONNECT"
            self.targets.append(target)
            host, _, port = target.rpartition(":")
            there_reader, there = await asyncio.open_connection(
                *self.redirects.get(target, (self.names.get(host, host), int(port)))
            )
            try:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(self._carry(reader, there), self._carry(there_reader, writer))
            finally:
                there.transport.abort()
                writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.carried += data
                writer.write(data)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def proxying(credentials: str = "") -> AsyncIterator[HttpProxy]:
    proxy = HttpProxy(credentials)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
