"""Building and sealing of escalations, and the in-memory state of each open question until its verdict.

Rule: what leaves is transformed, padded and sealed here, once; a retry sends the same bytes, from the cache or the
outbox. What this process keeps of an open question beside the core's own state is in `PendingVerdicts`, and ends there
at once.
"""

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edge_agent.question.commands import OutboxState, Store, StoredQuestion
from edge_agent.question.records import SampleOrigin
from edge_agent.storage.database import DatabaseOperation
from edge_agent.storage.outbox import OutboxRow, PayloadError, PayloadVault, StoredPayload
from edge_agent.system.clock import HubClock
from edge_agent.uplink import egress_plan
from edge_agent.uplink.envelope import Envelopes, SealedQuestion, VerdictBinding
from models.bundle.manifest import Manifest
from models.runtime.feature_codec import NUMPY_DTYPES, FeatureCodec
from models.runtime.runner import Inference
from policies.decisions.routing import HubSite
from wire.protocol import codec
from wire.protocol.messages import Escalation, Prediction

_UNKNOWN = Prediction(-1, 0.0, (), "")


class ModelFormat(NamedTuple):
    """The format in which a model's questions travel: its manifest, and the feature codec opened from its files."""

    manifest: Manifest
    codec: FeatureCodec


class EscalationSource(NamedTuple):
    """The sample behind a question that is about to be stored: its inference and its origin.

    `form`: the format of the model that made the features, where that is not the model that answers.
    """

    inference: Inference
    origin: SampleOrigin
    form: ModelFormat | None = None


class PendingVerdict(NamedTuple):
    """What is kept of an open question: what its verdict is bound to, and the sample it came from."""

    binding: VerdictBinding
    origin: SampleOrigin


class PendingVerdicts:
    """In-memory state of all open questions, by seq; used on the event loop only.

    At most `cache_bytes` of sealed frames are kept. `unsent`: questions whose newest ledger entry is not followed by
    bytes yet. Marks: database operations that are worth doing but not worth a commit of their own.
    """

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._cached = 0
        self._frames: OrderedDict[int, bytes] = OrderedDict()
        self._open: dict[int, PendingVerdict] = {}
        self._unsent: set[int] = set()
        self._marks: dict[int, DatabaseOperation] = {}

    def get(self, seq: int) -> PendingVerdict | None:
        """The pending verdict of a question; None if it is not open."""
        return self._open.get(seq)

    def find_by_subject(self, subject: bytes) -> list[int]:
        """Open questions about this data subject, named by its keyed hash."""
        return [seq for seq, pending in self._open.items() if pending.origin.subject == subject]

    def add(self, row: OutboxRow, origin: SampleOrigin) -> None:
        """A question is open from now on."""
        self._open[row.seq] = PendingVerdict(_binding_of_row(row), origin)

    def rebind(self, row: OutboxRow) -> None:
        """The question was sealed again: its verdict is bound to the new plaintext."""
        pending = self._open.get(row.seq)
        if pending is not None:
            self._open[row.seq] = pending._replace(binding=_binding_of_row(row))

    def end(self, seq: int) -> bool:
        """Forget everything of a question. True if the ledger has an entry of it whose bytes never left."""
        self._open.pop(seq, None)
        self._marks.pop(seq, None)
        self.drop_frame(seq)
        return self.discard_unsent(seq)

    # Sealed bytes

    def keep_frame(self, seq: int, frame: bytes) -> None:
        """Cache a sealed frame; the oldest leave the cache first, and the outbox has them all."""
        self.drop_frame(seq)
        self._frames[seq] = frame
        self._cached += len(frame)
        while self._cached > self._cache_bytes:
            self._cached -= len(self._frames.popitem(last=False)[1])

    def cached_frame(self, seq: int) -> bytes | None:
        """The cached frame of a question; None if it is not in the cache."""
        return self._frames.get(seq)

    def drop_frame(self, seq: int) -> None:
        """Remove a question's frame from the cache."""
        self._cached -= len(self._frames.pop(seq, b""))

    # Ledger entries without bytes

    @property
    def unsent(self) -> frozenset[int]:
        """All questions whose newest ledger entry has no bytes yet."""
        return frozenset(self._unsent)

    def is_unsent(self, seq: int) -> bool:
        """Whether the question's newest ledger entry has no bytes yet."""
        return seq in self._unsent

    def mark_unsent(self, seqs: Iterable[int]) -> None:
        """These questions have a ledger entry whose bytes have not left yet."""
        self._unsent.update(seqs)

    def discard_unsent(self, seq: int) -> bool:
        """The question's bytes left, or never will. False if no entry was waiting for them."""
        found = seq in self._unsent
        self._unsent.discard(seq)
        return found

    # Marks

    def keep_mark(self, seq: int, op: DatabaseOperation) -> None:
        """Keep an operation for the next commit; the newest of a question replaces its others."""
        self._marks[seq] = op

    def take_marks(self) -> tuple[DatabaseOperation, ...]:
        """All marks, which are removed here and go into the caller's commit."""
        marks = tuple(self._marks.values())
        self._marks.clear()
        return marks


