"""Which edition of the forge this is: a digest over what decides a bundle's content, for the caches.

Law: every module of `models` counts unless it is named here as one that decides nothing of a bundle: a forgotten name
forges once too often, never once too seldom. Standard library only.
"""

import platform
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import models

EDITION = 2  # of the recipe, as a bundle's provenance states it
_MODELS = Path(models.__file__).parent
# files and folders below `models`
_DECIDE_NOTHING = (
    *("command.py", "compare.py", "calibrate_command.py", "forge_command.py", "forge_flags.py"),  # commands
    *("keys_command.py", "keys_facts.py", "flags.py"),
    *("keyring.py", "ceremony.py", "review.py", "request.py", "roles.py", "permits.py"),  # signing
    *("fetch.py", "fetcher.py", "part.py", "channel.py", "trust.py", "assigned.py", "view.py", "poll.py"),  # update
    *("floors.py", "quarantine.py", "store.py"),
    *("shard_ops.py", "shard_run.py", "shard_shapes.py", "shard_sizes.py", "shard_split.py"),  # sharding at the hub
    *("shard_stages.py", "shard_weights.py"),
    *("forge/report.py", "forge/report_page.py", "forge/charts.py"),  # the page
    "zoo",
)
_PACKAGES = (
    *("torch", "onnx", "onnxscript", "onnxruntime", "scikit-learn", "numpy", "safetensors", "msgspec", "constriction"),
)


@cache
def recipe_digest() -> str:
    """SHA-256 in hex over the deciding sources, the packages they build on, and the kind of machine."""
    digest = sha256(sources_digest(_MODELS).encode())
    for package in _PACKAGES:
        digest.update(f"{package}={_version(package)}\0".encode())
    digest.update(f"{platform.python_version()} {platform.machine()}".encode())
    return digest.hexdigest()


def sources_digest(folder: Path) -> str:
    """SHA-256 in hex over the modules below `folder` that decide a bundle, by name and content.

    FileNotFoundError if a name listed above is not there: it has moved, and the list with it.
    """
    digest = sha256()
    for source in _deciding(folder):
        digest.update(source.relative_to(folder).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def _deciding(folder: Path) -> Iterator[Path]:
    left_out = [folder / name for name in _DECIDE_NOTHING]
    if missing := [str(path.relative_to(folder)) for path in left_out if not path.exists()]:
        raise FileNotFoundError(f"the forge's recipe leaves out what is not in {folder}: {', '.join(missing)}")
    for source in sorted(folder.rglob("*.py")):
        if not any(source.is_relative_to(path) for path in left_out):
            yield source


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
