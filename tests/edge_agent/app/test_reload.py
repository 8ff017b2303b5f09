"""Reload of a running agent: what can change does, the rest is named, and one wrong key among ten changes nothing."""

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_agent.app.config import AgentConfig, load_config
from edge_agent.app.reloading import LIVE_KEYS, choose_live_settings
from edge_agent.cli.client import find_running_agent, request_json
from tests import ROOT
from tests.edge_agent.doubles.device import write_device
from tests.in_process import skerry
from wire.process.config import flatten_config, list_known_keys
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog
from wire.process.reload import ReloadRecord

TEN = """
[outbox]
max_rows = 500
ask_interval_s = 7.5
[records]
answers_max_rows = 5000
outcomes_max_rows = 6000
[link]
reconnect_cap_s = 9.0
silent_after_s = 60.0
[device]
tags = ["yard"]
[updates]
every_s = 60.0
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = write_device(tmp_path)
    file.write_text(file.read_text() + "token_file = 'token'\n")  # the last table is [api]
    return file


@pytest.fixture
def agent(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "edge_agent", "--config", str(config)]
    with (config.parent / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while find_running_agent(config.parent / "device") is None:
            assert process.poll() is None, (config.parent / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def status(config: Path) -> dict[str, Any]:
    found = find_running_agent(config.parent / "device")
    assert found is not None
    return request_json(found, "/v1/status")


@pytest.mark.further
def test_a_reload_takes_what_it_can_and_names_the_rest(config: Path, agent: subprocess.Popen[bytes]) -> None:
    whole = config.read_text()
    config.write_text(whole + TEN)
    done = skerry("agent", "reload", "--config", str(config), "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    found = json.loads(done.stdout)
    taken = {"outbox.max_rows", "outbox.ask_interval_s", "records.answers_max_rows", "records.outcomes_max_rows",
             "link.reconnect_cap_s", "link.silent_after_s", "device.tags"}  # fmt: skip
    assert set(found["changed"]) == taken
    assert found["needs_restart"] == ["updates.every_s"]

    config.write_text(whole + TEN.replace("max_rows = 500", "max_rows = 400").replace("silent_after_s", "silent_aftr"))
    agent.send_signal(signal.SIGHUP)
    told = wait_for_count(config, 2)
    assert "did you mean 'link.silent_after_s'" in told["refused"]
    assert told["changed"] == []
    assert "reload_refused" in status(config)["alarms"]
    by_hand = skerry("agent", "reload", "--config", str(config))
    assert (by_hand.returncode, "silent_aftr" in by_hand.stderr) == (ExitCode.CONFIG, True)

    config.write_text(whole)  # as it was: nothing waits for a restart any more
    done = skerry("agent", "reload", "--config", str(config))
    assert done.returncode == ExitCode.OK, done.stderr
    assert "needs restart  nothing" in done.stdout
    assert status(config)["reload"]["refused"] == ""
    assert agent.poll() is None


def wait_for_count(config: Path, count: int) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while (told := status(config)["reload"])["count"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return dict(told)


@pytest.mark.further
def test_a_new_token_counts_for_the_next_request_and_a_bad_one_leaves_the_old(
    config: Path, agent: subprocess.Popen[bytes]
) -> None:
    token = config.parent / "token"
    old = token.read_text()
    token.write_text("too short\n")
    agent.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while "reload_refused" not in (config.parent / "log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    token.write_text(old)
    assert "holds no token" in status(config)["reload"]["refused"]
    token.write_text("n" * 40 + "\n")
    with pytest.raises(ExitError):
        status(config)  # the running agent still asks for the old one
    done = skerry("agent", "reload", "--config", str(config), "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    assert json.loads(done.stdout)["changed"] == ["api.token_file"]
    assert status(config)["reload"]["count"] == 2


def test_a_reload_without_an_agent_is_said(config: Path) -> None:
    done = skerry("agent", "reload", "--config", str(config))
    assert done.returncode == ExitCode.NOT_FOUND
    assert "its next start reads the configuration" in done.stderr


def test_every_live_key_is_one_of_the_file() -> None:
    known = set(list_known_keys(AgentConfig))
    assert {key for key in LIVE_KEYS if key not in known and not key.endswith(".")} == set()


def test_only_live_keys_reach_a_running_agent(tmp_path: Path) -> None:
    file = write_device(tmp_path)
    before = load_config(file)
    file.write_text(file.read_text() + TEN)
    after = load_config(file)
    settings = choose_live_settings(before.agent_settings(), after)
    assert (settings.outbox.max_rows, settings.outcomes_max_rows, settings.reconnect_cap_s) == (500, 6000, 9.0)
    record = ReloadRecord(flatten_config(before), LIVE_KEYS, JsonLog(stream=io.StringIO()))
    assert record.compare(flatten_config(after)).restart == ("updates.every_s",)
    assert flatten_config(after)["device.tags"] == ("yard",)
