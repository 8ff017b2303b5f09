"""Simulated process of a hub: the production `HubCore`, its loop, store and engines replaced by calls in virtual time.

Rule: whatever the real loop keeps in memory is lost by `kill`; what its store commits is in the disk's twin and comes
back. Rule: a process that shares the disk serves the shards whose leases it holds (`hub_shards`).
"""

from collections import Counter
from collections.abc import Mapping

from cloud_hub.core.commands import (
    CheckEngine,
    Command,
    DeleteQuestion,
    LookUpQuestions,
    QuestionEnding,
    QuestionKey,
    QuestionRow,
    RunBatch,
    SealVerdict,
    SendFrame,
    SendNote,
    StoredQuestion,
    StoreEnding,
    StoreQuestion,
    Stream,
    SuspendDevice,
)
from cloud_hub.core.core import HubCore
from cloud_hub.core.intake import QUESTION_TICKET
from cloud_hub.engine.types import ModelCard
from cloud_hub.system.settings import HubSettings
from simulations.checking.events import Flaw
from simulations.kernel.process_clock import ProcessClock
from simulations.kernel.world import FEATURES, build_hub_prediction
from simulations.nodes.broker import ClientConnection, SimulatedBroker
from simulations.nodes.device_disk import SimulatedWriter
from simulations.nodes.hub_disk import HubDisk
from simulations.nodes.hub_shards import SimulatedShards
from simulations.nodes.hub_store import DatabaseLink, HubStore, ProcessContext
from simulations.nodes.plain_envelopes import PlainEnvelopes
from simulations.nodes.services import RegionServices
from simulations.scenario.types import Region
from wire.protocol.codec import split_frame
from wire.protocol.messages import WelcomeNote

WAKE_S = 1.0
KEEP_ALIVE_S = 30.0  # the broker hears nothing of a process for so long: it ends the connection
LOOK_IDLE_S = 0.1  # how often a process that leaves looks whether everything is done
LINGERS_S = 2.0  # and for so long it stays afterwards, to refuse what comes late


