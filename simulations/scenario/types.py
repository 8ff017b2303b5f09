"""Values of a scenario: fleet, regions, load, model, policy, events, rollout and expectations.

Rule: values only, frozen, with the units in their names; two runs of equal scenarios are equal. A file is read by
`simulations.scenario_files`; what a run showed is an `Outcome` (`simulations.report.outcome`).
"""

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256

import msgspec

from simulations.scenario.conditions import EnvironmentConditions

HEAL_S = 240.0  # after the last sample: what is open must end within it
GRACE_S = 90.0  # after the last fault: what is open then is lost
DAY_S = 86_400.0


class Link(msgspec.Struct, frozen=True):
    """Network between devices of a region and hubs.

    `bandwidth_bytes_per_s`: of each device's uplink, 0 = no limit. `metered_share`: of the devices (0..1), on a
    link that costs by the byte.
    """

    climate: EnvironmentConditions = EnvironmentConditions()
    bandwidth_bytes_per_s: float = 0.0
    metered_share: float = 0.0


class HubLimits(msgspec.Struct, frozen=True):
    """Admission limits of a hub; the defaults are the product's own."""

    max_queued: int = 4096
    device_open: int = 1024
    device_rate_per_s: float = 1000.0
    tenant_rate_per_s: float = 20_000.0
    max_wait_s: float = 30.0


class Region(msgspec.Struct, frozen=True):
    """A region: its share of the devices, its hubs and their engines.

    `share` of the devices live here (all shares sum to 1), with `hubs` hubs of `slots` batches at once each. A
    batch of n takes `cost_base_s + n * cost_item_s`. `failover`: regions whose hubs serve these devices when their
    own do not answer. `shift_s`: how much later the day's peak comes here. `named`: names of the hubs, () = by the
    region's name. `members`: processes of each hub, which share its store and broker and divide the devices by lease.
    """

    name: str = "local"
    share: float = 1.0
    hubs: int = 1
    slots: int = 1
    max_batch: int = 32
    cost_base_s: float = 0.004
    cost_item_s: float = 0.0005
    limits: HubLimits = HubLimits()
    link: Link = Link()
    failover: tuple[str, ...] = ()
    shift_s: float = 0.0
    named: tuple[str, ...] = ()
    members: int = 1

    @property
    def hub_names(self) -> tuple[str, ...]:
        """What a policy's `locality.hubs` names: as `named`, else `eu-1`, `eu-2`."""
        return self.named or tuple(f"{self.name}-{number}" for number in range(1, self.hubs + 1))


class LoadKind(StrEnum):
    """Kind of the arrival process of samples."""

    POISSON = "poisson"
    DIURNAL = "diurnal"
    BURSTY = "bursty"
    TRACE = "trace"


class TraceRow(msgspec.Struct, frozen=True):
    """One step of a load trace: the whole fleet takes `samples` samples from `at_s` until the next row."""

    at_s: float
    samples: float


class Load(msgspec.Struct, frozen=True):
    """Sample load: `samples_per_s` of each device in the mean, whatever the kind; a trace brings its own numbers.

    diurnal: the rate swings by `swing` (0..1) around its mean over 24 h, highest at `peak_s` of the day.
    bursty: every `burst_every_s` in the mean a device's rate is `burst_factor` times its usual for `burst_lasts_s`.
    `classes`: data classes of the samples with their shares, which sum to 1.
    """

    kind: LoadKind = LoadKind.POISSON
    samples_per_s: float = 0.1
    swing: float = 0.8
    peak_s: float = 14 * 3600.0
    burst_factor: float = 10.0
    burst_every_s: float = 600.0
    burst_lasts_s: float = 30.0
    trace: tuple[TraceRow, ...] = ()
    classes: tuple[tuple[str, float], ...] = (("open", 1.0),)


class RecordedOutcomes(msgspec.Struct, frozen=True):
    """Recorded samples of a real run: confidence of the edge model, and whether edge and hub were right."""

    confidence: tuple[float, ...]
    edge_right: tuple[bool, ...]
    hub_right: tuple[bool, ...]


