"""The socket's plain side: a proxy that a device takes for its broker, and the broker for the device."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from cloud_hub.security.authority import CertificateFiles


class Plain:
    """`carried`: MQTT in clear, both ways. `server`, `device`: certificates with keys; `ca`: whom both sides trust."""

    def __init__(self, target: int, server: CertificateFiles, device: Path, ca: Path) -> None:
        self.carried = bytearray()
        self._target = target
        self.inner = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.inner.load_cert_chain(server.certificate, server.key)
        self._outer = ssl.create_default_context(cafile=ca)
        self._outer.load_cert_chain(device)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._target, ssl=self._outer)
            try:
                await asyncio.gather(self._carry(reader, there), self._carry(there_reader, writer))
            finally:
                there.transport.abort()
        except OSError:  # nobody is there, or not any more
            return
        finally:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65536):
                self.carried += data
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def in_clear(plain: Plain) -> AsyncIterator[int]:
    """The port to connect to."""
    server = await asyncio.start_server(plain.accept, "127.0.0.1", 0, ssl=plain.inner)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
