"""Lock of all packages: what each way of installing needs, with hashes, and the check that it is what was tested.

`python deploy/lock.py make` writes `deploy/requirements/LEVEL.txt` from what is installed here, so lock only what has
passed the tests; `check` compares the lock with what is installed and with pyproject.toml; `sizes` prints what each
level takes on disk. Rules: a lock holds names, versions and SHA-256 of the files that pip takes, never where from; one
version of a package is right for every Python of PYTHONS, the lowest included, and its wheel for each has its hash.
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
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "requirements"
LEVELS = {"agent": "", "hub": "hub", "region": "region", "demo": "demo", "dev": "dev"}  # level: extra of pyproject.toml
TOOLS = frozenset({"pip", "skerry", "skerry-client", "wheel"})  # what an environment has beside the lock
BUILD = "setuptools"  # builds the project itself, so it is part of each level
PYTHONS = ("3.11", "3.12", "3.13", "3.14")  # each from its first release (3.11 is 3.11.0): what is promised
LOWEST = PYTHONS[0]  # the lock is made on it: the build of torch for processors alone that was tested is for it
_GLIBC = "glibc 2.28 or newer"
PLATFORM = f"Python {PYTHONS[0]} to {PYTHONS[-1]} on x86-64 Linux ({_GLIBC})"
ARM = "agent-aarch64"  # the level `agent` for 64-bit ARM: the same versions, proven by tests under an emulator
ARM_PLATFORM = f"Python {PYTHONS[0]} to {PYTHONS[-1]} on 64-bit ARM Linux ({_GLIBC})"
_GLIBC_MINORS = range(5, 29)  # those that wheels name, up to the promised one
CUDA = "torch-cuda"  # torch as the public index has it, built with CUDA, and what that build needs beside the lock
_PIP_SOURCES = ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
_ARM_MARKERS = {"platform_machine": "aarch64", "sys_platform": "linux"}


class LockedPackage(NamedTuple):
    """One line of a lock. `name` in its canonical form; `digests`: SHA-256 of its wheels, in hex, in order."""

    name: str
    version: str
    digests: tuple[str, ...]


class LockError(ValueError):
    """No lock can be made that holds what is promised."""


def foreign_words(machine: str, python: str) -> list[str]:
    """Words for pip that make it take wheels of another machine (`aarch64`) or Python, and nothing to be built."""
    named = ("manylinux1", "manylinux2010", "manylinux2014")
    tags = [
        *(f"manylinux_2_{minor}_{machine}" for minor in reversed(_GLIBC_MINORS)),
        *(f"{n}_{machine}" for n in named),
    ]
    chosen = [word for tag in (*tags, "any") for word in ("--platform", tag)]
    return [*chosen, "--python-version", python, "--only-binary", ":all:"]


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
            pin, *digests = line.split(" --hash=sha256:")
            name, _, version = pin.partition("==")
            found.append(LockedPackage(name, version, tuple(digests)))
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
        for text in needs.get(name, ()):  # what is not installed here is named all the same
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({**(machine or {}), "extra": wanted}):
                waiting += [(canonicalize_name(one.name), more) for more in ("", *one.extras)]
    return {name for name, _ in found} - {"skerry"}


def find_too_new(asked: Mapping[str, str]) -> list[str]:
    """A line for each package that does not take every promised Python. `asked`: each one's `Requires-Python`."""
    lines = []
    for name, text in sorted(asked.items()):
        allowed = SpecifierSet(text)
        left_out = [python for python in PYTHONS if not allowed.contains(f"{python}.0")]
        if left_out:
            lines.append(
                f"{name}: takes Python {text}, so not {', '.join(f'{each}.0' for each in left_out)}, which is promised"
            )
    return lines


def find_unlocked(needs: Mapping[str, list[str]], locked: Mapping[str, set[str]]) -> list[str]:
    """A line for each package that another promised Python needs beyond a level's lock. `locked`: names by level."""
    lines = []
    for python in PYTHONS:
        markers = {"python_version": python, "python_full_version": f"{python}.0"}
        for level, names in locked.items():
            missing = find_closure(needs, LEVELS[level], markers) - names
            lines += [f"{name}: {level} needs it on Python {python}, and it is not locked" for name in sorted(missing)]
    return lines