class Model(msgspec.Struct, frozen=True):
    """Accuracy and confidence of the models on devices and hubs.

    `replay`: recorded samples are drawn again, so that everything else follows.
    `deciles` (nine) of a bundle's calibrated confidence: confidences are drawn from them, and an answer is right
    with the probability that its confidence says.
    Without either: `unsure_share` of the samples lie below the policy's threshold, and the shares of right answers
    are stated, among the sure, the unsure, and of the hub.
    """

    unsure_share: float = 0.2
    accuracy_edge: float = 0.97
    accuracy_unsure: float = 0.6
    accuracy_hub: float = 0.98
    labels: int = 10
    deciles: tuple[float, ...] = ()
    replay: RecordedOutcomes | None = None


class EventKind(StrEnum):
    """Kinds of events (faults, load changes, policy changes, rollouts).

    docs/simulator.md says what each means by `share`, `amount` and `lasts_s`.
    """

    KILL_AGENTS = "kill_agents"
    KILL_BROKER = "kill_broker"
    KILL_HUB = "kill_hub"
    KILL_REGION = "kill_region"
    POWER_LOSS = "power_loss"
    PARTITION = "partition"
    RECALL = "recall"
    POLICY = "policy"
    REGRESSED = "regressed"
    POISONED = "poisoned"
    STORM = "storm"
    SURGE = "surge"
    CERTIFICATES = "certificates"
    RESTORE = "restore"
    PREEMPT = "preempt"
    WEATHER = "weather"
    ROLLOUT = "rollout"
    MOVED = "moved"
    REPLAYED = "replayed"
    RESETS = "resets"
    HALF_OPEN = "half_open"
    SLICES = "slices"
    PAUSE_HUB = "pause_hub"
    CUT_DATABASE = "cut_database"
    STALE_LEASES = "stale_leases"


class ScenarioEvent(msgspec.Struct, frozen=True):
    """One fault or change, from `at_s` until `lasts_s` later.

    `region` "" = everywhere; `share` of the devices there (0..1), or `device` alone (its number in the whole
    fleet). `hub` of the region, "" = every one; `member`: its process, counted from 1, 0 = every one. `amount`: how
    bad, by kind; `label`: of one class alone (-1 = all); `tail`: the hub's half goes wrong with the head. `climate`,
    `policy` (text): of kinds `weather` and `policy`.
    """

    kind: EventKind
    at_s: float
    lasts_s: float = 0.0
    region: str = ""
    share: float = 1.0
    device: int = -1
    hub: str = ""
    amount: float = 1.0
    label: int = -1
    tail: bool = False
    climate: EnvironmentConditions | None = None
    policy: str = ""
    member: int = 0

    @property
    def ends_s(self) -> float:
        """Virtual second at which it is over."""
        return self.at_s + self.lasts_s


class Rollout(msgspec.Struct, frozen=True):
    """Rollout of a new model version from `at_s` on, by the hub's rollout machine, gated on quality.

    `harm`: of the local answers that the version before would give right, this share goes wrong, with the same
    confidence; `tail`: its hub half says the same. `churn`: of what is right, and of what is wrong, this share is
    answered the other way. The rest are the rollout's own parameters; `waves` () = by the size of the fleet.
    """

    at_s: float = 0.0
    harm: float = 0.0
    churn: float = 0.0
    tail: bool = False
    waves: tuple[str, ...] = ()
    audit_share: float = 0.02
    probation_s: float = 3600.0
    soak_s: float = 1800.0
    look_s: float = 60.0
    report_s: float = 300.0
    min_inferences: int = 200
    max_soak_s: float = 86_400.0


class Expectation(msgspec.Struct, frozen=True):
    """Expected bounds on a figure of the outcome, over samples and answers from `from_s` to `until_s` (0 = end)."""

    figure: str
    at_most: float | None = None
    at_least: float | None = None
    from_s: float = 0.0
    until_s: float = 0.0


