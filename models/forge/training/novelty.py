"""Novelty score of a sample: how unusual its logits and trunk are among samples that the model knows.

Rule: fitted on the training part, and read as a share of the calibration samples. Distance to class means: Lee et al.
2018 (Mahalanobis).
"""

import numpy as np
import torch
from torch import Tensor, nn

from models.forge.data.types import Data, DataPart
from models.forge.training.gate import GateSamples, PiecewiseLinear, collect_gate_samples
from models.forge.training.modules import TrainedModules

_DIRECTIONS, _RIDGE = 32, 1e-6
_KNOTS = 24


class NoveltyScore(nn.Module):
    """Novelty network: (logits, pooled trunk) -> share `[n]` of calibration samples that look more usual."""

    whiten: Tensor  # [inputs, kept]
    centres: Tensor  # [classes, kept]

    def __init__(self, whiten: Tensor, centres: Tensor) -> None:
        super().__init__()
        self.register_buffer("whiten", whiten)
        self.register_buffer("centres", centres)
        self.table: nn.Module = nn.Identity()

    def forward(self, logits: Tensor, summary: Tensor) -> Tensor:
        found: Tensor = self.table(self.distance(logits, summary))
        return found

    def distance(self, logits: Tensor, summary: Tensor) -> Tensor:
        """Mahalanobis distance to the nearest class mean, in standard deviations of the shared covariance."""
        place = torch.cat([logits, summary], 1) @ self.whiten
        square = (place * place).sum(1, keepdim=True) - 2 * place @ self.centres.T + (self.centres**2).sum(1)
        return square.amin(1).clamp(min=0).sqrt()


def set_novelty(pieces: TrainedModules, seen: GateSamples, data: Data) -> None:
    """Set `novelty` from the training part and the calibration samples `seen`."""
    pieces.novelty = fit_novelty(collect_gate_samples(pieces, _thin_part(data.training)), seen, data.labels != ())


def _thin_part(part: DataPart, most: int = 10_000) -> DataPart:
    step = max(1, len(part) // most)
    return DataPart((part.x[0][::step],), part.y[::step])


def fit_novelty(training: GateSamples, calibration: GateSamples, labels: bool) -> NoveltyScore:
    """Fit class means and shared covariance on training samples, and the table on calibration samples."""
    places = torch.cat([training.logits, training.summary], 1).double()
    groups = training.y.numpy() if labels else np.zeros(len(places), np.int64)
    kinds = [kind for kind in np.unique(groups) if kind >= 0]
    means = torch.stack([places[groups == kind].mean(0) for kind in kinds])
    inside = torch.cat([places[groups == kind] - mean for kind, mean in zip(kinds, means, strict=True)])
    whiten = _fit_whitening(places, inside)
    novelty = NoveltyScore(whiten.float(), (means @ whiten).float())
    usual = calibration.y >= 0 if labels else torch.ones(len(calibration.y), dtype=torch.bool)
    with torch.no_grad():
        distances = novelty.distance(calibration.logits[usual], calibration.summary[usual]).double().numpy()
    shares = np.linspace(0, 1, _KNOTS)
    knots, first = np.unique(np.quantile(distances, shares), return_index=True)
    if len(knots) > 1:
        novelty.table = PiecewiseLinear(knots, shares[first])
    return novelty.eval()


def _fit_whitening(places: Tensor, inside: Tensor) -> Tensor:
    """The directions in which samples differ most, scaled so that within a class all of them spread alike."""
    _, axes = torch.linalg.eigh(torch.cov(places.T) + _RIDGE * torch.eye(places.shape[1]))
    axes = axes[:, -_DIRECTIONS:]
    flat = inside @ axes
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    whiten: Tensor = axes @ vectors / values.clamp(min=max(_RIDGE, float(values.max()) * 1e-4)).sqrt()
    return whiten
