"""Fence of the store: whether this process still holds the leases under which it is about to write.

Rule: what held when the fence was passed holds until the transaction ends. The rows of the leases are locked so that
whoever takes leases passes them by (`for update skip locked`), while their holder may renew them meanwhile.
A row that somebody else has locked is not waited for: its shard alone is left out.
Rule: while it holds them the connection bears a name by which other hubs find it. The server does not end a transaction
by itself whose process was stopped between two statements that were sent together: for the server it is active.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import sqlalchemy as sa

from cloud_hub.database.server import name_writer
from cloud_hub.storage.jobs import ShardClaim

HELD = (
    "with named as (select set_config('application_name', %(name)s, true)) "
    "select l.number, l.term from named cross join region.leases l "
    "join unnest(cast(%(shards)s as bigint[]), cast(%(terms)s as bigint[])) as claimed(number, term) "
    "on l.number = claimed.number and l.term = claimed.term "
    "where l.kind = 'shard' and l.session = %(session)s "
    "and l.until_ms > extract(epoch from clock_timestamp()) * 1000 for key share of l skip locked"
)


def find_lost_claims(connection: sa.Connection, session: str, claims: AbstractSet[ShardClaim]) -> frozenset[ShardClaim]:
    """Those of the claims that do not hold by the server's clock; the others hold until the transaction ends."""
    return pick_lost(claims, connection.exec_driver_sql(HELD, describe_claims(session, claims)))


def describe_claims(session: str, claims: AbstractSet[ShardClaim]) -> dict[str, Any]:
    """Parameters of `HELD`: it returns the number and the term of each claim that holds."""
    ordered = sorted(claims)
    return {
        "name": name_writer(session),
        "shards": [each.shard for each in ordered],
        "terms": [each.term for each in ordered],
        "session": session,
    }


def pick_lost(claims: AbstractSet[ShardClaim], held: Iterable[Sequence[Any]]) -> frozenset[ShardClaim]:
    """The claims that are not among the rows of `HELD`."""
    return frozenset(claims - {ShardClaim(*row) for row in held})