class EscalationSealer:
    """Makes the outbox rows and sealed frames of questions; used on the event loop only.

    `max_age_s`: how long a stored question may be asked.
    """

    def __init__(
        self, envelopes: Envelopes, vault: PayloadVault, clock: HubClock, form: ModelFormat, *, max_age_s: float
    ) -> None:
        self._envelopes = envelopes
        self._vault = vault
        self._clock = clock
        self._tools = egress_plan.make_transform_tools(vault.derive_key(b"keyed hash"))
        self._form = form
        self._max_age_ms = int(max_age_s * 1000)

    def set_format(self, form: ModelFormat) -> None:
        """New questions name this model from now on; stored ones keep theirs."""
        self._form = form

    def prepare_row(self, store: Store, source: EscalationSource, epoch: int) -> tuple[OutboxRow, SealedQuestion]:
        """The outbox row of a new question, and its sealed frame.

        Raises LocalError if it is too big; TransformError or CodecError if its fields cannot be made what the policy
        says.
        """
        target = store.permit.targets[0]
        manifest = (source.form or self._form).manifest
        padded = self._encode_padded(store, source, target)
        created_ms = self._clock.hub_ms()
        sealed = self._envelopes.seal_question(epoch, store.seq, created_ms, target.name, padded)
        payload = self._vault.encrypt(epoch, store.seq, StoredPayload(padded, store.local, source.origin.trace))
        row = OutboxRow(
            seq=store.seq, epoch=epoch, id=store.id, state=OutboxState.SEALED, created_ms=created_ms,
            expires_ms=created_ms + self._max_age_ms, jitter=store.jitter, policy=store.permit.policy,
            model=manifest.model, data_class=store.data_class, hub=target.name, region=target.region,
            egress=store.permit.egress, fingerprint=sealed.fingerprint, digest=sealed.digest, key_id=sealed.key_id,
            size=len(sealed.frame), charge=store.charge_bytes, payload=payload, subject=source.origin.subject,
        )  # fmt: skip
        return row, sealed

    def _encode_padded(self, store: Store, source: EscalationSource, target: HubSite) -> bytes:
        egress, labels = store.permit.egress, store.labels
        manifest, features = source.form or self._form
        question = Escalation(
            id=store.id, model=manifest.ref, policy=store.permit.policy, region=target.region,
            fields=egress_plan.apply_egress_plan(egress, source.inference, features, self._tools),
            budget_s=store.budget_s, audit=store.audit, trace=source.origin.trace, rule=labels.rule,
            data_class=store.data_class, subject=source.origin.subject if labels.subject else b"",
            keep_days=labels.keep_days, layers=labels.layers,
        )  # fmt: skip
        fixed_bytes = max(manifest.fixed_bytes, labels.padded_bytes)
        return codec.pad_plaintext(codec.encode_wire_message(question), fixed_bytes if egress.fixed_size else 0)

    def reseal_row(self, row: OutboxRow, target: HubSite | None = None) -> tuple[OutboxRow, SealedQuestion] | None:
        """Seal a stored plaintext again, under the hub's current key and the current clock.

        Returns None if nothing would change. `target`: seal it for this hub instead, whose region the plaintext then
        names. Raises PayloadError if the stored payload does not decrypt, LocalError if the other region's name does
        not fit the fixed size.
        """
        hub = self._envelopes.keys_for_hub(target.name if target else row.hub)
        created_ms = self._clock.hub_ms()
        if hub is None or (hub.key_id == row.key_id and created_ms >= row.created_ms):
            return None
        kept = self._vault.decrypt(row.epoch, row.seq, row.payload)
        if target is not None:
            kept = replace(kept, padded=_set_region(kept.padded, target.region))
            payload = self._vault.encrypt(row.epoch, row.seq, kept)
            row = replace(row, hub=target.name, region=target.region, payload=payload)
        sealed = self._envelopes.seal_question(row.epoch, row.seq, created_ms, row.hub, kept.padded)
        names = {"fingerprint": sealed.fingerprint, "digest": sealed.digest, "key_id": sealed.key_id}
        return replace(row, **names, size=len(sealed.frame)), sealed

    def restore_row(self, row: OutboxRow) -> tuple[StoredQuestion, SampleOrigin]:
        """A stored row as the core takes it up at start, and what is known of its sample."""
        local, trace = _UNKNOWN, ""
        with suppress(PayloadError):  # its own key was replaced: the sealed bytes are still good, the rest is gone
            kept = self._vault.decrypt(row.epoch, row.seq, row.payload)
            local, trace = kept.local, kept.trace
        moment = self._clock.to_core_time
        taken = StoredQuestion(
            seq=row.seq, id=row.id, state=row.state, local=local, answered=row.answered, policy=row.policy,
            data_class=row.data_class, egress=row.egress, target=HubSite(row.hub, row.region), digest=row.digest,
            size=row.charge, expires=moment(row.expires_ms),
            not_before=moment(row.not_before_ms) if row.not_before_ms else 0.0,
            attempts=row.attempts, jitter=row.jitter,
        )  # fmt: skip
        return taken, SampleOrigin(trace, subject=row.subject)


def _binding_of_row(row: OutboxRow) -> VerdictBinding:
    return VerdictBinding(row.fingerprint, row.model, row.policy)


def _set_region(padded: bytes, region: str) -> bytes:
    """The same question for another region, in the same padded size."""
    question = codec.decode_escalation(codec.unpad_plaintext(padded))
    return codec.pad_plaintext(codec.encode_wire_message(replace(question, region=region)), len(padded))


def blank_sample(manifest: Manifest) -> npt.NDArray[Any]:
    """A sample that the model accepts: every value at the low end of its range."""
    spec = manifest.input
    return np.full(spec.shape, spec.low, NUMPY_DTYPES[spec.dtype])
