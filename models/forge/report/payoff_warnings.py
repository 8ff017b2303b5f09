"""Warnings about a forged pair: each a plain function of held-out figures that returns one line, or "" if all is well.

Rule: a line says what was found, with its interval, and what to try. Nothing is chosen here.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.bundle.measurements import (
    CalibrationFigures,
    DomainFigures,
    LeakageRow,
    LeakKind,
    QualityMetric,
    RiskGuarantee,
)
from models.forge.evaluation.deferral import threshold_for_count
from models.forge.evaluation.outcomes import Outcomes
from models.forge.evaluation.risk_control import RiskKind
from models.forge.evaluation.trivial_baseline import TrivialBaseline
from models.forge.export.device_work import DeviceWork
from models.forge.partition.select import HEAD_SHARE
from models.forge.report.intervals import Interval, gain_interval, measure_gain, quality_interval, share_interval
from models.forge.routes.frontier import RoutePoint
from models.forge.training.code_path import Route
from wire.protocol.messages import SensitivityLevel

_FEWEST_BITS = 1.0  # of all codes of a sample together: less tells hardly two kinds of samples apart
_MOST_ECE = 0.1  # calibration error after scaling above which confidences are no probabilities
_OFFERED_SHARES = (0.1, 0.25)
_FEWEST_OF_LABEL = 5  # held-out samples below which its recall says nothing
_LOW_RECALL = 0.5
_SHOWN_LABELS = 3
_ALIKE = 1e-4  # of accuracy, or as a share of an RMSE


class CodedSamples(NamedTuple):
    """One way to send a sample: what it is, bytes as they travel, and the pair's loss against lossless features.

    `lost`: of accuracy (0.01 = one point), or a share of an RMSE.
    """

    name: str
    sealed_bytes: float
    lost: float


_Z95 = 1.959964


def warn_of_harm(found: Outcomes, threshold: float) -> str:
    """The pair is worse than the device alone, by more than its interval."""
    asked = found.confidence < threshold
    pair = np.where(asked, found.hub_loss, found.edge_loss)
    gained = gain_interval(found.edge_loss, pair, found.groups, regressor=bool(found.tolerance))
    if gained.high >= 0:
        return ""
    metric = found.metric
    gain = measure_gain(found.edge_loss, pair, regressor=bool(found.tolerance))
    return (
        f"the pair is worse than the device alone: asking {asked.mean():.1%} of the held-out samples loses"
        f" {format_gain(metric, -gain)} (with 95 % {format_range(metric, Interval(-gained.high, -gained.low))});"
        " the held-out samples are unlike the calibration samples, or use --max-share 0"
    )


def warn_below_baseline(
    edge_loss: npt.NDArray[np.float64], metric: QualityMetric, base: TrivialBaseline, *, own_edge: bool = False
) -> str:
    """A trivial baseline answers the same held-out samples better than the device's half, by more than its interval.

    For the constant answer it is enough that the device's half is not shown to be better. `own_edge`: the device's half
    is a small model of the user's own (--edge-model).
    """
    regressor = metric is QualityMetric.RMSE
    won = gain_interval(edge_loss, base.loss, regressor=regressor)
    constant = base.name.startswith("always")
    if won.high < 0 or not (constant or won.low > 0):
        return ""
    figures = [
        f"{format_quality(metric, _quality(loss, regressor=regressor))}"
        f" ({format_range(metric, quality_interval(loss, regressor=regressor))})"
        for loss in (base.loss, edge_loss)
    ]
    another = "leave out --edge-model" if own_edge else "begin with a small model of your own (--edge-model)"
    better = "is better than" if won.low > 0 else "is as good as"
    return (
        f"{base.name} {better} the device's half: {figures[0]} against {figures[1]} on held-out samples; teach longer"
        f" (--effort), {another}, or look at the data"
    )


def _quality(loss: npt.NDArray[np.float64], *, regressor: bool) -> float:
    return float(np.sqrt(loss.mean())) if regressor else 1 - float(loss.mean())


def count_code_bits(codes: npt.NDArray[np.uint8]) -> float:
    """Bits that the codes `[n, ...]` of a sample carry at most: the sum of the entropies of their positions."""
    rows = codes.reshape(len(codes), -1)
    bits = 0.0
    for column in rows.T:
        shares = np.bincount(column, minlength=256) / len(rows)
        kept = shares[shares > 0]
        bits -= float((kept * np.log2(kept)).sum())
    return bits


def warn_of_dead_codes(codes: npt.NDArray[np.uint8]) -> str:
    """All codes are equal, or tell hardly two kinds of samples apart: the hub is asked nothing."""
    bits = count_code_bits(codes)
    if bits >= _FEWEST_BITS:
        return ""
    different = len(np.unique(codes.reshape(len(codes), -1), axis=0))
    return (
        f"the codes are dead: {different} different in {len(codes)} held-out samples, {bits:.2f} bits each at most; the"
        " model's features at this cut say nothing of the sample: try another --cut, and look at the model's weights"
    )


def warn_of_unmeasured_codes(rows: Sequence[LeakageRow], level: SensitivityLevel) -> str:
    """Nothing was measured of how well samples can be rebuilt from the codes, so that policies deny every question.

    `level`: of the codes; what is not private needs no measurement.
    """
    if level < SensitivityLevel.P2 or any(row.kind is LeakKind.RECONSTRUCTION for row in rows):
        return ""
    return (
        "no question will leave: what the codes give away of a sample was not measured, and policies deny what is not"
        " (denied_unmeasured); run `skerry models measure`, or forge with more --effort"
    )


def warn_of_asked_share(c: CalibrationFigures, found: Outcomes) -> str:
    """More held-out samples are asked than the threshold promised, by more than the interval."""
    asked = found.confidence < c.threshold
    low, high = share_interval(asked, found.groups)
    if low <= c.asked_limit:
        return ""
    units = f"{len(np.unique(found.groups))} groups" if len(found.groups) else f"{len(found)} samples"
    hint = "" if c.groups else "; if they come from patients, users or machines, give them as groups"
    return (
        f"more is asked than was promised: {asked.mean():.1%} of the held-out samples ({low:.1%} to {high:.1%},"
        f" {units}) where at most {c.asked_limit:.1%} was: they are unlike the calibration samples{hint}"
    )


def warn_of_alarms(who: str, domain: DomainFigures | None) -> str:
    """More held-out samples in scope are called out of domain than was wished, by more than chance explains.

    The threshold has noise of its own, from the calibration part: as much as if that were as large as the held-out one.
    `who`: the half that calls them so.
    """
    if domain is None or domain.low95 <= domain.aim + _Z95 * math.sqrt(domain.aim * (1 - domain.aim) / domain.samples):
        return ""
    return (
        f"{who} calls {domain.false_alarm:.1%} of the held-out samples out of domain although they are in scope"
        f" ({domain.low95:.1%} to {domain.high95:.1%}, {domain.samples} samples), where {domain.aim:.1%} was wished:"
        " they are unlike the calibration samples"
    )


def warn_of_risk(promise: RiskGuarantee | None, found: Outcomes, threshold: float) -> str:
    """The risk on held-out samples is above the one that was guaranteed, by more than the interval."""
    if promise is None:
        return ""
    kept = found.confidence >= threshold
    wrong, counted = kept & ~found.edge_right, np.ones(len(found), bool)
    kind = next((each for each in RiskKind if f"/{each}" in promise.method), RiskKind.LOCAL)
    if kind is RiskKind.LOCAL:
        counted = kept
    elif kind is RiskKind.PAIR:
        wrong = wrong | (~kept & ~found.hub_right)
    if not counted.any():
        return ""
    groups = found.groups[counted] if promise.groups and len(found.groups) else found.groups[:0]
    low, high = share_interval(wrong[counted], groups)
    if low <= promise.max_risk:
        return ""
    what = {
        RiskKind.LOCAL: "of the answers that the device keeps",
        RiskKind.KEPT_WRONG: "of all samples kept on the device and answered",
        RiskKind.PAIR: "of the pair's answers",
    }[kind]
    return (
        f"the risk is above what was guaranteed: {wrong[counted].mean():.1%} {what} are wrong on held-out samples"
        f" ({low:.1%} to {high:.1%}) where at most {promise.max_risk:.1%} was: the guarantee is about samples drawn as"
        " the calibration samples were, and these are not; calibrate on samples like those in use"
    )


def warn_of_costly_codes(shipped: CodedSamples, others: Sequence[CodedSamples]) -> str:
    """The sample itself, compressed by usual means, takes no more bytes than the codes and loses no more."""
    cheaper = [one for one in others if one.sealed_bytes <= shipped.sealed_bytes and one.lost <= shipped.lost + _ALIKE]
    if not cheaper:
        return ""
    best = min(cheaper, key=lambda one: (one.sealed_bytes, one.lost))
    compared = "as much as" if best.sealed_bytes == shipped.sealed_bytes else "more than"
    return (
        f"the codes cost {compared} the sample itself:"
        f" {shipped.sealed_bytes:,.0f} B, sealed, against"
        f" {best.sealed_bytes:,.0f} B of {best.name}, which loses no more; they pay only by what they hide: see the"
        " leakage, or let the sample leave with --sample-level"
    )


def warn_of_untrained_model(found: Outcomes, base: TrivialBaseline) -> str:
    """The given model itself is not shown to be better than the constant answer."""
    if not len(found.given_loss) or len(found.given_loss) != len(base.loss):
        return ""
    regressor = found.metric is QualityMetric.RMSE
    won = gain_interval(base.loss, found.given_loss, regressor=regressor)
    if won.low > 0:
        return ""
    given = format_quality(found.metric, _quality(found.given_loss, regressor=regressor))
    constant = format_quality(found.metric, _quality(base.loss, regressor=regressor))
    return (
        f"your model itself is no better than the answer {base.name!r}: {given} against {constant} on held-out samples;"
        " is it trained, with its weights loaded, and are the samples scaled as they were for its training?"
    )


def warn_of_calibration(c: CalibrationFigures) -> str:
    """Confidences are far from the share that is right, after scaling too."""
    if c.metric is QualityMetric.RMSE or c.ece_after <= _MOST_ECE:
        return ""
    return (
        f"confidences are no probabilities: the calibration error is {c.ece_after:.3f} after scaling, above"
        f" {_MOST_ECE:g}; thresholds mean little elsewhere: bring more calibration samples, like those in use"
    )


def find_sample_offer(found: Outcomes, points: Sequence[RoutePoint]) -> str:
    """The sample itself, sent for the least sure samples, where that is shown to gain on held-out samples; else ""."""
    samples = [point for point in points if point.route is Route.SAMPLE]
    if not len(found.given_loss) or not samples:
        return ""
    regressor = found.metric is QualityMetric.RMSE
    for share in _OFFERED_SHARES:
        asked = found.confidence < threshold_for_count(found.confidence, math.floor(share * len(found)))
        pair = np.where(asked, found.given_loss, found.edge_loss)
        gained = gain_interval(found.edge_loss, pair, found.groups, regressor=regressor)
        if not asked.any() or gained.low <= 0:
            continue
        best = max(samples, key=lambda point: (point.quality * (-1 if regressor else 1), -point.sealed_bytes))
        gain = format_gain(found.metric, measure_gain(found.edge_loss, pair, regressor=regressor))
        return (
            f"Sending the sample itself would: the given model, asked for the least sure {asked.mean():.0%}, gains"
            f" {gain} ({format_range(found.metric, gained)}); if the samples may leave, state their label:"
            f" --sample-level LEVEL --path {best.name} --max-share {share:g}"
        )
    return ""


class HeldoutLabels(NamedTuple):
    """Labels of the held-out samples in scope, in the order of the outcomes, and the names of all labels."""

    y: npt.NDArray[np.int64]
    names: Sequence[str]


def warn_of_missed_labels(found: Outcomes, threshold: float, labels: HeldoutLabels) -> str:
    """Labels of which the pair finds few, though its accuracy is high because others are common."""
    if found.metric is QualityMetric.RMSE or len(labels.y) != len(found):
        return ""
    right = np.where(found.confidence < threshold, found.hub_right, found.edge_right)
    counts = np.bincount(labels.y, minlength=len(labels.names))
    recall = np.bincount(labels.y, right, minlength=len(labels.names)) / counts.clip(1)
    missed = [at for at in np.argsort(recall) if counts[at] >= _FEWEST_OF_LABEL and recall[at] < _LOW_RECALL]
    if not missed or right.mean() - recall[missed[0]] < _LOW_RECALL:
        return ""
    listed = ", ".join(f"{recall[at]:.0%} of the {counts[at]} of {labels.names[at]}" for at in missed[:_SHOWN_LABELS])
    return (
        f"some labels are missed: {right.mean():.1%} of all held-out samples are right, but {listed}; accuracy says"
        " little of rare labels: bring more samples of them, or as many of each"
    )


def warn_of_device_work(work: DeviceWork, found: Outcomes) -> list[str]:
    """The given model is quicker here than the device's half, or the half does much of its work."""
    told = []
    if work.slower and work.given_us is not None and work.time_ratio is not None:
        edge, given = (_mean_quality(found, loss) for loss in (found.edge_loss, found.given_loss))
        figures = (
            f", and as good or better ({given} against {edge}): run it on the device as it is, or try an earlier --cut"
            if _is_no_worse(found)
            else f", though less right ({given} against {edge}): the half saves no time"
        )
        told.append(
            f"your model itself is quicker here: {work.given_us:.0f} us in float32, the device's half takes"
            f" {work.time_ratio:.2f} times as long{figures}"
        )
    elif work.share > HEAD_SHARE:
        told.append(
            f"the device's half does {work.share:.0%} of your model's multiply-accumulates, where {HEAD_SHARE:.0%} is"
            " the aim: head, answer, codes and novelty together; --head-share makes it a limit, an earlier --cut or a"
            " larger model a smaller share"
        )
    return told


def _is_no_worse(found: Outcomes) -> bool:
    return len(found.given_loss) > 0 and float(found.given_loss.mean()) <= float(found.edge_loss.mean())


def _mean_quality(found: Outcomes, loss: npt.NDArray[np.float64]) -> str:
    regressor = bool(found.tolerance)
    return format_quality(found.metric, _quality(loss, regressor=regressor)) if len(loss) else ""


def format_quality(metric: QualityMetric, value: float) -> str:
    """An accuracy in percent, or an RMSE."""
    return f"{value:.4g} rmse" if metric == QualityMetric.RMSE else f"{value:.1%}"


def format_gain(metric: QualityMetric, value: float) -> str:
    """A gain in points of accuracy, or in units of the target."""
    return f"{value:.4g}" if metric == QualityMetric.RMSE else f"{100 * value:.1f} points"


def format_range(metric: QualityMetric, interval: Interval) -> str:
    """An interval as `93.1 to 99.2 %`, or in units of the target."""
    low, high = interval
    return f"{low:.4g} to {high:.4g}" if metric == QualityMetric.RMSE else f"{100 * low:.1f} to {100 * high:.1f} %"
