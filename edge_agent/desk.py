"""Makes sealed rows out of questions and keeps what is needed to open their verdicts.

Law: what leaves is transformed, padded and sealed here, once; a retry takes the same bytes, from cache or outbox.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edge_agent import transforms
from edge_agent.clock import HubClock
from edge_agent.commands import Row, State, Store
from edge_agent.envelope import Binding, Envelopes, Sealed
from edge_agent.outbox import OutboxRow
from edge_agent.vault import Kept, Vault, VaultError
from models.codec import NUMPY_DTYPES, FeatureCodec
from models.manifest import Manifest
from models.runner import Inference
from policies.locality import HubSite
from wire import codec
from wire.messages import Escalation, Prediction

_UNKNOWN = Prediction(-1, 0.0, (), "")


class Form(NamedTuple):
    """In what form a model's questions travel: its manifest, and the codec opened from its files."""

    manifest: Manifest
    codec: FeatureCodec


class Asked(NamedTuple):
    """What the loop knows of a sample beside the core's word: times in seconds on the core's clock.

    `form`: of the model whose features these are, where that is not the one that answers.
    """

    inference: Inference
    trace: str
    started: float
    infer_s: float
    subject: bytes = b""
    form: Form | None = None


class Memo(NamedTuple):
    """Of an open question. `started`: when the sample came; a row taken up after a restart has none (0)."""

    binding: Binding
    trace: str
    started: float
    infer_s: float
    subject: bytes = b""


