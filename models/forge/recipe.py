"""Which edition of the forge this is: a digest over what decides a bundle's content, for the caches.

Law: whatever changes a result changes the digest; pages, plots and commands do not. Standard library only.
"""

import platform
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

EDITION = 2  # of the recipe, as a bundle's provenance states it
_HERE = Path(__file__).parent
# what only tells, or decides nothing of a bundle
_TOLD = {"report.py", "charts.py", "report_page.py", "baselines.py", "demo.py", "digits.py", "corrupt.py", "cache.py"}
_TOLD |= {"recalibrate.py", "router.py", "given.py", "coerced.py", "checked.py"}
_BESIDE = ("graph.py", "graph_ops.py", "codec.py", "manifest.py", "golden.py", "chain.py", "figures.py", "tables.py")
_PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "scikit-learn", "numpy", "safetensors", "msgspec")


@cache
def recipe_digest() -> str:
    """SHA-256 in hex over the stages' sources, the packages they build on, and the kind of machine."""
    digest = sha256()
    for source in _sources():
        digest.update(str(source.relative_to(_HERE.parent)).encode() + b"\0" + source.read_bytes() + b"\0")
    for package in _PACKAGES:
        digest.update(f"{package}={_version(package)}\0".encode())
    digest.update(f"{platform.python_version()} {platform.machine()}".encode())
    return digest.hexdigest()


def _sources() -> list[Path]:
    stages = [path for path in _HERE.rglob("*.py") if path.name not in _TOLD and "command" not in path.name]
    beside = [_HERE.parent / name for name in _BESIDE if (_HERE.parent / name).is_file()]
    return sorted([*stages, *beside])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
