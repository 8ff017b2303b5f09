"""Fence of the store: whether this process still holds the leases under which it is about to write.

Rule: what held when the fence was passed holds until the transaction ends. The rows of the leases are locked so that
whoever takes leases passes them by (`for update skip locked`), while their holder may renew them meanwhile.
A row that somebody else has locked is not waited for: its shard alone is left out.
Rule: while it holds them the connection bears a name by which other hubs find it. The server does not end a transaction
by itself whose process was stopped between two statements that were sent together: for the server it is active.
"""

from collections.abc import Set as AbstractSet

import sqlalchemy as sa

from cloud_hub.database.server import name_writer
from cloud_hub.storage.jobs import ShardClaim

_HELD = sa.text(
    "with named as (select set_config('application_name', :name, true)) "
    "select l.number, l.term from named cross join region.leases l "
    "join unnest(cast(:shards as bigint[]), cast(:terms as bigint[])) as claimed(number, term) "
    "on l.number = claimed.number and l.term = claimed.term "
    "where l.kind = 'shard' and l.session = :session "
    "and l.until_ms > extract(epoch from clock_timestamp()) * 1000 for key share of l skip locked"
)


def find_lost_claims(connection: sa.Connection, session: str, claims: AbstractSet[ShardClaim]) -> frozenset[ShardClaim]:
    """Those of the claims that do not hold by the server's clock; the others hold until the transaction ends."""
    ordered = sorted(claims)
    asked = {
        "name": name_writer(session),
        "shards": [each.shard for each in ordered],
        "terms": [each.term for each in ordered],
        "session": session,
    }
    held = {ShardClaim(*row) for row in connection.execute(_HELD, asked)}
    return frozenset(claims - held)
