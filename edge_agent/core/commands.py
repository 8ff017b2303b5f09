"""What goes into `EdgeCore` and what comes out of it: frozen values, no behaviour.

All commands of one returned list are one step: what they write, they write in one transaction.
"""

from enum import IntEnum

import msgspec

from edge_agent.core.records import Outcome, Source
from policies.decisions.budget import Charge, Spend
from policies.decisions.egress import Egress
from policies.decisions.leakage import Evidence
from policies.decisions.permit import Permit
from policies.decisions.routing import HubSite
from policies.model.reasons import Why
from wire.protocol.messages import Escalation, FieldSpec, Prediction, Reason, Seqs, Totals

DAY_S = 86_400.0
KEEP_DAYS = 7


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
    """What does not change while a core lives; a thousand cores may share it.

    `frame_bytes`: charged per question whose plaintext has `padded_bytes`; `longest`: one such with every field filled.
    """

    schema: tuple[FieldSpec, ...]
    hubs: tuple[HubSite, ...]
    frame_bytes: int
    limits: OutboxLimits = OutboxLimits()
    evidence: Evidence | None = None  # of what the features give away; None = nothing was measured
    lines: dict[str, str] = {}  # hub -> the line it is on; those not named are on the home line, ""
    padded_bytes: int = 0
    longest: Escalation | None = None


class Labels(msgspec.Struct, frozen=True):
    """What a question says of the policy that lets it leave, beside its hash. `padded_bytes`: of its plaintext.

    `rule`: those that apply, joined by "+"; `layers`: the documents' hashes if there is more than one.
    """

    rule: str = ""
    keep_days: int = KEEP_DAYS
    layers: tuple[str, ...] = ()
    padded_bytes: int = 0
    subject: bool = False  # the policy names a subject field: its keyed hash goes with the question


class Dice(msgspec.Struct, frozen=True, gc=False):
    """Drawn by the loop for each sample: the answer id (32 hex characters) and two numbers in [0, 1)."""

    id: str
    audit: float
    jitter: float = 0.5


class Facts(msgspec.Struct, frozen=True, gc=False):
    """Of one sample. `day`: whole days since 1970 in hub time. `subject`: keyed hash of whom it is about, in hex.

    `committed`: if it is audited, the features of the committed model go, not of the one on trial that answered.
    """

    data_class: str
    day: int = 0
    subject: str = ""
    committed: bool = False


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
    mirrored: bool = True  # False: nothing is sent before the hub has told what it remembers of our spending
    notice: int = 0  # counter of the newest deny-all notice


class Rest(msgspec.Struct, frozen=True, gc=False):
    """A device that waits for nothing, as a core remembers it: so one process may hold a million of them."""

    epoch: int
    next_seq: int
    spend: Spend
    day: int


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
    labels: Labels = Labels()


class Transmit(msgspec.Struct, frozen=True, gc=False):
    seq: int
    line: str = ""


class Reseal(msgspec.Struct, frozen=True, gc=False):
    """Seal the stored plaintext again, under the hub's current key and our corrected clock; then `on_stored`.

    `target`: for this hub from now on, since the other cannot be reached.
    """

    seq: int
    target: HubSite | None = None


class Mark(msgspec.Struct, frozen=True, gc=False):
    """Worth remembering, not worth waiting for: a lost mark costs one resend."""

    seq: int
    state: State
    not_before: float
    attempts: int


class Finish(msgspec.Struct, frozen=True, gc=False):
    """Terminal: write the outcome and delete the row. `reason`: the hub's on refusal, ours otherwise.

    `unsent`: the charges of one that never left, to be taken back.
    """

    seq: int
    id: str
    outcome: Outcome
    reason: Why | Reason
    unsent: tuple[Charge, ...] = ()


class Raise(msgspec.Struct, frozen=True, gc=False):
    """Write that so much was spent: the hub remembers it."""

    totals: Totals


class SayHello(msgspec.Struct, frozen=True, gc=False):
    line: str = ""


class SendAsk(msgspec.Struct, frozen=True, gc=False):
    seqs: Seqs  # at most 64
    line: str = ""


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    when: float


Command = Answer | Correction | Store | Transmit | Reseal | Mark | Finish | SayHello | SendAsk | WakeAt | Raise
