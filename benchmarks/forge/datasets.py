"""Sets of `make bench-forge`: the zoo's, four that the forge was not made with, and one that measures its cost.

Rule: a set is a module with `samples()` and `build_model()`, and `augment` or `edge_model` where it has them; it is
forged under wishes by name. The wish `features` lets nothing but features leave, as a user gets it who says nothing;
`sample` allows that the sample itself travels, coded; `sample-N` that too, and asks for what keeps most in N bytes.
"""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from models.forge.spec import Effort, ForgeSpec, recipe_digest

if TYPE_CHECKING:
    from models.bundle.bundle import Bundle
    from models.forge.data.types import Data

BUNDLES = "SKERRY_ZOO_BUNDLES"
# figures that runs leave beside this file, tracked, so that a run goes on in another checkout
LINES_FILE, NETWORKS_FILE = "trials.jsonl", "unseen-nets.json"
SIZES = (100, 300, 500)  # bytes of codes
SAMPLE_LEVEL = "P2"  # as if a policy let a sample leave wherever features may


@dataclass(frozen=True)
class ForgeCase:
    """`share`: of samples asked, in every figure at a share. `effort`: of this set, whatever is asked for the others.

    `makes_augmentation`: the module's `augment()` returns the augmentation instead of being one.
    """

    module: str
    wishes: dict[str, ForgeSpec]
    share: float = 0.25
    effort: Effort | None = None
    makes_augmentation: bool = False

    def find_augmentation(self) -> Callable[..., Any] | None:
        """The set's augmentation of training samples, None if it has none."""
        found = getattr(import_module(self.module), "augment", None)
        return found() if found and self.makes_augmentation else found

    def measure_more(self, bundle: "Bundle", data: "Data") -> dict[str, float]:
        """Figures that only this set has, by name: of texts in and out of scope, or bytes of the set's own JPEG."""
        if self.module == "benchmarks.forge.cifar10":
            from benchmarks.forge.cifar10 import measure_scan_bytes, read_jpegs  # noqa: PLC0415 - as below
            from models.zoo.sources import find_dataset  # noqa: PLC0415 - as below

            files, _ = read_jpegs(find_dataset("cifar10_jpeg") / "test.c10j.xz")
            return {"scan_bytes": float(mean(map(measure_scan_bytes, files)))}
        if not (data.labels and (data.heldout.y < 0).any()):
            return {}
        from benchmarks.forge import text  # noqa: PLC0415 - reads bundles, which listing the sets does not need

        return text.measure_scope(bundle, data.heldout)


def _list_wishes(wish: ForgeSpec, sizes: tuple[int, ...] = ()) -> dict[str, ForgeSpec]:
    """The wish with features only, and with the sample itself: without a limit, or within each size."""
    allowed = replace(wish, sample_level=SAMPLE_LEVEL)
    sized = {f"sample-{size}": replace(allowed, max_bytes=size, keep=1.0) for size in sizes}
    return {**sized, "features": wish} if sized else {"features": wish, "sample": allowed}


_QUARTER = ForgeSpec(max_share=0.25)
_FEW_ALARMS = replace(_QUARTER, false_alarm=0.01)  # chosen by `python -m benchmarks.forge.text --choose-alarm`
_TENTH = replace(_QUARTER, head_share=0.10)
ZOO_CASES = {
    "fashion-mnist": ForgeCase("models.zoo.fashion_mnist", _list_wishes(_QUARTER, SIZES)),
    "cifar10": ForgeCase(
        "benchmarks.forge.cifar10",
        {**_list_wishes(_TENTH, SIZES), "leakage-aware": replace(_TENTH, leakage_aware=1.0)},
    ),
    "clinc150": ForgeCase("benchmarks.forge.clinc150", _list_wishes(_FEW_ALARMS), makes_augmentation=True),
    "cmapss": ForgeCase("models.zoo.cmapss", _list_wishes(replace(_QUARTER, head_share=0.25)), effort=Effort.NORMAL),
    "mitbih": ForgeCase("models.zoo.mitbih", _list_wishes(replace(_QUARTER, max_share=0.20)), share=0.20),
}
UNSEEN_CASES = {
    "package-table": ForgeCase("benchmarks.forge.unseen.package_table", _list_wishes(ForgeSpec())),
    "package-text": ForgeCase("benchmarks.forge.unseen.package_text", _list_wishes(ForgeSpec())),
    "simulated-motion": ForgeCase("benchmarks.forge.unseen.simulated_motion", _list_wishes(ForgeSpec())),
    "synthetic-speech": ForgeCase("benchmarks.forge.unseen.synthetic_speech", _list_wishes(ForgeSpec())),
}
COST = "cost"
CASES = {
    **ZOO_CASES,
    **UNSEEN_CASES,
    COST: ForgeCase("benchmarks.forge.cost_net", {"features": _QUARTER}, effort=Effort.NORMAL),
}


def bundles_folder() -> Path:
    """Where forged sets and their stages are kept: the folder that `SKERRY_ZOO_BUNDLES` names, or the user's cache."""
    return Path(os.environ.get(BUNDLES) or Path.home() / ".cache" / "skerry" / "zoo-bundles")


def figures_folder() -> Path:
    """Where the figures of finished trials are kept: this folder of the checkout that is measured."""
    return Path(__file__).parent


@cache
def trial_digest() -> str:
    """Digest, twelve hex digits, of all code that decides a trial: the forge's recipe, the zoo and the sets here."""
    here = Path(__file__).parent
    zoo = Path(import_module("models.zoo").__path__[0])
    digest = sha256(recipe_digest().encode())
    nets = (here / f"{name}.py" for name in ("cifar10", "clinc150", "ngrams", "cost_net"))
    for source in sorted([*zoo.glob("*.py"), *here.glob("unseen/*.py"), *nets]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def read_commit() -> str:
    """Short name of the commit that is measured, with a plus where tracked files other than figures differ from it."""
    here = Path(__file__).parent
    name = _run_git(here, "rev-parse", "--short", "HEAD")
    kept = [f":(exclude){file}" for file in (LINES_FILE, NETWORKS_FILE, "../RESULTS.md")]
    changed = _run_git(here, "status", "--porcelain", "--untracked-files=no", "--", ":/", *kept)
    return f"{name}{'+' if changed else ''}" or "unknown"


def _run_git(folder: Path, *arguments: str) -> str:
    found = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return found.stdout.strip()
