"""Simulated device that is awake: the production `EdgeCore` with its loop replaced by calls in virtual time.

Rule: whatever the real loop keeps in memory is lost by `kill`; whatever it commits is in the disk's twin and comes
back. Devices at rest are not here: `simulations.nodes.fleet` keeps them as a few numbers, and makes one of these when
something happens to it.
"""

from hashlib import sha256
from typing import Protocol

from cloud_hub.core.commands import QuestionKey
from edge_agent.question.commands import (
    Answer,
    Command,
    Correction,
    Finish,
    MarkState,
    RaiseSpend,
    RandomDraws,
    Reseal,
    SampleAttributes,
    SendAsk,
    SendHello,
    Store,
    Transmit,
    WakeAt,
)
from edge_agent.question.decide import EdgeCore
from edge_agent.question.records import Outcome
from policies.decisions.routing import HubSite
from policies.model.policy import Policy
from policies.model.reasons import DecisionReason
from simulations.checking.egress import make_sample_tensor
from simulations.kernel.world import DAY_S, PADDED_BYTES, format_device_name
from simulations.nodes.connections import Connections
from simulations.nodes.device_disk import DeviceDisk, ResealWrite, SampleTruth, SimulatedWriter, StoreWrite, Write
from simulations.nodes.plain_envelopes import PlainEnvelopes
from simulations.nodes.services import ModelRegression, RegionServices, RolloutTrial
from simulations.scenario.conditions import DeviceClock
from wire.protocol import codec
from wire.protocol.messages import (
    CipherSuite,
    DownNote,
    Escalation,
    FrameHeader,
    HelloNote,
    ModelRef,
    Prediction,
    StatusRequest,
    UpNote,
    Verdict,
)
from wire.protocol.topics import TopicChannel, compute_shard

_WRITES = frozenset((Answer, Correction, Finish, RaiseSpend))
TIMER_S = 1e-3  # timers fire late, never early
_UNSIGNED = bytes(codec.SIGNATURE_BYTES)


class DeviceHost(Protocol):
    """What a device needs of the fleet that it belongs to."""

    ground: RegionServices
    wires: Connections

    def policy_of(self, number: int) -> Policy | None:
        """Policy in force on a device."""

    def clock_of(self, number: int) -> DeviceClock:
        """Clock of a device in its current boot."""

    def next_clock(self, number: int) -> DeviceClock:
        """Clock of a device after one more reboot."""

    def offset_s(self, number: int, clock: DeviceClock) -> float:
        """What a device believes hub time minus its own clock to be, in seconds."""

    def is_metered(self, number: int) -> bool:
        """Whether a device's link costs by the byte."""

    def lose_link(self, number: int) -> None:
        """A device notices that its connections are lost."""

    def on_hub_note(self, number: int, note: DownNote) -> None:
        """Apply what a hub's note says of connecting."""

    def rest_if_idle(self, device: "SimulatedDevice") -> None:
        """Put a device to rest if nothing keeps it awake."""


