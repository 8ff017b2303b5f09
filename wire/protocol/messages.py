"""Every message between device and hub, as frozen typed structs without behaviour. Pure.

Positional msgpack (``array_like``): a field is only ever added at the end, and an unknown one is refused.
Times are hub time in whole milliseconds since 1970 (`created_ms`) or durations in seconds (`budget_s`).
`epoch` counts the databases of a device: a device with a new, empty database starts a new epoch.
`seq` numbers the questions of one epoch.
"""

from enum import IntEnum, StrEnum

import msgspec

from wire.protocol.rollout import Assignment, InstallReport, ReportReceipt

Seqs = tuple[int, ...]


class SensitivityLevel(IntEnum):
    """Sensitivity label of a field, from public to raw. An unlabelled field counts as P4."""

    P0 = 0  # public
    P1 = 1  # operational
    P2 = 2  # derived from a person or a scene
    P3 = 3  # personal
    P4 = 4  # raw or special category


class TensorDType(StrEnum):
    """Element types a tensor may have on the link, by their Open Inference Protocol names."""

    FP32 = "FP32"
    FP16 = "FP16"
    INT64 = "INT64"
    INT32 = "INT32"
    INT8 = "INT8"
    UINT8 = "UINT8"
    BOOL = "BOOL"


class CipherSuite(IntEnum):
    """Algorithms that protect a frame. The numbers in between are reserved for a post-quantum hybrid.

    0x21 and 0x22 stay free: release 0.2 used them, with version 2.
    """

    SIGNED = 0x01  # Ed25519 over header and body; the body is readable
    SEALED = 0x11  # HPKE base mode X25519 / HKDF-SHA256 / ChaCha20-Poly1305, then Ed25519


class RefusalReason(StrEnum):
    """Why the hub refuses a question."""

    BUSY = "busy"
    RATE = "rate"
    DRAINING = "draining"
    TOO_BIG = "too_big"
    EXPIRED = "expired"
    CREATED_AHEAD = "created_ahead"
    KEY_EXPIRED = "key_expired"
    DEVICE_UNKNOWN = "device_unknown"
    POLICY = "policy"
    MODEL_GONE = "model_gone"
    SCHEMA = "schema"
    CONFLICT = "conflict"
    ENGINE = "engine"
    POLICY_OLD = "policy_old"  # below the hub's floor, or not cleared of a deny-all notice: fetch the newer policy


class FrameHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Frame header, sent in the clear and signed.

    `shard`: first byte of SHA-256(device). `key_id`: the receiver's key (sealed) or the signer's (signed).
    """

    shard: int
    device: str
    epoch: int
    seq: int
    created_ms: int
    key_id: bytes


class Tensor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A tensor on the link; `data` holds its elements in C order, little-endian."""

    dtype: TensorDType
    shape: tuple[int, ...]
    data: bytes


class ModelRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Reference to the model half ("head") that produced the features, so that the hub picks the matching tail.

    `cut`: where the model was split. `codec`: how the features are encoded.
    """

    name: str
    version: int
    cut: str
    codec: str


class FieldSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Schema of one value of a bundle that could leave the device.

    `shape` has no batch axis; `low` and `high` are the range of the values.
    """

    name: str
    dtype: TensorDType
    shape: tuple[int, ...]
    low: float
    high: float
    level: SensitivityLevel
    # what kind of thing it is, for people and for the ledger: "features", "answer", "confidence", or a name of the
    # sample itself (`WHOLE_SAMPLE_CATEGORIES`)
    category: str


RAW_SAMPLE_FIELD = "raw_sample"  # name and category of the field in which a model's sample itself travels, coded
WHOLE_SAMPLE_CATEGORIES = frozenset({RAW_SAMPLE_FIELD, "text"})  # of fields that are the sample, not features of it


