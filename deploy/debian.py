"""Debian packages of agent and hub in `dist/`, with every Python package that they need.

`python deploy/debian.py agent hub` packs what is installed here, which is what the lock names and the tests ran with.
Each package is an environment of its own below `/usr/lib/skerry-NAME` on Debian's python3.11, with the unit, the
command `skerry` (an alternative, for a machine that has both) and examples. Rule: a package starts nothing: a hub needs
its models and an agent its invite first.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import lock

DIST = lock.ROOT / "dist"
PYTHON = "3.11"
_CHECKOUT_PYTHON = "/opt/skerry/.venv/bin/python"
_CHECKOUT_PAGE = "/opt/skerry/docs/running.md"
_PAGES = ("running.md", "exit-codes.md", "trust.md")


class Role(NamedTuple):
    """What one package is. `module`: its process; `level`: the lock whose packages it has; `priority`: of `skerry`."""

    name: str
    module: str
    level: str
    depends: str
    priority: int
    says: str


ROLES = {
    "agent": Role("agent", "edge_agent", "agent", "", 10, "edge inference: answers at once, asks a hub what it may"),
    "hub": Role(
        "hub", "cloud_hub", "region", ", mosquitto (>= 2.0)", 20, "hub of devices that ask: large models, rollouts"
    ),
}

_POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
    "$DPKG_ROOT{home}/bin/python" -m compileall -q -j 0 "$DPKG_ROOT{home}/lib" || true
    if [ -z "$DPKG_ROOT" ]; then
        update-alternatives --install /usr/bin/skerry skerry {home}/bin/skerry {priority}
        [ ! -d /run/systemd/system ] || systemctl daemon-reload
    fi
fi
"""
_PRERM = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "$DPKG_ROOT" ]; then
    [ ! -d /run/systemd/system ] || systemctl stop skerry-{name}.service
    update-alternatives --remove skerry {home}/bin/skerry
fi
find "$DPKG_ROOT{home}/lib" -name __pycache__ -type d -prune -exec rm -rf {{}} +
"""


def refuse_python(version: tuple[int, int]) -> list[str]:
    """Why nothing is packed from an environment of this Python: what is compiled there does not load in Debian's."""
    own = ".".join(map(str, version))
    if own == PYTHON:
        return []
    return [
        f"make deb packs for Debian's Python {PYTHON}, and .venv is of {own}: PYTHON=/usr/bin/python{PYTHON} make deb"
    ]


def copy_packages(level: str, site: Path) -> dict[str, int]:
    """Copy the files of a level's packages as they are installed here; the bytes of each, without compiled modules."""
    sizes: dict[str, int] = {}
    for one in lock.read_lock(level)[1]:
        found = metadata.distribution(one.name)
        home = Path(str(found.locate_file("")))
        sizes[one.name] = 0
        for file in found.files or ():
            source = Path(str(file.locate()))
            if ".." in file.parts or file.suffix == ".pyc" or not source.is_file():
                continue  # programs of other packages, and what Debian's Python compiles itself
            target = site / source.relative_to(home)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            sizes[one.name] += source.stat().st_size
    return sizes


def copy_program(site: Path) -> None:
    """Build the wheel of the project and unpack it."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ".")
        subprocess.run([sys.executable, *words], check=True, cwd=lock.ROOT)
        (wheel,) = Path(folder).glob("skerry-*.whl")
        zipfile.ZipFile(wheel).extractall(site)


def make_environment(role: Role, root: Path) -> dict[str, int]:
    """The environment below `/usr/lib`: an interpreter that is Debian's, packages, and the command."""
    home = root / f"usr/lib/skerry-{role.name}"
    site = home / f"lib/python{PYTHON}/site-packages"
    site.mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin" / "python").symlink_to(f"/usr/bin/python{PYTHON}")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n", encoding="ascii")
    script = f"#!/usr/lib/skerry-{role.name}/bin/python -P\nimport sys\n\nfrom skerry import main\n\nsys.exit(main())\n"
    (home / "bin" / "skerry").write_text(script, encoding="ascii")
    (home / "bin" / "skerry").chmod(0o755)
    sizes = copy_packages(role.level, site)
    copy_program(site)
    return sizes


