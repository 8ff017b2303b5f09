"""The `Transport` interface, and an in-memory broker and transport for tests and simulations.

Rule: a transport promises nothing. `DeliveryOutcome` is what the broker said of one message; only a signed message of
the hub (Receipt, Verdict, Refusal) changes the state of a question.
"""

import asyncio
from collections import defaultdict
from enum import StrEnum
from typing import NamedTuple, Protocol

from wire.errors import LocalError
from wire.protocol.codec import MAX_FRAME_BYTES

MAX_DRAIN_MESSAGES = 64


class DeliveryOutcome(StrEnum):
    """Outcome of one publish, as far as the broker reports it (MQTT 5 PUBACK reason codes)."""

    TAKEN = "taken"  # PUBACK 0x00: proves nothing about the subscriber
    NOBODY = "nobody"  # PUBACK 0x10
    DENIED = "denied"  # PUBACK >= 0x80
    LOST = "lost"  # the link went before the PUBACK came


class IncomingMessage(NamedTuple):
    """A received message: its topic and the bytes of its payload.

    `retained`: the broker had kept it, and hands it on because of a new subscription: it may be of any age.
    """

    topic: str
    payload: bytes
    retained: bool = False


class LinkLostError(Exception):
    """The connection is lost or could not be made; its owner reconnects with jitter.

    `sent_bytes`: bytes that a failed connection attempt had already sent.
    """

    sent_bytes = 0


class SessionTakenOverError(LinkLostError):
    """Another connection of our client id has ended ours: to connect again at once would end that one in turn."""


class Transport(Protocol):
    """Interface of one connection to a broker. A new object is made for each reconnect."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that the socket has sent, all layers above TCP, each once; also after its end.

        0 where the transport does not count.
        """
        ...

    async def subscribe(self, filters: tuple[str, ...]) -> None:
        """Subscribe to topic filters. Raises LinkLostError if the link is gone or the broker refuses one."""
        ...

    async def unsubscribe(self, filters: tuple[str, ...]) -> None:
        """Unsubscribe from topic filters. Raises LinkLostError if the link is gone."""
        ...

    def post(self, topic: str, payload: bytes) -> "asyncio.Future[DeliveryOutcome]":
        """Publish a message without waiting; the future holds what the broker said of it.

        Raises LocalError if the broker would refuse the size, LinkLostError if there is no link.
        """
        ...

    async def receive(self) -> list[IncomingMessage]:
        """Wait for a message, then take what else has arrived (at most `MAX_DRAIN_MESSAGES`).

        Raises LinkLostError when the connection ends.
        """
        ...

    async def close(self) -> None:
        """Disconnect; never raises."""
        ...


class MemoryBroker:
    """Broker inside one event loop: routes between `MemoryTransport`s, with single-level `+` filters.

    `carried`: every message published. `up` = False refuses new connections.
    """

    def __init__(self) -> None:
        self.up = True
        self.carried: list[IncomingMessage] = []
        self._subscribers: dict[str, list[MemoryTransport]] = defaultdict(list)
        self._connected: list[MemoryTransport] = []

    def connect(self) -> "MemoryTransport":
        """A new connection. Raises LinkLostError while the broker is down."""
        if not self.up:
            raise LinkLostError("broker down")
        return MemoryTransport(self)

    def add_connection(self, transport: "MemoryTransport") -> None:
        """Register a connection."""
        self._connected.append(transport)

    def remove_connection(self, transport: "MemoryTransport") -> None:
        """Remove an ended connection: nothing is routed to it any more."""
        self._connected = [t for t in self._connected if t is not transport]
        for pattern, transports in self._subscribers.items():
            self._subscribers[pattern] = [t for t in transports if t is not transport]

    def subscribe(self, pattern: str, transport: "MemoryTransport") -> None:
        """Route messages whose topic matches `pattern` to `transport`."""
        self._subscribers[pattern].append(transport)

    def unsubscribe(self, pattern: str, transport: "MemoryTransport") -> None:
        """Route messages whose topic matches `pattern` to `transport` no longer."""
        self._subscribers[pattern] = [t for t in self._subscribers[pattern] if t is not transport]

    def publish(self, message: IncomingMessage) -> DeliveryOutcome:
        """Deliver a message to every subscriber; NOBODY if there is none."""
        self.carried.append(message)
        hits = [t for pattern, ts in self._subscribers.items() if _matches_filter(pattern, message.topic) for t in ts]
        for transport in hits:
            transport.deliver_message(message)
        return DeliveryOutcome.TAKEN if hits else DeliveryOutcome.NOBODY

    def kill(self) -> None:
        """End every connection, subscribed or not; `up = True` lets new ones in."""
        self.up = False
        for transport in self._connected:
            transport.lose_connection()
        self._connected.clear()
        self._subscribers.clear()


class MemoryTransport:
    """In-memory `Transport` on a `MemoryBroker`: the shipped test double."""

    def __init__(self, broker: MemoryBroker, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._broker = broker
        self._max_bytes = max_bytes
        self._inbox: asyncio.Queue[IncomingMessage | None] = asyncio.Queue()
        self._lost = False
        self.sent_bytes = 0
        broker.add_connection(self)

    async def subscribe(self, filters: tuple[str, ...]) -> None:
        """Subscribe at the broker. Raises LinkLostError if the connection is lost."""
        if self._lost:
            raise LinkLostError("broker gone")
        for pattern in filters:
            self._broker.subscribe(pattern, self)

    async def unsubscribe(self, filters: tuple[str, ...]) -> None:
        """Unsubscribe at the broker. Raises LinkLostError if the connection is lost."""
        if self._lost:
            raise LinkLostError("broker gone")
        for pattern in filters:
            self._broker.unsubscribe(pattern, self)

    def post(self, topic: str, payload: bytes) -> "asyncio.Future[DeliveryOutcome]":
        """Publish at once; the future is already done."""
        if len(payload) > self._max_bytes:
            raise LocalError(f"{len(payload)} bytes, the broker takes {self._max_bytes}")
        if self._lost or not self._broker.up:
            raise LinkLostError("broker down")
        self.sent_bytes += len(payload)
        future: asyncio.Future[DeliveryOutcome] = asyncio.get_running_loop().create_future()
        future.set_result(self._broker.publish(IncomingMessage(topic, payload)))
        return future

    async def receive(self) -> list[IncomingMessage]:
        """Wait for a message, then take what else has arrived."""
        if self._lost and self._inbox.empty():
            raise LinkLostError("broker gone")  # every call says so, not only the first
        first = await self._inbox.get()
        batch: list[IncomingMessage] = []
        while first is not None:
            batch.append(first)
            if len(batch) == MAX_DRAIN_MESSAGES or self._inbox.empty():
                return batch
            first = self._inbox.get_nowait()
        if batch:
            self._inbox.put_nowait(None)
            return batch
        raise LinkLostError("broker gone")

    async def close(self) -> None:
        """Disconnect from the broker."""
        self._broker.remove_connection(self)
        self.lose_connection()

    def deliver_message(self, message: IncomingMessage) -> None:
        """Put a message into the inbox; called by the broker."""
        self._inbox.put_nowait(message)

    def lose_connection(self) -> None:
        """Lose the connection: what has arrived can still be received, then LinkLostError."""
        self._lost = True
        self._inbox.put_nowait(None)


def _matches_filter(pattern: str, topic: str) -> bool:
    """Whether a topic matches a filter in which `+` stands for one level."""
    wanted, levels = pattern.split("/"), topic.split("/")
    return len(wanted) == len(levels) and all(w in ("+", level) for w, level in zip(wanted, levels, strict=True))
