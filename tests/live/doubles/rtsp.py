"""A real RTSP server, GStreamer's, that plays recorded frames; tests that need it are skipped where it is missing."""

import functools
import os
import select
import socket
import subprocess
from pathlib import Path
from typing import Self

import pytest

from tests import ROOT

SYSTEM_PYTHON = "/usr/bin/python3"
_SCRIPT = ROOT / "tests/live/cameras/rtsp_server.py"
_PROBE = """
import gi
gi.require_version("Gst", "1.0"); gi.require_version("GstRtspServer", "1.0")
from gi.repository import Gst, GstRtspServer
Gst.init(None)
assert all(Gst.ElementFactory.find(name) for name in ("matroskademux", "rtph264pay"))
"""


@functools.cache
def has_rtsp_server() -> bool:
    """Whether the system's Python has GStreamer's RTSP server with what a recording needs."""
    try:
        done = subprocess.run([SYSTEM_PYTHON, "-c", _PROBE], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class RtspServer:
    """The server's process. `url`: of its stream, without user and password."""

    def __init__(self, video: Path, user: str = "", password: str = "") -> None:
        if not has_rtsp_server():
            pytest.skip("GStreamer's RTSP server is not installed: ./setup.sh dev installs it")
        self.port = free_port()
        self.url = f"rtsp://127.0.0.1:{self.port}/stream"
        self._words = [SYSTEM_PYTHON, str(_SCRIPT), str(self.port), str(video)]
        self._environment = {**os.environ, "RTSP_USER": user, "RTSP_PASSWORD": password}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._words, env=self._environment, stdout=subprocess.PIPE)
        out = self._process.stdout
        assert out is not None
        assert select.select([out], [], [], 30)[0]
        assert out.readline() == b"listening\n"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
