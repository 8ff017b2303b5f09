"""Evaluation of a candidate pair: temperatures, threshold, accuracies, gate statistics and deferral for a manifest.

Rule: temperatures, tolerance and threshold are chosen on the calibration part; every figure is taken on the held-out
part. Samples out of scope (-1) have no right answer: they are used to measure novelty detection and nothing else.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from models.bundle.measurements import CalibrationFigures, GateFigures, QualityMetric, RiskGuarantee
from models.forge.data.types import OUT_OF_SCOPE, DataPart, select_rows
from models.forge.evaluation.deferral import (
    DeferralFrontier,
    compute_frontier,
    oracle_curve,
    pair_curve,
)
from models.forge.evaluation.domain import measure_edge_domain, measure_hub_domain
from models.forge.evaluation.outcomes import (
    Outcomes,
    add_given_loss,
    add_groups,
    classifier_outcomes,
    regressor_outcomes,
)
from models.forge.evaluation.shipped import EdgeAnswers, HubAnswers
from models.forge.evaluation.threshold_choice import ThresholdChoice, choose_threshold
from models.forge.export.manifest import round_figure
from models.forge.spec import ForgeSpec
from models.forge.training import calibration as calibrate

_DECILES = tuple(number / 10 for number in range(1, 10))
Values = npt.NDArray[Any]


class PartAnswers(NamedTuple):
    """One part of the data with the answers of both halves."""

    part: DataPart
    edge: EdgeAnswers
    hub: HubAnswers


class ScopeDetection(NamedTuple):
    """Detection of out-of-scope samples of the held-out part.

    Their number, and ROC AUC of novelty and of low confidence.
    """

    samples: int
    novelty_auc: float
    confidence_auc: float


class PairEvaluation(NamedTuple):
    """Everything measured of one pair.

    `asked_figure`, `lost`: the pair if every sample is escalated, and what that loses against the given model (a share,
    or a share of its RMSE), on held-out samples. `lost_calibration`: the same on the calibration part, for limits:
    held-out samples choose nothing. `bins`: mean confidence, share right and samples per bin, for the reliability
    diagram.
    """

    temperature: float
    hub_temperature: float
    gate: GateFigures
    calibration: CalibrationFigures
    guarantee: RiskGuarantee | None
    choice: ThresholdChoice
    chosen_on: Outcomes
    measured_on: Outcomes
    deferral: DeferralFrontier
    asked_figure: float
    lost: float
    lost_calibration: float
    scope: ScopeDetection | None
    bins: tuple[tuple[float, float, int], ...]  # confidence, share right, samples: for the reliability plot


def evaluate_pair(
    chosen_on: PartAnswers, measured_on: PartAnswers, wish: ForgeSpec, corrupted: float, *, regressor: bool
) -> PairEvaluation:
    """Fit temperatures and threshold on `chosen_on`, then take every figure on `measured_on`.

    `corrupted`: share of the samples that were damaged on purpose, 0..1. Raises ForgeError if the specification's goal
    for
    the threshold cannot be met.
    """
    return _PairEvaluator(wish, corrupted, regressor=regressor).evaluate(chosen_on, measured_on)


class _PairEvaluator:
    def __init__(self, wish: ForgeSpec, corrupted: float, *, regressor: bool) -> None:
        self._wish, self._corrupted, self._regressor = wish, corrupted, regressor
        self._temperature = self._hub_temperature = 1.0
        self._tolerance = 0.0

    def evaluate(self, chosen_on: PartAnswers, measured_on: PartAnswers) -> PairEvaluation:
        before = measured_on.edge
        self._fit_temperatures(select_in_scope(chosen_on))
        first, second = (self._build_outcomes(select_in_scope(a)) for a in (chosen_on, measured_on))
        choice = choose_threshold(first, self._wish)
        asked, whole = self._hub_figures(select_in_scope(measured_on))
        calibration = self._calibration_figures(second, choice, whole, select_in_scope(measured_on))
        return PairEvaluation(
            temperature=self._temperature,
            hub_temperature=self._hub_temperature,
            gate=self._gate_figures(chosen_on, measured_on, first),
            calibration=calibration,
            guarantee=choice.guarantee,
            choice=choice,
            chosen_on=first,
            measured_on=second,
            deferral=compute_frontier(second),
            asked_figure=asked,
            lost=self._loss_if_asked(asked, whole),
            lost_calibration=self._loss_if_asked(*self._hub_figures(select_in_scope(chosen_on))),
            scope=self._detect_scope(measured_on) if before.confidence is not None or not self._regressor else None,
            bins=reliability_bins(second),
        )

    def _fit_temperatures(self, answered: PartAnswers) -> None:
        y = answered.part.y
        if self._regressor:
            self._tolerance = calibrate.fit_tolerance(answered.hub.asked[:, 0] - y, y)
            return
        self._temperature = calibrate.fit_temperature(answered.edge.logits, y)
        self._hub_temperature = calibrate.fit_temperature(answered.hub.asked, y)

    def _build_outcomes(self, answered: PartAnswers) -> Outcomes:
        y, edge, hub = answered.part.y, answered.edge, answered.hub
        confidence = self._edge_confidence(edge)
        if self._regressor:
            found = regressor_outcomes(confidence, edge.logits[:, 0], hub.asked[:, 0], y, self._tolerance)
            found = add_given_loss(found, (np.asarray(hub.whole[:, 0], np.float64) - y) ** 2)
            return add_groups(found, answered.part.groups)
        found = classifier_outcomes(confidence, edge.logits.argmax(1), hub.asked.argmax(1), y)
        return add_groups(add_given_loss(found, hub.whole.argmax(1) != y), answered.part.groups)

    def _edge_confidence(self, edge: EdgeAnswers) -> Values:
        """Confidence `[n]` in 0..1 as the device's runner computes it."""
        if edge.confidence is not None:
            return np.clip(edge.confidence.astype(np.float64).reshape(-1), 0.0, 1.0)
        if self._regressor:
            return np.asarray(1.0 - np.exp(-self._tolerance / np.exp(edge.logits[:, 1].astype(np.float64))))
        return np.asarray(calibrate.softmax_probabilities(edge.logits, self._temperature).max(1))

    def _hub_figures(self, answered: PartAnswers) -> tuple[float, float]:
        """Accuracy or RMSE of the pair if every sample is escalated, and of the given model."""
        y = answered.part.y
        if self._regressor:
            return compute_rmse(answered.hub.asked[:, 0], y), compute_rmse(answered.hub.whole[:, 0], y)
        return tuple(float((logits.argmax(1) == y).mean()) for logits in answered.hub)  # type: ignore[return-value]

    def _loss_if_asked(self, asked: float, whole: float) -> float:
        """What the pair loses against the given model if every sample is escalated, from both figures."""
        return (asked - whole) / max(whole, 1e-9) if self._regressor else whole - asked

    def _calibration_figures(
        self, found: Outcomes, choice: ThresholdChoice, whole: float, answered: PartAnswers
    ) -> CalibrationFigures:
        threshold = choice.threshold
        asked = int((found.confidence < threshold).sum())
        pair = _pair_figure(found, threshold)
        line = pair_curve(found)
        before, after = self._calibration_errors(answered, found)
        return CalibrationFigures(
            metric=QualityMetric.RMSE if self._regressor else QualityMetric.ACCURACY,
            samples=len(found),
            edge=round_figure(line[0]),
            pair=round_figure(pair),
            hub=round_figure(whole),
            oracle=round_figure(oracle_curve(found)[asked]),
            threshold=threshold,
            asked=round_figure(asked / len(found)),
            ece_before=round_figure(before),
            ece_after=round_figure(after),
            corrupted=self._corrupted,
            asked_limit=round_figure(choice.asked_limit),
            groups=choice.groups,
        )

    def _calibration_errors(self, answered: PartAnswers, found: Outcomes) -> tuple[float, float]:
        """Expected calibration error of the plain softmax, and of the confidence that ships."""
        after = calibrate.expected_calibration_error(found.confidence, found.edge_right)
        if self._regressor:
            return after, after
        plain = calibrate.softmax_probabilities(answered.edge.logits, 1.0)
        return calibrate.expected_calibration_error(plain.max(1), found.edge_right), after

    def _gate_figures(self, chosen_on: PartAnswers, measured_on: PartAnswers, found: Outcomes) -> GateFigures:
        edge, aim = chosen_on.edge, self._wish.false_alarm
        parts = (chosen_on, measured_on)
        labels = [np.zeros(len(each.part.y), np.int64) if self._regressor else each.part.y for each in parts]
        return GateFigures(
            confidence_output=edge.confidence is not None,
            novelty_output=edge.novelty is not None,
            tolerance=self._tolerance,
            novelty_deciles=compute_deciles(edge.novelty) if edge.novelty is not None else (),
            confidence_deciles=compute_deciles(found.confidence),
            domain=measure_edge_domain([each.edge.novelty for each in parts], labels, aim),
            hub_domain=None if self._regressor else measure_hub_domain([a.hub.asked for a in parts], labels, aim),
        )

    def _detect_scope(self, answered: PartAnswers) -> ScopeDetection | None:
        outside = answered.part.y == OUT_OF_SCOPE
        if self._regressor or not outside.any() or outside.all():
            return None
        novelty = answered.edge.novelty
        return ScopeDetection(
            int(outside.sum()),
            round_figure(roc_auc_score(outside, novelty)) if novelty is not None else 0.0,
            round_figure(roc_auc_score(outside, 1 - self._edge_confidence(answered.edge))),
        )


