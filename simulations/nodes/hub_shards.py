"""The shards that one process of a hub serves by lease, as `cloud_hub.runtime.shard_server` tells core, store and link.

Rule: what is gained is subscribed to before what is owed is read; what arrives meanwhile waits here. What is lost is
forgotten first, then unsubscribed from.
"""

from typing import Protocol

from cloud_hub.core.commands import Command, StoredQuestion
from cloud_hub.core.core import HubCore
from simulations.kernel.process_clock import ProcessClock
from simulations.nodes.broker import ClientConnection
from simulations.nodes.hub_leases import SimulatedKeeper
from simulations.nodes.hub_store import HubStore, ProcessContext
from wire.protocol.topics import compute_shard, parse_up_topic

UNSUBSCRIBE_S = 0.2


class LeasedProcess(Protocol):
    """The process whose shards these are."""

    line: ClientConnection
    subscribed: frozenset[int]
    store: HubStore

    @property
    def core(self) -> HubCore:
        """The core of the current life."""

    def hear(self, commands: list[Command]) -> None:
        """Execute what the core said to an event, and flush."""

    def hub_now(self) -> float:
        """Hub time in seconds since 1970."""


class SimulatedShards:
    """Shards of one life of a process. `wanted`: those that it has subscribed to, or does when it is connected."""

    def __init__(self, context: ProcessContext, member: str, process: LeasedProcess) -> None:
        self.wanted: frozenset[int] = frozenset()
        self.keeper = SimulatedKeeper(context, member, process.store.session, self)
        self._context = context
        self._process = process
        self._hubs = 1
        self._parked: dict[int, list[tuple[str, bytes]]] = {}  # of shards that are being gained

    def lose_shards(self, shards: frozenset[int]) -> None:
        """Forget these shards: another process may serve them."""
        process = self._process
        process.store.release_shards(shards)
        process.hear(process.core.on_lost(shards, process.hub_now()))
        self.wanted -= shards
        for shard in shards:
            self._parked.pop(shard, None)
        self._context.clock.schedule_after(self._context.dice.uniform(0.0, UNSUBSCRIBE_S), self._synchronize)

    def count_hubs(self, hubs: int) -> None:
        """So many processes share the shards: of what a tenant may send each takes its part."""
        if hubs != self._hubs:
            self._hubs = hubs
            self._process.hear(self._process.core.news.on_hubs(hubs, self._process.hub_now()))

    def gain_shards(self, terms: dict[int, int]) -> None:
        """Begin to serve these shards, under the terms of their leases."""
        self._parked |= {shard: [] for shard in terms}
        self._process.store.claim_shards(terms)
        self.wanted |= terms.keys()
        self._context.clock.schedule_after(self._context.draw_trip_s(), self._subscribe_and_read, terms)

    def park(self, topic: str, payload: bytes) -> bool:
        """Keep a message of a shard that is being gained until what is owed there is known; False if it is none."""
        waiting = self._parked.get(compute_shard(parse_up_topic(topic)[0])) if self._parked else None
        if waiting is not None:
            waiting.append((topic, payload))
        return waiting is not None

    def _subscribe_and_read(self, terms: dict[int, int]) -> None:
        self._synchronize()
        context = self._context
        context.kernel.schedule_after(context.draw_trip_s(), self._read_owed, context.clock, terms)

    def _synchronize(self) -> None:
        if self._process.line.up:
            self._process.subscribed = self.wanted

    def _read_owed(self, clock: ProcessClock, terms: dict[int, int]) -> None:
        """At the database: read what is owed, whatever the process does meanwhile."""
        owed = None if self._context.link.cut else self._context.disk.owed_questions(terms)
        clock.schedule_after(self._context.draw_trip_s(), self._on_owed, terms, owed)

    def _on_owed(self, terms: dict[int, int], owed: list[StoredQuestion] | None) -> None:
        if owed is None:
            self.keeper.end_gain(terms, served=False)
            return
        process = self._process
        gained = terms.keys() & self._parked.keys()  # the others were lost again meanwhile
        mine = [each for each in owed if compute_shard(each.key.device) in gained]
        process.hear(process.core.on_gained(gained, mine, process.hub_now()))
        for shard in sorted(gained):
            for message in self._parked.pop(shard, ()):
                process.hear(process.core.on_message(*message, process.hub_now()))
        self.keeper.end_gain(terms, served=True)
