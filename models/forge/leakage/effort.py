"""Effort of privacy attacks: their limits, what they have cost, and their progress on disk, so that one may be killed.

Rule: limits count samples, steps and multiply-accumulates, never seconds, so that a busy machine measures the same as a
quiet one. Seconds are only reported.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from models.forge.cache import digest_parts, load_checkpoint, save_checkpoint, write_tensors
from models.forge.spec import recipe_digest

Values = npt.NDArray[Any]

_KEY_CHARS = 24


class AttackEffort(NamedTuple):
    """Upper limits of one attack.

    `pairs`, `tests`: samples; `macs`: multiply-accumulates of one training, forward and backward; `width`: of the
    network; `steps`: of its training, and `least_steps` whatever they cost; `inputs`: of the network, beyond which it
    sees the principal components of a code without a grid.
    """

    pairs: int
    tests: int
    macs: float
    width: int
    steps: int
    inputs: int = 1024
    least_steps: int = 120


# seconds, and one to two minutes, on one quiet thread
QUICK = AttackEffort(pairs=2000, tests=500, macs=5e10, width=24, steps=250, inputs=256, least_steps=60)
FULL = AttackEffort(pairs=10_000, tests=1000, macs=2e12, width=48, steps=5000)
EFFORTS = {"quick": QUICK, "full": FULL}


class AttackCost(NamedTuple):
    """What attacks have cost: networks trained, their multiply-accumulates, seconds of processor time."""

    networks: int = 0
    macs: float = 0.0
    cpu_s: float = 0.0

    def plus(self, other: "AttackCost") -> "AttackCost":
        """The cost of both."""
        return AttackCost(self.networks + other.networks, self.macs + other.macs, self.cpu_s + other.cpu_s)


class AttackWork:
    """Progress of a measurement's attacks: guesses of finished ones, a checkpoint of the one in hand, and their cost.

    `folder` None: nothing is kept. Files are found by the digest of all that decides an attack, so that a folder may
    serve any number of measurements, and what changed is attacked again. `tell(share)`: share of the training in hand.
    """

    def __init__(self, folder: Path | None = None, tell: Callable[[float], None] | None = None) -> None:
        self.cost = AttackCost()
        self._folder = folder
        self._tell = tell or _ignore_share

    def set_progress(self, tell: Callable[[float], None]) -> None:
        """Report the share of the next training through `tell`."""
        self._tell = tell

    def key_for(self, *parts: Any) -> str:
        """Digest of what decides an attack: arrays, effort, and the code of this package. "" if nothing is kept."""
        if self._folder is None:
            return ""
        plain = [_view_bytes(each) if isinstance(each, np.ndarray) else each for each in parts]
        return digest_parts(recipe_digest(), *plain)[:_KEY_CHARS]

    def find_guesses(self, key: str) -> Values | None:
        """Guesses of an attack that was finished before; its cost is added. None if it was not."""
        if self._folder is None:
            return None
        try:
            kept = safetensors.torch.load((self._folder / f"{key}.guesses").read_bytes())
            networks, macs, cpu_s = kept["cost"].tolist()
            guesses: Values = kept["guesses"].numpy()
        except (OSError, KeyError, ValueError, SafetensorError):
            return None
        self.cost = self.cost.plus(AttackCost(int(networks), macs, cpu_s))
        return guesses

    def store_guesses(self, key: str, guesses: Values, cost: AttackCost) -> None:
        """Add the cost of a finished attack and keep its guesses; the checkpoint that led to them goes."""
        self.cost = self.cost.plus(cost)
        if self._folder is None:
            return
        told = torch.tensor(cost, dtype=torch.float64)
        write_tensors(self._folder / f"{key}.guesses", {"guesses": torch.from_numpy(guesses), "cost": told})
        self._checkpoint(key).unlink(missing_ok=True)

    def train(self, key: str, net: nn.Module, optimiser: torch.optim.Optimizer, plan: "TrainingSteps") -> float:
        """Run the steps that a killed training has left; returns processor seconds of all steps."""
        clock = _ProcessorClock()
        modules = nn.ModuleDict({"net": net, "clock": clock})
        path = self._checkpoint(key) if self._folder else None
        done = load_checkpoint(path, modules, optimiser) if path else 0
        for step in range(done, plan.total):
            began = time.process_time()
            plan.run(step)
            clock.seconds += time.process_time() - began
            if (step + 1) % plan.saved == 0:
                if path:
                    save_checkpoint(path, modules, optimiser, step + 1)
                self._tell((step + 1) / plan.total)
        return float(clock.seconds)

    def _checkpoint(self, key: str) -> Path:
        return (self._folder or Path()) / f"{key}.state"


class TrainingSteps(NamedTuple):
    """Steps of one training: how many, what one does, given its number, and after how many the state is saved."""

    total: int
    run: Callable[[int], None]
    saved: int = 100


class _ProcessorClock(nn.Module):
    """Processor seconds of a training, kept in its checkpoint."""

    seconds: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seconds", torch.zeros((), dtype=torch.float64))


def reduce_codes(codes: npt.NDArray[np.float32], train: Sequence[int] | Values, most: int) -> npt.NDArray[np.float32]:
    """Flat codes `[n, d]` as their `most` first principal components over the rows `train`, if d is more."""
    if codes.shape[1] <= most or len(train) <= most:
        return codes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        basis = torch.pca_lowrank(torch.from_numpy(codes[train]), q=most, niter=1)[2].numpy()
    found = (codes - codes[train].mean(0)) @ basis
    return np.asarray(found / max(float(found[train].std()), 1e-6), np.float32)


def _view_bytes(values: Values) -> memoryview:
    """The bytes of an array, not copied where they lie in one piece."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _ignore_share(_share: float) -> None:
    """Progress callback that does nothing."""