def make_lock() -> None:
    """Write the lock of every level: the versions that are installed here, with the hashes of their wheels.

    LockError where no such lock would hold for every promised Python; pip fails where one has no wheel of a package.
    """
    if ".".join(map(str, sys.version_info[:2])) != LOWEST:
        raise LockError(f"make lock is run with Python {LOWEST}, the lowest that is promised")
    entries = _resolve_installed()
    needs: dict[str, list[str]] = {
        canonicalize_name(each["metadata"]["name"]): each["metadata"].get("requires_dist", []) for each in entries
    }
    here = {canonicalize_name(each["metadata"]["name"]): each for each in entries}
    closures = {level: find_closure(needs, extra) for level, extra in LEVELS.items()}
    asked = {name: each["metadata"].get("requires_python", "") for name, each in here.items()}
    if faults := find_too_new(asked) + find_unlocked(needs, closures):
        raise LockError("\n".join(faults))
    pins = {name: strip_build(each["metadata"]["version"]) for name, each in here.items() if name != "skerry"}
    packages = _find_wheels({name: version for name, version in pins.items() if name != "torch"}, "x86_64")
    packages["torch"] = LockedPackage("torch", pins["torch"], (_file_digest(here["torch"]),))
    for level, names in closures.items():
        _write_lock(level, level, [packages[name] for name in names])
    arm = find_closure(needs, "", _ARM_MARKERS)
    _write_lock(ARM, "agent", _find_wheels({name: pins[name] for name in arm}, "aarch64").values())
    _write_lock(CUDA, CUDA, _find_cuda_build(pins))


def _write_lock(file: str, level: str, packages: Iterable[LockedPackage]) -> None:
    platform = ARM_PLATFORM if file == ARM else PLATFORM
    lines = [
        f"# Every package of `{level}`, for {platform}: `make lock` made it from what was tested.",
        f"# for {digest_requirements()}",
        *(" --hash=sha256:".join((f"{one.name}=={one.version}", *one.digests)) for one in sorted(packages)),
    ]
    (FOLDER / f"{file}.txt").write_text("\n".join(lines) + "\n", encoding="ascii")


def _find_wheels(pins: Mapping[str, str], machine: str, plain: bool = False) -> dict[str, LockedPackage]:
    """Packages with the digests of their wheels for every promised Python. `plain`: from pip's default index alone."""
    digests: dict[str, set[str]] = {name: set() for name in pins}
    for python in PYTHONS:
        words = ["--no-deps", *foreign_words(machine, python)]
        for each in _ask_pip(pins, words, plain=plain):
            digests[canonicalize_name(each["metadata"]["name"])].add(_file_digest(each))
    return {name: LockedPackage(name, pins[name], tuple(sorted(found))) for name, found in digests.items()}


def _find_cuda_build(pins: Mapping[str, str]) -> list[LockedPackage]:
    """Torch of the locked version as pip's default index has it, which is built with CUDA, and its further packages."""
    with tempfile.TemporaryDirectory() as folder:
        among = Path(folder) / "among.txt"
        among.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()), encoding="ascii")
        found = _ask_pip({"torch": pins["torch"]}, ["-c", str(among)], plain=True)
    versions = {canonicalize_name(each["metadata"]["name"]): each["metadata"]["version"] for each in found}
    beside = {name: version for name, version in versions.items() if name == "torch" or name not in pins}
    return list(_find_wheels(beside, "x86_64", plain=True).values())


def _ask_pip(pins: Mapping[str, str], words: Iterable[str], *, plain: bool = False) -> list[dict[str, Any]]:
    """What pip would install of these. `plain`: from its default index, whatever this machine adds to it."""
    variables = {name: value for name, value in os.environ.items() if name not in _PIP_SOURCES}
    with tempfile.TemporaryDirectory() as folder:
        asked, report = Path(folder) / "asked.txt", Path(folder) / "report.json"
        asked.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()), encoding="ascii")
        order = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "--target", folder]
        subprocess.run(
            [sys.executable, "-m", "pip", *order, *words, "-r", str(asked)],
            check=True,
            cwd=folder,
            env={**variables, "PIP_CONFIG_FILE": os.devnull} if plain else None,
        )
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return found


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
    beside = {one.name for one in read_lock(CUDA)[1]}  # of a torch with CUDA, where it is that one which is here
    locked = {level: with_cuda({one.name for one in read_lock(level)[1]}, beside, list_installed()) for level in LEVELS}
    here = {canonicalize_name(each.metadata["Name"]): each for each in metadata.distributions()}
    asked = {name: here[name].metadata.get("Requires-Python") or "" for name in sorted(locked["dev"] & here.keys())}
    needs = {name: each.requires or [] for name, each in here.items()}
    differing = compare_installed(read_lock("dev")[1], list_installed())
    return stale + find_too_new(asked) + (differing or find_unlocked(needs, locked))


def with_cuda(names: set[str], beside: set[str], installed: Mapping[str, str]) -> set[str]:
    """Names of a level's lock, and what a torch with CUDA needs `beside` them, if one is here and the level has it."""
    return names | beside if "torch" in names and beside & installed.keys() - {"torch"} else names


def measure_sizes() -> dict[str, float]:
    """Megabytes (1000 x 1000) that each level's packages take in this environment, without the project itself."""
    return {level: sum(_installed_bytes(one.name) for one in read_lock(level)[1]) / 1e6 for level in LEVELS}


def _installed_bytes(name: str) -> int:
    paths = [Path(str(file.locate())) for file in metadata.distribution(name).files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> int:
    """0 if it was done, 1 if the lock is not what was tested, or none that holds can be made."""
    asked = sys.argv[1:]
    if asked == ["make"]:
        try:
            make_lock()
        except LockError as fault:
            print(fault, file=sys.stderr)
            return 1
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
