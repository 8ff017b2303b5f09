"""Intake of questions: verification, duplicates, admission, decryption, policy check, then `Keep`. Pure.

Also reopens stored questions after a restart (`revive`). Rule: the unique (device, epoch, seq) is the whole replay
protection. A seq above the highest of its stream is certainly new; any other is looked up in the store. Nothing is
written for a refusal.
"""

from collections.abc import Mapping

import msgspec

from cloud_hub.core.admission import Turnstile
from cloud_hub.core.commands import Command, Find, Forget, Keep, Key, Question, Resend, Row, Tell
from cloud_hub.core.context import CoreContext, Open, Opened, band_of_question, end, refusal
from cloud_hub.core.policy_check import Facts
from cloud_hub.core.verification import Dropped, FrameVerifier
from cloud_hub.registry.device_states import Device, Standing
from wire.errors import RemoteError
from wire.protocol.codec import Frame, split
from wire.protocol.messages import Reason, Refusal
from wire.protocol.sealing import digest

POLICY_RETRY_S = 5.0  # a device fetches its policy meanwhile
DAY_MS = 86_400_000
QUESTION_TICKET = 0  # ticket of a Find whose keys are questions in `_looking`; tickets of notes count from 1


class _Arrival(msgspec.Struct, eq=False):
    """A verified question frame that is not decrypted yet."""

    key: Key
    frame: Frame
    payload: bytes
    digest: bytes
    device: Device