class HubProcess:
    """One process of hub `hub`. `shares`: it has its shards by lease, under its own name `member`.

    `counts` sums over all its lives, `life` counts these; `subscribed`: shards whose messages its connection gets.
    """

    def __init__(
        self, hub: str, member: str, region: Region, ground: RegionServices, *, air: SimulatedBroker, disk: HubDisk
    ) -> None:
        self.hub = hub
        self.member = member
        self.line = ClientConnection()
        self.subscribed: frozenset[int] = frozenset()
        self.alive = False
        self.air = air
        self.link = DatabaseLink()
        self._disk = disk
        self._shares = region.members > 1
        self._ground = ground
        self._kernel = ground.kernel
        self._is = region
        self._card = ModelCard(ground.model, (FEATURES,), max_batch=region.max_batch, slots=region.slots)
        self._envelopes = PlainEnvelopes()
        self._past: Counter[str] = Counter()
        self._forgotten = False  # by the broker, which ended the connection
        self.life = 0
        self._reset_process()

    @property
    def counts(self) -> Counter[str]:
        """The core's counters, summed over all lives."""
        return self._past + self._core.counts

    @property
    def core(self) -> HubCore:
        """The core of the current life."""
        return self._core

    # Life

    @property
    def is_ordinary(self) -> bool:
        """Whether it runs, is connected and admits questions, and has no more of them than its engines take at once."""
        usual = self.alive and self.line.up and not (self._clock.stopped or self.line.cut or self.link.cut)
        return usual and not self._core.draining and self._core.open_count <= self._is.slots * self._is.max_batch

    def learn_stream(self, stream: Stream, highest: int) -> None:
        """Remember how far a stream has come, as after a lookup in the store."""
        if self.alive:
            self._core.on_found(LookUpQuestions(QUESTION_TICKET, (), (stream,)), {}, {stream: highest}, self.hub_now())

    def start(self) -> None:
        """Start the process, over what the store holds."""
        if self.alive:
            return
        self.alive = True
        self.life += 1
        self._past += self._core.counts
        self._reset_process()
        if self._shards is None:
            self.hear(self._core.restore_questions(self._disk.open_questions(), self.hub_now()))
        self._connect_broker()
        if self._shards is not None:
            self._shards.keeper.start()
        self._on_timer()

    def kill(self) -> None:
        """Kill the process with all that it kept in memory."""
        self._end_life()
        self.writer.kill(self._ground.dice)

    def _end_life(self) -> None:
        self.alive = False
        self._clock.end()
        self._drop_line()

    def _drop_line(self) -> None:
        self.line.drop()
        self.subscribed = frozenset()

    def lose_link(self) -> None:
        """Notice that the connection to the broker is lost, and try again."""
        if self.alive and self.line.up:
            self._drop_line()
            self._clock.schedule_after(self._ground.pace.broker_retry_s, self._connect_broker)

    def pause(self) -> bool:
        """Stop the process where it stands; what comes meanwhile waits in its sockets. False if it does not run."""
        if not self.alive or self._clock.stopped:
            return False
        self.store.on_stopped(self._ground.dice)
        self._clock.stop()
        self._kernel.schedule_after(KEEP_ALIVE_S, self._miss_keep_alive, self._clock, self._kernel.now)
        self._paused_s = self._kernel.now
        return True

    def wake(self) -> None:
        """Let the process go on; its guard may be the first to look at the clock, or not."""
        if not self._clock.stopped:
            return
        self._clock.wake()
        if self._shards is not None and self._ground.dice.random() < 0.5:
            self._shards.keeper.check_sure()
        if self._forgotten:
            self._forgotten = False
            self._clock.schedule_after(self._ground.pace.round_s, self.lose_link)

    def _miss_keep_alive(self, clock: ProcessClock, paused_s: float) -> None:
        """The broker has not heard of the process for long: what it subscribed to is forgotten there."""
        if clock.stopped and paused_s == self._paused_s:
            self.subscribed = frozenset()
            self.line.number += 1
            self._forgotten = True

    def cut_database(self) -> None:
        """The database cannot be reached until `restore_database`."""
        self.link.cuts += 1
        self.store.writer.commit_some(self._ground.dice)  # the rest cannot reach the database any more
        self.link.cut += 1

    def restore_database(self) -> None:
        """End one cut of the database."""
        self.link.cut -= 1

    def drain(self, until_s: float) -> None:
        """Admit nothing new: the machine will be taken away at `until_s`.

        A process that shares the disk gives its leases away once it has answered what it has, and ends.
        """
        self._core.drain()
        if self._shards is not None:
            self._shards.keeper.drain()
            self._leave(until_s)

    def _leave(self, until_s: float) -> None:
        if self._core.open_count:
            self._clock.schedule_after(LOOK_IDLE_S, self._leave, until_s)
        else:
            self._clock.schedule_after(min(LINGERS_S, max(0.0, until_s - self._kernel.now)), self._give_and_end)

    def _give_and_end(self) -> None:
        if not self.writer.idle:
            self._clock.schedule_after(LOOK_IDLE_S, self._give_and_end)
        elif self._shards is not None:
            self._shards.keeper.give_all()
            self._end_life()

    def _reset_process(self) -> None:
        """Reset memory, writer and engines to those of a new process."""
        limits = self._is.limits
        settings = HubSettings(
            name=self.hub, region=self._is.name, max_queued=limits.max_queued, device_open=limits.device_open,
            device_rate_per_s=limits.device_rate_per_s, tenant_rate_per_s=limits.tenant_rate_per_s,
            max_wait_s=limits.max_wait_s, max_batch=self._is.max_batch,
        )  # fmt: skip
        ground, pace = self._ground, self._ground.pace
        self._core = ground.cores.hub(settings, (self._card,), ground.registry, self._envelopes)
        self._clock = ProcessClock(self._kernel)
        context = ProcessContext(self._disk, self.link, self._kernel, self._clock, ground.dice)
        self.store = HubStore(context, ground.weather, pace.commit_s, self)
        self._shards: SimulatedShards | None = None
        self._paused_s = -1.0
        self._forgotten = False
        self._gathering = self._due = False
        self._free_s = [0.0] * self._is.slots  # when each engine has done what it has
        if self._shares:
            self._core.served.serve_by_lease()
            self.store.session = f"{self.member}/{self.life}"
            self._shards = SimulatedShards(context, self.member, self)

    @property
    def writer(self) -> SimulatedWriter:
        """The writer of the current life."""
        return self.store.writer

    def _connect_broker(self) -> None:
        if self.line.up:
            return
        if self.air.up:
            self.line.connect()
            self.subscribed = self._shards.wanted if self._shards is not None else frozenset()
        else:
            self._clock.schedule_after(self._ground.pace.broker_retry_s, self._connect_broker)

    def _on_timer(self) -> None:
        now = self.hub_now()
        self._execute_all(self._core.on_wake(now))
        self._flush_core()
        self._core.take_model_uses(now)
        self._disk.delete_expired()
        self._clock.schedule_after(WAKE_S, self._on_timer)

    # Messages

    def on_message(self, topic: str, payload: bytes) -> None:
        """A message arrived, or lies in the socket of a process that is stopped."""
        self._clock.call(self._take_message, (topic, payload))

    def _take_message(self, topic: str, payload: bytes) -> None:
        """Take a message; it is gathered for a moment with others, as the real loop's rounds do."""
        if self._shards is not None:
            self._shards.keeper.check_sure()
            if self._shards.park(topic, payload):
                return
        self._execute_all(self._core.on_message(topic, payload, self.hub_now()))
        if not self._gathering:
            self._gathering = True
            self._clock.schedule_after(self._ground.pace.round_s, self._end_gathering)

    def _end_gathering(self) -> None:
        self._gathering = False
        self._flush_core()

    def on_commit(self) -> None:
        """A commit is done. Endings alone make nothing due.

        No receipt, and no batch that the results have not formed.
        """
        if self._due:
            self._flush_core()

    def _flush_core(self) -> None:
        """After each group of events, send receipts and form batches."""
        self._due = False
        self._ground.recorder.record_queue(self.hub, self._core.queued_by_model())
        self._execute_all(self._core.flush(self.hub_now()))

    # Commands

    def hear(self, commands: list[Command]) -> None:
        """Execute what the core said to an event, and flush."""
        self._execute_all(commands)
        self._flush_core()

    def _execute_all(self, commands: list[Command]) -> None:
        for command in commands:
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case StoreQuestion():
                self.store.store_question(command.question)
            case SealVerdict(key, device, verdict, binding):
                frame = self._envelopes.seal_verdict(device, key, verdict, binding, self.hub_now())
                self.store.store_ending(QuestionEnding(key, int(self.hub_now() * 1000), verdict=frame))
            case SendFrame(device, frame):
                self._publish(device, frame, self._foreseen_delays(frame))
            case RunBatch():
                self._run_batch(command)
            case SendNote(device, note):
                frame = self._envelopes.sign_note(device, note, self.hub_now())
                self._publish(device, frame, self._foreseen_delays(frame) if type(note) is WelcomeNote else None)
            case StoreEnding(ending):
                self.store.store_ending(ending)
            case LookUpQuestions():
                self.store.look_up(command)
            case _:
                self._execute_rare(command)

    def _execute_rare(self, command: Command) -> None:
        match command:
            case CheckEngine(model):
                self._clock.schedule_after(self._is.cost_base_s, self._on_checked, model)
            case DeleteQuestion(key):
                self.store.delete_question(key)
            case SuspendDevice(device):
                self._ground.registry.suspect(device, int(self.hub_now() * 1000))

    # Results of the store

    def on_stored(self, question: StoredQuestion) -> None:
        """A question is stored."""
        self._due = True
        self._execute_all(self._core.on_stored((question.key,), self.hub_now()))

    def on_store_failed(self, question: StoredQuestion) -> None:
        """A question could not be stored."""
        self._due = True
        self._execute_all(self._core.on_store_failed((question,), self.hub_now()))

    def on_ended(self, ending: QuestionEnding) -> None:
        """An ending is stored."""
        self._execute_all(self._core.on_ended((ending,), self.hub_now()))

    def on_end_failed(self, ending: QuestionEnding) -> None:
        """An ending could not be stored."""
        self._execute_all(self._core.on_end_failed((ending,), self.hub_now()))

    def on_vanished(self, key: QuestionKey) -> None:
        """The question of an ending had ended already, or has no row."""
        self._execute_all(self._core.on_vanished((key,), self.hub_now()))

    def on_found(
        self, find: LookUpQuestions, rows: Mapping[QuestionKey, QuestionRow], highest: Mapping[Stream, int]
    ) -> None:
        """A lookup has its rows."""
        self._due = True
        self._execute_all(self._core.on_found(find, rows, highest, self.hub_now()))

    def on_find_failed(self, find: LookUpQuestions) -> None:
        """A lookup could not be made."""
        self._execute_all(self._core.on_find_failed(find, self.hub_now()))

    def on_fenced(self, shard: int) -> None:
        """A write was not made, since another process serves the shard."""
        if self._shards is not None:
            self._shards.keeper.on_fenced(shard)

    # Engines: a batch of n takes a + b * n; one that finds no free slot waits

    def _run_batch(self, infer: RunBatch) -> None:
        cost_s = self._is.cost_base_s + self._is.cost_item_s * len(infer.items)
        free = min(range(len(self._free_s)), key=self._free_s.__getitem__)
        done_s = self._free_s[free] = max(self._kernel.now, self._free_s[free]) + cost_s
        self._clock.schedule_at(done_s, self._on_computed, infer, cost_s)

    def _on_computed(self, infer: RunBatch, cost_s: float) -> None:
        if self._ground.weather.batch_with_fails(item.key for item in infer.items):
            self._execute_all(self._core.on_engine_failed(infer.ticket, self.hub_now()))
            self._flush_core()
            return
        labels = [int(item.work.codes["features"][1]) for item in infer.items]
        answers = [build_hub_prediction(label, infer.model) for label in labels]
        self._execute_all(self._core.on_results(infer.ticket, answers, cost_s, self.hub_now()))

    def _on_checked(self, model: str) -> None:
        self._execute_all(self._core.on_checked(model, works=True, now=self.hub_now()))
        self._flush_core()

    def _foreseen_delays(self, frame: bytes) -> tuple[float, ...] | None:
        """Delays of a verdict or welcome that were drawn before it was asked for; None = there are none."""
        weather = self._ground.weather
        if not weather.fates:
            return None
        header = split_frame(frame).header
        return weather.draw_down(QuestionKey(header.device, header.epoch, header.seq))

    def _publish(self, device: str, frame: bytes, delays: tuple[float, ...] | None = None) -> None:
        if not self.store.serves(device):
            self._ground.judge.add_flaw(Flaw.SAID_UNLEASED, f"{self.hub} {self.member} to {device}")
        if self.line.up:
            self._ground.send_down(self.hub, device, frame, delays)
        else:
            self.air.count_lost()

    def hub_now(self) -> float:
        """Hub time in seconds since 1970."""
        return self._ground.zero_s + self._kernel.now
