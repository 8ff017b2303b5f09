"""Which release each hub of a region is of, and the schema numbers that it serves; whom a contraction waits for.

Rule: a hub that states nothing is of an older release. What stands in a row of its name counts only if the process that
is there now has written it. Every time is by the server's clock.
"""

import json
from collections.abc import Mapping

import msgspec
import sqlalchemy as sa

from cloud_hub.database.parts import SERVED, DatabasePart

ALIVE_MS = 6000  # a hub that was not seen for longer is taken for dead
SERVED_JSON = json.dumps(SERVED, sort_keys=True)
_NOW = "extract(epoch from clock_timestamp()) * 1000"
_LOOK = sa.text(
    f"""with held as (
      select hub, bool_and(stated = session) as stated from region.leases where until_ms > {_NOW} group by hub
    ), present as (
      select name, stated = session as stated, release, serves, seen_ms > {_NOW} - {ALIVE_MS} as alive
      from region.hubs
    ) select coalesce(p.name, h.hub) as hub, coalesce(p.alive and p.stated, false) and coalesce(h.stated, true) stated,
    p.release, p.serves from present p full join held h on h.hub = p.name where p.alive or h.hub is not null
    order by 1"""  # noqa: S608 - constants of this file
)


class HubRelease(msgspec.Struct, frozen=True):
    """A hub that is there or holds a lease. `release` is "" and `serves` empty of one that states nothing.

    `serves`: the highest schema number of each part.
    """

    hub: str
    release: str
    serves: Mapping[str, int]

    def describe(self) -> str:
        """The hub and its release, in words."""
        return f"{self.hub} of release {self.release}" if self.release else f"{self.hub} of an earlier release"


def read_releases(connection: sa.Connection) -> tuple[HubRelease, ...]:
    """Every hub that is there or holds a lease, by name."""
    return tuple(
        HubRelease(row.hub, row.release, json.loads(row.serves)) if row.stated else HubRelease(row.hub, "", {})
        for row in connection.execute(_LOOK)
    )


def find_waiting(connection: sa.Connection, part: DatabasePart, number: int) -> tuple[str, ...]:
    """Hubs, in words, that do not serve a schema number of a part."""
    return tuple(each.describe() for each in read_releases(connection) if each.serves.get(part.name, 0) < number)
