"""What may be done to codes or scores before they leave, through the very steps of a device:

`models/runtime/transforms.py`.

Law: the attacker is trained on what comes out of here, never on what went in.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from models.forge.data.types import ForgeError
from models.runtime import transforms as device
from models.runtime.chain import Range, Step, Transform

CodeArray = npt.NDArray[np.uint8]
NOISE, TOP_K = "noise", "top_k"
_KEY = bytes(32)  # the attacker learns from pairs: which key it was is nothing to it


def changed(codes: CodeArray, steps: Sequence[Transform], field: Range) -> CodeArray:
    """Codes `[n, ...]` of a feature after the steps, noise drawn from seed 0. ForgeError if a step cannot be done."""
    rng = np.random.default_rng(0)

    def drawn(sigma: float, count: int) -> npt.NDArray[np.float64]:
        return np.rint(rng.normal(0, sigma, count))

    try:
        return device.changed(codes, steps, field, device.Tools(drawn, _KEY))
    except device.StepError as error:
        raise ForgeError(f"{error}, so nothing would be sent; choose others") from None


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
