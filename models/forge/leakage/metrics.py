"""Reconstruction metrics (SSIM, PSNR, feature distance, explained variance, F1) with bootstrap intervals.

Rule: a figure is a ratio of two sums over samples, and its interval comes from drawing samples again (Efron 1979,
percentile method): 95 of 100 such intervals hold the truth. `upper95` is the upper end of the two-sided interval.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

Values = npt.NDArray[Any]
Scores = npt.NDArray[np.float64]

_RESAMPLES = 1000
_SIGMA, _WINDOW = 1.5, 11  # Wang et al. 2004, section III-C
_K1, _K2 = 0.01, 0.03
_BATCH = 256
_FILTERS = 32
_SCALES = 3


class BootstrapInterval(NamedTuple):
    """A measured `value` and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class RatioEstimate(NamedTuple):
    """A figure as `over` / `under`, both `[n]` per sample: a plain mean has ones below."""

    over: Scores
    under: Scores

    @classmethod
    def from_values(cls, values: Values) -> "RatioEstimate":
        """The plain mean of values `[n]` as a ratio."""
        wide = np.asarray(values, np.float64)
        return cls(wide, np.ones(len(wide)))

    def value(self) -> float:
        """The ratio of the two sums; 0 if the lower one is 0."""
        return _safe_quotient(float(self.over.sum()), float(self.under.sum()))


def bootstrap_interval(figure: RatioEstimate, seed: int = 0) -> BootstrapInterval:
    """Value and 95 % interval of a ratio of sums, samples drawn with replacement 1,000 times.

    The same seed gives the same interval.
    """
    rng, count = np.random.default_rng(seed), len(figure.over)
    drawn = np.empty(_RESAMPLES)
    for at in range(_RESAMPLES):
        weights = np.bincount(rng.integers(0, count, count), minlength=count)
        drawn[at] = _safe_quotient(float(weights @ figure.over), float(weights @ figure.under))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return BootstrapInterval(figure.value(), float(low), float(high))


def _safe_quotient(over: float, under: float) -> float:
    return over / under if under > 0 else 0.0


def compute_ssim(originals: Values, rebuilt: Values, top: float = 1.0) -> Scores:
    """Structural similarity per image, 1 = equal (Wang, Bovik, Sheikh, Simoncelli 2004), `[n]`.

    Images are `[n, channels, height, width]` in 0..`top`. Gaussian window of 11 (less where the image is smaller)
    and sigma 1.5, only where the whole window lies inside; the mean over window positions and channels.
    """
    found = [
        ssim_torch(torch.from_numpy(a).float(), torch.from_numpy(b).float(), top)
        for a, b in _list_batches(originals, rebuilt)
    ]
    return torch.cat(found).double().numpy()


def ssim_torch(first: torch.Tensor, second: torch.Tensor, top: float = 1.0) -> torch.Tensor:
    """As `compute_ssim`, differentiable, so that an attacker may train on it."""
    channels, height, width = first.shape[1:]
    size = min(_WINDOW, height - 1 + height % 2, width - 1 + width % 2)
    at = torch.arange(size, dtype=first.dtype) - size // 2
    line = torch.exp(-(at**2) / (2 * _SIGMA**2))
    line = line / line.sum()

    def blur(x: torch.Tensor) -> torch.Tensor:
        tall = functional.conv2d(x, line.view(1, 1, -1, 1).expand(channels, 1, size, 1), groups=channels)
        return functional.conv2d(tall, line.view(1, 1, 1, -1).expand(channels, 1, 1, size), groups=channels)

    mean_a, mean_b = blur(first), blur(second)
    var_a, var_b = blur(first * first) - mean_a**2, blur(second * second) - mean_b**2
    both = blur(first * second) - mean_a * mean_b
    c1, c2 = (_K1 * top) ** 2, (_K2 * top) ** 2
    light = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return (light * (2 * both + c2) / (var_a + var_b + c2)).mean((1, 2, 3))


def psnr_db(originals: Values, rebuilt: Values, top: float = 1.0) -> Scores:
    """Peak signal to noise ratio per image in dB, at most 100 (equal images), `[n]`."""
    wide = (originals.astype(np.float64) - rebuilt).reshape(len(originals), -1)
    error = (wide**2).mean(1)
    return np.asarray(10 * np.log10(top**2 / np.maximum(error, 1e-10 * top**2)))


def feature_distance(originals: Values, rebuilt: Values, seed: int = 0) -> Scores:
    """Distance of images in the features of a fixed *random* filter bank, per image, 0 = equal, `[n]`.

    Like LPIPS (Zhang et al. 2018) in form: at three scales, feature vectors of unit length are subtracted, squared and
    averaged; but its 32 filters of 5 x 5 are orthogonal random ones, not those of a trained network. It compares edges
    and texture, and is no claim about what a person would see.
    """
    channels = originals.shape[1]
    generator = torch.Generator().manual_seed(seed)
    bank = torch.empty(_FILTERS, channels * 25)
    torch.nn.init.orthogonal_(bank, generator=generator)
    bank = (bank - bank.mean(1, keepdim=True)).view(_FILTERS, channels, 5, 5)
    found = [
        _filter_distance(torch.from_numpy(a).float(), torch.from_numpy(b).float(), bank)
        for a, b in _list_batches(originals, rebuilt)
    ]
    return torch.cat(found).double().numpy()


def _filter_distance(first: torch.Tensor, second: torch.Tensor, bank: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(len(first))
    for scale in range(_SCALES):
        if scale and min(first.shape[2:]) < 8:
            break
        if scale:
            first, second = functional.avg_pool2d(first, 2), functional.avg_pool2d(second, 2)
        a, b = (functional.relu(functional.conv2d(x, bank, padding=2)) for x in (first, second))
        a, b = (x / (x.square().sum(1, keepdim=True).sqrt() + 1e-3) for x in (a, b))
        total = total + (a - b).square().sum(1).mean((1, 2))
    return total


def explained_variance(originals: Values, rebuilt: Values, mean: Values) -> RatioEstimate:
    """Explained variance of flat values `[n, d]`: 1 - error / error of the mean predictor, all columns pooled."""
    error = ((originals - rebuilt) ** 2).sum(1).astype(np.float64)
    blind = ((originals - mean) ** 2).sum(1).astype(np.float64)
    return RatioEstimate(blind - error, blind)


def micro_f1(present: npt.NDArray[np.bool_], guessed: npt.NDArray[np.bool_]) -> RatioEstimate:
    """Micro F1 of sets, both `[n, ids]`: 2 hits / (ids present + ids guessed)."""
    hits = (present & guessed).sum(1)
    return RatioEstimate(2.0 * hits, (present.sum(1) + guessed.sum(1)).astype(np.float64))


def rescale_above_chance(score: float, blind: float) -> float:
    """A score as the share of the way from a blind guesser's to the perfect 1."""
    return (score - blind) / (1 - blind) if blind < 1 and math.isfinite(score) else 0.0


def _list_batches(first: Values, second: Values) -> list[tuple[Values, Values]]:
    spans = range(0, len(first), _BATCH)
    return [
        (np.ascontiguousarray(first[at : at + _BATCH]), np.ascontiguousarray(second[at : at + _BATCH])) for at in spans
    ]
