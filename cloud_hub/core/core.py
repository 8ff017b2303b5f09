"""What the hub does next. Every change of an open question happens here and in its two halves, `intake` and `desk`.

Rule 1: no I/O and no clock: `now` (hub time, seconds since 1970) comes in, commands go out. Rule 2: nothing is said
before it is stored: Receipts follow `on_kept`, verdicts and final refusals of stored questions follow `on_ended`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cloud_hub.core.admission import Turnstile
from cloud_hub.core.commands import (
    LOCAL,
    Command,
    End,
    Ending,
    Find,
    Item,
    Judged,
    Key,
    Load,
    Prune,
    Question,
    Resend,
    Row,
    Stream,
    Tell,
    Tombstone,
)
from cloud_hub.core.context import CoreContext, Memory, end, refusal
from cloud_hub.core.intake import QUESTION_TICKET, Intake, revive
from cloud_hub.core.lineup import Lineup, Speaker
from cloud_hub.core.notes import NoteHandler
from cloud_hub.core.policy_check import Rulebook, Rules
from cloud_hub.core.queues import Batch
from cloud_hub.core.scheduler import Batcher
from cloud_hub.core.verification import FrameVerifier
from cloud_hub.core.web_requests import Web, Wish
from cloud_hub.engine.types import ModelCard
from cloud_hub.registry.device_states import GONE, Registry
from cloud_hub.registry.orders import Orders
from cloud_hub.security.envelopes import Envelopes
from cloud_hub.system.settings import HubSettings
from policies.decisions.routing import HubSite
from policies.model.policy import Policy
from policies.serving.admission import Refuse
from wire.errors import RemoteError
from wire.protocol.messages import Hello, Prediction, Reason, Receipt, Verdict
from wire.protocol.topics import Channel, parse_up

RECEIPT_SEQS = 64
STORE_RETRY_S = 5.0
EXPIRE_EVERY_S = 60.0
PRUNE_EVERY_S = 600.0
_PLAIN = Wish()


class HubCore:
    """One hub's questions, and the requests of its own web API."""

    def __init__(
        self,
        settings: HubSettings,
        cards: Sequence[ModelCard],
        registry: Registry,
        envelopes: Envelopes,
        orders: Orders | None = None,
    ) -> None:
        site, orders = HubSite(settings.name, settings.region), orders or Orders()
        rules = Rules(tuple(cards), Rulebook(site, settings.policies, settings.documents, orders), orders)
        memory = Memory()
        batcher = Batcher(cards, settings.max_batch, memory.waits)
        self.counts: Counter[str] = Counter()
        self._context = CoreContext(
            settings=settings, registry=registry, envelopes=envelopes, rules=rules, memory=memory, batcher=batcher,
            counts=self.counts,
        )  # fmt: skip
        self._settings = settings
        self._memory = self._context.memory
        self._batcher = batcher
        gate = FrameVerifier(settings, registry, envelopes)
        self._turnstile = Turnstile(settings, memory, batcher)
        self._intake = Intake(self._context, gate, self._turnstile)
        self._web = Web(self._context, self._turnstile)
        self.lineup = Lineup(self._context, tuple(cards))
        self._notes = NoteHandler(self._context, gate)
        self._due: dict[Stream, list[int]] = {}
        self._unwritten: dict[Key, Ending] = {}
        self._expire_at = self._prune_at = 0.0

    def serve_under(self, policies: tuple[Policy, ...]) -> None:
        """These instead of those before; what they replace is too old from now on."""
        self._context.rules.book.replace(policies)

    # -- what the rest of the hub may know

    @property
    def open(self) -> int:
        """Questions and web requests under way."""
        return len(self._memory) + self._batcher.local

    @property
    def hellos(self) -> Mapping[str, Hello]:
        """The last Hello of each device since this process began."""
        return self._notes.hellos

    def heard(self, now: float) -> dict[str, Speaker]:
        """Devices that say something new of what they speak, or say it again after a day: to be remembered."""
        return self.lineup.heard(self._notes.take_hellos(), int(now * 1000))

    def queued(self) -> dict[str, int]:
        return self._batcher.queued()

    def batch(self, ticket: int) -> Batch:
        """One that an engine has."""
        return self._batcher.running(ticket)

    def engines_down(self) -> tuple[str, ...]:
        return self._batcher.down()

    @property
    def draining(self) -> bool:
        return self._turnstile.draining

    def drain(self) -> None:
        """From now on everything new is refused; what is under way goes on."""
        self._turnstile.drain()

    # -- from the link

    def on_message(self, topic: str, payload: bytes, now: float) -> list[Command]:
        """One message of the broker, whatever it is. Never raises on what it contains."""
        try:
            device, channel = parse_up(topic)
        except RemoteError as error:
            return self._context.drop(error.fault.value)
        if channel is Channel.QUESTION:
            return self._intake.on_question(device, payload, now)
        if channel in (Channel.ASK, Channel.REPORT):
            return self._notes.on_note(device, payload, now, channel)
        self.counts["hints"] += 1  # state: shown on pages at most, never an input here
        return []

    # -- from the store

    def restore(self, questions: Iterable[Question], now: float) -> list[Command]:
        """Take up what was owed when the last process ended: open it again in memory, compute it."""
        return [command for question in questions for command in revive(self._context, question, now)]

    def on_kept(self, keys: Iterable[Key], now: float) -> list[Command]:
        """Stored durably: from now on the hub owes an ending."""
        del now
        for key in keys:
            question = self._memory.open(key)
            if question is not None:
                question.stored = True
                if not question.ending:  # a verdict that follows at once makes its receipt needless
                    self._receipt(key)
        return []

    def on_keep_failed(self, questions: Iterable[Question], now: float) -> list[Command]:
        """The store could not take them (disk full, a second writer): nothing is owed, the device tries again."""
        del now
        commands: list[Command] = []
        for question in questions:
            if self._memory.remove(question.key) is not None:
                self._batcher.ended(question.model)
            self._unwritten.pop(question.key, None)
            self.counts["store_failures"] += 1
            commands.append(refusal(question.key, question.digest, Reason.BUSY, STORE_RETRY_S))
        return commands

    def on_ended(self, endings: Iterable[Ending], now: float) -> list[Command]:
        """Verdict or final refusal is stored, the sealed bytes are gone: now it may be said."""
        del now
        commands: list[Command] = []
        for ending in endings:
            self._unwritten.pop(ending.key, None)
            question = self._memory.remove(ending.key)
            if question is None:
                continue
            row = Row(ending.key, question.digest, question.fingerprint, ending.verdict, ending.refusal)
            self._memory.remember(row)
            if ending.verdict is not None:
                self.counts["verdicts"] += 1
                commands.append(Resend(ending.key.device, ending.verdict))
            elif ending.refusal is not None:
                self.counts[f"ended.{ending.refusal}"] += 1
                commands.append(refusal(ending.key, question.digest, ending.refusal))
        return commands

    def on_end_failed(self, endings: Iterable[Ending], now: float) -> list[Command]:
        """Not written: kept in memory and written again at the next wake."""
        del now
        for ending in endings:
            self.counts["store_failures"] += 1
            if self._memory.open(ending.key):
                self._unwritten[ending.key] = ending
        return []

    def on_vanished(self, keys: Iterable[Key], now: float) -> list[Command]:
        """Their rows had ended already or are gone (a second writer): whoever asks again is answered from the store."""
        del now
        for key in keys:
            self._memory.remove(key)
            self._unwritten.pop(key, None)
            self.counts["vanished"] += 1
        return []

    def on_erased(self, keys: Iterable[Key], stone: Tombstone, now: float) -> list[Command]:
        """Nothing of these is kept: whoever asks for one is told that it expired."""
        self._context.rules.bury(stone)
        for key in keys:
            self._memory.forget(key)
        self.counts["erased"] += stone.rows
        return self.on_vanished(keys, now)

    def on_found(self, find: Find, rows: Mapping[Key, Row], highest: Mapping[Stream, int], now: float) -> list[Command]:
        """What the store knows of these keys; `highest` = greatest seq stored per stream, absent if there is none."""
        for stream in find.streams:
            self._memory.reached(stream, highest.get(stream, -1))
        if find.ticket != QUESTION_TICKET:
            return self._notes.on_found(find.ticket, rows)
        return self._intake.on_found(find.keys, rows, now)

    def on_find_failed(self, find: Find, now: float) -> list[Command]:
        del now
        self.counts["store_failures"] += 1
        if find.ticket != QUESTION_TICKET:
            self._notes.on_find_failed(find.ticket)
        else:
            self._intake.on_find_failed(find.keys)
        return []

    # -- from the engines

    def on_results(self, ticket: int, predictions: Sequence[Prediction], compute_s: float, now: float) -> list[Command]:
        """One prediction per item of the batch, in order."""
        batch = self._batcher.done(ticket, compute_s)
        commands: list[Command] = [*self._dispatch(now)]  # the engine first: it waits for nobody's answer
        for item, prediction in zip(batch.items, predictions, strict=True):
            times = (batch.sent_s - item.arrived_s, compute_s)
            commands += self._result(item, prediction, times, now)
        return commands

    def _result(self, item: Item, prediction: Prediction, times: tuple[float, float], now: float) -> list[Command]:
        if item.key.device == LOCAL:
            return self._web.hand(item, prediction)
        question = self._memory.open(item.key)
        if question is None or not self._memory.waits(item):
            return []
        device = self._context.registry.device(item.key.device)
        if device is None or device.state in GONE:
            return end(question, Reason.DEVICE_UNKNOWN, now)
        question.ending = True
        verdict = Verdict(prediction, self._settings.name, self._settings.region, times[0], times[1])
        return [Judged(item.key, device, verdict, question.binding)]

    def on_unsealable(self, key: Key, now: float) -> list[Command]:
        """The verdict fits no frame, or the device's key is no key: the question ends without one."""
        question = self._memory.open(key)
        return end(question, Reason.ENGINE, now) if question else []

    def on_engine_failed(self, ticket: int, now: float) -> list[Command]:
        del now
        self.counts["engine_failures"] += 1
        return [*self._batcher.failed(ticket)]

    def on_checked(self, model: str, works: bool, now: float) -> list[Command]:
        """The engine's own sample worked, or it did not. Items that fail alone on a working engine are poisoned."""
        commands: list[Command] = []
        for item in self._batcher.checked(model, works, now):
            question = self._memory.open(item.key)
            if item.key.device == LOCAL:
                commands += self._web.hand(item, Reason.ENGINE)
            elif question is not None and self._memory.waits(item):
                commands += end(question, Reason.ENGINE, now)
        return commands

    # -- from the web

    def ask_local(
        self,
        request: int,
        model: str,
        samples: Sequence[npt.NDArray[np.generic]],
        now: float,
        wish: Wish = _PLAIN,
    ) -> Refuse | None:
        """Queue whole raw samples beside the devices' questions; each comes back as `Hand(Key(LOCAL, request, i))`."""
        return self._web.ask(request, model, samples, now, wish)

    def overrun(self, tenant: str, lag_s: float, now: float) -> Refuse | None:
        """See `Turnstile.overrun`."""
        return self._turnstile.overrun(tenant, lag_s, now)

    def drop_local(self, request: int) -> None:
        """The caller went away: what is not computed yet never is."""
        self._web.drop(request)

    def give_up(self, now: float) -> list[Command]:
        """No more time to drain: web requests are told to come again, questions of devices wait in the store."""
        del now
        return self._web.give_up()

    # -- time

    def flush(self, now: float) -> list[Command]:
        """After each round of events: receipts, one per stream and 64 seqs, and batches for idle engines."""
        for key in self._intake.take_receipts():
            self._receipt(key)
        commands: list[Command] = []
        for (device, epoch), seqs in self._due.items():
            parts = [tuple(seqs[at : at + RECEIPT_SEQS]) for at in range(0, len(seqs), RECEIPT_SEQS)]
            commands += [Tell(device, Receipt(epoch, part)) for part in parts]
        self._due.clear()
        return [*commands, *self._dispatch(now)]

    def _dispatch(self, now: float) -> list[Command]:
        """Batches for free slots, engines for models that are asked for, and word to those who waited too long."""
        found = self._batcher.next(now)
        room = self.lineup.make_room([command for command in found if isinstance(command, Load)])
        return [*found, *room, *self._web.overdue()]

    def on_wake(self, now: float) -> list[Command]:
        """Call about once a second."""
        commands: list[Command] = [End(ending) for ending in self._unwritten.values()]
        self._unwritten.clear()
        commands += self._batcher.wake(now)
        if now >= self._expire_at:
            self._expire_at = now + EXPIRE_EVERY_S
            oldest_ms = int((now - self._settings.created_max_age_s) * 1000)
            owed = [q for q in self._memory if q.stored and not q.ending]
            old = [q for q in owed if q.created_ms < oldest_ms or q.keep_until_ms <= now * 1000]
            commands += [command for question in old for command in end(question, Reason.EXPIRED, now)]
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY_S
            commands.append(Prune(int((now - self._settings.rows_live_s) * 1000), int(now * 1000)))
        return commands

    def _receipt(self, key: Key) -> None:
        self.counts["receipts"] += 1
        self._due.setdefault((key.device, key.epoch), []).append(key.seq)
