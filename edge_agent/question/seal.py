"""What leaves the device is transformed, padded, sealed and signed here; what hubs send is verified and opened here.

`EscalationSealer` builds a question, `Envelopes` is the only place of the agent that uses its signing key and its HPKE
key (RFC 9180), `InboundVerifier` takes messages of hubs, `PendingVerdicts` is what this process keeps of an open
question beside the core's own state, until its outcome. Not pure.

Rule: exactly the planned fields come out, each in its specification's type, shape and range; else nothing does. They
are sealed once; a retry sends the same bytes, from the cache or the outbox.
Rule: what is not signed by a hub that enrolment pinned, not addressed to this device, not for its epoch, or bound to
another question is a `RemoteError`; nothing of it is used. First the signature, then the binding to the very question;
only then does the clock or the core see it.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from msgspec.structs import replace

from edge_agent.identity.identity import HubKeys, Identity
from edge_agent.question.commands import OutboxState, Store, StoredQuestion
from edge_agent.question.records import SampleOrigin
from edge_agent.storage.database import DatabaseOperation
from edge_agent.storage.outbox import OutboxRow, PayloadError, PayloadVault, StoredPayload
from edge_agent.system.clock import HubClock
from edge_agent.system.noise import draw_noise
from models.bundle.manifest import Manifest
from models.runtime.feature_codec import NUMPY_DTYPES, FeatureCodec
from models.runtime.runner import Inference
from models.runtime.transforms import TransformStepError, TransformTools, apply_transforms
from policies.decisions.egress import (
    CONFIDENCE_FIELD,
    LOCAL_ANSWER_FIELD,
    LOCAL_VALUE_FIELD,
    EgressPlan,
    FieldPlan,
    redact_text,
)
from policies.decisions.routing import HubSite
from policies.model.policy import TransformKind, TransformSpec
from wire.errors import Fault, LocalError, RemoteError
from wire.ledger.chain import LedgerHead, encode_head_text
from wire.protocol import codec, sealing
from wire.protocol.codec import Frame
from wire.protocol.messages import (
    CipherSuite,
    DenyAllNotice,
    DownNote,
    Escalation,
    FrameHeader,
    LedgerHeadReport,
    Prediction,
    Tensor,
    UpNote,
    Verdict,
    WelcomeNote,
)
from wire.protocol.rollout import Assignment, InstallReport
from wire.protocol.topics import TopicChannel, compute_shard

_SEAL_OVERHEAD_BYTES = 48
_UNKNOWN = Prediction(-1, 0.0, (), "")
TEXT = "text"  # the category of a field that holds text: UTF-8 bytes, zeros after its end
FieldValues = npt.NDArray[Any]
_REDACT = TransformSpec(TransformKind.REDACT)


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


class SealedQuestion(NamedTuple):
    """A sealed question, ready to be sent. `digest`: SHA-256 of the frame, its name in the ledger and in refusals.

    `padded`: the plaintext; `fingerprint`: its hash, which the verdict is bound to; `key_id`: of the hub's HPKE key.
    """

    frame: bytes
    padded: bytes
    fingerprint: bytes
    digest: bytes
    key_id: bytes


class VerdictBinding(NamedTuple):
    """What a verdict is cryptographically bound to: the question's fingerprint, the model and the policy."""

    fingerprint: bytes
    model: str  # name@version
    policy: str


def channel_for_note(note: UpNote) -> TopicChannel:
    """The topic channel on which a note is published: `up/report` for sums and heads, `up/ask` for the rest."""
    return TopicChannel.REPORT if isinstance(note, LedgerHeadReport | InstallReport) else TopicChannel.ASK


