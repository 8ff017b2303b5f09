"""Pace of a disk: whether its commits take so little time that the event loop may wait for them. Pure.

A commit handed to a thread costs two hand-overs between threads, which on a quick disk may take as long as the commit.
Rule: the loop waits where most of the last commits were quick, and slow ones hold it up for 1 % of its time at most: a
disk that stalls now and then sends the next commits to the thread until that is made up for.
"""

from math import isfinite

QUICK_S = 0.001  # a commit that takes longer is slow
STALL_SHARE = 0.01  # of all time, for which the loop may stand still beyond that
CREDIT_AT_MOST_S = 0.02  # what is saved up of it
_QUICK_SHARE = 0.75  # of the last commits, for most of them to be quick
_WEIGHT = 1 / 16  # of the newest commit among them


class CommitPace:
    """Pace of one database's commits; `now` is in seconds, from any clock that never goes back."""

    def __init__(self, now: float) -> None:
        self._quick = 0.0  # share of the last commits, the newer the heavier
        self._credit_s = 0.0
        self._credited_at = now

    def may_wait(self, now: float) -> bool:
        """Whether the event loop may wait for the next commit."""
        return self._quick >= _QUICK_SHARE and self._renew_credit(now) >= 0.0

    def record(self, took_s: float, now: float, *, waited: bool) -> None:
        """A commit took so many seconds, infinitely many if it failed. `waited`: the loop did for it."""
        self._quick += _WEIGHT * ((took_s <= QUICK_S) - self._quick)
        if waited and took_s > QUICK_S and isfinite(took_s):
            self._credit_s = self._renew_credit(now) - took_s

    def _renew_credit(self, now: float) -> float:
        earned_s = STALL_SHARE * (now - self._credited_at)
        self._credit_s, self._credited_at = min(CREDIT_AT_MOST_S, self._credit_s + earned_s), now
        return self._credit_s
