"""Risk control: a threshold below which, with probability `confidence`, the risk of what is kept is at most `max_risk`.

Rule: the guarantee is about samples not yet seen, drawn as the calibration samples were; a set that is too small for
it is refused, never stretched. Where the samples come in groups (patients, users, machines) it is about the mean over
groups not yet seen, and the groups are what is counted. Method and sources stand in `prove_threshold`.
"""

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, rel_entr  # type: ignore[import-untyped]

from models.forge.data.types import ForgeError
from models.forge.evaluation.outcomes import Flags, Floats, Outcomes

PILOT = 0.1  # share of the samples that only places the thresholds to be tested
_STEPS = 64
_ROOMY = 10.0  # kept answers times `max_risk` at which a gate of less than half that risk usually passes


class RiskKind(StrEnum):
    """The risk that is bounded. A regressor's answer is wrong if its error is more than the tolerance.

    `local`: wrong answers among those kept on the device (selective risk). `kept-wrong`: kept and wrong, among all
    samples ("escalate or be right"). `pair`: wrong answers among all, the hub's included.
    """

    LOCAL = "local"
    KEPT_WRONG = "kept-wrong"
    PAIR = "pair"


class RiskGoal(NamedTuple):
    """The bound that is requested; `max_risk` and `confidence` strictly between 0 and 1."""

    max_risk: float
    confidence: float = 0.95
    risk: RiskKind = RiskKind.LOCAL


class ProvenThreshold(NamedTuple):
    """A proved threshold: escalate below `threshold`.

    Of `tested` samples that count for this risk, `wrong` were wrong; `kept`: share not escalated. `groups`: of the
    calibration set, if the bound is about groups (then `tested` are groups and `wrong` is their summed share), else 0.
    """

    wanted: RiskGoal
    threshold: float
    samples: int
    tested: int
    wrong: float
    kept: float
    groups: int = 0

    @property
    def method(self) -> str:
        """Name of the method and of the risk, as a manifest states it."""
        return f"learn-then-test/{self.wanted.risk}" + ("/groups" if self.groups else "")


class _ThresholdCounts(NamedTuple):
    """Per threshold: samples that count, wrong ones among them, share kept."""

    counted: Floats
    wrong: Floats
    kept: Floats


def minimum_calibration(wanted: RiskGoal) -> int:
    """Least number of samples that could ever give this guarantee: all kept and none wrong."""
    return math.ceil(_least_tested(wanted) / (1 - PILOT))


def _least_tested(wanted: RiskGoal) -> int:
    return math.ceil(math.log1p(-wanted.confidence) / math.log1p(-wanted.max_risk))


def prove_threshold(outcomes: Outcomes, wanted: RiskGoal, seed: int = 0) -> ProvenThreshold:
    """The lowest threshold that the outcomes prove, by Learn-then-Test. Raises ForgeError if they prove none.

    Learn-then-Test (Angelopoulos, Bates, Candes, Jordan, Lei 2021): each threshold of a fixed list is the hypothesis
    "its risk is above `max_risk`", with the exact binomial tail as p-value (Clopper-Pearson; for selective risk given
    the number kept, as in Geifman & El-Yaniv 2017, "SGR"). The list is tested from the strictest down (fixed-sequence
    testing; a random tenth of the samples, the pilot, places it and is tested on nothing), with the error rate given
    to a few starting points and handed on with every success (the fallback procedure of Wiens & Dmitrienko 2005), so
    the chance that any wrong threshold passes is at most 1 - `confidence`, however the risks lie.

    With groups, the loss of a group is its own share of wrong answers (a group of which nothing is kept has none), the
    hypothesis is about its mean over groups, and the p-value is Hoeffding and Bentkus's for means of values in 0..1
    (Bates et al. 2021, "Distribution-free, risk-controlling prediction sets"); the pilot is a tenth of the groups.

    Plain conformal risk control (Angelopoulos et al. 2024) does not apply: it needs a loss that only falls as the
    threshold rises. Selective risk, and the pair's, does not: a stricter threshold may drop right answers and keep
    wrong ones. (It would also bound the mean over calibration sets, not the share of them that go wrong.)
    """
    check_goal(outcomes, wanted)
    found = find_lowest_threshold(outcomes, wanted, np.random.default_rng(seed))
    if found is None:
        raise ForgeError(_explain_unproved(outcomes, wanted))
    return found


