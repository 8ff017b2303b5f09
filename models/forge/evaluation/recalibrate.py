"""Recalibration of a finished bundle on a user's own data: runs both halves, chooses a threshold, measures the pair.

Rule: what runs is what ships: the device's runner on the edge graph, the hub's graphs on its codes. The threshold is
chosen on the calibration part, every figure is taken on the held-out part. Samples of no label (-1) occur in use, so
they count here: the edge is wrong if it keeps one, the hub right if its own certainty is below `reject_below`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from models.bundle.bundle import Bundle
from models.bundle.manifest import Manifest, ModelKind
from models.bundle.measurements import CalibrationFigures
from models.bundle.thresholds import ClassThreshold
from models.forge.data.packing import pack_inputs
from models.forge.data.types import Data, DataPart, ForgeError
from models.forge.evaluation.deferral import DeferralFrontier, compute_frontier
from models.forge.evaluation.outcomes import (
    Outcomes,
    add_given_loss,
    add_groups,
    classifier_outcomes,
    fit_rejection,
    predict_or_reject,
    regressor_outcomes,
)
from models.forge.evaluation.risk_control import RiskKind
from models.forge.evaluation.threshold_choice import ThresholdChoice, choose_threshold
from models.forge.spec import ForgeSpec
from models.forge.training.calibration import expected_calibration_error, softmax_probabilities
from models.graph.hub_model import HubGraphs, open_hub_graphs
from models.runtime.onnx_runner import OnnxRunner

_BATCH = 256
ProgressCallback = Callable[[str, float], None]
Values = npt.NDArray[Any]


class ReplayedAnswers(NamedTuple):
    """Answers of both halves and of the whole model to one part.

    Classes: scores `[n, labels]`; a regressor's values: `[n, 1]`.
    """

    confidence: Values
    certainty: Values  # the largest score, or the same as `confidence` for a regressor
    edge: Values
    hub: Values
    whole: Values
    y: Values


class Recalibration(NamedTuple):
    """A chosen threshold with what was measured of it.

    `deferral` and the entry's figures are of the held-out part. `unscoped_asked`: share escalated of the samples of no
    label, or NaN if there are none. `choice`: how the threshold was chosen.
    """

    entry: ClassThreshold
    deferral: DeferralFrontier
    chosen_on: Outcomes
    measured_on: Outcomes
    reject_below: float
    unscoped_asked: float
    choice: ThresholdChoice


def recalibrate_bundle(
    bundle: Bundle, data: Data, wish: ForgeSpec, risk: RiskKind, tell: ProgressCallback
) -> Recalibration:
    """Choose a threshold for a bundle on other data, and measure the pair with it.

    Raises ForgeError if the data is not the model's or the goal cannot be met; BundleError, SampleError as they arise.
    """
    data = _check_model_data(data, bundle.manifest)
    halves = _PairRunner(bundle, tell)
    chosen, measured = halves.replay(data.calibration, 0.0), halves.replay(data.heldout, 0.5)
    reject = fit_rejection(chosen.hub, chosen.y) if data.labels else 0.0
    first, second = (
        add_groups(_build_outcomes(answers, bundle.manifest, reject), part.groups)
        for answers, part in ((chosen, data.calibration), (measured, data.heldout))
    )
    choice = choose_threshold(first, wish, risk)
    threshold = choice.threshold
    figures = _measure_figures(measured, second, choice)
    unscoped = second.confidence[measured.y < 0] if data.labels else np.zeros(0)
    asked = float((unscoped < threshold).mean()) if len(unscoped) else math.nan
    entry = ClassThreshold(threshold, _describe_goal(wish, risk), 1, figures, choice.guarantee)
    return Recalibration(entry, compute_frontier(second), first, second, reject, asked, choice)


def _check_model_data(data: Data, manifest: Manifest) -> Data:
    data = pack_inputs(nn.Identity(), data).data
    if data.labels != manifest.labels:
        said = [f"{len(names)} labels" if names else "values" for names in (data.labels, manifest.labels)]
        hint = "in the same order with the same names" if said[0] == said[1] else f"the model gives {said[1]}"
        raise ForgeError(f"data has {said[0]}, but not this model's: {hint}; return (x, y, labels) with its labels")
    return data


class _PairRunner:
    """The edge's runner and the hub's graphs of one bundle."""

    def __init__(self, bundle: Bundle, tell: ProgressCallback) -> None:
        self._manifest = bundle.manifest
        self._runner = OnnxRunner(bundle)
        self._hub: HubGraphs = open_hub_graphs(bundle)
        self._tell = tell

    def replay(self, part: DataPart, done: float) -> ReplayedAnswers:
        rows = []
        for start, batch in _iter_batches(part.x[0]):
            rows.append(self._run_batch(batch, part.y[start : start + len(batch)]))
            self._tell("running both halves", done + 0.5 * start / len(part))
        return ReplayedAnswers(*(np.concatenate(column) for column in zip(*rows, strict=True)))

    def _run_batch(self, batch: Values, y: Values) -> ReplayedAnswers:
        found = self._runner.infer(batch)
        scores = np.array([one.prediction.scores for one in found], np.float64)
        confidence = np.array([one.prediction.confidence for one in found], np.float64)
        codes = [
            torch.from_numpy(np.stack([one.features[field.name] for one in found]).astype(np.float32))
            for field in self._manifest.features
        ]
        with torch.inference_mode():
            hub = self._hub.tail(*codes).reshape(len(batch), -1).numpy()
            whole = self._hub.whole(torch.from_numpy(batch)).reshape(len(batch), -1).numpy()
        if self._manifest.kind is ModelKind.CLASSIFIER:
            hub = softmax_probabilities(hub, self._manifest.hub_temperature)
            return ReplayedAnswers(confidence, scores.max(1), scores, hub, whole, y)
        return ReplayedAnswers(confidence, confidence, scores, hub, whole, y)


def _iter_batches(x: Values) -> Iterator[tuple[int, Values]]:
    for start in range(0, len(x), _BATCH):
        yield start, x[start : start + _BATCH]


def _build_outcomes(found: ReplayedAnswers, manifest: Manifest, reject: float) -> Outcomes:
    y = found.y
    if manifest.kind is ModelKind.REGRESSOR:
        tolerance = manifest.gate.tolerance
        plain = regressor_outcomes(found.confidence, found.edge[:, 0], found.hub[:, 0], y, tolerance)
        return add_given_loss(plain, (found.whole[:, 0].astype(np.float64) - y) ** 2)
    plain = classifier_outcomes(found.confidence, found.edge.argmax(1), predict_or_reject(found.hub, reject), y)
    given = predict_or_reject(softmax_probabilities(found.whole, 1.0), reject)
    return add_given_loss(plain, given != y)


def _describe_goal(wish: ForgeSpec, risk: RiskKind) -> str:
    if wish.max_risk is not None:
        return f"max-risk {wish.max_risk:g} ({risk}) with confidence {wish.confidence:g}"
    if wish.target_accuracy is not None:
        return f"target-accuracy {wish.target_accuracy:g}"
    return f"max-share {wish.max_share:g}"


def _measure_figures(found: ReplayedAnswers, measured: Outcomes, choice: ThresholdChoice) -> CalibrationFigures:
    asked = measured.confidence < choice.threshold
    least = np.minimum(measured.edge_loss, measured.hub_loss)
    pair = np.where(asked, measured.hub_loss, measured.edge_loss)

    def figure(loss: Values) -> float:
        value = math.sqrt(loss.mean()) if measured.tolerance else 1 - float(loss.mean())
        return round(value, 4)

    return CalibrationFigures(
        metric=measured.metric,
        samples=len(measured),
        edge=figure(measured.edge_loss),
        pair=figure(pair),
        hub=figure(measured.given_loss),
        oracle=figure(least),
        threshold=choice.threshold,
        asked=round(float(asked.mean()), 4),
        ece_before=round(expected_calibration_error(found.certainty, measured.edge_right), 4),
        ece_after=round(expected_calibration_error(measured.confidence, measured.edge_right), 4),
        asked_limit=round(choice.asked_limit, 4),
        groups=choice.groups,
    )
