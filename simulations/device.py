"""One device of the fleet: the production `EdgeCore` and, in place of its loop, this obedient one over virtual time.

Rule: whatever the real loop keeps in memory is lost by `kill`; whatever it commits is in the twin and comes back.
"""

from hashlib import sha256

from cloud_hub.envelopes import PlainEnvelopes
from edge_agent.commands import (
    Answer,
    Command,
    Correction,
    Dice,
    Facts,
    Finish,
    Mark,
    Reseal,
    SayHello,
    SendAsk,
    Store,
    Transmit,
    WakeAt,
)
from edge_agent.core import EdgeCore
from policies import backoff
from policies.policy import Policy
from policies.reasons import Why
from simulations.air import Line
from simulations.twin import DeviceDisk, Put, Resealed, Write, Writer
from simulations.weather import Clock
from simulations.world import FRAME_BYTES, MODEL, SAMPLE, World
from wire import codec
from wire.messages import Ask, Escalation, Header, Hello, Prediction, Suite
from wire.topics import Channel, shard_of, topic

RECONNECT_BASE_S = 0.5
RECONNECT_CAP_S = 60.0
DAY_S = 86_400
TIMER_S = 1e-3  # timers ring late, never early
_UNSIGNED = bytes(codec.SIGNATURE_BYTES)


