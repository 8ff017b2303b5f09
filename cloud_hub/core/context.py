"""Shared state of the parts of `HubCore`: settings, open questions, queues, counters, and decryption of frames. Pure.

`Memory` holds the open questions, a cache of lately ended ones, and the highest seq of each stream. Rule: all of it
may be lost. The store is authoritative; what is not in memory is looked up there.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import msgspec

from cloud_hub.core.commands import Command, End, Ending, Item, Key, Row, Stream, Suspect, Tell
from cloud_hub.core.policy_check import Rules
from cloud_hub.core.scheduler import Batcher
from cloud_hub.core.verification import Dropped
from cloud_hub.engine.types import Work
from cloud_hub.registry.device_states import Device, Registry
from cloud_hub.security.envelopes import Envelopes
from cloud_hub.system.settings import HubSettings
from policies.serving.fair_queue import LOW, band_of, tenant_of
from wire.errors import RemoteError
from wire.protocol.codec import Frame, decode_escalation, fingerprint, split, unpad
from wire.protocol.messages import Escalation, Reason, Refusal
from wire.protocol.sealing import verdict_binding

RECENT_ROWS = 8192  # about 8 MB of verdicts: a repeat within seconds costs no read
STREAMS = 65_536
BIGGEST_MS = 2**62


class Open(msgspec.Struct, eq=False):
    """A question in progress. `stored`: the hub owes an answer; `ending`: decided, and its ending is being written.

    `binding` ties the verdict to the question (see `wire.protocol.sealing.verdict_binding`); times in hub milliseconds.
    """

    key: Key
    digest: bytes
    fingerprint: bytes
    binding: bytes
    created_ms: int
    item: Item
    stored: bool = False
    ending: bool = False
    keep_until_ms: int = BIGGEST_MS  # whatever has not ended by then, ends


class Memory:
    """In-memory index of open questions, recently ended rows, and the highest seq of each (device, epoch) stream.

    Bounded: at most `RECENT_ROWS` ended rows and `STREAMS` streams; the least recently used goes first.
    """

    def __init__(self) -> None:
        self._open: dict[Key, Open] = {}
        self._per_device: Counter[str] = Counter()
        self._per_tenant: Counter[str] = Counter()
        self._recent: OrderedDict[Key, Row] = OrderedDict()
        self._highest: OrderedDict[Stream, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Open]:
        return iter(self._open.values())

    def open(self, key: Key) -> Open | None:
        """The open question under `key`, or None."""
        return self._open.get(key)

    def waits(self, item: Item) -> bool:
        """Whether the question of this item still needs a result; False after a repeat replaced it or it has ended."""
        question = self._open.get(item.key)
        return question is not None and question.item is item and not question.ending

    def device_open(self, device: str) -> int:
        """Number of open questions of a device."""
        return self._per_device[device]

    def tenant_open(self, tenant: str) -> int:
        """Number of open questions of all devices of a tenant."""
        return self._per_tenant[tenant]

    @property
    def tenants(self) -> int:
        """Number of tenants with open questions."""
        return len(self._per_tenant)

    def add(self, question: Open) -> None:
        """Register an open question and count it for its device, tenant and stream."""
        self._open[question.key] = question
        self._per_device[question.key.device] += 1
        self._per_tenant[tenant_of(question.key.device)] += 1
        self.reached(_stream(question.key), question.key.seq, known=False)

    def remove(self, key: Key) -> Open | None:
        """Remove and return the open question under `key`; None if there is none."""
        question = self._open.pop(key, None)
        if question is not None:
            _less(self._per_device, key.device)
            _less(self._per_tenant, tenant_of(key.device))
        return question

    def recent(self, key: Key) -> Row | None:
        """The cached row of a question that ended lately, or None: then the store may still know it."""
        return self._recent.get(key)

    def remember(self, row: Row) -> None:
        """Cache the row of an ended question."""
        self._recent[row.key] = row
        if len(self._recent) > RECENT_ROWS:
            self._recent.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Drop the cached row of `key`, if there is one."""
        self._recent.pop(key, None)

    def certainly_new(self, key: Key) -> bool:
        """Whether `key` is above every seq that its stream ever stored. False also means: unknown, look it up."""
        highest = self._highest.get(_stream(key))
        return highest is not None and key.seq > highest

    def reached(self, stream: Stream, seq: int, *, known: bool = True) -> None:
        """Raise the highest seq of a stream.

        `known`: `seq` is the maximum of the whole store. Otherwise it only raises a mark that came from the store
        before.
        """
        if known or stream in self._highest:
            self._highest[stream] = max(seq, self._highest.get(stream, -1))
            self._highest.move_to_end(stream)
            if len(self._highest) > STREAMS:
                self._highest.popitem(last=False)


