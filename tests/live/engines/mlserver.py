"""MLServer as a process of its own, with ONNX graphs by name."""

import os
import signal
import subprocess
import time
from pathlib import Path
from urllib.request import urlopen

from benchmarks.harness.environments import MLSERVER
from simulations.processes import find_free_port
from tests import ROOT

START_S = 120.0


class MlServer:
    """A server of ONNX graphs, by name; it is killed and started again at the same port."""

    def __init__(self, folder: Path, graphs: dict[str, bytes]) -> None:
        self._folder = folder
        folder.mkdir()
        for name, data in graphs.items():
            (folder / f"{name}.onnx").write_bytes(data)
        self._port = find_free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> "MlServer":
        program = ROOT / "benchmarks" / "peers" / "mlserver_onnx.py"
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                [str(MLSERVER.python), str(program), str(self._port), str(self._folder)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + START_S
        while not self._is_ready():
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            assert time.monotonic() < until, (self._folder / "server.log").read_text()
            time.sleep(0.1)
        return self

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/v2/health/ready", timeout=10) as response:
                return bool(response.status == 200)
        except OSError:
            return False