class Device:
    """`hub`: the line at whose other end the hub listens."""

    def __init__(self, name: str, world: World, hub: Line) -> None:
        self.name = name
        self.line = Line(self._hear)
        self.alive = False
        self._world = world
        self._hub = hub
        self._disk = DeviceDisk(name, world.dice.getrandbits(63), world.judge.see)
        self._topics = {channel: topic(name, channel) for channel in (Channel.QUESTION, Channel.ASK)}
        self._shard = shard_of(name)
        self._life = 0  # counts processes: a wake-up call for the last one wakes nobody
        self._attempts = 0
        self._policy = world.policy
        self._clock = Clock()
        self._offset_s = 0.0  # what we believe hub time minus our own clock to be
        self._writer = Writer(world.kernel, world.pace.commit_s)
        self._core = EdgeCore(world.setup, world.policy)

    # Life

    def start(self) -> None:
        """A new process on a rebooted machine: another clock, and of the past what the disk remembers."""
        world = self._world
        self.alive = True
        self._life += 1
        self._clock = world.weather.clock()
        self._offset_s = world.hub_now() - self._now() + world.weather.wall_error_s()
        self._writer = Writer(world.kernel, world.pace.commit_s)
        self._core = EdgeCore(world.setup, self._policy)
        self._obey(self._core.restore(self._disk.memory(self._clock), self._now()))
        self._attempts = 0
        self._try_later()

    def kill(self) -> None:
        self.alive = False
        self._life += 1
        self.line.drop()
        self._writer.kill(self._world.dice)

    def sample(self, confidence: float, data_class: str) -> None:
        if not self.alive:
            return
        dice = self._world.dice
        drawn = Dice(f"{dice.getrandbits(128):032x}", dice.random(), dice.random())
        local = Prediction(0, confidence, (confidence,), "sim@1")
        facts = Facts(data_class, int((self._now() + self._offset_s) // DAY_S))
        self._obey(self._core.on_prediction(local, facts, drawn, self._now()))

    def use_policy(self, policy: Policy) -> None:
        self._policy = policy
        if self.alive:
            self._obey(self._core.on_policy(policy, self._now()))

    # The link

    def lose_link(self) -> None:
        """The connection broke, and the device knows."""
        if self.alive and self.line.up:
            self.line.drop()
            self._obey(self._core.on_link(up=False, now=self._now()))
            self._try_later()

    def _try_later(self) -> None:
        dice = self._world.dice
        delay_s = backoff.delay(self._attempts, dice.random(), RECONNECT_BASE_S, RECONNECT_CAP_S)
        self._attempts += 1
        self._world.kernel.after(delay_s, self._try, self._life)

    def _try(self, life: int) -> None:
        if life != self._life or self.line.up:
            return
        if self.line.cut or not self._world.air.up:
            self._try_later()
            return
        self._attempts = 0
        self.line.connect()
        self._obey(self._core.on_link(up=True, now=self._now()))

    def _hear(self, _topic: str, payload: bytes) -> None:
        frame = codec.split(payload)
        self._offset_s = frame.header.created_ms / 1000 - self._now()
        if frame.suite is Suite.SIGNED:
            self._obey(self._core.on_note(codec.decode_down(frame.body), self._now()))
        elif frame.header.epoch == self._disk.epoch:
            verdict = codec.decode_verdict(codec.unpad(frame.body))
            self._obey(self._core.on_verdict(frame.header.seq, verdict, self._now()))

    # Commands

    def _obey(self, commands: list[Command]) -> None:
        writes: list[Write] = []
        for command in commands:
            kind = type(command)
            if kind is Answer or kind is Correction or kind is Finish or kind is Mark:
                writes.append(command)  # type: ignore[arg-type]
            else:
                self._act(command)
        if writes:
            step = tuple(writes)
            self._writer.submit(lambda: self._disk.commit(step, self._clock, self._world.kernel.now))

    def _act(self, command: Command) -> None:
        match command:
            case Transmit(seq):
                self._publish(Channel.QUESTION, self._disk.frame(seq))
            case WakeAt(when):
                self._world.kernel.at(self._clock.when(when) + TIMER_S, self._wake, self._life)
            case Store():
                self._store(command)
            case Reseal(seq):
                self._reseal(seq)
            case SendAsk(seqs):
                self._say(Ask(self._disk.epoch, seqs))
            case SayHello():
                self._say(Hello(self._disk.epoch, "boot", "sim", (MODEL,)))

    def _store(self, store: Store) -> None:
        world = self._world
        if world.weather.disk_fails():
            self._writer.submit(
                lambda: None, lambda: self._obey(self._core.on_store_failed(store.seq, Why.NO_DISK, self._now()))
            )
            return
        frame = self._seal(store)
        digest = sha256(frame).digest()
        put = Put(store, frame, digest, world.kernel.now + world.setup.limits.max_age_s)
        self._commit(put, store.seq, digest)

    def _reseal(self, seq: int) -> None:
        frame = self._seal(self._disk.rows[seq].store)
        digest = sha256(frame).digest()
        self._commit(Resealed(seq, frame, digest), seq, digest)

    def _commit(self, write: Put | Resealed, seq: int, digest: bytes) -> None:
        self._writer.submit(
            lambda: self._disk.commit((write,), self._clock, self._world.kernel.now),
            lambda: self._obey(self._core.on_stored(seq, digest, self._now())),
        )

    def _wake(self, life: int) -> None:
        if life == self._life:
            self._obey(self._core.on_wake(self._now()))

    # Frames: the form of the real ones, no cryptography

    def _seal(self, store: Store) -> bytes:
        permit = store.permit
        question = Escalation(
            store.id,
            MODEL,
            permit.policy,
            permit.targets[0].region,
            {"features": SAMPLE},
            store.budget_s,
            store.audit,
            "",
        )
        header = self._header(store.seq)
        padded = codec.pad(codec.encode(question), FRAME_BYTES - 128)
        return codec.clear_part(Suite.SEALED, header) + padded + _UNSIGNED

    def _say(self, note: Ask | Hello) -> None:
        clear = codec.clear_part(Suite.SIGNED, self._header(0))
        self._publish(Channel.ASK, clear + codec.encode(note) + _UNSIGNED)

    def _publish(self, channel: Channel, frame: bytes) -> None:
        self._world.air.carry(self.line, self._hub, self._topics[channel], frame)

    def _header(self, seq: int) -> Header:
        created_ms = int((self._now() + self._offset_s) * 1000)
        return Header(self._shard, self.name, self._disk.epoch, seq, created_ms, PlainEnvelopes.reader_id)

    def _now(self) -> float:
        return self._clock.read(self._world.kernel.now)
