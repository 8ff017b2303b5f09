"""The drill of docs/running.md: hub, device and keys backed up while questions are under way, destroyed, restored."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import aiohttp
import pytest

from edge_agent.storage.restoring import RESTORE_JUMP
from models.bundle.bundle import Bundle
from models.signing.keyring import Keyring, ScryptCost
from simulations.processes import AgentHandle, ProcessHarness
from tests import ROOT
from tests.blocks import Block, command, environment, of_mark
from tests.live.doubles.fleet import QUICK, ask, burst, judged, policy, samples, settle

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]
PAGE = ROOT / "docs" / "running.md"
SKERRY = Path(sys.executable).parent / "skerry"
UNDER_WAY = 12
MAX_RESTORE_COMMANDS = 5


def block_with(words: str, mark: str) -> Block:
    return next(block for block in of_mark(PAGE, mark) if words in block.text)


class Reader:
    """Who types a block in `folder`; what it leaves running ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sessions: list[int] = []

    def start(self, block: Block) -> subprocess.Popen[bytes]:
        with (self.folder / f"line{block.line}.log").open("wb") as out:
            process = subprocess.Popen(
                command(block, self.folder), cwd=self.folder, env=environment(self.folder),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self.sessions.append(process.pid)
        return process

    async def finish(self, process: subprocess.Popen[bytes], block: Block) -> None:
        code = await asyncio.to_thread(process.wait, 200)
        assert code == 0, (self.folder / f"line{block.line}.log").read_text()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    for session in reader.sessions:
        with suppress(ProcessLookupError):
            os.killpg(session, signal.SIGKILL)


def make_ring(folder: Path) -> set[str]:
    """Offline keys as `skerry keys init` makes them; returns their files."""
    ring = Keyring.create(folder, ScryptCost(n=16))
    ring.draw_key("root")
    ring.save_keys(lambda: b"correct horse battery staple")
    return {path.name for path in folder.glob("*.key")}


def rows(database: Path, query: str) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


async def reached(stage: ProcessHarness, agent: AgentHandle) -> None:
    """Until the restored agent has its link, and nothing is open any more."""
    async with asyncio.timeout(200):
        while True:
            with suppress(aiohttp.ClientError):
                status = await stage.fetch_status(agent)
                if status["link"] == "up" and not status["open"] and "ledger_lost" not in status["alarms"]:
                    return
            await asyncio.sleep(0.1)


async def test_what_was_asked_before_a_backup_ends_after_the_machines_were_lost(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, reader: Reader
):
    hub = await stage.start_hub(bundle.path)
    agent = await stage.add_agent("cam-7", bundle.path, policy(tmp_path, budget_s=0.2), QUICK)
    for name, config in (("hub.toml", hub.child.config), ("cam-7.toml", agent.child.config)):
        shutil.copy(config, tmp_path / name)
    keys = make_ring(tmp_path / "ring")
    await stage.start_agent(agent)
    await burst(stage, agent, bundle, samples(20))
    await settle(stage)

    os.kill(hub.child.pid, signal.SIGSTOP)  # so that what is asked now is under way in the device's backup
    await burst(stage, agent, bundle, samples(UNDER_WAY, seed=5))
    spent = (await stage.fetch_status(agent))["spent_bytes"]
    block = block_with("skerry hub backup", "live")
    typing = reader.start(block)
    async with asyncio.timeout(100):
        while not (tmp_path / "cam-7.backup").exists():
            await asyncio.sleep(0.05)
    os.kill(hub.child.pid, signal.SIGCONT)
    await burst(stage, agent, bundle, samples(40, seed=6))  # the hub's is made while it computes
    await reader.finish(typing, block)
    await settle(stage)
    used = max(row[0] for row in rows(agent.database, "select seq from outcomes"))

    await agent.child.kill()
    await hub.child.kill()
    for lost in (agent.folder, hub.folder, tmp_path / "ring"):
        shutil.rmtree(lost)
    for lost in (tmp_path / "hub.toml", tmp_path / "cam-7.toml"):
        lost.unlink()
    drill = block_with("skerry hub restore", "drill")
    assert len(drill.text.strip().splitlines()) <= MAX_RESTORE_COMMANDS
    await reader.finish(reader.start(drill), drill)
    await reached(stage, agent)

    told = (tmp_path / f"line{drill.line}.log").read_text()
    assert f"open      {UNDER_WAY}" in told
    assert {path.name for path in (tmp_path / "ring").glob("*.key")} == keys
    ended = rows(agent.database, "select seq, outcome='answered' from outcomes order by seq")
    assert [seq for seq, answered in ended if not answered] == []
    assert len(ended) == 20 + UNDER_WAY
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()

    fresh = [await ask(stage, agent, bundle, sample) for sample in samples(3, seed=7)]
    assert all(each["escalation_id"] for each in fresh)
    await reached(stage, agent)
    new = [row[0] for row in rows(agent.database, "select seq from outcomes") if row[0] > RESTORE_JUMP]
    assert len(new) == len(fresh)
    assert min(new) > used
    assert (await stage.fetch_status(agent))["spent_bytes"] >= spent
    billed = sum(row[0] for row in rows(hub.folder / "hub.db", "select amount from costs where kind='requests'"))
    asked = rows(hub.folder / "hub.db", "select count(distinct device || epoch || '/' || seq) from effects")[0][0]
    assert billed == asked
    for words in (["ledger", "verify"], ["doctor"]):
        done = await asyncio.to_thread(
            subprocess.run, [str(SKERRY), *words, "--config", "cam-7.toml"], cwd=tmp_path, env=environment(tmp_path),
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