class Envelopes:
    """One device's keys in use, on its home line.

    `others`: its identities on further lines, by the name of the line.
    """

    def __init__(self, identity: Identity, others: Mapping[str, Identity] | None = None) -> None:
        self._id = identity
        self._further = {line: Envelopes(each) for line, each in (others or {}).items()}
        self._signing_id = identity.signing_id
        self._hpke_id = identity.hpke_id
        self._order_binding = sealing.compute_order_binding(identity.signing.public_key().public_bytes_raw())
        self._shard = compute_shard(identity.device)
        self.hubs: dict[str, HubKeys] = {}
        self._seals: dict[str, tuple[X25519PublicKey, bytes]] = {}  # by hub: the key to seal to, and its id
        self._voices: tuple[tuple[bytes, Ed25519PublicKey], ...] = ()
        self._turn = 0
        self.set_hubs(identity.hubs)

    @property
    def device(self) -> str:
        """The device's name on this line."""
        return self._id.device

    def for_line(self, line: str) -> "Envelopes":
        """The envelopes of one line; "" is the home line. KeyError if there is no such line."""
        return self._further[line] if line else self

    def keys_for_hub(self, hub: str) -> HubKeys | None:
        """Public keys of a hub on any line; None if no hub has that name."""
        return self._envelopes_for(hub).hubs.get(hub)

    def all_hubs(self) -> tuple[HubKeys, ...]:
        """The hubs of all lines, those of the home line first."""
        return tuple(hub for each in (self, *self._further.values()) for hub in each.hubs.values())

    @property
    def lines(self) -> dict[str, str]:
        """Hub name to line name, of hubs that are not on the home line."""
        return {hub: line for line, each in self._further.items() for hub in each.hubs}

    def _envelopes_for(self, hub: str) -> "Envelopes":
        return next((each for each in self._further.values() if hub in each.hubs), self)

    def set_hubs(self, hubs: tuple[HubKeys, ...]) -> None:
        """Replace the pinned hub keys; allowed at any time."""
        self.hubs = {hub.name: hub for hub in hubs}
        self._seals = {hub.name: (hub.seal_to, hub.key_id) for hub in hubs}
        self._voices = tuple((sealing.compute_key_id(hub.signing_key), hub.signed_by) for hub in hubs)

    def frame_bytes(self, padded_bytes: int) -> int:
        """Size in bytes of a sealed frame for a question of this padded size: an upper bound over all lines."""
        longest = max((each.device for each in (self, *self._further.values())), key=len)
        header = FrameHeader(
            shard=255,
            device=longest,
            epoch=2**63 - 1,
            seq=2**40,
            created_ms=2**42,
            key_id=bytes(sealing.KEY_ID_BYTES),
        )
        clear = len(codec.encode_clear_part(CipherSuite.SEALED, header))
        return clear + padded_bytes + _SEAL_OVERHEAD_BYTES + codec.SIGNATURE_BYTES

    def seal_question(self, epoch: int, seq: int, created_ms: int, hub: str, padded: bytes) -> SealedQuestion:
        """Seal a padded question to `hub` with HPKE, and sign it.

        `created_ms`: hub time in milliseconds. Raises LocalError if the frame would be too big, KeyError for an unknown
        hub.
        """
        at = self._envelopes_for(hub)
        if at is not self:
            return at.seal_question(epoch, seq, created_ms, hub, padded)
        key, key_id = self._seals[hub]
        header = FrameHeader(
            shard=self._shard, device=self._id.device, epoch=epoch, seq=seq, created_ms=created_ms, key_id=key_id
        )
        frame = sealing.seal_frame(header, padded, to=key, by=self._id.signing, channel=TopicChannel.QUESTION)
        return SealedQuestion(frame, padded, codec.hash_plaintext(padded), sealing.hash_frame(frame), key_id)

    def sign_note(self, note: UpNote, created_ms: int) -> bytes:
        """The signed frame of a note. An install report is sealed as well: it holds sums over samples."""
        if isinstance(note, InstallReport):
            return self._seal_report(note, created_ms)
        header = FrameHeader(
            shard=self._shard, device=self._id.device, epoch=note.epoch, seq=0, created_ms=created_ms,
            key_id=self._signing_id,
        )  # fmt: skip
        return sealing.sign_frame(
            header, codec.encode_wire_message(note), by=self._id.signing, channel=channel_for_note(note)
        )

    def _seal_report(self, report: InstallReport, created_ms: int) -> bytes:
        """Seal to the home line's hubs in turn: the device does not know which of them serves it."""
        if not self.hubs:
            raise LocalError("no hub to seal to")
        hub = tuple(self.hubs.values())[self._turn % len(self.hubs)]
        self._turn += 1
        header = FrameHeader(
            shard=self._shard, device=self._id.device, epoch=report.epoch, seq=0, created_ms=created_ms,
            key_id=hub.key_id,
        )  # fmt: skip
        padded = codec.pad_plaintext(codec.encode_wire_message(report))
        return sealing.seal_frame(header, padded, to=hub.seal_to, by=self._id.signing, channel=TopicChannel.REPORT)

    def sign_head(self, epoch: int, entries: int, at_ms: int, hash: bytes) -> bytes:  # noqa: A002 - the chain's word
        """Our signature on a head of the egress ledger: its epoch, number of entries, time and hash."""
        return self._id.signing.sign(encode_head_text(LedgerHead(self._id.device, epoch, entries, at_ms, hash)))

    def verify_frame(self, payload: bytes, channel: TopicChannel = TopicChannel.REPLY) -> Frame:
        """Decode a frame and check that one of our hubs signed it, for this device and this channel.

        An order must be signed for our present signing key too. RemoteError otherwise.
        """
        frame = codec.split_frame(payload)
        if frame.header.device != self._id.device or frame.header.shard != self._shard:
            raise RemoteError(Fault.TOPIC, "addressed to another device")
        self._verify_signature(frame, channel)
        return frame

    def open_note(self, frame: Frame) -> DownNote:
        """Decode the note in a verified frame.

        RemoteError if it is not a signed note, or names another epoch than its header.
        """
        if frame.suite is not CipherSuite.SIGNED:
            raise RemoteError(Fault.SUITE, "a signed note was expected")
        note = codec.decode_down_note(frame.body)
        if note.epoch != frame.header.epoch:
            raise RemoteError(Fault.MALFORMED, "note and header name two epochs")
        return note

    def open_verdict(self, frame: Frame, binding: VerdictBinding) -> Verdict:
        """Decrypt the verdict in a verified frame.

        RemoteError unless it was made for exactly the question of `binding`.
        """
        bound = sealing.compute_verdict_binding(*binding)
        padded = sealing.open_sealed_frame(frame, key=self._id.hpke, channel=TopicChannel.REPLY, binding=bound)
        return codec.decode_verdict(codec.unpad_plaintext(padded))

    def _verify_signature(self, frame: Frame, channel: TopicChannel) -> None:
        # A signed note names its signer; a sealed verdict names our own key, so every pinned hub key is tried.
        named = [key for name, key in self._voices if frame.suite is CipherSuite.SEALED or name == frame.header.key_id]
        if frame.suite is CipherSuite.SEALED and frame.header.key_id != self._hpke_id:
            raise RemoteError(Fault.SEAL, "sealed to another key")
        binding = self._order_binding if channel is TopicChannel.DESIRED else b""
        for key in named:
            try:
                sealing.verify_frame(frame, by=key, channel=channel, binding=binding)
            except RemoteError:
                continue
            return
        raise RemoteError(Fault.SIGNATURE, "not signed by a hub of ours")


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


