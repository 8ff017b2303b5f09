"""Two versions of one real model, trained apart, and their answers to the same 15,000 pictures (Fashion-MNIST).

Rule: nothing is tuned. Both are the same small trunk with an early exit on the device and a tail at the hub, trained on
the same pictures from different first weights: the second is what a harmless update looks like. Kept beside the zoo's
other networks, so that the next run need not train again.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.rollout.paired_answers import ModelVersion, PairedAnswers
from models.zoo.datasets import load_fashion_mnist

EPOCHS = 4
BATCH = 128
FILE = "rollout-answers-2.npz"
LABELS = 10


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
        )  # on the device
        self.exit = nn.Sequential(nn.Flatten(), nn.Linear(784, LABELS))
        self.tail = nn.Sequential(
            nn.Conv2d(16, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, LABELS),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes = self.trunk(x)
        return self.exit(codes), self.tail(codes)


def load_answers() -> PairedAnswers:
    """Both versions on pictures that neither has seen; trained in two minutes if they are not in the cache."""
    home = Path(os.environ.get("SKERRY_ZOO_CACHE", "") or Path.home() / ".cache" / "skerry")
    path = home / FILE
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        kept, begun = _load_or_train(), path.with_suffix(".part")
        with begun.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **kept)
        begun.replace(path)
    with np.load(path, allow_pickle=False) as kept:
        old, new = (ModelVersion(*(kept[f"{part}{which}"] for part in ("edge", "sure", "tail"))) for which in (1, 2))
        return PairedAnswers(kept["truth"], old, new)


def _load_or_train() -> dict[str, Any]:
    data = load_fashion_mnist()
    unseen = [data.heldout, data.calibration]
    x = torch.tensor(np.concatenate([part.x[0] for part in unseen]))
    kept: dict[str, Any] = {"truth": np.concatenate([part.y for part in unseen]).astype(np.int64)}
    for which in (1, 2):
        net = _train_net(which, torch.tensor(np.asarray(data.training.x[0])), torch.tensor(np.asarray(data.training.y)))
        with torch.no_grad():
            head, tail = net(x)
        sure = torch.softmax(head, 1).max(1).values.double().numpy()
        kept |= {f"edge{which}": head.argmax(1).numpy(), f"sure{which}": sure, f"tail{which}": tail.argmax(1).numpy()}
    return kept


def _train_net(seed: int, x: torch.Tensor, y: torch.Tensor) -> _Net:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    net, loss = _Net(), nn.CrossEntropyLoss()
    optimiser = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(EPOCHS):
        for batch in torch.split(torch.randperm(len(x)), BATCH):
            head, tail = net(x[batch])
            optimiser.zero_grad()
            (loss(head, y[batch].long()) + loss(tail, y[batch].long())).backward()
            optimiser.step()
    return net
