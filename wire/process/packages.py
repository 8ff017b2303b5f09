"""Skerry's own packages: their installed version, and a refusal to start where another module hides one of them.

Rule: standard library only. Programs run this file by its path before they import anything of Skerry, because `wire`
itself may be hidden; nothing of the other module is run.
"""

import importlib.metadata
import sys
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations")
_CONFIG = 10  # ExitCode.CONFIG


def read_version() -> str:
    """The installed version of the software; "0" outside an installation."""
    try:
        return importlib.metadata.version("skerry")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def find_hidden_package(home: Path) -> tuple[str, Path] | None:
    """The first of our packages that an import would find outside `home`, and the file that it would find instead."""
    for name in PACKAGES:
        spec = PathFinder.find_spec(name) if (home / name).is_dir() else None
        if spec is not None and spec.origin and Path(spec.origin).resolve().parent != (home / name).resolve():
            return name, Path(spec.origin)
    return None


def refuse_clashes(program: str) -> None:
    """End the process with one line and exit code 10 if one of our packages is hidden. `program`: starts the line."""
    found = find_hidden_package(Path(__file__).parents[2])
    if found:
        name, file = found
        line = f"{file} has the name of Skerry's own package {name}: rename it, start elsewhere, or unset PYTHONPATH"
        print(f"{program}: {line}", file=sys.stderr)
        sys.exit(_CONFIG)