class TransformError(ValueError):
    """A field cannot be made what the policy says it must be: nothing leaves."""


def make_transform_tools(key: bytes) -> TransformTools:
    """The transform tools of a device: noise from the secure source, and its own `key` for keyed hashes."""
    return TransformTools(draw_noise, key, redact_text)


def apply_egress_plan(
    egress: EgressPlan, inference: Inference, codec: FeatureCodec, tools: TransformTools
) -> dict[str, Tensor]:
    """The tensors that leave, by field name. The model's features pass through its codec; all else travels plain.

    Raises TransformError if a field is missing, has another type, shape or range, or a transform fails.
    """
    tensors: dict[str, Tensor] = {}
    derived = _derive_fields(inference)
    for plan in egress.fields:
        name = plan.spec.name
        source = inference.features if name in inference.features else derived
        values = _transform_field(plan, source, tools)
        tensors[name] = codec.encode(name, values) if source is inference.features else _plain_tensor(plan, values)
    return tensors


def _derive_fields(inference: Inference) -> dict[str, FieldValues]:
    prediction = inference.prediction
    confidence = {CONFIDENCE_FIELD: np.array([prediction.confidence], np.float32)}
    if prediction.label < 0:  # a regressor's
        return confidence | {LOCAL_VALUE_FIELD: np.array(prediction.scores[:1], np.float32)}
    return confidence | {LOCAL_ANSWER_FIELD: np.array([prediction.label], np.int32)}


