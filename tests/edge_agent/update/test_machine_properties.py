"""Power loss, crashes, lost rows and a refusing disk in any order: a model that was committed or is on trial serves."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from edge_agent.update.types import ActivateModel, CommitModel, RollBackModel
from tests.edge_agent.doubles.install_world import S, SimulatedDevice
from tests.examples import count_examples
from wire.protocol.rollout import DeviceSignals, InstallFailure, RolloutCohort

FINE = DeviceSignals(inferences=1000, starts=1)
FAILURES = st.sampled_from(
    (None, None, None, InstallFailure.NETWORK, InstallFailure.DISK, InstallFailure.INTEGRITY, InstallFailure.SELF_TEST)
)
ON_TRIAL = frozenset({S.ACTIVATING, S.PROBATION, S.ROLLING_BACK, S.COMMITTED})


class Power(RuleBasedStateMachine):
    """The world's own books say what was committed last; whatever happens, that or a model on trial answers."""

    def __init__(self) -> None:
        super().__init__()
        self.world = SimulatedDevice()

    alive = precondition(lambda self: self.world.alive)
    dead = precondition(lambda self: not self.world.alive)

    @alive
    @rule(kind=st.sampled_from(("candidate", "candidate", "control", "withdraw")))
    def assigned(self, kind: str) -> None:
        cohort = RolloutCohort.CONTROL if kind == "control" else RolloutCohort.CANDIDATE
        self.world.assign(cohort=cohort, withdraw=kind == "withdraw", soak_s=10.0)

    @alive
    @rule(failure=FAILURES, sound=st.sampled_from((True, True, True, False)))
    def errand_goes_on(self, failure: InstallFailure | None, sound: bool) -> None:
        self.world.step_worker(failure, sound=sound)

    @alive
    @rule()
    def errand_comes_home(self) -> None:
        self.world.finish_worker()

    @alive
    @rule(seconds=st.sampled_from((1.0, 20.0, 3600.0)), crashes=st.sampled_from((0, 0, 0, 3)))
    def time_passes(self, seconds: float, crashes: int) -> None:
        self.world.advance(seconds, replace(FINE, crashes=crashes))

    @alive
    @rule(deeds=st.integers(0, 6))
    def power_goes_soon(self, deeds: int) -> None:
        self.world.fuse = deeds

    @alive
    @rule(clean=st.booleans())
    def process_ends(self, clean: bool) -> None:
        if clean:
            self.world.stop_process()
        else:
            self.world.crash_process()

    @alive
    @rule(kind=st.sampled_from((ActivateModel, CommitModel, RollBackModel)))
    def disk_will_refuse(self, kind: type) -> None:
        self.world.fails[kind] = InstallFailure.DISK

    @dead
    @rule()
    def process_begins(self) -> None:
        self.world.start_process()

    @dead
    @rule()
    def row_is_lost(self) -> None:
        self.world.disk.row = b"{}"
        self.world.counter += 1

    @invariant()
    def what_answers_was_committed_or_is_on_trial(self) -> None:
        world = self.world
        if not world.alive:
            return
        state, target = world.core.row.state, world.core.row.target
        trial = target.digest if target and state in ON_TRIAL else world.committed
        assert world.serving in (world.committed, trial), (state, world.serving)
        if state is S.IDLE:
            assert (world.serving, world.disk.current, world.disk.trial) == (world.committed, world.committed, False)

    @invariant()
    def nothing_torn_is_current(self) -> None:
        disk = self.world.disk
        assert disk.current in disk.whole or disk.trial
        assert self.world.committed in disk.whole

    def teardown(self) -> None:
        """The power stays, and nobody is there: it comes to rest by itself, with a model that serves."""
        world = self.world
        world.fuse, world.fails = -1, {}
        while not world.alive:
            world.start_process()
        for _ in range(40):
            world.finish_worker()
            world.advance(3600.0, FINE)
        assert world.core.row.state is S.IDLE, world.core.row
        assert world.serving == world.committed


TestPower = Power.TestCase
TestPower.settings = settings(
    max_examples=count_examples(150),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
