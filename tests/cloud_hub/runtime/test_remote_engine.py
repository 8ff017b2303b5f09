"""A hub whose model a server computes: the server is killed while questions wait, and comes back."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.types import EngineOptions, RemoteServer
from models.bundle.manifest import EDGE_FILE, GOLDEN_FILE, HubModel
from models.runtime.golden import pack_golden
from tests.cloud_hub.doubles.devices import MANIFEST, SimDevice
from tests.cloud_hub.doubles.site import Ear, serving
from tests.cloud_hub.doubles.v2_server import V2Server
from tests.cloud_hub.engine.test_remote import net
from tests.models.bundles import write_bundle

NET = net((10,), 1)


def echo_bundle(folder: Path) -> Path:
    chance = np.random.default_rng(3)
    codes = chance.integers(0, 16, (8, 10), np.uint8)
    golden = pack_golden(chance.random((8, 10), np.float32), np.full((8, 10), 0.1), {"features": codes})
    files = {"tail.onnx": NET, "whole.onnx": NET, EDGE_FILE: b"edge", GOLDEN_FILE: golden}
    manifest = msgspec.structs.replace(MANIFEST, hub=HubModel("tail.onnx", (), "whole.onnx"), files={})
    return write_bundle(folder / "echo", manifest, files).path


@pytest.mark.usefixtures("quick_rechecks")
async def test_no_question_is_lost_while_the_server_is_gone(tmp_path):
    server = V2Server({"echo-tail": NET, "echo-whole": NET}).start()
    options = EngineOptions(max_batch=4, remote={"echo@1": RemoteServer(server.url, "echo-tail", "echo-whole")})
    engine = await asyncio.to_thread(open_engine, echo_bundle(tmp_path), options)
    device = SimDevice()
    async with serving(tmp_path, device, engine=engine) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(1)
        before = await ear.verdicts(1, within_s=60)
        await asyncio.to_thread(server.kill)
        ear.ask(2, 3, 4)
        async with asyncio.timeout(60):
            while (site.hub.status()["engines_down"], site.hub.status()["open"]) != (["echo@1"], 3):
                await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
        after = await ear.verdicts(3, within_s=60)
    server.kill()
    assert (set(before), set(after)) == ({1}, {2, 3, 4})