def _transform_field(plan: FieldPlan, source: Mapping[str, FieldValues], tools: TransformTools) -> FieldValues:
    spec = plan.spec
    values = source.get(spec.name)
    if values is None:
        raise TransformError(f"the model gave no field {spec.name!r}")
    dtype = NUMPY_DTYPES[spec.dtype]
    if values.shape != spec.shape or values.dtype != dtype:
        raise TransformError(f"field {spec.name!r} is {values.dtype} {list(values.shape)}, not as the schema says")
    steps = (*plan.transforms, _REDACT) if spec.category == TEXT else plan.transforms
    try:
        values = apply_transforms(values[None], steps, spec, tools)[0] if steps else values
    except (TransformStepError, KeyError) as error:
        raise TransformError(f"field {spec.name!r}: {error}") from None
    if values.size and not (spec.low <= values.min() and values.max() <= spec.high):  # false for NaN too
        raise TransformError(f"field {spec.name!r} is outside {spec.low:g}..{spec.high:g}")
    return values


def _plain_tensor(plan: FieldPlan, values: FieldValues) -> Tensor:
    return Tensor(plan.spec.dtype, plan.spec.shape, np.ascontiguousarray(values).tobytes())


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
        self._tools = make_transform_tools(vault.derive_key(b"keyed hash"))
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
            fields=apply_egress_plan(egress, source.inference, features, self._tools),
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


class VerifiedVerdict(NamedTuple):
    """A verified verdict, which decrypts for the open question `seq` and for no other."""

    seq: int
    verdict: Verdict


class InboundVerifier:
    """Verifies and opens messages of all lines; used on the event loop only.

    Refusals are counted as `refused_<fault>`.
    """

    def __init__(self, envelopes: Envelopes, pending: PendingVerdicts, clock: HubClock, counts: Counter[str]) -> None:
        self._envelopes = envelopes
        self._pending = pending
        self._clock = clock
        self._counts = counts

    def open_reply(self, payload: bytes, epoch: int, line: str = "") -> DownNote | VerifiedVerdict | None:
        """Verify a message of the reply topic. Only the hubs of this line are accepted on it.

        Returns None if it is refused, or concerns no question that is open.
        """
        try:
            return self._open_reply(payload, epoch, self._envelopes.for_line(line))
        except RemoteError as error:
            self._counts[f"refused_{error.fault}"] += 1
            return None

    def open_order(self, payload: bytes, line: str = "") -> DenyAllNotice | Assignment | None:
        """Verify a message of the topic `down/desired`: a deny-all order or an assignment. None if it is refused."""
        try:
            envelopes = self._envelopes.for_line(line)
            frame = envelopes.verify_frame(payload, TopicChannel.DESIRED)
            note = require_order(envelopes.open_note(frame))
        except RemoteError as error:
            self._counts[f"refused_{error.fault}"] += 1
            return None
        self._clock.on_signed_time(frame.header.created_ms)
        return note

    def _open_reply(self, payload: bytes, epoch: int, envelopes: Envelopes) -> DownNote | VerifiedVerdict | None:
        frame = envelopes.verify_frame(payload)
        header = frame.header
        if frame.suite is CipherSuite.SIGNED:
            note = envelopes.open_note(frame)
            self._clock.on_signed_time(header.created_ms, welcome=isinstance(note, WelcomeNote))
            self._counts["notes"] += 1
            return note
        pending = self._pending.get(header.seq) if header.epoch == epoch else None
        if pending is None:
            self._counts["verdicts_repeated"] += 1  # ended before, or of an earlier database
            return None
        verdict = envelopes.open_verdict(frame, pending.binding)
        self._clock.on_signed_time(header.created_ms)
        self._counts["verdicts"] += 1
        return VerifiedVerdict(header.seq, verdict)


def require_order(note: DownNote) -> DenyAllNotice | Assignment:
    if not isinstance(note, DenyAllNotice | Assignment):
        raise RemoteError(Fault.MALFORMED, "neither a deny-all order nor an assignment")
    return note
