"""Devices of one rollout: what each report makes of a device, the sums of each wave, and timeouts. Pure.

Rule: every change of a row goes through `change_row`, which keeps the sums of its wave, so that a report costs the same
in a fleet of ten and of ten thousand. A success is only what a device says to have committed, with the right bytes,
under the counter that it was given.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Any

from cloud_hub.rollout.types import (
    FAILED_STATES,
    OPEN,
    TIMED_OUT_STATES,
    DeviceGoal,
    RolloutDeviceState,
    RolloutHead,
    RolloutPlan,
    RolloutRow,
)
from policies.rollout_rules.plan import RolloutRules
from policies.rollout_rules.wave_results import WaveCounts, WaveStatus, judge_waves
from wire.protocol.rollout import InstallFailure, InstallReport, InstallState

D = RolloutDeviceState
_ENDS = {
    InstallState.COMMITTED: D.SUCCEEDED,
    InstallState.FAILED: D.FAILED,
    InstallState.SAFE_MODE: D.FAILED,
    InstallState.ROLLED_BACK: D.ROLLED_BACK,
    InstallState.REJECTED: D.REJECTED,
    InstallState.CANCELLED: D.CANCELLED,
    InstallState.SUPERSEDED: D.SUPERSEDED,
}
_EARLY = frozenset(
    (InstallState.IDLE, InstallState.CHECKING, InstallState.ACCEPTED, InstallState.DOWNLOADING, InstallState.PAUSED)
)
_LEFT = frozenset((D.CANCELLED, D.SUPERSEDED, D.LEFT))
_LEAVES = OPEN | TIMED_OUT_STATES | {D.QUEUED}  # a result that a device gave stays, whatever becomes of it


class RolloutFleet:
    """All devices of one rollout by id (`rows`), with running totals.

    `changed`: rows that are not saved yet. `news`: something may have to be stopped. `exposed`: devices that were ever
    assigned an install; `states`: how many devices of the waves (spares left out) are in each state.
    """

    def __init__(self, plan: RolloutPlan, rules: RolloutRules, rows: Iterable[RolloutRow]) -> None:
        """Restore the sums and timers from stored rows."""
        self.rows = {row.device: row for row in rows}
        self.changed: dict[str, RolloutRow] = {}
        self.news = True
        self.exposed = sum(row.exposed for row in self.rows.values())
        self.states = Counter(row.state for row in self.rows.values() if row.wave >= 0)
        self._plan = plan
        self._rules = rules
        self._sums: list[Counter[str]] = [Counter() for _ in plan.waves]
        self._timers: list[tuple[int, str]] = []
        for row in self.rows.values():
            self._add_to_sums(row, 1)
            self.start_timer(row)

    # -- sums

    def counts_of_wave(self, wave: int) -> WaveCounts:
        """Return the totals of a wave, counted from 0: its size, and how many were told, reachable, succeeded, ..."""
        sums = self._sums[wave]
        return WaveCounts(len(self._plan.waves[wave]), **{name: sums[name] for name in WaveCounts._fields[1:]})

    def judge_waves(self, head: RolloutHead) -> WaveStatus:
        """Judge the failures of every wave that was assigned, also one that has passed: stop, pause or go on."""
        return judge_waves([self.counts_of_wave(each) for each in range(head.wave + 1)], self._rules, head.excused)

    @property
    def succeeded_count(self) -> int:
        """Number of devices that have committed the new version."""
        return self.states[D.SUCCEEDED]

    def rows_of_wave(self, wave: int) -> list[RolloutRow]:
        """Return the rows of a wave, counted from 0."""
        return [self.rows[device] for device in self._plan.waves[wave]]

    def open_rows(self) -> list[RolloutRow]:
        """Return the devices that have an assignment and have not reported an end."""
        return [row for row in self.rows.values() if row.state in OPEN]

    def change_row(self, row: RolloutRow, **values: Any) -> None:
        """Set fields of a row, and keep the sums and the list of unsaved rows right."""
        self._add_to_sums(row, -1)
        was_exposed, was = row.exposed, row.state
        for name, value in values.items():
            setattr(row, name, value)
        self._add_to_sums(row, 1)
        self.exposed += row.exposed - was_exposed
        if row.wave >= 0 and row.state is not was:
            self.states[was] -= 1
            self.states[row.state] += 1
        self.changed[row.device] = row

    def _add_to_sums(self, row: RolloutRow, sign: int) -> None:
        """Add (`sign` 1) or remove (-1) a row in the sums of its wave; spare devices are in none."""
        if row.wave >= 0:
            sums = self._sums[row.wave]
            for kind in _total_names(row):
                sums[kind] += sign

    # -- reports

    def on_report(self, device: str, report: InstallReport, ms: int) -> str:
        """Take in a device's report (`ms`: hub time). Returns what a person should know as odd about it, or "".

        A report that is not newer than the last, or about another assignment, changes nothing but the sequence number.
        """
        row = self.rows.get(device)
        if row is None or report.seq <= row.seq:
            return ""
        if not row.counter or report.counter not in {row.counter, row.base}:
            self.change_row(row, seq=report.seq)
            return ""
        values: dict[str, Any] = {"seq": report.seq, "heard": True}
        if row.goal in {DeviceGoal.CANDIDATE, DeviceGoal.CONTROL}:
            values |= {"quality": report.quality or row.quality, "signals": report.signals or row.signals}
        self.change_row(row, **values)
        return "" if row.goal in {DeviceGoal.NONE, DeviceGoal.CONTROL} else self._apply_report(row, report, ms)

    def on_heard(self, device: str) -> None:
        """Note any signed message of a device: it is reachable."""
        row = self.rows.get(device)
        if row is not None and row.goal is not DeviceGoal.NONE and not row.heard:
            self.change_row(row, heard=True)

    def _apply_report(self, row: RolloutRow, report: InstallReport, ms: int) -> str:
        """Move the device to the state that its report names.

        A commit of other bytes than the assigned ones is not a success.
        """
        end = _ENDS.get(report.state)
        if end is D.SUCCEEDED and not self._right_bytes(row, report):
            return f"{row.device} reports a commit, but runs other bytes"
        if end is D.ROLLED_BACK and report.failure is None:
            end = D.CANCELLED  # withdrawn, never released or never asked: nothing speaks against the version
        if end is D.CANCELLED and row.state is D.LEFT:
            end = D.LEFT
        if end is not None:
            self.news = True
            excused = row.excused and (row.state, row.failure) == (end, report.failure)
            self.change_row(row, state=end, sub=report.state, failure=report.failure, excused=excused)
        elif row.state in OPEN or row.state in TIMED_OUT_STATES:
            since = row.since_ms if _install_phase(row.sub) == _install_phase(report.state) and row.sub else ms
            values = {"state": D.IN_PROGRESS, "sub": report.state, "failure": None, "since_ms": since, "excused": False}
            passed = report.state is InstallState.PROBATION and (report.trial_passed or row.trial_passed)
            self.change_row(row, **values, trial_passed=passed)
            self.start_timer(row)
        return ""

    def follow_members(self, present: frozenset[str], wave: int) -> list[RolloutRow]:
        """Set the devices without a result that are not `present` to LEFT, and queue those that came back in time.

        `wave`: the present one, counted from 0; who comes back after its wave is left out. Returns the rows that left.
        """
        left = [row for row in self.rows.values() if row.device not in present and row.state in _LEAVES]
        for row in left:
            self.news = True
            self.change_row(row, state=D.LEFT)
        for row in self.rows.values():
            if row.state is D.LEFT and row.device in present and (row.wave >= wave or row.wave < 0):
                self.change_row(row, state=D.QUEUED, goal=DeviceGoal.NONE, base=0, trial_passed=False)
        return left

    def was_exposed(self, wave: int) -> bool:
        """Whether any device of a wave was ever assigned the version."""
        return any(row.exposed for row in self.rows_of_wave(wave))

    def excuse_failures(self, wave: int) -> None:
        """Excuse the failures of a wave that are known now; the next one of any device counts again."""
        for row in self.rows_of_wave(wave):
            if row.state in FAILED_STATES and not row.excused:
                self.change_row(row, excused=True)

    def _right_bytes(self, row: RolloutRow, report: InstallReport) -> bool:
        """Whether the report names the digest and version that the device was assigned."""
        wanted = self._plan.back if row.goal is DeviceGoal.BACK and self._plan.back else self._plan.target
        return (report.running, report.version) == (wanted.digest, wanted.version)

    # -- time

    @property
    def due_at(self) -> float:
        """When the next device's time is up, in seconds; inf while none is waited for."""
        return self._timers[0][0] / 1000 if self._timers else inf

    def expire_due(self, ms: int) -> None:
        """End devices whose time is up, until they report otherwise. `ms`: hub time."""
        while self._timers and self._timers[0][0] <= ms:
            row = self.rows[heapq.heappop(self._timers)[1]]
            if row.state in OPEN and self._timeout_ms(row) > ms:
                self.start_timer(row)
            elif row.state in OPEN:
                self.news = True
                self._time_out(row)

    def end_open(self) -> None:
        """End every open device: nobody is waited for any more."""
        for row in self.open_rows():
            self._time_out(row)

    def _time_out(self, row: RolloutRow) -> None:
        """Set the end of an open device: UNREACHED if it never answered, else TIMED_OUT."""
        self.change_row(row, state=D.UNREACHED if row.state is D.NOTIFIED else D.TIMED_OUT)

    def start_timer(self, row: RolloutRow) -> None:
        """Start the timer of an open device."""
        if row.state in OPEN:
            heapq.heappush(self._timers, (self._timeout_ms(row), row.device))

    def _timeout_ms(self, row: RolloutRow) -> int:
        """Return when the device's present phase times out, in ms since 1970.

        The limits come from the rules: the wave's deadline until it answers, then one each for download, install and
        probation.
        """
        rules = self._rules
        if row.state is D.NOTIFIED or row.sub is InstallState.PAUSED:
            limit_s = rules.wave_deadline_s
        elif row.trial_passed and not row.released and self._plan.needs_release:  # it waits for us, as long as it may
            limit_s = rules.in_progress_s + rules.wave_deadline_s + rules.max_soak_s
        elif row.sub in _EARLY:
            limit_s = rules.download_s
        elif row.sub is InstallState.PROBATION:
            limit_s = rules.in_progress_s + max(rules.max_soak_s, rules.probation_s)
        else:
            limit_s = rules.in_progress_s
        return row.since_ms + int(limit_s * 1000)


