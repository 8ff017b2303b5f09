"""Membership inference attack: whether the hub's answers reveal that a sample was in the training set.

Rule: the attacker sees what the tail answers to the codes, and knows the truth (`y`) of the sample: more than a hub
that answers gives away. Members and outsiders in equal number; thresholds are chosen on one half and scored on the
other. An advantage of 0 means no leakage.

Rule: members and outsiders are of one distribution. Whoever can tell them apart by the samples alone, without any
model, measures a shift between two parts of the data and calls it leakage (Das, Zhang and Tramer 2024, "Blind baselines
beat membership inference attacks for foundation models"). So a blind guesser is tried first; where it succeeds there is
no measurement, and where it does not, its advantage is the floor.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.forge.leakage.attribute_probes import fit_binary_scores
from models.forge.leakage.metrics import BootstrapInterval

Values = npt.NDArray[Any]

_MOST = 5000  # of each kind
_RESAMPLES = 1000
_FALSE_ALARMS = 0.01
_LEAST = 40  # samples of a kind
_MOST_BLIND = 0.1  # advantage of a blind guesser
_MOST_COLUMNS = 512  # that a blind guesser sees of a sample; of more, as many random projections
_MOST_IDS = 500


class HubPredictions(NamedTuple):
    """The hub's outputs `logits` `[n, labels]` (a regressor: `[n, values]`) for samples whose truth is `y` `[n]`."""

    logits: Values
    y: Values


class MembershipScore(NamedTuple):
    """Success of the better attack.

    `advantage`: true minus false positive rate (Yeom et al. 2018). `found_at_1`: share of members found when one
    outsider in a hundred is taken for one (Carlini et al. 2022); blind guessing has 0.01.
    """

    advantage: BootstrapInterval
    found_at_1: BootstrapInterval
    attack: str
    pairs: int


class SampleSet(NamedTuple):
    """Samples `x` `[n, ...]` with their truth `y` `[n]`, as a blind guesser sees them. Whole numbers in x are ids."""

    x: Values
    y: Values


class OutsiderChoice(NamedTuple):
    """Which part of the data serves as outsiders.

    `part`: its name, "" if none is of the members' distribution; `blind`: the advantage there of a guesser that sees no
    answer of any model, 0..1; `refused`: a sentence for each part that does not serve.
    """

    part: str
    blind: float
    refused: tuple[str, ...]


def choose_outsiders(members: SampleSet, parts: Mapping[str, SampleSet]) -> OutsiderChoice:
    """The first of `parts` whose samples cannot be told from the members' by the samples alone.

    They count as told apart where the 95 % interval of a blind guesser's advantage lies above 0 (a classifier
    two-sample test: Lopez-Paz and Oquab 2017), and, for a few samples have wide intervals, where it is above a tenth.
    """
    refused = []
    for name, part in parts.items():
        blind = measure_blind_advantage(members, part)
        if blind is None:
            refused.append(f"the {name} part has fewer than {_LEAST} samples")
        elif blind.low > 0 or blind.value > _MOST_BLIND:
            refused.append(
                f"training and {name} samples differ in themselves (told apart without any model with an advantage of"
                f" {blind.value:.2f}, 95 % interval {blind.low:.2f} to {blind.high:.2f})"
            )
        else:
            return OutsiderChoice(name, max(0.0, blind.value), tuple(refused))
    return OutsiderChoice("", 0.0, tuple(refused))


def explain_no_outsiders(choice: OutsiderChoice) -> str:
    """A sentence on why membership is not measured."""
    why = "; ".join(choice.refused)
    return f"membership is not measured, for no outsiders are of one distribution with the training samples: {why}"


def measure_blind_advantage(members: SampleSet, outsiders: SampleSet) -> BootstrapInterval | None:
    """Advantage of telling members from outsiders by sample and truth alone. None with fewer than 40 of a kind."""
    count = min(len(members.y), len(outsiders.y), _MOST)
    if count < _LEAST:
        return None
    drawn = [_draw_rows(part, count) for part in (members, outsiders)]
    x, y = (np.concatenate(columns) for columns in zip(*drawn, strict=True))
    truth = np.repeat([True, False], count)
    learns = np.tile(np.arange(count) % 2 == 0, 2)
    scores = fit_binary_scores(_sample_columns(x, y, learns), truth.astype(np.int64), learns)
    return _score_attack(scores, truth, learns)[0]


def _draw_rows(part: SampleSet, count: int) -> tuple[Values, Values]:
    rows = np.random.default_rng(0).permutation(len(part.y))[:count]
    return part.x[rows], part.y[rows]


def _sample_columns(x: Values, y: Values, learns: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Samples as columns: which of the commonest ids are there, or numbers (many: random projections); truth last."""
    flat = x.reshape(len(x), -1)
    if np.issubdtype(x.dtype, np.integer):
        known, counts = np.unique(flat[learns], return_counts=True)
        common = known[np.argsort(-counts, kind="stable")[:_MOST_IDS]]
        seen = np.stack([(flat == each).any(1) for each in common], 1).astype(np.float32)
    else:
        seen = np.nan_to_num(flat.astype(np.float32))
        if seen.shape[1] > _MOST_COLUMNS:
            directions = np.random.default_rng(0).standard_normal((seen.shape[1], _MOST_COLUMNS), np.float32)
            seen = seen @ directions
    labels = np.unique(y[learns])[:_MOST_IDS]
    truth = y[:, None] == labels if np.issubdtype(y.dtype, np.integer) else y[:, None]
    return np.concatenate([seen, truth.astype(np.float32)], 1)


def measure_membership(members: HubPredictions, outsiders: HubPredictions) -> MembershipScore | None:
    """The better of a threshold on the loss and a learned attack. None with fewer than 40 samples of a kind."""
    count = min(len(members.y), len(outsiders.y), _MOST)
    if count < _LEAST:
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
