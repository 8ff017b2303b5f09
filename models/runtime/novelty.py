"""Whether a sample belongs to what the model knows, from the scores of either half and the bundle's thresholds. Pure.

Confidence and novelty answer two questions: whether the hub gains here, and whether the sample is of the kind that the
model was taught at all. Energy of the logits: Liu et al. 2020; largest logit: Hendrycks et al. 2022; largest
probability: Hendrycks & Gimpel 2017.
"""

import numpy as np
import numpy.typing as npt

from models.bundle.measurements import DomainFigures, DomainScore

Floats = npt.NDArray[np.float64]


def is_novelty_usual(novelty: float, domain: DomainFigures | None) -> bool | None:
    """Whether the edge graph's novelty (0..1) is at most the threshold; None without a threshold or for no number."""
    if domain is None or not 0.0 <= novelty <= 1.0:  # false for NaN too
        return None
    return novelty <= domain.threshold


def judge_logits(logits: npt.NDArray[np.floating], domain: DomainFigures | None) -> list[bool | None]:
    """Whether each row of the hub's logits `[n, labels]` is in domain; None without a threshold."""
    if domain is None:
        return [None] * len(logits)
    found: list[bool | None] = (score_logits(logits, domain.score) <= domain.threshold).tolist()
    return found


def score_logits(logits: npt.NDArray[np.floating], score: DomainScore) -> Floats:
    """Novelty scores `[n]` of logits `[n, labels]`: the higher, the less usual. ValueError for `NOVELTY`."""
    z = logits.astype(np.float64)
    peak = z.max(1)
    z -= peak[:, None]  # nothing overflows
    spread = np.log(np.exp(z).sum(1))
    found = {
        DomainScore.PEAK: -peak,
        DomainScore.ENERGY: -(peak + spread),
        DomainScore.COLD_ENERGY: -(peak + np.log(np.exp(2 * z).sum(1)) / 2),
        DomainScore.SOFTMAX: 1.0 - np.exp(-spread),
    }
    if score not in found:
        raise ValueError("the novelty is the edge graph's own output, not taken of logits")
    return np.asarray(found[score])