class Scenario(msgspec.Struct, frozen=True):
    """A whole scenario: everything that a simulated run depends on.

    `step_s`: width of the buckets that series are counted in. `policy`: its text, "" = a permissive one.
    `begins_minute`: of the week (UTC, 0 = Monday 00:00) when virtual time is 0, for rules that speak of the time.
    `commit_s`: how long a commit takes, on devices and hubs. `heal_s`: time after the last sample or fault for open
    questions to end; `grace_s`: after it an open question counts as lost.
    """

    name: str = "unnamed"
    question: str = ""
    seed: int = 1
    duration_s: float = 600.0
    step_s: float = 10.0
    devices: int = 100
    begins_minute: int = 0
    regions: tuple[Region, ...] = (Region(),)
    load: Load = Load()
    model: Model = Model()
    policy: str = ""
    events: tuple[ScenarioEvent, ...] = ()
    expect: tuple[Expectation, ...] = ()
    heal_s: float = HEAL_S
    grace_s: float = GRACE_S
    commit_s: float = 0.005
    rollout: Rollout | None = None

    @property
    def digest(self) -> str:
        """Hash (16 hex digits) of everything but the seed, the names and what is expected."""
        same = msgspec.structs.replace(self, seed=0, expect=(), question="", name="")
        return sha256(msgspec.json.encode(same, order="deterministic")).hexdigest()[:16]

    @property
    def ends_s(self) -> float:
        """Virtual second at which the run stops: everything has had `heal_s` to end."""
        return max(self.duration_s, self.last_fault_ended_s) + self.heal_s

    @property
    def last_fault_ended_s(self) -> float:
        """Virtual second at which the last event is over; 0 without events."""
        return max((event.ends_s for event in self.events), default=0.0)

    @property
    def buckets(self) -> int:
        """Number of buckets of `step_s` that cover the run."""
        return int(-(-self.ends_s // self.step_s))

    @property
    def policy_text(self) -> str:
        """The scenario's policy, or one under which the features of every class may go to every hub."""
        return self.policy or build_permissive_policy(self.regions, tuple(name for name, _ in self.load.classes))

    def devices_of(self, number: int) -> range:
        """Devices (numbers in the whole fleet) of region `number`: consecutive, every device in one region."""
        edges, total = [0], 0.0
        for region in self.regions:
            total += region.share
            edges.append(round(total * self.devices))
        edges[-1] = self.devices
        return range(edges[number], edges[number + 1])


def build_permissive_policy(regions: tuple[Region, ...], classes: tuple[str, ...] = ("open",), version: int = 1) -> str:
    """Text of a policy under which the features go to every hub there is; class `private` stays."""
    return build_policy_text("sim", regions, {name: name != "private" for name in classes}, version)


def build_policy_text(name: str, regions: tuple[Region, ...], leaves: Mapping[str, bool], version: int = 1) -> str:
    """Text of a policy of mode `wait` whose field is the features and whose hubs are all there are.

    `leaves`: for each data class whether it may leave the device.
    """
    return _POLICY.format(
        name=name,
        version=version,
        hubs=", ".join(f'"{hub}"' for region in regions for hub in region.hub_names),
        regions=", ".join(f'"{region.name}"' for region in regions),
        leaves=", ".join(f'"{each}" = {str(may).lower()}' for each, may in leaves.items()),
    )


_POLICY = """schema = 2
name = "{name}"
version = {version}
issued = 2020-01-01
expires = 2099-12-31
escalation = {{ mode = "wait", threshold = 0.8, audit_share = 0.01, budget_s = 2.0 }}
locality = {{ hubs = [{hubs}], regions = [{regions}] }}
budget = {{ bytes_per_day = 1_000_000_000 }}
retention = {{ purpose = "simulation" }}
[egress]
ceiling = "P2"
field = [{{ name = "features", level = "P2" }}]
data_class = {{ {leaves} }}
"""
