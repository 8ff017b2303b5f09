"""Wheels of agent, hub and demo: made of the whole one, complete by their own record, one in another's place."""

import csv
import hashlib
import importlib
import io
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64decode
from pathlib import Path
from types import ModuleType

import pytest

from tests import ROOT

METADATA = """Metadata-Version: 2.4
Name: skerry
Version: 0.1.0
Requires-Dist: numpy<3,>=2.0
Provides-Extra: hub
Requires-Dist: torch<3,>=2.11; extra == "hub"
Provides-Extra: sim
Requires-Dist: plotly<8,>=6; extra == "sim"
Provides-Extra: demo
Requires-Dist: skerry[hub,sim]; extra == "demo"
Requires-Dist: httpx2<3,>=2.16; extra == "demo"

Version: of the text below, which stays as it is
"""
INFO = "skerry-0.1.0.dist-info"
FILES = {
    "wire/__init__.py": "",
    "edge_agent/__init__.py": "SIDE = 'device'\n",
    "cloud_hub/__init__.py": "SIDE = 'hub'\n",
    "simulations/__init__.py": "SIDE = 'both'\n",
    "skerry.py": "def main(): print('ran')\n",
    f"{INFO}/METADATA": METADATA,
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/entry_points.txt": "[console_scripts]\nskerry = skerry:main\n",
    f"{INFO}/top_level.txt": "cloud_hub\nedge_agent\nsimulations\nskerry\nwire\n",
    f"{INFO}/RECORD": "",
}


@pytest.fixture(scope="module")
def builds():
    sys.path.insert(0, str(ROOT / "deploy"))
    try:
        yield importlib.import_module("builds")
    finally:
        sys.path.remove(str(ROOT / "deploy"))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "skerry-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    return path


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_device_gets_no_hub_and_asks_for_nothing_of_one(builds: ModuleType, whole: Path):
    made = builds.make_role_wheel(whole, builds.BUILDS[0])
    assert made.name == "skerry-0.1.0+agent-py3-none-any.whl"
    held = contents(made)
    info = "skerry-0.1.0+agent.dist-info"
    assert not [name for name in held if name.startswith(("cloud_hub", "simulations"))]
    assert held[f"{info}/top_level.txt"] == b"edge_agent\nskerry\nwire\n"
    assert held[f"{info}/METADATA"].decode() == METADATA.replace("Version: 0.1.0", "Version: 0.1.0+agent", 1)


def test_a_hub_needs_what_its_extra_names_without_being_asked(builds: ModuleType, whole: Path):
    held = contents(builds.make_role_wheel(whole, builds.BUILDS[1]))
    said = held["skerry-0.1.0+hub.dist-info/METADATA"].decode()
    assert "Requires-Dist: torch<3,>=2.11\n" in said
    assert 'Requires-Dist: skerry[hub,sim]; extra == "demo"\n' in said
    assert held["cloud_hub/__init__.py"] == b"SIDE = 'hub'\n"
    assert "simulations/__init__.py" not in held


def test_a_demo_has_all_and_needs_what_its_extras_name_without_naming_itself(builds: ModuleType, whole: Path):
    held = contents(builds.make_role_wheel(whole, builds.BUILDS[2]))
    told = held["skerry-0.1.0+demo.dist-info/METADATA"].decode()
    needed = {line.partition(": ")[2] for line in told.splitlines() if line.startswith("Requires-Dist: ")}
    assert needed == {"numpy<3,>=2.0", "torch<3,>=2.11", "plotly<8,>=6", "httpx2<3,>=2.16"}
    assert {"cloud_hub/__init__.py", "simulations/__init__.py", "edge_agent/__init__.py"} <= held.keys()


def test_every_file_stands_in_the_record_with_its_digest_and_the_same_wheel_gives_the_same_bytes(builds, whole: Path):
    for build in builds.BUILDS:
        made = builds.make_role_wheel(whole, build)
        held, first = contents(made), made.read_bytes()
        record = next(name for name in held if name.endswith("/RECORD"))
        rows = list(csv.reader(io.StringIO(held[record].decode())))
        assert {row[0] for row in rows} == set(held)
        for name, digest, size in rows:
            if name != record:
                algorithm, _, value = digest.partition("=")
                assert urlsafe_b64decode(value + "==") == hashlib.new(algorithm, held[name]).digest()
                assert int(size) == len(held[name])
        assert builds.make_role_wheel(whole, build).read_bytes() == first


@pytest.mark.further
def test_pip_installs_a_build_and_another_takes_its_place(builds: ModuleType, whole: Path, tmp_path: Path):
    for build in builds.BUILDS:
        target = tmp_path / build.name
        words = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
        subprocess.run(
            [sys.executable, "-m", "pip", *words, str(builds.make_role_wheel(whole, build))], check=True, timeout=60
        )
        asked = "import importlib.metadata as m, skerry; skerry.main(); print(m.version('skerry'))"
        done = subprocess.run(
            [sys.executable, "-S", "-c", asked], env={"PYTHONPATH": str(target)}, capture_output=True, text=True,
            check=True, cwd=tmp_path, timeout=60,
        )  # fmt: skip
        assert done.stdout.split() == ["ran", f"0.1.0+{build.name}"]


def test_a_device_that_is_asked_for_the_hub_says_which_build_has_one(monkeypatch, capsys):
    skerry = importlib.import_module("skerry")
    said = str(skerry._explain_missing(ModuleNotFoundError("x", name="cloud_hub.cli.hub")))
    assert said == "this build is a device's and has no hub: install the wheel +hub"
