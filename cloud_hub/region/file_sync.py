"""Which files of a region's hub have to be fetched, stored or removed, by three lists of digests. Pure.

Rule: what changed on one side since both were alike goes to the other side. What changed on both is decided by the
database, which all hubs share.
"""

from collections.abc import Mapping

import msgspec

Digests = Mapping[str, bytes]  # by path


class SyncPlan(msgspec.Struct, frozen=True):
    """Paths: to be written to or removed from the folder, and to be written to or removed from the database.

    `conflicts`: of the first two, those that had been changed in the folder too.
    """

    fetch: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    store: tuple[str, ...] = ()
    withdraw: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


def plan_sync(local: Digests, stored: Digests, alike: Digests) -> SyncPlan:
    """Plan how folder and database become alike. `alike`: as both were the last time."""
    paths = sorted({*local, *stored})
    differing = [path for path in paths if local.get(path) != stored.get(path)]
    ours = {path for path in differing if stored.get(path) == alike.get(path)}
    theirs = [path for path in differing if path not in ours]
    return SyncPlan(
        fetch=tuple(path for path in theirs if path in stored),
        remove=tuple(path for path in theirs if path not in stored),
        store=tuple(path for path in differing if path in ours and path in local),
        withdraw=tuple(path for path in differing if path in ours and path not in local),
        conflicts=tuple(path for path in theirs if local.get(path) != alike.get(path)),
    )