class Desk:
    """Owned by the event loop; holds at most `cache_bytes` of sealed questions."""

    def __init__(self, envelopes: Envelopes, vault: Vault, clock: HubClock, form: Form, cache_bytes: int) -> None:
        self._envelopes = envelopes
        self._vault = vault
        self._clock = clock
        self._tools = transforms.tools_of(vault.derived(b"keyed hash"))
        self._manifest, self._codec = form
        self._cache_bytes = cache_bytes
        self._cached = 0
        self._frames: OrderedDict[int, bytes] = OrderedDict()
        self._memos: dict[int, Memo] = {}

    def use(self, form: Form) -> None:
        """Questions name this model from now on; stored ones keep theirs."""
        self._manifest, self._codec = form

    def prepare(self, store: Store, asked: Asked, epoch: int, max_age_s: float) -> tuple[OutboxRow, Sealed]:
        """The row and its sealed bytes. LocalError if too big; TransformError or CodecError if it may not leave so."""
        target = store.permit.targets[0]
        manifest = asked.form.manifest if asked.form else self._manifest
        padded = self._padded(store, asked, target)
        created_ms = self._clock.ms()
        sealed = self._envelopes.sealed(epoch, store.seq, created_ms, target.name, padded)
        payload = self._vault.close(epoch, store.seq, Kept(padded, store.local, asked.trace))
        row = OutboxRow(
            seq=store.seq, epoch=epoch, id=store.id, state=State.SEALED, created_ms=created_ms,
            expires_ms=created_ms + int(max_age_s * 1000), jitter=store.jitter, policy=store.permit.policy,
            model=manifest.model, data_class=store.data_class, hub=target.name, region=target.region,
            egress=store.permit.egress, fingerprint=sealed.fingerprint, digest=sealed.digest, key_id=sealed.key_id,
            size=len(sealed.frame), charge=store.charge_bytes, payload=payload, subject=asked.subject,
        )  # fmt: skip
        return row, sealed

    def _padded(self, store: Store, asked: Asked, target: HubSite) -> bytes:
        egress, labels = store.permit.egress, store.labels
        manifest, features = asked.form or (self._manifest, self._codec)
        question = Escalation(
            store.id,
            manifest.ref,
            store.permit.policy,
            target.region,
            transforms.apply(egress, asked.inference, features, self._tools),
            store.budget_s,
            store.audit,
            asked.trace,
            labels.rule,
            store.data_class,
            asked.subject if labels.subject else b"",
            keep_days=labels.keep_days,
            layers=labels.layers,
        )
        fixed_bytes = max(manifest.fixed_bytes, labels.padded_bytes)
        return codec.pad(codec.encode(question), fixed_bytes if egress.fixed_size else 0)

    def reseal(self, row: OutboxRow, target: HubSite | None = None) -> tuple[OutboxRow, Sealed] | None:
        """The stored plaintext under the hub's current key and our current clock; None if nothing would change.

        `target`: for this hub instead, whose region its plaintext then names. VaultError if the payload does not open,
        LocalError if the other region's name does not fit the size that every sample has.
        """
        hub = self._envelopes.keys_of(target.name if target else row.hub)
        created_ms = self._clock.ms()
        if hub is None or (hub.key_id == row.key_id and created_ms >= row.created_ms):
            return None
        kept = self._vault.open(row.epoch, row.seq, row.payload)
        if target is not None:
            kept = replace(kept, padded=_moved(kept.padded, target.region))
            payload = self._vault.close(row.epoch, row.seq, kept)
            row = replace(row, hub=target.name, region=target.region, payload=payload)
        sealed = self._envelopes.sealed(row.epoch, row.seq, created_ms, row.hub, kept.padded)
        names = {"fingerprint": sealed.fingerprint, "digest": sealed.digest, "key_id": sealed.key_id}
        return replace(row, **names, size=len(sealed.frame)), sealed

    def reopen(self, row: OutboxRow) -> Row:
        """A stored row as the core takes it up."""
        local, trace = _UNKNOWN, ""
        if not row.answered:
            try:
                kept = self._vault.open(row.epoch, row.seq, row.payload)
                local, trace = kept.local, kept.trace
            except VaultError:  # its own key was replaced: the sealed bytes are still good, the local answer is gone
                pass
        self.remember(row, Asked(Inference(local, {}), trace, 0.0, 0.0, row.subject))
        moment = self._clock.moment
        return Row(
            row.seq, row.id, row.state, local, row.answered, row.policy, row.data_class, row.egress,
            HubSite(row.hub, row.region), row.digest, row.charge, moment(row.expires_ms),
            moment(row.not_before_ms) if row.not_before_ms else 0.0, row.attempts, row.jitter,
        )  # fmt: skip

    # What is open

    def remember(self, row: OutboxRow, asked: Asked) -> None:
        binding = Binding(row.fingerprint, row.model, row.policy)
        self._memos[row.seq] = Memo(binding, asked.trace, asked.started, asked.infer_s, asked.subject)

    def rebind(self, row: OutboxRow) -> None:
        """It was sealed anew: its verdict is bound to what is in it now."""
        memo = self._memos.get(row.seq)
        if memo is not None:
            self._memos[row.seq] = memo._replace(binding=Binding(row.fingerprint, row.model, row.policy))

    def about(self, subject: bytes) -> list[int]:
        """Open questions about this subject."""
        return [seq for seq, memo in self._memos.items() if memo.subject == subject]

    def memo(self, seq: int) -> Memo | None:
        return self._memos.get(seq)

    def keep_frame(self, seq: int, frame: bytes) -> None:
        """The newest stay in memory; the outbox has them all."""
        self.drop_frame(seq)
        self._frames[seq] = frame
        self._cached += len(frame)
        while self._cached > self._cache_bytes:
            self._cached -= len(self._frames.popitem(last=False)[1])

    def frame(self, seq: int) -> bytes | None:
        return self._frames.get(seq)

    def drop_frame(self, seq: int) -> None:
        self._cached -= len(self._frames.pop(seq, b""))

    def forget(self, seq: int) -> None:
        self._memos.pop(seq, None)
        self.drop_frame(seq)


def _moved(padded: bytes, region: str) -> bytes:
    """The same question for another region, in the same size."""
    question = codec.decode_escalation(codec.unpad(padded))
    return codec.pad(codec.encode(replace(question, region=region)), len(padded))


def blank(manifest: Manifest) -> npt.NDArray[Any]:
    """A sample that the model takes: every value at the low end of its range."""
    spec = manifest.input
    return np.full(spec.shape, spec.low, NUMPY_DTYPES[spec.dtype])