def check_goal(outcomes: Outcomes, wanted: RiskGoal) -> None:
    if not 0 < wanted.max_risk < 1:
        raise ForgeError(
            f"--max-risk {wanted.max_risk:g}: no sample can show that; a share between 0 and 1, such as 0.02"
        )
    if not 0 < wanted.confidence < 1:
        raise ForgeError(f"--confidence {wanted.confidence:g}: a probability between 0 and 1, such as 0.95")
    units, size = _count_units(outcomes)
    if size < minimum_calibration(wanted):
        raise ForgeError(
            f"{size} calibration {units} cannot show a risk of at most {wanted.max_risk:g} with confidence "
            f"{wanted.confidence:g}: {minimum_calibration(wanted)} are needed even if all are right, more otherwise; "
            "bring more, or ask for less"
        )


def _explain_unproved(outcomes: Outcomes, wanted: RiskGoal) -> str:
    wrong = {"edge": 1 - outcomes.edge_right.mean(), "hub": 1 - outcomes.hub_right.mean()}
    told = ", ".join(f"the {who} is wrong in {share:.2%}" for who, share in wrong.items())
    units, size = _count_units(outcomes)
    return (
        f"no threshold is proved to keep the {wanted.risk} risk at or below {wanted.max_risk:g} with confidence "
        f"{wanted.confidence:g} on {size} calibration {units} ({told} of the samples): raise --max-risk, lower "
        f"--confidence, or bring more {units}"
    )


def _count_units(outcomes: Outcomes) -> tuple[str, int]:
    """What the promise counts, in words, and how many of them there are."""
    return ("groups", len(np.unique(outcomes.groups))) if len(outcomes.groups) else ("samples", len(outcomes))


def find_lowest_threshold(outcomes: Outcomes, wanted: RiskGoal, rng: np.random.Generator) -> ProvenThreshold | None:
    units = outcomes.groups if len(outcomes.groups) else np.arange(len(outcomes))
    order = rng.permutation(np.unique(units))
    pilot = np.isin(units, order[: math.ceil(PILOT * len(order))])
    tested = outcomes[~pilot]
    starts = _start_shares(len(order) - math.ceil(PILOT * len(order)), wanted)
    grid = _threshold_grid(outcomes.confidence[pilot], starts[0])
    count, bound = (
        (_count_group_errors, _compute_group_p_values) if len(outcomes.groups) else (_count_errors, _compute_p_values)
    )
    counts = count(tested, grid, wanted.risk)
    passed = _last_passed(bound(counts, wanted.max_risk), _start_indices(starts, len(grid)), 1 - wanted.confidence)
    if passed is None:
        return None
    last = (int(counts.counted[passed]), float(counts.wrong[passed]), float(counts.kept[passed]))
    groups = len(order) if len(outcomes.groups) else 0
    return ProvenThreshold(wanted, float(grid[passed]), len(outcomes), *last, groups)


def _start_shares(tested: int, wanted: RiskGoal) -> tuple[float, ...]:
    """Shares kept at which testing starts: where a good gate usually passes, half way, and where all is kept.

    The last one serves a gate whose risk is the same everywhere; a small set cannot pay for more than one.
    """
    if wanted.risk is RiskKind.KEPT_WRONG:
        return (0.0,)  # where all is asked this risk is 0, and from there it only grows
    if wanted.risk is RiskKind.PAIR:
        return (0.0, 0.5, 1.0)
    least = 1.2 * _least_tested(wanted) / tested
    first = min(1.0, max(least, min(0.3, _ROOMY / wanted.max_risk / tested)))
    if least > 0.5:
        return (first,)
    return first, (1 + first) / 2, 1.0


