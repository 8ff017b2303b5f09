"""Recorded answers of two real models to the same samples, and how the second compares with the first.

Rule: a regression is made by turning right answers of the candidate into wrong ones, with the same confidence, so that
only their quality has changed.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulations.rollout.versions import VersionPair

Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class ModelVersion(NamedTuple):
    """Answers of one model version as arrays `[n]`.

    `edge`: labels of the head; `confidence` of the head (0..1); `tail`: labels of its hub half.
    """

    edge: Labels
    confidence: Floats
    tail: Labels

    def final_labels(self, threshold: float) -> Labels:
        """Labels answered in the end: the tail's where the head is less confident than `threshold`."""
        return np.where(self.confidence < threshold, self.tail, self.edge)


class PairedAnswers(NamedTuple):
    """Answers of both versions to the same samples, and the true labels."""

    truth: Labels
    committed: ModelVersion
    candidate: ModelVersion


def compare_versions(answers: PairedAnswers, threshold: float) -> VersionPair:
    """Compare two versions: what devices and audits will see of them."""
    truth, old, new = answers
    agrees, agreed = new.edge == old.tail, old.edge == old.tail
    right, was_right = new.edge == truth, old.edge == truth
    spoilt = (new.final_labels(threshold) != truth) & (old.final_labels(threshold) == truth)
    return VersionPair(
        worse=float((agreed & ~agrees).mean()),
        better=float((agrees & ~agreed).mean()),
        both=float((agrees & agreed).mean()),
        unsure=float((new.confidence < threshold).mean()),
        unsure_before=float((old.confidence < threshold).mean()),
        sure=float(new.confidence.mean()),
        sure_sq=float((new.confidence**2).mean()),
        spoilt=float(spoilt.mean()),
        points=float(right.mean() - was_right.mean()),
    )


def bound_expected_gap(answers: PairedAnswers) -> float:
    """Lower bound (95 %, at most 0) on the paired audit difference of a version that is as good as the committed.

    Audits measure agreement with the committed tail, not accuracy; the bound is on agreement less accuracy,
    candidate against committed, sample by sample (mean less 1.65 standard errors).
    """
    truth, old, new = answers
    agreement = (new.edge == old.tail).astype(np.float64) - (old.edge == old.tail)
    accuracy = (new.edge == truth).astype(np.float64) - (old.edge == truth)
    misled = agreement - accuracy
    return min(0.0, float(misled.mean() - 1.65 * misled.std() / len(truth) ** 0.5))


def make_regression(
    answers: PairedAnswers, points: float, labels: int, rng: np.random.Generator, *, tail: bool = False
) -> PairedAnswers:
    """Make a regression: the candidate with `points` (0..1) fewer right local answers than the committed version.

    `tail`: its tail goes wrong along with the head.
    """
    truth, old, new = answers
    right = np.flatnonzero(new.edge == truth)
    surplus = (new.edge == truth).mean() - (old.edge == truth).mean()
    count = max(0, round((points + surplus) * len(truth)))
    struck = rng.choice(right, min(count, len(right)), replace=False)
    wrong = (truth[struck] + rng.integers(1, labels, len(struck))) % labels
    edge, far = new.edge.copy(), new.tail.copy()
    edge[struck] = wrong
    if tail:
        far[struck] = wrong
    return PairedAnswers(truth, old, ModelVersion(edge, new.confidence, far))


def split_halves(answers: PairedAnswers) -> tuple[PairedAnswers, PairedAnswers]:
    """Split the samples: one half to measure `bound_expected_gap` with, the other to be answered."""
    return _take_every_other(answers, 0), _take_every_other(answers, 1)


def _take_every_other(answers: PairedAnswers, first: int) -> PairedAnswers:
    pick = slice(first, None, 2)
    old, new = (
        ModelVersion(v.edge[pick], v.confidence[pick], v.tail[pick]) for v in (answers.committed, answers.candidate)
    )
    return PairedAnswers(answers.truth[pick], old, new)
