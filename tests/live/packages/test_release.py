"""The artefacts of a release, installed by pip and npm alone into fresh environments, where no checkout is, and run.

`make release-check` runs this for each Python that it finds; `PYTHONS` names others. An index of packages is needed.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests import ROOT
from wire.process.exit_codes import ExitCode

pytestmark = [pytest.mark.live, pytest.mark.heavy, pytest.mark.timeout(1800)]
_NAMED = os.environ.get("SKERRY_RELEASE_PYTHONS", "").split()
_LOOKED_FOR = ("/usr/bin/python3", "python3.11", "python3.12", "python3.13", "python3.14")
WAIT_S = 60
ASK = """
import sys, skerry_client
agent = skerry_client.Agent(sys.argv[1])
answer = agent.ask([[[0.5] * 8] * 8])
print(agent.answers.correction(answer, wait_s=30).kind)
"""
ASK_BY_NODE = """
import { Agent } from "skerry-client";
const agent = new Agent({ url: process.argv[2] });
const answer = await agent.ask(Array(64).fill(0.5));
console.log((await agent.correction(answer, 30)).kind);
"""


def find_pythons() -> dict[str, str]:
    """Interpreters by version, each version once."""
    found: dict[str, str] = {}
    for name in _NAMED or _LOOKED_FOR:
        program = shutil.which(name)
        if program is None:
            continue
        asked = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
        version = subprocess.run([program, "-c", asked], capture_output=True, text=True, check=False).stdout.strip()
        if not version:
            continue  # a command of a version manager that has no such Python
        if _NAMED or tuple(map(int, version.split("."))) >= (3, 11):
            found.setdefault(version, program)
    return found


PYTHONS = find_pythons()


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What `make release` builds, by role; and `versions`: the locked ones, which pip keeps to."""
    folder = tmp_path_factory.mktemp("artefacts")
    sys.path.insert(0, str(ROOT / "deploy"))
    try:
        release, lock = import_module("release"), import_module("lock")
        made = dict(zip(("all", "agent", "hub", "demo", "client", "npm"), release.build_artefacts(folder), strict=True))
        versions = [f"{one.name}=={one.version}\n" for one in lock.read_lock("demo")[1]]
    finally:
        sys.path.remove(str(ROOT / "deploy"))
    made["versions"] = folder / "versions.txt"
    made["versions"].write_text("".join(versions), encoding="ascii")
    for name, path in made.items():
        print(f"\n{name}: {path.name} {path.stat().st_size / 1000:.0f} kB", end="")
    return made


class Environment:
    """A fresh environment with what pip installed of files alone."""

    def __init__(self, python: str, home: Path, artefacts: dict[str, Path], *roles: str) -> None:
        subprocess.run([python, "-m", "venv", str(home)], check=True)
        self.bin, self.home = home / "bin", home
        words = ["-m", "pip", "install", "--quiet", "-c", str(artefacts["versions"])]
        self.run("python", *words, *(str(artefacts[role]) for role in roles))
        self.run("python", "-m", "pip", "check")
        size = sum(path.lstat().st_size for path in home.rglob("*") if path.is_file()) / 1e6
        print(f"\n{python} {'+'.join(roles)}: {size:.0f} MB", end="")

    def run(self, program: str, *words: str | Path, cwd: Path | None = None, status: int = 0, **more: str) -> str:
        """What a program of the environment prints."""
        done = subprocess.run(
            [self.bin / program, *words],
            cwd=cwd or self.home,
            env=self.variables(**more),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=1200,
        )
        assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + (done.stderr if status else "")

    def variables(self, **more: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV", "SKERRY"))
        }
        return {**kept, "XDG_CACHE_HOME": str(self.home / "cache"), **more}

    @contextmanager
    def running(self, cwd: Path, *words: str, **more: str) -> Iterator[None]:
        """A process of the environment, ended afterwards."""
        with (cwd / f"{words[0]}.log").open("wb") as log:
            process = subprocess.Popen([self.bin / "skerry", *words], cwd=cwd, env=self.variables(**more), stderr=log)
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(WAIT_S) == 0, (cwd / f"{words[0]}.log").read_text()[-2000:]


