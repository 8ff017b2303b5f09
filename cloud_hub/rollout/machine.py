"""State machine of one rollout: takes events and the time, returns commands. Pure.

Rule: an event and the time go in, commands come out, and none may be obeyed before `take_changes` is on disk: then a
hub that dies anywhere goes on where it was, and sends nothing else under a counter it has used.
Rule: a tick changes the state once at most. Nothing but a passed gate, or a person who answers for it, lets devices of
a wave commit and leads to the next; an abort beats everything; terminal states are the end.

Its parts: `RolloutProgress` (head and history), `RolloutFleet` (devices and their counts), `WaveDispatcher`
(assignments and their rate). Times are hub time, in seconds at the public methods and in ms (`ms`) inside.
"""

from collections.abc import Callable
from math import inf

from cloud_hub.rollout.dispatch import GateFunction, RolloutContext, WaveDispatcher
from cloud_hub.rollout.fleet import RolloutFleet
from cloud_hub.rollout.progress import BY_HUB, RolloutProgress
from cloud_hub.rollout.types import (
    NOT_STARTED,
    PAUSED,
    TERMINAL,
    UNDER_WAY,
    Approval,
    DeviceGoal,
    NotifyOperator,
    RolloutChanges,
    RolloutCommand,
    RolloutDeviceState,
    RolloutError,
    RolloutHead,
    RolloutRecord,
    RolloutState,
    ValidatePlan,
)
from policies.rollout_rules.gate import GateOutcome, GateResult, evaluate_gate
from policies.rollout_rules.plan import RolloutRules, parse_stored_rules
from policies.rollout_rules.wave_results import ExcusedCounts, WaveAction, check_results, check_success
from wire.protocol.rollout import Assignment, InstallReport

S = RolloutState


