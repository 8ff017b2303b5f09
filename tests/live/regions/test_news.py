"""Two hub processes of one region over a real PostgreSQL: what is taken back at one is taken back at the other."""

import asyncio
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import HubHandle, ProcessHarness
from tests import ROOT
from tests.live.doubles.fleet import BUSY_S, samples
from tests.postgres import PostgresServer, find_programs

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, since it is stopped."""
    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: ./setup.sh dev installs it")
    with PostgresServer() as started:
        yield started


@dataclass
class Region:
    """Two hubs behind one broker, which the first one runs."""

    first: ProcessHarness
    second: ProcessHarness
    bundle: Bundle

    async def status_of(self, stage: ProcessHarness, path: str, token: str = "", body: Any = None) -> int:
        assert stage.hub is not None
        headers = {"Authorization": f"Bearer {token or stage.hub.token}"}
        method = "POST" if body else "GET"
        async with stage.session.request(method, stage.hub.url + path, json=body, headers=headers) as response:
            return response.status

    async def infer(self, stage: ProcessHarness, token: str) -> int:
        x, spec = samples(1)[0], self.bundle.manifest.input
        tensor = {"name": spec.name, "shape": [1, *x.shape], "datatype": "FP32", "data": x.ravel().tolist()}
        path = f"/v2/models/{self.bundle.manifest.name}/infer"
        return await self.status_of(stage, path, token, {"inputs": [tensor]})


@pytest.fixture
async def region(tmp_path: Path, bundle: Bundle, server: PostgresServer) -> AsyncIterator[Region]:
    store = {"store": {"url": server.create_database()}}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with ProcessHarness(tmp_path / "first") as first, ProcessHarness(tmp_path / "second") as second:
        one = await first.start_hub(bundle.path, store)
        await second.configure_hub(bundle.path, store)
        await join(second, one, store["store"]["url"], bundle)
        await second.launch_hub()
        yield Region(first, second, bundle)


def share_keys(one: HubHandle, two: HubHandle) -> None:
    """Give a hub that a stage has configured what the region's first one has, as `join` does."""
    for name in ("pki", "keys", "repository"):
        if (one.folder / name).exists():
            shutil.copytree(one.folder / name, two.folder / name, symlinks=True)
    shutil.copy(one.folder / "region.key", two.folder)


async def join(stage: ProcessHarness, one: HubHandle, url: str, bundle: Bundle) -> None:
    """Make a hub of the region by the command, in place of what the stage has configured but its port."""
    assert stage.hub is not None
    config = stage.hub.child.config
    config.unlink()
    words = ("hub", "join", url, "--key", str(one.folder / "region.key"), "--member", "hub-2")
    more = ("--config", str(config), "--state", str(stage.hub.folder), "--model", str(bundle.path))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "skerry.py"), *words, *more, stdout=pipe, stderr=pipe
    )
    out, err = await child.communicate()
    assert child.returncode == 0, err.decode()
    assert b"hub-2 of hub-1 in local" in out
    config.write_text(config.read_text().replace("# port = 8080", f"port = {stage.hub.url.rpartition(':')[2]}", 1))


async def until(met: Callable[[], Awaitable[bool]]) -> float:
    """Wait for something; how many seconds that took."""
    began = time.monotonic()
    async with asyncio.timeout(BUSY_S):
        while not await met():
            await asyncio.sleep(0.01)
    return time.monotonic() - began


async def test_what_is_taken_back_at_one_hub_is_refused_by_the_other(region: Region):
    first, second, took = region.first, region.second, dict[str, float]()
    wanted = {"name": "ward", "tenant": "demo", "scopes": ["infer"], "expires_s": 3600}
    key = await first.call_admin("POST", "/v1/admin/keys", wanted)

    async def served() -> bool:
        return await region.infer(second, key["token"]) == 200

    async def refused() -> bool:
        return await region.infer(second, key["token"]) == 401

    await until(served)
    await first.call_admin("DELETE", f"/v1/admin/keys/{key['key']}")
    took["key_revoked_s"] = await until(refused)

    agent = await first.add_agent("a", region.bundle.path, "tuf:none")

    async def state() -> str:
        found = await second.call_admin("GET", "/v1/admin/devices")
        return next((each["state"] for each in found["devices"] if each["device"] == agent.device), "")

    async def is_active() -> bool:
        return await state() == "active"

    async def is_revoked() -> bool:
        return await state() == "revoked"

    await until(is_active)
    await first.call_admin("POST", f"/v1/admin/devices/{agent.device}/state", {"state": "revoked"})
    took["device_revoked_s"] = await until(is_revoked)

    notice = await second.call_admin("POST", "/v1/admin/deny-all", {"why": "the broker was opened"})

    async def is_denied() -> bool:
        found = await first.call_admin("GET", "/v1/admin/deny-all")
        return [each["counter"] for each in found["notices"]] == [notice["counter"]]

    took["denied_s"] = await until(is_denied)
    print("\nobeyed by the other hub:", {name: round(seconds, 3) for name, seconds in took.items()})


async def readiness(stage: ProcessHarness) -> tuple[int, str]:
    assert stage.hub is not None
    async with stage.session.get(f"{stage.hub.url}/readyz") as response:
        return response.status, (await response.json())["reason"]


async def test_a_hub_that_cannot_hear_of_the_others_takes_nothing_new_until_it_can(
    region: Region, server: PostgresServer
):
    wanted = {"name": "ward", "tenant": "demo", "scopes": ["infer"], "expires_s": 3600}
    key = await region.first.call_admin("POST", "/v1/admin/keys", wanted)

    async def served() -> bool:
        return await region.infer(region.second, key["token"]) == 200

    async def unheard() -> bool:
        return await region.infer(region.second, key["token"]) == 503

    await until(served)
    server.send_signal(signal.SIGSTOP)  # neither an answer nor an end: a network that swallows everything
    try:
        await until(unheard)
        assert (await readiness(region.second))[0] == 503
    finally:
        server.send_signal(signal.SIGCONT)
    await until(served)

    async def ready() -> bool:
        return (await readiness(region.second))[0] == 200

    await until(ready)


async def test_a_key_that_one_hub_changes_and_a_ca_that_it_makes_reach_the_other(region: Region):
    first, second = region.first, region.second
    assert first.hub is not None
    assert second.hub is not None
    changed = await first.call_admin("POST", "/v1/admin/ca", {"step": "rotate"})
    assert changed["coming"]

    async def is_coming() -> bool:
        return bool((await second.call_admin("GET", "/v1/admin/ca"))["coming"] == changed["coming"])

    await until(is_coming)
    await first.call_admin("POST", "/v1/admin/ca", {"step": "finish"})

    async def is_over() -> bool:
        found = await second.call_admin("GET", "/v1/admin/ca")
        return bool(found["ca"] == changed["coming"] and not found["coming"])

    await until(is_over)
    assert (second.hub.folder / "pki" / "ca.key").read_bytes() == (first.hub.folder / "pki" / "ca.key").read_bytes()