def pick_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def wait_for(url: str, holds: str) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            with urlopen(url, timeout=5) as reply:
                if holds in reply.read().decode():
                    return
        except OSError:
            pass
        time.sleep(0.2)
    pytest.fail(f"{url} never said {holds!r}")


@pytest.mark.parametrize("version", PYTHONS)
def test_a_device_and_a_hub_from_wheels_of_their_own_correct_an_answer_for_the_clients_of_python_and_node(
    version: str, artefacts: dict[str, Path], tmp_path: Path
):
    python = PYTHONS[version]
    device = Environment(python, tmp_path / "device", artefacts, "agent")
    hub = Environment(python, tmp_path / "hub", artefacts, "hub")
    program = Environment(python, tmp_path / "program", artefacts, "client")
    assert device.run("skerry", "--version").strip().endswith("+agent")
    assert "install the wheel +hub" in device.run("skerry", "hub", "run", status=ExitCode.CONFIG)
    assert "install the wheel +demo" in hub.run("skerry", "demo", status=ExitCode.CONFIG)

    site, forge = tmp_path / "site", [sys.executable, "-m", "skerry", "models", "demo-bundle", "digits"]
    site.mkdir()
    subprocess.run(forge, cwd=site, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    shutil.copy(ROOT / "policies/templates/demo.toml", site / "policy.toml")
    (site / "hub.toml").write_text('state = "hub"\nmodels = ["digits"]\n')
    (site / "cam.toml").write_text(
        'state = "cam"\nbundle = "digits"\npolicy = "policy.toml"\ndata_class = "open"\n[updates]\nenabled = false\n'
    )
    ports = {name: pick_port() for name in ("hub", "broker", "agent")}
    at_hub = {"SKERRY_HUB_API__PORT": ports["hub"], "SKERRY_HUB_BROKER__PORT": ports["broker"]}
    agent = f"http://127.0.0.1:{ports['agent']}"
    with ExitStack() as stack:
        stack.enter_context(hub.running(site, "hub", "run", "--config", "hub.toml", **at_hub))
        wait_for(f"http://127.0.0.1:{ports['hub']}/readyz", "")
        invite = hub.run("skerry", "hub", "invite", "cam", "--config", "hub.toml", cwd=site, status=0, **at_hub)
        device.run("skerry", "agent", "enrol", invite.split()[-1], "--dir", "cam", cwd=site)
        stack.enter_context(
            device.running(site, "agent", "run", "--config", "cam.toml", SKERRY_AGENT_API__PORT=ports["agent"])
        )
        wait_for(f"{agent}/v1/status", '"link":"up"')
        assert program.run("python", "-c", ASK, agent).strip() == "correction"
        device.run("skerry", "doctor", "--config", "cam.toml", cwd=site)
        if shutil.which("npm"):
            page = tmp_path / "page"
            page.mkdir()
            (page / "ask.mjs").write_text(ASK_BY_NODE)
            words = ("npm", "install", "--silent", "--no-audit", "--no-fund", str(artefacts["npm"]))
            subprocess.run(words, cwd=page, check=True, stdin=subprocess.DEVNULL)
            told = subprocess.run(["node", "ask.mjs", agent], cwd=page, capture_output=True, text=True, check=False)
            assert told.stdout.strip() == "correction", told.stderr


@pytest.mark.parametrize("version", PYTHONS)
def test_the_demos_wheel_acts_the_demo_simulates_a_fleet_and_runs_a_new_project_without_a_checkout(
    version: str, artefacts: dict[str, Path], tmp_path: Path
):
    whole = Environment(PYTHONS[version], tmp_path / "demo", artefacts, "demo", "client")
    whole.run("skerry", "demo", "--json", "figures.json")
    figures = json.loads((whole.home / "figures.json").read_text())
    assert figures["lost"] == figures["doubled"] == 0, figures
    whole.run("skerry", "sim", "run", "storm")
    whole.run("skerry", "new", "line-7", "--kind", "table")
    assert "right" in whole.run("skerry", "up", "line-7")
    whole.run("skerry", "policy", "new", "clinic", "clinic.toml")
    shutil.rmtree(whole.home)
