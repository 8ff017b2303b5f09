"""Database of a live agent: written by the event loop, killed as a process is, and opened again by the next one."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from edge_agent.storage import tables
from edge_agent.storage.database import DatabaseTrouble
from simulations.live.fleet import database
from simulations.live.fleet.database import InlineWriter, LiveDatabase
from tests.examples import SetTimes


async def test_who_was_killed_writes_no_more_and_hears_no_more(tmp_path: Path):
    device = LiveDatabase(tmp_path / "agent.db")
    epoch = (await device.open()).epoch
    told: list[DatabaseTrouble | None] = []
    device.write((partial(tables.write_value, key="before", value=1),), told.append)
    device.mark_dead()
    device.write((partial(tables.write_value, key="after", value=1),), told.append)
    await device.close()
    again = LiveDatabase(tmp_path / "agent.db")
    stored = await again.open()
    assert stored.epoch == epoch
    assert not stored.damaged
    assert await again.read(partial(tables.read_value, key="before", default=0)) == 1
    assert await again.read(partial(tables.read_value, key="after", default=0)) == 0
    assert told == []
    await again.close()


async def test_no_commit_of_a_live_agent_waits_for_the_disk(tmp_path: Path):
    device = LiveDatabase(tmp_path / "agent.db")
    await device.open()
    assert await device.read(lambda db: db.execute("pragma synchronous").fetchone()[0]) == 0
    await device.close()


async def test_what_agents_queue_in_one_turn_is_one_commit_of_each_in_the_next(tmp_path: Path):
    writer = InlineWriter()
    devices = [LiveDatabase(tmp_path / f"{number}.db", writer) for number in range(3)]
    for device in devices:
        await device.open()
    before = [device.commits for device in devices]
    told: list[tuple[int, int]] = []

    def note(number: int, value: int, _: DatabaseTrouble | None) -> None:
        told.append((number, value))

    for value in range(5):
        for number, device in enumerate(devices):
            write = partial(tables.write_value, key="last", value=value)
            device.write((write,), partial(note, number, value))
    assert told == []
    await asyncio.sleep(0)
    assert [device.commits - count for device, count in zip(devices, before, strict=True)] == [1, 1, 1]
    assert sorted(told) == [(number, value) for number in range(3) for value in range(5)]
    for device in devices:
        await device.close()


async def test_what_must_be_written_waits_until_the_disk_takes_it(tmp_path: Path, set_times: SetTimes):
    set_times(database, RETRY_S=0.02)
    device = LiveDatabase(tmp_path / "agent.db")
    await device.open()
    await device.read(lambda db: db.execute("pragma query_only=1"))
    written: asyncio.Future[DatabaseTrouble | None] = asyncio.get_running_loop().create_future()
    device.write((partial(tables.write_value, key="owed", value=1),), written.set_result, must=True)
    await asyncio.sleep(0)
    assert device.kept_units == 1
    assert device.trouble is DatabaseTrouble.READ_ONLY
    await device.read(lambda db: db.execute("pragma query_only=0"))
    assert await asyncio.wait_for(written, 60) is None
    assert await device.read(partial(tables.read_value, key="owed", default=0)) == 1
    await device.close()


async def test_a_statement_that_ends_a_writer_ends_this_one_until_the_watchdog_starts_it_again(tmp_path: Path):
    def fail(_: object) -> None:
        raise KeyError("no error of a database")

    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    device = LiveDatabase(tmp_path / "agent.db")
    await device.open()
    told: list[DatabaseTrouble | None] = []
    device.write((fail,), told.append)
    await asyncio.sleep(0)
    assert not device.is_alive
    assert isinstance(found[0]["exception"], KeyError)
    device.restart_writer()
    assert told == [DatabaseTrouble.DEAD]
    device.write((partial(tables.write_value, key="after", value=1),), told.append)
    assert await device.read(partial(tables.read_value, key="after", default=0)) == 1
    assert told == [DatabaseTrouble.DEAD, None]
    await device.close()
