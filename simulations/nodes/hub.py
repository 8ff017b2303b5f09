"""Simulated hub: the production `HubCore` with its loop, store and engines replaced by calls in virtual time.

Rule: whatever the real loop keeps in memory is lost by `kill`; what its store commits is in the disk's twin and comes
back.
"""

from collections import Counter
from functools import partial

from cloud_hub.core.commands import (
    CheckEngine,
    Command,
    DeleteQuestion,
    LookUpQuestions,
    QuestionEnding,
    RunBatch,
    SealVerdict,
    SendFrame,
    SendNote,
    StoreEnding,
    StoreQuestion,
    SuspendDevice,
)
from cloud_hub.core.core import HubCore
from cloud_hub.engine.types import ModelCard
from cloud_hub.security.envelopes import PlainEnvelopes
from cloud_hub.system.settings import HubSettings
from simulations.kernel.world import FEATURES, build_hub_prediction
from simulations.nodes.broker import ClientConnection, SimulatedBroker
from simulations.nodes.device_disk import SimulatedWriter
from simulations.nodes.services import RegionServices
from simulations.scenario.types import Region
from wire.protocol.messages import Prediction

WAKE_S = 1.0


class SimulatedHub:
    """One hub of a region with its broker (`air`). `counts` sums over all its lives."""

    def __init__(self, name: str, region: Region, ground: RegionServices) -> None:
        self.name = name
        self.region = region.name
        self.line = ClientConnection()
        self.air = SimulatedBroker(ground.kernel, ground.weather)
        self.alive = False
        self.disk = ground.cores.hub_disk(
            ground.kernel, partial(ground.on_effect, name), partial(ground.on_undone, name)
        )
        self._ground = ground
        self._kernel = ground.kernel
        self._is = region
        self._card = ModelCard(ground.model, (FEATURES,), max_batch=region.max_batch, slots=region.slots)
        self._envelopes = PlainEnvelopes()
        self._past: Counter[str] = Counter()
        self._life = 0
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

    def start(self) -> None:
        """Start the hub's process, over what its store holds."""
        if self.alive:
            return
        self.alive = True
        self._life += 1
        self._past += self._core.counts
        self._reset_process()
        self._execute_all(self._core.restore_questions(self.disk.open_questions(), self._now()))
        self._flush_core()
        self._connect_broker(self._life)
        self._on_timer(self._life)

    def kill(self) -> None:
        """Kill the hub's process with all that it kept in memory."""
        self.alive = False
        self._life += 1
        self.line.drop()
        self.writer.kill(self._ground.dice)

    def lose_link(self) -> None:
        """Notice that the connection to the broker is lost, and try again."""
        if self.alive and self.line.up:
            self.line.drop()
            self._kernel.schedule_after(self._ground.pace.broker_retry_s, self._connect_broker, self._life)

    def drain(self) -> None:
        """Admit nothing new: the machine will be taken away."""
        self._core.drain()

    def _reset_process(self) -> None:
        """Reset memory, writer and engines to those of a new process."""
        limits = self._is.limits
        settings = HubSettings(
            name=self.name,
            region=self.region,
            max_queued=limits.max_queued,
            device_open=limits.device_open,
            device_rate_per_s=limits.device_rate_per_s,
            tenant_rate_per_s=limits.tenant_rate_per_s,
            max_wait_s=limits.max_wait_s,
            max_batch=self._is.max_batch,
        )
        self._core = self._ground.cores.hub(settings, (self._card,), self._ground.registry, self._envelopes)
        self.writer = SimulatedWriter(self._kernel, self._ground.pace.commit_s, self._on_commit)
        self._gathering = self._due = False
        self._free_s = [0.0] * self._is.slots  # when each engine has done what it has

    def _connect_broker(self, life: int) -> None:
        if life != self._life or self.line.up:
            return
        if self.air.up:
            self.line.connect()
        else:
            self._kernel.schedule_after(self._ground.pace.broker_retry_s, self._connect_broker, life)

    def _on_timer(self, life: int) -> None:
        if life == self._life:
            now = self._now()
            self._execute_all(self._core.on_wake(now))
            self._flush_core()
            self._core.take_model_uses(now)
            self.disk.delete_expired()
            self._kernel.schedule_after(WAKE_S, self._on_timer, life)

    # Messages

    def on_message(self, topic: str, payload: bytes) -> None:
        """A message arrived; it is gathered for a moment with others, as the real loop's rounds do."""
        self._execute_all(self._core.on_message(topic, payload, self._now()))
        if not self._gathering:
            self._gathering = True
            self._kernel.schedule_after(self._ground.pace.round_s, self._end_gathering, self._life)

    def _end_gathering(self, life: int) -> None:
        if life == self._life:
            self._gathering = False
            self._flush_core()

    def _on_commit(self) -> None:
        """A commit is done. Endings alone make nothing due.

        No receipt, and no batch that the results have not formed.
        """
        if self._due:
            self._flush_core()

    def _flush_core(self) -> None:
        """After each group of events, send receipts and form batches."""
        self._due = False
        self._ground.recorder.record_queue(self.name, self._core.queued_by_model())
        self._execute_all(self._core.flush(self._now()))

    # Commands

    def _execute_all(self, commands: list[Command]) -> None:
        for command in commands:
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case StoreQuestion():
                self._store_question(command)
            case SealVerdict(key, device, verdict, binding):
                frame = self._envelopes.seal_verdict(device, key, verdict, binding, self._now())
                self._store_ending(QuestionEnding(key, int(self._now() * 1000), verdict=frame))
            case SendFrame(device, frame):
                self._publish(device, frame)
            case RunBatch():
                self._run_batch(command)
            case SendNote(device, note):
                self._publish(device, self._envelopes.sign_note(device, note, self._now()))
            case StoreEnding(ending):
                self._store_ending(ending)
            case LookUpQuestions():
                self.writer.submit((_do_nothing, ()), (self._find_rows, (command,)))
            case _:
                self._execute_rare(command)

    def _execute_rare(self, command: Command) -> None:
        match command:
            case CheckEngine(model):
                self._kernel.schedule_after(self._is.cost_base_s, self._on_checked, model, self._life)
            case DeleteQuestion(key):
                self.writer.submit((self.disk.forget_question, (key,)))
            case SuspendDevice(device):
                self._ground.registry.suspect(device, int(self._now() * 1000))

    def _store_question(self, keep: StoreQuestion) -> None:
        question = keep.question
        if self._ground.weather.disk_fails():
            self.writer.submit((_do_nothing, ()), (self._on_keep_failed, (keep,)))
        else:
            self.writer.submit((self.disk.store_question, (question,)), (self._on_kept, (keep,)))

    def _on_kept(self, keep: StoreQuestion) -> None:
        self._due = True
        self._execute_all(self._core.on_stored((keep.question.key,), self._now()))

    def _on_keep_failed(self, keep: StoreQuestion) -> None:
        self._due = True
        self._execute_all(self._core.on_store_failed((keep.question,), self._now()))

    def _store_ending(self, ending: QuestionEnding) -> None:
        if self._ground.weather.disk_fails():
            self.writer.submit((_do_nothing, ()), (self._on_end_failed, (ending,)))
        else:
            self.writer.submit((self.disk.store_ending, (ending,)), (self._on_ended, (ending,)))

    def _on_ended(self, ending: QuestionEnding) -> None:
        self._execute_all(self._core.on_ended((ending,), self._now()))

    def _on_end_failed(self, ending: QuestionEnding) -> None:
        self._execute_all(self._core.on_end_failed((ending,), self._now()))

    def _find_rows(self, find: LookUpQuestions) -> None:
        self._due = True
        rows, highest = self.disk.find_rows(find)
        self._execute_all(self._core.on_found(find, rows, highest, self._now()))

    # Engines: a batch of n takes a + b * n; one that finds no free slot waits

    def _run_batch(self, infer: RunBatch) -> None:
        cost_s = self._is.cost_base_s + self._is.cost_item_s * len(infer.items)
        free = min(range(len(self._free_s)), key=self._free_s.__getitem__)
        done_s = self._free_s[free] = max(self._kernel.now, self._free_s[free]) + cost_s
        self._kernel.schedule_at(done_s, self._on_computed, infer, cost_s, self._life)

    def _on_computed(self, infer: RunBatch, cost_s: float, life: int) -> None:
        if life != self._life:
            return
        if self._ground.weather.batch_fails():
            self._execute_all(self._core.on_engine_failed(infer.ticket, self._now()))
            self._flush_core()
            return
        answers: list[Prediction] = []
        for item in infer.items:
            label = int(item.work.codes["features"][1])
            answers.append(build_hub_prediction(label, infer.model))
        self._execute_all(self._core.on_results(infer.ticket, answers, cost_s, self._now()))

    def _on_checked(self, model: str, life: int) -> None:
        if life == self._life:
            self._execute_all(self._core.on_checked(model, works=True, now=self._now()))
            self._flush_core()

    def _publish(self, device: str, frame: bytes) -> None:
        if self.line.up:
            self._ground.send_down(self.name, device, frame)
        else:
            self.air.count_lost()

    def _now(self) -> float:
        return self._ground.zero_s + self._kernel.now


def _do_nothing() -> None:
    """Commit of a write that failed, or of a read."""
