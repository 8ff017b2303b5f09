"""What a release adds to the tables of the one before, on both databases: rows stay, and older programs go on."""

import sqlalchemy as sa

from cloud_hub.database.connection import open_part
from cloud_hub.database.expansion import read_columns
from cloud_hub.database.parts import PARTS, REGION, REGISTRY, DatabaseUrls
from cloud_hub.database.tables import devices, meta

DEVICE = {
    "id": "demo--d1", "state": "active", "signing_key": b"s", "hpke_key": b"h", "serial": "1", "certificate_ends_ms": 1,
    "enrolled_ms": 2, "changed_ms": 3, "region": "north",
}  # fmt: skip


def name_of(table: str, urls: DatabaseUrls) -> str:
    return f"registry.{table}" if urls.server else table


def test_a_column_and_a_table_that_are_missing_are_added_and_rows_stay(urls: DatabaseUrls):
    engine = open_part(urls.registry, REGISTRY)
    with engine.begin() as connection:
        connection.execute(devices.insert(), DEVICE)
        connection.exec_driver_sql(f"alter table {name_of('devices', urls)} drop column device_class")
        connection.exec_driver_sql(f"alter table {name_of('devices', urls)} drop column retire_at_ms")
        connection.exec_driver_sql(f"drop table {name_of('floors', urls)}")
    engine.dispose()
    engine = open_part(urls.registry, REGISTRY)
    with engine.connect() as connection:
        row = connection.execute(devices.select()).mappings().one()
        assert (row["region"], row["device_class"], row["retire_at_ms"]) == ("north", "", 0)
        assert "floors" in read_columns(connection, "registry")
    engine.dispose()


def test_a_program_that_knows_fewer_columns_opens_the_part_and_writes_it(urls: DatabaseUrls):
    engine = open_part(urls.registry, REGISTRY)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"alter table {name_of('devices', urls)} add column later text not null default 'x'")
        connection.exec_driver_sql(f"create table {name_of('later', urls)} (id text primary key)")
    engine.dispose()
    engine = open_part(urls.registry, REGISTRY)
    with engine.begin() as connection:
        connection.execute(devices.insert(), DEVICE)
        found = connection.exec_driver_sql(f"select later from {name_of('devices', urls)}").scalar_one()
        number = connection.execute(sa.select(meta["registry"].c.value)).scalar_one()
    engine.dispose()
    assert (found, number) == ("x", str(REGISTRY.schema))


# Columns without a default in the tables that the first release for several hubs (0.1.0) has; the others have one.
RELEASED = """
questions.costs amount | questions.tallies count | questions.tombstones device before_ms rows at_ms
questions.effects model policy created_ms kept_ms digest fingerprint | questions.sealed frame
registry.devices state signing_key hpke_key serial certificate_ends_ms enrolled_ms changed_ms
registry.documents title version | registry.floors version | registry.invites device created_ms expires_ms
registry.notices counter why issued_ms | access.keys name tenant scopes made_ms ends_ms revoked_ms digest
ledger.facts value | ledger.leaves device signer epoch entries at_ms head signature received_ms epochs flaw
ledger.nodes hash | ledger.spend amount | rollouts.counters counter | rollouts.devices facts
rollouts.history at_ms by what why state | rollouts.rollouts family made_ms changed_ms open revision plan head
region.changed revision | region.changes revision | region.files digest sealed | region.hubs session since_ms seen_ms
region.leases
"""


def test_a_column_that_came_since_has_a_default_or_may_be_null():
    known = {words[0]: set(words[1:]) for words in map(str.split, RELEASED.replace("\n", "|").split("|")) if words}
    for part in (*PARTS, REGION):
        for table in part.tables:
            bare = {each.name for each in table.c if not (each.primary_key or each.nullable or each.server_default)}
            assert bare <= known.get(f"{table.schema}.{table.name}", bare), "hubs of the release before write rows"
