"""Decorrelating transforms of samples, fitted on training samples: Karhunen-Loeve over whole samples or axis by axis.

Rule: a transform is linear, orthonormal and fitted on training samples alone; its coefficients come in the order of
falling variance. `analyse` and `synthesise` are torch modules of operations that a device and a hub allow.

Methods: the Karhunen-Loeve transform (principal components) packs variance into the fewest coefficients (Jolliffe
2002). For large samples it is fitted along each axis alone (Tucker decomposition, De Lathauwer et al. 2000), as the
cosine transform of picture codecs is: far fewer weights, and nearly as good where axes are independent.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Samples = npt.NDArray[np.float32]
MAX_JOINT_VALUES = 2048  # of a sample: CIFAR-10 (3,072) arrives nearer by axis, for a twentieth of the arithmetic
_CHUNK = 2048
_MOST_SAMPLES = 20_000  # more make a covariance no better, and take longer
_CHANNELLED = 2  # axes of a sample up to which its last may be that of channels, as its first may always be
_MOST_CHANNELS = 256
_UNLIKE = 10.0  # deviations of channels further apart than this are of different units
_SMALL_SHARE = 0.2  # 4 % of the variance


class LinearTransform(NamedTuple):
    """A fitted transform of samples `[n, *shape]`: `mean` is taken off first, and the rest divided by `scale`.

    `bases`: of a joint transform one `[values, values]`, else one `[size, size]` per axis, vectors in columns. `order`:
    flat places of the coefficients by falling variance, `[values]`; `deviations`: their standard deviations.
    """

    shape: tuple[int, ...]
    mean: Samples
    bases: tuple[Samples, ...]
    order: npt.NDArray[np.int64]
    deviations: npt.NDArray[np.float64]
    scale: Samples

    @property
    def joint(self) -> bool:
        """Whether one basis spans whole samples."""
        return len(self.bases) == 1

    @property
    def values(self) -> int:
        """Numbers of one sample."""
        return math.prod(self.shape)

    def apply(self, x: Samples) -> Samples:
        """Coefficients `[n, values]` of samples, in their order."""
        module = AnalysisTransform(self, self.values)
        with torch.inference_mode():
            found = [module(torch.from_numpy(np.ascontiguousarray(part))) for part in _chunks(x)]
        return torch.cat(found).numpy()


def fit_transform(x: Samples) -> LinearTransform:
    """Fit a transform to samples float32 `[n, *shape]`: joint up to `MAX_JOINT_VALUES` numbers, else by axis."""
    return fit_joint_transform(x) if math.prod(x.shape[1:]) <= MAX_JOINT_VALUES else fit_axis_transform(x)


def fit_joint_transform(x: Samples) -> LinearTransform:
    """Fit one orthonormal basis over whole samples: the eigenvectors of the covariance of 20,000 to 40,000."""
    x = x[:: max(1, len(x) // _MOST_SAMPLES)]
    shape, values = x.shape[1:], math.prod(x.shape[1:])
    mean, scale = _fit_units(x)
    total = np.zeros((values, values))
    for part in _chunks(x):
        flat = ((part - mean) / scale).reshape(len(part), values)
        total += flat.T @ flat
    variances, basis = _principal_axes(total / len(x))
    return LinearTransform(shape, mean, (basis,), np.arange(values), np.sqrt(variances), scale)


def fit_axis_transform(x: Samples) -> LinearTransform:
    """Fit one orthonormal basis per axis of a sample, from the covariance along it."""
    shape = x.shape[1:]
    mean, scale = _fit_units(x)
    bases = tuple(_fit_axis(x, mean, scale, axis) for axis in range(len(shape)))
    found = LinearTransform(shape, mean, bases, np.arange(math.prod(shape)), np.ones(math.prod(shape)), scale)
    squares = np.zeros(found.values)
    for part in _chunks(x):
        squares += np.square(found.apply(part), dtype=np.float64).sum(0)
    variances = squares / len(x)
    order = np.argsort(-variances, kind="stable")
    return found._replace(order=order, deviations=np.sqrt(variances[order]))


def _fit_units(x: Samples) -> tuple[Samples, Samples]:
    """Mean of each place, and the units in which errors count, of as many axes as a sample.

    Where the channels of a signal or table (its first or last axis) deviate by very unlike amounts, they are measured
    in units of their own: a pressure in pascals must not drown a ratio. Else one unit serves for all.
    """
    mean = x.mean(0, dtype=np.float64).astype(np.float32)
    variances = np.zeros(mean.shape)
    for part in _chunks(x):
        variances += np.square(part - mean, dtype=np.float64).sum(0)
    variances /= len(x)
    scale = np.ones((1,) * mean.ndim, np.float32)
    for axis in (0, mean.ndim - 1) if mean.ndim <= _CHANNELLED else (0,):
        own = np.sqrt(variances.mean(tuple(other for other in range(mean.ndim) if other != axis), keepdims=True))
        told = own[own > 0]
        if own.size <= _MOST_CHANNELS and told.size and told.max() > _UNLIKE * told.min():
            return mean, np.where(own > 0, own, 1).astype(np.float32)
    return mean, scale


def _fit_axis(x: Samples, mean: Samples, scale: Samples, axis: int) -> Samples:
    total = np.zeros((x.shape[axis + 1],) * 2)
    for part in _chunks(x):
        rows = np.moveaxis((part - mean) / scale, axis + 1, -1).reshape(-1, x.shape[axis + 1])
        total += rows.T @ rows
    return _principal_axes(total / len(x))[1]


def _principal_axes(covariance: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], Samples]:
    """Variances, falling, and the unit vectors along which they lie, in columns, the greatest entry of each above 0."""
    variances, vectors = np.linalg.eigh(covariance)
    vectors = vectors[:, ::-1]
    signs = np.sign(vectors[np.abs(vectors).argmax(0), np.arange(len(vectors))])
    return variances[::-1].clip(0), (vectors * signs).astype(np.float32)


def _chunks(x: Samples) -> list[Samples]:
    return [x[start : start + _CHUNK] for start in range(0, len(x), _CHUNK)]


class AnalysisTransform(nn.Module):
    """Samples `[n, *shape]` -> their first `kept` coefficients `[n, kept]`.

    `step`: what the coefficients will be rounded to. Where the error is a small part of it, the vectors of a joint
    transform are multiples of 1/127 of their greatest entry: eight bits then store them exactly.
    """

    def __init__(self, transform: LinearTransform, kept: int, step: float = 0.0) -> None:
        super().__init__()
        self.shape, self.joint = transform.shape, transform.joint
        bases = [_round_vectors(transform, kept, step)] if transform.joint else transform.bases
        self.bases = nn.ParameterList([_frozen(basis) for basis in bases])
        self.mean, self.rates = _frozen(transform.mean), _frozen(np.asarray(1 / transform.scale, np.float32))
        self.register_buffer("order", torch.from_numpy(transform.order[:kept].copy()))

    def forward(self, sample: Tensor) -> Tensor:
        centred = (sample.float() - self.mean) * self.rates
        if self.joint:
            found: Tensor = centred.flatten(1) @ self.bases[0]
            return found
        for axis, basis in enumerate(self.bases):
            centred = (centred.transpose(axis + 1, -1) @ basis).transpose(axis + 1, -1)
        return centred.flatten(1).index_select(1, self.get_buffer("order"))


class SynthesisTransform(nn.Module):
    """The first `kept` coefficients `[n, kept]` -> samples `[n, *shape]`, all other coefficients being zero."""

    def __init__(self, transform: LinearTransform, kept: int) -> None:
        super().__init__()
        self.shape, self.joint = transform.shape, transform.joint
        bases = [transform.bases[0][:, :kept]] if transform.joint else transform.bases
        self.bases = nn.ParameterList([_frozen(np.ascontiguousarray(basis.T)) for basis in bases])
        self.mean, self.scale = _frozen(transform.mean), _frozen(transform.scale)
        places = np.full(transform.values, kept)  # of each flat place, its coefficient; `kept` holds a zero
        places[transform.order[:kept]] = np.arange(kept)
        self.register_buffer("places", torch.from_numpy(places))

    def forward(self, coefficients: Tensor) -> Tensor:
        if self.joint:
            whole: Tensor = (coefficients @ self.bases[0]).reshape(-1, *self.shape) * self.scale + self.mean
            return whole
        padded = torch.cat([coefficients, torch.zeros_like(coefficients[:, :1])], 1)
        found = padded.index_select(1, self.get_buffer("places")).reshape(-1, *self.shape)
        for axis, basis in enumerate(self.bases):
            found = (found.transpose(axis + 1, -1) @ basis).transpose(axis + 1, -1)
        return found * self.scale + self.mean


def _round_vectors(transform: LinearTransform, kept: int, step: float) -> Samples:
    """The first vectors of a joint transform, in columns; rounded where that adds little to the rounding to `step`."""
    basis = transform.bases[0][:, :kept]
    scale = np.abs(basis).max(0, keepdims=True) / np.float32(127)
    rounding = float(scale.mean()) * float(np.sqrt(np.square(transform.deviations).sum()))
    if rounding > _SMALL_SHARE * step:  # both over the square root of 12 are standard deviations
        return basis
    found: Samples = (np.rint(basis / scale) * scale).astype(np.float32)
    return found


def _frozen(values: Samples) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.array(values, np.float32)), requires_grad=False)
