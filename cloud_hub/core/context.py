"""Shared state of the parts of `HubCore`: settings, open questions, queues, counters, and decryption of frames. Pure.

`QuestionMemory` holds the open questions, a cache of lately ended ones, and the highest seq of each stream. Rule: all
of it may be lost. The store is authoritative; what is not in memory is looked up there.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf

import msgspec

from cloud_hub.core.commands import (
    BatchItem,
    Command,
    QuestionEnding,
    QuestionKey,
    QuestionRow,
    SendNote,
    StoreEnding,
    Stream,
    SuspendDevice,
)
from cloud_hub.core.policy_check import QuestionValidator
from cloud_hub.core.replica_scaling import ReplicaScaling
from cloud_hub.core.rounds import QuestionRound
from cloud_hub.core.scheduler import Batcher
from cloud_hub.core.verification import DroppedFrame
from cloud_hub.engine.types import WorkItem
from cloud_hub.registry.device_states import Device, DeviceLookup
from cloud_hub.security.envelopes import Envelopes
from cloud_hub.system.settings import HubSettings
from policies.serving.fair_queue import LOW, extract_tenant, priority_to_band
from wire.errors import RemoteError
from wire.protocol.codec import Frame, decode_escalation, hash_plaintext, split_frame, unpad_plaintext
from wire.protocol.messages import Escalation, Refusal, RefusalReason
from wire.protocol.sealing import compute_verdict_binding
from wire.protocol.topics import compute_shard

RECENT_ROWS = 8192  # about 8 MB of verdicts: a repeat within seconds costs no read
STREAMS = 65_536
BIGGEST_MS = 2**62


class OpenQuestion(msgspec.Struct, eq=False):
    """A question in progress. `stored`: the hub owes an answer; `ending`: decided, and its ending is being written.

    `binding` ties the verdict to the question (see `wire.protocol.sealing.compute_verdict_binding`); times in hub
    milliseconds.
    """

    key: QuestionKey
    digest: bytes
    fingerprint: bytes
    binding: bytes
    created_ms: int
    item: BatchItem
    frame_bytes: int = 0
    stored: bool = False
    ending: bool = False
    keep_until_ms: int = BIGGEST_MS  # whatever has not ended by then, ends


class QuestionMemory:
    """In-memory index of open questions, recently ended rows, and the highest seq of each (device, epoch) stream.

    Bounded: at most `RECENT_ROWS` ended rows and `STREAMS` streams; the least recently used goes first.
    """

    def __init__(self) -> None:
        self._open: dict[QuestionKey, OpenQuestion] = {}
        self._per_device: Counter[str] = Counter()
        self._per_tenant: Counter[str] = Counter()
        self._recent: OrderedDict[QuestionKey, QuestionRow] = OrderedDict()
        self._highest: OrderedDict[Stream, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenQuestion]:
        return iter(self._open.values())

    def find_open(self, key: QuestionKey) -> OpenQuestion | None:
        """The open question under `key`, or None."""
        return self._open.get(key)

    def is_waiting(self, item: BatchItem) -> bool:
        """Whether the question of this item still needs a result; False after a repeat replaced it or it has ended."""
        question = self._open.get(item.key)
        return question is not None and question.item is item and not question.ending

    def count_for_device(self, device: str) -> int:
        """Number of open questions of a device."""
        return self._per_device.get(device, 0)  # not [...]: a Counter's default is a call in Python

    def count_for_tenant(self, tenant: str) -> int:
        """Number of open questions of all devices of a tenant."""
        return self._per_tenant.get(tenant, 0)

    @property
    def tenants(self) -> int:
        """Number of tenants with open questions."""
        return len(self._per_tenant)

    def add(self, question: OpenQuestion) -> None:
        """Register an open question and count it for its device, tenant and stream."""
        self._open[question.key] = question
        self._per_device[question.key.device] += 1
        self._per_tenant[extract_tenant(question.key.device)] += 1
        self.raise_highest(_stream_key(question.key), question.key.seq, known=False)

    def remove(self, key: QuestionKey) -> OpenQuestion | None:
        """Remove and return the open question under `key`; None if there is none."""
        question = self._open.pop(key, None)
        if question is not None:
            decrement_count(self._per_device, key.device)
            decrement_count(self._per_tenant, extract_tenant(key.device))
        return question

    def forget_shards(self, shards: AbstractSet[int]) -> None:
        """Forget everything about the devices of these shards."""
        for key in [key for key in self._open if compute_shard(key.device) in shards]:
            self.remove(key)
        for key in [key for key in self._recent if compute_shard(key.device) in shards]:
            del self._recent[key]
        for stream in [stream for stream in self._highest if compute_shard(stream[0]) in shards]:
            del self._highest[stream]

    def recent_row(self, key: QuestionKey) -> QuestionRow | None:
        """The cached row of a question that ended lately, or None: then the store may still know it."""
        return self._recent.get(key)

    def remember_row(self, row: QuestionRow) -> None:
        """Cache the row of an ended question."""
        self._recent[row.key] = row
        if len(self._recent) > RECENT_ROWS:
            self._recent.popitem(last=False)

    def forget_row(self, key: QuestionKey) -> None:
        """Drop the cached row of `key`, if there is one."""
        self._recent.pop(key, None)

    def forget_device_rows(self, device: str) -> None:
        """Drop every cached row of a device."""
        for key in [key for key in self._recent if key.device == device]:
            del self._recent[key]

    def is_certainly_new(self, key: QuestionKey) -> bool:
        """Whether `key` is above every seq that its stream ever stored. False also means: unknown, look it up."""
        highest = self._highest.get(_stream_key(key))
        return highest is not None and key.seq > highest

    def raise_highest(self, stream: Stream, seq: int, *, known: bool = True) -> None:
        """Raise the highest seq of a stream.

        `known`: `seq` is the maximum of the whole store. Otherwise it only raises a mark that came from the store
        before.
        """
        if known or stream in self._highest:
            self._highest[stream] = max(seq, self._highest.get(stream, -1))
            self._highest.move_to_end(stream)
            if len(self._highest) > STREAMS:
                self._highest.popitem(last=False)


def decrement_count(counts: Counter[str], name: str) -> None:
    """Count one less of a name; those of which there are none are absent."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def _stream_key(key: QuestionKey) -> Stream:
    return key.device, key.epoch


