"""State machine of the hub: events come in, commands go out. Every change of an open question happens here. Pure.

The parts that it delegates to are `intake` (questions), `notes` (signed notes), `lineup` (models) and `web_requests`.
Rule 1: no I/O and no clock: `now` (hub time, seconds since 1970) is a parameter of every event. Rule 2: nothing is sent
before it is stored: Receipts follow `on_stored`, verdicts and final refusals of stored questions follow `on_ended`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cloud_hub.core.admission import AdmissionControl, LiveLimits
from cloud_hub.core.commands import (
    LOCAL,
    BatchItem,
    Command,
    LookUpQuestions,
    PruneRows,
    QuestionEnding,
    QuestionKey,
    QuestionRow,
    SealVerdict,
    SendFrame,
    StoredQuestion,
    StoreEnding,
    Stream,
    Tombstone,
)
from cloud_hub.core.context import CoreContext, QuestionMemory, end_question, refuse_question
from cloud_hub.core.intake import QUESTION_TICKET, QuestionIntake, reopen_questions
from cloud_hub.core.lineup import ModelLineup, ModelUse
from cloud_hub.core.notes import NoteHandler
from cloud_hub.core.policy_check import PolicyRecheck, QuestionValidator
from cloud_hub.core.queues import Batch
from cloud_hub.core.region_news import RegionNews
from cloud_hub.core.replica_scaling import ReplicaScaling
from cloud_hub.core.rounds import QuestionRound
from cloud_hub.core.scheduler import Batcher
from cloud_hub.core.shards import DueReceipts, ServedShards
from cloud_hub.core.verification import FrameVerifier
from cloud_hub.core.web_requests import InferOptions, WebRequests
from cloud_hub.engine.types import ModelCard
from cloud_hub.registry.device_states import GONE, DeviceLookup
from cloud_hub.registry.orders import Orders
from cloud_hub.security.envelopes import Envelopes
from cloud_hub.system.settings import HubSettings
from policies.decisions.routing import HubSite
from policies.model.policy import Policy
from policies.serving.admission import RefuseQuestion
from policies.serving.rounds import RoundLimits
from wire.errors import RemoteError
from wire.protocol.messages import HelloNote, Prediction, RefusalReason, Verdict
from wire.protocol.topics import TopicChannel, compute_shard, parse_up_topic

STORE_RETRY_S = 5.0
EXPIRE_EVERY_S = 60.0
PRUNE_EVERY_S = 600.0
_DEFAULT_OPTIONS = InferOptions()


class HubCore:
    """Decision core of one hub: devices' questions and the samples of the hub's own web API.

    Each `on_...` method takes one event and returns the commands that it causes, in order; none of them raises on what
    a device sent. Call `flush` after each round of events and `on_wake` about once a second.
    """

    def __init__(
        self,
        settings: HubSettings,
        cards: Sequence[ModelCard],
        registry: DeviceLookup,
        envelopes: Envelopes,
        orders: Orders | None = None,
    ) -> None:
        site, orders = HubSite(settings.name, settings.region), orders or Orders()
        recheck = PolicyRecheck(site, settings.policies, settings.documents, orders)
        rules = QuestionValidator(tuple(cards), recheck, orders)
        self.book = rules.book  # policies whose questions are served
        memory = QuestionMemory()
        batcher = Batcher(cards, settings.max_batch, memory.is_waiting)
        self.counts: Counter[str] = Counter()
        self.round = QuestionRound(RoundLimits(settings.gather_s), memory.__len__)
        self._context = CoreContext(
            settings=settings, registry=registry, envelopes=envelopes, rules=rules, memory=memory, batcher=batcher,
            round=self.round, scaling=ReplicaScaling(settings, batcher), counts=self.counts,
        )  # fmt: skip
        self._settings, self._memory, self._batcher = settings, memory, batcher
        self._gate = gate = FrameVerifier(settings, registry, envelopes)
        self._turnstile = AdmissionControl(settings, memory, batcher)
        self.limits = LiveLimits(self._turnstile, gate)
        self.receipts = DueReceipts(self.counts)
        self._intake = QuestionIntake(self._context, gate, self._turnstile, self.receipts)
        self._web = WebRequests(self._context, self._turnstile)
        self.news = RegionNews(self._context, self._turnstile)
        self.lineup = ModelLineup(self._context, tuple(cards))
        self._notes = NoteHandler(self._context, gate)
        self.served = ServedShards()
        self._unwritten: dict[QuestionKey, QuestionEnding] = {}
        self._expire_at = self._prune_at = 0.0

    def replace_policies(self, policies: tuple[Policy, ...]) -> None:
        """Replace the policies whose questions are served; questions under the replaced ones are refused as too old."""
        self._context.rules.book.replace_policies(policies)

    # -- status

    @property
    def open_count(self) -> int:
        """Number of questions and web samples in progress."""
        return len(self._memory) + self._batcher.web_open

    @property
    def hellos(self) -> Mapping[str, HelloNote]:
        """The last Hello of each device since this process began."""
        return self._notes.hellos

    def last_heard(self) -> dict[str, float]:
        """Hub time (s) at which each device last signed something, since this process began."""
        return self._gate.last_heard()

    def take_model_uses(self, now: float) -> dict[str, ModelUse]:
        """Devices whose models changed, or were last recorded a day ago, with what they use now: to be stored."""
        return self.lineup.record_hellos(self._notes.take_hellos(), int(now * 1000))

    def queued_by_model(self) -> dict[str, int]:
        """Number of waiting items by model."""
        return self._batcher.queued_by_model()

    def running_batch(self, ticket: int) -> Batch:
        """The running batch with this ticket. KeyError if there is none."""
        return self._batcher.running_batch(ticket)

    def is_waited_for(self, item: BatchItem) -> bool:
        """Whether an item is still open: neither answered, nor erased, nor abandoned by its caller."""
        return self._batcher.is_waited_for(item)

    def engines_down(self) -> tuple[str, ...]:
        """Models whose engine fails its self test."""
        return self._batcher.down_models()

    @property
    def draining(self) -> bool:
        """Whether new work is refused because the hub is stopping."""
        return self._turnstile.draining

    def drain(self) -> None:
        """Refuse everything new from now on; what is in progress goes on."""
        self._turnstile.drain()

    # -- events of the broker and of the leases

    def on_message(self, topic: str, payload: bytes, now: float) -> list[Command]:
        """Handle one message of the broker by its topic.

        Never raises on its content: what is malformed is counted and dropped.
        """
        try:
            device, channel = parse_up_topic(topic)
        except RemoteError as error:
            return self._context.count_drop(error.fault.value)
        if not self.served.includes(device):
            return self._context.count_drop("not_served")
        if channel is TopicChannel.QUESTION:
            return self._intake.on_question(device, payload, now)
        if channel in (TopicChannel.ASK, TopicChannel.REPORT):
            return self._notes.on_note(device, payload, now, channel)
        self.counts["hints"] += 1  # presence (state): for display only, it is not signed and decides nothing
        return []

    def on_gained(self, shards: Iterable[int], owed: Iterable[StoredQuestion], now: float) -> list[Command]:
        """These shards are served here from now on. `owed`: their questions that the store holds unanswered."""
        self.served.add(shards, now)
        return reopen_questions(self._context, owed, now)

    def on_lost(self, shards: Iterable[int], now: float) -> list[Command]:
        """Another hub may serve these shards: forget their devices; nothing more is said or written of them."""
        del now
        lost, before = frozenset(shards), len(self._memory)
        for part in (self.served, self._memory, self._intake, self._notes, self.receipts):
            part.forget_shards(lost)
        self._batcher.remove_dead()
        self.counts["handed_over"] += before - len(self._memory)
        self._unwritten = {key: each for key, each in self._unwritten.items() if compute_shard(key.device) not in lost}
        return []

    # -- events of the store

    def restore_questions(self, questions: Iterable[StoredQuestion], now: float) -> list[Command]:
        """Reopen the questions that were still unanswered when the last process ended, and queue them again."""
        return reopen_questions(self._context, questions, now)

    def on_stored(self, keys: Iterable[QuestionKey], now: float) -> list[Command]:
        """Questions are stored durably: from now on the hub owes an ending, and a receipt is due."""
        del now
        for key in keys:
            question = self._memory.find_open(key)
            if question is not None:
                question.stored = True
                if not question.ending:  # decided already: the verdict follows at once and replaces the receipt
                    self.receipts.add(key)
        return []

    def on_store_failed(self, questions: Iterable[StoredQuestion], now: float) -> list[Command]:
        """Questions could not be written (disk full): they may be sent again, and of lost shards nothing is said."""
        del now
        commands: list[Command] = []
        for question in questions:
            if self._memory.remove(question.key) is not None:
                self._batcher.on_abandoned(question.model)
            self._unwritten.pop(question.key, None)
            self.counts["store_failures"] += 1
            if self.served.includes(question.key.device):
                commands.append(refuse_question(question.key, question.digest, RefusalReason.BUSY, STORE_RETRY_S))
        return commands

    def on_ended(self, endings: Iterable[QuestionEnding], now: float) -> list[Command]:
        """Verdicts and final refusals are stored and the sealed questions deleted: now they are sent."""
        del now
        commands: list[Command] = []
        for ending in endings:
            self._unwritten.pop(ending.key, None)
            question = self._memory.remove(ending.key)
            if question is None:
                continue
            row = QuestionRow(ending.key, question.digest, question.fingerprint, ending.verdict, ending.refusal)
            self._memory.remember_row(row)
            if ending.verdict is not None:
                self.counts["verdicts"] += 1
                commands.append(SendFrame(ending.key.device, ending.verdict))
            elif ending.refusal is not None:
                self.counts[f"ended.{ending.refusal}"] += 1
                commands.append(refuse_question(ending.key, question.digest, ending.refusal))
        return commands

    def on_end_failed(self, endings: Iterable[QuestionEnding], now: float) -> list[Command]:
        """The store could not write these endings: they stay in memory and are written again at the next `on_wake`."""
        del now
        for ending in endings:
            self.counts["store_failures"] += 1
            if self._memory.find_open(ending.key):
                self._unwritten[ending.key] = ending
        return []

    def on_vanished(self, keys: Iterable[QuestionKey], now: float) -> list[Command]:
        """The rows of these questions had ended or were deleted by another writer: forget them.

        Repeats are answered from the store.
        """
        del now
        for key in keys:
            self._memory.remove(key)
            self._unwritten.pop(key, None)
            self.counts["vanished"] += 1
        return []

    def on_erased(self, keys: Iterable[QuestionKey], stone: Tombstone, now: float) -> list[Command]:
        """An erasure was carried out: these questions are forgotten, and a repeat is refused as expired."""
        self._context.rules.remember_erasure(stone)
        gone = list(keys)
        for key in gone:
            self._memory.forget_row(key)
        self.counts["erased"] += len(gone)
        return self.on_vanished(gone, now)

    def on_found(
        self, find: LookUpQuestions, rows: Mapping[QuestionKey, QuestionRow], highest: Mapping[Stream, int], now: float
    ) -> list[Command]:
        """Result of `LookUpQuestions`: the stored rows of its keys.

        `highest`: greatest seq stored per stream, absent if the stream has none.
        """
        for stream in find.streams:
            if self.served.includes(stream[0]):
                self._memory.raise_highest(stream, highest.get(stream, -1))
        if find.ticket != QUESTION_TICKET:
            return self._notes.on_found(find.ticket, rows)
        return self._intake.on_found(find.keys, rows, now)

    def on_find_failed(self, find: LookUpQuestions, now: float) -> list[Command]:
        """`LookUpQuestions` failed: what waited for it is dropped, and the devices send it again."""
        del now
        self.counts["store_failures"] += 1
        if find.ticket != QUESTION_TICKET:
            self._notes.on_find_failed(find.ticket)
        else:
            self._intake.on_find_failed(find.keys)
        return []

    # -- events of the engines

    def on_results(self, ticket: int, predictions: Sequence[Prediction], compute_s: float, now: float) -> list[Command]:
        """Results of a batch: one prediction per item, in order. `compute_s`: seconds that the engine took."""
        batch = self._batcher.finish_batch(ticket, compute_s)
        # Dispatch first: the engine's next batch must not wait for these verdicts.
        commands: list[Command] = [*self._dispatch(now)]
        for item, prediction in zip(batch.items, predictions, strict=True):
            times = (batch.sent_s - item.arrived_s, compute_s, compute_s * item.weight / batch.weight)
            commands += self._handle_result(item, prediction, times, now)
        return commands

    def _handle_result(
        self, item: BatchItem, prediction: Prediction, times: tuple[float, float, float], now: float
    ) -> list[Command]:
        """Return the commands for one result. `times`: seconds that it waited, of its batch, and its share of those."""
        if item.key.device == LOCAL:
            return self._web.answer_sample(item, prediction)
        question = self._memory.find_open(item.key)
        if question is None or not self._memory.is_waiting(item):
            return []
        device = self._context.registry.device(item.key.device)
        if device is None or device.state in GONE:
            return end_question(question, RefusalReason.DEVICE_UNKNOWN, now)
        question.ending = True
        verdict = Verdict(prediction, self._settings.name, self._settings.region, times[0], times[1])
        return [SealVerdict(item.key, device, verdict, question.binding, times[2], question.frame_bytes)]

    def on_unsealable(self, key: QuestionKey, now: float) -> list[Command]:
        """A verdict could not be sealed (too big for a frame, or the device's key is invalid).

        The question ends without one.
        """
        question = self._memory.find_open(key)
        return end_question(question, RefusalReason.ENGINE, now) if question else []

    def on_engine_failed(self, ticket: int, now: float) -> list[Command]:
        """A batch failed: it is tried again, then item by item; see `scheduler`."""
        del now
        self.counts["engine_failures"] += 1
        return [*self._batcher.on_batch_failed(ticket)]

    def on_checked(self, model: str, works: bool, now: float) -> list[Command]:
        """Result of the engine's self test. Items that failed alone on a working engine are refused for good."""
        commands: list[Command] = []
        for item in self._batcher.on_checked(model, works, now):
            question = self._memory.find_open(item.key)
            if item.key.device == LOCAL:
                commands += self._web.answer_sample(item, RefusalReason.ENGINE)
            elif question is not None and self._memory.is_waiting(item):
                commands += end_question(question, RefusalReason.ENGINE, now)
        return commands

    # -- requests of the web API

    def queue_web_request(
        self,
        request: int,
        model: str,
        samples: Sequence[npt.NDArray[np.generic]],
        now: float,
        wish: InferOptions = _DEFAULT_OPTIONS,
    ) -> RefuseQuestion | None:
        """Queue raw samples of a web request beside the devices' questions; None = accepted, else the refusal.

        Each sample is answered by an `AnswerWebSample` command with the key (LOCAL, request, index).
        """
        return self._web.queue_request(request, model, samples, now, wish)

    def check_overload(self, tenant: str, lag_s: float, now: float) -> RefuseQuestion | None:
        """Refuse a web request because the event loop is overloaded; see `AdmissionControl.check_overload`."""
        return self._turnstile.check_overload(tenant, lag_s, now)

    def drop_web_request(self, request: int) -> None:
        """The caller of a web request disconnected: samples that are not computed yet are dropped."""
        self._web.drop_request(request)

    def refuse_web_requests(self, now: float) -> list[Command]:
        """The time to drain is over: web requests are refused as draining; devices' questions stay in the store."""
        del now
        return self._web.refuse_all()

    # -- time

    def flush(self, now: float) -> list[Command]:
        """Call after each round of events: sends the receipts due (at most 64 seqs each) and fills idle engines."""
        self.round.close()
        return [*self.receipts.take_notes(now), *self._dispatch(now)]

    def _dispatch(self, now: float) -> list[Command]:
        """Batches for free engine slots, loads for requested models, refusals of web samples past their deadline."""
        found = self.lineup.make_room(self._batcher.next_commands(now), now)
        return [*found, *self._web.refuse_expired()]

    def on_wake(self, now: float) -> list[Command]:
        """Periodic work, about once a second: unwritten endings, engines that are down, expired questions, pruning."""
        commands: list[Command] = [StoreEnding(ending) for ending in self._unwritten.values()]
        self._unwritten.clear()
        commands += [*self.lineup.on_wake(now), *self._web.refuse_overdue(now)]
        if now >= self._expire_at:
            self._expire_at = now + EXPIRE_EVERY_S
            oldest_ms = int((now - self._settings.created_max_age_s) * 1000)
            owed = [q for q in self._memory if q.stored and not q.ending]
            old = [q for q in owed if q.created_ms < oldest_ms or q.keep_until_ms <= now * 1000]
            commands += [command for question in old for command in end_question(question, RefusalReason.EXPIRED, now)]
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY_S
            commands.append(PruneRows(int((now - self._settings.rows_live_s) * 1000), int(now * 1000)))
        return commands
