"""Whole projects as a person runs them: each kind that `skerry new` makes, and each worked example on its real data."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.projects.project_file import PROJECT_FILE
from simulations.projects.templates import ProjectKind
from tests import ROOT
from tests.blocks import environment

pytestmark = [pytest.mark.live, pytest.mark.heavy, pytest.mark.timeout(3600)]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob(f"*/{PROJECT_FILE}"))
RUN_S = 3000
needs_data = pytest.mark.skipif(not os.environ.get("SKERRY_DATA"), reason="SKERRY_DATA names no folder of real data")


def run(folder: Path, *words: str) -> str:
    """What a command says; it must end with 0. Stages of the forge are kept where a person's are."""
    kept = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}
    data = {"SKERRY_DATA": os.environ.get("SKERRY_DATA", "")}
    done = subprocess.run(
        words, cwd=folder, env=environment(folder) | kept | data, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ProjectKind)
def test_a_new_project_trains_forges_runs_and_passes_its_own_test(kind, tmp_path):
    run(tmp_path, "skerry", "new", "line-7", "--kind", kind.value)
    folder = tmp_path / "line-7"
    said = run(folder, "skerry", "up")
    assert "stayed: denied_data_class" in said
    run(folder, sys.executable, "test_project.py")
    run(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder))
    left = run(folder, "skerry", "ledger", "show", "--dir", ".skerry/device-1")
    assert left


@needs_data
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_meets_its_expected_figure(example, tmp_path):
    if example.name == "voice-command" and shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed: apt-get install espeak-ng")
    ignore = shutil.ignore_patterns(".skerry", "bundle", "bundle.report", "__pycache__")
    shutil.copytree(example, tmp_path / example.name, ignore=ignore)
    said = run(tmp_path, "skerry", "up", example.name)
    assert said.splitlines()[-1] == "as expected", said
