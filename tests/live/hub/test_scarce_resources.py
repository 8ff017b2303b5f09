"""A full disk and a few descriptors against real processes: nothing ends by a traceback, all recovers by itself."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from cloud_hub.system.client import call_hub_api, read_running_address
from cloud_hub.system.state_folder import StateDir
from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, HubHandle, ProcessHarness
from tests.live.doubles.fleet import QUICK, ask, policy, samples
from wire.http.server import CONNECTION_BYTES
from wire.process.exit_codes import ExitCode, ExitError

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
DISK = "16m"
DESCRIPTORS, IDLE = 256, 5_000
HANDSHAKES = 10_000
MOST_GROWN = HANDSHAKES * CONNECTION_BYTES // 2  # as for all of a connection, of which a handshake is less than half


@contextlib.contextmanager
def own_disk(folder: Path, aside: Path) -> Iterator[None]:
    """Put what a folder holds on a small disk of its own, until the block ends."""
    shutil.copytree(folder, aside, symlinks=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("this needs the right to mount a disk")
    try:
        shutil.copytree(aside, folder, symlinks=True, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill_disk(folder: Path) -> Path:
    """Take all room that is left on a folder's disk; returns the file that takes it."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


async def wait_until(test, what: str) -> None:
    async with asyncio.timeout(60):
        while not await test():
            await asyncio.sleep(0.1)
    assert what


async def start_answering(stage: ProcessHarness, agent: AgentHandle) -> None:
    await agent.child.start()
    await stage.wait_ready(agent)


async def test_an_agent_that_starts_on_a_full_disk_answers_names_the_disk_and_recovers(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    await stage.start_hub(bundle.path)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), QUICK)
    agent.child.log = tmp_path / "a.log"
    await stage.start_agent(agent)
    await ask(stage, agent, bundle, samples(1)[0])
    await agent.child.stop()
    with own_disk(agent.folder, tmp_path / "aside"):
        filler = fill_disk(agent.folder)
        await start_answering(stage, agent)
        answer = await ask(stage, agent, bundle, samples(1)[0])
        assert answer["source"] == "local"
        assert "disk_full" in (await stage.fetch_status(agent))["alarms"]
        lines = [line for line in agent.child.log.read_text().splitlines() if "database_not_written" in line]
        assert len(lines) == 1
        assert str(agent.folder / "agent.db") in lines[0]
        assert "full" in lines[0]
        assert "Traceback" not in agent.child.log.read_text()
        filler.unlink()

        async def recovered() -> bool:
            return (await stage.fetch_status(agent))["disk"] == "ok" and (agent.folder / "api.json").exists()

        await wait_until(recovered, "there is room again")
        await agent.child.stop()


async def test_a_hub_that_starts_on_a_full_disk_says_so_in_one_line_and_starts_once_there_is_room(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    hub = await stage.start_hub(bundle.path)
    await hub.child.stop()
    hub.child.log = tmp_path / "hub-again.log"
    with own_disk(hub.folder, tmp_path / "aside"):
        filler = fill_disk(hub.folder)
        await hub.child.start()
        assert hub.child.process is not None
        code = await asyncio.wait_for(hub.child.process.wait(), 60)
        text = hub.child.log.read_text()
        assert code == ExitCode.DISK, text
        assert "Traceback" not in text
        last = text.splitlines()[-1]
        assert str(hub.folder) in last, text
        filler.unlink()
        await stage.launch_hub()
        await hub.child.stop()


def write_interpreter(path: Path, descriptors: int = DESCRIPTORS) -> str:
    """A Python whose process may have a few descriptors only."""
    path.write_text(f'#!/bin/sh\nulimit -n {descriptors}\nexec {sys.executable} "$@"\n')
    path.chmod(0o700)
    return str(path)


async def hold_idle(port: int, times: int, held: list[asyncio.StreamWriter]) -> None:
    """Open so many connections that say nothing."""
    for _ in range(times):
        with contextlib.suppress(OSError):
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            held.append(writer)


async def test_idle_connections_and_a_broker_restart_end_neither_hub_nor_agent_of_256_descriptors(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    hub = await stage.configure_hub(bundle.path)
    hub.child.python = write_interpreter(tmp_path / "python")
    await stage.launch_hub()
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), QUICK)
    agent.child.python = hub.child.python
    await stage.start_agent(agent)
    held: list[asyncio.StreamWriter] = []
    limit = aiohttp.ClientTimeout(total=10)
    try:
        for url in (hub.url, agent.url):
            await hold_idle(int(url.rpartition(":")[2]), IDLE, held)
            async with stage.session.get(f"{url}/readyz", timeout=limit) as response:
                assert response.status == 200, url
        broker = stage.broker_pid()
        assert broker is not None
        os.kill(broker, signal.SIGKILL)

        async def broker_is_back() -> bool:
            return stage.broker_pid() not in (None, broker)

        await wait_until(broker_is_back, "the broker was started again")
        for url in (hub.url, agent.url):

            async def is_ready(url: str = url) -> bool:
                async with stage.session.get(f"{url}/readyz", timeout=limit) as response:
                    return response.status == 200

            await wait_until(is_ready, "its link to the broker is up again")
        await stage.wait_for(agent, lambda status: status.get("link") == "up", "the link is up again")
        for child in (hub.child, agent.child):
            text = child.log.read_text()
            assert child.running, text[-2000:]
            assert "Traceback" not in text
            assert "connections_full" in text
    finally:
        for writer in held:
            writer.close()


@contextlib.contextmanager
def own_descriptors(needed: int) -> Iterator[None]:
    """Let this process have so many open connections of its own, until the block ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"this needs {needed} file descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def ask_ready(hub: HubHandle) -> bool:
    """Whether a new caller is answered, by TLS."""
    address = read_running_address(StateDir(hub.folder).running)
    if address is None:
        return False
    try:
        await asyncio.to_thread(call_hub_api, address, "GET", "/v2/health/ready")
    except ExitError:
        return False
    return True


def read_resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("descriptors", [DESCRIPTORS, 2 * HANDSHAKES], ids=["few descriptors", "all at once"])
async def test_ten_thousand_tls_handshakes_that_never_end_keep_no_caller_from_the_hub(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, descriptors: int
):
    hub = await stage.configure_hub(bundle.path, {"api": {"tls": True}})
    hub.child.python = write_interpreter(tmp_path / "python", descriptors)
    hub.child.log = tmp_path / "hub.log"
    await hub.child.start()
    await wait_until(lambda: ask_ready(hub), "it serves")
    before = read_resident_bytes(hub.child.pid)
    held: list[asyncio.StreamWriter] = []
    with own_descriptors(HANDSHAKES + 512):
        try:
            async with asyncio.timeout(120):
                await hold_idle(int(hub.url.rpartition(":")[2]), HANDSHAKES, held)
            assert len(held) == HANDSHAKES
            for _ in range(3):
                began = time.monotonic()
                assert await ask_ready(hub), hub.child.log_tail()
                assert time.monotonic() - began < 10
            grown = read_resident_bytes(hub.child.pid) - before
            assert grown < MOST_GROWN, f"{grown / 2**20:.0f} MiB for what is in its handshake"
        finally:
            for writer in held:
                writer.close()
    text = hub.child.log.read_text()
    assert hub.child.running, text[-2000:]
    assert "Traceback" not in text
    assert ("connections_full" in text) == (descriptors == DESCRIPTORS)
