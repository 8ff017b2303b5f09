"""Rollout in virtual time: the production `RolloutCore` and quality gate over simulated install machines.

Rule: the same `RolloutCourse` gives the same `RolloutTrace`. The hub decides by what devices report; what a trace says
(who ran the candidate, which answers it spoilt) is the truth that no report can change.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from cloud_hub.rollout.dispatch import GateFunction
from cloud_hub.rollout.machine import RolloutCore
from cloud_hub.rollout.planning import RolloutOrder, build_plan, build_record
from cloud_hub.rollout.types import TERMINAL, Assign, BundleTarget, RolloutCommand, RolloutState, ValidatePlan
from models.update.trust import Refusal
from policies.rollout_rules.gate import GateResult, evaluate_gate
from policies.rollout_rules.plan import FleetMember, RolloutRules, parse_rules
from simulations.kernel.kernel import Kernel
from simulations.report.outcome import GateDecision, RolloutRecord, RolloutWave
from simulations.rollout.device import DeviceBehaviour, RolloutDevice
from simulations.rollout.versions import VersionPair
from simulations.scenario.types import Rollout
from wire.protocol.rollout import Assignment, AuditAgreement, AuditQuality, InstallReport

OLD = BundleTarget("models/sim/sim-1.skb", 1, "a" * 64)
NEW = BundleTarget("models/sim/sim-2.skb", 2, "b" * 64)
ZERO_S = 1_700_000_000.0
PATIENCE_S = 1800.0  # so long after the last change a paused rollout counts as left to a person
MINUTE_S = 60.0
STEP_S = 10.0


class LyingDevices(msgspec.Struct, frozen=True):
    """Lying devices: `share` of them (0..1) report of every audit that it went worse, or better; None: no change."""

    share: float = 0.0
    worse: bool | None = None


class RolloutCourse(msgspec.Struct, frozen=True):
    """Parameters of one rollout. `rules`: of the rollout; `horizon_s`: the run ends then, whatever is going on."""

    devices: int
    seed: int
    pair: VersionPair
    rules: dict[str, object] = {}
    manners: DeviceBehaviour = DeviceBehaviour()
    liars: LyingDevices = LyingDevices()
    horizon_s: float = 24 * 3600.0


class RolloutTrace(msgspec.Struct, frozen=True):
    """What one rollout did. Times in seconds from the start, -1 = never.

    `ran`: devices that ever served the candidate; `told`: devices that were assigned it, by wave. `stopped_s`: the
    hub paused or aborted it; `clear_s`: from then on nobody served it any more. `spoilt`: answers wrong because of
    it; `worst_hour`: those of any one hour, as a share of all that the fleet answers in an hour. `passed`: waves
    that were passed by the gate; `looks`: what the gate decided, when that changed.
    """

    end: str
    why: str
    ran: int
    told: tuple[int, ...]
    passed: int
    stopped_s: float
    clear_s: float
    ended_s: float
    spoilt: int
    worst_hour: float
    looks: tuple[GateDecision, ...]
    waves: tuple[RolloutWave, ...]
    serving: tuple[int, ...]  # devices, at the end of each minute
    committed: int = 0  # devices that keep the candidate for good

    @property
    def aborted(self) -> bool:
        """Whether the hub paused or aborted the rollout."""
        return self.stopped_s >= 0

    def to_record(self, name: str, step_s: float) -> RolloutRecord:
        """Record of the rollout for a report with buckets of `step_s`."""
        each = max(1, round(step_s / MINUTE_S))
        return RolloutRecord(
            name=name,
            end=self.end,
            began_s=0.0,
            ended_s=self.ended_s,
            waves=self.waves,
            exposed=self.serving[each - 1 :: each],
            looks=self.looks,
        )


class RolloutFleet:
    """Devices and rollout machine of one rollout.

    `judge`: the gate; one that passes everything makes a rollout by install status alone.
    """

    def __init__(
        self,
        course: RolloutCourse,
        judge: GateFunction = evaluate_gate,
        kernel: Kernel | None = None,
        zero_s: float = ZERO_S,
    ) -> None:
        self.kernel = kernel or Kernel()
        self.rng = np.random.Generator(np.random.PCG64(course.seed))
        self.pair = course.pair
        self.manners = course.manners
        self.zero_s = zero_s
        self._course = course
        self._judge = judge
        self._ran: set[str] = set()
        self._committed: set[str] = set()
        self._changes: list[tuple[float, int]] = []
        self._serving = 0
        self._looks: list[GateDecision] = []
        self._waves: list[RolloutWave] = []
        self._told: dict[str, int] = {}
        self._stopped_s = self._clear_s = -1.0
        names = [f"sim--d{number}" for number in range(course.devices)]
        self._liars = frozenset(names[: int(course.liars.share * course.devices)])
        self.devices = {name: self.make_device(name) for name in names}
        self.core = self._make_core(names)

    def make_device(self, name: str) -> RolloutDevice:
        """Make the simulated device of this name."""
        return RolloutDevice(name, OLD.digest, self)

    def _make_core(self, names: Sequence[str]) -> RolloutCore:
        order = RolloutOrder(
            family="sim",
            target=NEW,
            to="all",
            rules=dict(self._course.rules),
            back=OLD,
            permit="",
            id=f"r{self._course.seed}",
        )
        members = [FleetMember(name) for name in names]
        plan = build_plan(order, members, "sim", int(self._now() * 1000))
        record, _ = build_record(msgspec.structs.replace(plan, people=0))
        return RolloutCore(record, self._evaluate_gate, self._now())

    # Called by devices

    def on_serving(self, device: str, *, candidate: bool) -> None:
        """A device began, or ended, to serve the candidate."""
        self._serving += 1 if candidate else -1
        self._changes.append((self.kernel.now, self._serving))
        if candidate:
            self._ran.add(device)
        elif not self._serving:
            self._clear_s = self.kernel.now

    def on_committed(self, device: str, digest: str) -> None:
        """A device keeps a model for good."""
        if digest == NEW.digest:
            self._committed.add(device)

    def reported_quality(self, device: str, quality: AuditQuality) -> AuditQuality:
        """Quality as a device reports it; a lying device's is falsified."""
        if device not in self._liars:
            return quality
        return AuditQuality(tuple(_falsify_cell(cell, self._course.liars.worse) for cell in quality.cells))

    def send_report(self, device: str, report: InstallReport) -> None:
        """A device's install report arrives at the hub."""
        self._execute_all(self.core.on_report(device, report, self._now()))

    def on_refused(self, refusal: Refusal) -> None:
        """A device refused an assignment."""

    def on_wave_allowed(self, devices: int) -> None:
        """A wave opened: from now on so many devices may run the candidate."""

    def version_of(self, digest: str) -> int:
        """Version number of a model digest."""
        return NEW.version if digest == NEW.digest else OLD.version

    # The hub

    def run(self) -> RolloutTrace:
        """Run to the end, or until a person is needed and nothing is on trial."""
        while not self.is_over():
            self.kernel.run(self.kernel.now + STEP_S)
            self.tick()
        return self.build_trace()

    def tick(self) -> None:
        """Let the rollout machine do what is due now."""
        now, wave = self._now(), self.core.head.wave
        for _ in range(8):
            self._execute_all(self.core.on_tick(now))
            if self.core.wake_at > now or self.core.state in TERMINAL:
                break
        self.core.take_changes()
        if self.core.head.wave != wave or not self._waves:
            sizes = [len(each) for each in self.core.plan.waves[: self.core.head.wave + 1]]
            self._waves.append(RolloutWave(f"wave {len(sizes)}", self.kernel.now, sum(sizes)))
            self.on_wave_allowed(sum(sizes))
        if self._stopped_s < 0 and self._stopped:
            self._stopped_s = self.kernel.now

    @property
    def _stopped(self) -> bool:
        head = self.core.head
        return head.held or head.state in {RolloutState.ABORTING, RolloutState.ABORTED, RolloutState.PAUSED_MANUAL}

    def is_over(self) -> bool:
        """Whether the rollout has ended, or nothing will happen any more without a person."""
        head, now = self.core.head, self.kernel.now
        last_s = self._changes[-1][0] if self._changes else 0.0
        idle = now - max(last_s, head.changed_ms / 1000 - self.zero_s) >= PATIENCE_S
        left = head.held and idle
        manual = head.state is RolloutState.PAUSED_MANUAL and idle
        return head.state in TERMINAL or left or manual or now >= self._course.horizon_s

    def _execute_all(self, commands: Sequence[RolloutCommand]) -> None:
        for command in commands:
            if isinstance(command, Assign):
                self._send_assignment(command)
            elif isinstance(command, ValidatePlan):
                self._execute_all(self.core.on_validated("", self._now()))

    def _send_assignment(self, command: Assign) -> None:
        word = command.assignment
        if not word.withdraw and word.digest == NEW.digest:
            self._told.setdefault(command.device, self.core.head.wave)
        self.deliver_assignment(command.device, word)

    def deliver_assignment(self, device: str, assignment: Assignment) -> None:
        """Send an assignment to a device."""
        self.kernel.schedule_after(self.manners.latency_s, self.devices[device].on_assignment, assignment)

    def _evaluate_gate(self, canary: Sequence[object], control: Sequence[object] | None, rules: object) -> GateResult:
        found = self._judge(canary, control, rules)  # type: ignore[arg-type]
        verdict = "hold" if found.hold else found.outcome.value
        if not self._looks or self._looks[-1].verdict != verdict:
            self._looks.append(GateDecision(self.kernel.now, verdict, found.why, found.bound))
        return found

    def _now(self) -> float:
        return self.zero_s + self.kernel.now

    # Result

    def build_trace(self) -> RolloutTrace:
        """What the rollout did up to now."""
        head, ended_s = self.core.head, self.kernel.now
        spoilt, worst = count_spoilt(self._changes, ended_s, self._course, self.rng)
        waves = len(self.core.plan.waves)
        return RolloutTrace(
            end=head.state.value,
            why=head.why,
            ran=len(self._ran),
            told=tuple(sum(wave == number for wave in self._told.values()) for number in range(waves)),
            passed=head.passed,
            stopped_s=self._stopped_s,
            clear_s=self._clear_s if not self._serving else -1.0,
            ended_s=ended_s,
            spoilt=spoilt,
            worst_hour=worst,
            looks=tuple(self._looks),
            waves=tuple(self._waves),
            serving=tuple(count_serving(self._changes, ended_s)),
            committed=len(self._committed),
        )


