"""Debian packages: built of what is installed here, installed into a scratch root by dpkg, run there, and removed.

The scripts of a package run outside of the scratch root with `DPKG_ROOT`: there is no shell in it.
"""

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import ROOT
from wire.process.exit_codes import ExitCode

DEBIAN = shutil.which("dpkg-deb") and Path("/usr/bin/python3.11").exists() and sys.version_info[:2] == (3, 11)
pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not DEBIAN, reason="no Debian with Python 3.11 here, or these tests run under another"),
]
PLAIN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
MOST_MB = 260  # of the agent's package with its Python packages


@pytest.fixture(scope="module")
def debian() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "deploy"))
    try:
        yield importlib.import_module("debian")
    finally:
        sys.path.remove(str(ROOT / "deploy"))


class Installed:
    """A package in a scratch root, in which dpkg keeps books of its own."""

    def __init__(self, root: Path, name: str, package: Path) -> None:
        self.root, self.name, self.package = root, name, package
        self.home = root / "usr/lib" / f"skerry-{name}"
        for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates"):
            (root / folder).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()

    def dpkg(self, *words: str | Path) -> str:
        forced = ("--force-depends", "--force-script-chrootless", "--force-not-root")
        done = subprocess.run(
            ["dpkg", f"--root={self.root}", f"--log={self.root}/log", *forced, *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """The package's own interpreter, where no checkout is."""
        program = [self.home / "bin" / "python", *words]
        return subprocess.run(
            program, capture_output=True, text=True, check=False, cwd="/", env={"PATH": "/usr/bin:/bin"}
        )

    @property
    def megabytes(self) -> float:
        files = (path for path in self.root.rglob("*") if path.is_file() and "var/lib/dpkg" not in str(path))
        return sum(path.lstat().st_size for path in files) / 1e6


@pytest.fixture(scope="module")
def agent(debian: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Installed, dict[str, int]]]:
    folder = tmp_path_factory.mktemp("debian")
    package, sizes = debian.build_package(debian.ROLES["agent"], folder, quick=True)
    installed = Installed(folder / "root", "agent", package)
    installed.dpkg("--install", package)
    yield installed, sizes
    shutil.rmtree(folder)


def test_the_agents_package_is_small_enough_and_its_largest_part_is_named(agent):
    installed, sizes = agent
    largest = max(sizes, key=lambda name: sizes[name])
    print(f"\n{installed.megabytes:.0f} MB installed, compiled modules too; {largest} {sizes[largest] / 1e6:.0f} MB")
    assert installed.megabytes <= MOST_MB
    assert largest == "onnxruntime"


def test_apt_would_install_it_from_the_file(agent):
    installed, _ = agent
    words = ["apt-get", "install", "--simulate", "--no-install-recommends", str(installed.package)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    )
    assert "Inst skerry-agent" in done.stdout, done.stdout + done.stderr


def test_what_was_installed_runs_on_debians_python_with_its_own_packages_alone(agent):
    installed, _ = agent
    where = installed.run(
        "-P", "-c", "import edge_agent, onnxruntime; print(edge_agent.__file__, onnxruntime.__file__)"
    )
    assert where.returncode == 0, where.stderr
    assert {path.startswith(str(installed.home)) for path in where.stdout.split()} == {True}
    version = installed.run(installed.home / "bin" / "skerry", "--version")
    assert version.stdout == f"skerry {re.search(r'_([0-9.]+)_', installed.package.name)[1]}\n"  # type: ignore[index]
    started = installed.run("-P", "-m", "edge_agent", "--config", "/nowhere/agent.toml")
    assert started.returncode == ExitCode.MISSING
    assert started.stderr.count("\n") == 1


def test_its_unit_starts_what_it_brings_and_systemd_reads_it(agent, tmp_path):
    installed, _ = agent
    unit = installed.root / "lib/systemd/system/skerry-agent.service"
    program = re.search(r"^ExecStart=(\S+)", unit.read_text(), re.MULTILINE)
    assert program is not None
    assert (installed.root / program[1].lstrip("/")).is_symlink()
    assert "/opt/skerry" not in unit.read_text()
    if shutil.which("systemd-analyze"):
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace(program[1], "/bin/sh"))
        read = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False
        )
        assert unit.name not in read.stderr


def test_nothing_of_it_can_be_changed_by_others_and_nothing_is_started(agent):
    installed, _ = agent
    files = [path for path in (installed.root / "usr").rglob("*") if not path.is_symlink()]
    assert [path for path in files if path.stat().st_mode & 0o022] == []
    scripts = installed.root / "var/lib/dpkg/info/skerry-agent.postinst"
    assert "systemctl start" not in scripts.read_text()
    assert "enable" not in scripts.read_text()


def test_removed_it_leaves_nothing_but_what_the_device_has(debian, agent, tmp_path):
    installed, _ = agent
    other = Installed(tmp_path / "root", "agent", installed.package)
    other.dpkg("--install", installed.package)
    (other.root / "var/lib/skerry-agent").mkdir(parents=True)
    other.dpkg("--remove", "skerry-agent")
    assert not other.home.exists()
    assert (other.root / "var/lib/skerry-agent").is_dir()


@pytest.mark.heavy
def test_the_hubs_package_has_its_engines_and_wants_a_broker(debian: Any, tmp_path):
    package, sizes = debian.build_package(debian.ROLES["hub"], tmp_path, quick=True)
    told = subprocess.run(
        ["dpkg-deb", "--field", package, "Depends"], capture_output=True, text=True, check=True
    ).stdout
    assert "mosquitto" in told
    assert {"torch", "psycopg", "ray"} <= sizes.keys()
    installed = Installed(tmp_path / "root", "hub", package)
    installed.dpkg("--install", package)
    started = installed.run("-P", "-m", "cloud_hub", "--config", "/nowhere/hub.toml")
    assert started.returncode == ExitCode.MISSING
    print(f"\n{installed.megabytes:.0f} MB installed")