def _install_phase(sub: InstallState | None) -> int:
    """Return the phase of an install that has its own time limit: 0 download, 1 install, 2 probation."""
    return 0 if sub in _EARLY or sub is None else 2 if sub is InstallState.PROBATION else 1


def _total_names(row: RolloutRow) -> tuple[str, ...]:
    """Return the names of the totals that a row counts for in its wave."""
    state = row.state
    if state is D.QUEUED:
        return ("reachable",)
    if state in _LEFT:
        return ("told", "left")
    if state is D.REJECTED and row.failure is InstallFailure.INCOMPATIBLE:
        return ("told", "incompatible")
    kinds = ("told", "reachable") if row.heard else ("told",)
    if row.trial_passed and state is D.IN_PROGRESS:
        return (*kinds, "proven")
    if state is D.SUCCEEDED:
        return (*kinds, "succeeded")
    return (*kinds, *_failure_names(row)) if state in FAILED_STATES else kinds


def _failure_names(row: RolloutRow) -> tuple[str, ...]:
    """Return the totals that a failed row counts for; integrity failures and crashes are counted apart.

    They stop a rollout sooner than other failures do.
    """
    names = ("failed", "excused") if row.excused else ("failed",)
    if row.failure is InstallFailure.INTEGRITY:
        return (*names, "integrity")
    crashed = row.failure is InstallFailure.HEALTH or row.sub is InstallState.SAFE_MODE
    return (*names, "crashed") if crashed else names