class SimulatedDevice:
    """One device with a core, a disk and connections.

    `number`: in the whole fleet. `offset_s`: what it believes hub time minus its own clock to be.
    `settling`: a check whether it can rest is scheduled.
    """

    __slots__ = (
        "_born", "_ground", "_herd", "_marks", "_shard", "alive", "clock", "core", "disk", "model", "name", "number",
        "offset_s", "policy", "regressed", "settling", "trial", "writer",
    )  # fmt: skip

    def __init__(self, number: int, herd: DeviceHost) -> None:
        self.number = number
        self.name = format_device_name(number)
        self.alive = True
        self.model: ModelRef = herd.ground.model
        self.policy: Policy | None = herd.policy_of(number)
        self.regressed: ModelRegression | None = None
        self.trial: RolloutTrial | None = None  # what it counts for a rollout
        self.settling = False
        self.clock: DeviceClock = herd.clock_of(number)
        self.offset_s: float = herd.offset_s(number, self.clock)
        self._herd = herd
        self._ground = herd.ground
        self._shard = compute_shard(self.name)
        self._born: dict[int, SampleTruth] = {}  # open questions that are not on disk yet
        self._marks: dict[int, MarkState] = {}  # not worth a commit of their own
        self.core: EdgeCore | None = None
        self.disk: DeviceDisk
        self.writer: SimulatedWriter

    # Life

    def kill(self) -> None:
        """Kill the process, with all that it kept in memory."""
        self.alive = False
        self.core = None
        self._born.clear()
        self._marks.clear()
        self.writer.kill(self._ground.dice)
        self._herd.wires.drop_all(self.number)

    def start(self) -> None:
        """Start a new process on a rebooted machine: another clock, and of the past what the disk holds."""
        ground = self._ground
        self.alive = True
        self.clock = self._herd.next_clock(self.number)
        self.offset_s = ground.hub_now() - self.now() + ground.weather.draw_wall_error_s()
        self.writer = self.new_writer()
        self.core = ground.cores.edge(ground.setup, self.policy)
        around = ground.build_context(metered=self._herd.is_metered(self.number))
        found = self.core.on_context(around, self.now())
        self.execute_commands(found + self.core.restore(self.disk.load_memory(self.clock), self.now()))
        self._herd.wires.begin_connecting(self.number)

    @property
    def epoch(self) -> int:
        """Epoch of the device's database."""
        return self.disk.epoch

    def lose_link(self) -> None:
        """Notice that all connections are broken."""
        self._herd.lose_link(self.number)

    def now(self) -> float:
        """Time on the device's own monotonic clock, in seconds."""
        return self.clock.read(self._ground.kernel.now)

    # Events

    def on_sample(self, local: Prediction, data_class: str, dice: RandomDraws, sampled: SampleTruth) -> None:
        """Hand the core a sample that it wants to ask a hub about, if its budget permits."""
        core = self.core
        if core is None:
            return
        now = self.now()
        facts = SampleAttributes(data_class, int((now + self.offset_s) // DAY_S))
        commands = core.on_prediction(local, facts, dice, now)
        first = commands[0]
        if isinstance(first, Answer):
            self._ground.recorder.count_answer(first, sampled)
            self._ground.judge.count_local(first.why)
        elif isinstance(first, Store):
            self._born[first.seq] = sampled
            self.execute_commands(commands)

    @property
    def is_odd(self) -> bool:
        """Whether it differs from the other devices of the region, and so must not rest."""
        return self.regressed is not None or self.trial is not None or self.model != self._ground.model

    def apply_regression(self, truth: int, edge: int, hub: int) -> tuple[int, int]:
        """Labels of edge and hub for a sample, changed if the device runs a regressed model."""
        bad = self.regressed
        if bad is None or bad.label not in (-1, truth) or self._ground.dice.random() >= bad.amount:
            return edge, hub
        wrong = (truth + 1) % self._ground.scenario.model.labels
        return wrong, wrong if bad.tail else hub

    def refresh_surroundings(self) -> None:
        """Give the core the current surroundings (time of week, metering)."""
        if self.core is not None:
            around = self._ground.build_context(metered=self._herd.is_metered(self.number))
            self.execute_commands(self.core.on_context(around, self.now()))

    def use_policy(self, policy: Policy | None) -> None:
        """Put another policy into force."""
        self.policy = policy
        if self.core is not None:
            self.execute_commands(self.core.on_policy(policy, self.now()))

    def on_link(self, name: str, *, up: bool) -> None:
        """A connection came up or was lost."""
        if self.core is not None:
            self.execute_commands(self.core.on_link(up=up, now=self.now(), name=name))

    def on_frame(self, payload: bytes, line: str) -> None:
        """A frame of a hub arrived on `line`."""
        core = self.core
        if core is None:
            return
        frame = codec.split_frame(payload)
        now = self.now()
        self.offset_s = frame.header.created_ms / 1000 - now
        if frame.suite is CipherSuite.SIGNED:
            self.on_note(codec.decode_down_note(frame.body), line)
        elif frame.header.epoch == self.disk.epoch:
            verdict: Verdict = codec.decode_verdict(codec.unpad_plaintext(frame.body))
            self.execute_commands(core.on_verdict(frame.header.seq, verdict, now))

    def on_note(self, note: DownNote, line: str) -> None:
        """A signed note of a hub arrived on `line`."""
        if self.core is not None:
            self._herd.on_hub_note(self.number, note)
            self.execute_commands(self.core.on_note(note, self.now(), line))

    def on_alarm(self, core: EdgeCore) -> None:
        """A timer of this core fires; timers of an earlier core are ignored."""
        if core is self.core:
            self.execute_commands(core.on_wake(self.now()))

    # Commands

    def execute_commands(self, commands: list[Command]) -> None:
        """Execute the core's commands; what must be durable goes through the writer in one commit."""
        writes: list[Write] = []
        for command in commands:
            if type(command) in _WRITES:
                writes.append(command)  # type: ignore[arg-type]
            elif isinstance(command, WakeAt):
                self._ground.kernel.schedule_at(
                    self.clock.true_time_at(command.when) + TIMER_S, self.on_alarm, self.core
                )
            elif isinstance(command, MarkState):
                self._marks[command.seq] = command
            else:
                self._execute(command)
        if writes:
            self.writer.submit((self._commit, (writes,)))
        elif self.core is not None and not len(self.core.open_questions):
            self._herd.rest_if_idle(self)

    def _execute(self, command: Command) -> None:
        match command:
            case Transmit(seq, line):
                self._transmit(seq, line)
            case Store():
                self._store_question(command)
            case Reseal(seq, target):
                self._reseal_question(seq, target)
            case SendAsk(seqs, line):
                self.send_note(StatusRequest(self.disk.epoch, seqs), line)
            case SendHello(line):
                self.send_note(HelloNote(self.disk.epoch, "boot", "sim", (self.model,)), line)

    def _store_question(self, store: Store) -> None:
        ground = self._ground
        sampled = self._born.pop(store.seq)
        fate = sampled.fate
        fails = ground.weather.disk_fails() if fate is None or fate.disk_fails is None else fate.disk_fails
        if fails:
            self.writer.submit((_do_nothing, ()), (self._on_store_failed, (store.seq, sampled, DecisionReason.NO_DISK)))
            return
        if fate is not None:
            ground.weather.fates[self._key(store.seq)] = fate
        frame = self._seal(store, store.permit.targets[0].region, sampled)
        put = StoreWrite(store, frame, sha256(frame).digest(), ground.kernel.now + ground.max_age_s, sampled)
        self.writer.submit((self._commit_question, (put,)), (self._on_stored, (put,)))

    def _commit_question(self, put: StoreWrite) -> None:
        if not self.disk.store_question(put, self._ground.kernel.now):
            self._born[put.store.seq] = put.sampled

    def _on_stored(self, put: StoreWrite) -> None:
        """The commit of a question is done: tell the core, or take the charge back if an account was too low."""
        seq = put.store.seq
        if self.core is None:
            return
        if seq in self._born:  # an account held less than the core thought
            self.core.permissions.spend.raise_to_stored(self.disk.spend)
            self._on_store_failed(seq, self._born.pop(seq), DecisionReason.DENIED_BUDGET)
        else:
            self.execute_commands(self.core.on_stored(seq, put.digest, self.now()))

    def _on_store_failed(self, seq: int, sampled: SampleTruth, why: DecisionReason) -> None:
        if self.core is not None:
            for said in self.core.on_store_failed(seq, why, self.now()):
                if isinstance(said, Answer):
                    self._ground.recorder.count_answer(said, sampled)
                    self._ground.judge.count_local(why)
            self._herd.rest_if_idle(self)

    def _reseal_question(self, seq: int, target: HubSite | None) -> None:
        kept = self.disk.rows.get(seq)
        if kept is None:
            return
        target = target or kept.target
        frame = self._seal(kept.store, target.region, kept.sampled)
        digest = sha256(frame).digest()
        self.writer.submit(
            (self._commit, ([ResealWrite(seq, frame, digest, target)],)), (self._on_resealed, (seq, digest))
        )

    def _on_resealed(self, seq: int, digest: bytes) -> None:
        if self.core is not None:
            self.execute_commands(self.core.on_stored(seq, digest, self.now()))

    def new_writer(self) -> SimulatedWriter:
        """A writer for a new life of the device."""
        return SimulatedWriter(self._ground.kernel, self._ground.pace.commit_s, self._on_idle)

    def _on_idle(self) -> None:
        self._herd.rest_if_idle(self)

    def _commit(self, writes: list[Write]) -> None:
        """Commit answers and outcomes; an answer is recorded first, since its outcome deletes the row of the sample."""
        ground, rows = self._ground, self.disk.rows
        for write in writes:
            if isinstance(write, Answer | Correction):
                kept = rows.get(write.seq) if write.seq is not None else None
                if kept is not None:
                    ground.recorder.count_answer(write, kept.sampled)
            elif isinstance(write, Finish):
                self._marks.pop(write.seq, None)
                if self.trial is not None and write.seq in rows and write.outcome is Outcome.ANSWERED:
                    self.trial.on_verdict(rows[write.seq].sampled)
                ground.on_ended(self._key(write.seq))
        self.disk.commit([*self._marks.values(), *writes], self.clock, ground.kernel.now)
        self._marks.clear()

    def _transmit(self, seq: int, line: str) -> None:
        kept = self.disk.rows[seq]
        frame = kept.frame
        self._ground.recorder.count_bytes(kept.store.permit.egress.rule, len(frame))
        self._ground.send_up(self._key(seq), line, TopicChannel.QUESTION, frame)

    # Frames: the form of the real ones, no cryptography

    def _seal(self, store: Store, region: str, sampled: SampleTruth) -> bytes:
        question = Escalation(
            id=store.id,
            model=self.model,
            policy=store.permit.policy,
            region=region,
            fields={
                "features": make_sample_tensor(sampled.data_class, sampled.hub)
            },  # what it really is, whatever a core calls it
            budget_s=store.budget_s,
            audit=store.audit,
            trace="",
            rule=store.labels.rule,
            data_class=store.data_class,
            subject=b"",
            keep_days=store.labels.keep_days,
        )
        padded = codec.pad_plaintext(codec.encode_wire_message(question), PADDED_BYTES)
        return codec.encode_clear_part(CipherSuite.SEALED, self._header(store.seq)) + padded + _UNSIGNED

    def send_note(self, note: UpNote, line: str = "") -> None:
        """Send a signed note; nothing if the device is dead or not connected."""
        clear = codec.encode_clear_part(CipherSuite.SIGNED, self._header(0))
        self.send_frame(TopicChannel.ASK, clear + codec.encode_wire_message(note) + _UNSIGNED, line)

    def send_frame(self, channel: TopicChannel, frame: bytes, line: str = "") -> None:
        """Send a frame on a channel, unless the device is dead."""
        if self.alive:
            self._ground.send_up(self._key(0), line, channel, frame)

    def _key(self, seq: int) -> QuestionKey:
        return QuestionKey(self.name, self.disk.epoch, seq)

    def _header(self, seq: int) -> FrameHeader:
        created_ms = int((self.now() + self.offset_s) * 1000)
        return FrameHeader(
            shard=self._shard,
            device=self.name,
            epoch=self.disk.epoch,
            seq=seq,
            created_ms=created_ms,
            key_id=PlainEnvelopes.reader_id,
        )


def _do_nothing() -> None:
    """Commit of a write that failed."""
