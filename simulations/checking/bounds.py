"""Bounds checker: bytes per day, questions open at once, and devices of a rollout's wave against their limits.

Rule: what was used is counted here from the facts, the limits are those of the policy's text; no account of the product
is asked. In doubt the count is too low: a flaw reported here is one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import msgspec

from simulations.checking.events import CandidateCommitted, CandidateServed, Flaw, QuestionAccepted, WaveAllowed

KEPT_HARM = 0.3  # points (0..1) worse that no wave of any size may let pass: the margin of the smallest is 0.25
SETTLE_S = 5.0  # what was on its way to the disk when a policy changed was judged by the one before


class PolicyLimits(msgspec.Struct, frozen=True):
    """Limits that a policy's text states; None = it states none."""

    bytes_per_day: int | None = None
    max_open: int | None = None


NO_LIMITS = PolicyLimits()


class BoundsChecker:
    """Checks each fact against the limits in force; `blame` is called for each bound that is crossed."""

    def __init__(self, blame: Callable[[Flaw, str], None]) -> None:
        self._blame = blame
        self._of_all = (NO_LIMITS, NO_LIMITS, 0.0)  # now, before, and when it changed
        self._of_one: dict[str, tuple[PolicyLimits, PolicyLimits, float]] = {}
        self._spent: dict[str, tuple[int, int]] = {}  # device -> (day, bytes)
        self._open: Counter[str] = Counter()
        self._allowed: dict[str, int] = {}
        self._exposed: defaultdict[str, set[str]] = defaultdict(set)

    def set_limits(self, limits: PolicyLimits, now_s: float, devices: Iterable[str] | None = None) -> None:
        """Put limits into force from now on; `devices` None = on all."""
        if devices is None:
            self._of_all = (limits, limits if not now_s else self._of_all[0], now_s)
            self._of_one.clear()
            return
        for device in devices:
            self._of_one[device] = (limits, self._of_one.get(device, self._of_all)[0], now_s)

    # Facts

    def on_accepted(self, event: QuestionAccepted) -> None:
        """A question was accepted, with its charge."""
        device, limits = event.key.device, self._limits_for(event.key.device, event.at_s)
        self._open[device] += 1
        if limits.max_open is not None and self._open[device] > limits.max_open:
            self._blame(Flaw.CROWDED, f"{event.key}: {self._open[device]} open, at most {limits.max_open}")
        day, spent = self._spent.get(device, (0, 0))
        if event.size and event.day < day:
            self._blame(Flaw.OVERSPENT, f"{event.key} is charged to day {event.day}, after one of day {day}")
            return
        spent = event.size + (spent if event.day == day else 0)
        self._spent[device] = event.day, spent
        if limits.bytes_per_day is not None and spent > limits.bytes_per_day:
            self._blame(Flaw.OVERSPENT, f"{event.key}: {spent} bytes on that day, at most {limits.bytes_per_day}")

    def take_over(self, device: str, day: int, spent_bytes: int) -> None:
        """Know what a device has spent on a day by questions that are over and were counted elsewhere."""
        if day >= self._spent.get(device, (0, 0))[0]:
            self._spent[device] = day, spent_bytes

    def on_ended(self, accepted: QuestionAccepted, *, free: bool) -> None:
        """A question has ended. `free`: it never left, so its charge may be refunded."""
        device = accepted.key.device
        self._open[device] -= 1
        if not self._open[device]:
            del self._open[device]
        day, spent = self._spent.get(device, (0, 0))
        if free and accepted.day == day:
            self._spent[device] = day, spent - accepted.size

    def on_allowed(self, event: WaveAllowed) -> None:
        """A rollout's wave permits so many devices."""
        self._allowed[event.rollout] = event.devices_at_most

    def on_exposed(self, event: CandidateServed) -> None:
        """A device serves what a rollout brings."""
        seen, most = self._exposed[event.rollout], self._allowed.get(event.rollout, 0)
        seen.add(event.device)
        if len(seen) > most:
            self._blame(Flaw.EXPOSED, f"{event.rollout}: {event.device} is the {len(seen)}th device, at most {most}")

    def on_committed(self, event: CandidateCommitted) -> None:
        """A device keeps what a rollout brought, for good."""
        if event.harm >= KEPT_HARM:
            story = f"{event.rollout}: {event.device} keeps a version that is {100 * event.harm:.0f} points worse"
            self._blame(Flaw.WORSE_KEPT, story)

    def _limits_for(self, device: str, at_s: float) -> PolicyLimits:
        now, before, changed_s = self._of_one.get(device, self._of_all)
        if now is before or at_s >= changed_s + SETTLE_S:
            return now
        return PolicyLimits(
            _looser_limit(now.bytes_per_day, before.bytes_per_day), _looser_limit(now.max_open, before.max_open)
        )


def _looser_limit(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
