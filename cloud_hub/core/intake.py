"""Intake of questions: verification, duplicates, admission, decryption, policy check, then `StoreQuestion`. Pure.

Also reopens stored questions after a restart (`reopen_questions`). Rule: the unique (device, epoch, seq) is the whole
replay protection. A seq above the highest of its stream is certainly new; any other is looked up in the store. Nothing
is written for a refusal.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from cloud_hub.core.admission import AdmissionControl
from cloud_hub.core.commands import (
    Command,
    DeleteQuestion,
    LookUpQuestions,
    QuestionKey,
    QuestionRow,
    SendFrame,
    SendNote,
    StoredQuestion,
    StoreQuestion,
)
from cloud_hub.core.context import (
    CoreContext,
    DecryptedQuestion,
    OpenQuestion,
    band_of_question,
    decrement_count,
    end_question,
    refuse_question,
)
from cloud_hub.core.policy_check import DeviceFacts
from cloud_hub.core.shards import DueReceipts
from cloud_hub.core.verification import DroppedFrame, FrameVerifier
from cloud_hub.registry.device_states import Device, Standing
from policies.serving.fair_queue import extract_tenant
from wire.errors import Fault, RemoteError
from wire.protocol.codec import Frame, split_frame
from wire.protocol.messages import Refusal, RefusalReason
from wire.protocol.sealing import hash_frame
from wire.protocol.topics import compute_shard

POLICY_RETRY_S = 5.0  # a device fetches its policy meanwhile
DAY_MS = 86_400_000
QUESTION_TICKET = 0  # ticket of a Find whose keys are questions in `StoreLookups`; tickets of notes count from 1


class _ArrivedQuestion(msgspec.Struct, eq=False):
    """A verified question frame, not decrypted yet."""

    key: QuestionKey
    frame: Frame
    payload: bytes
    digest: bytes
    device: Device


class StoreLookups:
    """Questions whose rows are being looked up in the store, counted by device and tenant."""

    def __init__(self) -> None:
        self._arrivals: dict[QuestionKey, _ArrivedQuestion] = {}
        self._per_device: Counter[str] = Counter()
        self._per_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._arrivals)

    def __contains__(self, key: QuestionKey) -> bool:
        return key in self._arrivals

    def count_for_device(self, device: str) -> int:
        """Number of a device's lookups."""
        return self._per_device.get(device, 0)

    def count_for_tenant(self, tenant: str) -> int:
        """Number of lookups of a tenant's devices."""
        return self._per_tenant.get(tenant, 0)

    @property
    def tenants(self) -> int:
        """Number of tenants with lookups."""
        return len(self._per_tenant)

    def add(self, arrival: _ArrivedQuestion) -> None:
        """Note that a question is being looked up."""
        self._arrivals[arrival.key] = arrival
        self._per_device[arrival.key.device] += 1
        self._per_tenant[extract_tenant(arrival.key.device)] += 1

    def remove(self, key: QuestionKey) -> _ArrivedQuestion | None:
        """Forget a lookup; returns its question, None if it is not looked up any more."""
        arrival = self._arrivals.pop(key, None)
        if arrival is not None:
            decrement_count(self._per_device, key.device)
            decrement_count(self._per_tenant, extract_tenant(key.device))
        return arrival

    def forget_shards(self, shards: AbstractSet[int]) -> None:
        """Forget the lookups of devices of these shards: another hub serves them."""
        for key in [key for key in self._arrivals if compute_shard(key.device) in shards]:
            self.remove(key)


