"""Notification of the fleet when something new is published, and only then."""

import asyncio
import contextlib
import io

import pytest

from cloud_hub.runtime.maintenance import UpdateNotifier
from tests.cloud_hub.doubles.fleet import Holder, Hub
from wire.process.logging import JsonLog


@pytest.fixture
def hub(tmp_path) -> Hub:
    hub = Hub(tmp_path / "hub")
    hub.install(Holder.begin(tmp_path / "ring", hub.export(hold=("policy",))))
    return hub


async def told(hub: Hub, *versions: int, devices: tuple[str, ...] = ("demo--a", "demo--b")) -> list[str]:
    """Return the devices that got a hint while these policy versions were published one after the other."""
    found: list[str] = []
    herald = UpdateNotifier(hub.repository, lambda: devices, found.append, JsonLog(io.StringIO()))
    task = asyncio.create_task(herald.run(look_s=0.01, per_s=1000))
    for count, version in enumerate(versions, 1):
        hub.publish(version)
        async with asyncio.timeout(60):
            while len(found) < count * len(devices):
                await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)  # some looks more, which find nothing
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return found


async def test_each_publication_is_told_to_every_device_once(hub):
    assert await told(hub, 2, 3) == ["demo--a", "demo--b"] * 2


async def test_what_was_there_at_start_is_no_news(hub):
    hub.publish(2)
    assert await told(hub) == []


async def test_a_repository_that_is_damaged_is_silence_not_an_end(hub):
    hub.publish(2)
    good = (hub.repository.shelf.metadata / "timestamp.json").read_bytes()
    (hub.repository.shelf.metadata / "timestamp.json").write_bytes(b"{")
    assert await told(hub) == []
    (hub.repository.shelf.metadata / "timestamp.json").write_bytes(good)
    assert await told(hub, 3) == ["demo--a", "demo--b"]


async def test_a_hub_without_a_repository_tells_nothing(tmp_path):
    assert await told(Hub(tmp_path / "bare")) == []
