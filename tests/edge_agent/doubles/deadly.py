"""A device with a bundle that passes every test and crashes the process on one kind of sample.

The process is a real agent; its broker never answers.
"""

import http.client
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edge_agent.system.settings import ADDRESS_FILE, ApiAddress
from edge_agent.update.recovery import InstallTable
from edge_agent.update.types import InstallRow
from models.update.floors import commit_floor
from tests.edge_agent.app.test_process import address, running
from tests.edge_agent.app.test_process_updates import by_tuf, waited
from tests.edge_agent.doubles.installing import make_assignment
from tests.edge_agent.doubles.updates_bench import UpdateBench
from tests.models.conftest import deadly_graph
from wire.protocol.rollout import InstallState

DEADLY = [0.77] + [0.1] * 8 + [0.9]


def assign_deadly(device: UpdateBench, version: int) -> Path:
    """A device with version 1 committed, to which a hub that is gone by now has assigned `version`."""
    device.publish_bundle(1)
    config = by_tuf(device, policy="policy.toml")
    config.write_text(config.read_text() + "[updates]\ninterval_s = 0\n")
    device.store = device.folder / "device" / "updates"
    first = device.run_worker().current
    assert first
    commit_floor(device.store / "metadata", first)
    device.publish_bundle(version, edge=deadly_graph())
    work = make_assignment(device, 1, version, now_ms=time.time_ns() // 1_000_000)
    InstallTable(device.store).write_row(InstallRow(state=InstallState.CHECKING, counter=1, newest=work, work=work))
    return config


def request_answer(place: ApiAddress, x: list[float]) -> dict[str, Any]:
    at = urlsplit(place.url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
    body = {"inputs": [{"name": "scores", "shape": [1, 10], "datatype": "FP32", "data": x}]}
    connection.request("POST", "/v2/models/echo/infer", json.dumps(body), {"Content-Type": "application/json"})
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def crash_once(config: Path) -> None:
    """Run one process: it serves the model on trial, and ends by a signal with the first deadly sample."""
    with running(config) as process:
        place = address(config, process)
        waited(place, lambda status: status["install"]["state"] == "probation" and status["model"] == "echo@2")
        try:
            raise AssertionError(request_answer(place, DEADLY))
        except (http.client.HTTPException, OSError):
            assert process.wait(60) < 0
    (config.parent / "device" / ADDRESS_FILE).unlink()


def measure_rollback(config: Path) -> tuple[float, float]:
    """After the last crash: seconds from the start of the next process to its first answer, by the model before.

    The second: how many of these passed until the process could be asked at all.
    """
    began = time.monotonic()
    with running(config) as process:
        place = address(config, process)
        listening_s = time.monotonic() - began
        assert request_answer(place, DEADLY)["model_version"] == "1"
        return time.monotonic() - began, listening_s
