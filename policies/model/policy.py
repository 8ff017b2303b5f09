"""The compiled policy: composed once from documents, frozen, with nothing left to parse. Pure.

Rule: whatever a layer or a rule says can only narrow. What holds is the meet of the base and of every rule that
applies.
"""

from enum import StrEnum

import msgspec

from policies.model.context import RuleCondition
from policies.model.matching import RuleBits, RuleIndex
from wire.protocol.messages import SensitivityLevel

HARD_CEILING_LEVEL = SensitivityLevel.P3  # P4 (raw, special category) never leaves, whatever a document says
PRIVATE_FROM_LEVEL = SensitivityLevel.P2  # from here up a purpose must be stated, and every message has one size


class PolicyError(Exception):
    """A policy document cannot be used: one line that names the key and says what to do."""


class EscalationMode(StrEnum):
    """Escalation mode: what a device does with an answer. From `hub_first` to `disabled` each asks less."""

    HUB_FIRST = "hub_first"  # ask whatever the confidence, wait up to budget_s
    WAIT = "wait"  # when unsure ask and wait up to budget_s, then answer locally
    ANSWER_NOW = "answer_now"  # answer locally at once; when unsure ask, and correct later
    LOCAL_ONLY = "local_only"  # never ask
    DISABLED = "disabled"  # no inference at all


ASKING_MODES = (EscalationMode.HUB_FIRST, EscalationMode.WAIT, EscalationMode.ANSWER_NOW)


class NoveltyAction(StrEnum):
    """What a device does with a sample unlike what its model knows. From `ask` to `reject` each asks less."""

    ASK = "ask"  # ask the hub even if the confidence says keep; nothing may leave that else could not
    FLAG = "flag"  # the answer says so, and the confidence alone decides
    REJECT = "reject"  # never ask; the answer says that it is out of domain


class PolicyLayer(StrEnum):
    """Who wrote a document. A device obeys at most one of each; each can only narrow the others."""

    PLATFORM = "platform"
    TENANT = "tenant"
    SITE = "site"
    DEVICE = "device"  # a switch on the device itself


class TransformKind(StrEnum):
    """Transforms of a field's values. Each keeps their number and type, and stays in the field's range."""

    DROP = "drop"  # the field stays
    COARSEN = "coarsen"
    BUCKETIZE = "bucketize"
    CLIP = "clip"
    CLIP_NORM = "clip_norm"
    QUANTISE = "quantise"
    KEYED_HASH = "keyed_hash"
    TOP_K = "top_k"
    POOL = "pool"
    PROJECT = "project"
    NOISE = "noise"
    REDACT = "redact"


class TransformSpec(msgspec.Struct, frozen=True, gc=False):
    """One transform of a field's values before they leave, with its parameters.

    coarsen: `step` = factor; bucketize: `values` = rising edges; clip: `low`, `high`; clip_norm: `high` = norm;
    quantise: `step`; keyed_hash: `step` = bits; top_k: `step` = k, `values` = centre or nothing; pool: `step` = size;
    project: `low` = seed, `step` = dimension; noise: `step` = standard deviation in units of the values, `high` = grid,
    0 = the device's choice; redact: `words` = names of patterns.
    """

    kind: TransformKind
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    values: tuple[float, ...] = ()
    words: tuple[str, ...] = ()


class FieldRule(msgspec.Struct, frozen=True):
    """A field that may leave: at most with label `level`, after `transforms` in this order."""

    name: str
    level: SensitivityLevel
    transforms: tuple[TransformSpec, ...]


class LeakageLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits on measured leakage, each for the upper end of a 95 % interval; None = no limit.

    `metric`: which figure of reconstruction must be there and is limited; "" = each that runs from 0 to 1.
    """

    max_leakage: float | None = None
    metric: str = ""
    max_attribute_advantage: float | None = None


class PrivacyUnit(StrEnum):
    """Unit of differential privacy: whose presence is hidden, from narrow to wide protection."""

    RECORD = "record"
    SUBJECT = "subject"
    DEVICE = "device"


class NoiseTerms(msgspec.Struct, frozen=True, gc=False):
    """Differential privacy: noise on all that leaves, and how much of it a period allows.

    `sigma`: noise as a multiple of the sensitivity. `random_ask`: share of samples that is asked at random, whatever
    the confidence; None = the escalation decides, and then the decision to ask is not covered by epsilon. `limit`,
    `each`: of the account, see `policies.model.differential_privacy`.
    """

    unit: PrivacyUnit
    clip_norm: float
    sigma: float
    delta: float
    epsilon: float
    period_days: int
    audit_share: float
    random_ask: float | None
    limit: int
    each: int


class RetentionTerms(msgspec.Struct, frozen=True, gc=False):
    """How long the hub may keep a question, and for which purpose. `subject_field` "" = no subject is named."""

    purpose: str
    keep_days: int = 7
    subject_field: str = ""


class AccountUnit(StrEnum):
    """What an account counts."""

    BYTES = "bytes"  # whole messages, as they are on the link
    COST = "cost"  # in the millionths in which devices state their hubs' prices
    ENERGY = "energy"  # millijoules that the device states for sending one question
    # 1e-10 of squared sensitivity over noise: see `policies.model.differential_privacy`
    PRIVACY = "privacy"


class BudgetAccount(msgspec.Struct, frozen=True, gc=False):
    """Budget account: at most `limit` in `period_days`.

    `key` is one name in all policies, so that an edit refunds nothing.
    `topic`: of messages on that channel alone; "" = of questions. `audits`: of audit questions alone. `each`: charged
    per noised field. `subject`: one account per subject, where the subject is known.
    """

    key: str
    coin: AccountUnit
    limit: int
    period_days: int = 1
    topic: str = ""
    audits: bool = False
    each: int = 0
    subject: bool = False


class Terms(msgspec.Struct, frozen=True):
    """Everything that one context may do: the result of applying a policy.

    `expires_day` = last day (days since 1970, UTC) on which anything may leave. `hash`: of the whole policy. `key`: of
    these terms among all of that policy. `rules`: those that apply, in order; `unknown`: attributes because of which
    some of them do. `denied_by`: the rule that lets nothing leave at all.
    """

    hash: str
    name: str
    version: int
    mode: EscalationMode
    threshold: float
    audit_share: float
    budget_s: float
    max_open: int
    ceiling: SensitivityLevel
    fields: dict[str, FieldRule]
    data_classes: dict[str, bool]
    hubs: tuple[str, ...]
    regions: tuple[str, ...]
    accounts: tuple[BudgetAccount, ...]
    expires: str
    expires_day: int
    privacy: tuple[LeakageLimits, ...] = ()
    dp: NoiseTerms | None = None
    retention: RetentionTerms | None = None
    novel: NoveltyAction = NoveltyAction.FLAG
    denied_by: str = ""
    rules: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    key: str = ""

    @property
    def bytes_per_day(self) -> int:
        """Limit of the account of bytes that every question is charged to."""
        return next(each.limit for each in self.accounts if each.key == AccountUnit.BYTES)

    @property
    def rule(self) -> str:
        """Name of the document and of the rules that apply, for the ledger and for people."""
        return "+".join((f"{self.name}@{self.version}", *self.rules))


class Narrowing(msgspec.Struct, frozen=True):
    """What a rule, or another layer's base, takes away; applied by `policies.model.narrowing`.

    None or empty = nothing of that kind.
    """

    mode: EscalationMode | None = None
    threshold: float | None = None
    audit_share: float | None = None
    budget_s: float | None = None
    max_open: int | None = None
    ceiling: SensitivityLevel | None = None
    fields: dict[str, FieldRule] | None = None
    drop: tuple[str, ...] = ()
    transforms: dict[str, tuple[TransformSpec, ...]] | None = None
    data_classes: dict[str, bool] | None = None
    hubs: tuple[str, ...] | None = None
    regions: tuple[str, ...] | None = None
    accounts: tuple[BudgetAccount, ...] = ()
    expires: str | None = None
    privacy: tuple[LeakageLimits, ...] = ()
    dp: NoiseTerms | None = None
    retention: RetentionTerms | None = None
    novel: NoveltyAction | None = None
    denied_by: str = ""


class PolicyRule(msgspec.Struct, frozen=True):
    """A rule: narrows what is allowed wherever `when` may hold and `unless` is not known to."""

    name: str
    when: RuleCondition
    unless: RuleCondition | None
    narrowing: Narrowing


class CompiledLayer(msgspec.Struct, frozen=True):
    """One compiled document: what a layer adds to a composition. In `base` every key is set."""

    layer: PolicyLayer
    name: str
    version: int
    hash: str
    issued: str
    expires: str
    base: Narrowing  # every key of it is there
    rules: tuple[PolicyRule, ...] = ()
    clears_notice: int = 0


class Policy(msgspec.Struct, frozen=True):
    """The policy that a device obeys: the most it ever allows, and the rules that narrow it for a case.

    `clears_notice`: notices of `deny-all` up to this counter are over. `zones`: time zones that rules name. `memo`:
    terms already computed. `policies.model.terms.resolve_terms` resolves what a context may do.
    """

    hash: str
    name: str
    version: int
    layers: tuple[CompiledLayer, ...]
    base: Terms
    rules: tuple[PolicyRule, ...]
    index: RuleIndex
    zones: tuple[str, ...] = ()
    clears_notice: int = 0
    memo: dict[tuple[RuleBits, tuple[str, ...]], Terms] = {}

    def __post_init__(self) -> None:
        """Start with an empty memo: terms of another value's rules say nothing of these."""
        msgspec.structs.force_setattr(self, "memo", {})

    @property
    def expires(self) -> str:
        """Last date (UTC, YYYY-MM-DD) on which anything may leave."""
        return self.base.expires

    @property
    def expires_day(self) -> int:
        """The same in days since 1970-01-01."""
        return self.base.expires_day

    @property
    def mode(self) -> EscalationMode:
        """Widest mode that any context can have."""
        return self.base.mode


def may_replace_policy(current: Policy, candidate: Policy) -> bool:
    """Whether a device may replace its current policy by a candidate.

    Never back to an older version of a layer, never to another text under the same version, never fewer layers.
    """
    if [(each.layer, each.name) for each in candidate.layers] != [(each.layer, each.name) for each in current.layers]:
        return False
    pairs = zip(current.layers, candidate.layers, strict=True)
    return all(new.version > old.version or new.hash == old.hash for old, new in pairs)
