"""Test bench of `HubCore` with a real store and manual time: commits, engine runs and crashes happen on demand."""

from collections import defaultdict

from cloud_hub.core import commands as c
from cloud_hub.core.core import HubCore
from cloud_hub.engine.base import EchoEngine, EngineError
from cloud_hub.registry.orders import Orders
from cloud_hub.security.envelopes import Envelopes, HubEnvelopes, choose_note_channel
from cloud_hub.storage.gateway import end_with_verdict
from cloud_hub.storage.jobs import StoreError, StoreJob
from cloud_hub.storage.store import Store
from cloud_hub.system.settings import HubSettings
from tests.cloud_hub.doubles.devices import CARD, HUB, NOW_S, MemoryRegistry, SimDevice
from wire.protocol.messages import Receipt, Refusal, Verdict
from wire.protocol.topics import TopicChannel

DAY_S = 86_400.0
POISON = 13  # codes that make the engine fail


class Bench:
    def __init__(
        self, *devices: SimDevice, envelopes: Envelopes | None = None, orders: Orders | None = None, **settings
    ) -> None:
        self.devices = {device.id: device for device in devices}
        self.registry = MemoryRegistry(device.enrolled() for device in devices)
        self.settings = HubSettings(**settings)
        self.orders = orders or Orders()
        self.envelopes = envelopes or HubEnvelopes(HUB)
        self.store = Store.open("sqlite://")
        self.engine = EchoEngine(CARD, poison=b"\x0d" * 10)
        self.now = NOW_S
        self.sent: dict[str, list[bytes]] = defaultdict(list)  # frames by device, as the broker would carry them
        self.desired: dict[str, list[bytes]] = defaultdict(list)
        self.notes: list[tuple[str, object]] = []
        self.handed: list[c.AnswerWebSample] = []
        self.turns: list[c.LoadModel | c.UnloadModel] = []  # what was said about models' engines
        self.writes = 0
        self._begin()

    def _begin(self) -> None:
        self.core = HubCore(self.settings, (CARD,), self.registry, self.envelopes, self.orders)
        self.job = StoreJob()
        self.batches: list[c.RunBatch] = []
        self.checks: list[c.CheckEngine] = []

    # events

    def say(self, topic: str, payload: bytes) -> None:
        self._obey(self.core.on_message(topic, payload, self.now))

    def ask(self, device: SimDevice, seq: int, **changes) -> bytes:
        """Deliver one question; nothing else happens yet."""
        frame = device.question(seq, self.now, **changes)
        self.say(device.up, frame)
        return frame

    def commit(self) -> None:
        job, self.job = self.job, StoreJob()
        if not job:
            return
        self.writes += bool(job.keeps or job.endings or job.forgets or job.prune_before_ms)
        try:
            (done,) = self.store.apply_jobs([job])
        except StoreError:
            self.job = job
            self.lose_commit()
            return
        self._obey(self.core.on_vanished(done.vanished, self.now))
        self._obey(self.core.on_ended([e for e in job.endings if e.key not in done.vanished], self.now))
        self._obey(self.core.on_stored([q.key for q in job.keeps], self.now))
        for find in job.finds:
            self._obey(self.core.on_found(find, done.rows, done.highest, self.now))
        for erasure in done.erased:
            self._obey(self.core.on_erased(erasure.keys, erasure.stone, self.now))

    def lose_commit(self) -> None:
        """Fail the pending job, as a full disk does."""
        job, self.job = self.job, StoreJob()
        self._obey(self.core.on_store_failed(job.keeps, self.now))
        self._obey(self.core.on_end_failed(job.endings, self.now))
        for find in job.finds:
            self._obey(self.core.on_find_failed(find, self.now))

    def flush(self) -> None:
        self._obey(self.core.flush(self.now))

    def infer(self) -> None:
        """Return the result of every running batch and engine check, good or bad."""
        batches, self.batches = self.batches, []
        for batch in batches:
            try:
                found = self.engine.infer([item.work for item in batch.items])
            except EngineError:
                self._obey(self.core.on_engine_failed(batch.ticket, self.now))
            else:
                self._obey(self.core.on_results(batch.ticket, found, 0.001, self.now))
        checks, self.checks = self.checks, []
        for check in checks:
            self._obey(self.core.on_checked(check.model, not self.engine.broken, self.now))

    def settle(self) -> None:
        for _ in range(1000):
            self.flush()
            self.commit()
            self.infer()
            if not (self.job or self.batches or self.checks):
                self.flush()
                if not (self.job or self.batches or self.checks):
                    return
        raise AssertionError("does not settle")

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._obey(self.core.on_wake(self.now))

    def restart(self) -> None:
        """Restart as after kill -9: everything but the database is lost."""
        self._begin()
        self._obey(self.core.restore_questions(self.store.read_unanswered(), self.now))

    # observations

    def replies(self, device: SimDevice) -> list[object]:
        """All that the device got since last time, checked as a device checks it."""
        frames, self.sent[device.id] = self.sent[device.id], []
        return [device.read(frame) for frame in frames]

    def verdicts(self, device: SimDevice) -> dict[int, Verdict]:
        """By seq. Fails if one question got two different ones."""
        found = [reply for reply in self.replies(device) if isinstance(reply, tuple)]
        assert len(dict(found)) == len(set(found))
        return dict(found)

    def receipts(self, device: SimDevice) -> list[int]:
        found = [note for note in self.replies(device) if isinstance(note, Receipt)]
        return [seq for receipt in found for seq in receipt.seqs]

    def refusals(self, device: SimDevice) -> list[Refusal]:
        return [note for note in self.replies(device) if isinstance(note, Refusal)]

    # execution of commands

    def _obey(self, commands: list[c.Command]) -> None:
        for command in commands:
            self._obey_one(command)

    def _obey_one(self, command: c.Command) -> None:
        match command:
            case c.StoreQuestion(question):
                self.job.keeps.append(question)
            case c.StoreEnding(ending):
                self.job.endings.append(ending)
            case c.SealVerdict(key, device, verdict, binding):
                frame = self.envelopes.seal_verdict(device, key, verdict, binding, self.now)
                self.job.endings.append(end_with_verdict(command, frame, self.now))
            case c.DeleteQuestion(key):
                self.job.forgets.append(key)
            case c.LookUpQuestions():
                self.job.finds.append(command)
            case c.PruneRows(before_ms, now_ms):
                self.job.prune_before_ms, self.job.purge_ms = before_ms, now_ms
            case c.RunBatch():
                self.batches.append(command)
            case c.CheckEngine():
                self.checks.append(command)
            case c.SendNote(device_id, note):
                self.notes.append((device_id, note))
                carried = self.desired if choose_note_channel(note) is TopicChannel.DESIRED else self.sent
                carried[device_id].append(
                    self.envelopes.sign_note(device_id, note, self.now, self.registry.device(device_id))
                )
            case c.SendFrame(device_id, frame):
                self.sent[device_id].append(frame)
            case c.AnswerWebSample():
                self.handed.append(command)
            case c.LoadModel() | c.UnloadModel():
                self.turns.append(command)
            case c.SuspendDevice(device_id):
                self.registry.suspect(device_id, int(self.now * 1000))


def owed(bench: Bench) -> list[int]:
    return [question.key.seq for question in bench.store.read_unanswered()]
