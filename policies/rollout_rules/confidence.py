"""Confidence sequences by betting: bounds on a mean of better/same/worse counts, valid at every look. Pure.

Each sample is X = -1 (worse), 0 or +1 (better) and has a weight r in (0, 1]. Against "the mean of X is at most m" one
bets: every sample multiplies a stake by 1 + r g ((X + 1) / (1 + m) - 1), which is not more than 1 on average while that
is so, whatever the share g of the stake that is put in. So the stake reaches 1 / alpha with a probability of at most
alpha, *ever* (Ville 1939), and what was not ruled out is a confidence sequence (betting: Waudby-Smith & Ramdas 2023).
Seven values of g are played side by side, each with a seventh of the money.

Robustness against devices that report falsely: a bound that leaves out the `liars` devices which speak loudest for it
is a bound on the rest whichever of them lied, because the right ones to leave out would have cost no more.
Rule: total for all counts that are not negative.
"""

from collections import Counter
from collections.abc import Iterable
from math import exp, inf, log, log1p
from typing import NamedTuple

BET_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.9)
BISECTION_STEPS = 14  # halvings of an interval 2 wide: bounds are exact to 0.0002


class WeightedCounts(NamedTuple):
    """Samples of one weight of one device. Counts need not be whole: to count half is to bet half."""

    weight: float
    worse: float
    same: float
    better: float


DeviceCounts = tuple[WeightedCounts, ...]  # of one device
DeviceGroups = tuple[tuple[DeviceCounts, int], ...]  # profiles, and how many devices have this one


def group_devices(profiles: Iterable[DeviceCounts]) -> DeviceGroups:
    """Group devices with equal counts, so that each group is evaluated once."""
    return tuple(Counter(profiles).items())


def compute_weighted_mean(of: DeviceGroups) -> float:
    """Weighted mean of X (-1 to 1); 0 without samples."""
    moved = weight = 0.0
    for profile, devices in of:
        for tally in profile:
            moved += devices * tally.weight * (tally.better - tally.worse)
            weight += devices * tally.weight * (tally.better + tally.same + tally.worse)
    return moved / weight if weight else 0.0


def count_samples(of: DeviceGroups) -> int:
    """Number of samples, rounded."""
    return round(sum(devices * sum(t.worse + t.same + t.better for t in profile) for profile, devices in of))


def find_lower_bound(of: DeviceGroups, alpha: float, liars: int = 0) -> float:
    """Lower bound of the mean, even if `liars` devices report falsely.

    It is wrong with a probability of at most `alpha` over all looks.
    """
    against = log(1.0 / alpha)
    of = of if liars else _pool_devices(of)
    low, high = -1.0, 1.0
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if log_wealth(of, middle, liars) >= against else (low, middle)
    return low


def find_upper_bound(of: DeviceGroups, alpha: float, liars: int = 0) -> float:
    """Upper bound of the mean, even if `liars` devices report falsely.

    It is wrong with a probability of at most `alpha` over all looks.
    """
    return -find_lower_bound(mirror_outcomes(of), alpha, liars)


def mirror_outcomes(of: DeviceGroups) -> DeviceGroups:
    """The same counts with better and worse exchanged."""
    return tuple((tuple(WeightedCounts(t.weight, t.better, t.same, t.worse) for t in profile), n) for profile, n in of)


def log_wealth(of: DeviceGroups, most: float, liars: int = 0) -> float:
    """Logarithm of the wealth from betting against "the mean is at most `most`", less what liars might have won."""
    sums = [_sum_gains(of, share, most, liars) for share in BET_SHARES]
    top = max(sums)
    return top + log(sum(exp(s - top) for s in sums) / len(sums)) if -inf < top else -inf


def _pool_devices(of: DeviceGroups) -> DeviceGroups:
    """Pool all devices: where nobody is left out it does not matter who reported what."""
    sums: dict[float, list[float]] = {}
    for profile, devices in of:
        for tally in profile:
            total = sums.setdefault(tally.weight, [0.0, 0.0, 0.0])
            for place, count in enumerate(tally[1:]):
                total[place] += devices * count
    return ((tuple(WeightedCounts(weight, *total) for weight, total in sums.items()), 1),) if sums else ()


def _sum_gains(of: DeviceGroups, share: float, most: float, liars: int) -> float:
    gains = [(_log_gain(profile, share, most), devices) for profile, devices in of]
    total = sum(gain * devices for gain, devices in gains)
    return total - _largest_gains(gains, liars) if liars else total


def _largest_gains(gains: list[tuple[float, int]], liars: int) -> float:
    """Gains of the `liars` devices that won most; devices that have lost are not left out."""
    won, left = 0.0, liars
    for gain, devices in sorted(gains, reverse=True):
        taken = min(left, devices)
        if gain <= 0 or not taken:
            break
        won += gain * taken
        left -= taken
    return won


def _log_gain(profile: DeviceCounts, share: float, most: float) -> float:
    if most <= -1.0:
        return 0.0
    same, better = 1.0 / (1.0 + most) - 1.0, 2.0 / (1.0 + most) - 1.0
    gain = 0.0
    for tally in profile:
        bet = share * tally.weight
        gain += tally.worse * log1p(-bet) + tally.same * log1p(bet * same) + tally.better * log1p(bet * better)
    return gain


def estimate_samples_needed(margin: float, churn: float, alpha: float) -> int:
    """Estimate how many samples show that a version which is as good is not worse by `margin`.

    `churn`: the share of samples in which the two answers differ in being right.
    The best single bet grows by margin^2 / (2 max(churn, margin)) a sample; playing seven costs log 7.
    """
    grows = margin * margin / (2.0 * max(churn, margin))
    return int((log(1.0 / alpha) + log(len(BET_SHARES))) / grows) + 1