def place_files(role: Role, root: Path) -> None:
    """The unit, started by the package's interpreter, and what a person reads."""
    units, pages = root / "lib/systemd/system", root / f"usr/share/doc/skerry-{role.name}"
    for folder in (units, pages / "examples", root / "etc/skerry"):
        folder.mkdir(parents=True)
    unit = (lock.ROOT / f"deploy/skerry-{role.name}.service").read_text(encoding="utf-8")
    unit = unit.replace(_CHECKOUT_PYTHON, f"/usr/lib/skerry-{role.name}/bin/python")
    unit = unit.replace(_CHECKOUT_PAGE, f"/usr/share/doc/skerry-{role.name}/running.md")
    (units / f"skerry-{role.name}.service").write_text(unit, encoding="utf-8")
    for page in _PAGES:
        shutil.copy(lock.ROOT / "docs" / page, pages)
    shutil.copy(lock.ROOT / "LICENSE", pages / "copyright")
    shutil.copy(lock.ROOT / role.module / f"{role.name}.toml", pages / "examples")


def describe(role: Role, root: Path, version: str) -> None:
    """The package's own facts, and the scripts that dpkg runs."""
    kib = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir()) // 1024 + 1
    control = root / "DEBIAN"
    control.mkdir()
    facts = {
        "Package": f"skerry-{role.name}",
        "Version": version,
        "Architecture": subprocess.run(
            ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
        ).stdout.strip(),
        "Maintainer": "Skerry maintainers <maintainers@skerry.invalid>",
        "Installed-Size": str(kib),
        "Depends": f"python{PYTHON}, libc6 (>= 2.28){role.depends}",
        "Section": "net",
        "Priority": "optional",
        "Description": f"Skerry {role.name}, {role.says}",
    }
    (control / "control").write_text("".join(f"{key}: {value}\n" for key, value in facts.items()), encoding="utf-8")
    for name, text in (("postinst", _POSTINST), ("prerm", _PRERM)):
        filled = text.format(home=f"/usr/lib/skerry-{role.name}", name=role.name, priority=role.priority)
        (control / name).write_text(filled, encoding="utf-8")
        (control / name).chmod(0o755)


def build_package(role: Role, folder: Path, *, quick: bool = False) -> tuple[Path, dict[str, int]]:
    """Build one package into `folder`; its path, and the bytes of each Python package in it. `quick`: packed less."""
    if importlib.util.find_spec("setuptools") is None or shutil.which("dpkg-deb") is None:
        raise SystemExit("debian.py: dpkg-deb and setuptools are needed: apt-get install dpkg-dev, ./setup.sh dev")
    version = tomllib.loads((lock.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        os.umask(0o022)
        root = Path(scratch) / "root"
        root.mkdir(mode=0o755)
        sizes = make_environment(role, root)
        place_files(role, root)
        describe(role, root, version)
        packed = ("-Zgzip", "-z1") if quick else ("-Zxz",)
        words = ["dpkg-deb", "--root-owner-group", *packed, "--build", str(root), str(folder)]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return folder / Path(said.rstrip().rstrip(".").rpartition("in ")[2].strip("'")).name, sizes


def main() -> int:
    """0 if all was written, 1 if the lock is not what was tested."""
    parser = argparse.ArgumentParser(prog="deploy/debian.py", description=__doc__)
    parser.add_argument("roles", nargs="*", default=[*ROLES], metavar="agent|hub", help="which; without: both")
    parser.add_argument("--out", type=Path, default=DIST, help="folder of the packages")
    parser.add_argument("--quick", action="store_true", help="pack less, in a tenth of the time")
    asked = parser.parse_args()
    if unknown := [name for name in asked.roles if name not in ROLES]:
        parser.error(f"{unknown[0]} is no package: agent, hub")
    faults = refuse_python(sys.version_info[:2]) or lock.check_lock()
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    for name in asked.roles:
        path, sizes = build_package(ROLES[name], asked.out, quick=asked.quick)
        largest = sorted(sizes, key=lambda one: sizes[one], reverse=True)[:3]
        told = ", ".join(f"{one} {sizes[one] / 1e6:.0f}" for one in largest)
        print(
            f"{path}: {path.stat().st_size / 1e6:.0f} MB; unpacked {sum(sizes.values()) / 1e6:.0f} MB before modules"
            f" are compiled, of these {told}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
