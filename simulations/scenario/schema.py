"""TOML grammar of scenario files as closed pydantic tables: an unknown key or an impossible value is an error.

Rule: shapes and limits of single tables stand here; what needs files, or several tables at once, stands in
`simulations.scenario_files`. `describe_first_error` turns a validation error into one line: the key as a person writes
it, and what to write instead.
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from policies.language.values import (
    ClosedTable,
    Name,
    Names,
    describe_error,
    format_error,
    require_unique,
)
from simulations.scenario import types
from simulations.scenario.conditions import EnvironmentConditions
from simulations.scenario.values import (
    DataClass,
    Few,
    Kind,
    Many,
    Part,
    Rate,
    Real,
    RegionName,
    Span,
    Time,
    parse_duration,
    parse_moment,
)


class LinkTable(ClosedTable):
    """Table `link`: network conditions between devices and hubs; what is left out is the usual."""

    latency: Span = EnvironmentConditions().latency_s
    loss: Annotated[Part, Field(le=0.9)] = EnvironmentConditions().loss
    repeats: Annotated[Part, Field(le=0.5)] = EnvironmentConditions().repeats
    skew: Time = EnvironmentConditions().skew_s
    drift: Annotated[Real, Field(ge=0, le=0.01)] = EnvironmentConditions().drift
    notice: Time = EnvironmentConditions().notice_s
    wall_error: Time = EnvironmentConditions().wall_error_s
    bad_disk: Annotated[Part, Field(le=0.5)] = EnvironmentConditions().bad_disk
    bad_batch: Annotated[Part, Field(le=0.5)] = EnvironmentConditions().bad_batch
    bandwidth_bytes_per_s: Annotated[Real, Field(ge=0)] = 0.0
    metered_share: Part = 0.0

    def to_conditions(self) -> EnvironmentConditions:
        """The conditions alone, without bandwidth and metering."""
        return EnvironmentConditions(
            latency_s=self.latency,
            loss=self.loss,
            repeats=self.repeats,
            skew_s=self.skew,
            drift=self.drift,
            notice_s=self.notice,
            wall_error_s=self.wall_error,
            bad_disk=self.bad_disk,
            bad_batch=self.bad_batch,
        )

    def to_link(self) -> types.Link:
        """The whole link: conditions, bandwidth (bytes/s, 0 = no limit) and metered share (0..1)."""
        return types.Link(self.to_conditions(), self.bandwidth_bytes_per_s, self.metered_share)


class LimitsTable(ClosedTable):
    """Table `limits`: what a hub admits (queue, open questions, rates, wait)."""

    max_queued: Many = types.HubLimits().max_queued
    device_open: Many = types.HubLimits().device_open
    device_rate_per_s: Rate = types.HubLimits().device_rate_per_s
    tenant_rate_per_s: Rate = types.HubLimits().tenant_rate_per_s
    max_wait: Span = types.HubLimits().max_wait_s

    def to_limits(self) -> types.HubLimits:
        """The value of this table."""
        return types.HubLimits(
            self.max_queued, self.device_open, self.device_rate_per_s, self.tenant_rate_per_s, self.max_wait
        )


class RegionTable(ClosedTable):
    """Table `region`: devices and hubs (how many, or their names). `shift`: so much later is the day's peak."""

    name: RegionName
    share: Annotated[Part, Field(gt=0)] = 1.0
    hubs: Few | Names = 1
    members: Annotated[int, Field(ge=1, le=16)] = 1
    slots: Few = 1
    max_batch: Annotated[int, Field(ge=1, le=4096)] = 32
    cost_base: Span = types.Region().cost_base_s
    cost_item: Time = types.Region().cost_item_s
    shift: Annotated[Real, BeforeValidator(parse_duration), Field(ge=-86_400, le=86_400)] = 0.0
    failover: list[RegionName] = Field(default_factory=list)
    limits: LimitsTable = LimitsTable()
    link: LinkTable | None = None

    def to_region(self, link: types.Link) -> types.Region:
        """The value of this table; `link` is the scenario's own, used where this region has none."""
        named = tuple(self.hubs) if isinstance(self.hubs, list) else ()
        hubs = self.hubs if isinstance(self.hubs, int) else len(named)
        return types.Region(
            name=self.name,
            share=self.share,
            hubs=hubs,
            members=self.members,
            slots=self.slots,
            max_batch=self.max_batch,
            cost_base_s=self.cost_base,
            cost_item_s=self.cost_item,
            limits=self.limits.to_limits(),
            link=link if self.link is None else self.link.to_link(),
            failover=tuple(self.failover),
            shift_s=self.shift,
            named=named,
        )


