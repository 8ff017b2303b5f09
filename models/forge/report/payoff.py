"""Payoff of asking the hub: what the pair gains over the device alone, with intervals, and what a question costs.

Rule: taken from held-out samples alone; where they cannot tell, that is said too. Every reason against the bundle is
one line, the gravest first; `payoff_warnings.py` has a function for each. Intervals (`intervals.py`) hold with 95 %
probability.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.bundle.manifest import Manifest
from models.bundle.measurements import CalibrationFigures, LeakageRow, QualityMetric, RiskGuarantee
from models.forge.evaluation.outcomes import Floats, Outcomes
from models.forge.evaluation.trivial_baseline import TrivialBaseline
from models.forge.export.device_work import DeviceWork
from models.forge.export.manifest import ENVELOPE_BYTES
from models.forge.leakage.summary import list_near_raw
from models.forge.report.intervals import Interval, gain_interval, measure_gain, quality_interval
from models.forge.report.payoff_warnings import (
    CodedSamples,
    HeldoutLabels,
    find_sample_offer,
    format_gain,
    format_quality,
    format_range,
    warn_below_baseline,
    warn_of_alarms,
    warn_of_asked_share,
    warn_of_calibration,
    warn_of_costly_codes,
    warn_of_dead_codes,
    warn_of_device_work,
    warn_of_harm,
    warn_of_missed_labels,
    warn_of_risk,
    warn_of_unmeasured_codes,
    warn_of_untrained_model,
)
from models.forge.routes.frontier import RoutePoint

__all__ = [
    "Interval",
    "Payoff",
    "PayoffEvidence",
    "format_gain",
    "format_quality",
    "format_range",
    "judge_payoff",
    "list_pair_warnings",
]


class PayoffEvidence(NamedTuple):
    """What else is known of a pair beside the outcomes of held-out samples; what is empty is not judged.

    `silence`: why nobody is asked, "" if somebody is. `trivial`: baselines on the same in-scope held-out samples.
    `codes`: of held-out samples, uint8 `[n, ...]`. `leakage`: of the codes. `shipped`: what travels, and `others`: what
    could travel instead. `labels`: of a classifier's held-out samples.
    """

    silence: str = ""
    trivial: Sequence[TrivialBaseline] = ()
    codes: npt.NDArray[np.uint8] | None = None
    leakage: Sequence[LeakageRow] = ()
    shipped: CodedSamples | None = None
    others: Sequence[CodedSamples] = ()
    work: DeviceWork | None = None
    points: Sequence[RoutePoint] = ()
    own_edge: bool = False
    labels: HeldoutLabels | None = None


_NO_EVIDENCE = PayoffEvidence()


class Payoff(NamedTuple):
    """What asking brings on the held-out samples.

    `edge`, `pair`, `hub`: intervals of the device alone, the pair, and the given model on raw samples (None if its
    single answers are not known). `gain`: of the pair over the device alone, above 0 if the pair is better (a
    regressor: by how much its RMSE is lower), with its interval `gained`. `question_bytes`: one question, sealed;
    `raw_bytes`: the sample itself. `warnings`: a line for each reason against the bundle, the gravest first.
    `baselines`: name and quality (accuracy or RMSE) of each trivial baseline.
    """

    samples: int
    edge: Interval
    pair: Interval
    hub: Interval | None
    gain: float
    gained: Interval
    question_bytes: int
    raw_bytes: int
    warnings: tuple[str, ...]
    baselines: tuple[tuple[str, float, Interval], ...] = ()


def judge_payoff(
    manifest: Manifest, found: Outcomes, raw_bytes: int, evidence: PayoffEvidence = _NO_EVIDENCE
) -> Payoff:
    """Judge whether asking pays. `found`: outcomes of the held-out samples; `raw_bytes`: size of one sample."""
    asked = found.confidence < manifest.calibration.threshold
    regressor, groups = found.metric is QualityMetric.RMSE, found.groups
    edge, pair = found.edge_loss, np.where(asked, found.hub_loss, found.edge_loss)

    def interval(loss: Floats) -> Interval:
        return quality_interval(loss, groups, regressor=regressor)

    judged = Payoff(
        samples=len(found),
        edge=interval(edge),
        pair=interval(pair),
        hub=_given_interval(manifest, found),
        gain=measure_gain(edge, pair, regressor=regressor),
        gained=gain_interval(edge, pair, groups, regressor=regressor),
        question_bytes=manifest.fixed_bytes + ENVELOPE_BYTES,
        raw_bytes=raw_bytes,
        warnings=(),
        baselines=tuple(
            (one.name, _quality(one.loss, regressor=regressor), interval(one.loss)) for one in evidence.trivial
        ),
    )
    return judged._replace(warnings=_list_warnings(manifest, found, judged, evidence))


def list_pair_warnings(
    c: CalibrationFigures, promise: RiskGuarantee | None, found: Outcomes, silence: str = ""
) -> list[str]:
    """One line for each reason why asking does not pay or a promise is not kept, the gravest first.

    `c`, `promise`: of the threshold; `found`: outcomes of held-out samples; `silence`: why nobody is asked, if so.
    """
    harm = warn_of_harm(found, c.threshold)
    told = [harm, warn_of_risk(promise, found, c.threshold), warn_of_asked_share(c, found)]
    told += ["" if harm else _warn_of_no_gain(c, found, silence)]
    return [line for line in told if line]


def _list_warnings(manifest: Manifest, found: Outcomes, judged: Payoff, evidence: PayoffEvidence) -> tuple[str, ...]:
    """One line for each reason against the bundle, the gravest first."""
    told = [warn_of_dead_codes(evidence.codes) if evidence.codes is not None else ""]
    told += [
        warn_below_baseline(found.edge_loss, found.metric, one, own_edge=evidence.own_edge) for one in evidence.trivial
    ]
    told += [warn_of_untrained_model(found, one) for one in evidence.trivial if one.name.startswith("always")]
    asking = list_pair_warnings(manifest.calibration, manifest.guarantee, found, evidence.silence)
    told += [_add_offer(line, found, evidence.points) for line in asking]
    if evidence.labels is not None:
        told += [warn_of_missed_labels(found, manifest.calibration.threshold, evidence.labels)]
    told += [warn_of_calibration(manifest.calibration)]
    told += [warn_of_alarms("the device", manifest.gate.domain), warn_of_alarms("the hub", manifest.gate.hub_domain)]
    told += [warn_of_unmeasured_codes(manifest.leakage, max(field.level for field in manifest.features))]
    told += warn_of_device_work(evidence.work, found) if evidence.work else []
    told += list_near_raw(evidence.leakage)
    told += [
        warn_of_costly_codes(evidence.shipped, evidence.others) if evidence.shipped else "",
        _warn_of_bytes(judged),
    ]
    return tuple(line for line in told if line)


def _add_offer(line: str, found: Outcomes, points: Sequence[RoutePoint]) -> str:
    """The line that asking does not pay, with the route that would: the sample itself, of the least sure samples."""
    if "does not pay" not in line:
        return line
    offer = find_sample_offer(found, points)
    return f"{line}. {offer}" if offer else f"{line}; no route that was measured does"


def _given_interval(manifest: Manifest, found: Outcomes) -> Interval | None:
    """Interval of the given model; of an older run, whose single answers are not kept, from its accuracy alone."""
    regressor = found.metric is QualityMetric.RMSE
    if len(found.given_loss):
        return quality_interval(found.given_loss, found.groups, regressor=regressor)
    if regressor:
        return None
    wrong = round((1 - manifest.calibration.hub) * len(found))
    return quality_interval((np.arange(len(found)) < wrong).astype(np.float64), regressor=False)


def _warn_of_no_gain(c: CalibrationFigures, found: Outcomes, silence: str) -> str:
    """Asking gains nothing, or nothing that these samples show."""
    if silence:
        return f"asking the hub does not pay: {silence}"
    if not (found.confidence < c.threshold).any():
        return (
            f"nobody is asked: {format_quality(c.metric, c.edge)} of the device alone meets the goal on the calibration"
            " part; a stricter --max-risk or --target-accuracy, or --max-share, would ask"
        )
    regressor = found.metric is QualityMetric.RMSE
    pair = np.where(found.confidence < c.threshold, found.hub_loss, found.edge_loss)
    gain = measure_gain(found.edge_loss, pair, regressor=regressor)
    gained = gain_interval(found.edge_loss, pair, found.groups, regressor=regressor)
    alone, together, whole = (format_quality(c.metric, value) for value in (c.edge, c.pair, c.hub))
    figures = f"{alone} alone, {together} as a pair that asks {c.asked:.1%}, on {len(found)} held-out samples"
    if gain <= 0:
        better = c.hub < c.edge if regressor else c.hub > c.edge
        why = (
            f"the given model reaches {whole}: what travels loses it (--max-bytes, --effort, --cut)"
            if better
            else f"the given model itself reaches {whole}: no question can help"
        )
        return f"asking the hub does not pay: {figures}; {why}"
    if gained.low <= 0:
        return (
            f"asking the hub is not shown to pay: {figures}; the gain of {format_gain(c.metric, gain)} may be"
            f" {format_range(c.metric, gained)}: bring more samples"
        )
    return ""


def _warn_of_bytes(judged: Payoff) -> str:
    """A question is no smaller than the raw sample."""
    if judged.question_bytes < judged.raw_bytes:
        return ""
    return (
        f"a question takes {judged.question_bytes} B, sealed, for a raw sample of {judged.raw_bytes} B: it can save"
        " no bytes, only keep the sample to itself"
    )


def _quality(loss: Floats, *, regressor: bool) -> float:
    return float(np.sqrt(loss.mean())) if regressor else 1 - float(loss.mean())
