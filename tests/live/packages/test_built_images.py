"""The container images, built by podman on a base that debootstrap makes, and run: a device's answer is corrected.

Heavy: minutes, some 3 GB below `.cache/images`, and root on a Debian with podman, runc and debootstrap.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests import ROOT
from tests.live.packages.test_release import pick_port, wait_for

pytestmark = [pytest.mark.live, pytest.mark.heavy, pytest.mark.timeout(1800)]
USER = 10001


@pytest.fixture(scope="module")
def images() -> ModuleType:
    sys.path.insert(0, str(ROOT / "deploy"))
    try:
        module = import_module("images")
    finally:
        sys.path.remove(str(ROOT / "deploy"))
    if lacking := module.check_tools():
        pytest.skip(f"images need {lacking}")
    return module


@contextmanager
def container(images: ModuleType, role: str, name: str, *options: str) -> Iterator[None]:
    """A container as the image starts by itself, in the background; ended and removed afterwards."""
    asked = images.podman(
        "run", "--detach", "--rm", "--read-only", f"--name={name}", *images.RUN_WORDS, *options, images.name_image(role)
    )
    subprocess.run(asked, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(images.podman("stop", "--time=30", name), check=True, capture_output=True)


def ask(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=60) as reply:
        found: dict[str, Any] = json.loads(reply.read())
    return found


def test_agent_and_hub_of_the_images_correct_an_answer_and_neither_writes_outside_its_volume(
    images: ModuleType, tmp_path: Path
):
    images.HOME.mkdir(parents=True, exist_ok=True)
    images.make_base()
    for role in images.ROLES:
        print(f"\n{images.build_image(role)}: {images.run_image(role, 'skerry', '--version').stdout.strip()}", end="")
        assert images.run_image(role, "id", "-u").stdout.strip() == str(USER)

    forge = [sys.executable, "-m", "skerry", "models", "demo-bundle", "digits"]
    subprocess.run(forge, cwd=tmp_path, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    shutil.copy(ROOT / "policies/templates/demo.toml", tmp_path / "policy.toml")
    state = {name: tmp_path / name for name in ("hub-state", "agent-state")}
    for folder in state.values():
        folder.mkdir(mode=0o700)
    subprocess.run(["chmod", "-R", "a+rX", tmp_path, tmp_path.parent], check=True)
    for folder in state.values():
        os.chown(folder, USER, USER)
    ports = {name: pick_port() for name in ("hub", "broker", "agent")}
    shared = f"--volume={tmp_path}:/given:ro"
    hub = (
        shared, f"--volume={state['hub-state']}:/var/lib/skerry", "--env=SKERRY_HUB_STATE=/var/lib/skerry/hub",
        '--env=SKERRY_HUB_MODELS=["/given/digits"]', f"--env=SKERRY_HUB_API__PORT={ports['hub']}",
        f"--env=SKERRY_HUB_BROKER__PORT={ports['broker']}",
    )  # fmt: skip
    device = (
        shared, f"--volume={state['agent-state']}:/var/lib/skerry", "--env=SKERRY_AGENT_STATE=/var/lib/skerry/cam",
        "--env=SKERRY_AGENT_BUNDLE=/given/digits", "--env=SKERRY_AGENT_POLICY=/given/policy.toml",
        "--env=SKERRY_AGENT_DATA_CLASS=open", f"--env=SKERRY_AGENT_API__PORT={ports['agent']}",
    )  # fmt: skip
    names = {role: f"skerry-trial-{role}-{os.getpid()}" for role in images.ROLES}
    agent = f"http://127.0.0.1:{ports['agent']}"
    with container(images, "hub", names["hub"], *hub):
        wait_for(f"http://127.0.0.1:{ports['hub']}/readyz", "")
        ask_hub = images.podman("exec", names["hub"], "skerry", "hub", "invite", "cam")
        invite = subprocess.run(ask_hub, check=True, capture_output=True, text=True).stdout.split()[-1]
        words = ("skerry", "agent", "enrol", invite, "--dir", "/var/lib/skerry/cam")
        enrolled = images.run_image("agent", *words, options=device)
        assert enrolled.returncode == 0, enrolled.stderr
        with container(images, "agent", names["agent"], *device):
            wait_for(f"{agent}/v1/status", '"link":"up"')
            tensor = {"name": "sample", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}
            answer = ask(f"{agent}/v2/models/digits/infer", {"inputs": [tensor]})["parameters"]["answer_id"]
            end = time.monotonic() + 60
            while "correction" not in json.dumps(ask(f"{agent}/v1/answers/{answer}?wait_s=10")):
                assert time.monotonic() < end