class LoadTable(ClosedTable):
    """Table `load`: how samples arrive. `every`: mean gap between two samples of one device, whatever the kind."""

    kind: Literal["poisson", "diurnal", "bursty", "trace"] = "poisson"
    every: Annotated[Span, Field(ge=0.001)] = 10.0
    swing: Part = types.Load().swing
    peak: Time = types.Load().peak_s
    burst_factor: Annotated[Real, Field(ge=1, le=1e4)] = types.Load().burst_factor
    burst_every: Span = types.Load().burst_every_s
    burst_lasts: Span = types.Load().burst_lasts_s
    trace: str | list[Annotated[list[Real], Field(min_length=2, max_length=2)]] | None = None
    classes: Annotated[dict[DataClass, Part], Field(min_length=1, max_length=100)] = Field(
        default_factory=lambda: dict(types.Load().classes)
    )

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """A trace is given exactly where the kind is `trace`, and shares of classes sum to 1."""
        if (self.kind == "trace") != (self.trace is not None):
            raise ValueError("trace names a file where kind is 'trace', and is allowed for no other kind")
        if abs(sum(self.classes.values()) - 1) > 1e-6:
            raise ValueError(f"classes: shares sum to {sum(self.classes.values()):.6g}, not to 1")
        return self


class RecordedTable(ClosedTable):
    """Table `model.replay`: recorded outcomes within the scenario itself, three lists of one length."""

    confidence: Annotated[list[Part], Field(min_length=1)]
    edge_right: list[bool]
    hub_right: list[bool]

    @model_validator(mode="after")
    def _validate_lengths(self) -> Self:
        """All three lists have one length."""
        if not len(self.confidence) == len(self.edge_right) == len(self.hub_right):
            raise ValueError("confidence, edge_right and hub_right are of one length")
        return self


class ModelTable(ClosedTable):
    """Table `model`: what devices and hubs answer, and how often that is right.

    `replay`: outcomes.npz of a forge's report. `bundle`: its calibration is drawn from. Without either: the stated
    shares.
    """

    unsure_share: Part = types.Model().unsure_share
    accuracy_edge: Part = types.Model().accuracy_edge
    accuracy_unsure: Part = types.Model().accuracy_unsure
    accuracy_hub: Part = types.Model().accuracy_hub
    labels: Annotated[int, Field(ge=2, le=100_000)] = types.Model().labels
    deciles: Annotated[list[Part], Field(min_length=9, max_length=9)] | None = None
    replay: str | RecordedTable | None = None
    bundle: str | None = None

    @model_validator(mode="after")
    def _validate_source(self) -> Self:
        """At most one of deciles, replay and bundle is given; deciles must not fall."""
        named = [key for key in ("deciles", "replay", "bundle") if getattr(self, key) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)}: give only one of them")
        if self.deciles is not None and self.deciles != sorted(self.deciles):
            raise ValueError("deciles: must not fall")
        return self


class EventTable(ClosedTable):
    """Table `event`: one fault or change; see `simulations.scenario.types.ScenarioEvent`.

    `every`: it comes again so often, until the last sample, or until `until`.
    """

    kind: Kind
    at: Time
    lasts: Time = 0.0
    every: Span | None = None
    until: Time | None = None
    region: RegionName | Literal[""] = ""
    share: Annotated[Part, Field(gt=0)] = 1.0
    device: Annotated[int, Field(ge=0)] | None = None
    hub: str = ""
    member: Annotated[int, Field(ge=1)] | None = None
    amount: Annotated[Real, Field(ge=0, le=1e6)] = 1.0
    label: Annotated[int, Field(ge=0)] | None = None
    tail: bool = False
    link: LinkTable | None = None
    policy: str = ""

    @model_validator(mode="after")
    def _validate_kind(self) -> Self:
        """Keys that belong to one kind of event stand in that kind alone."""
        if (self.kind == "weather") != (self.link is not None):
            raise ValueError("link: required for kind 'weather' and allowed for no other")
        if (self.kind == "policy") != bool(self.policy):
            raise ValueError("policy: required for kind 'policy' and allowed for no other")
        if self.until is not None and self.every is None:
            raise ValueError("until: allowed beside every alone")
        if self.every is not None and self.every <= self.lasts:
            raise ValueError("every: longer than lasts, or it would come again before it is over")
        if self.kind in ("surge", "storm") and self.amount < 1:
            raise ValueError(f"amount: a {self.kind} multiplies the usual sample rate: 1 or more")
        return self


class RolloutTable(ClosedTable):
    """Table `rollout`: a new model version goes out; what is left out is the product's default."""

    at: Time = 0.0
    harm: Part = 0.0
    churn: Part = 0.0
    tail: bool = False
    waves: Annotated[list[str], Field(max_length=20)] = Field(default_factory=list)
    audit_share: Part = types.Rollout().audit_share
    probation: Span = types.Rollout().probation_s
    soak: Time = types.Rollout().soak_s
    look: Span = types.Rollout().look_s
    report: Span = types.Rollout().report_s
    min_inferences: Annotated[int, Field(ge=0, le=1_000_000)] = types.Rollout().min_inferences
    max_soak: Span = types.Rollout().max_soak_s

    def to_rollout(self) -> types.Rollout:
        """The value of this table."""
        shares = {"harm": self.harm, "churn": self.churn, "audit_share": self.audit_share}
        return types.Rollout(
            at_s=self.at,
            tail=self.tail,
            waves=tuple(self.waves),
            **shares,
            probation_s=self.probation,
            soak_s=self.soak,
            look_s=self.look,
            report_s=self.report,
            min_inferences=self.min_inferences,
            max_soak_s=self.max_soak,
        )


