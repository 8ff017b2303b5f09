"""The client as a package: needs nothing of ours, ships its types; the application's own wheel ships none of it."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch

import pytest

import skerry_client
from tests import ROOT
from tests.blocks import of_mark
from tests.sources import read_facts

FOLDER = ROOT / "clients" / "python"
ALLOWED = {"skerry_client", "httpx2", "PIL"}  # Pillow only where a picture's file is decoded


def test_it_imports_the_standard_library_and_httpx2_alone():
    imports = {name for path in (FOLDER / "skerry_client").rglob("*.py") for name in read_facts(path).imports}
    assert imports - set(sys.stdlib_module_names) == ALLOWED
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    assert [text.split(">")[0] for text in project["dependencies"]] == ["httpx2"]


def test_importing_it_loads_neither_numpy_nor_pillow_nor_anything_of_ours():
    code = "import sys, skerry_client; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert not {"numpy", "PIL", "wire", "edge_agent", "cloud_hub", "msgspec"} & set(done.stdout.split())


def test_every_public_name_is_there_and_says_what_it_is():
    for name in skerry_client.__all__:
        assert getattr(skerry_client, name).__doc__


@pytest.mark.further
def test_its_wheel_has_its_types(tmp_path):
    copy = shutil.copytree(FOLDER, tmp_path / "client", ignore=shutil.ignore_patterns("*.egg-info", "build"))
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(copy)]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    [wheel] = tmp_path.glob("skerry_client-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"skerry_client/py.typed", "skerry_client/exchange/transports.py"} <= names


def test_the_applications_wheel_ships_neither_clients_nor_examples():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    shipped = {name for name in folders if any(fnmatch(name, pattern) for pattern in told["include"])}
    assert shipped == {"wire", "policies", "models", "edge_agent", "cloud_hub", "simulations"}


def test_a_program_asks_and_gets_the_correction_in_five_lines_and_without_the_client_in_twelve():
    [block] = [each for each in of_mark(ROOT / "README.md", "live") if each.language == "python"]
    lines = [line for line in block.text.splitlines() if line.strip()]
    assert len(lines) == 5
    assert "skerry_client" in lines[0]
    assert {".ask(", ".correction("} <= {part for part in (".ask(", ".correction(") if part in block.text}
    [plain] = [each for each in of_mark(ROOT / "docs" / "clients.md", "live") if "/v2/models/" in each.text]
    assert len([line for line in plain.text.splitlines() if line.strip()]) == 12
    assert "skerry_client" not in plain.text
