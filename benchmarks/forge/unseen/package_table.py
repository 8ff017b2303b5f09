"""A table: the section of a package by numbers of its index entry, such as sizes and counts of dependencies.

Columns of unlike kinds: sizes over eight orders of magnitude, counts, flags. Parts by source package.
"""

import re
from collections import Counter
from functools import cache
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks.forge.unseen.package_index import Package, read_packages
from benchmarks.forge.unseen.plain_training import PlainTraining, load_or_train_plain, split_by_group
from models.forge.data.types import Data

CLASSES, MOST = 16, 26_000
_LISTS = ("Depends", "Pre-Depends", "Recommends", "Suggests", "Breaks", "Replaces", "Provides", "Conflicts", "Tag")
_FLAGS = (("Architecture", "all"), ("Multi-Arch", "same"), ("Multi-Arch", "foreign"), ("Source", ""))
_COLUMNS = 2 + len(_LISTS) + len(_FLAGS) + 5


class TableNet(nn.Module):
    """Rows `[n, columns]` -> logits: normalised columns, then three hidden layers with skips. 0.2 M parameters."""

    mean: Tensor
    spread: Tensor

    def __init__(self, labels: int, width: int = 256) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(_COLUMNS))
        self.register_buffer("spread", torch.ones(_COLUMNS))
        self.first = nn.Linear(_COLUMNS, width)
        self.middle = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width)) for _ in range(3)
        )
        self.answer = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, labels))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.first((x - self.mean) / self.spread)
        for layer in self.middle:
            seen = seen + layer(seen)
        logits: Tensor = self.answer(seen)
        return logits


def build_model() -> nn.Module:
    """The net, trained once and kept."""
    return load_or_train_plain("package-table", _make_net, samples, PlainTraining(20))


def _make_net() -> TableNet:
    x = samples().training.x[0]
    net = TableNet(CLASSES)
    net.mean.copy_(torch.from_numpy(x.mean(0)))
    net.spread.copy_(torch.from_numpy(np.maximum(x.std(0), 1e-6)))
    return net


@cache
def samples() -> Data:
    """Rows `[n, columns]` float32 of packages of the commonest sections, and these; parts by source package."""
    packages = read_packages()
    common = Counter(package.section for package in packages).most_common(CLASSES)
    labels = tuple(sorted(section for section, _ in common))
    chosen = sorted(
        (package for package in packages if package.section in labels), key=lambda one: crc32(one.name.encode())
    )[:MOST]
    x = np.stack([_make_row(package) for package in chosen])
    y = np.array([labels.index(package.section) for package in chosen], np.int64)
    sources = {name: number for number, name in enumerate(sorted({package.source for package in chosen}))}
    return split_by_group(x, y, np.array([sources[package.source] for package in chosen], np.int64), labels)


def _make_row(package: Package) -> npt.NDArray[np.float32]:
    """Sizes and counts as base-2 logarithms, flags as 0 and 1, and lengths of name, version and description."""
    fields = package.fields
    sizes = [np.log2(1 + int(fields.get(name, "0"))) for name in ("Installed-Size", "Size")]
    lists = [np.log2(1 + len([part for part in fields.get(name, "").split(",") if part])) for name in _LISTS]
    flags = [float(fields.get(name, "") == value) for name, value in _FLAGS]
    version = fields.get("Version", "")
    texts = (
        len(package.summary),
        len(package.name),
        len(version),
        package.name.count("-"),
        len(re.findall(r"\d", version)),
    )
    return np.array([*sizes, *lists, *flags, *texts], np.float32)
