"""Which shards a hub of a region takes and which it gives away, so that each hub that is alive serves its fair share.

Rule: of hubs that see the same, the shares sum to all shards, so nobody takes what another one keeps, and once every
hub has its share nothing moves any more. `share` is never above ceil(shards / hubs). Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SHARDS = 256


@dataclass(frozen=True)
class ShardView:
    """One look at the leases of the shards. `mine`: those that this hub holds; `free`: those that nobody holds."""

    mine: frozenset[int]
    free: frozenset[int]


@dataclass(frozen=True)
class ShardPlan:
    """What a hub is to do. Giving and taking never come together."""

    take: tuple[int, ...] = ()
    give: tuple[int, ...] = ()


def compute_share(hub: str, alive: Iterable[str], shards: int = SHARDS) -> int:
    """How many shards this hub is to serve, 0 if it is not among the hubs that are alive.

    The remainder of the division goes to the first hubs by name, one shard each.
    """
    names = sorted(set(alive))
    if hub not in names:
        return 0
    share, rest = divmod(shards, len(names))
    return share + (names.index(hub) < rest)


def plan_shards(view: ShardView, share: int) -> ShardPlan:
    """What to take and give so that this hub serves `share` shards.

    It takes the lowest that are free and gives its highest.
    """
    spare = len(view.mine) - share
    if spare > 0:
        return ShardPlan(give=tuple(sorted(view.mine)[-spare:]))
    return ShardPlan(take=tuple(sorted(view.free)[:-spare] if spare else ()))
