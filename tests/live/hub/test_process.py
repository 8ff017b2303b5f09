"""The whole hub process with its real broker, played with an `EchoEngine` so that no model has to be trained first."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.system.client import ApiAddress, call_hub_api, read_running_address
from edge_agent.identity.enrollment import enrol_device
from simulations.processes import find_free_port, list_children
from tests import ROOT
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.base import DeliveryOutcome
from wire.transport.mqtt import MqttTransport

pytestmark = pytest.mark.live
PROGRAM = """
import sys
from cloud_hub import __main__ as hub
from cloud_hub.engine.base import EchoEngine
from cloud_hub.engine.types import ModelCard
from wire.protocol.messages import ModelRef

card = ModelCard(ModelRef("echo", 1, "c", "pack8"), (), ("a", "b"), "x", "FP32", (2,))
hub.open_engines = lambda config, log: [EchoEngine(card)]
sys.exit(hub.main(["--config", sys.argv[1]]))
"""
CONFIG = 'state = "state"\nmodels = ["unused"]\n[api]\nport = 0\n{api}\n[broker]\nport = {broker}\n'


class HubProcess:
    """One process; leave it with `with`."""

    def __init__(self, folder: Path, api: str = "") -> None:
        self.folder = folder
        self.broker_port = find_free_port()
        (folder / "hub.toml").write_text(CONFIG.format(api=api, broker=self.broker_port))
        self.log = (folder / "hub.log").open("w+")
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", PROGRAM, str(self.folder / "hub.toml")]
        return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=self.log, text=True)

    def address(self) -> ApiAddress:
        """Waits until the hub says where it is."""
        found = self.until(lambda: read_running_address(self.folder / "state" / "api.json"))
        assert isinstance(found, ApiAddress)
        return found

    def until(self, look: Any, timeout_s: float = 120.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := look()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)
        return found

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{self.address().url}/readyz", timeout=5).status == 200)
        return False

    @property
    def broker(self) -> int | None:
        return next(iter(list_children(self.process.pid, "mosquitto")), None)

    def said(self) -> str:
        return (self.folder / "hub.log").read_text()

    def invite(self, device: str) -> str:
        return str(call_hub_api(self.address(), "POST", "/v1/admin/invites", {"device": device})["invite"])

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    started = HubProcess(tmp_path)
    yield started
    started.close()


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


async def test_invited_device_enrols_and_reaches_the_broker(hub, tmp_path):
    hub.until(hub.ready)
    identity = enrol_device(hub.invite("demo--cam-1"), tmp_path / "cam-1")
    link = await MqttTransport.connect(
        identity.broker_host, identity.broker_port, identity.device, identity.tls_context()
    )
    assert await link.post(build_topic("demo--cam-1", TopicChannel.STATE), b"here") is DeliveryOutcome.TAKEN
    await link.close()
    with pytest.raises(ExitError) as stop:
        enrol_device(hub.invite("demo--cam-1").replace("skerry1:", "skerry1:x"), tmp_path / "cam-2")
    assert stop.value.code == ExitCode.ENROLMENT


def test_ctrl_c_leaves_no_process_port_or_address_behind(hub):
    hub.until(hub.ready)
    broker = hub.broker
    hub.process.send_signal(signal.SIGINT)
    assert hub.process.wait(60) == ExitCode.OK, hub.said()
    assert gone(broker)
    assert not (hub.folder / "state" / "api.json").exists()


def test_kill_9_leaves_no_broker_and_the_next_start_serves(hub):
    hub.until(hub.ready)
    broker = hub.broker
    hub.process.kill()
    hub.process.wait()
    assert gone(broker)
    hub.process = hub.start()
    hub.until(lambda: hub.broker not in (None, broker))
    hub.until(hub.ready)
    assert hub.end() == ExitCode.OK


def test_killed_broker_comes_back_and_the_hub_is_ready_again(hub):
    hub.until(hub.ready)
    broker = hub.broker
    os.kill(broker, signal.SIGKILL)
    hub.until(lambda: hub.broker not in (None, broker))
    hub.until(hub.ready)


def test_second_hub_on_one_folder_is_refused(hub):
    hub.until(hub.ready)
    second = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(hub.folder / "hub.toml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == ExitCode.LOCKED
    assert second.stderr.count("\n") == 1


def test_log_is_json_lines_and_holds_no_secret(hub):
    hub.until(hub.ready)
    invite = hub.invite("demo--cam-1")
    token = (hub.folder / "state" / "admin.token").read_text().strip()
    assert hub.end() == ExitCode.OK
    events = [json.loads(line)["event"] for line in hub.said().splitlines()]
    assert "listening" in events
    assert token not in hub.said()
    assert invite not in hub.said()


def test_from_elsewhere_a_device_enrols_over_tls_and_trusts_the_invite_alone(tmp_path):
    hub = HubProcess(tmp_path, 'host = "0.0.0.0"\ntls = true\nnames = ["127.0.0.1"]')
    try:
        assert hub.address().url.startswith("https://")
        identity = enrol_device(hub.invite("demo--cam-1"), tmp_path / "cam-1")
        assert identity.broker_port == hub.broker_port
        assert hub.end() == ExitCode.OK
    finally:
        hub.close()
