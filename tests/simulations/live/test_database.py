"""Database of a live agent: killed as a process is, and opened again by the next one."""

from functools import partial
from pathlib import Path

from edge_agent.storage import tables
from edge_agent.storage.database import DatabaseTrouble
from simulations.live.database import LiveDatabase


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
    assert await device.read(lambda db: db.execute("pragma synchronous").fetchone()[0]) == 1
    await device.close()
