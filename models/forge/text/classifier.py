"""Training of the device's classifier of texts, a softmax regression over hashed n-grams, and its figures.

Rule: temperature and threshold are chosen on the calibration part, every figure is taken on the held-out part.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from models.bundle.manifest import InputSpec
from models.bundle.measurements import CalibrationFigures, QualityMetric
from models.forge.evaluation.deferral import threshold_for_count
from models.forge.text.hashing import BUCKETS, build_text_graph, hash_ngrams
from models.forge.text.labelled import LabelledTexts, TextParts
from models.forge.training.calibration import expected_calibration_error, fit_temperature, softmax_probabilities
from models.forge.training.determinism import deterministic_torch

_EPOCHS = 30
_BATCH = 64
_RATE = 0.05
_DECAY = 1e-5
_DECIMALS = 4

Scores = npt.NDArray[np.float64]


class NgramClassifier(NamedTuple):
    """Classifier of texts by their n-grams, as trained: its graph, the softmax temperature and what was measured.

    `scores`: of the first held-out texts, as the device gives them; `shown`: these texts.
    """

    graph: bytes
    temperature: float
    figures: CalibrationFigures
    shown: npt.NDArray[np.uint8]
    scores: Scores


class _LinearModel(nn.Module):
    """The sum of the n-grams' rows, each with its weight."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(BUCKETS, labels, mode="sum")
        nn.init.zeros_(self.rows.weight)
        self.bias = nn.Parameter(torch.zeros(labels))

    def forward(self, numbers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.rows(numbers, per_sample_weights=weights)
        return found + self.bias


def train_text_classifier(parts: TextParts, spec: InputSpec, *, max_share: float, seed: int) -> NgramClassifier:
    """Train on the training part. `max_share`: of texts, as the calibration part has them, that is asked at most."""
    model = _train(parts.training, seed)
    calibration, held_out = (_logits(model, part) for part in (parts.calibration, parts.held_out))
    temperature = fit_temperature(calibration, parts.calibration.y)
    sure = softmax_probabilities(calibration, temperature).max(1)
    threshold = float(threshold_for_count(sure, int(max_share * len(sure))))
    figures = _measure(parts.held_out, held_out, temperature, (threshold, max_share))
    table, bias = (each.detach().numpy().astype(np.float32) for each in (model.rows.weight, model.bias))
    shown = parts.held_out.x[:32]
    scores = softmax_probabilities(held_out[:32], temperature)
    return NgramClassifier(build_text_graph(spec, table, bias), temperature, figures, shown, scores)


def _train(part: LabelledTexts, seed: int) -> _LinearModel:
    numbers, weights = map(torch.from_numpy, hash_ngrams(part.x))
    truth = torch.from_numpy(part.y)
    with deterministic_torch(seed):
        torch.manual_seed(seed)
        model = _LinearModel(len(part.labels))
        optimiser = torch.optim.Adam(model.parameters(), _RATE, weight_decay=_DECAY)
        for _ in range(_EPOCHS):
            for chosen in torch.split(torch.randperm(len(truth)), _BATCH):
                loss = cross_entropy(model(numbers[chosen], weights[chosen]), truth[chosen], label_smoothing=0.05)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
    return model.eval()


def _logits(model: _LinearModel, part: LabelledTexts) -> Scores:
    numbers, weights = map(torch.from_numpy, hash_ngrams(part.x))
    with torch.inference_mode():
        found: Scores = model(numbers, weights).numpy().astype(np.float64)
    return found


def _measure(
    part: LabelledTexts, logits: Scores, temperature: float, chosen: tuple[float, float]
) -> CalibrationFigures:
    """Measure on held-out texts. Nothing is claimed of the pair: what the language model adds is not known here."""
    threshold, max_share = chosen
    right = logits.argmax(1) == part.y
    before, after = (softmax_probabilities(logits, each).max(1) for each in (1.0, temperature))
    edge = round(float(right.mean()), _DECIMALS)
    return CalibrationFigures(
        metric=QualityMetric.ACCURACY, samples=len(part.y), edge=edge, pair=edge, hub=edge, oracle=edge,
        threshold=threshold, asked=round(float((after < threshold).mean()), _DECIMALS),
        ece_before=round(expected_calibration_error(before, right), _DECIMALS),
        ece_after=round(expected_calibration_error(after, right), _DECIMALS), asked_limit=max_share,
    )  # fmt: skip
