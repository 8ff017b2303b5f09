"""Damaged files, requests and databases against real processes: nothing of it ends one, or keeps one down."""

import asyncio
import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests.live.doubles.fleet import QUICK, ask, burst, judged, policy, samples, settle

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
HOSTILE = {
    "token.npy": b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((((",
    "empty.npy": b"",
    "noise.png": b"\x89PNG\r\n\x1a\n" + bytes(100),
    os.fsdecode(b"\xff.npy"): b"",
    "n" * 251 + ".npy": b"",
}
HUGE = b'{"inputs":[{"name":"%s","datatype":"FP32","shape":[0,2147483647,2147483647,2147483647],"data":[]}]}'
REQUESTS = (HUGE, b'{"inputs":[{"name":"%s","datatype":"FP32","shape":[1],"data":[1],"\xff":1}]}')


async def poll(test, what: str) -> None:
    """Wait until `test()` holds; a real process needs its time."""
    async with asyncio.timeout(60):
        while not test():
            await asyncio.sleep(0.05)
    assert test(), what


async def test_a_damaged_file_in_the_watched_folder_does_not_end_the_agent_nor_its_next_start(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    await stage.start_hub(bundle.path)
    watched = tmp_path / "watched"
    watched.mkdir()
    extra: dict[str, dict[str, Any]] = {**QUICK, "folder": {"path": str(watched), "every_s": 0.1}}
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), extra)
    for name, data in HOSTILE.items():
        (watched / name).write_bytes(data)
    for number in range(2):  # the second start met the file again
        await stage.start_agent(agent)
        np.save(watched / f".{number}.npy", samples(1)[0])
        (watched / f".{number}.npy").rename(watched / f"sound{number}.npy")
        await poll((watched / "done" / f"sound{number}.npy.json").exists, "the sound file is answered")
        assert agent.child.running
        await agent.child.stop()
    assert len(list((watched / "failed").glob("*.json"))) == len(HOSTILE)
    assert "error" in json.loads((watched / "failed" / "token.npy.json").read_text())


async def test_no_request_makes_the_agent_or_the_hub_answer_500(stage: ProcessHarness, bundle: Bundle, tmp_path: Path):
    hub = await stage.start_hub(bundle.path)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), QUICK)
    await stage.start_agent(agent)
    name = bundle.manifest.input.name.encode()
    for body in REQUESTS:
        for url in (agent.url, hub.url):
            target = f"{url}/v2/models/{bundle.manifest.name}/infer"
            async with stage.session.post(target, data=body.replace(b"%s", name)) as response:
                assert response.status == 400, await response.text()
                assert set(await response.json()) == {"error"}


async def test_a_hub_with_a_damaged_database_serves_again_and_nothing_owed_is_lost(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    """It ended with code 30 at every start; devices hold what they are owed."""
    hub = await stage.start_hub(bundle.path)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path, "answer_now"), QUICK)
    await stage.start_agent(agent)
    await ask(stage, agent, bundle, samples(1)[0])
    private = {path.name: stat.S_IMODE(path.stat().st_mode) for path in hub.folder.glob("devices.db*")}
    assert private.keys() >= {"devices.db", "devices.db-wal"}
    assert set(private.values()) == {0o600}
    feeding = asyncio.create_task(burst(stage, agent, bundle, samples(60)))
    await asyncio.sleep(0.2)
    await hub.child.kill()
    await feeding
    hub.database.with_name("hub.db-wal").unlink()  # with its log whole, SQLite would still have every page
    hub.database.write_bytes(b"rubbish" * 1000)
    await stage.launch_hub()
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()
    status = await stage.call_admin("GET", "/v1/admin/status")
    assert len(status["stores_damaged"]) == 1
    assert status["counters"]["store_damaged"] == 1
    async with stage.session.get(f"{hub.url}/metrics") as response:
        assert 'skerry_hub_alarms{alarm="store_damaged"} 1.0' in await response.text()


async def test_an_emptied_agent_db_is_an_alarm_that_a_restart_does_not_end(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    await stage.start_hub(bundle.path)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), QUICK)
    await stage.start_agent(agent)
    await ask(stage, agent, bundle, samples(1)[0])
    await settle(stage)
    await agent.child.stop()
    with contextlib.suppress(FileNotFoundError):
        agent.database.with_name("agent.db-wal").unlink()
    agent.database.write_bytes(b"")
    for _ in range(2):
        await stage.start_agent(agent)
        assert "database_damaged" in (await stage.fetch_status(agent))["alarms"]
        await agent.child.stop()
