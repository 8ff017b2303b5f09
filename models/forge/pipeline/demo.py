"""The demo's bundle: forges the network of `models/zoo/digits.py` and caches it under a digest of its recipe.

Rule: a cached bundle is used only if it verifies and passes its golden set; otherwise it is forged again. torch is
imported when something is forged, so a cached demo starts without it.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from models import zoo
from models.bundle.bundle import Bundle, open_bundle
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import BundleError
from models.forge.spec import Effort, ForgeSpec, recipe_digest
from models.runtime.golden import check_golden
from models.runtime.onnx_runner import OnnxRunner

NAME, VERSION = "digits", 1
CUT = "early.3.relu"
PAYLOAD_BYTES = 64  # messages are padded: fewer bytes would not make them shorter
Progress = Callable[[str, float], None]
DEMO_SPEC = ForgeSpec(
    NAME,
    VERSION,
    cut=CUT,
    path="learned-64",  # codes 0 to 15 from zero on: the templates' clips, norms and noise are written for these
    max_bytes=PAYLOAD_BYTES,
    precision="int8-weights",
    effort=Effort.QUICK,
    max_share=0.3,
)
SAMPLE_LINES = 40
_SAMPLE_SEED = 11
_TRAINING, _WHOLE = "training", 1.0
# where each stage ends, as a share of the whole: the demo shows one progress bar
_STAGE_ENDS = {_TRAINING: 0.35, "teaching": 0.7, "exporting": 0.8, "quantising": 0.88, "tuning": 0.92, "judging": 0.93}


def forge_demo_bundle(out_dir: Path | str, progress: Progress | None = None) -> Bundle:
    """Train the demo's network and forge it at `out_dir`: about twenty seconds on two cores.

    `progress(stage, share)`: share of the whole run, 0..1. Raises ForgeError as `forge` does.
    """
    from models.forge.pipeline.forge import run_forge  # noqa: PLC0415 - torch only when something is forged
    from models.forge.spec import ForgeInputs  # noqa: PLC0415 - torch only when something is forged
    from models.zoo.digits import CORRUPTED, build_model, samples  # noqa: PLC0415

    told = _TotalProgress(progress or _ignore_progress)
    told(_TRAINING, 0.0)
    model = build_model()
    told(_TRAINING, 1.0)
    aids = ForgeInputs(source="models.zoo.digits:build_model", corrupted=CORRUPTED, report=False)
    bundle = run_forge(model, samples(), DEMO_SPEC, out_dir, told, aids=aids)
    told.finish()
    return bundle


def locate_cache_folder() -> Path:
    """The user's cache folder: `$XDG_CACHE_HOME/skerry` or `~/.cache/skerry`.

    A temporary folder, by the user's number, if neither can be written.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skerry"
    with contextlib.suppress(OSError):
        base.mkdir(parents=True, exist_ok=True)
    return base if os.access(base, os.W_OK) else Path(tempfile.gettempdir()) / f"skerry-cache-{os.getuid()}"


def load_demo_bundle(cache_dir: Path | str, progress: Progress | None = None) -> Bundle:
    """The demo's bundle from `cache_dir`; forged there first if it is missing, damaged or made by another recipe."""
    path = Path(cache_dir) / f"{NAME}-{demo_recipe_key()[:16]}"
    try:
        bundle = _open_checked(path)
    except BundleError:
        return forge_demo_bundle(path, progress)
    if progress:
        progress("cached", 1.0)
    return bundle


def write_demo_samples(file: Path, count: int = SAMPLE_LINES) -> None:
    """Write so many held-out digits, damaged as the demo damages them, as JSON lines for `skerry agent run --lines`.

    `id` says which digit it is: "3: a 7" is the third line, of a seven.
    """
    import numpy as np  # noqa: PLC0415 - the demo's digits need scikit-learn, which only this function and the forge load

    from models.forge.data.augment import corrupt_pictures  # noqa: PLC0415
    from models.forge.data.digits import load_heldout  # noqa: PLC0415
    from models.zoo.digits import CORRUPTED  # noqa: PLC0415

    pictures, labels = load_heldout()
    damaged = corrupt_pictures(pictures[:count], np.random.default_rng(_SAMPLE_SEED), CORRUPTED)
    with file.open("w", encoding="utf-8") as lines:
        for number, (picture, label) in enumerate(zip(damaged, labels, strict=False), start=1):
            values = [round(float(value), 3) for value in picture.ravel()]
            lines.write(json.dumps({"id": f"{number}: a {label}", "x": values}) + "\n")


def demo_recipe_key() -> str:
    """SHA-256 in hex over the forge's recipe (`recipe_digest`) and over the demo's own network and data."""
    network = files(zoo).joinpath("digits.py").read_bytes()
    return sha256(recipe_digest().encode() + network).hexdigest()


class _TotalProgress:
    """Progress of all stages as one share that only rises, each stage with its own length (`_STAGE_ENDS`)."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = self._start = 0.0
        self._stage = ""

    def __call__(self, stage: str, share: float) -> None:
        if stage != self._stage:
            self._stage, self._start = stage, self._done
        end = max(_STAGE_ENDS.get(stage, self._start), self._start)
        self._done = max(self._done, self._start + (end - self._start) * share)
        self._progress(stage, self._done)

    def finish(self) -> None:
        self._progress("done", _WHOLE)


def _ignore_progress(_stage: str, _share: float) -> None:
    """Progress callback that does nothing."""


def _open_checked(path: Path) -> Bundle:
    """Open both parts of a bundle and check its golden set. Raises BundleError if either fails."""
    bundle = open_bundle(path)
    open_hub_part(path, bundle.manifest).verify_weights()
    runner = OnnxRunner(bundle)
    try:
        if not check_golden(bundle, runner).passed:
            raise BundleError(f"{path}: the golden set gives other answers than when it was forged")
    finally:
        runner.close()
    return bundle
