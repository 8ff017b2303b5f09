"""Predictions of edge and hub models in a simulated fleet, drawn from a recording, a calibration or stated shares.

Rule: the truth is drawn with every sample, so that an answer is right or wrong and not merely given. All draws come
from the generator passed in, for many samples at once.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulations.scenario.types import Model

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
_TENTHS = np.linspace(0.0, 1.0, 11)


class Predictions(NamedTuple):
    """Predictions for a number of samples, as lists of one length.

    `truth`: the right label; `confidence` of the edge model (0..1); `edge`, `hub`: the labels that the two models
    give.
    """

    truth: list[int]
    confidence: list[float]
    edge: list[int]
    hub: list[int]


class PredictionArrays(NamedTuple):
    """The same as arrays."""

    truth: npt.NDArray[np.int64]
    confidence: Floats
    edge: npt.NDArray[np.int64]
    hub: npt.NDArray[np.int64]

    def select(self, which: npt.NDArray[np.int64]) -> Predictions:
        """Those at these places, as lists."""
        truth, confidence, edge, hub = (each[which].tolist() for each in self)
        return Predictions(truth, confidence, edge, hub)


class _JudgedSamples(NamedTuple):
    """Confidence (0..1) and correctness of both models for a number of samples."""

    confidence: Floats
    edge_right: Flags
    hub_right: Flags


class PredictionSampler:
    """Sampler of predictions. `threshold`: the policy's, which says what `unsure_share` means without a recording."""

    def __init__(self, model: Model, threshold: float, rng: np.random.Generator) -> None:
        self._model = model
        self._threshold = threshold
        self._rng = rng
        self._deciles = np.array([0.0, *model.deciles, 1.0])
        recorded = model.replay
        self._recorded = None if recorded is None else _JudgedSamples(
            np.array(recorded.confidence), np.array(recorded.edge_right), np.array(recorded.hub_right)
        )  # fmt: skip

    def draw_arrays(self, count: int) -> PredictionArrays:
        """Draw the predictions for the next `count` samples as arrays."""
        judged = self._draw_judged(count)
        truth = self._rng.integers(0, self._model.labels, count)
        edge, hub = (self._pick_labels(truth, right) for right in (judged.edge_right, judged.hub_right))
        return PredictionArrays(truth, judged.confidence, edge, hub)

    def _draw_judged(self, count: int) -> _JudgedSamples:
        if self._recorded is not None:
            rows = self._rng.integers(0, len(self._recorded.confidence), count)
            confidence, edge, hub = self._recorded
            return _JudgedSamples(confidence[rows], edge[rows], hub[rows])
        return self._draw_calibrated(count) if self._model.deciles else self._draw_stated(count)

    def _draw_calibrated(self, count: int) -> _JudgedSamples:
        """Confidence by its deciles, linear between them; right as often as it says (Guo et al. 2017)."""
        luck = self._rng.random((3, count))
        confidence = np.interp(luck[0], _TENTHS, self._deciles)
        return _JudgedSamples(confidence, luck[1] < confidence, luck[2] < self._model.accuracy_hub)

    def _draw_stated(self, count: int) -> _JudgedSamples:
        model, luck = self._model, self._rng.random((4, count))
        unsure = luck[0] < model.unsure_share
        confidence = luck[1] * np.where(unsure, self._threshold, 1 - self._threshold)
        confidence += np.where(unsure, 0.0, self._threshold)
        right = luck[2] < np.where(unsure, model.accuracy_unsure, model.accuracy_edge)
        return _JudgedSamples(confidence, right, luck[3] < model.accuracy_hub)

    def _pick_labels(self, truth: npt.NDArray[np.int64], right: Flags) -> npt.NDArray[np.int64]:
        """The truth where the answer is right, any other label elsewhere."""
        other = (truth + self._rng.integers(1, self._model.labels, len(truth))) % self._model.labels
        return np.where(right, truth, other)
