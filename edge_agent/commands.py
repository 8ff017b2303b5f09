"""What goes into `EdgeCore` and what comes out of it: frozen values, no behaviour.

All commands of one returned list are one step: what they write, they write in one transaction.
"""

from enum import IntEnum

import msgspec

from edge_agent.records import Outcome, Source
from policies.budget import Spend
from policies.egress import Egress
from policies.judge import Permit
from policies.leakage import Evidence
from policies.locality import HubSite
from policies.reasons import Why
from wire.messages import FieldSpec, Prediction, Reason, Seqs

DAY_S = 86_400.0


class State(IntEnum):
    """Of an outbox row. NEW is not on disk yet, or is being sealed anew."""

    NEW = 0
    SEALED = 1
    SENT = 2
    RECEIPTED = 3


class OutboxLimits(msgspec.Struct, frozen=True, gc=False):
    """Stated loss policy: a full outbox refuses new questions (`outbox_full`, answered locally), never drops old ones.

    Audit questions may fill at most half of each limit, so that a doubtful sample always finds room before them.
    """

    max_rows: int = 10_000
    max_bytes: int = 64 * 1024 * 1024
    max_age_s: float = 7 * DAY_S  # the hub accepts nothing older
    window: int = 32  # sent and not yet receipted; the broker's queue is sized to it
    resend_base_s: float = 2.0
    resend_cap_s: float = 30.0
    ask_interval_s: float = 60.0
    quiet_cap_s: float = 3600.0  # the longest silence a hub may ask for


class Setup(msgspec.Struct, frozen=True):
    """What does not change while a core lives; a thousand cores may share it. `frame_bytes`: charged per question."""

    schema: tuple[FieldSpec, ...]
    hubs: tuple[HubSite, ...]
    frame_bytes: int
    limits: OutboxLimits = OutboxLimits()
    evidence: Evidence | None = None  # of what the features give away; None = nothing was measured


class Dice(msgspec.Struct, frozen=True, gc=False):
    """Drawn by the loop for each sample: the answer id (32 hex characters) and two numbers in [0, 1)."""

    id: str
    audit: float
    jitter: float = 0.5


class Facts(msgspec.Struct, frozen=True, gc=False):
    """Of one sample. `day`: whole days since 1970 in hub time."""

    data_class: str
    day: int = 0


class Row(msgspec.Struct, frozen=True):
    """An accepted question as the outbox remembers it; times are on the core's clock.

    `answered`: its caller has an answer, so that a verdict becomes a correction.
    """

    seq: int
    id: str
    state: State
    local: Prediction
    answered: bool
    policy: str
    data_class: str
    egress: Egress
    target: HubSite
    digest: bytes
    size: int
    expires: float
    not_before: float = 0.0
    attempts: int = 0
    jitter: float = 0.5


class Memory(msgspec.Struct, frozen=True):
    """What a database remembers: a core is rebuilt from it at start."""

    epoch: int
    next_seq: int
    spend: Spend
    rows: tuple[Row, ...] = ()


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The one answer of an id. `seq`: its question, None if none was asked. The last two are the hub's, in seconds."""

    id: str
    prediction: Prediction
    source: Source
    why: Why
    policy: str
    data_class: str
    seq: int | None = None
    queue_s: float = 0.0
    compute_s: float = 0.0


class Correction(msgspec.Struct, frozen=True, gc=False):
    """The hub's verdict on an id that was answered before it came."""

    id: str
    prediction: Prediction
    policy: str
    data_class: str
    seq: int
    queue_s: float
    compute_s: float


class Store(msgspec.Struct, frozen=True):
    """Transform, seal, then charge + ledger entry + outbox row in one transaction; then `on_stored`."""

    seq: int
    id: str
    permit: Permit
    charge_bytes: int
    local: Prediction
    data_class: str
    budget_s: float
    audit: bool
    jitter: float


class Transmit(msgspec.Struct, frozen=True, gc=False):
    seq: int


class Reseal(msgspec.Struct, frozen=True, gc=False):
    """Seal the stored plaintext again, under the hub's current key and our corrected clock; then `on_stored`."""

    seq: int


class Mark(msgspec.Struct, frozen=True, gc=False):
    """Worth remembering, not worth waiting for: a lost mark costs one resend."""

    seq: int
    state: State
    not_before: float
    attempts: int


class Finish(msgspec.Struct, frozen=True, gc=False):
    """Terminal: write the outcome and delete the row. `reason`: the hub's on refusal, ours otherwise."""

    seq: int
    id: str
    outcome: Outcome
    reason: Why | Reason


class SayHello(msgspec.Struct, frozen=True, gc=False):
    pass


class SendAsk(msgspec.Struct, frozen=True, gc=False):
    seqs: Seqs  # at most 64


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    when: float


Command = Answer | Correction | Store | Transmit | Reseal | Mark | Finish | SayHello | SendAsk | WakeAt
