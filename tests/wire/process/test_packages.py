"""Somebody else's `models.py` or `policies.py`: never imported, and named in one line where it is in the way."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.examples import further
from wire.process.exit_codes import ExitCode
from wire.process.packages import PACKAGES, find_hidden_package

FOREIGN = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nraise RuntimeError('foreign code')\n"
PRODUCT = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("wire", "models", "policies"):
        (tmp_path / f"{name}.py").write_text(FOREIGN)
    return tmp_path


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        words, cwd=folder, env={**kept, "PATH": path, **variables}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert not (folder / "ran").exists(), done.stderr
    return done


@pytest.mark.further
@pytest.mark.parametrize("room", ["agent", "hub"])
def test_a_folder_with_a_models_file_does_not_disturb_agent_and_hub(folder, room):
    (folder / "own.toml").write_text("typo = 1\n")
    done = run(folder, "skerry", room, "run", "--config", "own.toml")
    assert (done.returncode, done.stderr.count("\n")) == (ExitCode.CONFIG, 1)
    assert "typo" in done.stderr


@pytest.mark.parametrize("module", ["edge_agent", further("cloud_hub")])
def test_started_by_hand_without_safe_path_a_clash_is_one_line(folder, module):
    done = run(folder, sys.executable, "-m", module, "--config", "own.toml", PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr.count("\n")) == (ExitCode.CONFIG, 1)
    assert f"{folder / 'wire.py'} has the name of Skerry's own package wire" in done.stderr


def test_a_clash_by_pythonpath_is_one_line_of_the_command_line_too(folder):
    done = run(folder, "skerry", "--version", PYTHONPATH=str(folder))
    assert (done.returncode, done.stderr.count("\n")) == (ExitCode.CONFIG, 1)
    assert done.stderr.startswith(f"skerry: {folder / 'wire.py'} has the name")


def test_a_folder_of_data_that_is_called_models_is_no_clash(tmp_path, monkeypatch):
    (tmp_path / "models" / "digits-1").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_hidden_package(ROOT) is None


def words_of(path: Path) -> list[list[object]]:
    """The literal words of every list and tuple in a file that starts an interpreter, or goes on with `-m`."""
    lists = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.List | ast.Tuple)]
    return [[word.value if isinstance(word, ast.Constant) else None for word in found.elts] for found in lists]


@pytest.mark.further
def test_every_child_is_started_without_the_current_folder_on_its_path():
    seen = 0
    for path in PRODUCT:
        for words in words_of(path):
            if "-m" in words:
                seen += 1
                assert words[words.index("-m") - 1] == "-P", f"{path}: {words}"
    assert seen >= 8
