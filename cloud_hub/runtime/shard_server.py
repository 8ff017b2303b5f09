"""The shards that a hub serves by lease: its core, store and link are told of them in the one right order.

Rule: what is gained is subscribed to before what is owed is read, so that nothing falls between; what arrives meanwhile
waits here. What is lost is forgotten first, then unsubscribed from.
"""

import asyncio
from collections.abc import Callable

from cloud_hub.core.core import HubCore
from cloud_hub.region.lease_keeper import LeaseKeeper
from cloud_hub.runtime.link import HubLink
from cloud_hub.storage.gateway import StoreGateway
from wire.errors import RemoteError
from wire.protocol.topics import compute_shard, parse_up_topic
from wire.transport.base import IncomingMessage

UNSUBSCRIBE_S = 0.2
MAX_PARKED = 65_536  # messages; what is beyond is dropped, and the devices send it again


RateDivider = Callable[[int], None]  # told by how many hubs the region's rates are divided


class LeasedShards:
    """Tells core, store and link which shards are served. `hear` passes an event to the core and flushes.

    `told`: who has rates of the whole region, and who is told which shards others serve now.
    """

    def __init__(
        self,
        core: HubCore,
        store: StoreGateway,
        link: HubLink,
        hear: Callable[..., None],
        told: tuple[tuple[RateDivider, ...], Callable[[frozenset[int]], None]],
    ) -> None:
        self._core = core
        self._store = store
        self._link = link
        self._hear = hear
        self._rated, self._on_lost = told
        self._hubs = 1
        self._parked: dict[int, list[IncomingMessage]] = {}  # of shards that are being gained
        self._count = 0

    async def run(self, leases: LeaseKeeper) -> None:
        """Keep the leases, and unsubscribe from what was lost, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(leases.run(self), name="leases")
            group.create_task(self._unsubscribe_lost(), name="leases-filters")

    async def _unsubscribe_lost(self) -> None:
        while True:
            await asyncio.sleep(UNSUBSCRIBE_S)
            await self._link.synchronize()

    def lose_shards(self, shards: frozenset[int]) -> None:
        """Forget these shards: another hub may serve them."""
        self._store.release_shards(shards)
        self._hear(self._core.on_lost, shards)
        self._link.remove_shards(shards)
        self._on_lost(shards)
        for shard in shards:
            self._count -= len(self._parked.pop(shard, ()))

    def count_hubs(self, hubs: int) -> None:
        """So many hubs of the region are alive, this one among them."""
        if hubs != self._hubs:
            self._hubs = hubs
            self._hear(self._core.news.on_hubs, hubs)
            for divide in self._rated:
                divide(hubs)

    async def gain_shards(self, terms: dict[int, int]) -> None:
        """Serve these shards, under the terms of their leases. SQLAlchemyError if what is owed cannot be read."""
        self._parked |= {shard: [] for shard in terms}
        self._store.claim_shards(terms)
        self._link.add_shards(frozenset(terms))
        await self._link.synchronize()
        owed = await self._store.read_owed(terms)
        gained = terms.keys() & self._parked.keys()  # the others were lost again meanwhile
        self._hear(self._core.on_gained, gained, [each for each in owed if compute_shard(each.key.device) in gained])
        for shard in gained:
            waited = self._parked.pop(shard)
            self._count -= len(waited)
            for message in waited:
                self._hear(self._core.on_message, message.topic, message.payload)

    def park(self, message: IncomingMessage) -> bool:
        """Keep a message of a shard that is being gained until what is owed there is known; False if it is none."""
        if not self._parked:
            return False
        try:
            waiting = self._parked.get(compute_shard(parse_up_topic(message.topic)[0]))
        except RemoteError:
            return False
        if waiting is not None and self._count < MAX_PARKED:
            self._count += 1
            waiting.append(message)
        return waiting is not None
