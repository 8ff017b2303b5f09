"""What a process of a hub holds by lease as far as it knows: what it wants next, what it gained and what it lost. Pure.

Rule: a lease of which this process cannot be sure any more, by its own clock since it last asked to renew it, is lost.
Rule: a shard is served under one term; under another one it is lost first, then gained.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cloud_hub.region.leases import TASKS, Lease, LeaseId, LeaseKind, LeaseView, RegionTask
from policies.serving.shard_leases import SHARDS, ShardView, compute_share, plan_shards
from wire.protocol.topics import HUB_NAMES

_COUNTS = {LeaseKind.SHARD: SHARDS, LeaseKind.TASK: len(TASKS)}  # no task that only a newer release knows


class LeasePlan(NamedTuple):
    """What a hub wants to take, and to give away of what it holds."""

    take: tuple[LeaseId, ...] = ()
    give: tuple[LeaseId, ...] = ()


def plan_leases(view: LeaseView, hub: str, session: str) -> LeasePlan:
    """What a hub that serves is to take and to give: its being there, its share of the shards and of the tasks."""
    take, give = [LeaseId(LeaseKind.HUB, HUB_NAMES.index(hub))], list[LeaseId]()
    for kind, count in _COUNTS.items():
        free = view.list_free(hub, session, kind) & frozenset(range(count))
        share = compute_share(hub, {*view.hubs(), hub}, count)
        plan = plan_shards(ShardView(view.list_mine(session, kind), free), share)
        take += _ids(kind, plan.take)
        give += _ids(kind, plan.give)
    return LeasePlan(tuple(take), tuple(give))


def plan_drain(held: Mapping[LeaseId, Lease]) -> LeasePlan:
    """What a hub that leaves gives at once: its being there, so that the others share all shards, and its tasks."""
    return LeasePlan(give=tuple(each for each in held if each.kind is not LeaseKind.SHARD))


class HeldLeases:
    """Leases of this process, and the shards that its hub was told to serve. Times in s, by this machine's clock."""

    def __init__(self, life_s: float) -> None:
        self._life_s = life_s
        self._held: dict[LeaseId, Lease] = {}
        self._served: dict[int, int] = {}  # terms
        self._sure_until_s: dict[LeaseId, float] = {}

    @property
    def shards(self) -> list[int]:
        """Shards that this hub serves."""
        return sorted(self._served)

    @property
    def ids(self) -> tuple[LeaseId, ...]:
        """All leases that are held."""
        return tuple(self._held)

    def does(self, task: RegionTask, now_s: float) -> bool:
        """Whether this hub does a task of the region."""
        return now_s < self._sure_until_s.get(LeaseId(LeaseKind.TASK, TASKS.index(task)), 0.0)

    def accept(self, began_s: float, held: Mapping[LeaseId, Lease], give: Iterable[LeaseId]) -> frozenset[int]:
        """Take over what a look that began at `began_s` showed, without what is to be given; returns lost shards.

        Of a lease that was not renewed, since somebody had locked it, this process is sure no longer than before.
        """
        given, before = set(give), {each: (lease.term, lease.until_ms) for each, lease in self._held.items()}
        self._held = {each: lease for each, lease in held.items() if each not in given}
        self._sure_until_s = {
            each: self._sure_until_s[each]
            if before.get(each) == (lease.term, lease.until_ms)
            else began_s + self._life_s
            for each, lease in self._held.items()
        }
        return self._lose(shard for shard, term in self._served.items() if self._term(shard) != term)

    def gain(self) -> dict[int, int]:
        """Shards that are held and not served yet, with their terms; they count as served from now on."""
        shards = [lease for lease in self._held.values() if lease.id.kind is LeaseKind.SHARD]
        terms = {lease.id.number: lease.term for lease in shards if lease.id.number not in self._served}
        self._served |= terms
        return terms

    def undo_gain(self, terms: Mapping[int, int]) -> frozenset[int]:
        """What was gained cannot be served now; returns what of it is lost by that, and will be gained again."""
        return self._lose(shard for shard, term in terms.items() if self._served.get(shard) == term)

    def on_fenced(self, shards: Iterable[int]) -> frozenset[int]:
        """A write was refused since these shards are not ours: they are lost, whatever was believed."""
        lost = tuple(shards)
        for shard in lost:
            self._forget(LeaseId(LeaseKind.SHARD, shard))
        return self._lose(lost)

    def check_sure(self, now_s: float) -> frozenset[int]:
        """What was not renewed for as long as a lease lives is lost; returns lost shards."""
        over = [each for each, until_s in self._sure_until_s.items() if now_s >= until_s]
        for each in over:
            self._forget(each)
        return self._lose(each.number for each in over if each.kind is LeaseKind.SHARD)

    def clear(self) -> None:
        """Everything was given away."""
        self._held.clear()
        self._sure_until_s.clear()

    def _forget(self, lease: LeaseId) -> None:
        self._held.pop(lease, None)
        self._sure_until_s.pop(lease, None)

    def _term(self, shard: int) -> int | None:
        lease = self._held.get(LeaseId(LeaseKind.SHARD, shard))
        return lease.term if lease else None

    def _lose(self, shards: Iterable[int]) -> frozenset[int]:
        return frozenset(shard for shard in tuple(shards) if self._served.pop(shard, None) is not None)


def _ids(kind: LeaseKind, numbers: Iterable[int]) -> list[LeaseId]:
    return [LeaseId(kind, number) for number in numbers]
