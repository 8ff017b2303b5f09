"""Keeps the leases of one process of a hub in virtual time, as `cloud_hub.region.lease_keeper` does on a thread.

Rule: what is asked of the database is carried out there though the process is stopped meanwhile; it reads the answer
when it is woken. What it decides is production's (`HeldLeases`, `plan_leases`).
"""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from cloud_hub.region.held_leases import HeldLeases, LeasePlan, plan_drain, plan_leases
from cloud_hub.region.lease_keeper import LOOK_S
from cloud_hub.region.leases import Lease, LeaseId, LeaseView
from simulations.nodes.hub_store import ProcessContext

GUARD_S = 0.1  # how late a process notices at most that it could not renew for a life


class LeasedServer(Protocol):
    """The process, as it is told which shards it serves."""

    def lose_shards(self, shards: frozenset[int]) -> None:
        """Forget these shards."""

    def count_hubs(self, hubs: int) -> None:
        """So many processes share the shards, this one among them."""

    def gain_shards(self, terms: dict[int, int]) -> None:
        """Begin to serve these shards; `end_gain` is called once they are served."""


class SimulatedKeeper:
    """Keeper of one life of a process. `hub`: its name in the region; `session`: of this life."""

    def __init__(self, context: ProcessContext, hub: str, session: str, server: LeasedServer) -> None:
        self.session = session
        self._context = context
        self._table = context.disk.leases
        self._hub = hub
        self._clock = context.clock
        self._link = context.link
        self._server = server
        self._leases = HeldLeases(self._table.life_s)
        self._seen: LeaseView | None = None
        self._wanted = LeasePlan()  # by the view that was seen last
        self._hubs = 1
        self._draining = False
        self._gaining = False

    def start(self) -> None:
        """Keep the leases until the process ends."""
        self._look()

    def drain(self) -> None:
        """Take nothing more, and count no longer among the processes that share the shards."""
        self._draining = True

    def give_all(self) -> None:
        """Give all leases away."""
        self._give(self._leases.ids)
        self._leases.clear()

    def on_fenced(self, shard: int) -> None:
        """A write was refused: this shard is lost, whatever was believed."""
        self._lose(self._leases.on_fenced((shard,)))

    def check_sure(self) -> None:
        """Lose everything if it was not renewed for as long as a lease lives, unless the guard is off."""
        if not self._link.leases_cut:
            self._lose(self._leases.check_sure(self._clock.now))

    def end_gain(self, terms: Mapping[int, int], *, served: bool) -> None:
        """What was gained is served, or cannot be read; then it is gained once more after the next look."""
        self._gaining = False
        if served:
            self._gain()
        else:
            self._lose(self._leases.undo_gain(terms))

    # One look after another, each in steps: the question on its way, carried out, the answer on its way

    def _look(self) -> None:
        began_s = self._clock.now
        if self._draining:
            self._at_database(self._renew, began_s, LeasePlan())
        else:
            self._at_database(self._plan, began_s)

    def _plan(self, began_s: float) -> None:
        if self._reachable():
            view = self._table.look()
            if view is not self._seen:
                self._seen, self._wanted = view, plan_leases(view, self._hub, self.session)
                self._hubs = len({*view.hubs(), self._hub})
            self._at_database(self._renew, began_s, self._wanted)

    def _renew(self, began_s: float, plan: LeasePlan) -> None:
        if self._reachable():
            held = self._table.renew_and_take(self._hub, self.session, plan.take)
            give = plan_drain(held).give if self._draining else plan.give
            self._clock.schedule_after(self._context.draw_trip_s(), self._accept, began_s, held, give)

    def _reachable(self) -> bool:
        """Whether the database answers; if not, it is asked again later."""
        if self._link.cut or self._link.leases_cut:
            self._clock.schedule_after(LOOK_S, self._look)
            return False
        return not self._clock.ended

    def _accept(self, began_s: float, held: Mapping[LeaseId, Lease], give: Collection[LeaseId]) -> None:
        if not self._draining:
            self._server.count_hubs(self._hubs)
        self._lose(self._leases.accept(began_s, held, give))
        self._give(give)
        self._gain()
        self._clock.schedule_after(LOOK_S, self._look)
        guard_s = began_s + self._table.life_s + self._context.dice.uniform(0.0, GUARD_S)
        self._clock.schedule_at(guard_s, self.check_sure)

    def _give(self, given: Collection[LeaseId]) -> None:
        if given:
            self._at_database(self._give_now, given)

    def _give_now(self, given: Collection[LeaseId]) -> None:
        if not self._link.cut and not self._link.leases_cut:
            self._table.give(self.session, given)

    def _gain(self) -> None:
        """Serve what is held and not served yet, one group after another."""
        terms = {} if self._gaining else self._leases.gain()
        if terms:
            self._gaining = True
            self._server.gain_shards(terms)

    def _lose(self, lost: frozenset[int]) -> None:
        if lost:
            self._server.lose_shards(lost)

    def _at_database(self, call: Callable[..., None], *args: object) -> None:
        self._context.kernel.schedule_after(self._context.draw_trip_s(), call, *args)
