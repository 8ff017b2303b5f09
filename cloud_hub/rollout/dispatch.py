"""Who is told what, and when: candidates at the pace, a control cohort beside each wave, withdrawals at once. Pure.

Rule: the only place where a device is given a new word, each under a counter of its own. A candidate is told only in a
wave that has begun, while nothing is paused.

The word that a device is given: from its row and the plan, the same bytes whenever and by whichever hub it is said.

Rule: pure, and no content without a counter of its own: what is said under a counter is a function of what is on disk.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import inf
from typing import NamedTuple

from cloud_hub.rollout.fleet import Fleet
from cloud_hub.rollout.progress import Pace
from cloud_hub.rollout.types import (
    BEFORE,
    OPEN,
    TERMINAL,
    UNDER_WAY,
    UNSURE,
    Assign,
    Command,
    Goal,
    Head,
    Plan,
    RolloutDeviceState,
    RolloutState,
    Row,
    Target,
)
from policies.rollout.cohorts import DeviceQuality
from policies.rollout.gate import Gate
from policies.rollout.gate_rules import GateRules
from policies.rollout.plan import Rules, controls, per_minute
from wire.protocol.rollout import Assignment, Cohort

LONGEST_MS = 40 * 86_400_000  # devices believe no assignment that is to hold for longer
_NOTHING = Target("", 0, "")


def next_counter(last: int, ms: int) -> int:
    """Above all that this device was told before; also above what a hub told whose memory was lost since."""
    return max(last + 1, ms // 1000)


def assignment(plan: Plan, rules: Rules, row: Row) -> Assignment | None:
    """The newest word to the device of this row; None before there is one."""
    if row.goal is Goal.NONE:
        return None
    target = _target(plan, row.goal)
    life_ms = min(LONGEST_MS, int((rules.wave_deadline_s + rules.max_soak_s) * 1000))
    return Assignment(
        epoch=0,
        device=row.device,
        counter=row.counter,
        issued_ms=row.told_ms,
        expires_ms=row.told_ms + (LONGEST_MS if row.goal is Goal.WITHDRAWN else max(1000, life_ms)),
        rollout=plan.id,
        family=plan.family,
        path=target.path,
        version=target.version,
        digest=target.digest,
        cohort=Cohort.CONTROL if row.goal is Goal.CONTROL else Cohort.CANDIDATE,
        withdraw=row.goal is Goal.WITHDRAWN,
        audit_share=rules.audit_share if row.goal in {Goal.CANDIDATE, Goal.CONTROL} else 0.0,
        soak_s=rules.probation_s,
        min_inferences=rules.min_inferences,
        max_soak_s=max(rules.max_soak_s, rules.probation_s),
        strict=rules.strict,
        report_s=rules.report_s,
    )


def _target(plan: Plan, goal: Goal) -> Target:
    if goal is Goal.WITHDRAWN:
        return _NOTHING
    return plan.target if goal is Goal.CANDIDATE else plan.back or plan.target


Judge = Callable[[Sequence[DeviceQuality], Sequence[DeviceQuality], GateRules], Gate]
MAX_CONTROLS = 1000  # as many as tell a percent; more would only be more traffic
_INSTALLS = frozenset((Goal.CANDIDATE, Goal.BACK))


class Book(NamedTuple):
    """What a rollout's parts share; `counters`: the highest of the family that a device was ever given."""

    plan: Plan
    rules: Rules
    fleet: Fleet
    counters: dict[str, int]
    out: list[Command]