class Intake:
    """Takes in question frames of devices; holds those whose store lookup is in progress."""

    def __init__(self, context: CoreContext, gate: FrameVerifier, turnstile: Turnstile) -> None:
        self._context = context
        self._gate = gate
        self._turnstile = turnstile
        self._looking: dict[Key, _Arrival] = {}
        self._receipts: list[Key] = []

    def take_receipts(self) -> list[Key]:
        """Keys of stored questions that were sent again since the last call: each gets another receipt."""
        taken, self._receipts = self._receipts, []
        return taken

    def on_question(self, device: str, payload: bytes, now: float) -> list[Command]:
        """Handle one question frame of `device` up to its acceptance, refusal, repeat or lookup."""
        passed = self._gate.question(device, payload, now)
        if isinstance(passed, Dropped):
            return self._context.dropped(device, passed)
        if isinstance(passed, Refusal):
            self._context.counts[f"refused.{passed.reason}"] += 1
            return [Tell(device, passed)]
        header = passed.frame.header
        key = Key(device, header.epoch, header.seq)
        return self._place(_Arrival(key, passed.frame, payload, digest(payload), passed.device), now)

    def _place(self, arrival: _Arrival, now: float) -> list[Command]:
        """Decide whether a question is in progress, ended, certainly new, or to be looked up in the store."""
        key = arrival.key
        question = self._context.memory.open(key)
        if question is not None:
            return self._again(arrival, question)
        row = self._context.memory.recent(key)
        if row is not None:
            return self._repeat(arrival, row, now)
        if self._context.memory.certainly_new(key):
            return self._admit(arrival, now)
        if key in self._looking:
            self._context.counts["duplicates"] += 1
            return []
        refused = self._turnstile.lookup(key.device, len(self._looking), now)
        if refused is not None:
            return self._refuse(arrival, refused.reason, refused.retry_after_s)
        self._looking[key] = arrival
        return [Find(QUESTION_TICKET, (key,), ((key.device, key.epoch),))]

    def _again(self, arrival: _Arrival, question: Open) -> list[Command]:
        """A repeat of a question in progress: send its receipt again, as the first one may be lost."""
        self._context.counts["duplicates"] += 1
        differs = self._differs(arrival, question.digest, question.fingerprint)
        if differs:
            return self._refuse(arrival, differs)
        if question.stored and not question.ending:
            self._receipts.append(question.key)
        return []

    def _repeat(self, arrival: _Arrival, row: Row, now: float) -> list[Command]:
        """A repeat of a question that has ended, or that is stored but no longer in memory."""
        self._context.counts["duplicates"] += 1
        differs = self._differs(arrival, row.digest, row.fingerprint)
        if differs:
            return self._refuse(arrival, differs)
        if row.refusal is not None:
            return self._refuse(arrival, row.refusal)
        if row.verdict is not None and self._context.readable(row.verdict, arrival.device):
            return [Resend(arrival.key.device, row.verdict)]
        # Not computed yet, or sealed to a key that the device has replaced: start over.
        self._context.memory.forget(arrival.key)
        commands = self._admit(arrival, now)
        return [Forget(arrival.key), *commands] if self._context.memory.open(arrival.key) else commands

    def _differs(self, arrival: _Arrival, known_digest: bytes, known_fingerprint: bytes) -> Reason | None:
        """None if it is the same question, else the reason to refuse it.

        The same: identical bytes, or the same plaintext sealed again.
        """
        if arrival.digest == known_digest:
            return None
        opened = self._context.unseal(arrival.frame)
        if isinstance(opened, Reason):
            return opened
        return None if opened.fingerprint == known_fingerprint else Reason.CONFLICT

    def _admit(self, arrival: _Arrival, now: float) -> list[Command]:
        if arrival.device.state == Standing.RETIRING:  # it still gets the answers it waits for, but nothing new
            return self._refuse(arrival, Reason.DEVICE_UNKNOWN)
        refused = self._turnstile.device(arrival.key.device, now)
        if refused is not None:
            return self._refuse(arrival, refused.reason, refused.retry_after_s)
        opened = self._context.unseal(arrival.frame)
        if isinstance(opened, Reason):
            return self._refuse(arrival, opened)
        place = (self._context.rules.model(opened.question.model) or "", band_of_question(opened.question))
        refused = self._turnstile.band(arrival.key.device, place, now)
        if refused is not None:
            return self._refuse(arrival, refused.reason, refused.retry_after_s)
        return self._accept(arrival, opened, now)

    def _accept(self, arrival: _Arrival, opened: Opened, now: float) -> list[Command]:
        """Check an admitted question against its policy and model; accepted, it is opened and a `Keep` returned."""
        device = arrival.device
        facts = Facts(arrival.key.device, device.device_class, device.region)
        checked = self._context.rules.check(opened.question, facts, now)
        if isinstance(checked, Reason):
            return self._refuse(arrival, checked, POLICY_RETRY_S if checked is Reason.POLICY_OLD else 0.0)
        if self._context.rules.erased(arrival.key.device, opened.question.subject, opened.created_ms):
            return self._refuse(arrival, Reason.EXPIRED)
        question = self._context.begin(arrival.key, arrival.digest, opened, checked.work, now)
        question.keep_until_ms = int(now * 1000) + checked.keep_days * DAY_MS
        self._context.counts["accepted"] += 1
        return [Keep(self._row(arrival, opened, question, now))]

    def _row(self, arrival: _Arrival, opened: Opened, question: Open, now: float) -> Question:
        return Question(
            key=arrival.key,
            model=self._context.rules.model(opened.question.model) or "",
            policy=opened.question.policy,
            created_ms=opened.created_ms,
            kept_ms=int(now * 1000),
            digest=arrival.digest,
            fingerprint=opened.fingerprint,
            sealed=arrival.payload,
            keep_until_ms=question.keep_until_ms,
            subject=opened.question.subject,
        )

    def on_found(self, keys: tuple[Key, ...], rows: Mapping[Key, Row], now: float) -> list[Command]:
        """Result of a lookup: admit the questions that are new, answer those that are repeats."""
        commands: list[Command] = []
        for key in keys:
            arrival = self._looking.pop(key, None)
            row = rows.get(key)
            if arrival is not None:
                commands += self._admit(arrival, now) if row is None else self._repeat(arrival, row, now)
        return commands

    def on_find_failed(self, keys: tuple[Key, ...]) -> None:
        """The lookup failed: drop these questions without an answer; the devices send them again."""
        for key in keys:
            self._looking.pop(key, None)

    def _refuse(self, arrival: _Arrival, reason: Reason, retry_after_s: float = 0.0) -> list[Command]:
        self._context.counts[f"refused.{reason}"] += 1
        return [refusal(arrival.key, arrival.digest, reason, retry_after_s)]


def revive(context: CoreContext, kept: Question, now: float) -> list[Command]:
    """Reopen one stored question after a restart and queue it again.

    A question that cannot be decrypted any more (key destroyed, bytes damaged) is deleted, so that `Ask` reports it as
    unknown and the device sends it again.
    """
    try:
        opened = context.unseal(split(kept.sealed))
    except RemoteError:
        opened = Reason.SCHEMA
    if isinstance(opened, Reason):
        context.counts["forgotten"] += 1
        return [Forget(kept.key)]
    context.counts["restored"] += 1
    work = context.rules.decode(opened.question)
    question = context.begin(kept.key, kept.digest, opened, None if isinstance(work, Reason) else work, now)
    question.stored, question.keep_until_ms = True, kept.keep_until_ms
    return end(question, work, now) if isinstance(work, Reason) else []
