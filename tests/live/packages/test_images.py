"""Container files: linted, and their steps run in a scratch folder as far as they go without a container engine.

Not run: the base image, Debian's packages and the download of the locked packages, in whose place this environment's
stand; the lock is what is installed here (tests/test_lock.py).
"""

import fnmatch
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests import ROOT
from tests.live.doubles.chart import tools

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

FOLDER = ROOT / "deploy" / "containers"
FILES = sorted(FOLDER.glob("*.Containerfile"))
LOCKS = {  # what each takes: of an agent one for each processor, named as `uname -m` says it
    "hub": ["deploy/requirements/region.txt /build/requirements.txt"],
    "agent": [
        "deploy/requirements/agent.txt /build/agent-x86_64.txt",
        "deploy/requirements/agent-aarch64.txt /build/agent-aarch64.txt",
    ],
}


def steps(file: Path) -> list[tuple[str, str]]:
    """Instructions and their words, those of the first stage and then those of the second."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line]


def is_sent(path: str) -> bool:
    """Whether `.dockerignore` lets a path of the checkout be sent to the engine."""
    sent, parts = True, path.split("/")
    above = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        places = parts if pattern.startswith("**/") else above
        if line and line[0] != "#" and any(fnmatch.fnmatchcase(place, pattern.removeprefix("**/")) for place in places):
            sent = line.startswith("!")
    return sent


def test_there_is_one_for_each_process():
    assert {file.stem for file in FILES} == set(LOCKS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_hadolint_finds_nothing(file):
    done = subprocess.run([tools().hadolint, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_image_runs_as_nobody_and_is_made_of_locked_packages(file):
    said = steps(file)
    assert [words for what, words in said if what == "USER"] == ["10001:10001"]
    assert [words for what, words in said if what == "COPY" and "requirements" in words] == LOCKS[file.stem]
    installs = [words for what, words in said if what == "RUN" and "pip install" in words]
    assert "--require-hashes" in installs[0]
    assert all("--no-deps" in words for words in installs)
    assert not [words for what, words in said if what == "ENV" and re.search("TOKEN|PASSWORD|KEY", words)]


def test_what_is_secret_or_large_is_not_sent_to_the_engine():
    for path in (".git/config", ".venv/bin/python", "hub/region.key", "tests/conftest.py", "wire/__pycache__/x.pyc"):
        assert not is_sent(path), path


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_steps_make_an_environment_that_has_the_program_and_nothing_of_the_checkout(file, tmp_path):
    here = {"/build": tmp_path / "build", "/opt/skerry": tmp_path / "opt"}

    def placed(words: str) -> list[str]:
        for there, place in here.items():
            words = re.sub(rf"(?<=\s){there}|^{there}", str(place), words)
        return words.split()

    for what, words in steps(file):
        if words.startswith("--from="):
            break
        if what == "COPY":
            *sources, target = placed(words)
            for source in sources:
                assert is_sent(source), source
                whole = Path(target) if len(sources) == 1 and not target.endswith("/") else Path(target) / source
                whole.parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, whole)
        elif what == "RUN" and "apt-get" not in words:
            ran = placed(words)
            if "--require-hashes" in ran:  # these are installed here, as locked
                site = next((tmp_path / "opt").glob("lib/python*/site-packages"))
                (site / "locked.pth").write_text(sysconfig.get_path("purelib") + "\n")
                run(tmp_path / "opt" / "bin" / "pip", "uninstall", "--yes", "setuptools")  # the lock has a newer one
                continue
            ran[0] = sys.executable if ran[0] == "python" else ran[0]
            subprocess.run(ran, check=True, capture_output=True, cwd=tmp_path)
    module = {"hub": "cloud_hub", "agent": "edge_agent"}[file.stem]
    assert ("CMD", f'["python", "-P", "-m", "{module}"]') in steps(file)
    python, program = tmp_path / "opt" / "bin" / "python", tmp_path / "opt" / "bin" / "skerry"
    assert run(python, "-P", "-c", f"import {module}; print({module}.__file__)").startswith(str(tmp_path / "opt"))
    assert "--config" in run(python, "-P", "-m", module, "--help")
    assert run(program, "--version").startswith("skerry ")


def run(*words: str | Path) -> str:
    """What a program prints, started where no checkout is."""
    return subprocess.run(words, capture_output=True, text=True, check=True, cwd="/").stdout
