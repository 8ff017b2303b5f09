"""The hub of a fleet: the production `HubCore` and, in place of its loop, this obedient one over virtual time.

Rule: whatever the real loop keeps in memory is lost by `kill`; what its store commits is in the twin and comes back.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from cloud_hub.commands import (
    Check,
    Command,
    End,
    Ending,
    Find,
    Forget,
    Infer,
    Judged,
    Keep,
    Key,
    Question,
    Resend,
    Row,
    Stream,
    Tell,
)
from cloud_hub.core import HubCore
from cloud_hub.devices import Registry
from cloud_hub.envelopes import PlainEnvelopes
from cloud_hub.settings import HubSettings
from cloud_hub.work import ModelCard
from simulations.air import Line
from simulations.facts import Effect
from simulations.facts import Key as Name
from simulations.twin import Writer
from simulations.world import FEATURES, MODEL, World
from wire.messages import Prediction, Reason
from wire.topics import Channel, topic

CARD = ModelCard(MODEL, (FEATURES,), max_batch=32)
VERDICT = Prediction(1, 0.99, (0.01, 0.99), "sim@1")
WAKE_S = 1.0
ROUND_S = 0.001  # how long intake gathers messages before it flushes: one receipt for many
RECONNECT_S = 1.0


class _Kept(msgspec.Struct, gc=False):
    question: Question
    verdict: bytes | None = None
    refusal: Reason | None = None


class HubDisk:
    """Twin of the hub's store: one row per (device, epoch, seq)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rows: dict[Stream, dict[int, _Kept]] = {}

    def owed(self) -> list[Question]:
        rows = (kept for stream in self._rows.values() for kept in stream.values())
        return [kept.question for kept in rows if kept.verdict is None and kept.refusal is None]

    def keep(self, question: Question) -> None:
        key = question.key
        self._rows.setdefault(key[:2], {})[key.seq] = _Kept(question)

    def end(self, ending: Ending) -> None:
        kept = self._rows.get(ending.key[:2], {}).get(ending.key.seq)
        if kept is None:
            return  # nothing to update: forgotten, or never kept
        kept.verdict, kept.refusal = ending.verdict, ending.refusal
        if ending.verdict is not None:
            self._world.judge.see(Effect(Name(*ending.key)))

    def forget(self, key: Key) -> None:
        self._rows.get(key[:2], {}).pop(key.seq, None)

    def find(self, find: Find) -> tuple[Mapping[Key, Row], Mapping[Stream, int]]:
        found = {key: self._rows.get(key[:2], {}).get(key.seq) for key in find.keys}
        rows = {key: _row(kept) for key, kept in found.items() if kept is not None}
        highest = {stream: max(self._rows[stream]) for stream in find.streams if self._rows.get(stream)}
        return rows, highest


def _row(kept: _Kept) -> Row:
    question = kept.question
    return Row(question.key, question.digest, question.fingerprint, kept.verdict, kept.refusal)


