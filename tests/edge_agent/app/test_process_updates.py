"""The agent's process with updates: it starts empty, gets all by TUF, and starts again without any network."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.__main__ import main
from edge_agent.cli.client import request_json
from edge_agent.identity.identity import load_identity
from edge_agent.system.settings import ApiAddress
from tests.edge_agent.app.test_process import address, refused, running
from tests.edge_agent.doubles.device import write_device
from tests.edge_agent.doubles.updates_bench import UpdateBench, open_bench
from tests.in_process import skerry
from wire.process.exit_codes import ExitCode


@pytest.fixture
def device(tmp_path):
    with open_bench(tmp_path) as made:
        yield made


def by_tuf(device: UpdateBench, bundle: str = "tuf:echo", policy: str = "tuf:test") -> Path:
    """The configuration of a device that was enrolled with this repository's root."""
    config = write_device(device.folder)
    folder = device.folder / "device"
    url = device.mirror.url.rstrip("/")
    dataclasses.replace(load_identity(folder), tuf_url=url).save(folder, root=device.root)
    text = config.read_text(encoding="utf-8")
    text = text.replace('bundle = "echo"', f'bundle = "{bundle}"').replace(
        'policy = "policy.toml"', f'policy = "{policy}"'
    )
    config.write_text(text, encoding="utf-8")
    return config


def waited(place: ApiAddress, test: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    for _ in range(400):
        status = request_json(place, "/v1/status")
        if test(status):
            return status
        time.sleep(0.05)
    raise AssertionError(status)


def test_the_check_says_what_it_still_waits_for(device, capsys):
    config = by_tuf(device)
    assert main(["--config", str(config), "--check"]) == ExitCode.OK
    assert "no model yet" in capsys.readouterr().out


def test_a_device_of_a_hub_without_a_repository_cannot_live_by_one(device, capsys):
    config = by_tuf(device)
    folder = device.folder / "device"
    dataclasses.replace(load_identity(folder), tuf_url="").save(folder)
    code, line = refused(config, capsys)
    name = load_identity(folder).device
    assert code == ExitCode.ENROLMENT
    assert f"{name} was enrolled before its hub had signing keys" in line
    assert f"skerry devices suspend {name}; skerry hub invite {name} --replace" in line


@pytest.mark.parametrize("name", ["../../x", "Digits", "a b"])
def test_what_follows_tuf_is_a_plain_name(device, capsys, name):
    assert refused(by_tuf(device, bundle=f"tuf:{name}"), capsys)[0] == ExitCode.CONFIG


@pytest.mark.further
def test_updates_that_are_switched_off_leave_what_is_here_serving(device):
    device.publish_bundle(1)
    config = by_tuf(device)
    device.store = device.folder / "device" / "updates"
    device.run_worker()
    config.write_text(config.read_text() + "[updates]\nenabled = false\n")
    with running(config) as process:
        place = address(config, process)
        status = request_json(place, "/v1/status")
        assert status["model"] == "echo@1"
        assert "updates" not in status
        assert skerry("agent", "refresh", "--url", place.url).returncode == ExitCode.CONFIG
    assert len(device.mirror.requests) < 20


@pytest.mark.further
def test_a_device_that_lives_by_files_still_gets_its_hub_keys_by_tuf(device):
    config = by_tuf(device, bundle="echo", policy="policy.toml")
    with running(config) as process:
        status = waited(address(config, process), lambda status: status["updates"]["polls"] > 0)
        assert (status["model"], status["alarms"]) == ("echo@1", [])
        assert status["updates"]["versions"] == {"keys/local.json": 1}
