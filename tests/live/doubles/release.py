"""A release of Skerry out of the repository's history: newest tag, commit of this version, or what a drill names."""

import io
import os
import site
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

from tests import ROOT

VARIABLE = "SKERRY_UPGRADE_FROM"


def find_release(root: Path = ROOT) -> str:
    """The tag or commit to upgrade from: of the newest version; where there are no tags, the commit that set it."""
    if named := os.environ.get(VARIABLE):
        return named
    tags = _ask_git(root, "tag", "--list", "v[0-9]*", "--sort=-version:refname")
    return tags[0] if tags else _ask_git(root, "log", "-1", "--format=%H", "-G^version = ", "--", "pyproject.toml")[0]


def _ask_git(root: Path, *words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.split()


def extract_release(release: str, folder: Path) -> Path:
    """Write the files of a release into a folder, and return it."""
    packed = subprocess.run(["git", "archive", release], cwd=ROOT, capture_output=True, check=False)
    assert packed.returncode == 0, f"{release} is not in this clone (git fetch --unshallow): {packed.stderr.decode()}"
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def install_release(release: str, folder: Path) -> Path:
    """Install a release into an environment of its own, with this environment's packages; returns its Python."""
    source = extract_release(release, folder / "source")
    venv.EnvBuilder(symlinks=True).create(folder / "venv")
    packages = folder / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "packages.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*words, "--target", str(packages), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    python = folder / "venv" / "bin" / "python"
    where = subprocess.run(
        [str(python), "-P", "-c", "import edge_agent; print(edge_agent.__file__)"], cwd=folder, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert str(packages) in where.stdout, "the old release runs, and not this tree"
    return python