_PASSING_REASONS = frozenset(
    (
        RefusalReason.BUSY,
        RefusalReason.RATE,
        RefusalReason.DRAINING,
        RefusalReason.KEY_EXPIRED,
        RefusalReason.CREATED_AHEAD,
        RefusalReason.POLICY_OLD,
    )
)


@dataclass(frozen=True)
class DecryptedQuestion:
    """A decrypted question. `fingerprint`: SHA-256 of its padded plaintext; `created_ms`: hub ms, by its header.

    `frame_bytes`: size of the frame that it came in.
    """

    fingerprint: bytes
    question: Escalation
    created_ms: int
    frame_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class CoreContext:
    """Collaborators that the parts of `HubCore` share; `counts` are the hub's event counters."""

    settings: HubSettings
    registry: DeviceLookup
    envelopes: Envelopes
    rules: QuestionValidator
    memory: QuestionMemory
    batcher: Batcher
    round: QuestionRound
    scaling: ReplicaScaling
    counts: "Counter[str]"

    def decrypt_question(self, frame: Frame) -> DecryptedQuestion | RefusalReason:
        """Decrypt and decode a question frame.

        Returns the reason to refuse it with instead, if its key is gone (`KEY_EXPIRED`) or its content is
        unreadable (`SCHEMA`, counted as `unreadable.<fault>`). Raises nothing.
        """
        if not self.envelopes.knows_key(frame.header.key_id):
            return RefusalReason.KEY_EXPIRED
        try:
            padded = self.envelopes.open(frame)
            return DecryptedQuestion(
                hash_plaintext(padded),
                decode_escalation(unpad_plaintext(padded)),
                frame.header.created_ms,
                len(frame.clear) + len(frame.body) + len(frame.signature),
            )
        except RemoteError as error:
            self.counts[f"unreadable.{error.fault}"] += 1
            return RefusalReason.SCHEMA

    def open_question(
        self, key: QuestionKey, digest: bytes, opened: DecryptedQuestion, work: WorkItem | None, now: float
    ) -> OpenQuestion:
        """Open a question in memory.

        With `work` it is queued at once, so that its commit overlaps with its inference.
        """
        model = self.rules.served_name(opened.question.model) or ""
        item = _make_item(key, opened, work, now)
        binding = compute_verdict_binding(opened.fingerprint, model, opened.question.policy)
        question = OpenQuestion(
            key,
            digest,
            opened.fingerprint,
            binding=binding,
            created_ms=opened.created_ms,
            item=item,
            frame_bytes=opened.frame_bytes,
        )
        self.memory.add(question)
        self.round.add(key.device, item.deadline, now)
        if work is not None:
            self.batcher.add_item(model, item)
        return question

    def can_read_verdict(self, verdict: bytes, device: Device) -> bool:
        """Whether the device can still decrypt this stored verdict.

        False once it has replaced the key it is sealed to, and for a verdict of another wire version: release 0.2
        sealed the verdicts of sessions in version 2. The question is then computed again.
        """
        try:
            frame = split_frame(verdict)
        except RemoteError:
            return False
        return frame.header.key_id == self.envelopes.reader_key_id(device)

    def count_drop(self, why: str) -> list[Command]:
        """Count a message that is dropped without an answer; always returns no commands."""
        self.counts[f"dropped.{why}"] += 1
        return []

    def handle_drop(self, device: str, found: DroppedFrame) -> list[Command]:
        """Count a frame that verification dropped; returns `SuspendDevice` if its device must be suspended."""
        self.count_drop(found.why)
        return [SuspendDevice(device)] if found.suspect else []


def band_of_question(question: Escalation) -> int:
    """Priority band of a question, as it requests; an audit without a priority is least urgent: nobody waits for it."""
    return LOW if question.audit and not question.priority else priority_to_band(question.priority)


def _make_item(key: QuestionKey, opened: DecryptedQuestion, work: WorkItem | None, now: float) -> BatchItem:
    """Make the batch item of a question.

    Its budget orders batches but ends nothing: a late answer becomes a correction.
    """
    question = opened.question
    deadline = now + question.budget_s if 0 < question.budget_s < inf else inf
    work = work or WorkItem()
    return BatchItem(
        key, work, now, band=band_of_question(question), weight=work.weight, deadline=deadline,
        trace=question.trace, about=question.id, created_s=opened.created_ms / 1000,
    )  # fmt: skip


def end_question(question: OpenQuestion, reason: RefusalReason, now: float) -> list[Command]:
    """End a stored question without a verdict: marks it and returns the command that writes the refusal."""
    question.ending = True
    return [StoreEnding(QuestionEnding(question.key, int(now * 1000), refusal=reason))]


def refuse_question(key: QuestionKey, digest: bytes, reason: RefusalReason, retry_after_s: float = 0.0) -> SendNote:
    """Command that refuses a question; final unless `reason` is a passing one.

    `digest` binds it to the refused frame.
    """
    return SendNote(
        key.device,
        Refusal(
            key.epoch, key.seq, digest, reason=reason, retry_after_s=retry_after_s, final=reason not in _PASSING_REASONS
        ),
    )
