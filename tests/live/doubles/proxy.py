"""A TCP proxy of our own between a device and its broker: it can be slow or cut, and it keeps what it carried."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """On a free port in front of `target`. `delay_s`: each way; `carried`: bytes in both directions since the start."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delay_s = 0.0
        self.carried = bytearray()
        self._cut = False
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Every connection ends at once, and no new one gets through."""
        self._cut = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self._cut = False

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = {writer}
        try:
            if self._cut:
                return
            self._writers.add(writer)
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
            mine.add(there_writer)
            self._writers.add(there_writer)
            await asyncio.gather(self._carry(reader, there_writer), self._carry(there_reader, writer))
        except OSError:  # nobody is there, or not any more
            return
        finally:
            self._writers -= mine
            for each in mine:
                each.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.carried += data
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def proxied(target: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
