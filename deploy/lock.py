"""Lock of all packages: what each way of installing needs, with hashes, and the check that it is what was tested.

`python deploy/lock.py make` writes `deploy/requirements/LEVEL.txt` from what is installed here, so lock only what has
passed the tests; `check` compares the lock with what is installed and with pyproject.toml; `sizes` prints what each
level takes on disk. Rule: a lock holds names, versions and SHA-256 of the files that pip took, never where from.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "requirements"
LEVELS = {"agent": "", "hub": "hub", "region": "region", "demo": "demo", "dev": "dev"}  # level: extra of pyproject.toml
TOOLS = frozenset({"pip", "skerry", "skerry-client", "wheel"})  # what an environment has beside the lock
BUILD = "setuptools"  # builds the project itself, so it is part of each level
PYTHON = "3.11"
PLATFORM = f"Python {PYTHON} on x86-64 Linux"
ARM = "agent-aarch64"  # the level `agent` for 64-bit ARM: the same versions, proven by tests under an emulator
ARM_PLATFORM = f"Python {PYTHON} on 64-bit ARM Linux (glibc 2.28 or newer)"
_ARM_TAGS = ("any", "manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28)))
ARM_WORDS = (  # of pip, for wheels of another machine
    *(word for tag in _ARM_TAGS for word in ("--platform", tag)), "--python-version", PYTHON, "--only-binary", ":all:",
)  # fmt: skip
CUDA = "torch-cuda"  # torch as the public index has it for PLATFORM, and what that build needs beside the lock
_PIP_SOURCES = ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
_ARM_MARKERS = {"platform_machine": "aarch64", "sys_platform": "linux"}


class LockedPackage(NamedTuple):
    """One line of a lock. `name` in its canonical form; `digest`: SHA-256 of its wheel, in hex."""

    name: str
    version: str
    digest: str


def digest_requirements(root: Path = ROOT) -> str:
    """SHA-256 of what the lock was made for: dependencies and extras of pyproject.toml, and constraints.txt."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [project["dependencies"], project["optional-dependencies"]]
    return sha256(json.dumps(wanted).encode() + (root / "constraints.txt").read_bytes()).hexdigest()


def read_lock(level: str, folder: Path = FOLDER) -> tuple[str, tuple[LockedPackage, ...]]:
    """The digest that a level's lock was made for, and its packages."""
    lines = (folder / f"{level}.txt").read_text(encoding="ascii").splitlines()
    made_for = next(line.split()[-1] for line in lines if line.startswith("# for "))
    found = []
    for line in lines:
        if line and not line.startswith("#"):
            pin, _, digest = line.partition(" --hash=sha256:")
            name, _, version = pin.partition("==")
            found.append(LockedPackage(name, version, digest))
    return made_for, tuple(found)


def compare_installed(locked: Iterable[LockedPackage], installed: Mapping[str, str]) -> list[str]:
    """A line for each package that is not installed as locked, or installed and not locked. Versions by name."""
    versions = {each.name: each.version for each in locked}
    lines = [
        f"{name}: locked {version}, installed {installed.get(name, 'not at all')}"
        for name, version in versions.items()
        if strip_build(installed.get(name, "")) != version
    ]
    beside = TOOLS | {one.name for one in read_lock(CUDA)[1]}
    return lines + [f"{name}: installed, not locked" for name in sorted(installed.keys() - versions.keys() - beside)]


def list_installed() -> dict[str, str]:
    """Version of each package of this environment, by canonical name."""
    return {canonicalize_name(each.metadata["Name"]): each.version for each in metadata.distributions()}


def strip_build(version: str) -> str:
    """A version without its local part: `2.13.0` of `2.13.0+cpu`, as a lock names it for every index."""
    return version.partition("+")[0]


def find_closure(needs: Mapping[str, list[str]], extra: str, machine: Mapping[str, str] | None = None) -> set[str]:
    """Names of all packages that `skerry[extra]` needs. `needs`: requirements of each package by canonical name.

    `machine`: values of environment markers that are not this machine's.
    """
    found: set[tuple[str, str]] = set()
    waiting = [("skerry", extra), ("skerry", ""), (BUILD, "")]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        for text in needs[name]:
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({**(machine or {}), "extra": wanted}):
                waiting += [(canonicalize_name(one.name), more) for more in ("", *one.extras)]
    return {name for name, _ in found} - {"skerry"}


def make_lock() -> None:
    """Write the lock of every level: the versions that are installed here, with the hashes of pip's files."""
    entries = _resolve_installed()
    needs: dict[str, list[str]] = {
        canonicalize_name(each["metadata"]["name"]): each["metadata"].get("requires_dist", []) for each in entries
    }
    packages: dict[str, LockedPackage] = {
        name: LockedPackage(name, strip_build(each["metadata"]["version"]), _file_digest(each))
        for each in entries
        if (name := canonicalize_name(each["metadata"]["name"])) != "skerry"
    }
    for level, extra in LEVELS.items():
        _write_lock(level, level, [packages[name] for name in find_closure(needs, extra)])
    _write_lock(ARM, "agent", _find_arm_wheels([packages[name] for name in find_closure(needs, "", _ARM_MARKERS)]))
    _write_lock(CUDA, CUDA, _find_cuda_build(packages))


