"""One simulated region: its kernel, random generators, hubs, devices, faults and checkers.

Rule: a region knows nothing of other regions but what `Abroad` brings at the end of a slice. Same scenario, same
region, same messages in: same run.
"""

import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence

from cloud_hub.core.commands import Key
from edge_agent.core.commands import OutboxLimits, Setup
from policies.decisions.routing import HubSite
from policies.language.document import parse
from policies.model.context import Context
from policies.model.policy import Policy
from simulations.checking.egress import Customs
from simulations.checking.events import Effect, Flaw, Undone
from simulations.checking.events import Key as Name
from simulations.checking.history import Judge
from simulations.kernel.kernel import Kernel
from simulations.kernel.world import FEATURES, FRAME_BYTES, HUB_ZERO_S, MODEL, TENANT, Pace, name_of, number_of
from simulations.nodes import connections
from simulations.nodes.broker import Air
from simulations.nodes.fleet import Herd
from simulations.nodes.hub import Hub
from simulations.nodes.predictions import Drawn
from simulations.nodes.recorder import Recorder
from simulations.nodes.registry import SimulatedRegistry
from simulations.nodes.services import Cores
from simulations.regions.borders import EFFECT, UNDONE, Abroad, Broker
from simulations.regions.faults import Faults
from simulations.rollout.region import Actor
from simulations.scenario.arrivals import Arrivals
from simulations.scenario.conditions import Weather
from simulations.scenario.types import Region, Scenario
from wire.protocol.topics import Channel, topic

LOOK_AROUND_S = 60.0
_ROUNDING_S = 1e-9
PORTION_S = 60.0  # samples are drawn for at most so long at once


class DefectError(Exception):
    """A production core raised an exception it never should."""


