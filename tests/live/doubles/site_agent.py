"""An agent process without a hub, with whatever its configuration says, and how a test asks and waits for it."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from edge_agent.cli.client import find_running_agent, request_json
from tests import ROOT
from wire.http.client import HttpClient

SURE = [1.0] + [0.0] * 9


@contextlib.asynccontextmanager
async def running(config: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "edge_agent", "--config", str(config)]
    with (config.parent / "agent.log").open("ab") as log:
        process = subprocess.Popen(
            words, cwd=ROOT, env={**os.environ}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        await until(lambda: find_running_agent(config.parent / "device") is not None)
        yield process
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not holds():
            await asyncio.sleep(0.05)


async def ask(config: Path, x: list[float] = SURE) -> str:
    address = find_running_agent(config.parent / "device")
    assert address is not None
    asked = {"inputs": [{"name": "scores", "datatype": "FP32", "shape": [1, 10], "data": x}]}
    client = HttpClient(url=address.url, server="agent")
    reply = await asyncio.to_thread(client.send, "POST", "/v2/models/echo/infer", json.dumps(asked).encode())
    return str(client.read_object(reply)["parameters"]["answer_id"])


async def read_status(config: Path) -> dict[str, Any]:
    address = find_running_agent(config.parent / "device")
    assert address is not None
    return await asyncio.to_thread(request_json, address, "/v1/status")
