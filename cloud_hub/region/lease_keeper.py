"""Keeps the leases of one hub: renews, takes its fair share, gives away, and tells the hub what it gained and lost.

What it decides stands in `held_leases`. Rule: what was lost is told at once, what was gained only one group after
another, since the hub reads meanwhile what is owed there.
"""

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.database.errors import log_fault, name_fault
from cloud_hub.region.held_leases import HeldLeases, plan_drain, plan_leases
from cloud_hub.region.leases import Lease, LeaseId, LeaseTable, RegionTask
from wire.process.logging import JsonLog

LOOK_S = 0.5  # how often leases are looked at, so how late one that has ended is taken
_GUARD_S = 0.1


class ShardServer(Protocol):
    """The hub, as it is told which shards it serves, and beside how many others."""

    def lose_shards(self, shards: frozenset[int]) -> None:
        """Forget these shards: another hub may serve them."""

    def count_hubs(self, hubs: int) -> None:
        """So many hubs of the region are alive, this one among them."""

    async def gain_shards(self, terms: dict[int, int]) -> None:
        """Serve these shards, under the terms of their leases. SQLAlchemyError if what is owed cannot be read."""


class _Step(NamedTuple):
    """Result of one look: when it began by this machine's clock, what is held, and what is to be given away.

    `ended_writes`: transactions of other processes, under leases that had ended, that were in the way. `hubs`: how many
    share the region, this one among them; 0 = not known.
    """

    began_s: float
    held: dict[LeaseId, Lease]
    give: tuple[LeaseId, ...]
    ended_writes: int = 0
    hubs: int = 0


class LeaseKeeper:
    """Owns the leases of this process. `settled` is set once the first shards that were taken are served."""

    def __init__(self, table: LeaseTable, log: JsonLog) -> None:
        self.settled = asyncio.Event()
        self.session = table.session
        self._table = table
        self._log = log
        self._leases = HeldLeases(table.life_s)
        self._draining = False
        self._changed = asyncio.Event()
        self._fault = ""  # of the last look

    @property
    def shards(self) -> list[int]:
        """Shards that this hub serves."""
        return self._leases.shards

    def does(self, task: RegionTask) -> bool:
        """Whether this hub does a task of the region."""
        return self._leases.does(task, time.monotonic())

    def drain(self) -> None:
        """Take nothing more, give the tasks away, and count no longer among the hubs that share the shards."""
        self._draining = True

    async def give_all(self) -> None:
        """Give all leases away. Call it when everything is written."""
        await self._give(self._leases.ids)
        self._leases.clear()
        self._table.close()

    async def run(self, server: ShardServer) -> None:
        """Keep the leases until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew(server), name="leases-renew")
            group.create_task(self._gain(server), name="leases-gain")
            group.create_task(self._guard(server), name="leases-guard")

    def on_fenced(self, server: ShardServer, shards: Iterable[int]) -> None:
        """A write was refused since these shards are not ours: they are lost, whatever was believed."""
        self._lose(server, self._leases.on_fenced(shards))

    def check_sure(self, server: ShardServer) -> None:
        """Lose everything if it was not renewed for as long as a lease lives: this process was stopped, or cut off."""
        lost = self._leases.check_sure(time.monotonic())
        if lost:
            self._log.warning("leases_unsure", shards=len(lost))
            self._lose(server, lost)

    async def _renew(self, server: ShardServer) -> None:
        while True:
            try:
                step = await asyncio.to_thread(self._step)
            except SQLAlchemyError as error:
                self._report_fault(error)
            else:
                self._report_success()
                await self._accept(server, step)
            await asyncio.sleep(LOOK_S)

    def _step(self) -> _Step:
        """Look, decide and act once; on a thread of its own.

        ExitError(DATABASE) if newer hubs have contracted the database beyond what this program serves.
        """
        began_s, hub, session = time.monotonic(), self._table.hub, self._table.session
        if self._draining:
            held = self._table.renew_and_take(())
            return _Step(began_s, held, plan_drain(held).give)
        view = self._table.look()
        plan = plan_leases(view, hub, session)
        held = self._table.renew_and_take(plan.take)
        if not held:
            self._table.check_served()
        missed = [each for each in plan.take if each not in held]
        ended = self._table.end_writes(missed) if missed else 0  # they are taken at the next look
        return _Step(began_s, held, plan.give, ended, len({*view.hubs(), hub}))

    async def _accept(self, server: ShardServer, step: _Step) -> None:
        """Take over what a look showed: what is not held any more is lost, and what is given is lost first."""
        if step.ended_writes:
            self._log.warning("lease_writes_ended", count=step.ended_writes)
        if step.hubs:
            server.count_hubs(step.hubs)
        self._lose(server, self._leases.accept(step.began_s, step.held, step.give))
        await self._give(step.give)
        self._changed.set()

    async def _give(self, leases: Collection[LeaseId]) -> None:
        if not leases:
            return
        try:
            await asyncio.to_thread(self._table.give, leases)
        except SQLAlchemyError as error:  # they end by themselves, and nothing is served of them until then
            self._report_fault(error)

    def _lose(self, server: ShardServer, lost: frozenset[int]) -> None:
        if lost:
            self._log.info("shards_lost", count=len(lost), left=len(self._leases.shards))
            server.lose_shards(lost)

    async def _gain(self, server: ShardServer) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            terms = self._leases.gain()
            if not terms or await self._gain_some(server, terms):
                self.settled.set()

    async def _gain_some(self, server: ShardServer, terms: dict[int, int]) -> bool:
        """Serve more shards; False if what is owed there cannot be read: tried again after the next look."""
        try:
            await server.gain_shards(terms)
        except SQLAlchemyError as error:
            self._report_fault(error)
            self._lose(server, self._leases.undo_gain(terms))
            return False
        self._log.info("shards_gained", count=len(terms), all=len(self._leases.shards))
        return True

    async def _guard(self, server: ShardServer) -> None:
        while True:
            await asyncio.sleep(_GUARD_S)
            self.check_sure(server)

    def _report_fault(self, error: SQLAlchemyError) -> None:
        """Log that the table cannot be used, once for each kind of fault in a row."""
        fault, before = name_fault(error), self._fault
        self._fault = fault
        if fault != before:
            log_fault(self._log, "leases_failed", error)

    def _report_success(self) -> None:
        if self._fault:
            self._log.info("leases_work")
        self._fault = ""


def does_task(leases: LeaseKeeper | None, task: RegionTask) -> bool:
    """Whether a hub does a task of its region; one without leases is alone and does all."""
    return leases is None or leases.does(task)