class Ground:
    """Region `number` of a scenario. `rng`, `dice`: random generators of this region alone."""

    def __init__(self, scenario: Scenario, number: int, cores: Cores) -> None:
        region = scenario.regions[number]
        seeds = SeedSequence([scenario.seed, number]).generate_state(4, np.uint64).tolist()
        self.name = region.name
        self.scenario = scenario
        self.cores = cores
        self.seed = scenario.seed
        self.zero_s = HUB_ZERO_S + scenario.begins_minute * 60.0
        self.kernel = Kernel(scenario.ends_s)
        self.dice = Random(seeds[0])  # noqa: S311 - a seed is the point
        self.rng = Generator(PCG64(seeds[1]))
        self.climate = region.link.climate
        self.weather = Weather(self.climate, Random(seeds[2]))  # noqa: S311
        self.pace = Pace(commit_s=scenario.commit_s)
        self.recorder = Recorder(scenario.buckets, self.kernel)
        self.judge = Judge(max(scenario.duration_s, scenario.last_fault_ended_s), grace_s=scenario.grace_s)
        self.customs = Customs(self.judge, scenario.policy_text)
        self.policy: Policy | None = parse(scenario.policy_text).compile()
        self.registry = SimulatedRegistry()
        self.model = MODEL
        self.model_name = f"{MODEL.name}@{MODEL.version}"
        self.metered_share = region.link.metered_share
        self.classes = tuple(name for name, _ in scenario.load.classes)
        self.hubs = {name: Hub(name, region, self) for name in region.hub_names}
        self.abroad = Abroad(_further(scenario, region), self)
        self._names = (*self.hubs, *self.abroad.hubs)
        self._lines = {name: "" if place == 0 else name for place, name in enumerate(self._names)}
        self._hubs_by_line = {line: name for name, line in self._lines.items()}
        self.setup = self._setup(scenario)
        self.max_age_s = self.setup.limits.max_age_s
        self.herd = Herd(self, scenario.devices_of(number))
        self._bandwidth = region.link.bandwidth_bytes_per_s
        self._arrivals = Arrivals(scenario, number, Generator(PCG64(seeds[3])))
        threshold = self.policy.base.threshold if self.policy else 0.0
        self._unsure = threshold / 2
        self._drawn = Drawn(scenario.model, threshold, self.rng)
        self._ids = number << 96
        self._drawn_s, self._at_s, self._taken = 0.0, list[float](), 0
        self._sample: Callable[[int], None]
        self._storms: list[tuple[frozenset[int] | range, float]] = []
        self.rollout = Actor(self, self.herd, scenario.rollout) if scenario.rollout else None
        self._faults = Faults(self, scenario, Random(self.dice.getrandbits(64)))  # noqa: S311

    # State for the nodes

    @property
    def air(self) -> Air:
        """Broker of the first hub."""
        return next(iter(self.hubs.values())).air

    def line_of(self, hub: str) -> str:
        """Name of the line that leads to a hub."""
        return self._lines[hub]

    @property
    def upset(self) -> bool:
        """Whether a storm makes devices less confident than the model would be."""
        return bool(self._storms)

    @property
    def brokers(self) -> dict[str, connections.Broker]:
        """Brokers by line name, those of other regions included."""
        ours: dict[str, connections.Broker] = {self._lines[name]: hub.air for name, hub in self.hubs.items()}
        return ours | {self._lines[name]: broker for name, broker in self.abroad.hubs.items()}

    def hub_now(self) -> float:
        """Hub time in seconds since 1970."""
        return self.zero_s + self.kernel.now

    def around(self, *, metered: bool) -> Context:
        """Policy context of a device of this region at this moment."""
        minute = int(self.scenario.begins_minute + self.kernel.now // 60) % 10_080
        zones = self.policy.zones if self.policy else ()
        return Context(
            "", "", self.name, TENANT, (), metered=metered, battery=1.0, minute_of_week=dict.fromkeys(zones, minute)
        )

    # Time

    def begin(self) -> None:
        """Start the hubs and schedule faults, rollout and the end of the usual losses."""
        for hub in self.hubs.values():
            hub.start()
        self._faults.schedule()
        if self.rollout:
            self.kernel.at(self.rollout.begins_s, self.rollout.begin)
        self.kernel.at(self.scenario.duration_s, self.weather.clear_up)
        if self.policy and self.policy.zones:
            self.kernel.at(LOOK_AROUND_S, self._look_around)

    def go(self, begin_s: float, end_s: float) -> None:
        """Run one slice, which lies within one bucket.

        DefectError if a core raised: it is recorded as a flaw, and the run is over.
        """
        try:
            self._pass(begin_s, end_s)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__}: {error}, in {Path(last.filename).name} {last.name}"
            self.judge.blame(Flaw.DEFECT, where[:200])
            raise DefectError(where) from error

    def _pass(self, begin_s: float, end_s: float) -> None:
        recorder = self.recorder
        self._storms = [each for each in self._storms if each[1] > begin_s]
        recorder.bucket = min(int(begin_s // self.scenario.step_s), self.scenario.buckets - 1)
        if begin_s >= self._drawn_s - _ROUNDING_S:
            self._draw(begin_s)
        first, last = self._taken, bisect_left(self._at_s, end_s + _ROUNDING_S, self._taken)
        if first < last:
            recorder.sampled(last - first)
            self.kernel.merge(self._at_s[first:last], self._sample, first)
            self._taken = last
        self.kernel.run(end_s)
        for why, count in recorder.close().items():
            self.judge.alone(why, count)
        if end_s >= (recorder.bucket + 1) * self.scenario.step_s - _ROUNDING_S:
            recorder.states(self.herd.states().items())

    def _draw(self, begin_s: float) -> None:
        """Draw the samples of the next while; however short slices are, they are drawn in the same portions."""
        bucket_ends_s = (self.recorder.bucket + 1) * self.scenario.step_s
        self._drawn_s = min(begin_s + PORTION_S, bucket_ends_s)
        some = self._arrivals.between(begin_s, self._drawn_s)
        self._at_s, self._taken = some.at_s, 0
        self._sample = self.herd.sampler(some, self._drawn.take(len(some.at_s)), self._ids)
        self._ids += len(some.at_s)

    def counts(self) -> dict[str, int]:
        """Totals of whatever else was counted, by dotted name."""
        hubs = sum((hub.counts for hub in self.hubs.values()), Counter[str]())
        airs = [hub.air for hub in self.hubs.values()]
        found = {f"hub.{name}": count for name, count in hubs.items()}
        found["air.carried"], found["air.gone"] = sum(air.carried for air in airs), sum(air.gone for air in airs)
        found["customs.looked"] = self.customs.looked
        return found

    def brokers_now(self) -> dict[str, Broker]:
        """States of this region's brokers, for regions that have lines to them."""
        return {name: Broker(hub.air.up, hub.air.lives) for name, hub in self.hubs.items()}

    def _look_around(self) -> None:
        self.herd.look_around()
        self.kernel.after(LOOK_AROUND_S, self._look_around)

    # Messages

    def send(self, key: Key, line: str, channel: Channel, frame: bytes) -> None:
        """Send a frame of a device; over a line that is down or cut it is lost. `key`: seq 0 if it asks nothing."""
        name = self._hubs_by_line[line]
        wire = self.herd.wires.get(number_of(key.device), line)
        hub = self.hubs.get(name)
        if channel is Channel.QUESTION:
            self.customs.look(key.device, name, hub.region if hub else self.abroad.region(name), frame)
        if not wire.up or wire.cut:
            self.air.lose()
            return
        extra_s = len(frame) / self._bandwidth if self._bandwidth else 0.0
        if hub is None:
            self.abroad.send(name, key, channel, frame, extra_s)
        else:
            hub.air.carry(hub.line, hub.hear, topic(key.device, channel), frame, extra_s=extra_s)

    def reply(self, hub: str, device: str, frame: bytes) -> None:
        """Send a frame of a hub of this region to a device anywhere."""
        number = number_of(device)
        if number not in self.herd.numbers:
            self.abroad.reply(hub, device, frame)
            return
        line = self._lines[hub]
        self.hubs[hub].air.carry(self.herd.wires.get(number, line), self.herd.hear, number, line, frame)

    # Facts

    def effect(self, hub: str, key: Key) -> None:
        """A hub of this region stored a verdict: report it to the checker of the device's region."""
        if number_of(key.device) in self.herd.numbers:
            self.judge.see(Effect(Name(*key), hub))
        else:
            self.abroad.tell(EFFECT, key, hub)

    def undone(self, hub: str, key: Key) -> None:
        """A hub of this region lost a stored verdict by a restored backup; reported as `on_effect`."""
        if number_of(key.device) in self.herd.numbers:
            self.judge.see(Undone(Name(*key), hub))
        else:
            self.abroad.tell(UNDONE, key, hub)

    def ended(self, key: Key) -> None:
        """A device has recorded the outcome of this question: no hub will be asked for it any more."""
        for hub in self.hubs.values():
            hub.disk.over(key)
        self.abroad.over(key)

    # Changes by faults and by operators

    def use_policy(self, text: str, numbers: Iterable[int] | None = None) -> None:
        """Put a policy into force on these devices; `numbers` None: on all of this region."""
        policy = parse(text).compile()
        if numbers is None:
            self.policy = policy
            self.customs.use(text, self.kernel.now)
            self.herd.use_policy(policy)
            return
        some = tuple(numbers)
        self.customs.use(text, self.kernel.now, map(name_of, some))
        self.herd.use_policy(policy, some)

    def revive(self, hub: Hub) -> None:
        """Restart a hub's broker: whoever has lost it tries again."""
        hub.air.revive()
        self.herd.wires.retry_all(self.line_of(hub.name))

    def storm(self, numbers: Iterable[int], until_s: float) -> None:
        """Until `until_s` these devices are unsure of every sample."""
        self._storms.append((numbers if isinstance(numbers, range) else frozenset(numbers), until_s))

    def confidence(self, number: int, drawn: float) -> float:
        """Confidence of a device in a sample: as drawn, or below the threshold during a storm."""
        now = self.kernel.now
        return self._unsure if any(number in some and now < until_s for some, until_s in self._storms) else drawn

    def _setup(self, scenario: Scenario) -> Setup:
        regions = {name: region.name for region in scenario.regions for name in region.hub_names}
        sites = tuple(HubSite(name, regions[name]) for name in self._names)
        lines = {name: line for name, line in self._lines.items() if line}
        return Setup((FEATURES,), sites, FRAME_BYTES, OutboxLimits(), lines=lines)


def _further(scenario: Scenario, region: Region) -> dict[str, str]:
    """Hubs of the regions that take over for this one, with their regions."""
    return {name: other.name for other in scenario.regions if other.name in region.failover for name in other.hub_names}
