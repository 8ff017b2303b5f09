"""Test bench of a rollout: the core over its real store, devices that obey in virtual time, and simulated crashes."""

from typing import Any

from msgspec.structs import replace

from cloud_hub.database.connection import IN_MEMORY
from cloud_hub.rollout.machine import RolloutCore
from cloud_hub.rollout.planning import RolloutOrder, build_plan, build_record
from cloud_hub.rollout.store import RolloutStore
from cloud_hub.rollout.types import TERMINAL, Approval, Assign, BundleTarget, DeviceGoal, NotifyOperator
from policies.rollout_rules.gate import GateOutcome, GateResult
from policies.rollout_rules.plan import FleetMember
from wire.protocol.rollout import DeviceSignals, InstallFailure, InstallReport, InstallState, RolloutCohort

NEW = BundleTarget("models/digits/digits-2.skb", 2, "b" * 64)
OLD = BundleTarget("models/digits/digits-1.skb", 1, "a" * 64)
BEGIN_S = 1_000_000.0
QUICK = {
    "soak_first_s": 120.0, "soak_s": 60.0, "look_s": 10.0, "report_s": 10.0, "wave_deadline_s": 7200.0,
    "withdraw_s": 60.0,
}  # fmt: skip
COMMITTED, ROLLED_BACK = InstallState.COMMITTED, InstallState.ROLLED_BACK


def says(outcome, why="", **more):
    """Quality gate that always gives the same decision."""
    return lambda canary, control, rules: GateResult(outcome, why, **more)


PASS, FAIL, UNSURE = says(GateOutcome.PASS), says(GateOutcome.FAIL, "worse"), says(GateOutcome.INCONCLUSIVE, "too few")
HOLD = says(GateOutcome.INCONCLUSIVE, "likely harm", hold=True)


def members(count, device_class="camera"):
    return [FleetMember(f"acme--d{n:05d}", device_class, "eu", "acme") for n in range(count)]


class Device:
    """Device that follows assignments: the highest counter wins, and each report has its own seq."""

    def __init__(self, name) -> None:
        self.name = name
        self.online = True
        self.ends: Any = COMMITTED
        self.failure: Any = None
        self.takes_s = 30.0
        self.runs = OLD
        self.seq = 0
        self.holds: Any = None
        self.began_s = 0.0
        self.stage = "idle"  # told, busy, proven (waits for its release), taken back
        self.contents: dict[int, Any] = {}  # counter -> what was said under it

    def hear(self, word, now):
        known = self.contents.setdefault(word.counter, word)
        assert known == word, f"{self.name} was told two things under {word.counter}"
        if not self.online or (self.holds is not None and word.counter <= self.holds.counter):
            return
        installing = self.stage in {"told", "busy", "proven"} and self.holds.cohort is RolloutCohort.CANDIDATE
        if installing and not word.withdraw and word.digest == self.holds.digest and not word.needs_release:
            self.holds = word
            return
        self.holds, self.began_s = word, now
        self.stage = "told" if not word.withdraw else "taken back" if installing else "idle"

    def step(self, now):
        """The reports it makes now."""
        if not self.online or self.stage == "idle":
            return []
        if self.stage == "taken back":
            return self.end(InstallState.CANCELLED, None)
        if self.holds.cohort is RolloutCohort.CONTROL:
            return self.end(InstallState.IDLE, None)
        if now - self.began_s < self.takes_s:
            before, self.stage = self.stage, "busy"
            return [self.report(InstallState.DOWNLOADING)] if before == "told" else []
        if self.ends is COMMITTED and self.holds.needs_release:
            told, self.stage = self.stage == "proven", "proven"
            return [] if told else [self.report(InstallState.PROBATION, trial_passed=True)]
        if self.ends is COMMITTED:
            self.runs = BundleTarget(self.holds.path, self.holds.version, self.holds.digest)
        return self.end(self.ends, self.failure)

    def end(self, state, failure):
        self.stage = "idle"
        return [self.report(state, failure)]

    def report(self, state, failure=None, **changes):
        self.seq += 1
        word, runs = self.holds, self.runs
        now = (1, self.seq, word.counter, word.rollout, word.family, state, failure, runs.version, runs.digest, 0)
        return replace(InstallReport(*now, cohort=word.cohort, signals=DeviceSignals(inferences=1000)), **changes)


