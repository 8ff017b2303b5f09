"""Measured figures in a manifest: quality, risk guarantee, feature leakage, and the deciles of the calibration samples.

Rule: plain values; a figure that cannot be is found by its `*_fits`, and nothing is computed from one here.
"""

import math
import re
import sys
from enum import StrEnum
from itertools import pairwise

import msgspec

DECILES = 9
_DIGEST = re.compile(r"[0-9a-f]{64}")


class QualityMetric(StrEnum):
    """Quality metric of `CalibrationFigures`: `accuracy` as a share 0..1, or `rmse`.

    `rmse` is in units of the regressor's target; less is better.
    """

    ACCURACY = "accuracy"
    RMSE = "rmse"


class LeakKind(StrEnum):
    """Kind of privacy attack that a leakage row measures: reconstruct the sample, infer an attribute, tell a member."""

    RECONSTRUCTION = "reconstruction"
    ATTRIBUTE = "attribute"
    MEMBERSHIP = "membership"


class DomainScore(StrEnum):
    """Score of a sample's novelty; the higher, the less it looks like what the model was taught.

    `novelty`: the edge graph's own output, 0..1. The others are taken of the hub's logits z: `energy` -logsumexp(z),
    `cold_energy` the energy at temperature 0.5, -logsumexp(2 z) / 2, `peak` -max(z), `softmax` 1 - the largest
    probability at temperature 1 (Liu et al. 2020; Hendrycks et al. 2022).
    """

    NOVELTY = "novelty"
    ENERGY = "energy"
    COLD_ENERGY = "cold_energy"
    PEAK = "peak"
    SOFTMAX = "softmax"


class DomainFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Threshold above which a sample counts as out of domain, and what it was measured to do.

    `threshold` was chosen on the calibration part so that the share `aim` of in-scope samples lies above it.
    `false_alarm`, with `low95` and `high95`: the share above it of `samples` held-out in-scope samples. `recall`: of
    `outside` held-out samples that are out of scope, the share above it; 0 of 0 where there are none.
    """

    score: DomainScore
    threshold: float
    aim: float
    false_alarm: float
    low95: float
    high95: float
    samples: int
    recall: float = 0.0
    outside: int = 0


class GateFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Confidence and novelty of the edge model, and their distribution on the calibration samples.

    Without a `confidence` output the confidence is the largest probability, or for a regressor P(|error| <=
    `tolerance`), `tolerance` in units of the target. `*_deciles`: the nine inner deciles of the calibration samples,
    0..1 and rising, or nothing: the reference for drift. `domain`: the threshold of the edge model's novelty;
    `hub_domain`: of the hub's own score. None: that half cannot tell what is out of domain.
    """

    confidence_output: bool = False
    novelty_output: bool = False
    tolerance: float = 0.0  # units of the target; a regressor's
    novelty_deciles: tuple[float, ...] = ()
    confidence_deciles: tuple[float, ...] = ()
    domain: DomainFigures | None = None
    hub_domain: DomainFigures | None = None


class CalibrationFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Quality on held-out samples, in `metric`, all rows on the same samples.

    `edge` alone; `pair`: the edge where it is sure, the hub's tail elsewhere; `hub`: the whole model on raw samples;
    `oracle`: a pair whose gate knew which of the two is right. `threshold`: escalate below this confidence; it was
    chosen on a calibration split, never on the held-out samples. `asked`: share of held-out samples below it.
    `corrupted`: share of the samples that was damaged on purpose. `ece_*`: expected calibration error of the edge
    before and after temperature scaling (Guo et al. 2017, "On Calibration of Modern Neural Networks").

    `asked_limit`: what the threshold promises: at most this share of samples is asked in expectation; 1 promises
    nothing. `groups`: how many calibration groups (patients, users, machines) that promise was made on, for groups that
    were never seen; 0 where single samples are the units.
    """

    metric: QualityMetric
    samples: int
    edge: float
    pair: float
    hub: float
    oracle: float
    threshold: float
    asked: float
    ece_before: float
    ece_after: float
    corrupted: float = 0.0
    asked_limit: float = 1.0
    groups: int = 0


class RiskGuarantee(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Statistical risk guarantee of the threshold.

    With probability `confidence`, answers above `threshold` are wrong in at most the share `max_risk`. `samples`: size
    of the calibration set; `method`: name of the bound that shows it. `groups`: how many calibration groups (patients,
    users, machines) show it; then it is the mean over groups that were never seen which is at most `max_risk`. 0: the
    promise is about single samples.
    """

    max_risk: float
    confidence: float
    samples: int
    threshold: float
    method: str
    groups: int = 0


class LeakageRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured attack on the forwarded features, valid for exactly one chain of cut, codec and transforms.

    `chain` is the digest of that chain (`models/runtime/chain.py`). `subject`: the column guessed at, "" if that is the
    sample itself. `score` is the attack's success in `metric`, `upper95` the upper end of its 95 % interval; `floor`
    the same figure for a guesser that sees no features; `ceiling` for one that sees the raw sample. `pairs`: samples
    attacked.
    """

    chain: str
    kind: LeakKind
    subject: str
    attack: str
    metric: str
    pairs: int
    score: float
    upper95: float
    floor: float
    ceiling: float


def gate_fits(gate: GateFigures, *, regressor: bool) -> bool:
    """Tell whether gate figures are possible; a regressor without a confidence output needs a tolerance above zero."""
    asked = regressor and not gate.confidence_output  # then only the tolerance makes a confidence
    fits = math.isfinite(gate.tolerance) and (gate.tolerance > 0 if asked else gate.tolerance >= 0)
    deciles = all(map(_deciles_fit, (gate.novelty_deciles, gate.confidence_deciles)))
    return fits and deciles and _domains_fit(gate, regressor=regressor)


def _domains_fit(gate: GateFigures, *, regressor: bool) -> bool:
    """Tell whether both halves' thresholds are possible: the device's needs its output, a regressor's hub has none."""
    edge, hub = gate.domain, gate.hub_domain
    owned = edge is None or (gate.novelty_output and edge.score is DomainScore.NOVELTY)
    known = hub is None or not (regressor or hub.score is DomainScore.NOVELTY)
    return owned and known and all(_domain_fits(each) for each in (edge, hub) if each is not None)


def _domain_fits(d: DomainFigures) -> bool:
    shares = (d.aim, d.low95, d.false_alarm, d.high95, d.recall)
    ordered = d.low95 <= d.false_alarm <= d.high95
    return (
        math.isfinite(d.threshold) and ordered and all(0 <= s <= 1 for s in shares) and min(d.samples, d.outside) >= 0
    )


def _deciles_fit(deciles: tuple[float, ...]) -> bool:
    """Tell whether deciles are absent, or nine in order inside 0..1 (a NaN is in no order)."""
    rising = all(low <= high for low, high in pairwise((0.0, *deciles, 1.0)))
    return rising and len(deciles) in {0, DECILES}


def calibration_fits(c: CalibrationFigures) -> bool:
    """Tell whether quality figures are possible: finite, not negative, and shares and accuracies inside 0..1."""
    figures = (c.edge, c.pair, c.hub, c.oracle)
    top = 1.0 if c.metric == QualityMetric.ACCURACY else sys.float_info.max
    shares = (c.corrupted, c.ece_before, c.ece_after, c.threshold, c.asked, c.asked_limit)
    counts = c.samples >= 0 and c.groups >= 0
    return counts and all(0 <= figure <= top for figure in figures) and all(0 <= share <= 1 for share in shares)


def guarantee_fits(g: RiskGuarantee) -> bool:
    """Tell whether a guarantee is possible: samples above zero, a method, and all probabilities inside 0..1."""
    counts = g.samples > 0 and 0 <= g.groups <= g.samples
    return counts and bool(g.method) and all(0 <= v <= 1 for v in (g.max_risk, g.confidence, g.threshold))


def leakage_fits(row: LeakageRow) -> bool:
    """Tell whether a leakage row is possible: finite numbers, a chain digest of 64 hex digits and a known kind."""
    numbers = all(map(math.isfinite, (row.score, row.upper95, row.floor, row.ceiling)))
    return numbers and row.pairs >= 0 and bool(_DIGEST.fullmatch(row.chain)) and row.kind in set(LeakKind)