def _write_lock(file: str, level: str, packages: Iterable[LockedPackage]) -> None:
    platform = ARM_PLATFORM if file == ARM else PLATFORM
    lines = [
        f"# Every package of `{level}`, for {platform}: `make lock` made it from what was tested.",
        f"# for {digest_requirements()}",
        *(f"{one.name}=={one.version} --hash=sha256:{one.digest}" for one in sorted(packages)),
    ]
    (FOLDER / f"{file}.txt").write_text("\n".join(lines) + "\n", encoding="ascii")


def _find_arm_wheels(packages: Iterable[LockedPackage]) -> list[LockedPackage]:
    """The same packages with the digests of their wheels for 64-bit ARM; pip fails if one has none."""
    with tempfile.TemporaryDirectory() as folder:
        pins, report = Path(folder) / "pins.txt", Path(folder) / "report.json"
        pins.write_text("".join(f"{one.name}=={one.version}\n" for one in packages), encoding="ascii")
        words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "--no-deps"]
        where = [*ARM_WORDS, "--target", folder, "-r", str(pins)]
        subprocess.run([sys.executable, "-m", "pip", *words, *where], check=True, cwd=ROOT)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return [
        LockedPackage(canonicalize_name(each["metadata"]["name"]), each["metadata"]["version"], _file_digest(each))
        for each in found
    ]


def _find_cuda_build(packages: Mapping[str, LockedPackage]) -> list[LockedPackage]:
    """Torch of the locked version as pip's default index has it, which is built with CUDA, and its further packages."""
    plain = {name: value for name, value in os.environ.items() if name not in _PIP_SOURCES}
    with tempfile.TemporaryDirectory() as folder:
        pins, report = Path(folder) / "pins.txt", Path(folder) / "report.json"
        pins.write_text("".join(f"{one.name}=={one.version}\n" for one in packages.values()), encoding="ascii")
        words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "-c", str(pins)]
        asked = [sys.executable, "-m", "pip", *words, f"torch=={packages['torch'].version}"]
        subprocess.run(asked, check=True, cwd=folder, env={**plain, "PIP_CONFIG_FILE": os.devnull})
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    entries = {canonicalize_name(each["metadata"]["name"]): each for each in found}
    return [
        LockedPackage(name, entries[name]["metadata"]["version"], _file_digest(entries[name]))
        for name in entries
        if name == "torch" or name not in packages
    ]


def _resolve_installed() -> list[dict[str, Any]]:
    """What pip would install for development in an empty environment, at the versions that are installed here."""
    with tempfile.TemporaryDirectory() as folder:
        pins, report = Path(folder) / "pins.txt", Path(folder) / "report.json"
        pins.write_text("".join(f"{n}=={v}\n" for n, v in list_installed().items() if n not in TOOLS), encoding="ascii")
        words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "-c", str(pins)]
        subprocess.run([sys.executable, "-m", "pip", *words, BUILD, ".[dev]"], check=True, cwd=ROOT)
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return found


def _file_digest(entry: dict[str, Any]) -> str:
    return str(entry["download_info"]["archive_info"]["hashes"]["sha256"])


def check_lock() -> list[str]:
    """Why the lock is not what is installed here, or not what pyproject.toml asks for; nothing if it is both."""
    stale = [
        f"{level}.txt was made for other requirements than pyproject.toml and constraints.txt name: `make lock`"
        for level in (*LEVELS, ARM, CUDA)
        if read_lock(level)[0] != digest_requirements()
    ]
    return stale + compare_installed(read_lock("dev")[1], list_installed())


def measure_sizes() -> dict[str, float]:
    """Megabytes (1000 x 1000) that each level's packages take in this environment, without the project itself."""
    return {level: sum(_installed_bytes(one.name) for one in read_lock(level)[1]) / 1e6 for level in LEVELS}


def _installed_bytes(name: str) -> int:
    paths = [Path(str(file.locate())) for file in metadata.distribution(name).files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> int:
    """0 if it was done, 1 if the lock is not what was tested."""
    asked = sys.argv[1:]
    if asked == ["make"]:
        make_lock()
    elif asked == ["sizes"]:
        print("\n".join(f"{level:6} {size:6.0f} MB" for level, size in measure_sizes().items()))
    elif asked == ["check"]:
        faults = check_lock()
        print("\n".join(faults) or "the lock is what is installed here", file=sys.stderr if faults else sys.stdout)
        return 1 if faults else 0
    else:
        print("say make, check or sizes", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
