"""Input and output values of `EdgeCore`: the setup, the stored state, and the commands that it returns.

All values are frozen and have no behaviour. Rule: the commands of one returned list are one step; whatever they write
to the database is written in one transaction.
"""

from enum import IntEnum

import msgspec

from edge_agent.question.limits import LinkEnergy, OutboxLimits
from edge_agent.question.records import AnswerSource, Outcome
from policies.decisions.budget import AccountCharge, BudgetSpend
from policies.decisions.egress import EgressPlan
from policies.decisions.leakage import LeakageEvidence
from policies.decisions.permit import Permit
from policies.decisions.routing import HubSite
from policies.model.reasons import DecisionReason
from wire.protocol.messages import Escalation, FieldSpec, Prediction, RefusalReason, Seqs, SpendTotals

KEEP_DAYS = 7


class OutboxState(IntEnum):
    """State of a question in the outbox, as stored in agent.db.

    NEW is never on disk: the question is being sealed for the first time, or sealed again. SEALED waits to be sent,
    SENT waits for the hub's receipt, RECEIPTED waits for the hub's verdict.
    """

    NEW = 0
    SEALED = 1
    SENT = 2
    RECEIPTED = 3


class CoreSetup(msgspec.Struct, frozen=True):
    """Configuration of a core: the feature schema of its model, its hubs, its limits.

    Constant while a core lives, and shareable between cores (the simulator shares one between thousands).
    `frame_bytes`: charged for each question whose plaintext is padded to `padded_bytes`. `longest`: a question with
    every field filled, used to compute the padding. `lines`: hub name to connection name.
    """

    schema: tuple[FieldSpec, ...]
    hubs: tuple[HubSite, ...]
    frame_bytes: int
    limits: OutboxLimits = OutboxLimits()
    evidence: LeakageEvidence | None = None  # measured leakage of the features; None = nothing was measured
    lines: dict[str, str] = {}  # hub -> its connection; hubs not named use the home connection, ""
    padded_bytes: int = 0
    longest: Escalation | None = None
    link_energy: LinkEnergy = LinkEnergy()  # what sending a question costs the device


class QuestionLabels(msgspec.Struct, frozen=True):
    """Policy labels that a question carries beside the policy's hash.

    `rule`: names of the rules that apply, joined by "+". `keep_days`: how long the hub may keep it. `layers`: hashes of
    the policy documents if there is more than one. `padded_bytes`: size of the padded plaintext.
    """

    rule: str = ""
    keep_days: int = KEEP_DAYS
    layers: tuple[str, ...] = ()
    padded_bytes: int = 0
    subject: bool = False  # the policy names a subject field: its keyed hash goes with the question


class RandomDraws(msgspec.Struct, frozen=True, gc=False):
    """Random values for one sample, drawn by the caller because the core draws none.

    `id`: the answer id, 32 hex characters. `audit`: decides the audit lottery, in [0, 1). `jitter`: spreads retries, in
    [0, 1).
    """

    id: str
    audit: float
    jitter: float = 0.5


class SampleAttributes(msgspec.Struct, frozen=True, gc=False):
    """Attributes of one sample that the policy is evaluated with.

    `day`: whole days since 1970 in hub time. `subject`: keyed hash, in hex, of the person the sample is about.
    `committed`: if the sample is audited, the features of the committed model are sent instead of those of the
    candidate model that answered.
    """

    data_class: str
    day: int = 0
    subject: str = ""
    committed: bool = False


class StoredQuestion(msgspec.Struct, frozen=True):
    """A stored question as it is read back from the outbox at start.

    Times (`expires`, `not_before`) are seconds on the core's clock. `digest`: SHA-256 of the sealed frame. `size`:
    bytes charged. `answered`: its caller has an answer already, so a verdict becomes a correction.
    """

    seq: int
    id: str
    state: OutboxState
    local: Prediction
    answered: bool
    policy: str
    data_class: str
    egress: EgressPlan
    target: HubSite
    digest: bytes
    size: int
    expires: float
    not_before: float = 0.0
    attempts: int = 0
    jitter: float = 0.5


