"""How far a rollout has come: its head, its history, and the people who approved of it. Pure.

Rule: the only place where a rollout's state changes, along the arrows of `rollout_words`, each time with an entry in
the history; and nothing of it counts before what `take` gives has been written.

How many devices may be told now: never more than so many in any minute, whatever restarts or other hubs do. Pure.

Law: whom this process did not tell itself it takes for told at the moment when it learns of it. So neither a restart,
nor a clock that was set ahead in between, nor a second hub ever frees a place too early; all it costs is a minute.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from math import inf

import msgspec

from cloud_hub.rollout.types import (
    Approval,
    Changes,
    Entry,
    Head,
    Plan,
    Record,
    RolloutError,
    RolloutState,
    Row,
    may_become,
)
from policies.rollout.plan import Rules

S = RolloutState
HUB = "hub"  # who did it, where no person did


class Course:
    """The head of one rollout and what is not yet written of its history."""

    def __init__(self, record: Record, rules: Rules | None) -> None:
        self.plan: Plan = record.plan
        self.head: Head = record.head
        self.digest = record.plan.digest  # of what lies there now, whatever was approved once
        self.damage = "its parameters are damaged" if rules is None else ""
        self._rules = rules or Rules()
        self._saved = record.head.revision
        self._written = record.head
        self._counted = record.entries
        self._entries: list[Entry] = []

    @property
    def state(self) -> RolloutState:
        return self.head.state

    @property
    def ends_ms(self) -> float:
        """When time alone leads out of this state; inf if it does not."""
        head, rules = self.head, self._rules
        began, limit_s = {
            S.WAITING_APPROVAL: (self.plan.made_ms, rules.wave_deadline_s),
            S.RUNNING: (head.wave_ms, rules.wave_deadline_s),
            S.SOAKING: (head.soak_ms, rules.soak_of(head.wave)),
            S.PAUSED_INCONCLUSIVE: (head.changed_ms, inf if head.held else rules.soak_of(head.wave)),
            S.ABORTING: (head.changed_ms, rules.withdraw_s),
            S.REVERTING: (head.changed_ms, rules.wave_deadline_s),
        }.get(head.state, (0, inf))
        return began + limit_s * 1000

    @property
    def broken(self) -> str:
        """Why nothing may be done under this plan; "" if it may."""
        people = {each.by for each in self.head.approvals if each.digest == self.digest}
        return self.damage or ("" if len(people) >= self.plan.people else "it is not what was approved")

    def to(self, state: RolloutState, ms: int, by: str = HUB, why: str = "") -> None:
        """From one state into another."""
        assert may_become(self.state, state), f"{self.state} -> {state}"
        self.set(state=state, why=why, changed_ms=ms)
        self.enter(by, state.value, why, ms)

    def set(self, **values: object) -> None:
        self.head = msgspec.structs.replace(self.head, **values)

    def enter(self, by: str, what: str, why: str, ms: int) -> None:
        """A line of the history."""
        self._counted += 1
        self._entries.append(Entry(self._counted, ms, by, what=what, why=why, state=self.state))

    def take(self, rows: tuple[Row, ...]) -> Changes | None:
        """What is to be written, these rows with it; None if there is nothing."""
        if not rows and self.head == self._written and not self._entries:
            return None
        expected, self._saved = self._saved, self._saved + 1
        self.set(revision=self._saved)
        self._written = self.head
        entries, self._entries = tuple(self._entries), []
        return Changes(self.plan.id, expected, self.head, rows, entries)

    # -- people

    def standing(self, ms: int) -> frozenset[str]:
        """People whose approval is of this very content, and not too old."""
        least = ms - self._rules.approval_s * 1000
        return frozenset(x.by for x in self.head.approvals if x.digest == self.digest and x.at_ms > least)

    def approved(self, ms: int) -> bool:
        return len(self.standing(ms)) >= self.plan.people

    def approve(self, approval: Approval, ms: int) -> None:
        """RolloutError if nothing waits for it, if it is of other content, or the same person's as before."""
        if self.state is not RolloutState.WAITING_APPROVAL:
            raise RolloutError("conflict", f"it is {self.state}: nothing waits for an approval")
        if approval.digest != self.digest:
            raise RolloutError("conflict", f"that is not what would be done now, which is {self.digest[:12]}")
        if approval.by in self.standing(ms):
            raise RolloutError("refused", f"{approval.by} has approved it already: it takes {self.plan.people} people")
        self.set(approvals=(*self.head.approvals, approval))
        self.enter(approval.by, "approved", f"plan {self.digest[:12]}", ms)


WINDOW_S = 60.0


class Pace:
    """A sliding window of who was told when. `now` in seconds; one that goes back frees nothing."""

    def __init__(self, told: Iterable[tuple[float, str]] = ()) -> None:
        self._told = deque(sorted(told))
        self._fresh = 0

    def __iter__(self) -> Iterator[tuple[float, str]]:
        return iter(self._told)

    def free(self, most: int, now: float) -> int:
        """How many more may be told at this moment, if `most` may be in any minute."""
        while self._told and self._told[0][0] <= now - WINDOW_S:
            self._told.popleft()
        return max(0, most - len(self._told))

    def take(self, device: str, now: float) -> None:
        """It was told. Times never fall, so that the oldest stands first."""
        self._told.append((max(now, self._told[-1][0]) if self._told else now, device))
        self._fresh += 1

    def settle(self, now: float) -> None:
        """Who was taken since goes out at this moment: writing it down first may have taken its time."""
        fresh = [self._told.pop()[1] for _ in range(min(self._fresh, len(self._told)))]
        self._fresh = 0
        for device in reversed(fresh):
            self.take(device, now)
        self._fresh = 0

    def free_at(self, most: int) -> float:
        """When the next place is free; -inf if there is one."""
        held = len(self._told) - most
        return self._told[held][0] + WINDOW_S if held >= 0 else -inf