class RolloutCore:
    """One rollout. Every event takes hub time in seconds and returns the commands that carry it out.

    Attributes: `plan` (never changes), `rules` (its parsed parameters), `gate` (the last comparison of this wave with
    its controls, None before there is one), `fleet`, `course` and `told`, the three parts of its state.
    """

    def __init__(
        self,
        record: RolloutRecord,
        judge: GateFunction = evaluate_gate,
        now: float = 0.0,
        before: "RolloutCore | None" = None,
    ) -> None:
        """Restore a rollout from its stored record.

        `judge` compares a wave with its controls; `now` is hub time in seconds. `before`: this process's core of the
        same rollout from before another hub was faster, so that neither its assignments nor its looks count twice.
        """
        rules = parse_stored_rules(record.plan.rules)
        self.plan = record.plan
        self.rules = rules or RolloutRules()
        known = before if before is not None and before.head.wave == record.head.wave else None
        self.gate: GateResult | None = known.gate if known else None  # this wave's last comparison
        self.looked_s: float = known.looked_s if known else -inf
        self.fleet = RolloutFleet(self.plan, self.rules, record.rows)
        self._judge = judge
        self.course = RolloutProgress(record, rules)
        self._out: list[RolloutCommand] = []
        self._asked = False
        self.told = WaveDispatcher(RolloutContext(self.plan, self.rules, self.fleet, record.counters, self._out))
        self.told.resume_queues(record.head, now, before.told if before else None)
        self._steps: dict[RolloutState, Callable[[int], None]] = {
            S.DRAFT: lambda ms: self._change_state(S.VALIDATING, ms),
            S.VALIDATING: self._step_validating,
            S.WAITING_APPROVAL: self._step_waiting,
            S.READY: self._step_ready,
            S.RUNNING: self._step_running,
            S.SOAKING: self._step_soaking,
            S.EVALUATING: self._step_evaluating,
            S.PAUSED_INCONCLUSIVE: self._step_inconclusive,
            S.ABORTING: self._step_aborting,
            S.REVERTING: self._step_reverting,
        }

    @property
    def state(self) -> RolloutState:
        """Current state of the rollout."""
        return self.course.head.state

    @property
    def head(self) -> RolloutHead:
        """Everything that changes of the rollout except its devices."""
        return self.course.head

    @property
    def wake_at(self) -> float:
        """When `on_tick` has something to do again, in seconds; -inf = at once. Reports may make it earlier."""
        if self.state in TERMINAL:
            return self.fleet.due_at
        if self.fleet.news or self.state in {S.DRAFT, S.READY, S.EVALUATING}:
            return -inf
        watched = self.state in UNDER_WAY | PAUSED and not (self.head.held or self.course.block_reason)
        looks = self.looked_s + self.rules.look_s if watched else inf
        return min(self.fleet.due_at, self.told.free_at(self.head), looks, self.course.ends_ms / 1000)

    def assignment_for(self, device: str) -> Assignment | None:
        """Return the newest assignment of a device, to be sent again when it comes; None if it has none."""
        return self.told.assignment_for(device)

    def take_changes(self) -> RolloutChanges | None:
        """Return what has to be written before the last commands are obeyed; None = nothing since the last call.

        The caller writes it if the stored revision is still `expected`, and otherwise restores the core from the store.
        """
        rows = tuple(self.fleet.changed.values())
        self.fleet.changed.clear()
        return self.course.take_changes(rows)

    def approve(self, approval: Approval, now: float) -> list[RolloutCommand]:
        """Add the approval of one more person. RolloutError if nothing waits for it, or it is of other content."""
        self.course.add_approval(approval, _seconds_to_ms(now))
        self.fleet.news = True
        return self._take_commands()

    def pause(self, by: str, why: str, now: float) -> list[RolloutCommand]:
        """Pause: no further device is assigned anything. RolloutError unless it is under way, or about to be."""
        if self.state is S.READY:
            self._step_ready(_seconds_to_ms(now))  # the first wave begins, but nothing is assigned before a resume
        if self.state not in UNDER_WAY | {S.PAUSED_INCONCLUSIVE}:
            raise RolloutError("conflict", f"it is {self.state}: there is nothing to pause")
        self._change_state(S.PAUSED_MANUAL, _seconds_to_ms(now), by, why)
        return self._take_commands()

    def resume(self, by: str, now: float, why: str = "", *, accept: bool = False) -> list[RolloutCommand]:
        """Go on, and excuse the failures that were seen. RolloutError unless it is paused, or if it cannot go on.

        After a hold the withdrawn devices are assigned the version again; after an inconclusive gate the wave is
        evaluated. `accept`: the wave passes although the evidence does not decide; evidence of harm still stops it.
        """
        if self.state not in PAUSED:
            raise RolloutError("conflict", f"it is {self.state}: there is nothing to resume")
        if self.course.block_reason:
            raise RolloutError("refused", f"{self.course.block_reason}: abort it, and start another one")
        counts = self.fleet.counts_of_wave(self.head.wave)
        looks_again = self.state is S.PAUSED_INCONCLUSIVE and not self.head.held
        if self.head.held:
            self.told.requeue_withdrawn(self.head.wave)
            self.course.set_fields(held=False, soak_ms=0)
        self.fleet.excuse_failures(self.head.wave)
        excused = ExcusedCounts(counts.integrity, counts.incompatible)
        self.course.set_fields(excused=excused, accepted=accept, inconclusive=0)
        why = f"accepted without evidence{f': {why}' if why else ''}" if accept else why or "resumed"
        self._change_state(S.EVALUATING if looks_again else S.RUNNING, _seconds_to_ms(now), by, why)
        return self._take_commands()

    def abort(self, by: str, why: str, now: float, *, revert: bool = False) -> list[RolloutCommand]:
        """Withdraw whatever is not committed, and assign nothing more. RolloutError if the rollout has ended.

        `revert`: also send committed devices back to the version before, if the plan has one.
        """
        if self.state in TERMINAL:
            raise RolloutError("conflict", f"it is {self.state} and stays so: start another one")
        if self.state not in {S.ABORTING, S.REVERTING}:
            self._abort_rollout(by, why, _seconds_to_ms(now), revert=revert)
        return self._take_commands()

    def on_validated(self, why: str, now: float) -> list[RolloutCommand]:
        """Handle the answer to `ValidatePlan`: `why` the plan cannot be carried out, or ""."""
        if self.state is S.VALIDATING:
            wrong = why or self.course.damage or ("" if self.plan.size else "it has no device")
            ready = S.READY if self.course.is_approved(_seconds_to_ms(now)) else S.WAITING_APPROVAL
            self._change_state(S.DENIED if wrong else ready, _seconds_to_ms(now), why=wrong)
        return self._take_commands()

    def on_report(self, device: str, report: InstallReport, now: float) -> list[RolloutCommand]:
        """Handle a verified install report of a device, in every state: also an ended rollout learns of results."""
        before = self.fleet.succeeded_count
        odd = self.fleet.on_report(device, report, _seconds_to_ms(now))
        if self.state in {S.ABORTED, S.REVERTED} and self.fleet.succeeded_count > before:
            odd = f"{device} has committed a version that was called back"
        if odd:
            self._out.append(NotifyOperator(odd))
        return self._take_commands()

    def on_members(self, present: frozenset[str], now: float) -> list[RolloutCommand]:
        """Handle which devices are in the fleet, and in what was selected: who is gone counts for nothing any more."""
        if self.state not in TERMINAL:
            self.told.follow_members(present, self.head, now)
        return self._take_commands()

    def on_tick(self, now: float) -> list[RolloutCommand]:
        """Handle the passing of time, at any spacing: timeouts, gates, the next assignments."""
        ms = _seconds_to_ms(now)
        self.fleet.expire_due(ms)
        news, self.fleet.news = self.fleet.news, False
        if self.state in UNDER_WAY | PAUSED:
            self._step_watched(ms, news=news)
        elif self.state in self._steps:
            self._steps[self.state](ms)
        self.told.repeat_unanswered(self.head, now)
        return self._take_commands()

    def _step_validating(self, _: int) -> None:
        if not self._asked:
            self._asked = True
            self._out.append(ValidatePlan(self.plan))

    def _step_waiting(self, ms: int) -> None:
        if self.course.is_approved(ms):
            self._change_state(S.READY, ms)
        elif ms >= self.course.ends_ms:
            self._change_state(S.EXPIRED, ms, why="nobody approved it in time")

    def _step_ready(self, ms: int) -> None:
        if self.course.block_reason:
            self._change_state(S.DENIED, ms, why=self.course.block_reason)
        else:
            self._begin_wave(0, ms)

    def _step_watched(self, ms: int, *, news: bool) -> None:
        """Stop it first if something must stop it, then look at its quality, then do the step of its state."""
        before = self.state
        if self.course.block_reason and before is not S.PAUSED_MANUAL:
            self._change_state(S.PAUSED_MANUAL, ms, why=self.course.block_reason)
        elif news and not self.course.block_reason:
            self._stop_on_failures(ms)
        if self.state is before and not self.head.held and not self.course.block_reason:
            self._evaluate_gate(ms)
        if self.state is before and before in self._steps:
            self._steps[before](ms)

    def _stop_on_failures(self, ms: int) -> None:
        """Abort or pause on too many failures. Every wave that was assigned counts, also one that has passed."""
        status = self.fleet.judge_waves(self.head)
        if status.word is WaveAction.ABORT:
            self._abort_rollout(BY_HUB, status.why, ms)
        elif status.word is WaveAction.PAUSE and self.state is not S.PAUSED_MANUAL:
            self._change_state(S.PAUSED_MANUAL, ms, why=status.why)

    def _evaluate_gate(self, ms: int) -> None:
        """Compare the wave with its controls: evidence of harm counts at any time, of none only after the soak."""
        if ms < (self.looked_s + self.rules.look_s) * 1000 and self.state is not S.EVALUATING:
            return
        self.looked_s = ms / 1000
        self.gate = self.told.compare_cohorts(self.head, self._judge)
        if self.gate is not None and self.gate.outcome is GateOutcome.FAIL:
            self._abort_rollout(BY_HUB, self.gate.why, ms)
        elif self.gate is not None and self.gate.hold:
            self._hold_wave(self.gate.why, ms)

    def _step_running(self, ms: int) -> None:
        """Assign at the permitted rate; soak once enough results are there, give up at the wave's deadline."""
        head = self.head
        if head.passed == len(self.plan.waves):
            self._finish_rollout(ms)
            return
        self.told.assign_due(ms / 1000)
        results = check_results(self.fleet.counts_of_wave(head.wave), self.rules, small=self.plan.is_small)
        if ms >= self.course.ends_ms:
            self._end_partially(ms)
        elif results.word is WaveAction.GO:
            self.course.set_fields(soak_ms=head.soak_ms or ms)
            self._change_state(S.SOAKING, ms)

    def _step_soaking(self, ms: int) -> None:
        """Evaluate the wave once its soak is over; it goes on while audits still come, for `max_soak_s` at most."""
        if ms < self.course.ends_ms:
            return
        undecided = self.gate is not None and self.gate.outcome is GateOutcome.INCONCLUSIVE
        if not (self.gate and undecided and self.course.prolong_soak(self.gate.audits, ms)):
            self._change_state(S.EVALUATING, ms)

    def _step_evaluating(self, ms: int) -> None:
        """Begin the next wave if enough installs succeeded and the gate passed; otherwise pause."""
        wave, doubt = self.head.wave, self._explain_doubt()
        counts = self.fleet.counts_of_wave(wave)
        good = check_success(counts, self.rules)
        if counts.able > 0 and good.word is not WaveAction.GO:
            self._change_state(S.PAUSED_MANUAL, ms, why=good.why)
        elif doubt and not self.head.accepted:
            self._pause_inconclusive(doubt, ms)
        else:
            self.told.release_wave(wave, ms / 1000)
            self.course.set_fields(passed=wave + 1, inconclusive=0)
            if wave + 1 < len(self.plan.waves):
                self._begin_wave(wave + 1, ms)
            else:
                self._change_state(S.RUNNING, ms, why="every wave has passed: waiting for the last devices")

    def _explain_doubt(self) -> str:
        """Why nothing can be concluded from the present wave; "" if it may pass."""
        wave = self.head.wave
        if self.fleet.counts_of_wave(wave).able <= 0:
            last = 0 < wave == len(self.plan.waves) - 1
            ends = last and not self.fleet.was_exposed(wave)  # nobody is left to get it
            return "" if ends else f"no device of wave {wave + 1} is left to judge it by"
        return self.gate.why if self.gate is not None and self.gate.outcome is not GateOutcome.PASS else ""

    def _step_inconclusive(self, ms: int) -> None:
        """Evaluate again after another soak; abort once the wave's time is up."""
        if ms >= self.head.wave_ms + self.rules.wave_deadline_s * 1000:
            why = f"the wave's time was up before anything could be concluded: {self.head.why}"
            self._abort_rollout(BY_HUB, why, ms)
        elif ms >= self.course.ends_ms:
            self._change_state(S.EVALUATING, ms)

    def _step_aborting(self, ms: int) -> None:
        """Wait for withdrawals until their time is up, then go back to the old version or end."""
        waiting = any(row.goal is DeviceGoal.WITHDRAWN for row in self.fleet.open_rows())
        if waiting and ms < self.course.ends_ms:
            return
        if self.head.revert and self.plan.back and self.told.queue_reverts():
            self._change_state(S.REVERTING, ms, why=f"back to version {self.plan.back.version}: {self.head.why}")
        else:
            self._change_state(S.ABORTED, ms, why=self.head.why)

    def _step_reverting(self, ms: int) -> None:
        self.told.queue_reverts()
        self.told.assign_reverts(ms / 1000)
        waiting = len(self.fleet.open_rows())
        if self.told.all_assigned and not waiting:
            self._change_state(S.REVERTED, ms, why=self.head.why)
        elif ms >= self.course.ends_ms:
            self._change_state(S.REVERTED, ms, why=f"{waiting} devices did not answer; {self.head.why}")

    def _begin_wave(self, wave: int, ms: int) -> None:
        """Begin a wave, counted from 0, with fresh times, gate and excused failures."""
        self.course.begin_wave(wave, ms)
        self.gate = None
        self.told.begin_wave(wave)
        waves = self.plan.waves
        self._change_state(S.RUNNING, ms, why=f"wave {wave + 1} of {len(waves)}: {len(waves[wave])} devices")

    def _pause_inconclusive(self, why: str, ms: int) -> None:
        """Pause because the evidence does not decide, and abort the third time in a row."""
        times = self.head.inconclusive + 1
        self.course.set_fields(inconclusive=times)
        if times >= self.rules.inconclusive:
            self._abort_rollout(BY_HUB, f"inconclusive {times} times in a row: {why}", ms)
        else:
            self._change_state(S.PAUSED_INCONCLUSIVE, ms, why=why)

    def _hold_wave(self, why: str, ms: int) -> None:
        """Withdraw what is not committed and wait for a person: harm is likely, but a few devices may have faked it."""
        if self.state in PAUSED:
            self._out.append(NotifyOperator(why))
            self.course.add_entry(BY_HUB, "held", why, ms)
        else:
            self._pause_inconclusive(why, ms)
        if self.state is not S.ABORTING:
            self.told.withdraw_open(ms / 1000)
            self.course.set_fields(held=True)

    def _abort_rollout(self, by: str, why: str, ms: int, *, revert: bool = False) -> None:
        """Withdraw all open assignments. Before the first wave it is DENIED; a hub's abort of a downgrade goes back."""
        if self.state in NOT_STARTED:
            self._change_state(S.DENIED, ms, by, why)
            return
        self.told.withdraw_open(ms / 1000, everybody=True)
        self.course.set_fields(revert=revert or (by == BY_HUB and bool(self.plan.permit)))
        self._change_state(S.ABORTING, ms, by, why)

    def _finish_rollout(self, ms: int) -> None:
        """End the rollout after its last wave, once no device is open or the time is up."""
        if self.fleet.open_rows() and ms < self.course.ends_ms:
            return
        self.fleet.end_open()
        self.told.release_controls(ms / 1000)
        missing = self.fleet.states[RolloutDeviceState.UNREACHED] + self.fleet.states[RolloutDeviceState.CANCELLED]
        why = f"{missing} devices did not answer, or went back without an answer to judge by" if missing else ""
        self._change_state(S.COMPLETED_PARTIAL if missing else S.COMPLETED, ms, why=why)

    def _end_partially(self, ms: int) -> None:
        """End the rollout partially: the wave's time is up, and devices that never answered are not asked any more."""
        self.told.withdraw_open(ms / 1000, everybody=True, passed=self.head.passed)
        self.fleet.end_open()
        why = f"too few results in the wave's time; {self.fleet.succeeded_count} devices have the version"
        self._change_state(S.COMPLETED_PARTIAL, ms, why=why)

    def _change_state(self, state: RolloutState, ms: int, by: str = BY_HUB, why: str = "") -> None:
        """Change the state, and notify a person if the hub itself stopped or ended the rollout."""
        if by == BY_HUB and state in PAUSED | {S.ABORTING, S.DENIED, S.COMPLETED_PARTIAL}:
            self._out.append(NotifyOperator(why))
        self.course.change_state(state, ms, by, why)
        self.fleet.news = True

    def _take_commands(self) -> list[RolloutCommand]:
        """Return the commands of this event, and forget them."""
        out = list(self._out)
        self._out.clear()
        return out


def _seconds_to_ms(now: float) -> int:
    return int(now * 1000)
