"""Keeps the leases of one hub: renews, takes its fair share, gives away, and tells the hub what it gained and lost.

Rule: a lease of which this process cannot be sure any more, by its own clock since it last asked to renew it, is lost:
the hub forgets its shards before another one may have them. Rule: what was lost is told at once, what was gained only
one group after another, since the hub reads meanwhile what is owed there.
"""

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.database.errors import name_fault
from cloud_hub.region.leases import TASKS, Lease, LeaseId, LeaseKind, LeaseTable, RegionTask
from policies.serving.shard_leases import ShardView, compute_share, plan_shards
from wire.process.logging import JsonLog, safe_name
from wire.protocol.topics import HUB_NAMES

LOOK_S = 0.5  # how often leases are looked at, so how late one that has ended is taken
_GUARD_S = 0.1


class ShardServer(Protocol):
    """The hub, as it is told which shards it serves."""

    def lose_shards(self, shards: frozenset[int]) -> None:
        """Forget these shards: another hub may serve them."""

    async def gain_shards(self, terms: dict[int, int]) -> None:
        """Serve these shards, under the terms of their leases. SQLAlchemyError if what is owed cannot be read."""


class _Step(NamedTuple):
    """Result of one look: when it began by this machine's clock, what is held, and what is to be given away.

    `ended_writes`: transactions of other processes, under leases that had ended, that were in the way.
    """

    began_s: float
    held: dict[LeaseId, Lease]
    give: tuple[LeaseId, ...]
    ended_writes: int = 0


class LeaseKeeper:
    """Owns the leases of this process. `settled` is set once the first shards that were taken are served."""

    def __init__(self, table: LeaseTable, log: JsonLog) -> None:
        self.settled = asyncio.Event()
        self.session = table.session
        self._table = table
        self._log = log
        self._held: dict[LeaseId, Lease] = {}
        self._served: dict[int, int] = {}  # terms of the shards that the hub was told to serve
        self._sure_until_s = 0.0
        self._draining = False
        self._changed = asyncio.Event()
        self._failed = False

    @property
    def shards(self) -> list[int]:
        """Shards that this hub serves."""
        return sorted(self._served)

    def does(self, task: RegionTask) -> bool:
        """Whether this hub does a task of the region."""
        return LeaseId(LeaseKind.TASK, TASKS.index(task)) in self._held and time.monotonic() < self._sure_until_s

    def drain(self) -> None:
        """Take nothing more, and count no longer among the hubs that share the shards."""
        self._draining = True

    async def give_all(self) -> None:
        """Give all leases away. Call it when everything is written."""
        await self._give(tuple(self._held))
        self._held.clear()
        self._table.close()

    async def run(self, server: ShardServer) -> None:
        """Keep the leases until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew(server), name="leases-renew")
            group.create_task(self._gain(server), name="leases-gain")
            group.create_task(self._guard(server), name="leases-guard")

    def on_fenced(self, server: ShardServer, shards: Iterable[int]) -> None:
        """A write was refused since these shards are not ours: they are lost, whatever was believed."""
        for shard in shards:
            self._held.pop(LeaseId(LeaseKind.SHARD, shard), None)
        self._lose(server, shards)

    def check_sure(self, server: ShardServer) -> None:
        """Lose everything if it was not renewed for as long as a lease lives: this process was stopped, or cut off."""
        if self._held and time.monotonic() >= self._sure_until_s:
            self._log.warning("leases_unsure", shards=len(self._served))
            self._held.clear()
            self._lose(server, tuple(self._served))

    async def _renew(self, server: ShardServer) -> None:
        while True:
            try:
                step = await asyncio.to_thread(self._step)
            except SQLAlchemyError as error:
                self._report(name_fault(error))
            else:
                self._report("")
                await self._accept(server, step)
            await asyncio.sleep(LOOK_S)

    def _step(self) -> _Step:
        """Look, decide and act once; on a thread of its own."""
        began_s, hub, session = time.monotonic(), self._table.hub, self._table.session
        own = LeaseId(LeaseKind.HUB, HUB_NAMES.index(hub))
        if self._draining:
            held = self._table.renew_and_take(())
            return _Step(began_s, held, (own,) if own in held else ())
        view = self._table.look()
        shards = ShardView(view.list_mine(session, LeaseKind.SHARD), view.list_free(hub, session, LeaseKind.SHARD))
        plan = plan_shards(shards, compute_share(hub, {*view.hubs(), hub}))
        tasks = view.list_free(hub, session, LeaseKind.TASK)
        wanted = [own, *_ids(LeaseKind.SHARD, plan.take), *_ids(LeaseKind.TASK, tasks)]
        held = self._table.renew_and_take(wanted)
        missed = [each for each in wanted if each not in held]
        ended = self._table.end_writes(missed) if missed else 0  # they are taken at the next look
        return _Step(began_s, held, tuple(_ids(LeaseKind.SHARD, plan.give)), ended)

    async def _accept(self, server: ShardServer, step: _Step) -> None:
        """Take over what a look showed: what is not held any more is lost, and what is given is lost first."""
        if step.ended_writes:
            self._log.warning("lease_writes_ended", count=step.ended_writes)
        given = set(step.give)
        self._held = {each: lease for each, lease in step.held.items() if each not in given}
        self._sure_until_s = step.began_s + self._table.life_s
        self._lose(server, [shard for shard, term in self._served.items() if self._term(shard) != term])
        await self._give(step.give)
        self._changed.set()

    async def _give(self, leases: Collection[LeaseId]) -> None:
        if not leases:
            return
        try:
            await asyncio.to_thread(self._table.give, leases)
        except SQLAlchemyError as error:  # they end by themselves, and nothing is served of them until then
            self._report(name_fault(error))

    def _term(self, shard: int) -> int | None:
        lease = self._held.get(LeaseId(LeaseKind.SHARD, shard))
        return lease.term if lease else None

    def _lose(self, server: ShardServer, shards: Iterable[int]) -> None:
        lost = frozenset(shard for shard in shards if self._served.pop(shard, None) is not None)
        if lost:
            self._log.info("shards_lost", count=len(lost), left=len(self._served))
            server.lose_shards(lost)

    async def _gain(self, server: ShardServer) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            held = [each for each in self._held.values() if each.id.kind is LeaseKind.SHARD]
            terms = {each.id.number: each.term for each in held if each.id.number not in self._served}
            if not terms or await self._gain_some(server, terms):
                self.settled.set()

    async def _gain_some(self, server: ShardServer, terms: dict[int, int]) -> bool:
        """Serve more shards; False if what is owed there cannot be read: tried again after the next look."""
        self._served |= terms
        try:
            await server.gain_shards(terms)
        except SQLAlchemyError as error:
            self._report(name_fault(error))
            self._lose(server, [shard for shard, term in terms.items() if self._served.get(shard) == term])
            return False
        self._log.info("shards_gained", count=len(terms), all=len(self._served))
        return True

    async def _guard(self, server: ShardServer) -> None:
        while True:
            await asyncio.sleep(_GUARD_S)
            self.check_sure(server)

    def _report(self, fault: str) -> None:
        """Log that the table cannot be used, once, and that it can be used again."""
        if fault and not self._failed:
            self._log.warning("leases_failed", error=safe_name(fault))
        elif self._failed and not fault:
            self._log.info("leases_work")
        self._failed = bool(fault)


def _ids(kind: LeaseKind, numbers: Iterable[int]) -> list[LeaseId]:
    return [LeaseId(kind, number) for number in numbers]
