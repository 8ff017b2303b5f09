"""What may be done to codes or scores before they leave, as a device does it: clip, quantise, noise, top-k scores.

Law: the attacker is trained on what comes out of here, never on what went in.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from models.chain import Step, Transform
from models.forge.samples import ForgeError

Codes = npt.NDArray[np.uint8]
NOISE, TOP_K = "noise", "top_k"


def changed(codes: Codes, steps: Sequence[Transform], low: float, high: float) -> Codes:
    """Codes `[n, ...]` after the steps, each rounded toward zero to a byte as devices do. Noise is drawn from seed 0.

    ForgeError if a code ends outside `low..high`: a device would send nothing then.
    """
    rng = np.random.default_rng(0)
    for step in steps:
        codes = _step(codes, step, rng, low, high)
    if codes.size and not low <= int(codes.min()) <= int(codes.max()) <= high:
        raise ForgeError(f"codes leave {low:g}..{high:g} by these transforms, so nothing would be sent; choose others")
    return codes


def _step(codes: Codes, step: Transform, rng: np.random.Generator, low: float, high: float) -> Codes:
    kind = str(step.kind)
    wide: npt.NDArray[Any]
    if kind == "clip":
        wide = np.clip(codes, step.low, step.high)
    elif kind == "quantise" and step.step > 0:
        wide = np.rint(codes / step.step) * step.step
    elif kind == NOISE:
        wide = np.rint(codes + rng.normal(0, step.step, codes.shape)).clip(low, high)
    else:
        raise ForgeError(f"transform {kind!r} cannot be measured; known are clip, quantise and {NOISE}")
    return wide.astype(np.uint8)


def top_k(scores: npt.NDArray[Any], count: int) -> npt.NDArray[np.float32]:
    """The `count` largest scores of each row, the rest set to that row's least kept one: what a short answer tells."""
    bar = -np.partition(-scores, count - 1, axis=1)[:, count - 1 : count]
    return np.asarray(np.maximum(scores, bar), np.float32)


def usual(levels: int) -> dict[str, tuple[Step, ...]]:
    """The defences shown beside a chain that has none.

    Noise of a tenth and a quarter of the range, half the range alone, and steps of a quarter of it.
    """
    top = float(levels - 1)
    quarter = max(2.0, round(levels / 4))
    return {
        f"noise {top / 10:.2g}": (Step(NOISE, step=top / 10),),
        f"noise {top / 4:.2g}": (Step(NOISE, step=top / 4),),
        f"clip 0..{top // 2:g}": (Step("clip", 0.0, top // 2),),
        f"quantise {quarter:g}": (Step("clip", 0.0, top - top % quarter), Step("quantise", step=quarter)),
    }
