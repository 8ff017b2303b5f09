"""What the parts of `HubCore` share: settings, seams, memory, queues, counters, and how a frame is opened."""

from collections import Counter
from dataclasses import dataclass
from math import inf

from cloud_hub.core.commands import Command, End, Ending, Item, Key, Suspect, Tell
from cloud_hub.core.merging_context_memory import Memory, Open
from cloud_hub.core.merging_policy_check_schema import Rules
from cloud_hub.core.scheduler import Batcher
from cloud_hub.core.verification import Dropped
from cloud_hub.engine.merging_types_work import Work
from cloud_hub.registry.merging_device_states_devices import Device, Registry
from cloud_hub.security.envelopes import Envelopes
from cloud_hub.system.settings import HubSettings
from policies.serving.fair_queue import LOW, band_of
from wire.errors import RemoteError
from wire.protocol.codec import Frame, decode_escalation, fingerprint, split, unpad
from wire.protocol.merging_sealing_seal import verdict_binding
from wire.protocol.messages import Escalation, Reason, Refusal

_PASSING = frozenset(
    (Reason.BUSY, Reason.RATE, Reason.DRAINING, Reason.KEY_EXPIRED, Reason.CREATED_AHEAD, Reason.POLICY_OLD)
)


@dataclass(frozen=True)
class Opened:
    """A question in the clear. `fingerprint` = SHA-256 of its padded plaintext."""

    fingerprint: bytes
    question: Escalation
    created_ms: int


@dataclass(frozen=True, kw_only=True)
class CoreContext:
    settings: HubSettings
    registry: Registry
    envelopes: Envelopes
    rules: Rules
    memory: Memory
    batcher: Batcher
    counts: "Counter[str]"

    def unseal(self, frame: Frame) -> Opened | Reason:
        if not self.envelopes.knows(frame.header.key_id):
            return Reason.KEY_EXPIRED
        try:
            padded = self.envelopes.open(frame)
            return Opened(fingerprint(padded), decode_escalation(unpad(padded)), frame.header.created_ms)
        except RemoteError as error:
            self.counts[f"unreadable.{error.fault}"] += 1
            return Reason.SCHEMA

    def begin(self, key: Key, digest: bytes, opened: Opened, work: Work | None, now: float) -> Open:
        """Open a question; with `work` it is queued at once, so that its commit overlaps with its inference."""
        model = self.rules.model(opened.question.model) or ""
        item = _item(key, opened, work, now)
        binding = verdict_binding(opened.fingerprint, model, opened.question.policy)
        question = Open(key, digest, opened.fingerprint, binding=binding, created_ms=opened.created_ms, item=item)
        self.memory.add(question)
        if work is not None:
            self.batcher.add(model, item)
        return question

    def readable(self, verdict: bytes, device: Device) -> bool:
        """False if the device has given up the key that the stored verdict is sealed to."""
        return split(verdict).header.key_id == self.envelopes.reader(device)

    def drop(self, why: str) -> list[Command]:
        self.counts[f"dropped.{why}"] += 1
        return []

    def dropped(self, device: str, found: Dropped) -> list[Command]:
        """Counted; suspended if that is the only end of it."""
        self.drop(found.why)
        return [Suspect(device)] if found.suspect else []


def band_of_question(question: Escalation) -> int:
    """As it asks for; an audit that asks for nothing is least urgent: nobody waits for its answer."""
    return LOW if question.audit and not question.priority else band_of(question.priority)


def _item(key: Key, opened: Opened, work: Work | None, now: float) -> Item:
    """The budget orders batches and ends nothing: a late answer is a correction."""
    question = opened.question
    deadline = now + question.budget_s if 0 < question.budget_s < inf else inf
    work = work or Work()
    return Item(
        key, work, now, band=band_of_question(question), weight=work.weight, deadline=deadline,
        trace=question.trace, about=question.id, created_s=opened.created_ms / 1000,
    )  # fmt: skip


def end(question: Open, reason: Reason, now: float) -> list[Command]:
    """Decide that a stored question ends without a verdict."""
    question.ending = True
    return [End(Ending(question.key, int(now * 1000), refusal=reason))]


def refusal(key: Key, digest: bytes, reason: Reason, retry_after_s: float = 0.0) -> Tell:
    """`digest` binds it to the frame that is refused."""
    return Tell(
        key.device,
        Refusal(key.epoch, key.seq, digest, reason=reason, retry_after_s=retry_after_s, final=reason not in _PASSING),
    )
