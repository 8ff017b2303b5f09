"""The hub's connection to the broker: connect, subscribe, hand over what comes in batches, and again after a loss.

Rule: nothing is promised here. What could not be sent is dropped and counted; the device's `Ask` heals it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from policies.monitoring.backoff import delay
from wire.errors import LocalError
from wire.protocol.topics import hub_filters
from wire.transport.base import Incoming, LinkLostError, Transport

TransportFactory = Callable[[], Awaitable[Transport]]
BASE_S = 0.1
CAP_S = 10.0


class Link:
    """`dice` gives numbers in 0..1 for the reconnect's full jitter. `up` = subscribed."""

    def __init__(
        self, connect: TransportFactory, on_batch: Callable[[list[Incoming]], None], dice: Callable[[], float]
    ) -> None:
        self.up = False
        self.counts: Counter[str] = Counter()
        self._connect = connect
        self._on_batch = on_batch
        self._dice = dice
        self._transport: Transport | None = None

    async def run(self) -> None:
        attempt = 0
        while True:
            try:
                await self._once()
            except LinkLostError:
                attempt = 0 if self.up else attempt + 1
                self.counts["link.lost" if self.up else "link.refused"] += 1
            finally:
                await self._leave()
            await asyncio.sleep(delay(attempt, self._dice(), BASE_S, CAP_S))

    def post(self, topic: str, payload: bytes) -> None:
        if self._transport is None or not self.up:
            self.counts["link.unsent"] += 1
            return
        try:
            self._transport.post(topic, payload)
        except (LinkLostError, LocalError):
            self.counts["link.unsent"] += 1

    async def _once(self) -> None:
        """One connection from its beginning to its loss."""
        self._transport = await self._connect()
        await self._transport.subscribe(hub_filters())
        self.up = True
        self.counts["link.connected"] += 1
        while True:
            self._on_batch(await self._transport.receive())
            await asyncio.sleep(0)  # a full inbox never suspends: sockets, store and engines must get their turn

    async def _leave(self) -> None:
        self.up = False
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()
