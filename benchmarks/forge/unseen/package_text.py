"""Short texts: the section of a package by its one-line description; words as numbers, a small transformer as hub.

It stands for intents, of which no public set can be had: short texts, many classes, a vocabulary of the training part.
One description of each source package, so that twins are not in two parts.
"""

import re
from collections import Counter
from functools import cache
from typing import cast
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.forge.unseen.package_index import Package, read_packages
from benchmarks.forge.unseen.plain_training import PlainTraining, load_or_train_plain, split_by_group
from models.forge.data.types import Data

WORDS, LENGTH, MOST = 6_000, 16, 14_000
LEAST = 150  # packages of a section that becomes a class
_WORD = re.compile(r"[^\W_]+")
_WIDTH = 96


class WordTransformer(nn.Module):
    """Word numbers `[n, LENGTH]`, 0 = nothing -> logits `[n, labels]`: embedding, two encoder layers, mean, linear."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, _WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, _WIDTH))
        layers = [
            nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, 0.2, batch_first=True, norm_first=True) for _ in range(2)
        ]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(_WIDTH)
        self.answer = nn.Sequential(nn.Dropout(0.3), nn.Linear(_WIDTH, labels))

    def forward(self, ids: Tensor) -> Tensor:
        known = (ids > 0).unsqueeze(2).float()
        seen = (self.words(ids) + self.places) * known
        for layer in self.layers:
            seen = layer(seen) * known
        mean = self.norm(seen).mul(known).sum(1) / known.sum(1).clamp_min(1)
        return cast("Tensor", self.answer(mean))


def build_model() -> nn.Module:
    """The transformer, trained once and kept."""
    labels = len(samples().labels)
    return load_or_train_plain("package-text", lambda: WordTransformer(labels), samples, PlainTraining(14, 1.5e-3))


@cache
def samples() -> Data:
    """Descriptions `[n, LENGTH]` int64 and their sections, one of each source package; parts by source package."""
    chosen = _choose_packages()
    labels = tuple(sorted({package.section for package in chosen}))
    words = [_WORD.findall(package.summary.lower())[:LENGTH] for package in chosen]
    group = np.arange(len(chosen))
    y = np.array([labels.index(package.section) for package in chosen], np.int64)
    marked = split_by_group(group, y, group, labels)
    counts = Counter(word for i in marked.training.x[0] for word in words[int(i)])
    numbers = {word: number for number, (word, _) in enumerate(counts.most_common(WORDS - 2), start=2)}
    x = np.zeros((len(chosen), LENGTH), np.int64)
    for row, text in zip(x, words, strict=True):
        row[: len(text)] = [numbers.get(word, 1) for word in text]
    return split_by_group(x, y, group, labels)


def _choose_packages() -> list[Package]:
    """At most `MOST` packages of different source packages, by the digest of their names; sections of some size."""
    first = {package.source: package for package in reversed(read_packages())}
    counts = Counter(package.section for package in first.values())
    kept = [package for package in first.values() if counts[package.section] >= LEAST]
    return sorted(kept, key=lambda package: crc32(package.name.encode()))[:MOST]