class CoreSnapshot(msgspec.Struct, frozen=True):
    """Everything that a core restores from agent.db at start.

    `epoch`: random number of this database, which tells its question numbers from those of an earlier one. `spend`:
    what the accounts hold.
    """

    epoch: int
    next_seq: int
    spend: BudgetSpend
    rows: tuple[StoredQuestion, ...] = ()
    mirrored: bool = True  # False: nothing is sent before the hub has reported the spending it remembers
    notice: int = 0  # counter of the newest deny-all notice


class IdleSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Compact snapshot of an idle core, from which it can be resumed.

    The simulator keeps one per idle device, so that one process can hold a million devices. `day`: whole days since
    1970.
    """

    epoch: int
    next_seq: int
    spend: BudgetSpend
    day: int


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Command: give the caller the answer to an id. There is exactly one per id.

    `seq`: number of its question, None if none was asked. `queue_s` and `compute_s`: the hub's own times in seconds, 0
    for a local answer.
    """

    id: str
    prediction: Prediction
    source: AnswerSource
    why: DecisionReason
    policy: str
    data_class: str
    seq: int | None = None
    queue_s: float = 0.0
    compute_s: float = 0.0


class Correction(msgspec.Struct, frozen=True, gc=False):
    """Command: publish the hub's verdict on an id that was answered before the verdict came."""

    id: str
    prediction: Prediction
    policy: str
    data_class: str
    seq: int
    queue_s: float
    compute_s: float
    why: DecisionReason = DecisionReason.VERDICT


class Store(msgspec.Struct, frozen=True):
    """Command: transform and seal a question, then write it to the outbox.

    Charge, ledger entry and outbox row go into one transaction; its end is reported with `on_stored` or
    `on_store_failed`. `budget_s`: how long the caller waits for the hub, in seconds. `charge_bytes`: what the policy's
    byte account is charged.
    """

    seq: int
    id: str
    permit: Permit
    charge_bytes: int
    local: Prediction
    data_class: str
    budget_s: float
    audit: bool
    jitter: float
    labels: QuestionLabels = QuestionLabels()


class Transmit(msgspec.Struct, frozen=True, gc=False):
    """Command: send the stored frame of question `seq` on connection `line`."""

    seq: int
    line: str = ""


class Reseal(msgspec.Struct, frozen=True, gc=False):
    """Command: encrypt the stored plaintext again, under the hub's current key and the corrected clock.

    Its end is reported with `on_stored`. `target`: the hub that it is for from now on, if the former one cannot be
    reached; None = the same hub.
    """

    seq: int
    target: HubSite | None = None


class MarkState(msgspec.Struct, frozen=True, gc=False):
    """Command: store a changed delivery state, without waiting for the commit; a lost mark costs one more retry.

    `not_before`: seconds on the core's clock, 0 = none.
    """

    seq: int
    state: OutboxState
    not_before: float
    attempts: int


class Finish(msgspec.Struct, frozen=True, gc=False):
    """Command: write the final outcome of a question and delete its outbox row.

    `reason`: the hub's reason for a refusal, otherwise ours. `unsent`: charges of a question that was never sent, to be
    refunded.
    """

    seq: int
    id: str
    outcome: Outcome
    reason: DecisionReason | RefusalReason
    unsent: tuple[AccountCharge, ...] = ()


class RaiseSpend(msgspec.Struct, frozen=True, gc=False):
    """Command: raise the stored account totals to those that the hub remembers."""

    totals: SpendTotals


class SendHello(msgspec.Struct, frozen=True, gc=False):
    """Command: send a `HelloNote` on connection `line`, which the hub answers with a `WelcomeNote`."""

    line: str = ""


class SendAsk(msgspec.Struct, frozen=True, gc=False):
    """Command: ask the hub on connection `line` for the state of these questions (at most 64 per message)."""

    seqs: Seqs  # at most 64
    line: str = ""


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Command: call `on_wake` at `when`, in seconds on the core's clock."""

    when: float


Command = (
    Answer | Correction | Store | Transmit | Reseal | MarkState | Finish | SendHello | SendAsk | WakeAt | RaiseSpend
)
