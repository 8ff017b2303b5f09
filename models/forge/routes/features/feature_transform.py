"""Linear transform of a cut's features that packs what the rest of the model reads into few coefficients.

Rule: fitted on training samples, without a gradient step: one matrix per mode of the canonical features (channels,
rows, columns; one matrix where they are plain numbers). Each mode is first weighted by the square root of the Fisher
information of the given model's answer (what an error there costs), then turned to its principal axes, so that an equal
error in every coefficient is about the cheapest one for the answer.

Method: Karhunen-Loeve transform per mode (Tucker 1966, De Lathauwer et al. 2000); the weighting is the Gauss-Newton
form of the distillation loss (Martens 2020) in a Kronecker factorisation (Martens & Grosse 2015).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

WEIGHTED = 0.05  # damping: share of the mean information that every direction has at least, for the weights are local
UNWEIGHTED = math.inf  # damping at which all directions count alike: principal components
_MOST_NUMBERS = 2048  # numbers of one vector up to which all principal axes are computed
_CHUNK = 64
_SUMMED = 256  # samples of one product in double precision


class TransformBasis(NamedTuple):
    """Fitted transform.

    `mean`: of the canonical features; `analysis`, `synthesis`: per mode, `[axes, size]` and `[size, axes]`, axes by
    falling variance; `deviations`: of every coefficient from 0, `[axes, ...]`.
    """

    mean: Tensor
    analysis: tuple[Tensor, ...]
    synthesis: tuple[Tensor, ...]
    deviations: Tensor


def apply_modes(x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """`[n, *sizes]` -> `[n, *rows]`: each mode multiplied by its matrix `[rows, size]`; one mode or three."""
    if len(matrices) == 1:
        return x @ matrices[0].transpose(0, 1)
    channels, rows, columns = matrices
    mixed = (channels @ x.flatten(2)).reshape(x.shape[0], channels.shape[0], *x.shape[2:])
    if rows.shape[1] > 1:
        mixed = rows @ mixed
    return mixed @ columns.transpose(0, 1)


def fit_basis(features: Tensor, gradients: Tensor, damping: float = WEIGHTED) -> TransformBasis:
    """Fit the transform to training samples.

    `features` `[n, *shape]`: in canonical form; `gradients` `[m, *shape]`: of some of them, see `sample_gradients`.
    """
    mean = features.mean(0, keepdim=True)
    weighted, weights, inverses = features - mean, [], []
    for mode in range(1, features.dim()):
        root, inverse = _weigh_mode(gradients, mode, damping)
        weights.append(root)
        inverses.append(inverse)
    weighted = apply_modes(weighted, weights)
    axes = [_principal_axes(weighted, mode) for mode in range(1, features.dim())]
    analysis = tuple(axis.T @ weight for axis, weight in zip(axes, weights, strict=True))
    synthesis = tuple(inverse @ axis for axis, inverse in zip(axes, inverses, strict=True))
    deviations = apply_modes(weighted, [axis.T for axis in axes]).square().mean(0).sqrt()
    return TransformBasis(mean, analysis, synthesis, deviations)


def sample_gradients(
    answer: Callable[[Tensor], Tensor], x: Tensor, *, regressor: bool, softness: float, seed: int
) -> Tensor:
    """Gradient of one drawn answer by everything it is computed from, of the shape of `x` `[n, ...]`.

    Their outer products are on average the Fisher information. `answer`: outputs `[n, outputs]`; a classifier's answer
    is drawn from its own probabilities at this `softness`.
    """
    chance = torch.Generator().manual_seed(seed)
    found = []
    for start in range(0, len(x), _CHUNK):
        part = x[start : start + _CHUNK].detach().requires_grad_(True)
        out = answer(part).float()
        if regressor:
            chosen = out.reshape(len(out), -1)[:, 0]
        else:
            logs = torch.log_softmax(out / softness, 1)
            chosen = logs.gather(1, torch.multinomial(logs.detach().exp(), 1, generator=chance))
        (slope,) = torch.autograd.grad(chosen.sum(), part)
        found.append(torch.nan_to_num(slope))
    return torch.cat(found)


def _weigh_mode(gradients: Tensor, mode: int, damping: float) -> tuple[Tensor, Tensor]:
    """Square root of a mode's information, scaled to a mean of 1, and its inverse."""
    size = gradients.shape[mode]
    if math.isinf(damping):
        return torch.eye(size), torch.eye(size)
    if gradients.dim() == 2 and size > _MOST_NUMBERS:  # too many for a matrix: each number for itself
        strength = gradients.square().mean(0)
        root = (strength / strength.mean().clamp(min=1e-30) + damping).sqrt()
        return torch.diag(root), torch.diag(1 / root)
    information = _sum_products(gradients, mode)
    information = information * (size / information.trace().clamp(min=1e-30)) + damping * torch.eye(size)
    values, vectors = torch.linalg.eigh(information)
    root = values.clamp(min=1e-9).sqrt()
    return ((vectors * root) @ vectors.T).float(), ((vectors / root) @ vectors.T).float()


def _principal_axes(centred: Tensor, mode: int) -> Tensor:
    """Principal axes of a mode, `[size, axes]`, by falling variance."""
    if centred.dim() == 2 and centred.shape[1] > _MOST_NUMBERS:
        count = min(_MOST_NUMBERS, len(centred))
        axes: Tensor = torch.linalg.svd(centred[:count].double(), full_matrices=False).Vh.T.float()
        return axes
    _, vectors = torch.linalg.eigh(_sum_products(centred, mode))
    found: Tensor = vectors.flip(1).float()
    return found


def _sum_products(x: Tensor, mode: int) -> Tensor:
    """Products of every two places of a mode, summed over samples and all other modes: `[size, size]`, float64.

    A few samples at a time: in double precision all of them take four times the memory of the features.
    """
    total = torch.zeros(x.shape[mode], x.shape[mode], dtype=torch.float64)
    for part in torch.split(x, _SUMMED):
        flat = part.transpose(1, mode).flatten(2) if part.dim() > 2 else part.unsqueeze(2)
        rows = flat.transpose(0, 1).flatten(1).double()
        total += rows @ rows.T
    return total


def count_transform_macs(shape: Sequence[int], axes: Sequence[int]) -> int:
    """Multiply-accumulates of one sample: `shape` of the canonical features, `axes` kept of each mode."""
    left, total = list(shape), 0
    for mode, kept in enumerate(axes):
        total += kept * math.prod(left) if left[mode] > 1 else 0
        left[mode] = kept
    return total
