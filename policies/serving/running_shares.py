"""Shares of what engines compute at once: whether a tenant may take the next places, beside the others. Pure.

Rule: who asked a moment ago finds its places free again. Of what each tenant used of late, up to its even share,
nothing is lent to others; what is left over anybody may have. So one tenant that asks alone has everything, and none
that floods, asks for much or reads slowly keeps another waiting for what it needed just now.
"""

from collections import OrderedDict
from math import inf

import msgspec

MEMORY_S = 10.0  # for which places are kept for a tenant that uses fewer
MAX_TENANTS = 256  # that are remembered; of more, those that asked least lately keep nothing


class _Use(msgspec.Struct):
    """What a tenant has now, what it waits for, and what it had at most since `since` and in the period before."""

    running: float = 0.0
    waiting: float = 0.0
    most: float = 0.0
    most_before: float = 0.0
    since: float = -inf


class RunningShares:
    """Shares of one kind of place, such as requests or tokens. Times in seconds.

    Two periods of `MEMORY_S` are remembered, so that a need is kept for one to two of them.
    """

    def __init__(self) -> None:
        self._uses: OrderedDict[str, _Use] = OrderedDict()

    def on_waiting(self, tenant: str, asked: float, now: float) -> None:
        """Count a request that asks for so many places."""
        self._turn(tenant, now).waiting += asked

    def on_left(self, tenant: str, asked: float) -> None:
        """Count a request that waits no more."""
        self._uses[tenant].waiting -= asked

    def on_begun(self, tenant: str, asked: float, now: float) -> None:
        """Count a request that is being computed."""
        use = self._turn(tenant, now)
        use.running += asked
        use.most = max(use.most, use.running)

    def on_ended(self, tenant: str, asked: float) -> None:
        """Count one that no longer is."""
        self._uses[tenant].running -= asked

    def count_running(self, tenant: str) -> float:
        """Return the places that a tenant has."""
        return self._uses[tenant].running if tenant in self._uses else 0.0

    def may_begin(self, tenant: str, asked: float, places: float, now: float, most_kept: float = 1.0) -> bool:
        """Whether so many places more may be given to a tenant, of `places` in all.

        `most_kept`: the share of them that may be kept for others.
        """
        self._forget(now)
        if self.is_covered(tenant, asked, places, now):
            return True
        share = self._find_share(tenant, places)
        free = places - sum(use.running for use in self._uses.values())
        kept = sum(self._count_kept(use, share, now) for name, use in self._uses.items() if name != tenant)
        return asked <= free - min(kept, most_kept * places)

    def is_within(self, tenant: str, asked: float, places: float) -> bool:
        """Whether a tenant has no more than its share with so many places more; one place is always its own."""
        return self.count_running(tenant) + asked <= max(1.0, self._find_share(tenant, places))

    def is_covered(self, tenant: str, asked: float, places: float, now: float) -> bool:
        """Whether so many places more are within what is kept for a tenant."""
        use = self._uses.get(tenant)
        return use is not None and asked <= self._count_kept(use, self._find_share(tenant, places), now)

    def _find_share(self, tenant: str, places: float) -> float:
        """Return an even share, in whole places: where there are fewer than tenants, nothing is kept for anybody."""
        return places // max(1, len(self._uses) + (tenant not in self._uses))

    @staticmethod
    def _count_kept(use: _Use, share: float, now: float) -> float:
        """Return the places that are kept for a tenant."""
        needed = max(use.most, use.most_before) if now - use.since < 2 * MEMORY_S else 0.0
        return max(0.0, min(share, needed) - use.running)

    def _turn(self, tenant: str, now: float) -> _Use:
        """Return what a tenant has, in the present period."""
        use = self._uses.setdefault(tenant, _Use())
        self._uses.move_to_end(tenant)
        if now - use.since >= MEMORY_S:
            use.most_before = use.most if now - use.since < 2 * MEMORY_S else 0.0
            use.most, use.since = use.running, now
        return use

    def _forget(self, now: float) -> None:
        """Forget tenants that have nothing and asked for nothing of late, the longest ago first."""
        while self._uses:
            tenant, use = next(iter(self._uses.items()))
            recent = now - use.since < 2 * MEMORY_S and len(self._uses) <= MAX_TENANTS
            if use.running or use.waiting or recent:
                return
            del self._uses[tenant]
