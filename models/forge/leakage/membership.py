"""Membership inference attack: whether the hub's answers reveal that a sample was in the training set.

Rule: the attacker sees what the tail answers to the codes, and knows the truth (`y`) of the sample: more than a hub
that answers gives away. Members and outsiders in equal number; thresholds are chosen on one half and scored on the
other. An advantage of 0 means no leakage.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.forge.leakage.attribute_probes import fit_binary_scores
from models.forge.leakage.metrics import BootstrapInterval

Values = npt.NDArray[Any]

_MOST = 5000  # of each kind
_RESAMPLES = 1000
_FALSE_ALARMS = 0.01


class HubPredictions(NamedTuple):
    """The hub's outputs `logits` `[n, labels]` (a regressor: `[n, values]`) for samples whose truth is `y` `[n]`."""

    logits: Values
    y: Values


class MembershipScore(NamedTuple):
    """Success of the better attack.

    `advantage`: true minus false positive rate (Yeom et al. 2018). `found_at_1`: share of members found when one
    outsider
    in a hundred is taken for one (Carlini et al. 2022); blind guessing has 0.01.
    """

    advantage: BootstrapInterval
    found_at_1: BootstrapInterval
    attack: str
    pairs: int


def measure_membership(members: HubPredictions, outsiders: HubPredictions) -> MembershipScore | None:
    """The better of a threshold on the loss and a learned attack. None with fewer than 40 samples of a kind."""
    count = min(len(members.y), len(outsiders.y), _MOST)
    if count < 40:
        return None
    clues = np.concatenate([_attack_features(members, count), _attack_features(outsiders, count)])
    truth = np.repeat([True, False], count)
    learns = np.tile(np.arange(count) % 2 == 0, 2)
    scores = {"loss": -clues[:, 0], "learned": fit_binary_scores(clues, truth.astype(np.int64), learns)}
    found = {name: _score_attack(each, truth, learns) for name, each in scores.items()}
    best = max(found, key=lambda name: found[name][0].value)
    return MembershipScore(*found[best], best, count)


def _attack_features(answers: HubPredictions, count: int) -> npt.NDArray[np.float32]:
    """Features of the attack: the loss first; then entropy and the three largest probabilities, for the learned one."""
    rows = np.random.default_rng(0).permutation(len(answers.y))[:count]
    logits, y = answers.logits[rows].astype(np.float64), answers.y[rows]
    if not np.issubdtype(y.dtype, np.integer):
        error = np.abs(logits[:, 0] - y)
        return np.stack([error, logits[:, 0], y], 1).astype(np.float32)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    shares = weights / weights.sum(1, keepdims=True)
    inside = y >= 0  # a sample out of scope has no label that could be right
    own = np.where(inside, shares[np.arange(len(y)), np.where(inside, y, 0)], shares.max(1))
    entropy = -(shares * np.log(shares.clip(1e-12))).sum(1)
    most = -np.sort(-shares, 1)[:, :3]
    return np.column_stack([-np.log(own.clip(1e-12)), entropy, most]).astype(np.float32)


def _score_attack(
    scores: Values, truth: npt.NDArray[np.bool_], learns: npt.NDArray[np.bool_]
) -> tuple[BootstrapInterval, BootstrapInterval]:
    bar = _best_threshold(scores[learns & truth], scores[learns & ~truth])
    inside, outside = scores[~learns & truth], scores[~learns & ~truth]
    strict = float(np.quantile(scores[learns & ~truth], 1 - _FALSE_ALARMS))
    hits, alarms = inside > bar, outside > bar
    rng = np.random.default_rng(0)
    gained, rare = [], []
    for _ in range(_RESAMPLES):
        a, b = rng.integers(0, len(hits), len(hits)), rng.integers(0, len(alarms), len(alarms))
        gained.append(hits[a].mean() - alarms[b].mean())
        rare.append((inside[a] > strict).mean())
    return (
        _percentile_interval(float(hits.mean() - alarms.mean()), gained),
        _percentile_interval(float((inside > strict).mean()), rare),
    )


def _best_threshold(inside: Values, outside: Values) -> float:
    """The threshold of the largest advantage on the half that may be learned from."""
    bars = np.unique(np.concatenate([inside, outside]))
    found = 1 - np.searchsorted(np.sort(inside), bars, "right") / len(inside)
    alarms = 1 - np.searchsorted(np.sort(outside), bars, "right") / len(outside)
    return float(bars[int(np.argmax(found - alarms))])


def _percentile_interval(value: float, drawn: list[Any]) -> BootstrapInterval:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return BootstrapInterval(value, float(low), float(high))
