"""Novelty score of a sample: how unlike its logits and trunk are to what the model was taught.

Rule: fitted on the training part; which score it is, and how it reads as a share of samples, comes from the calibration
part. Distance to class means: Lee et al. 2018 (Mahalanobis). Energy of the logits: Liu et al. 2020.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from models.forge.data.types import Data, DataPart
from models.forge.training.gate import GateSamples, PiecewiseLinear, collect_gate_samples
from models.forge.training.modules import TrainedModules

_DIRECTIONS, _RIDGE = 64, 1e-6
_KNOTS = 24
_TAIL_KNOTS = (0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995)  # where thresholds lie
_Mix = tuple[float, float, float]
_DISTANCE: _Mix = (1.0, 0.0, 0.0)  # weights of distance, energy and cold energy
_MIXES: tuple[_Mix, ...] = (_DISTANCE, (0.5, 0.5, 0.0), (0.5, 0.0, 0.5))
_ENERGIES: tuple[_Mix, ...] = (
    (0.0, 1.0, 0.0),
    (0.0, 0.0, 1.0),
)  # blind to a trunk that drifts: only if samples out of scope ask for it
_SURER = 0.01  # area by which another score must beat the distance to be taken
_ALARMS = 0.05  # share of false alarms up to which scores are compared
LEAST_OUTSIDE = 30  # samples out of scope from which they choose the score; else classes that are held back do
_GROUPS = 5  # of classes, held back in turn


class NoveltyScore(nn.Module):
    """Novelty network: (logits, pooled trunk) -> share `[n]` of calibration samples that look more usual.

    The score is a weighted sum: of the `distance`, and of the energy at temperatures 1 and 0.5.
    """

    whiten: Tensor  # [inputs, kept]
    centres: Tensor  # [classes, kept]
    weights: Tensor  # [3]: of distance, energy and cold energy, each over its deviation
    shift: Tensor

    def __init__(self, whiten: Tensor, centres: Tensor) -> None:
        super().__init__()
        self.register_buffer("whiten", whiten)
        self.register_buffer("centres", centres)
        self.register_buffer("weights", torch.tensor([1.0, 0.0, 0.0]))
        self.register_buffer("shift", torch.tensor(0.0))
        self.table: nn.Module = nn.Identity()

    def forward(self, logits: Tensor, summary: Tensor) -> Tensor:
        found: Tensor = self.table(self.score(logits, summary))
        return found

    def score(self, logits: Tensor, summary: Tensor) -> Tensor:
        """Novelty before the table, `[n]`: any number, the higher the less usual."""
        return self.parts(logits, summary) @ self.weights - self.shift

    def parts(self, logits: Tensor, summary: Tensor) -> Tensor:
        """Distance, energy and cold energy, `[n, 3]`."""
        energies = compute_energy(logits), compute_energy(2 * logits) / 2
        return torch.stack([self.distance(logits, summary), *energies], 1)

    def distance(self, logits: Tensor, summary: Tensor) -> Tensor:
        """Mahalanobis distance to the nearest class mean, in standard deviations of the shared covariance."""
        place = torch.cat([logits, summary], 1) @ self.whiten
        square = (place * place).sum(1, keepdim=True) - 2 * place @ self.centres.T + (self.centres**2).sum(1)
        return square.amin(1).clamp(min=0).sqrt()


def compute_energy(logits: Tensor) -> Tensor:
    """Energy `[n]` of logits `[n, labels]`: -logsumexp, the higher the less usual."""
    return torch.log_softmax(logits, 1)[:, 0] - logits[:, 0]


def set_novelty(pieces: TrainedModules, seen: GateSamples, data: Data) -> None:
    """Set `novelty` from the training part and the calibration samples `seen`."""
    pieces.novelty = fit_novelty(collect_gate_samples(pieces, _thin_part(data.training)), seen, data.labels != ())


def _thin_part(part: DataPart, most: int = 10_000) -> DataPart:
    step = max(1, len(part) // most)
    return DataPart((part.x[0][::step],), part.y[::step])


def fit_novelty(training: GateSamples, calibration: GateSamples, labels: bool) -> NoveltyScore:
    """Fit class means and shared covariance on training samples; choose the score and its table on calibration samples.

    `labels`: whether it is a classifier; a regressor's score is the distance to the mean of all samples.
    """
    novelty = _fit_distance(training, labels)
    usual = calibration.y >= 0 if labels else torch.ones(len(calibration.y), dtype=torch.bool)
    mix = _choose_mix(training, calibration, novelty) if labels else _DISTANCE
    with torch.no_grad():
        _set_mix(novelty, calibration.logits[usual], calibration.summary[usual], mix)
        scores = novelty.score(calibration.logits[usual], calibration.summary[usual]).double().numpy()
    shares = np.unique(np.concatenate([np.linspace(0, 1, _KNOTS), _TAIL_KNOTS]))
    knots, first = np.unique(np.quantile(scores, shares), return_index=True)
    if len(knots) > 1:
        novelty.table = PiecewiseLinear(knots, shares[first])
    return novelty.eval()


def _fit_distance(training: GateSamples, labels: bool) -> NoveltyScore:
    places = torch.cat([training.logits, training.summary], 1).double()
    groups = training.y.numpy() if labels else np.zeros(len(places), np.int64)
    kinds = [kind for kind in np.unique(groups) if kind >= 0]
    means = torch.stack([places[groups == kind].mean(0) for kind in kinds])
    inside = torch.cat([places[groups == kind] - mean for kind, mean in zip(kinds, means, strict=True)])
    whiten = _fit_whitening(places, inside)
    return NoveltyScore(whiten.float(), (means @ whiten).float())


def _set_mix(novelty: NoveltyScore, logits: Tensor, summary: Tensor, mix: _Mix) -> None:
    """Weigh distance and energies by `mix` over their deviations on usual samples."""
    scores = novelty.parts(logits, summary)
    weights = torch.tensor(mix) / scores.std(0).clamp(min=1e-6)
    novelty.weights.copy_(weights)
    novelty.shift.copy_(scores.mean(0) @ weights)


class _Trial(NamedTuple):
    """Samples that a score is tried on: `outside` tells which of `samples` it should find."""

    novelty: NoveltyScore
    samples: GateSamples
    outside: npt.NDArray[np.bool_]


def _choose_mix(training: GateSamples, calibration: GateSamples, fitted: NoveltyScore) -> _Mix:
    """The weights that tell apart best what is out of scope; the distance's unless others are clearly better.

    Told apart by the area under the ROC curve up to a share of false alarms (McClish 1989).
    """
    outside = calibration.y.numpy() < 0
    if min(outside.sum(), (~outside).sum()) >= LEAST_OUTSIDE:
        trials, mixes = [_Trial(fitted, calibration, outside)], _MIXES + _ENERGIES
    else:
        trials = [
            _Trial(
                _fit_distance(_drop_classes(training, group, rows=True), labels=True),
                _drop_classes(calibration, group, rows=False),
                np.isin(calibration.y.numpy(), group),
            )
            for group in group_classes(calibration.y.numpy(), calibration.logits.shape[1])
        ]
        mixes = _MIXES
    if not trials:
        return _DISTANCE
    areas = [float(np.mean([_area(trial, mix) for trial in trials])) for mix in mixes]
    best = int(np.argmax(areas))
    return mixes[best] if areas[best] > areas[0] + _SURER else _DISTANCE


def _area(trial: _Trial, mix: _Mix) -> float:
    novelty, samples, outside = trial
    usual = torch.from_numpy(~outside)
    with torch.no_grad():
        _set_mix(novelty, samples.logits[usual], samples.summary[usual], mix)
        return float(roc_auc_score(outside, novelty.score(samples.logits, samples.summary).numpy(), max_fpr=_ALARMS))


def _drop_classes(seen: GateSamples, group: npt.NDArray[np.int64], *, rows: bool) -> GateSamples:
    """The samples as a model without these classes would answer them: without their logits.

    `rows`: also without the classes' own samples.
    """
    kept = torch.from_numpy(~np.isin(seen.y.numpy(), group) if rows else np.ones(len(seen.y), bool))
    columns = torch.from_numpy(~np.isin(np.arange(seen.logits.shape[1]), group))
    return GateSamples(seen.logits[kept][:, columns], seen.summary[kept], seen.hub[kept], seen.y[kept])


def group_classes(y: npt.NDArray[np.int64], labels: int) -> list[npt.NDArray[np.int64]]:
    """Up to five groups of classes to hold back in turn, each with samples in `y`; none if there are under 3 labels."""
    present = np.array([label for label in range(labels) if (y == label).any()], np.int64)
    if labels < 3 or len(present) < 2:
        return []
    count = min(_GROUPS, len(present))
    groups = [present[start::count] for start in range(count)]
    return [group for group in groups if labels - len(group) >= 2]


def _fit_whitening(places: Tensor, inside: Tensor) -> Tensor:
    """The directions in which samples differ most, scaled so that within a class all of them spread alike."""
    _, axes = torch.linalg.eigh(torch.cov(places.T) + _RIDGE * torch.eye(places.shape[1]))
    axes = axes[:, -_DIRECTIONS:]
    flat = inside @ axes
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    whiten: Tensor = axes @ vectors / values.clamp(min=max(_RIDGE, float(values.max()) * 1e-4)).sqrt()
    return whiten
