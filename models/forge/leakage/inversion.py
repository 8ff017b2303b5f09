"""Black-box model inversion attack: learns from pairs of codes and samples to rebuild a sample from its codes.

Rule: adaptive (it learns on the defended codes, exactly as they leave), scored on samples it never saw, the same result
for the same input on the same machine: work is bounded by a count of multiplications, never by a clock.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.forge.leakage import metrics
from models.forge.leakage.decoders import ImageDecoder, VectorDecoder, count_network_macs
from models.forge.leakage.effort import AttackCost, AttackEffort, AttackWork, TrainingSteps, reduce_codes
from models.forge.leakage.metrics import BootstrapInterval, RatioEstimate
from models.forge.training.determinism import deterministic_torch

Values = npt.NDArray[Any]

MIN_SAMPLES = 60  # least samples for a measurement
_RATE, _BATCH = 2e-3, 64
_RISE = 0.15  # share of the steps in which the rate rises
_MOST_IDS = 2000
_ENOUGH = 0.95  # success above which the second attack is skipped
_PLEASE = 0.1
_RIDGE_INPUTS = 2048  # of the linear attack, the smaller of pairs and inputs
_JUDGED_COLUMNS = 256
_BLOCK_COLUMNS = 1024
_RIDGES = tuple(10.0**power for power in range(-2, 6))


class ReconstructionMetric(StrEnum):
    """Success of a reconstruction; each is 1 for a perfect one.

    `SSIM` for images; `EXPLAINED` (1 - error / error of the mean predictor) for tables and sequences; `IDS` (micro F1
    of which token ids were there, as the share of the way from blind guessing to perfect).
    """

    SSIM = "ssim"
    EXPLAINED = "explained_variance"
    IDS = "token_f1"


class AttackSamples(NamedTuple):
    """The samples in the form that is attacked, split into the attacker's pairs and tests.

    `values`: images `[n, c, h, w]` in 0..1, else flat columns `[n, d]`; `train`, `test`: row numbers.
    """

    metric: ReconstructionMetric
    values: npt.NDArray[np.float32]
    train: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]


class InversionResult(NamedTuple):
    """The best attack's success.

    `rebuilt`: its guesses for `AttackSamples.test`, in the form of `AttackSamples.values`.
    """

    score: BootstrapInterval
    attack: str
    pairs: int
    rebuilt: Values


def prepare_samples(x: Values, effort: AttackEffort, *, ids: bool = False) -> AttackSamples:
    """Split samples into pairs and tests and normalise them.

    Images into 0..1, columns to mean 0 and variance 1, token ids into sets. `ids`: whole numbers are token ids.
    """
    order = np.random.default_rng(0).permutation(len(x))
    tests = min(effort.tests, len(x) // 3)
    train, test = order[: len(x) - tests][: effort.pairs], order[len(x) - tests :]
    metric = ReconstructionMetric.IDS if ids else find_metric(x)
    if metric is ReconstructionMetric.IDS:
        return AttackSamples(ReconstructionMetric.IDS, _encode_sets(x.reshape(len(x), -1), train), train, test)
    if metric is ReconstructionMetric.SSIM:
        low, high = float(x[train].min()), float(x[train].max())
        return AttackSamples(
            ReconstructionMetric.SSIM, ((x - low) / max(high - low, 1e-9)).clip(0, 1).astype(np.float32), train, test
        )
    flat = x.reshape(len(x), -1).astype(np.float32)
    flat = np.where(np.isfinite(flat), flat, 0)
    spread = flat[train].std(0)
    varied = spread > 1e-6 * max(float(spread.max()), 1e-9)
    columns = (flat[:, varied] - flat[train][:, varied].mean(0)) / spread[varied]
    return AttackSamples(ReconstructionMetric.EXPLAINED, columns.clip(-20, 20), train, test)


def find_metric(x: Values) -> ReconstructionMetric:
    """By which metric reconstructions of samples `[n, ...]` are scored; whole numbers count as token ids."""
    if np.issubdtype(x.dtype, np.integer):
        return ReconstructionMetric.IDS
    image = x.ndim == 4 and x.shape[1] <= 4 and min(x.shape[2:]) >= 7
    return ReconstructionMetric.SSIM if image else ReconstructionMetric.EXPLAINED


def _encode_sets(ids: Values, train: Values) -> npt.NDArray[np.float32]:
    """Which of the known ids are in each sample, `[n, ids]`.

    Padding and other ids that are nearly always there do not count: knowing them is knowing nothing.
    """
    known, counts = np.unique(ids[train], return_counts=True)
    common = np.array([(ids[train] == each).any(1).mean() < 0.95 for each in known])
    known, counts = known[common], counts[common]
    known = np.sort(known[np.argsort(-counts, kind="stable")[:_MOST_IDS]])
    present = np.zeros((len(ids), len(known)), np.float32)
    if len(known):
        at = np.searchsorted(known, ids).clip(0, len(known) - 1)
        rows, columns = np.nonzero(known[at] == ids)
        present[rows, at[rows, columns]] = 1
    return present


def invert_codes(
    truth: AttackSamples,
    codes: Sequence[Values],
    effort: AttackEffort,
    pairs: int | None = None,
    work: AttackWork | None = None,
) -> InversionResult:
    """The better of a linear and a learned attack on `codes` (per feature `[n, ...]`), trained on `pairs` of them.

    `work`: where a killed attack has left its state, and where its cost is added up.
    """
    pairs = min(pairs or effort.pairs, len(truth.train))
    some = truth._replace(train=truth.train[:pairs])
    seen = [_standardise(each, some.train) for each in codes]
    linear = _attack_linear(some, seen)
    found = InversionResult(score_reconstruction(some, linear), "linear", pairs, linear)
    if found.score.value > _ENOUGH:
        return found
    learned = _attack_network(some, seen, effort, work or AttackWork())
    return max(
        found,
        InversionResult(score_reconstruction(some, learned), "network", pairs, learned),
        key=lambda each: each.score.value,
    )


def score_reconstruction(truth: AttackSamples, rebuilt: Values) -> BootstrapInterval:
    """Success of guesses for `truth.test`, with its bootstrap interval."""
    originals = truth.values[truth.test]
    if truth.metric is ReconstructionMetric.SSIM:
        return metrics.bootstrap_interval(RatioEstimate.from_values(metrics.compute_ssim(originals, rebuilt)))
    if truth.metric is ReconstructionMetric.EXPLAINED:
        return metrics.bootstrap_interval(
            metrics.explained_variance(originals, rebuilt, truth.values[truth.train].mean(0))
        )
    blind = metrics.micro_f1(originals > 0.5, _select_likely(truth, _predict_mean(truth))).value()
    found = metrics.bootstrap_interval(metrics.micro_f1(originals > 0.5, _select_likely(truth, rebuilt)))
    return BootstrapInterval(*(metrics.rescale_above_chance(each, blind) for each in found))


def score_label_baseline(truth: AttackSamples, y: Values) -> BootstrapInterval:
    """Baseline of an attacker who knows only the label: the mean sample of each label (of each tenth of a value)."""
    classes = y if np.issubdtype(y.dtype, np.integer) else np.searchsorted(np.quantile(y, np.arange(1, 10) / 10), y)
    guess = _predict_mean(truth)
    for each in np.unique(classes[truth.train]):
        guess[classes[truth.test] == each] = truth.values[truth.train[classes[truth.train] == each]].mean(0)
    return score_reconstruction(truth, guess)


def _predict_mean(truth: AttackSamples) -> Values:
    """The mean predictor: the mean training sample for every test."""
    mean = truth.values[truth.train].mean(0)
    return np.repeat(mean[None], len(truth.test), 0)


def _standardise(codes: Values, train: Values) -> npt.NDArray[np.float32]:
    """Each column less its mean and over its spread, both of the rows `train`.

    One copy, changed in place by blocks of columns: features of an early cut may be 100 MB.
    """
    wide = np.array(codes, np.float32, order="C")
    flat = wide.reshape(len(wide), -1)
    for start in range(0, flat.shape[1], _BLOCK_COLUMNS):
        block = flat[:, start : start + _BLOCK_COLUMNS]
        some = block[train]
        spread = some.std(0)
        block -= some.mean(0)
        block /= np.where(spread > 1e-6, spread, 1)
        np.clip(block, -20, 20, out=block)
    return wide


def _select_likely(truth: AttackSamples, likely: Values) -> npt.NDArray[np.bool_]:
    """As many of the likeliest ids, over all samples together, as the attacker's own samples hold on average."""
    share = float(truth.values[truth.train].mean()) if truth.values.size else 0.0
    keep = max(1, round(share * likely.size))
    bar = np.partition(likely, likely.size - keep, axis=None)[likely.size - keep] if likely.size else 0.0
    return np.asarray(likely >= bar)


