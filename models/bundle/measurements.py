"""What a manifest says that was measured: figures, guarantee, leakage, and what the calibration samples looked like.

Law: plain values; a figure that cannot be is found by its `*_fits`, and nothing is computed from one here.
"""

import math
import re
import sys
from enum import StrEnum
from itertools import pairwise

import msgspec

DECILES = 9
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Metric(StrEnum):
    """What `Calibration` counts: `accuracy` as a share, or `rmse` in units of the target, where less is better."""

    ACCURACY = "accuracy"
    RMSE = "rmse"


class LeakKind(StrEnum):
    RECONSTRUCTION = "reconstruction"
    ATTRIBUTE = "attribute"
    MEMBERSHIP = "membership"


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How sure the edge is, and what that looked like on the calibration samples.

    Without a `confidence` output it is the largest probability, or for a regressor P(|error| <= `tolerance`).
    `*_deciles`: the nine inner deciles of the calibration samples, or nothing: the reference for drift.
    """

    confidence_output: bool = False
    novelty_output: bool = False
    tolerance: float = 0.0  # units of the target; a regressor's
    novelty_deciles: tuple[float, ...] = ()
    confidence_deciles: tuple[float, ...] = ()


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Held-out figures in `metric`, all on the same samples, of which the share `corrupted` was damaged on purpose.

    `edge` alone; `pair`: the edge where it is sure, the hub's tail elsewhere; `hub`: the whole model on raw samples;
    `oracle`: a pair whose gate knew which of the two is right. `threshold`: ask below this confidence; it was chosen
    on a calibration split, never on the held-out samples. `asked`: share of held-out samples below it.
    `ece_*`: expected calibration error of the edge before and after temperature scaling (Guo et al. 2017).
    """

    metric: Metric
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


class Guarantee(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With this `confidence`, answers above `threshold` are wrong in at most `max_risk`: shown by `method`."""

    max_risk: float
    confidence: float
    samples: int
    threshold: float
    method: str


class Leakage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement of what the forwarded features give away, valid for exactly one chain of cut, codec, transforms.

    `chain` is the digest of that chain. `subject`: the column guessed at, "" if that is the sample itself. `score` is
    the attack's success, `upper95` the upper end of its 95 % interval; `floor` the same figure for a guesser that sees
    no features; `ceiling` for one that sees the raw sample.
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


def gate_fits(gate: Gate, *, regressor: bool) -> bool:
    asked = regressor and not gate.confidence_output  # then only the tolerance makes a confidence
    fits = math.isfinite(gate.tolerance) and (gate.tolerance > 0 if asked else gate.tolerance >= 0)
    return fits and all(map(_deciles_fit, (gate.novelty_deciles, gate.confidence_deciles)))


def _deciles_fit(deciles: tuple[float, ...]) -> bool:
    """None, or nine in order inside 0..1 (a NaN is in no order)."""
    rising = all(low <= high for low, high in pairwise((0.0, *deciles, 1.0)))
    return rising and len(deciles) in {0, DECILES}


def calibration_fits(c: Calibration) -> bool:
    figures = (c.edge, c.pair, c.hub, c.oracle)
    top = 1.0 if c.metric == Metric.ACCURACY else sys.float_info.max
    shares = (c.corrupted, c.ece_before, c.ece_after, c.threshold, c.asked)
    return c.samples >= 0 and all(0 <= figure <= top for figure in figures) and all(0 <= share <= 1 for share in shares)


def guarantee_fits(g: Guarantee) -> bool:
    return g.samples > 0 and bool(g.method) and all(0 <= v <= 1 for v in (g.max_risk, g.confidence, g.threshold))


def leakage_fits(row: Leakage) -> bool:
    numbers = all(map(math.isfinite, (row.score, row.upper95, row.floor, row.ceiling)))
    return numbers and row.pairs >= 0 and bool(_DIGEST.fullmatch(row.chain)) and row.kind in set(LeakKind)
