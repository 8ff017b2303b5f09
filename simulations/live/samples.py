"""Samples of a live run: held-out pictures, clean and damaged, split by the confidence of the agents' model."""

from typing import Any

import numpy as np
import numpy.typing as npt

from models.forge.data.digits import corrupt_pictures, load_heldout
from models.runtime.runner import Runner
from simulations.live.fleet.load import SamplePool, SamplePools

_DAMAGE = (0.0, 0.3, 0.6, 0.9)
_LEAST = 20  # of a pool: fewer would be the same few samples again and again


def load_sample_pools(runner: Runner, threshold: float) -> SamplePools:
    """Split the held-out digits, clean and damaged, by confidence. ValueError if the threshold leaves a pool empty."""
    clean, labels = load_heldout()
    found: dict[bool, list[tuple[npt.NDArray[Any], int]]] = {True: [], False: []}
    for number, share in enumerate(_DAMAGE):
        for x, label in zip(
            corrupt_pictures(clean, np.random.default_rng(number), share), labels.tolist(), strict=True
        ):
            found[runner.infer_one(x).prediction.confidence >= threshold].append((x, label))
    if min(map(len, found.values())) < _LEAST:
        raise ValueError(f"threshold {threshold}: {len(found[True])} samples above it, {len(found[False])} below")
    return SamplePools(_make_pool(found[True]), _make_pool(found[False]))


def _make_pool(found: list[tuple[npt.NDArray[Any], int]]) -> SamplePool:
    return SamplePool(np.stack([x for x, _ in found]), [label for _, label in found])
