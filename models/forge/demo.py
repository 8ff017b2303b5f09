"""The demo's model: scikit-learn's digits through the picture recipe, cached by everything that could change it.

Law: a cached bundle is used only if it verifies and passes its golden set; otherwise it is forged again. torch is
imported when something is forged, so a cached demo starts without it.
"""

import platform
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from models.bundle import Bundle, BundleError, open_bundle
from models.golden import check_golden
from models.onnx import OnnxRunner

if TYPE_CHECKING:
    from models.forge.images import Progress

NAME, VERSION = "digits", 1
_SOURCES = Path(__file__).parent.parent  # every module that decides what is in a bundle lies under `models`
_PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "scikit-learn", "numpy", "safetensors", "msgspec")


def forge_demo(out_dir: Path | str, progress: "Progress | None" = None) -> Bundle:
    """Train, quantise, calibrate and bundle the demo's model at `out_dir`: about ten seconds on two cores."""
    from models.forge import digits  # noqa: PLC0415 - scikit-learn and torch only when something is forged
    from models.forge.images import forge_images  # noqa: PLC0415
    from models.forge.task import Labelled, Task  # noqa: PLC0415

    labels = tuple(str(digit) for digit in range(10))
    task = Task(NAME, VERSION, labels, Labelled(*digits.training()), Labelled(*digits.heldout()), digits.CORRUPTED)
    return forge_images(task, out_dir, progress)


def cached_demo_bundle(cache_dir: Path | str, progress: "Progress | None" = None) -> Bundle:
    """The demo's bundle out of `cache_dir`, forged there first if it is missing, damaged or made by another recipe."""
    path = Path(cache_dir) / f"{NAME}-{recipe_key()[:16]}"
    try:
        bundle = _sound(path)
    except BundleError:
        return forge_demo(path, progress)
    if progress:
        progress("cached", 1.0)
    return bundle


def recipe_key() -> str:
    """SHA-256 in hex over the sources of `models`, the versions it builds on, and the kind of machine."""
    digest = sha256()
    for source in sorted(_SOURCES.rglob("*.py")):
        digest.update(str(source.relative_to(_SOURCES)).encode() + b"\0" + source.read_bytes() + b"\0")
    for package in _PACKAGES:
        digest.update(f"{package}={version(package)}\0".encode())
    digest.update(f"{platform.python_version()} {platform.machine()}".encode())
    return digest.hexdigest()


def _sound(path: Path) -> Bundle:
    bundle = open_bundle(path)
    runner = OnnxRunner(bundle)
    try:
        if not check_golden(bundle, runner).passed:
            raise BundleError(f"{path}: the golden set gives other answers than when it was forged")
    finally:
        runner.close()
    return bundle
