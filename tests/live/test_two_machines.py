"""The page about two machines, its blocks typed on two of them.

They are network namespaces with one cable between them where this user may make any, else two loopback addresses.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from simulations.processes import find_free_port
from tests import ROOT
from tests.blocks import Block, command, environment, of_mark

PAGE = ROOT / "docs" / "two-machines.md"
START_TIMEOUT_S = 240.0  # forging the reference model on a busy machine
BLOCK_TIMEOUT_S = 120.0
HUB_ADDRESS, DEVICE_ADDRESS = "192.168.77.1", "192.168.77.2"
BROUGHT = ("invite", "digits", "samples.jsonl")

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


@dataclass
class Machine:
    """A folder to work in, what goes before each command, and its environment."""

    folder: Path
    prefix: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)

    def start(self, block: Block, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as told:
            return subprocess.Popen(
                [*self.prefix, *command(block, self.folder)], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=told,
                stderr=told, env=environment(self.folder) | self.variables, start_new_session=True,
            )  # fmt: skip

    def run(self, block: Block) -> None:
        log = self.folder / f"line{block.line}.log"
        code = self.start(block, log).wait(BLOCK_TIMEOUT_S)
        assert code == 0, f"{PAGE.name}:{block.line}\n{log.read_text()}"


@contextmanager
def namespaces(name: str) -> Iterator[bool]:
    """Two network namespaces, `{name}h` and `{name}d`, and a cable between them; False where they may not be made."""
    spaces = {f"{name}h": HUB_ADDRESS, f"{name}d": DEVICE_ADDRESS}
    made: list[str] = []
    try:
        for space in spaces:
            if subprocess.run(["ip", "netns", "add", space], capture_output=True, check=False).returncode:
                break
            made.append(space)
        whole = len(made) == len(spaces)
        if whole:
            first, second = spaces
            link = ["link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second]
            subprocess.run(["ip", *link], check=True)
            for space, address in spaces.items():
                for words in (
                    ("addr", "add", f"{address}/24", "dev", "cable"),
                    ("link", "set", "lo", "up"),
                    ("link", "set", "cable", "up"),
                ):
                    subprocess.run(["ip", "-n", space, *words], check=True)
        yield whole
    finally:
        for space in made:
            subprocess.run(["ip", "netns", "del", space], check=True)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    kept = {"XDG_CACHE_HOME": str(Path.home() / ".cache")}
    folders = tmp_path / "hub-machine", tmp_path / "device-machine"
    for folder in folders:
        folder.mkdir()
    name = f"skerry{os.getpid()}"
    with namespaces(name) as apart:
        if apart:
            hub, device = (
                Machine(f, ("ip", "netns", "exec", name + end), kept) for f, end in zip(folders, "hd", strict=True)
            )
            hub.variables = kept | {"HUB": HUB_ADDRESS}
        else:
            ports = {f"SKERRY_HUB_{section}__PORT": str(find_free_port()) for section in ("API", "BROKER")}
            hub = Machine(folders[0], (), kept | ports | {"HUB": "127.0.0.2"})
            device = Machine(folders[1], (), kept | {"SKERRY_AGENT_API__PORT": "0"})
        yield hub, device


def wait_until_listening(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while '"event":"listening"' not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_a_device_on_another_machine_gets_its_correction(machines: tuple[Machine, Machine]) -> None:
    hub, device = machines
    (served,) = of_mark(PAGE, "serve")
    invited, asked = of_mark(PAGE, "live")
    log = hub.folder / "hub.log"
    process = hub.start(served, log)
    try:
        wait_until_listening(process, log)
        hub.run(invited)
        for name in BROUGHT:
            where = hub.folder / name
            (shutil.copytree if where.is_dir() else shutil.copy)(where, device.folder / name)
        device.run(asked)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(20)
