"""What the forwarded codes give away: a linear attacker that has pairs of codes and pictures.

Law: a row holds for exactly one chain of cut, codec and transforms, named by its digest. A linear probe is a lower
bound of what leaks: a stronger attacker sees more, never less.
"""

from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from models.manifest import Leakage, LeakKind

_RIDGE = 1.0


def chain_digest(cut: str, codec: str, transforms: tuple[str, ...] = ()) -> str:
    """Name of one exact chain: SHA-256 over its parts, each with its length."""
    parts = [part.encode() for part in (cut, codec, *transforms)]
    return sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).hexdigest()


def linear_inversion(
    codes: npt.NDArray[Any], pictures: npt.NDArray[Any], y: npt.NDArray[np.int64], chain: str
) -> Leakage:
    """Ridge regression from codes to pixels on the first half of the pairs, scored on the second.

    The score is explained variance (R squared over all pixels): 0 = knows nothing, 1 = the picture. `floor` is what the
    label alone explains (its mean picture); `ceiling` what the same attacker gets from the raw sample.
    """
    half = len(codes) // 2
    flat = pictures.reshape(len(pictures), -1).astype(np.float64)
    means = np.stack(
        [
            flat[:half][y[:half] == label].mean(0) if (y[:half] == label).any() else flat[:half].mean(0)
            for label in range(int(y.max()) + 1)
        ]
    )
    score = _explained(codes.reshape(len(codes), -1).astype(np.float64), flat, half)
    return Leakage(
        chain=chain,
        kind=LeakKind.RECONSTRUCTION,
        subject="",
        attack="linear inversion",
        metric="explained variance",
        pairs=half,
        score=score,
        upper95=score,
        floor=_r2(means[y[half:]], flat[half:], flat[:half].mean(0)),
        ceiling=_explained(flat, flat, half),
    )


def _explained(seen: npt.NDArray[np.float64], flat: npt.NDArray[np.float64], half: int) -> float:
    inputs = np.hstack([seen, np.ones((len(seen), 1))])
    gram = inputs[:half].T @ inputs[:half] + _RIDGE * np.eye(inputs.shape[1])
    weights = np.linalg.solve(gram, inputs[:half].T @ flat[:half])
    return _r2(inputs[half:] @ weights, flat[half:], flat[:half].mean(0))


def _r2(guess: npt.NDArray[np.float64], truth: npt.NDArray[np.float64], mean: npt.NDArray[np.float64]) -> float:
    return round(1.0 - float(((guess - truth) ** 2).sum() / ((truth - mean) ** 2).sum()), 4)