class QuestionIntake:
    """Takes in question frames of devices; holds those whose store lookup is in progress."""

    def __init__(
        self, context: CoreContext, gate: FrameVerifier, turnstile: AdmissionControl, receipts: DueReceipts
    ) -> None:
        self._context = context
        self._gate = gate
        self._turnstile = turnstile
        self._receipts = receipts
        self._lookups = StoreLookups()

    def on_question(self, device: str, payload: bytes, now: float) -> list[Command]:
        """Handle one question frame of `device` up to its acceptance, refusal, repeat or lookup."""
        passed = self._gate.verify_question(device, payload, now)
        if isinstance(passed, DroppedFrame):
            return self._context.handle_drop(device, passed)
        if isinstance(passed, Refusal):
            self._context.counts[f"refused.{passed.reason}"] += 1
            return [SendNote(device, passed)]
        header = passed.frame.header
        key = QuestionKey(device, header.epoch, header.seq)
        return self._classify_arrival(
            _ArrivedQuestion(key, passed.frame, payload, hash_frame(payload), passed.device), now
        )

    def _classify_arrival(self, arrival: _ArrivedQuestion, now: float) -> list[Command]:
        """Decide whether a question is in progress, ended, certainly new, or to be looked up in the store."""
        key = arrival.key
        question = self._context.memory.find_open(key)
        if question is not None:
            return self._repeat_open(arrival, question)
        row = self._context.memory.recent_row(key)
        if row is not None:
            return self._repeat_ended(arrival, row, now)
        if self._context.memory.is_certainly_new(key):
            return self._admit_question(arrival, now)
        if key in self._lookups:
            self._context.counts["duplicates"] += 1
            return []
        refused = self._turnstile.admit_lookup(key.device, self._lookups, now)
        if refused is not None:
            return self._refuse_arrival(arrival, refused.reason, refused.retry_after_s)
        self._lookups.add(arrival)
        return [LookUpQuestions(QUESTION_TICKET, (key,), ((key.device, key.epoch),))]

    def _repeat_open(self, arrival: _ArrivedQuestion, question: OpenQuestion) -> list[Command]:
        """A repeat of a question in progress: send its receipt again, as the first one may be lost."""
        self._context.counts["duplicates"] += 1
        differs = self._compare_repeat(arrival, question.digest, question.fingerprint)
        if differs:
            return self._refuse_arrival(arrival, differs)
        if question.stored and not question.ending:
            self._receipts.add(question.key)
        return []

    def _repeat_ended(self, arrival: _ArrivedQuestion, row: QuestionRow, now: float) -> list[Command]:
        """A repeat of a question that has ended, or that is stored but no longer in memory."""
        self._context.counts["duplicates"] += 1
        differs = self._compare_repeat(arrival, row.digest, row.fingerprint)
        if differs:
            return self._refuse_arrival(arrival, differs)
        if row.refusal is not None:
            return self._refuse_arrival(arrival, row.refusal)
        if row.verdict is not None and self._context.can_read_verdict(row.verdict, arrival.device):
            return [SendFrame(arrival.key.device, row.verdict)]
        # Not computed yet, or sealed to a key that the device has replaced: start over.
        self._context.memory.forget_row(arrival.key)
        commands = self._admit_question(arrival, now)
        return [DeleteQuestion(arrival.key), *commands] if self._context.memory.find_open(arrival.key) else commands

    def _compare_repeat(
        self, arrival: _ArrivedQuestion, known_digest: bytes, known_fingerprint: bytes
    ) -> RefusalReason | None:
        """None if it is the same question, else the reason to refuse it.

        The same: identical bytes, or the same plaintext sealed again.
        """
        if arrival.digest == known_digest:
            return None
        opened = self._context.decrypt_question(arrival.frame)
        if isinstance(opened, RefusalReason):
            return opened
        return None if opened.fingerprint == known_fingerprint else RefusalReason.CONFLICT

    def _admit_question(self, arrival: _ArrivedQuestion, now: float) -> list[Command]:
        if arrival.device.state == Standing.RETIRING:  # it still gets the answers it waits for, but nothing new
            return self._refuse_arrival(arrival, RefusalReason.DEVICE_UNKNOWN)
        refused = self._turnstile.admit_device(arrival.key.device, now)
        if refused is not None:
            return self._refuse_arrival(arrival, refused.reason, refused.retry_after_s)
        opened = self._context.decrypt_question(arrival.frame)
        if isinstance(opened, RefusalReason):
            return self._refuse_arrival(arrival, opened)
        place = (self._context.rules.served_name(opened.question.model) or "", band_of_question(opened.question))
        refused = self._context.scaling.refuse_entry(place[0])
        refused = refused or self._turnstile.admit_band(arrival.key.device, place, now)
        if refused is not None:
            self._context.batcher.count_refused(place[0], 1, refused.reason)
            return self._refuse_arrival(arrival, refused.reason, refused.retry_after_s)
        return self._accept_question(arrival, opened, now)

    def _accept_question(self, arrival: _ArrivedQuestion, opened: DecryptedQuestion, now: float) -> list[Command]:
        """Check an admitted question against its policy and model.

        If it is accepted, it is opened and a `StoreQuestion` returned.
        """
        device = arrival.device
        facts = DeviceFacts(arrival.key.device, device.device_class, device.region)
        checked = self._context.rules.validate_question(opened.question, facts, now)
        if isinstance(checked, RefusalReason):
            return self._refuse_arrival(
                arrival, checked, POLICY_RETRY_S if checked is RefusalReason.POLICY_OLD else 0.0
            )
        if self._context.rules.is_erased(arrival.key.device, opened.question.subject, opened.created_ms):
            return self._refuse_arrival(arrival, RefusalReason.EXPIRED)
        question = self._context.open_question(arrival.key, arrival.digest, opened, checked.work, now)
        question.keep_until_ms = int(now * 1000) + checked.keep_days * DAY_MS
        self._context.counts["accepted"] += 1
        return [StoreQuestion(self._stored_question(arrival, opened, question, now))]

    def _stored_question(
        self, arrival: _ArrivedQuestion, opened: DecryptedQuestion, question: OpenQuestion, now: float
    ) -> StoredQuestion:
        return StoredQuestion(
            key=arrival.key,
            model=self._context.rules.served_name(opened.question.model) or "",
            policy=opened.question.policy,
            created_ms=opened.created_ms,
            kept_ms=int(now * 1000),
            digest=arrival.digest,
            fingerprint=opened.fingerprint,
            sealed=arrival.payload,
            keep_until_ms=question.keep_until_ms,
            subject=opened.question.subject,
        )

    def on_found(
        self, keys: tuple[QuestionKey, ...], rows: Mapping[QuestionKey, QuestionRow], now: float
    ) -> list[Command]:
        """Result of a lookup: admit the questions that are new, answer those that are repeats."""
        commands: list[Command] = []
        for key in keys:
            arrival = self._lookups.remove(key)
            row = rows.get(key)
            if arrival is not None:
                commands += self._admit_question(arrival, now) if row is None else self._repeat_ended(arrival, row, now)
        return commands

    def forget_shards(self, shards: AbstractSet[int]) -> None:
        """Forget the lookups of devices of these shards: another hub serves them."""
        self._lookups.forget_shards(shards)

    def on_find_failed(self, keys: tuple[QuestionKey, ...]) -> None:
        """The lookup failed: drop these questions without an answer; the devices send them again."""
        for key in keys:
            self._lookups.remove(key)

    def _refuse_arrival(
        self, arrival: _ArrivedQuestion, reason: RefusalReason, retry_after_s: float = 0.0
    ) -> list[Command]:
        self._context.counts[f"refused.{reason}"] += 1
        return [refuse_question(arrival.key, arrival.digest, reason, retry_after_s)]


