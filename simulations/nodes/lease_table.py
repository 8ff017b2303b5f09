"""In-memory twin of the table of leases of a region, by the clock of its database, which is virtual time.

Rule: the rules of `cloud_hub.region.leases`: what has not ended is renewed, and a lease that has ended is taken in a
higher term. Rule: all leases of a session end at once, since each renewal is of all; so when they end is written down
once, and a look at a table in which no lease changed hands costs nothing.
"""

from collections.abc import Callable, Collection, Mapping

import msgspec
from msgspec.structs import replace

from cloud_hub.region.leases import LIFE_S, TASKS, Lease, LeaseId, LeaseKind, LeaseView
from cloud_hub.storage.jobs import ShardClaim
from policies.serving.shard_leases import SHARDS
from simulations.kernel.kernel import Kernel
from wire.protocol.topics import HUB_NAMES

LeaseRows = Mapping[LeaseId, Lease]
_SIZES = {LeaseKind.HUB: len(HUB_NAMES), LeaseKind.SHARD: SHARDS, LeaseKind.TASK: len(TASKS)}
_IDS = [LeaseId(kind, number) for kind, size in _SIZES.items() for number in range(size)]
_FREE = {each: Lease(each, "", "", 0, 0, 0) for each in _IDS}


class LeaseSnapshot(msgspec.Struct, frozen=True):
    """Backup of the table. `ends_ms`: of each session."""

    rows: dict[LeaseId, Lease]
    ends_ms: dict[str, int]


class SimulatedLeaseTable:
    """Leases of the processes that share one store; each names its hub and its session.

    `until_ms` of what `look` returns says whether a lease has ended, and no more. `taken` gets the lease of each shard
    that changes hands.
    """

    def __init__(self, kernel: Kernel, taken: Callable[[Lease], None], life_s: float = LIFE_S) -> None:
        self.life_s = life_s
        self._kernel = kernel
        self._taken = taken
        self._rows: dict[LeaseId, Lease] = dict(_FREE)
        self._ends_ms: dict[str, int] = {}
        self._held: dict[str, LeaseRows] = {}
        self._view: tuple[frozenset[str], LeaseView] | None = None

    def look(self) -> LeaseView:
        """See all leases; the same object as long as none changed hands or ended."""
        now_ms = self._now_ms()
        alive = frozenset(session for session, ends_ms in self._ends_ms.items() if ends_ms > now_ms)
        if self._view is None or self._view[0] != alive:
            self._view = alive, LeaseView(now_ms, tuple(map(self._with_end, self._rows.values())))
        return self._view[1]

    def renew_and_take(self, hub: str, session: str, wanted: Collection[LeaseId]) -> LeaseRows:
        """Renew what a session holds, take those wanted that nobody holds; returns all that it holds now."""
        now_ms = self._now_ms()
        if not self._is_alive(session, now_ms):
            self.give(session, [each.id for each in self._rows.values() if each.session == session])
        until_ms = self._ends_ms[session] = now_ms + int(self.life_s * 1000)
        free = [each for each in map(self._rows.__getitem__, wanted) if self._is_free(each, hub, session, now_ms)]
        self._change({each.id: Lease(each.id, hub, session, each.term + 1, now_ms, until_ms) for each in free})
        if session not in self._held:
            self._held[session] = {each.id: each for each in self._rows.values() if each.session == session}
        held = self._held[session].values()
        return {each.id: Lease(each.id, hub, session, each.term, each.since_ms, until_ms) for each in held}

    def give(self, session: str, given: Collection[LeaseId]) -> None:
        """Give leases away; those that a session does not hold are left alone."""
        mine = [each for each in map(self._rows.__getitem__, given) if each.session == session]
        self._change({each.id: replace(each, hub="", session="", until_ms=0) for each in mine})

    def holds(self, session: str, claim: ShardClaim) -> bool:
        """Whether a session holds the lease of a shard in this term."""
        lease = self._rows[LeaseId(LeaseKind.SHARD, claim.shard)]
        return lease.session == session and lease.term == claim.term and self._is_alive(session, self._now_ms())

    def snapshot(self) -> LeaseSnapshot:
        """Take a backup of this moment."""
        return LeaseSnapshot(dict(self._rows), dict(self._ends_ms))

    def restore_snapshot(self, snapshot: LeaseSnapshot) -> None:
        """Restore a backup."""
        self._ends_ms = dict(snapshot.ends_ms)
        self._change(snapshot.rows)

    def _change(self, rows: LeaseRows) -> None:
        if rows:
            self._rows |= rows
            self._held.clear()
            self._view = None
            for lease in rows.values():
                if lease.id.kind is LeaseKind.SHARD and lease.term:
                    self._taken(lease)

    def _is_free(self, lease: Lease, hub: str, session: str, now_ms: int) -> bool:
        """Whether nobody holds a lease, or an earlier process of the same hub does."""
        return not self._is_alive(lease.session, now_ms) or (lease.hub == hub and lease.session != session)

    def _is_alive(self, session: str, now_ms: int) -> bool:
        return self._ends_ms.get(session, 0) > now_ms

    def _with_end(self, lease: Lease) -> Lease:
        return replace(lease, until_ms=self._ends_ms.get(lease.session, 0))

    def _now_ms(self) -> int:
        return int(self._kernel.now * 1000)
