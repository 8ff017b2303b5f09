"""A real agent process and a camera: GStreamer's RTSP server of recorded frames, killed and started again."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from models.bundle.bundle import Bundle
from tests import ROOT
from tests.edge_agent.doubles.device import write_device
from tests.edge_agent.doubles.videos import write_video
from tests.live.doubles.rtsp import RtspServer
from tests.live.test_docs import ports, type_blocks

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
PASSWORD = "s3cret camera/p@ss"
CAMERA = """
[input]
kind = "picture"
channels = "grey"

[[camera]]
url = "{url}"
name = "door"
user = "viewer"
password_file = "camera.password"
frames_per_s = 10
silent_after_s = 10
"""


class Device:
    """An agent of its own process with one camera, without a hub."""

    def __init__(self, folder: Path, bundle: Bundle, url: str) -> None:
        self.folder = folder
        self.config = write_device(folder)
        (folder / "camera.password").write_text(PASSWORD + "\n")
        text = self.config.read_text().replace('bundle = "echo"', f'bundle = "{bundle.path}"')
        self.config.write_text(text + CAMERA.format(url=url))
        self._log = (folder / "log").open("wb")
        words = [sys.executable, "-m", "edge_agent", "--config", str(self.config)]
        self.process = subprocess.Popen(words, cwd=ROOT, stderr=self._log)

    def status(self) -> dict[str, Any]:
        address = json.loads((self.folder / "device" / "api.json").read_text())["url"]
        with urllib.request.urlopen(f"{address}/v1/status", timeout=10) as response:
            read: dict[str, Any] = json.load(response)
        return read

    def metrics(self) -> str:
        address = json.loads((self.folder / "device" / "api.json").read_text())["url"]
        with urllib.request.urlopen(f"{address}/metrics", timeout=10) as response:
            text: str = response.read().decode()
        return text

    def wait_for(self, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The status when the camera's entry is as wanted."""
        until = time.monotonic() + 90
        while time.monotonic() < until:
            assert self.process.poll() is None
            if (self.folder / "device" / "api.json").exists():
                status = self.status()
                if reached(status["sources"]["door"]):
                    return status
            time.sleep(0.1)
        raise AssertionError(self.status())

    def command_lines(self) -> str:
        """Of all processes of the machine, as anybody may read them."""
        found = (folder / "cmdline" for folder in Path("/proc").iterdir() if folder.name.isdigit())
        return "\n".join(path.read_bytes().decode(errors="replace") for path in found if path.exists())

    def stop(self) -> list[dict[str, Any]]:
        self.process.terminate()
        assert self.process.wait(30) == 0
        self._log.close()
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RtspServer]:
    with RtspServer(write_video(tmp_path / "recorded.mkv", 300), "viewer", PASSWORD) as server:
        yield server


def test_a_camera_is_answered_goes_away_comes_back_and_its_password_stays_in_its_file(tmp_path, bundle, server):
    (tmp_path / "device").mkdir()
    device = Device(tmp_path / "device", bundle, server.url)
    try:
        seen = device.wait_for(lambda camera: camera["answered"] >= 5)
        assert seen["sources"]["door"]["state"] == "up"
        assert "source_away" not in seen["alarms"]
        shown = device.command_lines()
        server.kill()
        gone = device.wait_for(lambda camera: camera["state"] == "away" and camera["restarts"] >= 2)
        assert "source_away" in gone["alarms"]
        before = gone["sources"]["door"]["answered"]
        server.start()
        back = device.wait_for(lambda camera: camera["state"] == "up" and camera["answered"] > before + 3)
        assert "source_away" not in back["alarms"]
        camera = device.status()["sources"]["door"]
        assert camera["received"] == camera["answered"] + camera["waiting"] + sum(camera["dropped"].values())
        metrics = device.metrics()
        assert 'skerry_agent_source_up{source="door"} 1.0' in metrics
        assert 'skerry_agent_source_readings_total{outcome="answered",source="door"}' in metrics
    finally:
        lines = device.stop()
    events = [line["event"] for line in lines if line["event"] in {"source_up", "source_away"}]
    assert events[-3:] == ["source_up", "source_away", "source_up"]  # one line a change, whatever it took to start
    assert all(event != after for event, after in pairwise(events))
    for text in (json.dumps(lines), json.dumps(back), metrics, shown):
        assert "s3cret" not in text
        assert "p%40ss" not in text
    assert server.url not in json.dumps([lines, back])


@pytest.mark.timeout(900)
def test_the_page_about_cameras_leads_from_nothing_to_answers_and_corrections(tmp_path):
    with RtspServer(write_video(tmp_path / "recorded.mkv", 300)) as camera:
        type_blocks(ROOT / "docs" / "cameras.md", tmp_path, ports(), {"rtsp://10.0.0.7/stream": camera.url})