class Bench:
    """Rollout controller under test.

    `judge`: the quality gate; `die` "before" or "after" the write: the process crashes there.
    """

    def __init__(self, count=200, judge=PASS, order=None, **rules) -> None:
        self.now = BEGIN_S
        self.judge: Any = judge
        self.core: Any = None
        self.store: Any = RolloutStore.open(IN_MEMORY)
        self.devices = {m.device: Device(m.device) for m in members(count)}
        self.order = replace(order or RolloutOrder("digits", NEW, back=OLD, id="r1"), rules={**QUICK, **rules})
        self.plan = replace(build_plan(self.order, members(count), "ann", self.ms), people=0)
        self.create(self.plan)
        self.told: list[Any] = []  # (time, device, goal)
        self.released: list[Any] = []
        self.alarms: list[str] = []
        self.deaths = 0
        self.pick_up()

    @property
    def ms(self):
        return int(self.now * 1000)

    def create(self, plan):
        record, entry = build_record(plan)
        self.store.create_rollout(record, (entry,))

    def pick_up(self):
        """A process that knows nothing but the store."""
        self.core = RolloutCore(self.store.read_record("r1"), self.judge, self.now)

    def do(self, act, die=""):
        """One event as the loop does it: judged, written, obeyed."""
        commands = act(self.core)
        changes = self.core.take_changes()
        if die == "before":
            self.deaths += 1
            self.pick_up()
            return
        if changes is not None:
            assert self.store.apply_changes(changes), "another hub was faster"
        if die == "after":
            self.deaths += 1
            self.pick_up()
            return
        self.obey(commands)

    def obey(self, commands):
        for command in commands:
            if isinstance(command, Assign):
                row = self.core.fleet.rows[command.device]
                told = self.released if row.released and row.goal is DeviceGoal.CANDIDATE else self.told
                told.append((self.now, command.device, row.goal))
                self.devices[command.device].hear(command.assignment, self.now)
            elif isinstance(command, NotifyOperator):
                self.alarms.append(command.why)
            else:
                self.do(lambda core: core.on_validated("", self.now))

    def tick(self, die=""):
        self.do(lambda core: core.on_tick(self.now), die)

    def hear(self, device, report, die=""):
        self.do(lambda core: core.on_report(device, report, self.now), die)

    def say(self, device, state, failure=None, **changes):
        """A device reports out of its turn."""
        self.hear(device, self.devices[device].report(state, failure, **changes))

    def step(self, seconds=5.0):
        """Time passes: the hub ticks, devices report."""
        self.now += seconds
        self.tick()
        for device in self.devices.values():
            for report in device.step(self.now):
                self.hear(device.name, report)

    def run(self, seconds=100_000.0, until=TERMINAL, step=5.0):
        end = self.now + seconds
        while self.core.state not in until and self.now < end:
            self.step(step)
        return self.core.state

    def to(self, state, seconds=20_000.0):
        assert self.run(seconds, {state}) is state, (self.core.state, self.core.head.why)

    def approve(self, by, digest=None):
        approval = Approval(by, digest or self.core.plan.digest, self.ms)
        self.do(lambda core: core.approve(approval, self.now))

    @property
    def states(self):
        return [entry.state.value for entry in self.store.read_history("r1")]

    @property
    def candidates(self):
        """Whoever was told to install, in order."""
        return [device for _, device, goal in self.told if goal is DeviceGoal.CANDIDATE]

    def breaks(self, devices, state=ROLLED_BACK, failure=InstallFailure.HEALTH):
        """These do not take the version."""
        for device in devices:
            self.devices[device].ends, self.devices[device].failure = state, failure