def _attack_linear(truth: AttackSamples, seen: Sequence[Values]) -> Values:
    """Ridge regression, its strength chosen on a tenth of the pairs (Hoerl, Kennard 1970); the strongest with few."""
    flat = np.concatenate([each.reshape(len(each), -1) for each in seen], 1)
    # beyond so many inputs the samples are the smaller side: time and memory grow with them
    train = truth.train if flat.shape[1] <= _RIDGE_INPUTS else truth.train[: _RIDGE_INPUTS // 2]
    kept = max(1, len(train) // 10)
    shape = truth.values.shape[1:]
    aims = truth.values.reshape(len(truth.values), -1)
    mean = aims[train].mean(0)
    some = np.arange(0, aims.shape[1], max(1, aims.shape[1] // _JUDGED_COLUMNS))  # enough to choose a strength by
    wanted = aims[:, some] - mean[some]
    trial = _RidgeRegression(flat[train[kept:]], wanted[train[kept:]])
    errors = [float(((trial(flat[train[:kept]], each) - wanted[train[:kept]]) ** 2).mean()) for each in _RIDGES]
    final = _RidgeRegression(flat[train], aims[train] - mean)
    guess = final(flat[truth.test], _RIDGES[int(np.argmin(errors))]) + mean
    return _clip_valid(truth, guess.reshape(-1, *shape))


class _RidgeRegression:
    """Ridge regression with one factorisation for every strength.

    The Gram matrix is of inputs x inputs, or of samples x samples where that is smaller.
    """

    def __init__(self, x: Values, y: Values) -> None:
        self._dual = len(x) < x.shape[1]
        # long rows in single precision: half the time, and the weakest strength is far above its rounding
        self._x: Values = x.astype(np.float32 if self._dual else np.float64)
        self._y: Values = y.astype(np.float64)
        gram = self._x @ self._x.T if self._dual else self._x.T @ self._x
        self._values, self._vectors = np.linalg.eigh(gram.astype(np.float64))

    def __call__(self, x: Values, strength: float) -> Values:
        shrunk = self._vectors / (self._values.clip(0) + strength)
        if self._dual:
            return np.asarray((x @ self._x.T) @ (shrunk @ (self._vectors.T @ self._y)), np.float32)
        return np.asarray(x @ (shrunk @ (self._vectors.T @ (self._x.T @ self._y))), np.float32)


def _attack_network(
    truth: AttackSamples, seen: list[npt.NDArray[np.float32]], effort: AttackEffort, work: AttackWork
) -> Values:
    """Guesses of a decoder that is trained on the pairs. `seen` is emptied: what an attack reads is held once."""
    key = work.key_for(str(truth.metric), truth.values, truth.train, truth.test, *seen, list(effort))
    known = work.find_guesses(key)
    if known is not None:
        return known
    with deterministic_torch(0):
        inputs = []
        while seen:
            each = seen.pop(0)
            each = reduce_codes(each, truth.train, effort.inputs) if each.ndim == 2 else each
            inputs.append(_arrange(torch.from_numpy(each)))
            del each
        net = _build_decoder(truth, [tuple(each.shape[1:]) for each in inputs], effort.width)
        macs = 3 * _BATCH * max(1, count_network_macs(net, inputs))  # of one step, forward and backward
        # few pairs need several passes, but hundreds of passes overfit
        most = min(effort.steps, 60 * max(1, len(truth.train) // _BATCH) + 200)
        steps = int(min(max(effort.macs / macs, effort.least_steps), most))
        spent_s = _train_decoder(net, truth, inputs, (steps, key, work))
        net.eval()
        tests = torch.from_numpy(truth.test)
        with torch.inference_mode():
            parts = [net(*(x[tests[at : at + 256]] for x in inputs)) for at in range(0, len(tests), 256)]
    guesses = _clip_valid(truth, torch.cat(parts).numpy())
    work.store_guesses(key, guesses, AttackCost(1, float(macs * steps), spent_s))
    return guesses


def _arrange(x: Tensor) -> Tensor:
    """The memory layout in which convolutions are quickest: a quarter less time on one thread."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _build_decoder(truth: AttackSamples, shapes: list[tuple[int, ...]], width: int) -> nn.Module:
    if truth.metric is ReconstructionMetric.SSIM:
        return ImageDecoder(shapes, torch.from_numpy(truth.values[truth.train].mean(0)), width)
    inputs = sum(int(np.prod(shape)) for shape in shapes)
    return VectorDecoder(inputs, truth.values.shape[1], 8 * width)


def _train_decoder(
    net: nn.Module, truth: AttackSamples, inputs: Sequence[Tensor], course: tuple[int, str, AttackWork]
) -> float:
    """Train for so many steps, or those that a killed training has left; returns processor seconds.

    `course`: number of steps, the attack's key, and where its state is kept.
    """
    steps, key, work = course
    aims, train = _arrange(torch.from_numpy(truth.values)), torch.from_numpy(truth.train)
    if aims.dim() == 4:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.AdamW(net.parameters(), _RATE, weight_decay=1e-3)
    net.train()

    def run(step: int) -> None:
        chance = torch.Generator().manual_seed(step)  # a step is the same after a restart
        at = train[torch.randint(len(train), (min(_BATCH, len(train)),), generator=chance)]
        for group in optimiser.param_groups:
            group["lr"] = _one_cycle_rate(step / steps)
        optimiser.zero_grad(set_to_none=True)
        _attack_loss(truth.metric, net(*(x[at] for x in inputs)), aims[at]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return work.train(key, net, optimiser, TrainingSteps(steps, run))


def _one_cycle_rate(share: float) -> float:
    """One-cycle learning rate (Smith and Topin 2018) after this share of the steps: up, and down along a cosine."""
    if share < _RISE:
        return _RATE * (0.04 + 0.96 * share / _RISE)
    return _RATE * max(0.5 * (1 + math.cos(math.pi * (share - _RISE) / (1 - _RISE))), 1e-3)


def _attack_loss(metric: ReconstructionMetric, guess: Tensor, aim: Tensor) -> Tensor:
    if metric is ReconstructionMetric.IDS:
        return functional.binary_cross_entropy_with_logits(guess, aim)
    error = functional.mse_loss(guess, aim)
    if metric is ReconstructionMetric.SSIM:  # optimising the score itself is a stronger attack than squared error alone
        return error + _PLEASE * (1 - metrics.ssim_torch(aim, guess).mean())
    return error


def _clip_valid(truth: AttackSamples, guess: Values) -> Values:
    return guess.clip(0, 1) if truth.metric is ReconstructionMetric.SSIM else guess