def _threshold_grid(pilot: Floats, first: float) -> Floats:
    """Thresholds, falling from the one that keeps about the share `first` to 0, which keeps all."""
    shares = np.linspace(first, 1.0, _STEPS)
    found = np.quantile(pilot, 1 - shares)
    found = np.where(found < 0.99, found.round(4), found.round(6))  # short decimals are easier to copy into a policy
    found[shares >= 1.0] = 0.0
    if first == 0.0:
        found[0] = 1.0
    return np.asarray(np.minimum(found, 1.0))


def _start_indices(starts: tuple[float, ...], steps: int) -> list[int]:
    first = starts[0]
    return [round((start - first) / max(1 - first, 1e-9) * (steps - 1)) for start in starts]


def _count_errors(outcomes: Outcomes, grid: Floats, risk: RiskKind) -> _ThresholdCounts:
    order = np.argsort(-outcomes.confidence, kind="stable")
    size = len(order)
    kept = size - np.searchsorted(outcomes.confidence[order[::-1]], grid, side="left")
    wrong = _running_sum(~outcomes.edge_right[order])[kept]
    if risk is RiskKind.PAIR:
        by_hub = _running_sum(~outcomes.hub_right[order])
        wrong = wrong + by_hub[-1] - by_hub[kept]
    counted = kept if risk is RiskKind.LOCAL else np.full(len(grid), size)
    return _ThresholdCounts(counted.astype(np.float64), wrong.astype(np.float64), kept / size)


def _running_sum(flags: Flags) -> Floats:
    return np.concatenate(([0.0], np.cumsum(flags)))


def _compute_p_values(counts: _ThresholdCounts, max_risk: float) -> Floats:
    """Binomial tail per threshold: P(as few wrong or fewer | risk = `max_risk`); 1 where nothing counts."""
    tail = bdtr(counts.wrong, np.maximum(counts.counted, 1).astype(np.int64), max_risk)
    return np.where(counts.counted > 0, tail, 1.0)


def _count_group_errors(outcomes: Outcomes, grid: Floats, risk: RiskKind) -> _ThresholdCounts:
    """As `_count_errors`, with a group as a unit: `counted` groups, and the sum of their shares of wrong answers."""
    groups = [outcomes[outcomes.groups == group] for group in np.unique(outcomes.groups)]
    found = [_count_errors(group, grid, risk) for group in groups]
    wrong = np.sum([one.wrong / np.maximum(one.counted, 1) for one in found], axis=0)
    kept = np.sum([one.kept * len(group) for one, group in zip(found, groups, strict=True)], axis=0) / len(outcomes)
    counted = np.where(kept > 0, len(groups), 0) if risk is RiskKind.LOCAL else np.full(len(grid), len(groups))
    return _ThresholdCounts(counted.astype(np.float64), np.asarray(wrong), np.asarray(kept))


def _compute_group_p_values(counts: _ThresholdCounts, max_risk: float) -> Floats:
    """Hoeffding and Bentkus's bound per threshold: P(a mean so low or lower | risk = `max_risk`)."""
    size = counts.counted
    mean = np.minimum(counts.wrong / np.maximum(size, 1), max_risk)
    distance = rel_entr(mean, max_risk) + rel_entr(1 - mean, 1 - max_risk)
    bentkus = math.e * bdtr(np.ceil(counts.wrong - 1e-9), np.maximum(size, 1).astype(np.int64), max_risk)
    found = np.minimum(np.minimum(np.exp(-size * distance), bentkus), 1.0)
    return np.asarray(np.where(size > 0, found, 1.0))


def _last_passed(p_values: Floats, starts: list[int], error: float) -> int | None:
    """Index of the last threshold that passes, or None.

    Each start brings its part of `error`; a failure loses what was carried. Of several starts the first brings half.
    """
    parts = dict.fromkeys(starts[1:], 0.5 / max(1, len(starts) - 1))
    parts[starts[0]] = 0.5 if len(starts) > 1 else 1.0
    carried, last = 0.0, None
    for place, p_value in enumerate(p_values):
        carried += error * parts.get(place, 0.0)
        if p_value <= carried:
            last = place
        else:
            carried = 0.0
    return last
