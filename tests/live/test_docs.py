"""The documents' blocks that need a broker, a hub or seconds, run in the order a reader would."""

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from simulations.processes import find_free_port
from tests import ROOT
from tests.blocks import PAGES, Block, command, enter, environment, execute, inline_commands, of_mark

SERVE_TIMEOUT_S = 400.0  # forging the reference model on a busy machine
BLOCK_TIMEOUT_S = 400.0
HEAVY_PAGES = {"forge.md", "projects.md", "rollout.md"}  # forges bundles; a rollout with soaks, twice
OWN_TESTS = {"two-machines.md", "cameras.md"}  # test_two_machines.py, cameras/test_rtsp.py
LIVE_PAGES = [
    pytest.param(page, marks=[pytest.mark.heavy] if page.name in HEAVY_PAGES else [], id=str(page.relative_to(ROOT)))
    for page in PAGES
    if of_mark(page, "live", "serve") and page.name not in OWN_TESTS
]

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


def ports() -> dict[str, str]:
    """The defaults may be taken on this machine. What was forged once is not forged for every page."""
    names = ("SKERRY_HUB_API__PORT", "SKERRY_HUB_BROKER__PORT", "SKERRY_AGENT_API__PORT")
    return {name: str(find_free_port()) for name in names} | {"XDG_CACHE_HOME": str(Path.home() / ".cache")}


@contextmanager
def serving(block: Block, folder: Path, more: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A block in a terminal of its own, ended by Ctrl-C."""
    with (folder / f"line{block.line}.log").open("wb") as log:
        process = subprocess.Popen(
            command(block, folder),
            cwd=folder,
            env=environment(folder) | more,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise


def wait_until_served(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Until `url` answers 200, as `curl --retry` would."""
    deadline = time.monotonic() + SERVE_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{url} does not answer: {log.read_text()[-2000:]}")


@pytest.mark.parametrize("page", LIVE_PAGES)
def test_blocks_run_as_a_reader_would_run_them(page, tmp_path):
    type_blocks(page, tmp_path, ports())


def type_blocks(page: Path, tmp_path: Path, more: dict[str, str], own: dict[str, str] | None = None) -> None:
    """Run a page's blocks in `tmp_path`, those that serve each in a terminal of its own.

    `more`: of the environment. `own`: what a reader replaces by what is theirs, such as a camera's address.
    """
    enter(page, tmp_path)
    with ExitStack() as terminals:
        for shown in of_mark(page, "live", "serve"):
            text = shown.text
            for example, theirs in (own or {}).items():
                text = text.replace(example, theirs)
            block = shown._replace(text=text)
            if block.mark == "serve":
                room = "AGENT" if "skerry agent run" in block.text else "HUB"
                process = terminals.enter_context(serving(block, tmp_path, more))
                url = f"http://127.0.0.1:{more[f'SKERRY_{room}_API__PORT']}/readyz"
                wait_until_served(process, url, tmp_path / f"line{block.line}.log")
                continue
            done = execute(block, tmp_path, BLOCK_TIMEOUT_S, more)
            assert done.returncode == 0, f"{page.name}:{block.line}\n{done.stdout}{done.stderr}"


MY_PKG = """
import numpy as np
import torch
from torch import nn

def samples():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 900)
    return np.eye(8, dtype=np.float32)[y] + rng.normal(0, 0.5, (900, 8)).astype(np.float32), y

def build_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    x, y = map(torch.from_numpy, samples())
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model
"""


@pytest.mark.heavy  # a whole run of the forge with its own defaults, and a simulated fleet
def test_every_command_in_the_readmes_text_runs_as_it_stands(tmp_path):
    (tmp_path / "my_pkg.py").write_text(MY_PKG)
    commands = inline_commands(ROOT / "README.md")
    assert {line.split()[1] for line in commands} == {"models", "sim"}
    for line in commands:
        done = subprocess.run(
            ["/bin/sh", "-euc", line], cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SERVE_TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "bundle.report" / "report.html").exists()
