"""A real hub process that has to go: by a signal or by a file, under requests; and the end of a version by command."""

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.system.client import call_hub_api
from edge_agent.identity.enrollment import enrol_device
from tests import ROOT
from tests.live.hub.test_process import PROGRAM, HubProcess, gone
from wire.process.exit_codes import ExitCode

pytestmark = pytest.mark.live
SLOW = PROGRAM.replace("EchoEngine(card)]", "EchoEngine(card, compute_s=1.5)]")
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}]}).encode()


class SlowHub(HubProcess):
    """Its model takes 1.5 s."""

    def start(self) -> "subprocess.Popen[str]":
        words = [sys.executable, "-c", SLOW, str(self.folder / "hub.toml")]
        return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=self.log, text=True)

    def get(self, path: str, body: bytes | None = None) -> tuple[int, dict[str, str], Any]:
        """(status, headers, JSON)."""
        request = urllib.request.Request(self.address().url + path, body)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, dict(response.headers), json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), json.loads(error.read())


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[SlowHub]:
    started = SlowHub(tmp_path, f'[hub]\nleave_file = "{tmp_path}/leave"\n')
    yield started
    started.close()


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGUSR1, "file"])
def test_a_notice_makes_it_unready_not_dead_finishes_what_is_under_way_and_refuses_the_rest(hub, notice):
    hub.until(hub.ready)
    url = hub.address().url
    answers: list[Any] = []
    asking = [threading.Thread(target=lambda: answers.append(hub.get("/v2/models/echo/infer", BODY))) for _ in range(3)]
    for thread in asking:
        thread.start()
    hub.until(lambda: call_hub_api(hub.address(), "GET", "/v1/admin/status")["open"] == len(asking))
    if notice == "file":
        (hub.folder / "leave").touch()
    else:
        hub.process.send_signal(notice)
    hub.until(lambda: hub.get("/readyz")[0] == 503)
    assert hub.get("/healthz")[0] == 200
    status, headers, said = hub.get("/v2/models/echo/infer", BODY)
    assert (status, headers["Retry-After"], headers["Connection"]) == (503, "5", "close"), said
    for thread in asking:
        thread.join()
    assert [status for status, _, _ in answers] == [200, 200, 200]
    assert hub.process.wait(60) == ExitCode.OK, hub.said()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{url}/healthz", timeout=2)
    assert not (hub.folder / "state" / "api.json").exists()


def test_skerry_models_retire_names_who_speaks_a_version_and_ends_it_for_good(hub, tmp_path):
    hub.until(hub.ready)
    enrol_device(hub.invite("demo--cam-1"), tmp_path / "cam-1")

    def retire(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "skerry.py", "models", "retire", *words, "--config", str(hub.folder / "hub.toml")]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    unknown = retire("echo@9")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (ExitCode.NOT_FOUND, 1), unknown.stderr
    assert retire("echo").returncode == ExitCode.USAGE
    ended = retire("echo@1", "--json")
    assert ended.returncode == ExitCode.OK, ended.stderr
    assert json.loads(ended.stdout) == {"retired": "echo@1", "spoke": []}
    assert hub.get("/v2/models/echo/infer", BODY)[0] == 404
    broker = hub.broker
    assert hub.end() == ExitCode.OK
    assert gone(broker)
