"""Sections and rules of a policy document, as pydantic models that compile to `policies.model`. Pure.

Beside every key stands which direction is narrower: a narrower document lets less leave, to fewer hubs, for a shorter
time, at a smaller price.

Rule: a rule only narrows; what it says beyond the base has no effect.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from policies.language.transform_tables import Drop, Transform
from policies.language.values import (
    LARGEST_WHOLE,
    CeilingName,
    ClockTime,
    ClosedTable,
    Count,
    LevelName,
    ModeName,
    Name,
    Names,
    NoveltyName,
    PhraseText,
    Positive,
    Seconds,
    Share,
    UnitName,
    Zone,
    require_unique,
)
from policies.model import differential_privacy
from policies.model.context import MINUTES_OF_WEEK, WEEK_DAYS, DayName, RuleCondition, WeeklyHours
from policies.model.policy import (
    HARD_CEILING_LEVEL,
    AccountUnit,
    BudgetAccount,
    EscalationMode,
    FieldRule,
    LeakageLimits,
    Narrowing,
    NoiseTerms,
    PolicyRule,
    RetentionTerms,
    TransformSpec,
)

MAX_KEEP_DAYS = 7  # the longest a hub keeps what was asked


class EscalationSection(ClosedTable):
    """Section `escalation`: when the hub is asked."""

    mode: ModeName  # narrower: hub_first > wait > answer_now > local_only > disabled
    threshold: Share  # confidence from which the local answer stands; narrower: lower (fewer questions)
    audit_share: Share  # share of all answers that is asked at random; narrower: lower
    budget_s: Seconds  # how long a caller may wait; narrower: lower
    # samples unlike what the model knows; narrower: ask > flag > reject
    novel: NoveltyName = Field(default="flag", validate_default=True)

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """A mode that waits needs a time to wait."""
        if self.mode in {EscalationMode.WAIT, EscalationMode.HUB_FIRST} and self.budget_s == 0:
            raise ValueError(f"mode {self.mode} waits for the hub, but budget_s is 0; use answer_now or more seconds")
        return self


class EgressField(ClosedTable):
    """One value that may leave. Narrower: fewer of these."""

    name: Name
    level: LevelName  # highest label accepted for it; narrower: lower
    transforms: list[Transform] = Field(default_factory=list)  # applied in this order; narrower: more

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """A field that is listed is not dropped."""
        if any(isinstance(each, Drop) for each in self.transforms):
            raise ValueError(f"field {self.name!r} is listed and dropped; leave it out")
        return self

    def compile(self) -> FieldRule:
        """The compiled field rule."""
        return FieldRule(self.name, self.level, compile_transforms(self.transforms))


def compile_transforms(transforms: list[Transform]) -> tuple[TransformSpec, ...]:
    """Compile transforms, in their order."""
    return tuple(each.compile() for each in transforms)


class EgressSection(ClosedTable):
    """Section `egress`: what may leave."""

    ceiling: CeilingName  # highest label of anything that leaves; narrower: lower
    field: list[EgressField] = Field(default_factory=list)  # narrower: fewer
    # class of sample = may it leave? Not listed = false. Narrower: false, or unlisted
    data_class: dict[Name, bool] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """Each field once, none above the ceiling."""
        require_unique("field", [each.name for each in self.field])
        for each in self.field:
            if each.level > self.ceiling:
                raise ValueError(
                    f"field {each.name!r} accepts {each.level.name}, above the ceiling {self.ceiling.name}"
                )
        return self


class LocalitySection(ClosedTable):
    """Section `locality`: which hubs and regions may answer."""

    hubs: list[Name]  # in order of preference; narrower: fewer
    regions: list[Name]  # narrower: fewer

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """Each hub and region once."""
        require_unique("hubs", self.hubs)
        require_unique("regions", self.regions)
        return self


class TopicBudgets(ClosedTable):
    """Limits of bytes a day for single kinds of messages, beside the total. Narrower: lower, or stated at all."""

    q: Count | None = None  # questions
    ask: Count | None = None  # asking for answers that are owed
    report: Count | None = None  # how the device is, and the heads of its ledger
    state: Count | None = None  # that it is there


class BudgetSection(ClosedTable):
    """Section `budget`: how much may leave, and for how much."""

    bytes_per_day: Count  # whole messages, as they are on the link; narrower: lower
    max_open: Count = 1000  # questions in the outbox without an outcome; narrower: lower
    cost_per_day: Count | None = None  # in the millionths in which devices state their hubs' prices; narrower: lower
    joules_per_day: Count | None = None  # that sending questions takes of the device; narrower: lower
    topics: TopicBudgets | None = None  # narrower: lower, or stated at all

    def compile(self) -> tuple[BudgetAccount, ...]:
        """The accounts: bytes, cost, energy, and one per limited topic."""
        said = {} if self.topics is None else self.topics.model_dump(exclude_none=True)
        by_topic = [
            BudgetAccount(f"bytes/{topic}", AccountUnit.BYTES, limit, topic=topic) for topic, limit in said.items()
        ]
        return (*build_spend_accounts("", self), *by_topic)


def build_spend_accounts(of: str, said_by: "BudgetSection | RuleTable") -> tuple[BudgetAccount, ...]:
    """Accounts of bytes, cost and energy, of the base (`of` = "") or of a rule; None = no limit."""
    joules = said_by.joules_per_day
    said = {
        AccountUnit.BYTES: said_by.bytes_per_day,
        AccountUnit.COST: said_by.cost_per_day,
        AccountUnit.ENERGY: None if joules is None else joules * _MILLIJOULES,
    }
    return tuple(BudgetAccount(f"{coin}{of}", coin, limit) for coin, limit in said.items() if limit is not None)


_MILLIJOULES = 1000  # of one joule


class PrivacySection(ClosedTable):
    """Section `privacy`: limits on the leakage measured for the bundle (upper end of the 95 % interval)."""

    max_leakage: Share | None = None  # success of the reconstruction attack; narrower: lower
    metric: Literal["ssim", "explained_variance", "token_f1"] | None = None  # which figure; left out = any of them
    max_attribute_advantage: Share | None = None  # of guessing a sensitive column, above chance; narrower: lower

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """A metric needs a limit."""
        if self.metric is not None and self.max_leakage is None:
            raise ValueError(f"metric {self.metric!r} limits nothing without max_leakage")
        return self

    def compile(self) -> LeakageLimits:
        """The compiled limits."""
        return LeakageLimits(self.max_leakage, self.metric or "", self.max_attribute_advantage)


class NoiseSection(ClosedTable):
    """Section `dp`: differential privacy, noise on all that leaves and how often in a period.

    Narrower: stated at all.
    """

    unit: UnitName = Field(default="device", validate_default=True)  # whose presence is hidden; wider is narrower
    clip_norm: Positive  # longest vector that leaves; narrower: lower
    sigma: Annotated[float, Field(ge=0.01, le=10_000)]  # noise, as a multiple of the sensitivity; narrower: higher
    delta: Annotated[float, Field(ge=1e-100, lt=1)]  # narrower: lower
    epsilon: Annotated[float, Field(ge=0, le=1000)]  # of one period; narrower: lower
    period_days: Annotated[int, Field(ge=1, le=366)] = 30  # narrower: longer
    audit_share: Share = 0.2  # of the epsilon, what audits may use; narrower: lower
    random_ask: Share | None = None  # share of samples asked by lot, whatever the confidence; narrower: lower

    def compile(self) -> NoiseTerms:
        """The compiled noise terms, with the limit and the charge of their account."""
        limit, each = differential_privacy.price_release(self.epsilon, self.delta, self.sigma)
        return NoiseTerms(
            self.unit, self.clip_norm, self.sigma, self.delta, self.epsilon, self.period_days, self.audit_share,
            self.random_ask, limit, each,
        )  # fmt: skip


class RetentionSection(ClosedTable):
    """Section `retention`: what the hub may keep, for which purpose and how long."""

    purpose: PhraseText  # what it may be used for; another one is a change, not a widening
    keep_days: Annotated[int, Field(ge=0, le=MAX_KEEP_DAYS)] = MAX_KEEP_DAYS  # narrower: lower
    subject_field: Name | Literal[""] = ""  # names whose data it is, so that it can be erased

    def compile(self) -> RetentionTerms:
        """The compiled retention."""
        return RetentionTerms(self.purpose, self.keep_days, self.subject_field)


__all__ = [
    "LARGEST_WHOLE",
    "BudgetSection",
    "EgressField",
    "EgressSection",
    "EscalationSection",
    "LocalitySection",
    "NoiseSection",
    "PrivacySection",
    "RetentionSection",
]


_DAY_MIN = 24 * 60


class TimeOfWeek(ClosedTable):
    """Hours on days of the week: from `from` up to before `to`; past midnight if `to` is not the later one.

    `days`: those on which the hours begin.
    """

    start: ClockTime = Field("00:00", alias="from")
    end: ClockTime = Field("00:00", alias="to")
    days: Annotated[list[DayName], Field(min_length=1)] = Field(default_factory=lambda: list(WEEK_DAYS))
    zone: Zone  # as in the time zone database; a zone that a device does not know counts as a match

    def compile(self) -> WeeklyHours:
        """The hours as spans of minutes of the week, those over Sunday midnight cut in two."""
        first, last = _parse_minute(self.start), _parse_minute(self.end)
        length = (last - first) % _DAY_MIN or _DAY_MIN
        spans: list[tuple[int, int]] = []
        for day in sorted({WEEK_DAYS.index(each) for each in self.days}):
            begin = day * _DAY_MIN + first
            spans.append((begin, min(begin + length, MINUTES_OF_WEEK)))
            if begin + length > MINUTES_OF_WEEK:
                spans.append((0, begin + length - MINUTES_OF_WEEK))
        return WeeklyHours(self.zone, tuple(spans))


def _parse_minute(text: str) -> int:
    """Minutes since midnight of "HH:MM"."""
    return int(text[:2]) * 60 + int(text[3:])


class RuleCase(ClosedTable):
    """Condition of a rule: all keys must hold; of several values, any.

    An unknown attribute holds in `when`, and does not in `unless`.
    """

    data_class: Names | None = None
    device_class: Names | None = None
    region: Names | None = None  # of the device
    tenant: Names | None = None
    tags: Names | None = None  # the device has any of them
    label_at_least: LevelName | None = None  # of the model's features, the highest
    link: Annotated[list[Literal["up", "down"]], Field(min_length=1)] | None = None
    metered: bool | None = None
    battery_below: Annotated[float, Field(gt=0, le=1)] | None = None
    time: TimeOfWeek | None = None

    def compile(self) -> RuleCondition:
        """The compiled condition."""
        return RuleCondition(
            data_class=_to_tuple(self.data_class),
            device_class=_to_tuple(self.device_class),
            region=_to_tuple(self.region),
            tenant=_to_tuple(self.tenant),
            tags=_to_tuple(self.tags),
            label_at_least=self.label_at_least,
            link_up=None if self.link is None else tuple(each == "up" for each in self.link),
            metered=self.metered,
            battery_below=self.battery_below,
            hours=None if self.time is None else self.time.compile(),
        )


def _to_tuple(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


class RuleTable(ClosedTable):
    """One rule of a document. It can only narrow: what it says beyond the base has no effect."""

    name: Name
    when: RuleCase = RuleCase()
    unless: RuleCase | None = None  # the rule does not apply where all of this is known to hold
    deny: bool = False  # nothing leaves
    mode: ModeName | None = None
    threshold: Share | None = None
    audit_share: Share | None = None
    budget_s: Seconds | None = None
    novel: NoveltyName | None = None
    max_open: Count | None = None
    ceiling: CeilingName | None = None
    fields: list[Name] | None = None  # only these
    drop: list[Name] = Field(default_factory=list)
    transforms: dict[Name, list[Transform]] = Field(default_factory=dict)  # done after those of the base
    hubs: list[Name] | None = None
    regions: list[Name] | None = None
    bytes_per_day: Count | None = None  # an account of its own, beside the base's
    cost_per_day: Count | None = None  # the same
    joules_per_day: Count | None = None  # the same
    dp: NoiseSection | None = None
    privacy: PrivacySection | None = None
    retention: RetentionSection | None = None

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """A rule names each thing once, can apply, and narrows something."""
        for key in ("fields", "drop", "hubs", "regions"):
            require_unique(key, getattr(self, key) or [])
        if self.unless == RuleCase():
            raise ValueError("unless asks nothing, so that the rule would never apply; leave it out")
        if not self.model_fields_set - {"name", "when", "unless"}:
            raise ValueError(f"rule {self.name!r} narrows nothing; say what, or deny = true")
        return self

    def compile(self, owner: str) -> PolicyRule:
        """Compile the rule. `owner`: the document's name, which keeps the accounts of two documents' rules apart."""
        unless = None if self.unless is None else self.unless.compile()
        return PolicyRule(self.name, self.when.compile(), unless, self._compile_narrowing(owner))

    def _compile_narrowing(self, owner: str) -> Narrowing:
        """What the rule takes away; its accounts are named after the document and the rule."""
        fields = (
            None if self.fields is None else {name: FieldRule(name, HARD_CEILING_LEVEL, ()) for name in self.fields}
        )
        return Narrowing(
            mode=self.mode, threshold=self.threshold, audit_share=self.audit_share, budget_s=self.budget_s,
            max_open=self.max_open, ceiling=self.ceiling, fields=fields, drop=tuple(self.drop),
            transforms={name: compile_transforms(each) for name, each in self.transforms.items()},
            hubs=_to_tuple(self.hubs), regions=_to_tuple(self.regions),
            accounts=build_spend_accounts(f"/{owner}/{self.name}", self),
            privacy=() if self.privacy is None else (self.privacy.compile(),),
            dp=None if self.dp is None else self.dp.compile(),
            retention=None if self.retention is None else self.retention.compile(),
            novel=self.novel,
            denied_by=self.name if self.deny else "",
        )  # fmt: skip
