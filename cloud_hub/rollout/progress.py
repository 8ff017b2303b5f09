"""Progress of one rollout: its state, history and approvals, and the rate window of its assignments. Pure.

Rule: the only place where a rollout's state changes, along the arrows of `can_become`, each time with an entry in
the history; and nothing of it counts before what `take_changes` gives has been written.
Rule: never more than a set number of assignments in any minute, whatever restarts or other hubs do. Assignments that
this process did not send itself count as sent when it learns of them, so neither a restart, nor a clock that was set
ahead in between, nor a second hub ever frees a place too early; all it costs is a minute.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from math import inf

import msgspec

from cloud_hub.rollout.types import (
    Approval,
    HistoryEntry,
    RolloutChanges,
    RolloutError,
    RolloutHead,
    RolloutPlan,
    RolloutRecord,
    RolloutRow,
    RolloutState,
    can_become,
)
from policies.rollout_rules.plan import RolloutRules
from policies.rollout_rules.wave_results import ExcusedCounts

S = RolloutState
BY_HUB = "hub"  # author of a history entry, where it was no person


class RolloutProgress:
    """Head, approvals and unwritten history of one rollout.

    `digest` is of the plan as it is stored now, whatever was approved once; `damage` says why its parameters cannot be
    used, "" if they can.
    """

    def __init__(self, record: RolloutRecord, rules: RolloutRules | None) -> None:
        self.plan: RolloutPlan = record.plan
        self.head: RolloutHead = record.head
        self.digest = record.plan.digest  # of the stored plan, whatever was approved once
        self.damage = "its parameters are damaged" if rules is None else ""
        self._rules = rules or RolloutRules()
        self._saved = record.head.revision
        self._written = record.head
        self._counted = record.entries
        self._entries: list[HistoryEntry] = []

    @property
    def state(self) -> RolloutState:
        """Current state of the rollout."""
        return self.head.state

    @property
    def ends_ms(self) -> float:
        """When time alone leads out of this state, in ms; inf if it does not."""
        head, rules = self.head, self._rules
        began, limit_s = {
            S.WAITING_APPROVAL: (self.plan.made_ms, rules.wave_deadline_s),
            S.RUNNING: (head.wave_ms, rules.wave_deadline_s),
            S.SOAKING: (max(head.soak_ms, head.look_ms), rules.soak_for(head.wave)),
            S.PAUSED_INCONCLUSIVE: (head.changed_ms, inf if head.held else rules.soak_for(head.wave)),
            S.ABORTING: (head.changed_ms, rules.withdraw_s),
            S.REVERTING: (head.changed_ms, rules.wave_deadline_s),
        }.get(head.state, (0, inf))
        return began + limit_s * 1000

    @property
    def block_reason(self) -> str:
        """Why nothing may be done under this plan; "" if it may."""
        people = {each.by for each in self.head.approvals if each.digest == self.digest}
        return self.damage or ("" if len(people) >= self.plan.people else "it is not what was approved")

    def change_state(self, state: RolloutState, ms: int, by: str = BY_HUB, why: str = "") -> None:
        """Change the state and write a history entry.

        An arrow that `can_become` does not allow is an AssertionError.
        """
        assert can_become(self.state, state), f"{self.state} -> {state}"
        self.set_fields(state=state, why=why, changed_ms=ms)
        self.add_entry(by, state.value, why, ms)

    def set_fields(self, **values: object) -> None:
        """Replace fields of the head."""
        self.head = msgspec.structs.replace(self.head, **values)

    def begin_wave(self, wave: int, ms: int) -> None:
        """Set a wave, counted from 0, with fresh times, evidence and excuses."""
        self.set_fields(wave=wave, wave_ms=ms, soak_ms=0, look_ms=0, audits=0, accepted=False, excused=ExcusedCounts())

    def prolong_soak(self, audits: int, ms: int) -> bool:
        """Watch a wave for one soak more if audits came since the last one; False if none did, or `max_soak_s` is over.

        `audits`: of the wave up to now.
        """
        if audits <= self.head.audits or ms >= self.head.soak_ms + self._rules.max_soak_s * 1000:
            return False
        self.set_fields(audits=audits, look_ms=ms)
        return True

    def add_entry(self, by: str, what: str, why: str, ms: int) -> None:
        """Append an entry to the history."""
        self._counted += 1
        self._entries.append(HistoryEntry(self._counted, ms, by, what=what, why=why, state=self.state))

    def take_changes(self, rows: tuple[RolloutRow, ...]) -> RolloutChanges | None:
        """Return what has to be written, with these rows; None if there is nothing. Raises the revision by one."""
        if not rows and self.head == self._written and not self._entries:
            return None
        expected, self._saved = self._saved, self._saved + 1
        self.set_fields(revision=self._saved)
        self._written = self.head
        entries, self._entries = tuple(self._entries), []
        return RolloutChanges(self.plan.id, expected, self.head, rows, entries)

    # -- people

    def valid_approvals(self, ms: int) -> frozenset[str]:
        """Return the people whose approval is of this very content, and not too old at hub time `ms`."""
        least = ms - self._rules.approval_s * 1000
        return frozenset(x.by for x in self.head.approvals if x.digest == self.digest and x.at_ms > least)

    def is_approved(self, ms: int) -> bool:
        """Whether enough people approve of the plan at hub time `ms`."""
        return len(self.valid_approvals(ms)) >= self.plan.people

    def add_approval(self, approval: Approval, ms: int) -> None:
        """Add an approval.

        RolloutError if nothing waits for it, if it is of other content, or the same person's as before.
        """
        if self.state is not RolloutState.WAITING_APPROVAL:
            raise RolloutError("conflict", f"it is {self.state}: nothing waits for an approval")
        if approval.digest != self.digest:
            raise RolloutError("conflict", f"the plan has changed, its digest is now {self.digest[:12]}")
        if approval.by in self.valid_approvals(ms):
            raise RolloutError("refused", f"{approval.by} has approved it already: it takes {self.plan.people} people")
        self.set_fields(approvals=(*self.head.approvals, approval))
        self.add_entry(approval.by, "approved", f"plan {self.digest[:12]}", ms)


WINDOW_S = 60.0


class RateWindow:
    """Sliding window of one minute over who was assigned something when.

    `now` is in seconds; a clock that goes back frees nothing.
    """

    def __init__(self, told: Iterable[tuple[float, str]] = ()) -> None:
        self._told = deque(sorted(told))
        self._fresh = 0

    def __iter__(self) -> Iterator[tuple[float, str]]:
        return iter(self._told)

    def free_places(self, most: int, now: float) -> int:
        """Return how many more may be assigned now, if `most` may be in any minute."""
        while self._told and self._told[0][0] <= now - WINDOW_S:
            self._told.popleft()
        return max(0, most - len(self._told))

    def record_sent(self, device: str, now: float) -> None:
        """Record an assignment. Times never fall, so that the oldest stands first."""
        self._told.append((max(now, self._told[-1][0]) if self._told else now, device))
        self._fresh += 1

    def settle_times(self, now: float) -> None:
        """Move the assignments recorded since the last call to `now`, when they are sent.

        Writing them down first may have taken its time.
        """
        fresh = [self._told.pop()[1] for _ in range(min(self._fresh, len(self._told)))]
        self._fresh = 0
        for device in reversed(fresh):
            self.record_sent(device, now)
        self._fresh = 0

    def free_at(self, most: int) -> float:
        """Return when the next place is free, in seconds; -inf if there is one."""
        held = len(self._told) - most
        return self._told[held][0] + WINDOW_S if held >= 0 else -inf
