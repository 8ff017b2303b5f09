"""Properties of the rollout state machine under any order of time, reports, lies, commands and crashes.

Exposure stays within its wave, and no device gets two contents under one counter.
"""

import itertools
from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cloud_hub.rollout.types import TERMINAL, DeviceGoal, RolloutDeviceState, RolloutError, RolloutState, can_become
from policies.rollout_rules.plan import compute_wave_sizes, default_steps
from tests.cloud_hub.doubles.rollout_bench import FAIL, HOLD, PASS, UNSURE, Bench
from tests.examples import count_examples
from wire.protocol.rollout import InstallFailure, InstallState

FLEET = 120
DEVICES = st.integers(0, FLEET - 1)
DIE = st.sampled_from(["", "", "", "before", "after"])
S = RolloutState
STOPPED = TERMINAL | {S.ABORTING, S.REVERTING}


class RolloutMachine(RuleBasedStateMachine):
    @initialize(per_minute=st.sampled_from([1, 7, 50]), waves=st.sampled_from([(), ("1", "10%"), ("1", "5", "100%")]))
    def begin(self, per_minute, waves):
        self.bench = Bench(FLEET, per_minute=per_minute, waves=waves, wave_deadline_s=3000.0)
        self.names = sorted(self.bench.devices)
        self.seen = [S.DRAFT]
        self.aborted_at = None
        self.revision = -1

    # -- the hub

    @rule(seconds=st.sampled_from([1.0, 7.0, 61.0, 600.0, 5000.0]), die=DIE)
    def time_passes(self, seconds, die):
        self.bench.now += seconds
        self.bench.tick(die)

    @rule(steps=st.integers(1, 40))
    def devices_do_their_work(self, steps):
        for _ in range(steps):
            self.bench.step(11.0)
            self.look()

    @rule()
    def another_process_takes_over(self):
        self.bench.pick_up()

    @rule(judge=st.sampled_from([PASS, PASS, FAIL, UNSURE, HOLD]))
    def the_gate_changes_its_mind(self, judge):
        self.bench.judge = self.bench.core._judge = judge

    # -- devices

    @rule(which=DEVICES, online=st.booleans())
    def connect(self, which, online):
        box = self.bench.devices[self.names[which]]
        box.online = online
        word = self.bench.core.assignment_for(box.name) if online else None
        if word is not None:
            box.hear(word, self.bench.now)

    @rule(which=DEVICES, state=st.sampled_from(InstallState), failure=st.sampled_from([None, *InstallFailure]), die=DIE)
    def say_anything(self, which, state, failure, die):
        box = self.bench.devices[self.names[which]]
        if box.holds is not None:
            self.bench.hear(box.name, box.report(state, failure), die)

    @rule(which=DEVICES, counter=st.integers(0, 3), seq=st.integers(0, 5))
    def lie(self, which, counter, seq):
        box = self.bench.devices[self.names[which]]
        if box.holds is not None:
            self.bench.hear(box.name, box.report(InstallState.COMMITTED, counter=counter, seq=seq, running="b" * 64))

    # -- people

    @rule(die=DIE)
    def pause(self, die):
        self.ask(lambda core: core.pause("ann", "", self.bench.now), die)

    @rule(die=DIE)
    def resume(self, die):
        self.ask(lambda core: core.resume("ann", self.bench.now), die)

    @precondition(lambda self: self.bench.core.fleet.exposed > 1)
    @rule(die=DIE, revert=st.booleans())
    def abort(self, die, revert):
        self.ask(lambda core: core.abort("ann", "", self.bench.now, revert=revert), die)
        if not die and self.bench.core.state in STOPPED:
            self.aborted_at = len(self.bench.candidates)

    def ask(self, act, die):
        try:
            self.bench.do(act, die)
        except RolloutError:
            assert self.bench.core.take_changes() is None

    # -- what always holds

    @invariant()
    def look(self):
        core, bench = self.bench.core, self.bench
        reached = sum(len(wave) for wave in core.plan.waves[: core.head.wave + 1])
        told = Counter(bench.candidates)
        assert len(told) <= reached
        assert core.fleet.exposed <= reached
        assert set(told) <= {device for wave in core.plan.waves[: core.head.wave + 1] for device in wave}
        assert self.aborted_at is None or len(bench.candidates) == self.aborted_at
        assert core.head.passed <= core.head.wave + 1

    @invariant()
    def no_minute_holds_more_than_the_rate(self):
        """Rate of assignments really sent: one that is repeated after a crash counts too."""
        times = [at for at, _, goal in self.bench.told if goal is DeviceGoal.CANDIDATE][-200:]
        most = self.bench.core.rules.per_minute
        assert all(later - first >= 60.0 for first, later in zip(times, times[most:], strict=False))

    @invariant()
    def states_follow_the_arrows_and_the_history_tells_them_all(self):
        history = self.bench.store.read_history("r1")
        assert [entry.seq for entry in history] == list(range(1, len(history) + 1))
        states = [entry.state for entry in history if entry.what not in {"held", "approved"}]
        assert all(can_become(a, b) for a, b in itertools.pairwise(states)), states

    @invariant()
    def sums_are_what_the_rows_say(self):
        core = self.bench.core
        rows = [row for row in core.fleet.rows.values() if row.wave >= 0]
        assert core.fleet.states == Counter(row.state for row in rows)
        counted = sum(core.fleet.counts_of_wave(number).succeeded for number in range(len(core.plan.waves)))
        assert counted == sum(row.state is RolloutDeviceState.SUCCEEDED for row in rows)
        assert core.fleet.exposed == sum(row.exposed for row in rows)

    @precondition(lambda self: self.bench.core.state not in TERMINAL)
    @rule()
    def everything_ends(self):
        """Without further faults and pauses the rollout ends by itself."""
        bench = self.bench
        bench.judge = bench.core._judge = PASS
        for box in bench.devices.values():
            box.online = True
            word = bench.core.assignment_for(box.name)
            if word is not None:
                box.hear(word, bench.now)
        for _ in range(40):
            if bench.core.state in {S.PAUSED_MANUAL, S.PAUSED_INCONCLUSIVE}:
                bench.do(lambda core: core.resume("ann", bench.now))
            if bench.run(20_000.0, TERMINAL | {S.PAUSED_MANUAL, S.PAUSED_INCONCLUSIVE}, step=50.0) in TERMINAL:
                break
        assert bench.core.state in TERMINAL


def test_the_waves_of_the_machine_are_what_they_should_be():
    bench = Bench(FLEET)
    assert (
        [len(wave) for wave in bench.plan.waves] == list(compute_wave_sizes(FLEET, [*_steps(bench)])) == [1, 11, 48, 60]
    )


def _steps(bench):
    return bench.core.rules.steps() or default_steps(FLEET)


TestRolloutMachine = RolloutMachine.TestCase
TestRolloutMachine.settings = settings(max_examples=count_examples(12), stateful_step_count=30, deadline=None)
