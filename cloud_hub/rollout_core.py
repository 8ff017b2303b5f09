"""What a rollout does next: this file, and its halves `rollout_course`, `rollout_fleet` and `rollout_wave`.

Law: pure. An event and the time go in, commands come out, and none may be obeyed before `changes` is on disk: then a
hub that dies anywhere goes on where it was, and says nothing else under a counter it has used. A tick changes the state
once at most. Nothing but a passed gate leads to the next wave; an abort beats everything; terminal states are the end.
"""

from collections.abc import Callable
from math import inf

from policies.quality import Gate, Outcome, gate

from cloud_hub.rollout_course import HUB, Course
from cloud_hub.rollout_fleet import Fleet
from cloud_hub.rollout_wave import Book, Judge, Told
from cloud_hub.rollout_words import (
    BEFORE,
    PAUSED,
    TERMINAL,
    UNDER_WAY,
    Alarm,
    Approval,
    Changes,
    Command,
    DeviceState,
    Goal,
    Head,
    Record,
    RolloutError,
    RolloutState,
    Validate,
)
from policies.rollout import SETTLED, Excused, Rules, Word, enough, known, stops, succeeds
from policies.waves import SMALL_FLEET
from wire.rollout import Assignment, InstallReport

S = RolloutState


class RolloutCore:
    """One rollout. Every event takes hub time in seconds and returns what is to be done about it."""

    def __init__(self, record: Record, judge: Judge = gate, now: float = 0.0) -> None:
        rules = known(record.plan.rules)
        self.plan = record.plan
        self.rules = rules or Rules()
        self.gate: Gate | None = None  # what it said last of this wave
        self.fleet = Fleet(self.plan, self.rules, record.rows)
        self._judge = judge
        self._course = Course(record, rules)
        self._out: list[Command] = []
        self._asked = False
        self._looked = -inf
        self._told = Told(Book(self.plan, self.rules, self.fleet, record.counters, self._out))
        self._told.resume(record.head, now)
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
        return self._course.head.state

    @property
    def head(self) -> Head:
        return self._course.head

    @property
    def ends_ms(self) -> float:
        """When time alone leads out of this state; inf if it does not."""
        return self._course.ends_ms

    @property
    def small(self) -> bool:
        return self.plan.size + len(self.plan.spare) < SMALL_FLEET

    @property
    def exposed(self) -> int:
        """Devices that were ever told to install."""
        return self.fleet.exposed

    @property
    def wake_at(self) -> float:
        """When `on_tick` has something to do again, in seconds; -inf = at once. Reports may make it earlier."""
        if self.state in TERMINAL:
            return self.fleet.due_at
        if self.fleet.news or self.state in {S.DRAFT, S.READY, S.EVALUATING}:
            return -inf
        watched = self.state in UNDER_WAY | PAUSED and not self.head.held
        looks = self._looked + self.rules.look_s if watched else inf
        return min(self.fleet.due_at, self._told.free_at(self.head), looks, self._course.ends_ms / 1000)

    def word_to(self, device: str) -> Assignment | None:
        """The newest word to a device, to be said again when it comes."""
        return self._told.word_to(device)

    def changes(self) -> Changes | None:
        """What is to be written before the last commands may be obeyed; None = nothing since it was last asked."""
        rows = tuple(self.fleet.changed.values())
        self.fleet.changed.clear()
        return self._course.take(rows)

    # -- what people want

    def approve(self, approval: Approval, now: float) -> list[Command]:
        """One more person who has seen this content. RolloutError if it may not count."""
        self._course.approve(approval, _ms(now))
        self.fleet.news = True
        return self._drain()

    def pause(self, by: str, why: str, now: float) -> list[Command]:
        """Nobody new is told. RolloutError unless it is under way."""
        if self.state not in UNDER_WAY | {S.PAUSED_INCONCLUSIVE}:
            raise RolloutError("conflict", f"it is {self.state}: there is nothing to pause")
        self._to(S.PAUSED_MANUAL, _ms(now), by, why)
        return self._drain()

    def resume(self, by: str, now: float) -> list[Command]:
        """Go on, and let pass what was seen. RolloutError unless it is paused, or if it cannot go on."""
        if self.state not in PAUSED:
            raise RolloutError("conflict", f"it is {self.state}: there is nothing to resume")
        if self._course.broken:
            raise RolloutError("refused", f"{self._course.broken}: abort it, and start another one")
        counts = self.fleet.counts(self.head.wave)
        looks_again = self.state is S.PAUSED_INCONCLUSIVE and not self.head.held
        if self.head.held:
            self._told.again(self.head.wave)
            self._course.set(held=False, soak_ms=0)
        self._course.set(excused=Excused(counts.integrity, counts.incompatible))
        self._to(S.EVALUATING if looks_again else S.RUNNING, _ms(now), by, "resumed")
        return self._drain()

    def abort(self, by: str, why: str, now: float, *, revert: bool = False) -> list[Command]:
        """Whatever is not committed is taken back; nobody new is told. RolloutError if it has ended."""
        if self.state in TERMINAL:
            raise RolloutError("conflict", f"it is {self.state} and stays so: start another one")
        if self.state not in {S.ABORTING, S.REVERTING}:
            self._abort(by, why, _ms(now), revert=revert)
        return self._drain()

    # -- what happens

    def on_validated(self, why: str, now: float) -> list[Command]:
        """`why` it cannot be carried out, or ""."""
        if self.state is S.VALIDATING:
            wrong = why or self._course.damage or ("" if self.plan.size else "there is no device to tell")
            ready = S.READY if self._course.approved(_ms(now)) else S.WAITING_APPROVAL
            self._to(S.DENIED if wrong else ready, _ms(now), why=wrong)
        return self._drain()

    def on_report(self, device: str, report: InstallReport, now: float) -> list[Command]:
        """Believed to be this device's. Taken in whatever the state: what is known of an ended rollout still grows."""
        odd = self.fleet.hear(device, report, _ms(now))
        if odd:
            self._out.append(Alarm(odd))
        return self._drain()

    def on_heard(self, device: str) -> None:
        """Any signed word of it: it is in reach."""
        self.fleet.speaks(device)

    def on_tick(self, now: float) -> list[Command]:
        """Time passes, at any spacing."""
        ms = _ms(now)
        self.fleet.expire(ms)
        news, self.fleet.news = self.fleet.news, False
        if self.state in UNDER_WAY | PAUSED:
            self._watch(ms, news=news)
        elif self.state in self._steps:
            self._steps[self.state](ms)
        self._told.say_again(self.head, now)
        return self._drain()

    # -- one step in each state

    def _validating(self, ms: int) -> None:
        del ms
        if not self._asked:
            self._asked = True
            self._out.append(Validate(self.plan))

    def _waiting(self, ms: int) -> None:
        if self._course.approved(ms):
            self._to(S.READY, ms)
        elif ms >= self._course.ends_ms:
            self._to(S.EXPIRED, ms, why="nobody approved it in time")

    def _ready(self, ms: int) -> None:
        if self._course.broken:
            self._to(S.DENIED, ms, why=self._course.broken)
        else:
            self._begin(0, ms)

    def _watch(self, ms: int, *, news: bool) -> None:
        """What must stop it comes first, then the look at its quality, then what its state has to do."""
        before = self.state
        if self._course.broken and before is not S.PAUSED_MANUAL:
            self._to(S.PAUSED_MANUAL, ms, why=self._course.broken)
        elif news and not self._course.broken:
            self._stop_if_it_must(ms)
        if self.state is before and not self.head.held and not self._course.broken:
            self._look(ms)
        if self.state is before and before in self._steps:
            self._steps[before](ms)

    def _stop_if_it_must(self, ms: int) -> None:
        """Every wave that was told counts, also one that has passed; what a person let pass is let pass for good."""
        for wave in range(self.head.wave + 1):
            excused = self.head.excused if wave == self.head.wave else SETTLED
            status = stops(self.fleet.counts(wave), self.rules, first=wave == 0, excused=excused)
            if status.word is Word.ABORT:
                self._abort(HUB, status.why, ms)
                return
            if status.word is Word.PAUSE and self.state is not S.PAUSED_MANUAL:
                self._to(S.PAUSED_MANUAL, ms, why=status.why)
                return

    def _look(self, ms: int) -> None:
        """Evidence of harm counts at any time, evidence of none only when the soak is over."""
        if ms < (self._looked + self.rules.look_s) * 1000 and self.state is not S.EVALUATING:
            return
        self._looked = ms / 1000
        self.gate = self._told.compared(self.head, self._judge)
        if self.gate is not None and self.gate.outcome is Outcome.FAIL:
            self._abort(HUB, self.gate.why, ms)
        elif self.gate is not None and self.gate.hold and self.state is not S.PAUSED_MANUAL:
            self._doubt(self.gate.why, ms, held=True)

    def _running(self, ms: int) -> None:
        head = self.head
        if head.passed == len(self.plan.waves):
            self._finish(ms)
            return
        self._told.tell(ms / 1000)
        if ms >= self._course.ends_ms:
            self._give_up(ms)
        elif enough(self.fleet.counts(head.wave), self.rules, small=self.small).word is Word.GO:
            self._course.set(soak_ms=head.soak_ms or ms)
            self._to(S.SOAKING, ms)

    def _soaking(self, ms: int) -> None:
        if ms >= self._course.ends_ms:
            self._to(S.EVALUATING, ms)

    def _evaluating(self, ms: int) -> None:
        wave = self.head.wave
        good = succeeds(self.fleet.counts(wave), self.rules)
        if good.word is not Word.GO:
            self._doubt(good.why, ms)
        elif self.gate is not None and self.gate.outcome is not Outcome.PASS:
            self._doubt(self.gate.why, ms)
        else:
            self._course.set(passed=wave + 1, inconclusive=0)
            if wave + 1 < len(self.plan.waves):
                self._begin(wave + 1, ms)
            else:
                self._to(S.RUNNING, ms, why="every wave has passed: waiting for the last devices")

    def _inconclusive(self, ms: int) -> None:
        if ms >= self.head.wave_ms + self.rules.wave_deadline_s * 1000:
            self._abort(HUB, f"the wave's time was up before anything could be concluded: {self.head.why}", ms)
        elif ms >= self._course.ends_ms:
            self._to(S.EVALUATING, ms)

    def _aborting(self, ms: int) -> None:
        waiting = any(row.goal is Goal.WITHDRAWN for row in self.fleet.open())
        if waiting and ms < self._course.ends_ms:
            return
        if self.head.revert and self.plan.back and self._told.send_back():
            self._to(S.REVERTING, ms, why=f"back to version {self.plan.back.version}: {self.head.why}")
        else:
            self._to(S.ABORTED, ms, why=self.head.why)

    def _reverting(self, ms: int) -> None:
        self._told.send_back()
        self._told.tell_back(ms / 1000)
        waiting = len(self.fleet.open())
        if self._told.all and not waiting:
            self._to(S.REVERTED, ms, why=self.head.why)
        elif ms >= self._course.ends_ms:
            self._to(S.REVERTED, ms, why=f"{waiting} devices were not heard of; {self.head.why}")

    # -- changes of state

    def _begin(self, wave: int, ms: int) -> None:
        self._course.set(wave=wave, wave_ms=ms, soak_ms=0, excused=Excused())
        self.gate = None
        self._told.begin(wave)
        waves = self.plan.waves
        self._to(S.RUNNING, ms, why=f"wave {wave + 1} of {len(waves)}: {len(waves[wave])} devices")

    def _doubt(self, why: str, ms: int, *, held: bool = False) -> None:
        """It cannot be said: pause, and stop the third time in a row. `held`: take back what is not committed yet."""
        times = self.head.inconclusive + 1
        self._course.set(inconclusive=times)
        if times >= self.rules.inconclusive:
            self._abort(HUB, f"inconclusive {times} times in a row: {why}", ms)
            return
        if held:
            self._told.withdraw(ms / 1000)
        self._course.set(held=held)
        self._to(S.PAUSED_INCONCLUSIVE, ms, why=why)

    def _abort(self, by: str, why: str, ms: int, *, revert: bool = False) -> None:
        if self.state in BEFORE:
            self._to(S.DENIED, ms, by, why)
            return
        self._told.withdraw(ms / 1000, everybody=True)
        self._course.set(revert=bool(self.plan.permit) and (revert or by == HUB))
        self._to(S.ABORTING, ms, by, why)

    def _finish(self, ms: int) -> None:
        waiting = len(self.fleet.open())
        if waiting and ms < self._course.ends_ms:
            return
        self._told.release(ms / 1000)
        unreached = self.fleet.states[DeviceState.UNREACHED] + waiting
        why = f"{unreached} devices were not heard of" if unreached else ""
        self._to(S.COMPLETED_PARTIAL if unreached else S.COMPLETED, ms, why=why)

    def _give_up(self, ms: int) -> None:
        """The wave's time is up without enough results: who of it never answered is not told any more."""
        self._told.withdraw(ms / 1000, everybody=True, passed=self.head.passed)
        done = self.fleet.succeeded
        self._to(S.COMPLETED_PARTIAL, ms, why=f"too few results in the wave's time; {done} devices have the version")

    def _to(self, state: RolloutState, ms: int, by: str = HUB, why: str = "") -> None:
        if by == HUB and state in PAUSED | {S.ABORTING, S.DENIED, S.COMPLETED_PARTIAL}:
            self._out.append(Alarm(why))
        self._course.to(state, ms, by, why)
        self.fleet.news = True

    def _drain(self) -> list[Command]:
        out = list(self._out)
        self._out.clear()
        return out


def _ms(now: float) -> int:
    return int(now * 1000)