def _less(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def _stream(key: Key) -> Stream:
    return key.device, key.epoch


_PASSING = frozenset(
    (Reason.BUSY, Reason.RATE, Reason.DRAINING, Reason.KEY_EXPIRED, Reason.CREATED_AHEAD, Reason.POLICY_OLD)
)


@dataclass(frozen=True)
class Opened:
    """A decrypted question. `fingerprint`: SHA-256 of its padded plaintext; `created_ms`: hub ms, by its header."""

    fingerprint: bytes
    question: Escalation
    created_ms: int


@dataclass(frozen=True, kw_only=True)
class CoreContext:
    """Collaborators that the parts of `HubCore` share; `counts` are the hub's event counters."""

    settings: HubSettings
    registry: Registry
    envelopes: Envelopes
    rules: Rules
    memory: Memory
    batcher: Batcher
    counts: "Counter[str]"

    def unseal(self, frame: Frame) -> Opened | Reason:
        """Decrypt and decode a question frame.

        Returns the reason to refuse it with instead, if its HPKE key is gone (`KEY_EXPIRED`) or its content is
        unreadable (`SCHEMA`, counted as `unreadable.<fault>`). Raises nothing.
        """
        if not self.envelopes.knows(frame.header.key_id):
            return Reason.KEY_EXPIRED
        try:
            padded = self.envelopes.open(frame)
            return Opened(fingerprint(padded), decode_escalation(unpad(padded)), frame.header.created_ms)
        except RemoteError as error:
            self.counts[f"unreadable.{error.fault}"] += 1
            return Reason.SCHEMA

    def begin(self, key: Key, digest: bytes, opened: Opened, work: Work | None, now: float) -> Open:
        """Open a question in memory.

        With `work` it is queued at once, so that its commit overlaps with its inference.
        """
        model = self.rules.model(opened.question.model) or ""
        item = _item(key, opened, work, now)
        binding = verdict_binding(opened.fingerprint, model, opened.question.policy)
        question = Open(key, digest, opened.fingerprint, binding=binding, created_ms=opened.created_ms, item=item)
        self.memory.add(question)
        if work is not None:
            self.batcher.add(model, item)
        return question

    def readable(self, verdict: bytes, device: Device) -> bool:
        """Whether the device can still decrypt this stored verdict.

        False once it has replaced the key it is sealed to.
        """
        return split(verdict).header.key_id == self.envelopes.reader(device)

    def drop(self, why: str) -> list[Command]:
        """Count a message that is dropped without an answer; always returns no commands."""
        self.counts[f"dropped.{why}"] += 1
        return []

    def dropped(self, device: str, found: Dropped) -> list[Command]:
        """Count a frame that verification dropped; returns `Suspect` if its device must be suspended."""
        self.drop(found.why)
        return [Suspect(device)] if found.suspect else []


def band_of_question(question: Escalation) -> int:
    """Priority band of a question, as it requests; an audit without a priority is least urgent: nobody waits for it."""
    return LOW if question.audit and not question.priority else band_of(question.priority)


def _item(key: Key, opened: Opened, work: Work | None, now: float) -> Item:
    """Make the batch item of a question.

    Its budget orders batches but ends nothing: a late answer becomes a correction.
    """
    question = opened.question
    deadline = now + question.budget_s if 0 < question.budget_s < inf else inf
    work = work or Work()
    return Item(
        key, work, now, band=band_of_question(question), weight=work.weight, deadline=deadline,
        trace=question.trace, about=question.id, created_s=opened.created_ms / 1000,
    )  # fmt: skip


def end(question: Open, reason: Reason, now: float) -> list[Command]:
    """End a stored question without a verdict: marks it and returns the command that writes the refusal."""
    question.ending = True
    return [End(Ending(question.key, int(now * 1000), refusal=reason))]


def refusal(key: Key, digest: bytes, reason: Reason, retry_after_s: float = 0.0) -> Tell:
    """Command that refuses a question; final unless `reason` is a passing one.

    `digest` binds it to the refused frame.
    """
    return Tell(
        key.device,
        Refusal(key.epoch, key.seq, digest, reason=reason, retry_after_s=retry_after_s, final=reason not in _PASSING),
    )
