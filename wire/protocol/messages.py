"""Every value that crosses the link: frozen, typed, no behaviour.

Positional msgpack (``array_like``): a field is only ever added at the end, and an unknown one is refused.
Times are hub time in whole milliseconds since 1970 (`created_ms`) or durations in seconds (`budget_s`).
"""

from enum import IntEnum, StrEnum

import msgspec

from wire.protocol.rollout import Assignment, InstallReport, ReportSeen

Seqs = tuple[int, ...]


class Level(IntEnum):
    """How sensitive a field is. An unlabelled field counts as P4."""

    P0 = 0  # public
    P1 = 1  # operational
    P2 = 2  # derived from a person or a scene
    P3 = 3  # personal
    P4 = 4  # raw or special category


class DType(StrEnum):
    """Element types a tensor may have on the link, by their Open Inference Protocol names."""

    FP32 = "FP32"
    FP16 = "FP16"
    INT64 = "INT64"
    INT32 = "INT32"
    INT8 = "INT8"
    UINT8 = "UINT8"
    BOOL = "BOOL"


class Suite(IntEnum):
    """Which algorithms protect a message. Numbers between are room for the post-quantum hybrid."""

    SIGNED = 0x01  # Ed25519 over header and body; the body is readable
    SEALED = 0x11  # HPKE base mode X25519 / HKDF-SHA256 / ChaCha20-Poly1305, then Ed25519


class Reason(StrEnum):
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


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The clear part: `shard` = first byte of SHA-256(device); `key_id` the receiver's (sealed) or signer's key."""

    shard: int
    device: str
    epoch: int
    seq: int
    created_ms: int
    key_id: bytes


class Tensor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """`data` holds the elements in C order, little-endian."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes


class ModelRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Which head produced the features, so that the hub picks the tail that fits."""

    name: str
    version: int
    cut: str
    codec: str


class FieldSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One value of a bundle that could leave: shape (without the batch axis), range of values, label and category."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    low: float
    high: float
    level: Level
    category: str  # what kind of thing it is, for people and for the ledger: "features", "answer", "confidence"


class Prediction(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """`scores`: class probabilities after temperature, or the regressed values; `label`: argmax, -1 if regressed."""

    label: int
    confidence: float
    scores: tuple[float, ...]
    model: str  # "digits@7"


class Escalation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="q"):
    """One whole question: the hub never has to ask anything back."""

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
    prediction: Prediction
    hub: str
    region: str
    queue_s: float
    compute_s: float


class Receipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="r"):
    """Stored durably: the hub now owes each of these (at most 64) a verdict or a final refusal."""

    epoch: int
    seqs: Seqs


class Refusal(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="x"):
    """`digest` is the SHA-256 of the refused ciphertext, so that a refusal cannot be moved to another message."""

    epoch: int
    seq: int
    digest: bytes
    reason: Reason
    retry_after_s: float
    final: bool


class Statuses(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="s"):
    """Answer to an `Ask`: which are being worked on, and which the hub has never stored (send the same bytes again)."""

    epoch: int
    pending: Seqs
    unknown: Seqs


class Ask(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="a"):
    """Which of these do you owe me? Sent on every connect and at most once a minute while rows are open."""

    epoch: int
    seqs: Seqs


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="h"):
    """First message on each connection: announces the epoch and which models the device speaks."""

    epoch: int
    boot: str
    agent: str
    models: tuple[ModelRef, ...]


class Welcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="w"):
    """Answer to a `Hello`; its header carries hub time.

    `spread_s`: over how long the fleet's devices shall spread their next connect, so that a broker that comes back is
    not met by all of them at once. It grows with the fleet.
    """

    epoch: int
    hub: str
    region: str
    spread_s: float = 0.0


class DenyAll(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="n"):
    """On `down/desired`: nothing may leave any more, until a policy whose `clears_notice` is at least `counter`.

    A counter only ever grows: hub time in seconds, or one more than the last. `epoch` is 0: it speaks to any.
    """

    epoch: int
    counter: int
    why: str


Totals = tuple[tuple[str, int, int], ...]  # (account, its period, spent in it): running totals, never going back


class Heads(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="l"):
    """On `up/report`: how far the device's egress ledger has come, signed, and what it has spent so far.

    `signature`: the device's over `wire.ledger.chain.head_text`. `known`: size of the hub's log at its last
    `Checkpoint`.
    """

    epoch: int
    entries: int
    at_ms: int
    head: bytes
    signature: bytes
    known: int = 0
    spend: Totals = ()


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="c"):
    """Answer to `Heads`: they stand at `index` in the hub's log, whose signed checkpoint is `text`.

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


class Mirror(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="m"):
    """Answer to `Heads`: the most that this device ever said it has spent, in whatever epoch, as far as it is kept."""

    epoch: int
    spend: Totals
    complete: bool = True


UpNote = Ask | Hello | Heads | InstallReport
DownNote = Receipt | Refusal | Statuses | Welcome | DenyAll | Checkpoint | Mirror | Assignment | ReportSeen