class TextUsage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What a text cost: the language model that wrote it, and the tokens of prompt and answer that it counted.

    `cached_tokens`: of the prompt, out of the prefix cache. `cut`: the text is not complete, because the model's limit
    of tokens or the bundle's limit of bytes ended it. `estimated`: the hub counted, for the engine told no usage.
    """

    model: str
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int = 0
    cut: bool = False
    estimated: bool = False


class Prediction(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """An answer of a model.

    `scores`: class probabilities after temperature scaling, or the regressed values; `label`: argmax, -1 if regressed.
    `in_domain`: whether the sample belongs to what the model knows, whichever half answered; None if it cannot tell.
    `text`: what a language model wrote, and `usage` what that cost; then there are no scores, and `label` is the one
    that the text begins with, -1 if it begins with none. On the link both are sent only if there is a text.
    """

    label: int
    confidence: float
    scores: tuple[float, ...]
    model: str  # "digits@7"
    in_domain: bool | None = None
    text: str | None = None
    usage: TextUsage | None = None


class Escalation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="q"):
    """A question for the hub, complete in one message: the hub never asks anything back."""

    id: str  # answer id on the device
    model: ModelRef
    policy: str  # hash of the policy that let it leave
    region: str  # where it may be served
    fields: dict[str, Tensor]
    budget_s: float  # time left when it was sealed, not a wall-clock deadline: the two clocks differ
    audit: bool  # asked at random, not because the device was unsure
    trace: str  # W3C traceparent, or ""
    rule: str = ""  # the rules of the policy that applied, joined by "+"
    data_class: str = ""
    subject: bytes = b""  # keyed hash of whom it is about, or nothing; only the device can make it again
    keep_days: int = 7  # how long the hub may keep anything of it; it never keeps more than it does by itself
    priority: int = 0
    layers: tuple[str, ...] = ()  # hashes of the policy's layers, platform first, where there is more than one


class Verdict(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="v"):
    """The hub's answer to an escalation; times in seconds spent in its queue and in computation."""

    prediction: Prediction
    hub: str
    region: str
    queue_s: float
    compute_s: float


class Receipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="r"):
    """Acknowledgement that questions are stored durably.

    The hub now owes each of these (at most 64) a verdict or a final refusal.
    """

    epoch: int
    seqs: Seqs


class Refusal(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="x"):
    """The hub refuses a question; the device may try again after `retry_after_s` unless `final`.

    `digest` is the SHA-256 of the whole refused frame, so that a refusal cannot be moved to another message.
    """

    epoch: int
    seq: int
    digest: bytes
    reason: RefusalReason
    retry_after_s: float
    final: bool


class StatusReply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="s"):
    """Reply to `StatusRequest`: which questions are being worked on, and which the hub has never stored.

    An `unknown` question is sent again, the same bytes.
    """

    epoch: int
    pending: Seqs
    unknown: Seqs


class StatusRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="a"):
    """Request for the status of open questions.

    Sent on every connect and at most once a minute while questions are open.
    """

    epoch: int
    seqs: Seqs


class HelloNote(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="h"):
    """First message on each connection: announces the epoch and the models of the device."""

    epoch: int
    boot: str
    agent: str
    models: tuple[ModelRef, ...]


class WelcomeNote(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="w"):
    """Answer to a `HelloNote`; its header carries hub time.

    `spread_s`: over how many seconds the fleet's devices shall spread their next connect, so that a broker that comes
    back is not met by all of them at once. It grows with the fleet.
    """

    epoch: int
    hub: str
    region: str
    spread_s: float = 0.0


class DenyAllNotice(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="n"):
    """Order on `down/desired` to stop all egress, until a policy whose `clears_notice` is at least `counter`.

    A counter only ever grows: hub time in seconds, or one more than the last. `epoch` is 0: it holds for any.
    """

    epoch: int
    counter: int
    why: str


SpendTotals = tuple[tuple[str, int, int], ...]  # (account, its period, spent in it): running totals, never going back


class LedgerHeadReport(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="l"):
    """Signed head of the device's egress ledger and its running totals, on `up/report`.

    `signature`: the device's over `wire.ledger.chain.encode_head_text`. `known`: size of the hub's log at its last
    `CheckpointNote`, in leaves.
    """

    epoch: int
    entries: int
    at_ms: int
    head: bytes
    signature: bytes
    known: int = 0
    spend: SpendTotals = ()


class CheckpointNote(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="c"):
    """Answer to `LedgerHeadReport`: the head is leaf `index` of the hub's log, whose signed checkpoint is `text`.

    `inclusion` proves that, `consistency` that the log has only grown since the size the device knew (RFC 9162).
    `received_ms` and `epochs` (of this device, in the whole log) are part of the leaf.
    """

    epoch: int
    entries: int
    text: str
    index: int
    received_ms: int
    epochs: int
    inclusion: tuple[bytes, ...]
    consistency: tuple[bytes, ...]


class SpendMirror(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="m"):
    """Answer to `LedgerHeadReport`: the highest totals this device ever reported.

    They are of any epoch, as far as they are kept. A device that lost its database resumes its budgets from them.
    """

    epoch: int
    spend: SpendTotals
    complete: bool = True


UpNote = StatusRequest | HelloNote | LedgerHeadReport | InstallReport
DownNote = (
    Receipt
    | Refusal
    | StatusReply
    | WelcomeNote
    | DenyAllNotice
    | CheckpointNote
    | SpendMirror
    | Assignment
    | ReportReceipt
)