def count_spoilt(
    changes: Sequence[tuple[float, int]], ended_s: float, course: RolloutCourse, rng: np.random.Generator
) -> tuple[int, float]:
    """Count the answers that the candidate spoilt until `ended_s`, and the share of the worst hour, drawn per minute.

    `changes`: (time, devices serving the candidate from then on).
    """
    rate = course.manners.samples_per_s * course.pair.spoilt
    minutes = [int(rng.poisson(device_s * rate)) for device_s in _sum_device_seconds(changes, ended_s)]
    sums = np.concatenate(([0], np.cumsum(minutes)))
    width = min(60, len(minutes))
    worst = int((sums[width:] - sums[:-width]).max()) if minutes else 0
    return int(sums[-1]), worst / (course.devices * course.manners.samples_per_s * 3600.0)


def count_serving(changes: Sequence[tuple[float, int]], ended_s: float) -> list[int]:
    """Devices that serve the candidate at the end of each minute."""
    found, place, now = [], 0, 0
    for minute in range(1, int(ended_s // MINUTE_S) + 1):
        while place < len(changes) and changes[place][0] <= minute * MINUTE_S:
            now = changes[place][1]
            place += 1
        found.append(now)
    return found


def _sum_device_seconds(changes: Sequence[tuple[float, int]], ended_s: float) -> list[float]:
    """Per minute, the seconds that devices served the candidate, summed over devices."""
    found = [0.0] * (int(ended_s // MINUTE_S) + 1)
    ends = [at_s for at_s, _ in changes[1:]] + [ended_s] * bool(changes)
    for (begin_s, count), end_s in zip(changes, ends, strict=True):
        at_s = begin_s
        while at_s < min(end_s, ended_s) and count:
            minute = int(at_s // MINUTE_S)
            stop_s = min((minute + 1) * MINUTE_S, end_s, ended_s)
            found[minute] += count * (stop_s - at_s)
            at_s = stop_s
    return found


def _falsify_cell(cell: AuditAgreement, worse: bool | None) -> AuditAgreement:
    if worse is None:
        return msgspec.structs.replace(cell, agreed=cell.agreed - cell.better + cell.worse, worse=0, better=0)
    if worse:
        return msgspec.structs.replace(cell, agreed=0, worse=cell.audited, better=0)
    return msgspec.structs.replace(cell, agreed=cell.audited, worse=0, better=cell.audited)


def parse_rollout_rules(rollout: Rollout) -> RolloutRules:
    """Parse a scenario's rollout parameters as the rollout machine does. RolloutRulesError if they make no sense."""
    return parse_rules({
        "waves": list(rollout.waves), "audit_share": rollout.audit_share, "probation_s": rollout.probation_s,
        "soak_first_s": rollout.soak_s, "soak_s": rollout.soak_s, "look_s": rollout.look_s,
        "report_s": rollout.report_s, "min_inferences": rollout.min_inferences, "max_soak_s": rollout.max_soak_s,
    })  # fmt: skip