class Hub:
    """`devices`: the far ends of the lines to them, by id. `counts` sums over all lives."""

    def __init__(self, world: World, registry: Registry) -> None:
        self.line = Line(self._hear)
        self.devices: dict[str, Line] = {}
        self.alive = False
        self._world = world
        self._registry = registry
        self._disk = HubDisk(world)
        self._envelopes = PlainEnvelopes()
        self._past: Counter[str] = Counter()
        self._life = 0
        self._flushing = False
        self._topics: dict[str, str] = {}
        self._renew()

    @property
    def counts(self) -> Counter[str]:
        return self._past + self._core.counts

    # Life

    def start(self) -> None:
        self.alive = True
        self._life += 1
        self._past += self._core.counts
        self._renew()
        self._obey(self._core.restore(self._disk.owed(), self._now()))
        self._connect(self._life)
        self._wake(self._life)

    def kill(self) -> None:
        self.alive = False
        self._life += 1
        self.line.drop()
        self._writer.kill(self._world.dice)

    def lose_link(self) -> None:
        if self.alive and self.line.up:
            self.line.drop()
            self._world.kernel.after(RECONNECT_S, self._connect, self._life)

    def _renew(self) -> None:
        """An empty memory and an idle writer: what a new process has."""
        self._core = HubCore(HubSettings(), (CARD,), self._registry, self._envelopes)
        self._writer = Writer(self._world.kernel, self._world.pace.commit_s)
        self._flushing = False

    def _connect(self, life: int) -> None:
        if life != self._life or self.line.up:
            return
        if self._world.air.up:
            self.line.connect()
        else:
            self._world.kernel.after(RECONNECT_S, self._connect, life)

    def _wake(self, life: int) -> None:
        if life == self._life:
            self._obey(self._core.on_wake(self._now()))
            self._world.kernel.after(WAKE_S, self._wake, life)

    def _hear(self, heard: str, payload: bytes) -> None:
        self._obey(self._core.on_message(heard, payload, self._now()))

    # Commands

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            self._act(command)
        if not self._flushing:
            self._flushing = True
            self._world.kernel.after(ROUND_S, self._flush, self._life)

    def _flush(self, life: int) -> None:
        if life != self._life:
            return
        self._flushing = False
        commands = self._core.flush(self._now())
        if commands:
            self._obey(commands)

    def _act(self, command: Command) -> None:
        match command:
            case Tell(device, note):
                self._publish(device, self._envelopes.note(device, note, self._now()))
            case Resend(device, frame):
                self._publish(device, frame)
            case Keep(question):
                self._keep(question)
            case Judged(key, device, verdict, binding):
                frame = self._envelopes.verdict(device, key, verdict, binding, self._now())
                self._end(Ending(key, int(self._now() * 1000), verdict=frame))
            case End(ending):
                self._end(ending)
            case Infer() | Check():
                self._world.kernel.after(self._world.pace.infer_s, self._computed, command, self._life)
            case Find():
                self._writer.submit(lambda: None, lambda: self._find(command))
            case Forget(key):
                self._writer.submit(lambda: self._disk.forget(key))

    def _keep(self, question: Question) -> None:
        if self._world.weather.disk_fails():
            self._writer.submit(lambda: None, lambda: self._obey(self._core.on_keep_failed((question,), self._now())))
            return
        self._writer.submit(
            lambda: self._disk.keep(question), lambda: self._obey(self._core.on_kept((question.key,), self._now()))
        )

    def _end(self, ending: Ending) -> None:
        if self._world.weather.disk_fails():
            self._writer.submit(lambda: None, lambda: self._obey(self._core.on_end_failed((ending,), self._now())))
            return
        self._writer.submit(
            lambda: self._disk.end(ending), lambda: self._obey(self._core.on_ended((ending,), self._now()))
        )

    def _find(self, find: Find) -> None:
        rows, highest = self._disk.find(find)
        self._obey(self._core.on_found(find, rows, highest, self._now()))

    def _computed(self, work: Infer | Check, life: int) -> None:
        if life != self._life:
            return
        if isinstance(work, Check):
            self._obey(self._core.on_checked(work.model, works=True, now=self._now()))
        elif self._world.weather.batch_fails():
            self._obey(self._core.on_engine_failed(work.ticket, self._now()))
        else:
            answers = [VERDICT] * len(work.items)
            self._obey(self._core.on_results(work.ticket, answers, self._world.pace.infer_s, self._now()))

    def _publish(self, device: str, frame: bytes) -> None:
        line = self.devices.get(device)
        if line is not None:
            self._world.air.carry(self.line, line, self._topic(device), frame)

    def _topic(self, device: str) -> str:
        found = self._topics.get(device)
        if found is None:
            found = self._topics[device] = topic(device, Channel.REPLY)
        return found

    def _now(self) -> float:
        return self._world.hub_now()
