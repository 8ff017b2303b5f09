"""The sections of a policy document. Which direction is narrower stands beside every key.

A narrower document lets less leave, to fewer, for a shorter time, at a smaller price.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from policies.language.merging_values_keys import (
    LARGEST,
    CeilingName,
    Closed,
    Count,
    LevelName,
    ModeName,
    Name,
    Positive,
    Seconds,
    Share,
    UnitName,
    Words,
    once,
)
from policies.language.transforms import Drop, Transform
from policies.model import merging_differential_privacy_noised
from policies.model.policy import Account, Coin, Dp, FieldRule, Mode, Privacy, Retention, TransformSpec

HUB_KEEPS_DAYS = 7  # the longest a hub keeps what was asked


class Escalation(Closed):
    """When the hub is asked."""

    mode: ModeName  # narrower: hub_first > wait > answer_now > local_only > disabled
    threshold: Share  # confidence from which the local answer stands; narrower: lower (fewer questions)
    audit_share: Share  # share of all answers that is asked at random; narrower: lower
    budget_s: Seconds  # how long a caller may wait; narrower: lower

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        if self.mode in {Mode.WAIT, Mode.HUB_FIRST} and self.budget_s == 0:
            raise ValueError(f"mode {self.mode} waits for the hub, but budget_s is 0; use answer_now or more seconds")
        return self


class EgressField(Closed):
    """One value that may leave. Narrower: fewer of these."""

    name: Name
    level: LevelName  # highest label accepted for it; narrower: lower
    transforms: list[Transform] = Field(default_factory=list)  # applied in this order; narrower: more

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        if any(isinstance(each, Drop) for each in self.transforms):
            raise ValueError(f"field {self.name!r} is listed and dropped; leave it out")
        return self

    def compile(self) -> FieldRule:
        return FieldRule(self.name, self.level, steps(self.transforms))


def steps(transforms: list[Transform]) -> tuple[TransformSpec, ...]:
    return tuple(each.compile() for each in transforms)


class Egress(Closed):
    """What may leave."""

    ceiling: CeilingName  # highest label of anything that leaves; narrower: lower
    field: list[EgressField] = Field(default_factory=list)  # narrower: fewer
    # class of sample = may it leave? Not listed = false. Narrower: false, or unlisted
    data_class: dict[Name, bool] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        once("field", [each.name for each in self.field])
        for each in self.field:
            if each.level > self.ceiling:
                raise ValueError(
                    f"field {each.name!r} accepts {each.level.name}, above the ceiling {self.ceiling.name}"
                )
        return self


class Locality(Closed):
    """Where it may be answered."""

    hubs: list[Name]  # in order of preference; narrower: fewer
    regions: list[Name]  # narrower: fewer

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        once("hubs", self.hubs)
        once("regions", self.regions)
        return self


class Topics(Closed):
    """Bytes a day of one kind of message each, beside the whole. Narrower: lower, or stated at all."""

    q: Count | None = None  # questions
    ask: Count | None = None  # asking for answers that are owed
    report: Count | None = None  # how the device is, and the heads of its ledger
    state: Count | None = None  # that it is there


class Budget(Closed):
    """How much may leave, and for how much."""

    bytes_per_day: Count  # whole messages, as they are on the link; narrower: lower
    max_open: Count = 1000  # questions in the outbox without an outcome; narrower: lower
    cost_per_day: Count | None = None  # millionths of the unit in which hubs state their price; narrower: lower
    topics: Topics | None = None  # narrower: lower, or stated at all

    def compile(self) -> tuple[Account, ...]:
        said = {} if self.topics is None else self.topics.model_dump(exclude_none=True)
        by_topic = [Account(f"bytes/{topic}", Coin.BYTES, limit, topic=topic) for topic, limit in said.items()]
        return (*spending("", self.bytes_per_day, self.cost_per_day), *by_topic)


def spending(of: str, bytes_per_day: int | None, cost_per_day: int | None) -> tuple[Account, ...]:
    """The accounts of the base (`of` = "") or of a rule."""
    said = {Coin.BYTES: bytes_per_day, Coin.COST: cost_per_day}
    return tuple(Account(f"{coin}{of}", coin, limit) for coin, limit in said.items() if limit is not None)


class Leakage(Closed):
    """How much the codes may give away, by the measurements in the bundle (upper end of their 95 % interval)."""

    max_leakage: Share | None = None  # success of the reconstruction attack; narrower: lower
    metric: Literal["ssim", "explained_variance", "token_f1"] | None = None  # which figure; left out = any of them
    max_attribute_advantage: Share | None = None  # of guessing a sensitive column, above chance; narrower: lower

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        if self.metric is not None and self.max_leakage is None:
            raise ValueError(f"metric {self.metric!r} limits nothing without max_leakage")
        return self

    def compile(self) -> Privacy:
        return Privacy(self.max_leakage, self.metric or "", self.max_attribute_advantage)


class Private(Closed):
    """Differential privacy: noise on all that leaves, and how often in a period. Narrower: stated at all."""

    unit: UnitName = Field(default="device", validate_default=True)  # whose presence is hidden; wider is narrower
    clip_norm: Positive  # longest vector that leaves; narrower: lower
    sigma: Annotated[float, Field(ge=0.01, le=10_000)]  # noise, as a multiple of the sensitivity; narrower: higher
    delta: Annotated[float, Field(ge=1e-100, lt=1)]  # narrower: lower
    epsilon: Annotated[float, Field(ge=0, le=1000)]  # of one period; narrower: lower
    period_days: Annotated[int, Field(ge=1, le=366)] = 30  # narrower: longer
    audit_share: Share = 0.2  # of the epsilon, what audits may use; narrower: lower
    random_ask: Share | None = None  # share of samples asked by lot, whatever the confidence; narrower: lower

    def compile(self) -> Dp:
        limit, each = merging_differential_privacy_noised.priced(self.epsilon, self.delta, self.sigma)
        return Dp(
            self.unit, self.clip_norm, self.sigma, self.delta, self.epsilon, self.period_days, self.audit_share,
            self.random_ask, limit, each,
        )  # fmt: skip


class Keeping(Closed):
    """What the hub may keep, for what and how long."""

    purpose: Words  # what it may be used for; another one is a change, not a widening
    keep_days: Annotated[int, Field(ge=0, le=HUB_KEEPS_DAYS)] = HUB_KEEPS_DAYS  # narrower: lower
    subject_field: Name | Literal[""] = ""  # names whose data it is, so that it can be erased

    def compile(self) -> Retention:
        return Retention(self.purpose, self.keep_days, self.subject_field)


__all__ = ["LARGEST", "Budget", "Egress", "EgressField", "Escalation", "Keeping", "Leakage", "Locality", "Private"]
