"""Results of a rollout's wave: its counts, when it has enough of them, and when they stop it. Pure.

Rule: total; a share of nothing is 0 and never counts as success. Whether the version *answers* as well is decided by
`gate`, the parameters lie in `plan`.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import ceil
from typing import NamedTuple

from policies.rollout_rules.plan import RolloutRules

CONFIDENCE_LEVEL = 0.95  # of the small-sample bound


class WaveCounts(NamedTuple):
    """Results of the devices of one wave. `told`: assigned of `size`; `reachable`: heard since or not assigned yet."""

    size: int = 0
    told: int = 0
    reachable: int = 0
    succeeded: int = 0
    failed: int = 0  # also timed out, rolled back, rejected for anything but incompatibility
    integrity: int = 0  # of those: refused for what its bytes or its signatures are
    crashed: int = 0  # of those: the new version did not stay up
    incompatible: int = 0  # left out: this version is not for such a device
    left: int = 0  # cancelled, superseded or no longer in the fleet: neither a success nor a failure
    proven: int = 0  # passed their own trial, and wait for the hub's release
    excused: int = 0  # of the failed: a person has seen just these, and went on

    @property
    def terminal(self) -> int:
        """Number of results that count: successes, passed trials and failures that nobody excused."""
        return self.good + self.failed - self.excused

    @property
    def good(self) -> int:
        """Number of devices on which the version works: committed, or only waiting to be released."""
        return self.succeeded + self.proven

    @property
    def able(self) -> int:
        """Number of devices that may give a result."""
        return self.size - self.incompatible - self.left - self.excused


class WaveAction(StrEnum):
    """Action on a wave, judged by its reports."""

    GO = "go"  # enough results, and enough of them good
    WAIT = "wait"  # too few results
    PAUSE = "pause"  # a person has to look
    ABORT = "abort"


class WaveStatus(NamedTuple):
    """Action and its reason for a person."""

    word: WaveAction
    why: str = ""


class ExcusedCounts(NamedTuple):
    """Problems that a person has seen and let pass: only more of them pause again."""

    integrity: int = 0
    incompatible: int = 0


NO_EXCUSE = ExcusedCounts()
# of a wave that has passed: it pauses nothing any more, but it may still abort
SETTLED_EXCUSE = ExcusedCounts(1 << 53, 1 << 53)


def check_stop(
    counts: WaveCounts, rules: RolloutRules, *, first: bool = False, excused: ExcusedCounts = NO_EXCUSE
) -> WaveStatus:
    """Decide whether to stop a wave now; GO = nothing speaks against going on. `first`: two crashes abort it."""
    failures, able = counts.failed - counts.excused, counts.told - counts.left - counts.incompatible
    share = _to_percent(failures, able)  # of all that were told: failures come in before successes do
    if counts.integrity >= 2:
        return WaveStatus(WaveAction.ABORT, f"{counts.integrity} devices refused what they were sent (integrity)")
    if first and counts.crashed >= 2:
        why = f"the new version did not stay up on {counts.crashed} devices of the first wave"
        return WaveStatus(WaveAction.ABORT, why)
    if failures >= min(rules.max_failures, counts.size) > 0 and share > rules.max_failure_share:
        return WaveStatus(WaveAction.ABORT, f"{failures} of {able} devices that were told have failed ({share:.0f} %)")
    if counts.integrity > excused.integrity:
        return WaveStatus(WaveAction.PAUSE, "a device refused what it was sent (integrity)")
    odd = _to_percent(counts.incompatible, counts.size)
    if counts.incompatible > excused.incompatible and odd > rules.rejected_share:
        why = f"{counts.incompatible} of {counts.size} devices cannot run it ({odd:.0f} %)"
        return WaveStatus(WaveAction.PAUSE, why)
    return WaveStatus(WaveAction.GO)


def judge_waves(waves: Sequence[WaveCounts], rules: RolloutRules, excused: ExcusedCounts) -> WaveStatus:
    """Judge all waves so far, the present one last; the worst status counts.

    `excused` is of the present wave; one that has passed may still abort, but pauses nothing.
    """
    present = len(waves) - 1
    each = [
        check_stop(counts, rules, first=number == 0, excused=excused if number == present else SETTLED_EXCUSE)
        for number, counts in enumerate(waves)
    ]
    worst = sorted(each, key=lambda status: (status.word is not WaveAction.ABORT, status.word is not WaveAction.PAUSE))
    return worst[0] if worst else WaveStatus(WaveAction.GO)


def check_results(counts: WaveCounts, rules: RolloutRules, *, small: bool) -> WaveStatus:
    """Whether the soak may begin: GO with enough results, or once no device is left that could give one, else WAIT."""
    needed = count_required_results(counts, rules, small=small)
    if (counts.terminal < needed and counts.able > 0) or counts.told < counts.size or not counts.size:
        why = f"{counts.terminal} of {needed} results needed, {counts.told} of {counts.size} told"
        return WaveStatus(WaveAction.WAIT, why)
    return WaveStatus(WaveAction.GO)


def count_required_results(counts: WaveCounts, rules: RolloutRules, *, small: bool) -> int:
    """Number of terminal results that this wave needs; at least one whatever its size."""
    least = rules.minimum or (1 if small else 10)
    return max(1, min(counts.able, max(least, ceil(counts.reachable * rules.min_share / 100))))


def check_success(counts: WaveCounts, rules: RolloutRules) -> WaveStatus:
    """Decide at the end of a soak: GO if enough of the results are good, else PAUSE."""
    share = _to_percent(counts.good, counts.terminal)
    if counts.terminal and share >= rules.success_share:
        return WaveStatus(WaveAction.GO)
    why = f"{counts.good} of {counts.terminal} succeeded, {rules.success_share:g} % needed"
    return WaveStatus(WaveAction.PAUSE, why)


def excluded_failure_rate(results: int) -> float:
    """Failure rate (0..1) that 0 failures of `results` exclude with 95 % confidence.

    10: 0.259, 59: 0.05, 299: 0.01. So a first wave finds disasters; later ones find small harm.
    """
    return float(1.0 - (1.0 - CONFIDENCE_LEVEL) ** (1.0 / results)) if results > 0 else 1.0


def _to_percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0
