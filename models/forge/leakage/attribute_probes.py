"""Attribute inference attack: probes that guess a sensitive column (speaker, patient, user) from the codes.

Rule: every guess is about a sample that the probe did not learn from (cross-validation); the score is balanced accuracy
minus chance, so that neither a common value nor a large number of values looks like success.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from models.forge.leakage.metrics import BootstrapInterval
from models.forge.training.determinism import deterministic_torch

Values = npt.NDArray[Any]

_MOST_SAMPLES, _QUICK_SAMPLES = 4000, 1000
_FOLDS, _QUICK_FOLDS = 5, 3
_LEAST_OF_VALUE = 2 * _FOLDS  # a value with fewer samples than this is left out
_LEAST_STEPS, _STEPS, _PASSES, _BATCH = 80, 300, 20, 128
_HIDDEN = 64
_RESAMPLES = 1000
_TAIL = 0.025  # of chance on either side of an interval, shared among the probes of which the better one is reported


class AttributeScore(NamedTuple):
    """Advantage of the better probe over chance, 0..1 - `chance`, with its interval.

    `attack`: name of that probe; `pairs`: samples used; `values`: how many values could be guessed.
    """

    score: BootstrapInterval
    attack: str
    pairs: int
    values: int


def probe_attribute(
    codes: Sequence[Values], column: npt.NDArray[np.int64], *, quick: bool = False
) -> AttributeScore | None:
    """Guess a sensitive column from codes by logistic regression and by a small network; returns the better score.

    `codes`: per feature `[n, ...]`; `column` `[n]`. None if the column has not two values with samples enough. Balanced
    accuracy: the mean over values of the share of their samples that is guessed (Brodersen et al. 2010). The
    95 % interval allows for the choice of the better of two (Bonferroni).
    """
    rows, classes = _select_usable(column, _QUICK_SAMPLES if quick else _MOST_SAMPLES)
    count = len(np.unique(classes))
    if count < 2:
        return None
    flat = np.concatenate([each[rows].reshape(len(rows), -1) for each in codes], 1).astype(np.float32)
    folds = _assign_folds(classes, _QUICK_FOLDS if quick else _FOLDS)
    found = {
        name: _cross_validate(flat, classes, folds, hidden) for name, hidden in (("logistic", 0), ("network", _HIDDEN))
    }
    scores = {name: _measure_advantage(right, classes, _TAIL / len(found)) for name, right in found.items()}
    best = max(scores, key=lambda name: scores[name].value)
    return AttributeScore(scores[best], best, len(rows), count)


def measure_label_baseline(y: Values, column: npt.NDArray[np.int64]) -> float:
    """Baseline of `probe_attribute`: the same score for an attacker who sees the answer only (of a value: its tenth).

    One half of the samples teaches the other.
    """
    classes = y if np.issubdtype(y.dtype, np.integer) else np.searchsorted(np.quantile(y, np.arange(1, 10) / 10), y)
    rows, values = _select_usable(column, _MOST_SAMPLES)
    count = len(np.unique(values))
    if count < 2:
        return 0.0
    labels = np.unique(classes[rows], return_inverse=True)[1].reshape(-1)
    first = _assign_folds(values, 2) == 0
    seen, tried = (np.zeros((int(labels.max()) + 1, count)) for _ in range(2))
    np.add.at(seen, (labels[first], values[first]), 1)
    np.add.at(tried, (labels[~first], values[~first]), 1)
    guessed = (seen / seen.sum(0).clip(1)).argmax(1)  # per label, the value of which it holds the largest share
    hits = np.zeros(count)
    np.add.at(hits, guessed, tried[np.arange(len(guessed)), guessed])
    return float((hits / tried.sum(0).clip(1)).mean() - 1 / count)


def _select_usable(column: npt.NDArray[np.int64], most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    rows = np.sort(np.random.default_rng(0).permutation(len(column))[:most])
    known, counts = np.unique(column[rows], return_counts=True)
    rows = rows[np.isin(column[rows], known[counts >= _LEAST_OF_VALUE])]
    return rows, np.unique(column[rows], return_inverse=True)[1].reshape(-1)


def _assign_folds(classes: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Fold that holds each sample back; every value is spread over all folds."""
    order = np.argsort(classes + np.random.default_rng(0).random(len(classes)), kind="stable")
    folds = np.empty(len(classes), np.int64)
    folds[order] = np.arange(len(classes)) % count
    return folds


def _cross_validate(
    flat: npt.NDArray[np.float32], classes: npt.NDArray[np.int64], folds: npt.NDArray[np.int64], hidden: int
) -> npt.NDArray[np.bool_]:
    """Per sample, whether the probe of the other folds guessed its value."""
    guesses = np.empty(len(classes), np.int64)
    for fold in range(int(folds.max()) + 1):
        held = folds == fold
        scaled = _standardise(flat, ~held)
        guesses[held] = _compute_logits(_train_probe(scaled[~held], classes[~held], hidden), scaled[held]).argmax(1)
    return np.asarray(guesses == classes)


def fit_binary_scores(x: Values, y: npt.NDArray[np.int64], learns: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Score `[n]` of each row for class 1 of 2, by a small network trained on the rows `learns`."""
    scaled = _standardise(x.astype(np.float32), learns)
    logits = _compute_logits(_train_probe(scaled[learns], y[learns], _HIDDEN), scaled)
    return np.asarray(logits[:, 1] - logits[:, 0], np.float64)


def _standardise(flat: npt.NDArray[np.float32], learns: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    mean, spread = flat[learns].mean(0), flat[learns].std(0)
    return np.asarray(((flat - mean) / np.where(spread > 1e-6, spread, 1)).clip(-20, 20), np.float32)


def _train_probe(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64], hidden: int) -> nn.Module:
    """Train a probe; values are weighted as if all were equally common."""
    count = int(y.max()) + 1
    with deterministic_torch(0):
        net = nn.Sequential(nn.Linear(x.shape[1], hidden or count))
        if hidden:
            net += nn.Sequential(nn.ReLU(), nn.Linear(hidden, count))
        counts = torch.from_numpy(np.bincount(y, minlength=count)).clamp(min=1)
        loss = nn.CrossEntropyLoss((len(y) / (count * counts)).float())
        optimiser = torch.optim.AdamW(net.parameters(), 1e-2, weight_decay=1e-2)
        steps = min(_STEPS, max(_LEAST_STEPS, _PASSES * len(y) // _BATCH))
        pace = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        inputs, aims = torch.from_numpy(x), torch.from_numpy(y)
        for _ in range(steps):
            at = torch.randint(len(aims), (min(_BATCH, len(aims)),))
            optimiser.zero_grad(set_to_none=True)
            loss(net(inputs[at]), aims[at]).backward()
            optimiser.step()
            pace.step()
    return net


def _compute_logits(net: nn.Module, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    with torch.inference_mode():
        return np.asarray(net(torch.from_numpy(x)).numpy())


def _measure_advantage(right: npt.NDArray[np.bool_], classes: npt.NDArray[np.int64], tail: float) -> BootstrapInterval:
    """Balanced accuracy minus chance, with a bootstrap interval that resamples within each value.

    `tail`: chance that the truth lies below the interval, and that it lies above.
    """
    totals = np.bincount(classes)
    hits = np.bincount(classes, right)
    rng = np.random.default_rng(0)
    drawn = (rng.binomial(totals, hits / totals, (_RESAMPLES, len(totals))) / totals).mean(1)
    chance = 1 / len(totals)
    low, high = np.quantile(drawn, (tail, 1 - tail))
    return BootstrapInterval(float((hits / totals).mean() - chance), float(low - chance), float(high - chance))
