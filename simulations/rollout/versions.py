"""Two model versions on the same samples: how often both, one or neither is right, and what audits see of it."""

from typing import NamedTuple


class VersionPair(NamedTuple):
    """Comparison of two versions as shares of all samples.

    `worse`, `better`, `both`: whether the two heads agree with the committed tail. `unsure`, `unsure_before`: below
    the threshold. `sure`, `sure_sq`: mean and mean square of the confidence. `spoilt`: wrong in the end, and right
    with the committed version. `points`: accuracy of local answers, candidate less committed.
    """

    worse: float
    better: float
    both: float
    unsure: float
    unsure_before: float
    sure: float
    sure_sq: float
    spoilt: float
    points: float


def build_stated_pair(harm: float, churn: float = 0.03, accuracy: float = 0.9, unsure: float = 0.2) -> VersionPair:
    """Build a comparison from stated shares.

    `harm` (0..1) of the answers go wrong that were right, and `churn` in either direction besides.
    """
    worse, better = churn + harm, churn
    both = accuracy - worse
    spread = 0.8**2 + 0.02
    return VersionPair(
        worse=worse,
        better=better,
        both=both,
        unsure=unsure,
        unsure_before=unsure,
        sure=0.8,
        sure_sq=spread,
        spoilt=worse * (1 - unsure),
        points=better - worse,
    )
