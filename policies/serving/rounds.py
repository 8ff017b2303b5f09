"""Rounds of the hub: how long questions that have arrived wait for others, to share a commit and a batch. Pure.

A round costs a commit, a batch, and hand-overs between threads, whatever is in it. Rule: nothing waits for what is not
expected. A round expects as many questions as are open, or as devices asked lately, whichever is more: a device that
asks one question after another expects no other and waits for nobody. Rule: a calm hub has time for rounds of one; the
busier its event loop, the longer a round may gather, and never longer than a share of its tightest deadline.
"""

from math import exp, inf

import msgspec


class RoundLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits of gathering.

    `max_wait_s`: of a loop that is always busy, 0 = nothing ever waits; `deadline_share`: of the time that the tightest
    deadline leaves; `full`: questions that make a round worth its commit; `calm`: busy share of the loop up to which
    nothing waits.
    """

    max_wait_s: float
    deadline_share: float = 0.02
    full: int = 16
    calm: float = 0.25


class RoundLoad(msgspec.Struct, frozen=True, gc=False):
    """What is known when a round is judged, the questions of the round counted too.

    `open_questions`: without an ending; `askers`: devices that asked within the last `max_wait_s`; `busy`: share of the
    event loop's time that was spent working.
    """

    open_questions: int
    askers: int
    busy: float


class GatheredRound(msgspec.Struct, frozen=True, gc=False):
    """Questions that wait for their round to end. `tightest`: their earliest deadline; inf = none has one."""

    began_s: float
    questions: int = 0
    tightest: float = inf

    def add(self, deadline: float) -> "GatheredRound":
        """The round with one more question."""
        return GatheredRound(self.began_s, self.questions + 1, min(self.tightest, deadline))


def find_round_end(gathered: GatheredRound, load: RoundLoad, limits: RoundLimits) -> float:
    """When the round ends: its own beginning = at once."""
    expected = min(limits.full, max(load.open_questions, load.askers))
    if gathered.questions == 0 or gathered.questions >= expected:
        return gathered.began_s
    strain = min(1.0, max(0.0, (load.busy - limits.calm) / (1.0 - limits.calm)))
    wait_s = limits.max_wait_s * strain
    if gathered.tightest < inf:
        wait_s = min(wait_s, limits.deadline_share * max(0.0, gathered.tightest - gathered.began_s))
    return gathered.began_s + wait_s


def learn_busy(before: float, worked_s: float, passed_s: float, memory_s: float = 1.0) -> float:
    """Busy share of the loop after it worked `worked_s` of `passed_s` seconds; what is older than `memory_s` fades."""
    if passed_s <= 0.0:
        return before
    now = min(1.0, max(0.0, worked_s / passed_s))
    return now + (before - now) * exp(-passed_s / memory_s)
