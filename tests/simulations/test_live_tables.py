"""One agent.db for a fleet: each device sees its own rows, and the product's statements do what they always do."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from edge_agent import accounts, answers, heads, ledger, meta, outbox, tables, traffic
from edge_agent.commands import State
from edge_agent.database import Trouble
from edge_agent.marker import Past
from edge_agent.records import Outcome
from policies.budget import Charge
from simulations.live_store import FLEET_FILE, FleetStore
from simulations.live_tables import Shared, open_shared
from wire.chain import Form, Kind


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Shared]:
    with closing(open_shared(tmp_path / FLEET_FILE)) as opened:
        yield opened


def product_tables() -> dict[str, list[str]]:
    """Columns by table of an agent.db of its own."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        tables.migrate(db, "memory")
        names = [row[0] for row in db.execute("select name from sqlite_master where type='table'")]
        names = [name for name in names if not name.startswith("sqlite_") and not name.endswith("_1")]
        return {name: [row[1] for row in db.execute(f"pragma table_info({name})")] for name in names}


def item(seq: int) -> ledger.Item:
    return ledger.Item(Kind.QUESTION, Form({}, {}, "rule", "policy", "hub-1", "eu"), 5, 10, bytes(32), seq, f"id{seq}")


def test_every_table_of_the_product_is_there_with_its_columns_for_each_device(db: Shared):
    assert product_tables()
    for name, columns in product_tables().items():
        found = db.execute(f"select * from {name} limit 0").description
        assert [column[0] for column in found] == columns, name


def test_two_devices_draw_epochs_of_their_own_and_keep_them(db: Shared):
    epochs = []
    for db.me in (1, 2, 1, 2):
        epochs.append(meta.epoch(db))
    assert epochs[:2] == epochs[2:]
    assert epochs[0] != epochs[1]


def test_upserts_count_for_the_device_that_speaks(db: Shared):
    for db.me in (1, 2):
        meta.put(db, "x", db.me)
        meta.raise_to(db, "x", 0)
        traffic.add(db, 1, 5 * db.me)
        traffic.add(db, 2, 5 * db.me)
        heads.keep_view(db, heads.HubView("hub-1", bytes(32), f"checkpoint {db.me}"))
    for db.me in (1, 2):
        assert meta.get(db, "x", -1) == db.me
        assert traffic.between(db, 0, 10) == 10 * db.me
        assert heads.views(db)["hub-1"].checkpoint == f"checkpoint {db.me}"


def test_a_charge_beyond_the_limit_is_refused_whatever_the_neighbours_have_left(db: Shared):
    charge = Charge("bytes", 1, 60, 100)
    for db.me in (1, 2):
        accounts.charge(db, (charge,))
    with pytest.raises(accounts.OverdrawnError):
        accounts.charge(db, (charge,))
    assert accounts.stored(db).totals == {("bytes", 1): 60}


def test_each_ledger_is_a_chain_of_its_own_from_entry_one(db: Shared):
    for db.me in (1, 2, 1):
        ledger.append(db, item(ledger.next_seq(db)))
    for db.me, entries in ((1, 2), (2, 1), (3, 0)):
        assert ledger.tail(db).entry == entries
        assert ledger.next_seq(db) == entries + 1
        assert [row["id"] for row in ledger.everything(db)] == [f"id{n}" for n in range(1, entries + 1)]


def test_an_outcome_that_comes_twice_is_kept_once_and_rows_go_for_their_device_alone(db: Shared):
    for db.me in (1, 2):
        for outcome in (Outcome.ANSWERED, Outcome.EXPIRED):
            answers.finish(db, answers.End(7, 1, "id7", outcome, "", 5))
    db.me = 1
    outbox.mark(db, 7, State.SENT, 0, 1)
    outbox.delete(db, 7)
    db.execute("delete from outcomes")
    assert list(answers.outcomes(db)) == []
    db.me = 2
    assert [end.outcome for end in answers.outcomes(db)] == [Outcome.ANSWERED]


def test_an_upsert_that_is_not_understood_is_refused_and_not_written_to_everybody(db: Shared):
    with pytest.raises(ValueError, match="does not understand"):
        db.execute("insert or ignore into meta values('x', 1) on conflict do nothing")


async def test_a_fleet_has_one_writer_and_each_device_is_told_of_its_own_units(tmp_path: Path):
    store = FleetStore(tmp_path / FLEET_FILE)
    await store.begin()
    one, two = (store.of(number, tmp_path / str(number) / "agent.db") for number in (1, 2))
    stored = await one.open()
    assert (stored.next_seq, stored.rows, stored.past) == (1, [], Past.NONE)
    assert stored.epoch != (await two.open()).epoch
    told: list[Trouble | None] = []
    one.write((partial(meta.put, key="x", value=1),), told.append)
    two.write((partial(accounts.charge, charges=(Charge("bytes", 1, 2, 1),)),), told.append)
    assert await one.read(partial(meta.get, key="x", default=0)) == 1
    assert await two.read(partial(meta.get, key="x", default=0)) == 0
    await asyncio.sleep(0)
    assert sorted(told, key=str) == [None, Trouble.OVERDRAWN]
    await store.close()


async def test_who_was_killed_writes_no_more_and_hears_no_more(tmp_path: Path):
    store = FleetStore(tmp_path / FLEET_FILE)
    await store.begin()
    device = store.of(1, tmp_path / "agent.db")
    await device.open()
    told: list[Trouble | None] = []
    device.write((partial(meta.put, key="before", value=1),), told.append)
    device.die()
    device.write((partial(meta.put, key="after", value=1),), told.append)
    again = store.of(1, tmp_path / "agent.db")
    await again.open()
    assert await again.read(partial(meta.get, key="before", default=0)) == 1
    assert await again.read(partial(meta.get, key="after", default=0)) == 0
    assert told == []
    await store.close()