class Told:
    """`candidates`, `controls`, `back`: who is to be told next."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._order = tuple(chain(*book.plan.waves, book.plan.spare))
        self._cohort: tuple[str, ...] = ()
        self._candidates: deque[str] = deque()
        self._controls: deque[str] = deque()
        self._back: deque[str] = deque()
        self._again: deque[str] = deque()
        self.pace = Pace()
        self._control_pace = Pace()

    def resume(self, head: Head, now: float, before: "Told | None" = None) -> None:
        """Take up what is under way; who told it may have died before the word was out.

        `before`: what this process knew of the rollout until now: that it need not assume.
        """
        fresh = [row for row in self._book.fleet.rows.values() if row.goal is not Goal.NONE and not _knows(before, row)]
        installs = [row.device for row in fresh if row.exposed and row.goal is not Goal.CONTROL][-self._most() :]
        own = [(at, device) for at, device in before.pace if device in self._still(before)] if before else []
        self.pace = Pace([*own, *((now, device) for device in installs)])
        if head.state in TERMINAL | BEFORE:
            return
        self._choose(head.wave)
        self._queue(head.wave)
        rows = self._book.fleet.rows
        self._controls.extend(device for device in self._cohort if not self._is_control(rows[device], head))
        unheard = (row for row in fresh if not row.heard)
        self._again.extend(row.device for row in unheard if row.state in OPEN or row.goal is Goal.CONTROL)
        if head.state is RolloutState.REVERTING:
            self._back.extend(row.device for row in rows.values() if row.exposed and row.state is _QUEUED)

    def knows(self, row: Row) -> bool:
        """Whether it was told just this, as far as was known here."""
        known = self._book.fleet.rows.get(row.device)
        return known is not None and known.base == row.base

    def _still(self, before: "Told") -> frozenset[str]:
        """Whom `before` believed to have told, and has: what was not written was not said."""
        return frozenset(row.device for row in self._book.fleet.rows.values() if row.base and before.knows(row))

    @property
    def all(self) -> bool:
        """Nobody waits to be told."""
        return not (self._candidates or self._back)

    def free_at(self, head: Head) -> float:
        """When the next one may be told, in seconds; -inf = now, inf = nobody waits."""
        times = [inf]
        if head.state in UNDER_WAY and (self._again or (head.state is RolloutState.RUNNING and self._candidates)):
            times.append(self.pace.free_at(self._most()))
        if head.state is RolloutState.RUNNING and self._controls:
            times.append(self._control_pace.free_at(self._book.rules.most_per_minute))
        if head.state is RolloutState.REVERTING and self._back:
            times.append(self.pace.free_at(self._book.rules.most_per_minute))
        return min(times)

    # -- candidates and controls

    def begin(self, wave: int) -> None:
        """A wave has begun: its devices wait to be told, and as many others to be its controls."""
        self._queue(wave)
        self._choose(wave)
        self._controls = deque(self._cohort)

    def again(self, wave: int) -> None:
        """Whoever was taken back while people looked is told once more, under a new counter."""
        for row in self._book.fleet.of_wave(wave):
            if row.goal is Goal.WITHDRAWN and row.state in OPEN | {RolloutDeviceState.CANCELLED}:
                self._book.fleet.change(row, state=_QUEUED, goal=Goal.NONE, base=0)
        self._queue(wave)
        self._controls = deque(self._cohort)

    def tell(self, now: float) -> None:
        """As many as the pace allows."""
        for device in self._take(self._candidates, self.pace, self._most(), now):
            self._say(self._book.fleet.rows[device], Goal.CANDIDATE, now)
        for device in self._take(self._controls, self._control_pace, self._book.rules.most_per_minute, now):
            self._say(self._book.fleet.rows[device], Goal.CONTROL, now)

    def compared(self, head: Head, judge: Judge) -> Gate | None:
        """What the wave's figures say against the same figures of its controls; None where there is no comparison."""
        if self._book.plan.back is None or not self._cohort:
            return None
        fleet = self._book.fleet
        wave = [row for row in fleet.of_wave(head.wave) if row.goal is Goal.CANDIDATE]
        control = [fleet.rows[device] for device in self._cohort if self._is_control(fleet.rows[device], head)]
        return judge(_figures(wave), _figures(control), self._book.rules.gate)

    def _queue(self, wave: int) -> None:
        waiting = (row for row in self._book.fleet.of_wave(wave) if row.state is _QUEUED)
        self._candidates = deque(row.device for row in waiting)

    def _choose(self, wave: int) -> None:
        waves = self._book.plan.waves
        reached = sum(len(each) for each in waves[: wave + 1])
        size = min(MAX_CONTROLS, len(waves[wave]))
        self._cohort = controls(self._order, reached, size) if self._book.plan.back else ()

    @staticmethod
    def _is_control(row: Row, head: Head) -> bool:
        return row.goal is Goal.CONTROL and row.told_ms >= head.wave_ms

    # -- taking back

    def withdraw(self, now: float, *, everybody: bool = False, passed: int = 0) -> None:
        """Nothing is assigned any more to who has not committed; waves that have `passed` may keep what they were told.

        `everybody`: the controls too, and who waits is not told any more.
        """
        for row in self._book.fleet.rows.values():
            if (row.goal is Goal.CANDIDATE and row.state in OPEN | UNSURE and row.wave >= passed) or (
                everybody and row.goal is Goal.CONTROL
            ):
                self._say(row, Goal.WITHDRAWN, now)
            if everybody and row.state is _QUEUED and row.wave >= 0:
                self._book.fleet.change(row, state=RolloutDeviceState.CANCELLED)
        self._candidates.clear()
        self._controls.clear()
        self._again.clear()

    def release(self, now: float) -> None:
        """The controls have done their part."""
        for row in self._book.fleet.rows.values():
            if row.goal is Goal.CONTROL:
                self._say(row, Goal.WITHDRAWN, now)

    def send_back(self) -> bool:
        """Whoever has committed waits to be told the version before. False if there is nobody to go back."""
        fleet = self._book.fleet
        for row in fleet.rows.values():
            if row.state is RolloutDeviceState.SUCCEEDED and row.goal is not Goal.BACK:
                fleet.change(row, state=_QUEUED, goal=Goal.NONE)
                self._back.append(row.device)
        return bool(self._back)

    def tell_back(self, now: float) -> None:
        for device in self._take(self._back, self.pace, self._book.rules.most_per_minute, now):
            self._say(self._book.fleet.rows[device], Goal.BACK, now)

    # -- words

    def word_to(self, device: str) -> Assignment | None:
        row = self._book.fleet.rows.get(device)
        return assignment(self._book.plan, self._book.rules, row) if row else None

    def say_again(self, head: Head, now: float) -> None:
        """After a restart: the same words as before, to who has not answered, at the same pace."""
        if head.state in UNDER_WAY:
            for device in self._take(self._again, self.pace, self._most(), now):
                self._repeat(device)
        elif self._again and head.state in {RolloutState.ABORTING, RolloutState.PAUSED_INCONCLUSIVE}:
            for device in [d for d in self._again if self._book.fleet.rows[d].goal is Goal.WITHDRAWN]:
                self._repeat(device)
            self._again.clear()

    def _repeat(self, device: str) -> None:
        word = self.word_to(device)
        if word is not None and not self._book.fleet.rows[device].heard:
            self._book.out.append(Assign(device, word))

    def _say(self, row: Row, goal: Goal, now: float) -> None:
        ms = int(now * 1000)
        book = self._book
        counter = book.counters[row.device] = next_counter(book.counters.get(row.device, 0), ms)
        values = {"goal": goal, "counter": counter, "told_ms": ms}
        if goal is not Goal.WITHDRAWN:
            values |= {"base": counter, "heard": False, "quality": None, "signals": None}
        if goal in _INSTALLS:
            values |= {
                "state": RolloutDeviceState.NOTIFIED,
                "since_ms": ms,
                "sub": None,
                "failure": None,
                "exposed": True,
            }
        book.fleet.change(row, **values)
        book.fleet.watch(row)
        word = assignment(book.plan, book.rules, row)
        assert word is not None
        book.out.append(Assign(row.device, word))

    def _most(self) -> int:
        return per_minute(self._book.rules, self._book.fleet.succeeded)

    @staticmethod
    def _take(queue: deque[str], pace: Pace, most: int, now: float) -> list[str]:
        taken = [queue.popleft() for _ in range(min(len(queue), pace.free(most, now)))]
        for device in taken:
            pace.take(device, now)
        return taken


_QUEUED = RolloutDeviceState.QUEUED


def _knows(before: Told | None, row: Row) -> bool:
    return before is not None and before.knows(row)


def _figures(rows: Iterable[Row]) -> tuple[DeviceQuality, ...]:
    return tuple(DeviceQuality(row.device, row.quality, row.signals) for row in rows)
