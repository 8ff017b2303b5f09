"""State machine of one rollout: takes events and the time, returns commands. Pure.

Rule: an event and the time go in, commands come out, and none may be obeyed before `changes` is on disk: then a hub
that dies anywhere goes on where it was, and sends nothing else under a counter it has used.
Rule: a tick changes the state once at most. Nothing but a passed gate leads to the next wave; an abort beats
everything; terminal states are the end.

Its parts: `Course` (head and history), `Fleet` (devices and their counts), `Told` (assignments and their rate).
Times are hub time, in seconds at the public methods and in ms (`ms`) inside.
"""

from collections.abc import Callable
from math import inf

from cloud_hub.rollout.dispatch import Book, Judge, Told
from cloud_hub.rollout.fleet import Fleet
from cloud_hub.rollout.progress import HUB, Course
from cloud_hub.rollout.types import (
    BEFORE,
    PAUSED,
    TERMINAL,
    UNDER_WAY,
    Alarm,
    Approval,
    Changes,
    Command,
    Goal,
    Head,
    Record,
    RolloutDeviceState,
    RolloutError,
    RolloutState,
    Validate,
)
from policies.rollout.gate import Gate, Outcome, gate
from policies.rollout.plan import Excused, Rules, Word, enough, judged, known, succeeds
from wire.protocol.rollout import Assignment, InstallReport

S = RolloutState


