"""Simulated hub: the production `HubCore` with its loop, store and engines replaced by calls in virtual time.

Rule: whatever the real loop keeps in memory is lost by `kill`; what its store commits is in the disk's twin and comes
back.
"""

from collections import Counter
from functools import partial

from cloud_hub.core.commands import (
    Check,
    Command,
    End,
    Ending,
    Find,
    Forget,
    Infer,
    Judged,
    Keep,
    Resend,
    Suspect,
    Tell,
)
from cloud_hub.core.core import HubCore
from cloud_hub.engine.types import ModelCard
from cloud_hub.security.envelopes import PlainEnvelopes
from cloud_hub.system.settings import HubSettings
from simulations.kernel.world import FEATURES, verdict_of
from simulations.nodes.broker import Air, Line
from simulations.nodes.device_disk import Writer
from simulations.nodes.services import RegionServices
from simulations.scenario.types import Region
from wire.protocol.messages import Prediction

WAKE_S = 1.0


class Hub:
    """One hub of a region with its broker (`air`). `counts` sums over all its lives."""

    def __init__(self, name: str, region: Region, ground: RegionServices) -> None:
        self.name = name
        self.region = region.name
        self.line = Line()
        self.air = Air(ground.kernel, ground.weather)
        self.alive = False
        self.disk = ground.cores.hub_disk(ground.kernel, partial(ground.effect, name), partial(ground.undone, name))
        self._ground = ground
        self._kernel = ground.kernel
        self._is = region
        self._card = ModelCard(ground.model, (FEATURES,), max_batch=region.max_batch, slots=region.slots)
        self._envelopes = PlainEnvelopes()
        self._past: Counter[str] = Counter()
        self._life = 0
        self._renew()

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
        self._renew()
        self._obey(self._core.restore(self.disk.owed(), self._now()))
        self._round()
        self._connect(self._life)
        self._wake(self._life)

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
            self._kernel.after(self._ground.pace.broker_retry_s, self._connect, self._life)

    def drain(self) -> None:
        """Admit nothing new: the machine will be taken away."""
        self._core.drain()

    def _renew(self) -> None:
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
        self.writer = Writer(self._kernel, self._ground.pace.commit_s, self._committed)
        self._gathering = self._due = False
        self._free_s = [0.0] * self._is.slots  # when each engine has done what it has

    def _connect(self, life: int) -> None:
        if life != self._life or self.line.up:
            return
        if self.air.up:
            self.line.connect()
        else:
            self._kernel.after(self._ground.pace.broker_retry_s, self._connect, life)

    def _wake(self, life: int) -> None:
        if life == self._life:
            now = self._now()
            self._obey(self._core.on_wake(now))
            self._round()
            self._core.heard(now)
            self.disk.sweep()
            self._kernel.after(WAKE_S, self._wake, life)

    # Messages

    def hear(self, topic: str, payload: bytes) -> None:
        """A message arrived; it is gathered for a moment with others, as the real loop's rounds do."""
        self._obey(self._core.on_message(topic, payload, self._now()))
        if not self._gathering:
            self._gathering = True
            self._kernel.after(self._ground.pace.round_s, self._gathered, self._life)

    def _gathered(self, life: int) -> None:
        if life == self._life:
            self._gathering = False
            self._round()

    def _committed(self) -> None:
        """A commit is done. Endings alone make nothing due.

        No receipt, and no batch that the results have not formed.
        """
        if self._due:
            self._round()

    def _round(self) -> None:
        """After each group of events, send receipts and form batches."""
        self._due = False
        self._ground.recorder.queued(self.name, self._core.queued())
        self._obey(self._core.flush(self._now()))

    # Commands

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            self._act(command)

    def _act(self, command: Command) -> None:
        match command:
            case Keep():
                self._keep(command)
            case Judged(key, device, verdict, binding):
                frame = self._envelopes.verdict(device, key, verdict, binding, self._now())
                self._end(Ending(key, int(self._now() * 1000), verdict=frame))
            case Resend(device, frame):
                self._publish(device, frame)
            case Infer():
                self._infer(command)
            case Tell(device, note):
                self._publish(device, self._envelopes.note(device, note, self._now()))
            case End(ending):
                self._end(ending)
            case Find():
                self.writer.submit((_nothing, ()), (self._find, (command,)))
            case _:
                self._act_seldom(command)

    def _act_seldom(self, command: Command) -> None:
        match command:
            case Check(model):
                self._kernel.after(self._is.cost_base_s, self._checked, model, self._life)
            case Forget(key):
                self.writer.submit((self.disk.forget, (key,)))
            case Suspect(device):
                self._ground.registry.suspect(device, int(self._now() * 1000))

    def _keep(self, keep: Keep) -> None:
        question = keep.question
        if self._ground.weather.disk_fails():
            self.writer.submit((_nothing, ()), (self._not_kept, (keep,)))
        else:
            self.writer.submit((self.disk.keep, (question,)), (self._kept, (keep,)))

    def _kept(self, keep: Keep) -> None:
        self._due = True
        self._obey(self._core.on_kept((keep.question.key,), self._now()))

    def _not_kept(self, keep: Keep) -> None:
        self._due = True
        self._obey(self._core.on_keep_failed((keep.question,), self._now()))

    def _end(self, ending: Ending) -> None:
        if self._ground.weather.disk_fails():
            self.writer.submit((_nothing, ()), (self._not_ended, (ending,)))
        else:
            self.writer.submit((self.disk.end, (ending,)), (self._ended, (ending,)))

    def _ended(self, ending: Ending) -> None:
        self._obey(self._core.on_ended((ending,), self._now()))

    def _not_ended(self, ending: Ending) -> None:
        self._obey(self._core.on_end_failed((ending,), self._now()))

    def _find(self, find: Find) -> None:
        self._due = True
        rows, highest = self.disk.find(find)
        self._obey(self._core.on_found(find, rows, highest, self._now()))

    # Engines: a batch of n takes a + b * n; one that finds no free slot waits

    def _infer(self, infer: Infer) -> None:
        cost_s = self._is.cost_base_s + self._is.cost_item_s * len(infer.items)
        free = min(range(len(self._free_s)), key=self._free_s.__getitem__)
        done_s = self._free_s[free] = max(self._kernel.now, self._free_s[free]) + cost_s
        self._kernel.at(done_s, self._computed, infer, cost_s, self._life)

    def _computed(self, infer: Infer, cost_s: float, life: int) -> None:
        if life != self._life:
            return
        if self._ground.weather.batch_fails():
            self._obey(self._core.on_engine_failed(infer.ticket, self._now()))
            self._round()
            return
        answers: list[Prediction] = []
        for item in infer.items:
            label = int(item.work.codes["features"][1])
            answers.append(verdict_of(label, infer.model))
        self._obey(self._core.on_results(infer.ticket, answers, cost_s, self._now()))

    def _checked(self, model: str, life: int) -> None:
        if life == self._life:
            self._obey(self._core.on_checked(model, works=True, now=self._now()))
            self._round()

    def _publish(self, device: str, frame: bytes) -> None:
        if self.line.up:
            self._ground.reply(self.name, device, frame)
        else:
            self.air.lose()

    def _now(self) -> float:
        return self._ground.zero_s + self._kernel.now


def _nothing() -> None:
    """Commit of a write that failed, or of a read."""
