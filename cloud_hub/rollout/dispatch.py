"""Assignments of one rollout: which device is assigned what and when, at a limited rate, and as which bytes. Pure.

Rule: the only place where a device is given a new assignment, each under a counter of its own. A candidate is assigned
only in a wave that has begun, while nothing is paused. Beside each wave a control cohort is told to stay and report.
Rule: no content without a counter of its own: what is sent under a counter is a function of the device's row and the
plan, the same bytes whenever and by whichever hub it is sent.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import inf
from typing import NamedTuple

from cloud_hub.rollout.fleet import RolloutFleet
from cloud_hub.rollout.progress import RateWindow
from cloud_hub.rollout.types import (
    NOT_STARTED,
    OPEN,
    TERMINAL,
    TIMED_OUT_STATES,
    UNDER_WAY,
    Assign,
    BundleTarget,
    DeviceGoal,
    RolloutCommand,
    RolloutDeviceState,
    RolloutHead,
    RolloutPlan,
    RolloutRow,
    RolloutState,
)
from policies.rollout_rules.cohorts import DeviceQuality
from policies.rollout_rules.gate import GateResult
from policies.rollout_rules.gate_parameters import GateRules
from policies.rollout_rules.plan import RolloutRules, compute_rate, pick_controls
from wire.protocol.rollout import Assignment, RolloutCohort

LONGEST_MS = 40 * 86_400_000  # devices refuse an assignment with a longer life
_NOTHING = BundleTarget("", 0, "")


def next_counter(last: int, ms: int) -> int:
    """Return the next assignment counter of a device, at hub time `ms`.

    It is above all that the device was given before (`last`), and also above what was given by a hub whose memory was
    lost since, because it never falls below the time in seconds.
    """
    return max(last + 1, ms // 1000)


def build_assignment(plan: RolloutPlan, rules: RolloutRules, row: RolloutRow) -> Assignment | None:
    """Build the newest assignment of the device of this row; None before there is one.

    An assignment expires after the wave's deadline plus its longest soak, a withdrawal after 40 days. Controls get the
    version before, and like candidates report quality figures (`audit_share`); `soak_s`, `max_soak_s` and
    `min_inferences` say how long the device stays in probation. What was good before needs no answers to be kept.
    """
    if row.goal is DeviceGoal.NONE:
        return None
    target = _choose_target(plan, row.goal)
    proves = row.goal is DeviceGoal.CANDIDATE
    life_ms = min(LONGEST_MS, int((rules.wave_deadline_s + rules.max_soak_s) * 1000))
    return Assignment(
        epoch=0,
        device=row.device,
        counter=row.counter,
        issued_ms=row.told_ms,
        expires_ms=row.told_ms + (LONGEST_MS if row.goal is DeviceGoal.WITHDRAWN else max(1000, life_ms)),
        rollout=plan.id,
        family=plan.family,
        path=target.path,
        version=target.version,
        digest=target.digest,
        cohort=RolloutCohort.CONTROL if row.goal is DeviceGoal.CONTROL else RolloutCohort.CANDIDATE,
        withdraw=row.goal is DeviceGoal.WITHDRAWN,
        audit_share=rules.audit_share if row.goal in {DeviceGoal.CANDIDATE, DeviceGoal.CONTROL} else 0.0,
        soak_s=rules.probation_s,
        min_inferences=0 if row.goal is DeviceGoal.BACK else rules.min_inferences,
        max_soak_s=max(rules.max_soak_s, rules.probation_s),
        strict=rules.strict,
        report_s=rules.report_s,
        needs_release=proves and plan.needs_release and not row.released,
    )


def _choose_target(plan: RolloutPlan, goal: DeviceGoal) -> BundleTarget:
    """Return the bundle that a goal means: the new one, the one before, or none for a withdrawal."""
    if goal is DeviceGoal.WITHDRAWN:
        return _NOTHING
    return plan.target if goal is DeviceGoal.CANDIDATE else plan.back or plan.target


GateFunction = Callable[[Sequence[DeviceQuality], Sequence[DeviceQuality] | None, GateRules], GateResult]
MAX_CONTROLS = 1000  # enough to measure one percent; more would only be more traffic
_INSTALLS = frozenset((DeviceGoal.CANDIDATE, DeviceGoal.BACK))


class RolloutContext(NamedTuple):
    """State that the parts of a rollout share.

    `counters`: the highest of the family that each device was ever given; `out`: commands to be obeyed after the event.
    """

    plan: RolloutPlan
    rules: RolloutRules
    fleet: RolloutFleet
    counters: dict[str, int]
    out: list[RolloutCommand]


class WaveDispatcher:
    """Queues of devices that wait for an assignment, and the rate at which they get it.

    `pace` is the rate window of candidates and of devices that go back; the controls have their own.
    """

    def __init__(self, book: RolloutContext) -> None:
        """Make empty queues; `resume_queues` fills them from the stored rows."""
        self._book = book
        self._order = tuple(chain(*book.plan.waves, book.plan.spare))
        self._cohort: tuple[str, ...] = ()
        self._candidates: deque[str] = deque()
        self._controls: deque[str] = deque()
        self._back: deque[str] = deque()
        self._again: deque[str] = deque()
        self.pace = RateWindow()
        self._control_pace = RateWindow()

    def resume_queues(self, head: RolloutHead, now: float, before: "WaveDispatcher | None" = None) -> None:
        """Take up a stored rollout; the hub that assigned something may have died before it was sent.

        `head`: the rollout's state; `now`: seconds. `before`: the dispatcher that this process had of the rollout until
        now: what that one sent is known, everything else counts as sent now.
        """
        fresh = [
            row
            for row in self._book.fleet.rows.values()
            if row.goal is not DeviceGoal.NONE and not _already_assigned(before, row)
        ]
        installs = [row.device for row in fresh if row.exposed and row.goal is not DeviceGoal.CONTROL][
            -self._rate_limit() :
        ]
        own = [(at, device) for at, device in before.pace if device in self._still_assigned(before)] if before else []
        self.pace = RateWindow([*own, *((now, device) for device in installs)])
        if head.state in TERMINAL | NOT_STARTED:
            return
        self._choose_controls(head.wave)
        self._queue_candidates(head.wave)
        rows = self._book.fleet.rows
        self._controls.extend(device for device in self._cohort if not self._is_control(rows[device], head))
        unheard = (row for row in fresh if not row.heard)
        self._again.extend(row.device for row in unheard if row.state in OPEN or row.goal is DeviceGoal.CONTROL)
        self._again.extend(row.device for row in fresh if row.heard and _waits_for_release(row))
        if head.state is RolloutState.REVERTING:
            self._back.extend(row.device for row in rows.values() if row.exposed and row.state is _QUEUED)

    def knows_assignment(self, row: RolloutRow) -> bool:
        """Whether the device was given just this assignment, as far as this process knows."""
        known = self._book.fleet.rows.get(row.device)
        return known is not None and known.base == row.base

    def _still_assigned(self, before: "WaveDispatcher") -> frozenset[str]:
        """Return the devices that `before` assigned and the store confirms: what was not written was not sent."""
        return frozenset(row.device for row in self._book.fleet.rows.values() if before.knows_assignment(row))

    @property
    def all_assigned(self) -> bool:
        """Whether no candidate and no device on its way back waits for an assignment."""
        return not (self._candidates or self._back)

    def free_at(self, head: RolloutHead) -> float:
        """Return when the next assignment may be sent, in seconds; -inf = now, inf = nobody waits."""
        times = [inf]
        if head.state in UNDER_WAY and (self._again or (head.state is RolloutState.RUNNING and self._candidates)):
            times.append(self.pace.free_at(self._rate_limit()))
        if head.state is RolloutState.RUNNING and self._controls:
            times.append(self._control_pace.free_at(self._book.rules.most_per_minute))
        if head.state is RolloutState.REVERTING and self._back:
            times.append(self.pace.free_at(self._book.rules.most_per_minute))
        return min(times)

    # -- candidates and controls

    def begin_wave(self, wave: int) -> None:
        """Begin a wave: queue its devices, and as many others to be its controls."""
        self._queue_candidates(wave)
        self._choose_controls(wave)
        self._controls = deque(self._cohort)

    def requeue_withdrawn(self, wave: int) -> None:
        """Queue once more, under new counters, the devices whose assignment was withdrawn while people looked."""
        for row in self._book.fleet.rows_of_wave(wave):
            if row.goal is DeviceGoal.WITHDRAWN and row.state in OPEN | {RolloutDeviceState.CANCELLED}:
                self._book.fleet.change_row(row, state=_QUEUED, goal=DeviceGoal.NONE, base=0, trial_passed=False)
        self._queue_candidates(wave)
        self._controls = deque(self._cohort)

    def assign_due(self, now: float) -> None:
        """Assign the new version to candidates, and the old one to controls, as far as the rate allows.

        `now` in seconds.
        """
        for device in self._take_due(self._candidates, self.pace, self._rate_limit(), now):
            self._assign(self._book.fleet.rows[device], DeviceGoal.CANDIDATE, now)
        for device in self._take_due(self._controls, self._control_pace, self._book.rules.most_per_minute, now):
            self._assign(self._book.fleet.rows[device], DeviceGoal.CONTROL, now)

    def compare_cohorts(self, head: RolloutHead, judge: GateFunction) -> GateResult | None:
        """Compare the candidate with the committed model in a wave, and the wave with its controls if it has any.

        None where there is nothing to compare with: no version before, or a way down that people have signed.
        """
        plan, fleet = self._book.plan, self._book.fleet
        if plan.back is None or not (self._cohort or plan.needs_release):
            return None
        wave = [row for row in fleet.rows_of_wave(head.wave) if _is_judged(row)]
        control = [fleet.rows[device] for device in self._cohort if self._is_control(fleet.rows[device], head)]
        controls = _collect_quality(control) if self._cohort else None
        return judge(_collect_quality(wave), controls, self._book.rules.gate)

    def release_wave(self, wave: int, now: float) -> None:
        """Let the devices of a wave that passed commit: the same assignment again, without the need of a release."""
        book = self._book
        for row in book.fleet.rows_of_wave(wave) if book.plan.needs_release else ():
            if row.goal is DeviceGoal.CANDIDATE and row.state in OPEN | TIMED_OUT_STATES and not row.released:
                ms = int(now * 1000)
                counter = book.counters[row.device] = next_counter(book.counters.get(row.device, 0), ms)
                book.fleet.change_row(row, released=True, counter=counter, told_ms=ms, since_ms=ms)
                book.fleet.start_timer(row)
                self._emit_assignment(row)

    def follow_members(self, present: frozenset[str], head: RolloutHead, now: float) -> None:
        """Let go of the devices that are not `present` any more, and take back those of this wave that came again."""
        for row in self._book.fleet.follow_members(present, head.wave):
            if row.goal is DeviceGoal.CANDIDATE:
                self._assign(row, DeviceGoal.WITHDRAWN, now)
        if head.state in UNDER_WAY:
            self._queue_candidates(head.wave)

    def _queue_candidates(self, wave: int) -> None:
        """Queue the devices of a wave that wait for their first assignment."""
        waiting = (row for row in self._book.fleet.rows_of_wave(wave) if row.state is _QUEUED)
        self._candidates = deque(row.device for row in waiting)

    def _choose_controls(self, wave: int) -> None:
        """Choose the controls of a wave among devices that no wave has reached yet, at most 1000.

        There are none without a version before.
        """
        waves = self._book.plan.waves
        reached = sum(len(each) for each in waves[: wave + 1])
        size = min(MAX_CONTROLS, len(waves[wave]))
        self._cohort = pick_controls(self._order, reached, size) if self._book.plan.back else ()

    @staticmethod
    def _is_control(row: RolloutRow, head: RolloutHead) -> bool:
        """Whether the device was told to be a control of the present wave."""
        told = row.goal is DeviceGoal.CONTROL and row.told_ms >= head.wave_ms
        return told and row.state is not RolloutDeviceState.LEFT

    # -- taking back

    def withdraw_open(self, now: float, *, everybody: bool = False, passed: int = 0) -> None:
        """Withdraw the assignment of every device that has not committed; devices of waves below `passed` keep theirs.

        `everybody`: also the controls, and devices that wait are cancelled. `now` in seconds.
        """
        for row in self._book.fleet.rows.values():
            if (row.goal is DeviceGoal.CANDIDATE and row.state in OPEN | TIMED_OUT_STATES and row.wave >= passed) or (
                everybody and row.goal is DeviceGoal.CONTROL
            ):
                self._assign(row, DeviceGoal.WITHDRAWN, now)
            if everybody and row.state is _QUEUED and row.wave >= 0:
                self._book.fleet.change_row(row, state=RolloutDeviceState.CANCELLED)
        self._candidates.clear()
        self._controls.clear()
        self._again.clear()

    def release_controls(self, now: float) -> None:
        """Release the controls, whose comparison is over."""
        for row in self._book.fleet.rows.values():
            if row.goal is DeviceGoal.CONTROL:
                self._assign(row, DeviceGoal.WITHDRAWN, now)

    def queue_reverts(self) -> bool:
        """Queue every device that has committed for the version before. False if there is nobody to go back."""
        fleet = self._book.fleet
        for row in fleet.rows.values():
            if row.state is RolloutDeviceState.SUCCEEDED and row.goal is not DeviceGoal.BACK:
                fleet.change_row(row, state=_QUEUED, goal=DeviceGoal.NONE)
                self._back.append(row.device)
        return bool(self._back)

    def assign_reverts(self, now: float) -> None:
        """Assign the version before to queued devices, as far as the rate allows."""
        for device in self._take_due(self._back, self.pace, self._book.rules.most_per_minute, now):
            self._assign(self._book.fleet.rows[device], DeviceGoal.BACK, now)

    # -- words

    def assignment_for(self, device: str) -> Assignment | None:
        """Return the newest assignment of a device, None if it has none."""
        row = self._book.fleet.rows.get(device)
        return build_assignment(self._book.plan, self._book.rules, row) if row else None

    def repeat_unanswered(self, head: RolloutHead, now: float) -> None:
        """Repeat after a restart the same assignments to devices that have not answered, at the same rate."""
        if head.state in UNDER_WAY:
            for device in self._take_due(self._again, self.pace, self._rate_limit(), now):
                self._repeat_assignment(device)
        elif self._again and head.state in {RolloutState.ABORTING, RolloutState.PAUSED_INCONCLUSIVE}:
            for device in [d for d in self._again if self._book.fleet.rows[d].goal is DeviceGoal.WITHDRAWN]:
                self._repeat_assignment(device)
            self._again.clear()

    def _repeat_assignment(self, device: str) -> None:
        """Emit the device's present assignment once more, under its old counter, unless it has answered."""
        row = self._book.fleet.rows[device]
        if row.goal is not DeviceGoal.NONE and (not row.heard or _waits_for_release(row)):
            self._emit_assignment(row)

    def _assign(self, row: RolloutRow, goal: DeviceGoal, now: float) -> None:
        """Give a device a new assignment under its next counter, and emit the command that sends it."""
        ms = int(now * 1000)
        book = self._book
        counter = book.counters[row.device] = next_counter(book.counters.get(row.device, 0), ms)
        values = {"goal": goal, "counter": counter, "told_ms": ms}
        if goal is not DeviceGoal.WITHDRAWN:
            values |= {"base": counter, "heard": False, "quality": None, "signals": None}
        if goal in _INSTALLS:
            values |= {
                "state": RolloutDeviceState.NOTIFIED,
                "since_ms": ms,
                "sub": None,
                "failure": None,
                "exposed": True,
                "trial_passed": False,
                "released": False,
                "excused": False,
            }
        book.fleet.change_row(row, **values)
        book.fleet.start_timer(row)
        self._emit_assignment(row)

    def _emit_assignment(self, row: RolloutRow) -> None:
        """Emit the command that sends a device its present assignment."""
        word = build_assignment(self._book.plan, self._book.rules, row)
        assert word is not None
        self._book.out.append(Assign(row.device, word))

    def _rate_limit(self) -> int:
        """Return how many installs may be assigned in a minute now; it grows with the number of successes."""
        return compute_rate(self._book.rules, self._book.fleet.succeeded_count)

    @staticmethod
    def _take_due(queue: deque[str], pace: RateWindow, most: int, now: float) -> list[str]:
        """Take from a queue as many devices as the rate window allows."""
        taken = [queue.popleft() for _ in range(min(len(queue), pace.free_places(most, now)))]
        for device in taken:
            pace.record_sent(device, now)
        return taken


_QUEUED = RolloutDeviceState.QUEUED


def _already_assigned(before: WaveDispatcher | None, row: RolloutRow) -> bool:
    return before is not None and before.knows_assignment(row)


def _waits_for_release(row: RolloutRow) -> bool:
    """Whether a device was released and has not said that it committed; the release may have been lost."""
    return row.released and row.state in OPEN


def _is_judged(row: RolloutRow) -> bool:
    """Whether a device's figures count: it was assigned the candidate, and did not leave."""
    gone = (RolloutDeviceState.CANCELLED, RolloutDeviceState.LEFT)
    return row.goal is DeviceGoal.CANDIDATE and row.state not in gone


def _collect_quality(rows: Iterable[RolloutRow]) -> tuple[DeviceQuality, ...]:
    """Return the quality figures of devices for the comparison."""
    return tuple(DeviceQuality(row.device, row.quality, row.signals) for row in rows)
