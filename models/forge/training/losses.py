"""Training losses of tail and early exit: distillation, classification, regression, feature matching.

Rule: pure functions of tensors; values are compared in units of the target's spread, so no target needs its own rates.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, huber_loss, kl_div, log_softmax, softmax


class LossConfig(NamedTuple):
    """Task and weights of the losses.

    `labels` 0: a regressor, whose targets have this `mean` and `spread`. `softness`: temperature of the distillation;
    `hard`: weight of the true targets beside the teacher's answers.
    """

    labels: int
    mean: float = 0.0
    spread: float = 1.0
    softness: float = 3.0
    hard: float = 0.3


def distillation_loss(
    outputs: Tensor, teacher: Tensor, y: Tensor, aim: LossConfig, weights: Tensor | None = None
) -> Tensor:
    """Loss of the tail: distillation (Hinton et al. 2015) and the true targets.

    Samples of no label (-1) follow the teacher's answer only. `weights` `[n]`: how much each sample counts; None:
    all alike.
    """
    counts = torch.ones(len(y)) if weights is None else weights
    if not aim.labels:
        value, hint = _first_output(outputs), _first_output(teacher)
        each = _scaled_huber(value, hint, aim) + aim.hard * _scaled_huber(value, y, aim)
        return (each * counts).sum() / counts.sum()
    goal = softmax(teacher / aim.softness, 1)
    soft = kl_div(log_softmax(outputs.float() / aim.softness, 1), goal, reduction="none").sum(1) * aim.softness**2
    known = (counts * (y >= 0)).sum().clamp(min=1e-6)
    hard = cross_entropy(outputs.float(), y, ignore_index=-1, reduction="none")
    return (soft * counts).sum() / counts.sum() + aim.hard * (hard * counts).sum() / known


def exit_loss(outputs: Tensor, teacher: Tensor, y: Tensor, aim: LossConfig) -> Tensor:
    """Loss of the early exit, as `distillation_loss`.

    A regressor's exit `[n, 2]` predicts its own error too: Laplace likelihood of (value, log scale).
    """
    if aim.labels:
        return distillation_loss(outputs, teacher, y, aim)
    value, log_scale = outputs.float().unbind(1)
    error = (value - y).abs()
    likelihood = (error * torch.exp(-log_scale) + log_scale - log_of_scale(aim.spread)).mean()
    return likelihood + 0.5 * _scaled_huber(value, _first_output(teacher), aim).mean()


def log_of_scale(value: float) -> float:
    return float(torch.tensor(value).log())


def feature_matching_loss(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> Tensor:
    """Mean squared distance of features, as a share of the wanted ones' variance."""
    shares = [
        ((f.float() - w.float()) ** 2).mean() / w.float().var().clamp(min=1e-6)
        for f, w in zip(found, wanted, strict=True)
    ]
    return torch.stack(shares).mean()


def _scaled_huber(value: Tensor, target: Tensor, aim: LossConfig) -> Tensor:
    """Huber loss of each sample, in units of the target's spread."""
    return huber_loss((value - aim.mean) / aim.spread, (target.float() - aim.mean) / aim.spread, reduction="none")


def _first_output(outputs: Tensor) -> Tensor:
    return outputs.float().reshape(len(outputs), -1)[:, 0]