class ExpectTable(ClosedTable):
    """Table `expect`: bounds on a figure that must hold at the end of a run."""

    figure: Annotated[str, Field(min_length=1, max_length=80)]
    at_most: Real | None = None
    at_least: Real | None = None
    begin: Time = Field(default=0.0, alias="from")
    until: Time = 0.0

    @model_validator(mode="after")
    def _validate_bounds(self) -> Self:
        """There is a bound, and the window is not empty."""
        if self.at_most is None and self.at_least is None:
            raise ValueError("needs at_most or at_least")
        if self.until and self.until <= self.begin:
            raise ValueError(f"until {self.until:g} s is not after from {self.begin:g} s")
        return self

    def to_expect(self) -> types.Expectation:
        """The value of this table."""
        return types.Expectation(self.figure, self.at_most, self.at_least, self.begin, self.until)


class ScenarioTable(ClosedTable):
    """A whole scenario file, format 1."""

    format: Literal[1] = Field(alias="schema")
    name: Name | None = None  # left out: the file's
    question: Annotated[str, Field(min_length=1, max_length=400)]
    seed: Annotated[int, Field(ge=0, le=2**53)] = 1
    devices: Many
    duration: Span
    step: Annotated[Span, Field(ge=0.1)] | None = None  # left out: a 120th of the duration
    heal: Time = types.HEAL_S
    grace: Time = types.GRACE_S
    commit: Annotated[Span, Field(le=10)] = types.Scenario().commit_s
    begins: Annotated[int, BeforeValidator(parse_moment), Field(ge=0, lt=7 * 1440)] = 0
    policy: str = ""
    region: Annotated[list[RegionTable], Field(min_length=1, max_length=64)] = Field(
        default_factory=lambda: [RegionTable(name=types.Region().name)]
    )
    link: LinkTable = LinkTable()
    load: LoadTable = LoadTable()
    model: ModelTable = ModelTable()
    event: Annotated[list[EventTable], Field(max_length=1000)] = Field(default_factory=list)
    expect: Annotated[list[ExpectTable], Field(max_length=200)] = Field(default_factory=list)
    rollout: RolloutTable | None = None

    @model_validator(mode="after")
    def _validate_regions(self) -> Self:
        """Names of regions and hubs are unique, shares sum to 1, and failover names other regions."""
        names = [each.name for each in self.region]
        require_unique("region", names)
        require_unique(
            "hubs", [hub for each in self.region for hub in (each.hubs if isinstance(each.hubs, list) else ())]
        )
        if abs(sum(each.share for each in self.region) - 1) > 1e-6:
            raise ValueError(f"region: shares sum to {sum(each.share for each in self.region):.6g}, not to 1")
        for place, each in enumerate(self.region):
            unknown = [name for name in each.failover if name not in names or name == each.name]
            if unknown:
                raise ValueError(f"region[{place}].failover: {unknown[0]!r} is no other region of this scenario")
        return self


_PATTERNS = {
    "failover": "is no name of a region",
    "region": "is no name of a region: letters a-z, digits and '-', at most 32",
    "name": "is no name: letters, digits, '_', '.' and '-', at most 64",
}


class ScenarioError(Exception):
    """A scenario that cannot be run: one line that names the key and says what to do."""


def describe_first_error(error: ValidationError) -> str:
    """Describe the first validation error in one line, and how many more there are."""
    found = error.errors(include_url=False)
    errors = [each for each in found if not _is_other_member(each)] or found
    return format_error(format_key_path(errors[0]["loc"]), _describe_error(errors[0]), len(errors) - 1)


def _is_other_member(error: ErrorDetails) -> bool:
    """Whether the error is of a union member that was not meant: who wrote a table did not mean a name."""
    return error["type"] == "string_type" and isinstance(error["input"], (dict, list))


def format_key_path(loc: tuple[int | str, ...]) -> str:
    """Key path as a person writes it: `event[2].share`.

    What pydantic adds to tell members of a union apart is left out.
    """
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part.islower() and part not in {"str", "list", "float", "int", "bool"}:
            path += f".{part}" if path else part
    return path


def _describe_error(error: ErrorDetails) -> str:
    """Describe one validation error in words, with the pattern of names where that is the fault."""
    key = next((str(part) for part in reversed(error["loc"]) if not isinstance(part, int)), "")
    return describe_error(error, _PATTERNS.get(key, _PATTERNS["name"]))
