"""How far a rollout has come: its head, its history, and the people who approved of it. Pure.

Rule: the only place where a rollout's state changes, along the arrows of `rollout_words`, each time with an entry in
the history; and nothing of it counts before what `take` gives has been written.
"""

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
from policies.rollout.merging_plan_rollout import Rules

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
