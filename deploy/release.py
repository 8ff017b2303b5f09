"""Release artefacts in `dist/`: the wheels, the clients, and for each lock a bill of materials and the licences.

`python deploy/release.py`. The wheel has everything; `builds` makes those of agent, hub and demo of it. Clients: a
wheel (clients/python) and what npm installs (clients/typescript). All are built of a copy of what git lists, so that
nothing left by an earlier build gets into them. The bill (`skerry-VERSION-LEVEL.cdx.json`) is CycloneDX 1.6, equal
for equal locks; the licences are the texts that the packages carry. Rule: nothing is written unless the lock is what
is installed here, which is what the tests ran with. `python deploy/release.py FOLDER` writes the artefacts alone,
there.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import builds
import descriptions
import lock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DIST = lock.ROOT / "dist"
RELEASED = ("agent", "hub", "demo")
_LICENCE_FILES = ("licen", "copying", "notice", "authors")


def make_bill(level: str, wheel: Path) -> dict[str, Any]:
    """The bill of materials of one level: the wheel, its packages with hashes and licences, and who needs whom."""
    version = tomllib.loads((lock.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    packages = lock.read_lock(level)[1]
    application = {
        "type": "application",
        "bom-ref": "skerry",
        "name": "skerry",
        "version": version,
        "purl": f"pkg:pypi/skerry@{version}",
        "hashes": [{"alg": "SHA-256", "content": sha256(wheel.read_bytes()).hexdigest()}],
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": application,
            "properties": [{"name": "skerry:platform", "value": lock.PLATFORM}],
        },
        "components": [_describe_package(one) for one in packages],
        "dependencies": [
            _describe_needs("skerry", "skerry", packages),
            *(_describe_needs(_reference(one), one.name, packages) for one in packages),
        ],
    }


def _describe_package(one: lock.LockedPackage) -> dict[str, Any]:
    named = name_licence(one.name)
    return {
        "type": "library",
        "bom-ref": _reference(one),
        "name": one.name,
        "version": one.version,
        "purl": _reference(one),
        "hashes": [{"alg": "SHA-256", "content": each} for each in one.digests],
        "licenses": [{"license": {"name": named}}],
    }


def _reference(one: lock.LockedPackage) -> str:
    return f"pkg:pypi/{one.name}@{one.version}"


def _describe_needs(reference: str, name: str, among: tuple[lock.LockedPackage, ...]) -> dict[str, Any]:
    """Which of the packages installed with it a package requires, in any of its extras."""
    needed = {canonicalize_name(Requirement(text).name) for text in metadata.requires(name) or ()}
    return {"ref": reference, "dependsOn": [_reference(one) for one in among if one.name in needed]}


def name_licence(package: str) -> str:
    """A package's licence as its metadata names it: expression, classifier or first line of the licence field."""
    facts = metadata.metadata(package)
    classes = [each.rpartition(" :: ")[2] for each in facts.get_all("Classifier", []) if each.startswith("License ::")]
    field = (facts.get("License") or "").strip().splitlines()
    return str(facts.get("License-Expression") or " OR ".join(classes) or (field[0] if field else "not stated"))


def collect_licences(level: str) -> str:
    """The licences of a level's packages, one after the other, with the texts that they carry."""
    parts = [f"Skerry: Apache-2.0\n\n{(lock.ROOT / 'LICENSE').read_text(encoding='utf-8')}"]
    for one in lock.read_lock(level)[1]:
        files = [f for f in metadata.distribution(one.name).files or () if f.name.lower().startswith(_LICENCE_FILES)]
        texts = [
            Path(str(f.locate())).read_text(encoding="utf-8", errors="replace") for f in files if f.suffix != ".py"
        ]
        carried = "\n\n".join(texts) or "The package carries no licence file."
        parts.append(f"{one.name} {one.version}: {name_licence(one.name)}\n\n{carried}")
    return f"\n\n{'=' * 78}\n\n".join(parts) + "\n"


def copy_sources(target: Path) -> None:
    """Copy what git lists, changes included; pages that an index shows have no links to files it does not have."""
    words = ("git", "ls-files", "-coz", "--exclude-standard")
    listed = subprocess.run(words, check=True, capture_output=True, text=True, cwd=lock.ROOT).stdout.split("\0")
    for name in filter(None, listed):
        if (lock.ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(lock.ROOT / name, target / name)
    for folder in ("", "clients/python", "clients/typescript"):
        page = target / folder / "README.md"
        page.write_text(descriptions.make_links_plain(page.read_text(encoding="utf-8"), folder), encoding="utf-8")


def build_wheel(sources: Path, folder: Path) -> Path:
    """Build the wheel of a folder with a pyproject.toml; its path."""
    with tempfile.TemporaryDirectory() as scratch:
        words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", scratch, str(sources)]
        subprocess.run([sys.executable, *words], check=True, cwd=scratch)
        (wheel,) = Path(scratch).glob("*.whl")
        return Path(shutil.copy(wheel, folder))


def build_npm_package(sources: Path, folder: Path) -> Path:
    """Compile the TypeScript client and pack it for npm; its path. SystemExit if there is no npm."""
    if shutil.which("npm") is None:
        raise SystemExit("release.py: npm is missing, which packs the TypeScript client: node 20 or newer has it")
    shutil.copy(lock.ROOT / "LICENSE", sources)
    for words in (
        ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"),
        ("npm", "run", "--silent", "build"),
    ):
        subprocess.run(words, check=True, cwd=sources, stdin=subprocess.DEVNULL)
    packed = subprocess.run(
        ("npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder)),
        check=True,
        cwd=sources,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return folder / packed.stdout.split()[-1]


def build_artefacts(folder: Path) -> list[Path]:
    """What people install: the whole wheel first, then those of one role, the Python client and the npm package."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch) / "sources"
        copy_sources(sources)
        whole = build_wheel(sources, folder)
        client = build_wheel(sources / "clients" / "python", folder)
        package = build_npm_package(sources / "clients" / "typescript", folder)
    return [whole, *(builds.make_role_wheel(whole, role) for role in builds.BUILDS), client, package]


def main() -> int:
    """0 if all was written, 1 if the lock is not what was tested."""
    if sys.argv[1:]:
        made = build_artefacts(Path(sys.argv[1]).absolute())
        print("\n".join(f"{path.name}  {path.stat().st_size / 1000:.0f} kB" for path in made))
        return 0
    faults = lock.check_lock()
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    wheel = build_artefacts(DIST)[0]
    stem = "-".join(wheel.name.split("-")[:2])
    for level in RELEASED:
        bill = json.dumps(make_bill(level, wheel), indent=1) + "\n"
        (DIST / f"{stem}-{level}.cdx.json").write_text(bill, encoding="utf-8")
        (DIST / f"{stem}-{level}.licences.txt").write_text(collect_licences(level), encoding="utf-8")
        (DIST / f"{stem}-{level}.lock.txt").write_bytes((lock.FOLDER / f"{level}.txt").read_bytes())
    print("\n".join(sorted(path.name for path in DIST.iterdir())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