def select_in_scope(answered: PartAnswers) -> PartAnswers:
    """The answers without the samples that belong to no label."""
    y = answered.part.y
    if y.dtype.kind == "f" or not (y == OUT_OF_SCOPE).any():
        return answered
    kept = y != OUT_OF_SCOPE
    part, edge, hub = answered
    return PartAnswers(
        select_rows(part, kept),
        EdgeAnswers(*(None if values is None else values[kept] for values in edge)),  # type: ignore[arg-type]
        HubAnswers(hub.asked[kept], hub.whole[kept]),
    )


def _pair_figure(found: Outcomes, threshold: float) -> float:
    loss = np.where(found.confidence < threshold, found.hub_loss, found.edge_loss).mean()
    return float(math.sqrt(loss) if found.metric is QualityMetric.RMSE else 1 - loss)


def reliability_bins(found: Outcomes, bins: int = 12) -> tuple[tuple[float, float, int], ...]:
    """Mean confidence, share right and number of samples of equally filled bins, for a reliability diagram."""
    order = np.argsort(found.confidence, kind="stable")
    groups = [group for group in np.array_split(order, bins) if len(group)]
    return tuple((float(found.confidence[g].mean()), float(found.edge_right[g].mean()), len(g)) for g in groups)


def compute_deciles(values: Values) -> tuple[float, ...]:
    """The nine inner deciles of values clipped to 0..1, with six places."""
    flat = np.clip(np.asarray(values, np.float64).reshape(-1), 0.0, 1.0)
    return tuple(round(float(value), 6) for value in np.quantile(flat, _DECILES))


def compute_rmse(found: Values, y: Values) -> float:
    """Root of the mean squared error, in float64."""
    return float(np.sqrt(np.mean((np.asarray(found, np.float64) - y) ** 2)))
