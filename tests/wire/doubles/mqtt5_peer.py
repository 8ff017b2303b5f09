"""A peer of a connection that speaks MQTT 5 by another implementation than ours, `mqtt5`."""

import asyncio
from contextlib import suppress
from typing import Any

import mqtt5


class Mqtt5Peer:
    """A broker of a few lines: accepts, keeps what it receives, and sends what a test has it send.

    `connack` None: it never answers a CONNECT. `ended`: its connection is closed.
    """

    def __init__(self) -> None:
        self.writer: asyncio.StreamWriter
        self.received: list[Any] = []
        self.more = asyncio.Condition()
        self.ended = asyncio.Event()
        self.connack: mqtt5.ConnAckPacket | None = mqtt5.ConnAckPacket()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer, data = writer, b""
        with suppress(ConnectionError):
            while piece := await reader.read(65536):
                data += piece
                while data:
                    try:
                        packet, size = mqtt5.read(memoryview(data))
                    except IndexError:
                        break
                    data = data[size:]
                    self.answer(packet)
                    async with self.more:
                        self.received.append(packet)
                        self.more.notify_all()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self.ended.set()

    def answer(self, packet: Any) -> None:
        """Answer a packet by itself: a CONNECT alone, unless a subclass knows more."""
        if isinstance(packet, mqtt5.ConnectPacket) and self.connack is not None:
            self.send(self.connack)

    def send(self, *packets: Any) -> None:
        self.writer.write(b"".join(packet.write() for packet in packets))

    async def wait_for(self, kind: type, count: int = 1) -> list[Any]:
        """The first `count` packets of a kind, once they have come."""
        async with asyncio.timeout(60), self.more:
            await self.more.wait_for(lambda: len(self.find(kind)) >= count)
        return self.find(kind)[:count]

    def find(self, kind: type) -> list[Any]:
        return [each for each in self.received if isinstance(each, kind)]