class RolloutCore:
    """One rollout. Every event takes hub time in seconds and returns the commands that carry it out.

    Attributes: `plan` (never changes), `rules` (its parsed parameters), `gate` (the last comparison of this wave with
    its controls, None before there is one), `fleet`, `course` and `told`, the three parts of its state.
    """

    def __init__(
        self, record: Record, judge: Judge = gate, now: float = 0.0, before: "RolloutCore | None" = None
    ) -> None:
        """Restore a rollout from its stored record.

        `judge` compares a wave with its controls; `now` is hub time in seconds. `before`: this process's core of the
        same rollout from before another hub was faster, so that its assignments are not counted twice.
        """
        rules = known(record.plan.rules)
        self.plan = record.plan
        self.rules = rules or Rules()
        self.gate: Gate | None = None  # this wave's last comparison
        self.fleet = Fleet(self.plan, self.rules, record.rows)
        self._judge = judge
        self.course = Course(record, rules)
        self._out: list[Command] = []
        self._asked = False
        self._looked = -inf
        self.told = Told(Book(self.plan, self.rules, self.fleet, record.counters, self._out))
        self.told.resume(record.head, now, before.told if before else None)
        self._steps: dict[RolloutState, Callable[[int], None]] = {
            S.DRAFT: lambda ms: self._to(S.VALIDATING, ms),
            S.VALIDATING: self._validating,
            S.WAITING_APPROVAL: self._waiting,
            S.READY: self._ready,
            S.RUNNING: self._running,
            S.SOAKING: self._soaking,
            S.EVALUATING: self._evaluating,
            S.PAUSED_INCONCLUSIVE: self._inconclusive,
            S.ABORTING: self._aborting,
            S.REVERTING: self._reverting,
        }

    # -- reading

    @property
    def state(self) -> RolloutState:
        """Current state of the rollout."""
        return self.course.head.state

    @property
    def head(self) -> Head:
        """Everything that changes of the rollout except its devices."""
        return self.course.head

    @property
    def exposed(self) -> int:
        """Number of devices that were ever assigned the new version."""
        return self.fleet.exposed

    @property
    def wake_at(self) -> float:
        """When `on_tick` has something to do again, in seconds; -inf = at once. Reports may make it earlier."""
        if self.state in TERMINAL:
            return self.fleet.due_at
        if self.fleet.news or self.state in {S.DRAFT, S.READY, S.EVALUATING}:
            return -inf
        watched = self.state in UNDER_WAY | PAUSED and not (self.head.held or self.course.broken)
        looks = self._looked + self.rules.look_s if watched else inf
        return min(self.fleet.due_at, self.told.free_at(self.head), looks, self.course.ends_ms / 1000)

    def word_to(self, device: str) -> Assignment | None:
        """Return the newest assignment of a device, to be sent again when it comes; None if it has none."""
        return self.told.word_to(device)

    def changes(self) -> Changes | None:
        """Return what has to be written before the last commands are obeyed; None = nothing since the last call.

        The caller writes it if the stored revision is still `expected`, and otherwise restores the core from the store.
        """
        rows = tuple(self.fleet.changed.values())
        self.fleet.changed.clear()
        return self.course.take(rows)

    # -- what people want

    def approve(self, approval: Approval, now: float) -> list[Command]:
        """Add the approval of one more person. RolloutError if nothing waits for it, or it is of other content."""
        self.course.approve(approval, _ms(now))
        self.fleet.news = True
        return self._drain()

    def pause(self, by: str, why: str, now: float) -> list[Command]:
        """Pause: no further device is assigned anything. RolloutError unless it is under way, or about to be."""
        if self.state is S.READY:
            self._ready(_ms(now))  # the first wave begins, but nothing is assigned before a resume
        if self.state not in UNDER_WAY | {S.PAUSED_INCONCLUSIVE}:
            raise RolloutError("conflict", f"it is {self.state}: there is nothing to pause")
        self._to(S.PAUSED_MANUAL, _ms(now), by, why)
        return self._drain()

    def resume(self, by: str, now: float) -> list[Command]:
        """Go on, and excuse the failures that were seen. RolloutError unless it is paused, or if it cannot go on.

        After a hold the withdrawn devices are assigned the version again; after an inconclusive gate the wave is
        evaluated.
        """
        if self.state not in PAUSED:
            raise RolloutError("conflict", f"it is {self.state}: there is nothing to resume")
        if self.course.broken:
            raise RolloutError("refused", f"{self.course.broken}: abort it, and start another one")
        counts = self.fleet.counts(self.head.wave)
        looks_again = self.state is S.PAUSED_INCONCLUSIVE and not self.head.held
        if self.head.held:
            self.told.again(self.head.wave)
            self.course.set(held=False, soak_ms=0)
        self.course.set(excused=Excused(counts.integrity, counts.incompatible))
        self._to(S.EVALUATING if looks_again else S.RUNNING, _ms(now), by, "resumed")
        return self._drain()

    def abort(self, by: str, why: str, now: float, *, revert: bool = False) -> list[Command]:
        """Withdraw whatever is not committed, and assign nothing more. RolloutError if the rollout has ended.

        `revert`: also send committed devices back to the version before, if the plan has one.
        """
        if self.state in TERMINAL:
            raise RolloutError("conflict", f"it is {self.state} and stays so: start another one")
        if self.state not in {S.ABORTING, S.REVERTING}:
            self._abort(by, why, _ms(now), revert=revert)
        return self._drain()

    # -- what happens

    def on_validated(self, why: str, now: float) -> list[Command]:
        """Handle the answer to `Validate`: `why` the plan cannot be carried out, or ""."""
        if self.state is S.VALIDATING:
            wrong = why or self.course.damage or ("" if self.plan.size else "it has no device")
            ready = S.READY if self.course.approved(_ms(now)) else S.WAITING_APPROVAL
            self._to(S.DENIED if wrong else ready, _ms(now), why=wrong)
        return self._drain()

    def on_report(self, device: str, report: InstallReport, now: float) -> list[Command]:
        """Handle a verified install report of a device.

        Accepted in every state: also an ended rollout learns of results.
        """
        before = self.fleet.succeeded
        odd = self.fleet.hear(device, report, _ms(now))
        if self.state in {S.ABORTED, S.REVERTED} and self.fleet.succeeded > before:
            odd = f"{device} has committed a version that was called back"
        if odd:
            self._out.append(Alarm(odd))
        return self._drain()

    def on_tick(self, now: float) -> list[Command]:
        """Handle the passing of time, at any spacing: timeouts, gates, the next assignments."""
        ms = _ms(now)
        self.fleet.expire(ms)
        news, self.fleet.news = self.fleet.news, False
        if self.state in UNDER_WAY | PAUSED:
            self._watch(ms, news=news)
        elif self.state in self._steps:
            self._steps[self.state](ms)
        self.told.say_again(self.head, now)
        return self._drain()

    # -- one step in each state

    def _validating(self, _: int) -> None:
        if not self._asked:
            self._asked = True
            self._out.append(Validate(self.plan))

    def _waiting(self, ms: int) -> None:
        if self.course.approved(ms):
            self._to(S.READY, ms)
        elif ms >= self.course.ends_ms:
            self._to(S.EXPIRED, ms, why="nobody approved it in time")

    def _ready(self, ms: int) -> None:
        if self.course.broken:
            self._to(S.DENIED, ms, why=self.course.broken)
        else:
            self._begin(0, ms)

    def _watch(self, ms: int, *, news: bool) -> None:
        """Stop it first if something must stop it, then look at its quality, then do the step of its state."""
        before = self.state
        if self.course.broken and before is not S.PAUSED_MANUAL:
            self._to(S.PAUSED_MANUAL, ms, why=self.course.broken)
        elif news and not self.course.broken:
            self._stop_if_it_must(ms)
        if self.state is before and not self.head.held and not self.course.broken:
            self._look(ms)
        if self.state is before and before in self._steps:
            self._steps[before](ms)

    def _stop_if_it_must(self, ms: int) -> None:
        """Abort or pause on too many failures. Every wave that was assigned counts, also one that has passed."""
        waves = [self.fleet.counts(wave) for wave in range(self.head.wave + 1)]
        status = judged(waves, self.rules, self.head.excused)
        if status.word is Word.ABORT:
            self._abort(HUB, status.why, ms)
        elif status.word is Word.PAUSE and self.state is not S.PAUSED_MANUAL:
            self._to(S.PAUSED_MANUAL, ms, why=status.why)

    def _look(self, ms: int) -> None:
        """Compare the wave with its controls.

        Evidence of harm counts at any time, evidence of none only after the soak.
        """
        if ms < (self._looked + self.rules.look_s) * 1000 and self.state is not S.EVALUATING:
            return
        self._looked = ms / 1000
        self.gate = self.told.compared(self.head, self._judge)
        if self.gate is not None and self.gate.outcome is Outcome.FAIL:
            self._abort(HUB, self.gate.why, ms)
        elif self.gate is not None and self.gate.hold:
            self._hold(self.gate.why, ms)

    def _running(self, ms: int) -> None:
        """Assign at the permitted rate; soak once enough results are there, give up at the wave's deadline."""
        head = self.head
        if head.passed == len(self.plan.waves):
            self._finish(ms)
            return
        self.told.tell(ms / 1000)
        if ms >= self.course.ends_ms:
            self._give_up(ms)
        elif enough(self.fleet.counts(head.wave), self.rules, small=self.plan.small).word is Word.GO:
            self.course.set(soak_ms=head.soak_ms or ms)
            self._to(S.SOAKING, ms)

    def _soaking(self, ms: int) -> None:
        """Evaluate the wave once its soak is over."""
        if ms >= self.course.ends_ms:
            self._to(S.EVALUATING, ms)

    def _evaluating(self, ms: int) -> None:
        """Begin the next wave if enough installs succeeded and the gate passed; otherwise pause."""
        wave = self.head.wave
        good = succeeds(self.fleet.counts(wave), self.rules)
        if good.word is not Word.GO:
            self._doubt(good.why, ms)
        elif self.gate is not None and self.gate.outcome is not Outcome.PASS:
            self._doubt(self.gate.why, ms)
        else:
            self.course.set(passed=wave + 1, inconclusive=0)
            if wave + 1 < len(self.plan.waves):
                self._begin(wave + 1, ms)
            else:
                self._to(S.RUNNING, ms, why="every wave has passed: waiting for the last devices")

    def _inconclusive(self, ms: int) -> None:
        """Evaluate again after another soak; abort once the wave's time is up."""
        if ms >= self.head.wave_ms + self.rules.wave_deadline_s * 1000:
            self._abort(HUB, f"the wave's time was up before anything could be concluded: {self.head.why}", ms)
        elif ms >= self.course.ends_ms:
            self._to(S.EVALUATING, ms)

    def _aborting(self, ms: int) -> None:
        """Wait for withdrawals until their time is up, then go back to the old version or end."""
        waiting = any(row.goal is Goal.WITHDRAWN for row in self.fleet.open())
        if waiting and ms < self.course.ends_ms:
            return
        if self.head.revert and self.plan.back and self.told.send_back():
            self._to(S.REVERTING, ms, why=f"back to version {self.plan.back.version}: {self.head.why}")
        else:
            self._to(S.ABORTED, ms, why=self.head.why)

    def _reverting(self, ms: int) -> None:
        self.told.send_back()
        self.told.tell_back(ms / 1000)
        waiting = len(self.fleet.open())
        if self.told.all and not waiting:
            self._to(S.REVERTED, ms, why=self.head.why)
        elif ms >= self.course.ends_ms:
            self._to(S.REVERTED, ms, why=f"{waiting} devices did not answer; {self.head.why}")

    # -- changes of state

    def _begin(self, wave: int, ms: int) -> None:
        """Begin a wave, counted from 0, with fresh times, gate and excused failures."""
        self.course.set(wave=wave, wave_ms=ms, soak_ms=0, excused=Excused())
        self.gate = None
        self.told.begin(wave)
        waves = self.plan.waves
        self._to(S.RUNNING, ms, why=f"wave {wave + 1} of {len(waves)}: {len(waves[wave])} devices")

    def _doubt(self, why: str, ms: int) -> None:
        """Pause because the evidence does not decide, and abort the third time in a row."""
        times = self.head.inconclusive + 1
        self.course.set(inconclusive=times)
        if times >= self.rules.inconclusive:
            self._abort(HUB, f"inconclusive {times} times in a row: {why}", ms)
        else:
            self._to(S.PAUSED_INCONCLUSIVE, ms, why=why)

    def _hold(self, why: str, ms: int) -> None:
        """Withdraw what is not committed and wait for a person: harm is likely, but a few devices may have faked it."""
        if self.state is S.PAUSED_MANUAL:
            self._out.append(Alarm(why))
            self.course.enter(HUB, "held", why, ms)
        else:
            self._doubt(why, ms)
        if self.state is not S.ABORTING:
            self.told.withdraw(ms / 1000)
            self.course.set(held=True)

    def _abort(self, by: str, why: str, ms: int, *, revert: bool = False) -> None:
        """Withdraw all open assignments.

        Before the first wave it is DENIED; a hub's own abort of a downgrade goes back.
        """
        if self.state in BEFORE:
            self._to(S.DENIED, ms, by, why)
            return
        self.told.withdraw(ms / 1000, everybody=True)
        self.course.set(revert=revert or (by == HUB and bool(self.plan.permit)))
        self._to(S.ABORTING, ms, by, why)

    def _finish(self, ms: int) -> None:
        """End the rollout after its last wave, once no device is open or the time is up."""
        if self.fleet.open() and ms < self.course.ends_ms:
            return
        self.fleet.close()
        self.told.release(ms / 1000)
        unreached = self.fleet.states[RolloutDeviceState.UNREACHED]
        why = f"{unreached} devices did not answer" if unreached else ""
        self._to(S.COMPLETED_PARTIAL if unreached else S.COMPLETED, ms, why=why)

    def _give_up(self, ms: int) -> None:
        """End the rollout partially: the wave's time is up, and devices that never answered are not asked any more."""
        self.told.withdraw(ms / 1000, everybody=True, passed=self.head.passed)
        self.fleet.close()
        done = self.fleet.succeeded
        self._to(S.COMPLETED_PARTIAL, ms, why=f"too few results in the wave's time; {done} devices have the version")

    def _to(self, state: RolloutState, ms: int, by: str = HUB, why: str = "") -> None:
        """Change the state, and notify a person if the hub itself stopped or ended the rollout."""
        if by == HUB and state in PAUSED | {S.ABORTING, S.DENIED, S.COMPLETED_PARTIAL}:
            self._out.append(Alarm(why))
        self.course.to(state, ms, by, why)
        self.fleet.news = True

    def _drain(self) -> list[Command]:
        """Return the commands of this event, and forget them."""
        out = list(self._out)
        self._out.clear()
        return out


def _ms(now: float) -> int:
    return int(now * 1000)
