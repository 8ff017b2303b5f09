"""The rules of a policy document: for a case, less. What a rule says beyond the base has no effect."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from policies.language.merging_schema_grammar import Keeping, Leakage, Private, spending, steps
from policies.language.merging_values_keys import (
    CeilingName,
    ClockTime,
    Closed,
    Count,
    LevelName,
    ModeName,
    Name,
    Names,
    Seconds,
    Share,
    Zone,
    once,
)
from policies.language.transforms import Transform
from policies.model.merging_context_context import MINUTES_OF_WEEK, Condition, Hours
from policies.model.policy import HARD_CEILING, FieldRule, Narrowing, Rule

DayName = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[DayName, ...] = get_args(DayName)
_DAY_MIN = 24 * 60


class TimeOfWeek(Closed):
    """From `from` up to before `to`, on the days on which it begins; past midnight if `to` is not the later one."""

    start: ClockTime = Field("00:00", alias="from")
    end: ClockTime = Field("00:00", alias="to")
    days: Annotated[list[DayName], Field(min_length=1)] = Field(default_factory=lambda: list(DAYS))
    zone: Zone  # as in the time zone database; a zone that a device does not know counts as a match

    def compile(self) -> Hours:
        first, last = _minute(self.start), _minute(self.end)
        length = (last - first) % _DAY_MIN or _DAY_MIN
        spans: list[tuple[int, int]] = []
        for day in sorted({DAYS.index(each) for each in self.days}):
            begin = day * _DAY_MIN + first
            spans.append((begin, min(begin + length, MINUTES_OF_WEEK)))
            if begin + length > MINUTES_OF_WEEK:
                spans.append((0, begin + length - MINUTES_OF_WEEK))
        return Hours(self.zone, tuple(spans))


def _minute(text: str) -> int:
    return int(text[:2]) * 60 + int(text[3:])


class Case(Closed):
    """All keys must hold; of several values, any. What is not known holds in `when`, and does not in `unless`."""

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

    def compile(self) -> Condition:
        return Condition(
            data_class=_tuple(self.data_class),
            device_class=_tuple(self.device_class),
            region=_tuple(self.region),
            tenant=_tuple(self.tenant),
            tags=_tuple(self.tags),
            label_at_least=self.label_at_least,
            link_up=None if self.link is None else tuple(each == "up" for each in self.link),
            metered=self.metered,
            battery_below=self.battery_below,
            hours=None if self.time is None else self.time.compile(),
        )


def _tuple(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


class RuleTable(Closed):
    """One rule. It can only narrow: what it says beyond the base has no effect."""

    name: Name
    when: Case = Case()
    unless: Case | None = None  # the rule does not apply where all of this is known to hold
    deny: bool = False  # nothing leaves
    mode: ModeName | None = None
    threshold: Share | None = None
    audit_share: Share | None = None
    budget_s: Seconds | None = None
    max_open: Count | None = None
    ceiling: CeilingName | None = None
    fields: list[Name] | None = None  # only these
    drop: list[Name] = Field(default_factory=list)
    transforms: dict[Name, list[Transform]] = Field(default_factory=dict)  # done after those of the base
    hubs: list[Name] | None = None
    regions: list[Name] | None = None
    bytes_per_day: Count | None = None  # an account of its own, beside the base's
    cost_per_day: Count | None = None  # the same
    dp: Private | None = None
    privacy: Leakage | None = None
    retention: Keeping | None = None

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        for key in ("fields", "drop", "hubs", "regions"):
            once(key, getattr(self, key) or [])
        if self.unless == Case():
            raise ValueError("unless asks nothing, so that the rule would never apply; leave it out")
        if not self.model_fields_set - {"name", "when", "unless"}:
            raise ValueError(f"rule {self.name!r} narrows nothing; say what, or deny = true")
        return self

    def compile(self, owner: str) -> Rule:
        """`owner`: the document's name, which keeps the accounts of two documents' rules apart."""
        unless = None if self.unless is None else self.unless.compile()
        return Rule(self.name, self.when.compile(), unless, self._narrowing(owner))

    def _narrowing(self, owner: str) -> Narrowing:
        fields = None if self.fields is None else {name: FieldRule(name, HARD_CEILING, ()) for name in self.fields}
        return Narrowing(
            mode=self.mode, threshold=self.threshold, audit_share=self.audit_share, budget_s=self.budget_s,
            max_open=self.max_open, ceiling=self.ceiling, fields=fields, drop=tuple(self.drop),
            transforms={name: steps(each) for name, each in self.transforms.items()},
            hubs=_tuple(self.hubs), regions=_tuple(self.regions),
            accounts=spending(f"/{owner}/{self.name}", self.bytes_per_day, self.cost_per_day),
            privacy=() if self.privacy is None else (self.privacy.compile(),),
            dp=None if self.dp is None else self.dp.compile(),
            retention=None if self.retention is None else self.retention.compile(),
            denied_by=self.name if self.deny else "",
        )  # fmt: skip