def reopen_questions(context: CoreContext, stored: Iterable[StoredQuestion], now: float) -> list[Command]:
    """Reopen stored questions after a restart and queue them again; their codes are decoded together.

    A question that cannot be decrypted any more (key destroyed, bytes damaged, a wire version that is not spoken any
    more) is deleted, so that `StatusRequest` reports it as unknown. Unless its bytes are damaged, its device is asked
    at once to seal it again.
    """
    commands: list[Command] = []
    readable: list[tuple[StoredQuestion, DecryptedQuestion]] = []
    for kept in stored:
        opened = _decrypt_stored(context, kept)
        if isinstance(opened, RefusalReason):
            context.counts["forgotten"] += 1
            commands.append(DeleteQuestion(kept.key))
            if opened is RefusalReason.KEY_EXPIRED:
                commands.append(refuse_question(kept.key, kept.digest, opened))
        else:
            context.counts["restored"] += 1
            readable.append((kept, opened))
    works = context.rules.decode_questions([opened.question for _, opened in readable])
    for (kept, opened), work in zip(readable, works, strict=True):
        item = None if isinstance(work, RefusalReason) else work
        question = context.open_question(kept.key, kept.digest, opened, item, now)
        question.stored, question.keep_until_ms = True, kept.keep_until_ms
        if isinstance(work, RefusalReason):
            commands += end_question(question, work, now)
    return commands


def _decrypt_stored(context: CoreContext, kept: StoredQuestion) -> DecryptedQuestion | RefusalReason:
    """The plaintext of a stored question, or why it cannot be had."""
    try:
        return context.decrypt_question(split_frame(kept.sealed))
    except RemoteError as error:
        # wire version 2: release 0.2 stored questions of sessions, whose keys were in its memory alone
        return RefusalReason.KEY_EXPIRED if error.fault is Fault.VERSION else RefusalReason.SCHEMA
