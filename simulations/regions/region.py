"""One simulated region: its kernel, random generators, hubs, devices, faults and checkers.

Rule: a region knows nothing of other regions but what `RegionBorder` brings at the end of a slice. Same scenario, same
region, same messages in: same run.
"""

import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from msgspec.structs import replace
from numpy.random import PCG64, Generator, SeedSequence

from cloud_hub.core.commands import QuestionKey
from edge_agent.question.commands import CoreSetup
from edge_agent.question.limits import OutboxLimits
from policies.decisions.routing import HubSite
from policies.language.document import parse_policy
from policies.model.context import DecisionContext
from policies.model.policy import Policy
from simulations.bulk.lane import BulkLane, LeftSamples, SamplePortion
from simulations.checking.egress import EgressAuditor
from simulations.checking.events import Flaw, HistoryReport, VerdictStored, VerdictUndone
from simulations.checking.events import QuestionKey as Name
from simulations.checking.history import HistoryChecker
from simulations.kernel.kernel import Kernel
from simulations.kernel.world import (
    FEATURES,
    FRAME_BYTES,
    HUB_ZERO_S,
    MODEL,
    TENANT,
    SimulationDelays,
    format_device_name,
    parse_device_number,
)
from simulations.nodes import connections
from simulations.nodes.broker import SimulatedBroker
from simulations.nodes.fleet import SampleBatch, SimulatedFleet
from simulations.nodes.hub import SimulatedHub
from simulations.nodes.predictions import PredictionSampler
from simulations.nodes.recorder import RegionRecorder
from simulations.nodes.registry import SimulatedRegistry
from simulations.nodes.services import CoreClasses
from simulations.regions.borders import EFFECT, UNDONE, RegionBorder, RemoteBroker
from simulations.regions.faults import FaultInjector
from simulations.rollout.region import RegionRollout
from simulations.scenario.arrivals import ArrivalProcess
from simulations.scenario.conditions import IDEAL_CONDITIONS, ConditionSampler
from simulations.scenario.types import Region, Scenario
from wire.protocol.topics import TopicChannel, build_topic

LOOK_AROUND_S = 60.0
_ROUNDING_S = 1e-9
PORTION_S = 60.0  # samples are drawn for at most so long at once
_LANE = 1  # the bulk lane's draws are its own


class DefectError(Exception):
    """A production core raised an exception it never should."""


class SimulatedRegion:
    """Region `number` of a scenario. `rng`, `dice`: random generators of this region alone."""

    def __init__(self, scenario: Scenario, number: int, cores: CoreClasses, *, bulk: bool = False) -> None:
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
        self.weather = ConditionSampler(self.climate, Random(seeds[2]))  # noqa: S311
        self.pace = SimulationDelays(commit_s=scenario.commit_s)
        self.recorder = RegionRecorder(scenario.buckets, self.kernel)
        self.judge = HistoryChecker(max(scenario.duration_s, scenario.last_fault_ended_s), grace_s=scenario.grace_s)
        self.customs = EgressAuditor(self.judge, scenario.policy_text)
        self.policy: Policy | None = parse_policy(scenario.policy_text).compile()
        self.registry = SimulatedRegistry()
        self.model = MODEL
        self.model_name = f"{MODEL.name}@{MODEL.version}"
        self.metered_share = region.link.metered_share
        self.classes = tuple(name for name, _ in scenario.load.classes)
        self.hubs = {name: SimulatedHub(name, region, self) for name in region.hub_names}
        self.abroad = RegionBorder(_failover_hubs(scenario, region), self)
        self._names = (*self.hubs, *self.abroad.hubs)
        self._lines = {name: "" if place == 0 else name for place, name in enumerate(self._names)}
        self._hubs_by_line = {line: name for name, line in self._lines.items()}
        self.setup = self._core_setup(scenario)
        self.max_age_s = self.setup.limits.max_age_s
        self.herd = SimulatedFleet(self, scenario.devices_of(number))
        self._bandwidth = region.link.bandwidth_bytes_per_s
        self._arrivals = ArrivalProcess(scenario, number, Generator(PCG64(seeds[3])))
        threshold = self.policy.base.threshold if self.policy else 0.0
        self._unsure = threshold / 2
        self._drawn = PredictionSampler(scenario.model, threshold, self.rng)
        self._ids = number << 96
        self._drawn_s, self._at_s, self._taken = 0.0, list[float](), 0
        self._sample: Callable[[int], None]
        self._storms: list[tuple[frozenset[int] | range, float]] = []
        self.rollout = RegionRollout(self, self.herd, scenario.rollout) if scenario.rollout else None
        self._faults = FaultInjector(self, scenario, Random(self.dice.getrandbits(64)))  # noqa: S311
        self.lane = self._make_lane(number) if bulk else None

    # State for the nodes

    @property
    def air(self) -> SimulatedBroker:
        """Broker of the first hub."""
        return next(iter(self.hubs.values())).air

    def line_of(self, hub: str) -> str:
        """Name of the line that leads to a hub."""
        return self._lines[hub]

    @property
    def has_storm(self) -> bool:
        """Whether a storm makes devices less confident than the model would be."""
        return bool(self._storms)

    @property
    def brokers(self) -> dict[str, connections.BrokerState]:
        """Brokers by line name, those of other regions included."""
        ours: dict[str, connections.BrokerState] = {self._lines[name]: hub.air for name, hub in self.hubs.items()}
        return ours | {self._lines[name]: broker for name, broker in self.abroad.hubs.items()}

    def hub_now(self) -> float:
        """Hub time in seconds since 1970."""
        return self.zero_s + self.kernel.now

    def build_context(self, *, metered: bool) -> DecisionContext:
        """Policy context of a device of this region at this moment."""
        minute = int(self.scenario.begins_minute + self.kernel.now // 60) % 10_080
        zones = self.policy.zones if self.policy else ()
        return DecisionContext(
            "", "", self.name, TENANT, (), metered=metered, battery=1.0, minute_of_week=dict.fromkeys(zones, minute)
        )

    # Time

    def start_region(self) -> None:
        """Start the hubs and schedule faults, rollout and the end of the usual losses."""
        for hub in self.hubs.values():
            hub.start()
        self._faults.schedule_events()
        if self.rollout:
            self.kernel.schedule_at(self.rollout.begins_s, self.rollout.run_ticks)
        self.kernel.schedule_at(self.scenario.duration_s, self.weather.stop_faults)
        if self.policy and self.policy.zones:
            self.kernel.schedule_at(LOOK_AROUND_S, self._refresh_surroundings)

    def run_slice(self, begin_s: float, end_s: float) -> None:
        """Run one slice, which lies within one bucket.

        DefectError if a core raised: it is recorded as a flaw, and the run is over.
        """
        try:
            self._advance(begin_s, end_s)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__}: {error}, in {Path(last.filename).name} {last.name}"
            self.judge.add_flaw(Flaw.DEFECT, where[:200])
            raise DefectError(where) from error

    def _advance(self, begin_s: float, end_s: float) -> None:
        recorder = self.recorder
        self._storms = [each for each in self._storms if each[1] > begin_s]
        recorder.bucket = min(int(begin_s // self.scenario.step_s), self.scenario.buckets - 1)
        self._take_samples(end_s)
        while self._drawn_s < end_s - _ROUNDING_S:
            self._draw_samples()
            self._take_samples(end_s)
        self.kernel.run(end_s)
        if self.lane is not None:
            self.lane.settle(end_s)
        for why, count in recorder.close_bucket().items():
            self.judge.count_local(why, count)
        if end_s >= (recorder.bucket + 1) * self.scenario.step_s - _ROUNDING_S:
            recorder.record_states(self.herd.count_states().items())

    def _take_samples(self, end_s: float) -> None:
        """Let devices take what is drawn of this slice."""
        first, last = self._taken, bisect_left(self._at_s, end_s + _ROUNDING_S, self._taken)
        if first < last:
            self.recorder.count_samples(last - first)
            self.kernel.run_merged(self._at_s[first:last], self._sample, first)
            self._taken = last

    def _draw_samples(self) -> None:
        """Draw the samples of the next while; however short slices are, they are drawn in the same portions.

        None is left over of those before.
        """
        begin_s, bucket_ends_s = self._drawn_s, (self.recorder.bucket + 1) * self.scenario.step_s
        self._drawn_s = min(begin_s + PORTION_S, bucket_ends_s)
        some = self._arrivals.draw_arrays(begin_s, self._drawn_s)
        count = len(some.at_s)
        drawn, luck = self._drawn.draw_arrays(count), self.rng.random((2, count))
        left = self.lane.take(SamplePortion(begin_s, self._drawn_s, some, drawn, luck)) if self.lane else None
        if left is None:
            left = LeftSamples(np.arange(count), {})
        which, fates = left
        ids = [self._ids + each for each in which.tolist()]
        batch = SampleBatch(
            self._arrivals.to_lists(some.select(which)), drawn.select(which), luck[:, which].tolist(), ids, fates
        )
        self._at_s, self._taken = batch.some.at_s, 0
        self._sample = self.herd.make_sampler(batch)
        self._ids += count

    def make_report(self, *, complete: bool) -> HistoryReport:
        """Report of the history; `complete` False: questions that are still open are judged as of now."""
        now_s = self.kernel.now
        report = self.judge.make_report(None if complete else now_s)
        still_open = self.lane.open_at(now_s) if self.lane else 0
        return replace(report, accepted=report.accepted + still_open, open=report.open + still_open)

    def collect_counts(self) -> dict[str, int]:
        """Totals of whatever else was counted, by dotted name."""
        hubs = sum((hub.counts for hub in self.hubs.values()), Counter[str]())
        airs = [hub.air for hub in self.hubs.values()]
        found = {f"hub.{name}": count for name, count in hubs.items()}
        found["air.carried"], found["air.gone"] = sum(air.carried for air in airs), sum(air.gone for air in airs)
        found["customs.looked"] = self.customs.looked
        if self.rollout is not None:
            found |= {f"orders.{name}": count for name, count in self.rollout.orders.counts.items()}
        if self.lane is not None:
            found |= {name: found.get(name, 0) + count for name, count in self.lane.counts.items()}
        return found

    def broker_states(self) -> dict[str, RemoteBroker]:
        """States of this region's brokers, for regions that have lines to them."""
        return {name: RemoteBroker(hub.air.up, hub.air.lives) for name, hub in self.hubs.items()}

    def _refresh_surroundings(self) -> None:
        self.herd.refresh_surroundings()
        self.kernel.schedule_after(LOOK_AROUND_S, self._refresh_surroundings)

    # Messages

    def send_up(self, key: QuestionKey, line: str, channel: TopicChannel, frame: bytes) -> None:
        """Send a frame of a device; over a line that is down or cut it is lost. `key`: seq 0 if it asks nothing."""
        name = self._hubs_by_line[line]
        wire = self.herd.wires.get(parse_device_number(key.device), line)
        hub = self.hubs.get(name)
        if channel is TopicChannel.QUESTION:
            self.customs.inspect_frame(key.device, name, hub.region if hub else self.abroad.region_of(name), frame)
        if not wire.up or wire.cut:
            self.air.count_lost()
            return
        extra_s = len(frame) / self._bandwidth if self._bandwidth else 0.0
        if hub is None:
            self.abroad.send_up(name, key, channel, frame, extra_s)
        else:
            foreseen = self.weather.fates and channel in (TopicChannel.QUESTION, TopicChannel.ASK)
            delays = self.weather.draw_up(key) if foreseen else None
            hub.send_up(build_topic(key.device, channel), frame, extra_s, delays)

    def send_down(self, hub: str, device: str, frame: bytes, delays: tuple[float, ...] | None = None) -> None:
        """Send a frame of a hub of this region to a device anywhere. `delays`: of one of this region; None = drawn."""
        number = parse_device_number(device)
        if number not in self.herd.numbers:
            self.abroad.send_down(hub, device, frame)
            return
        line = self._lines[hub]
        wire = self.herd.wires.get(number, line)
        self.hubs[hub].air.deliver(wire, self.herd.on_frame, number, line, frame, delays=delays)

    # Facts

    def on_effect(self, hub: str, key: QuestionKey) -> None:
        """A hub of this region stored a verdict: report it to the checker of the device's region."""
        if parse_device_number(key.device) in self.herd.numbers:
            self.judge.on_event(VerdictStored(Name(*key), hub))
        else:
            self.abroad.send_fact(EFFECT, key, hub)

    def on_undone(self, hub: str, key: QuestionKey) -> None:
        """A hub of this region lost a stored verdict by a restored backup; reported as `on_effect`."""
        if parse_device_number(key.device) in self.herd.numbers:
            self.judge.on_event(VerdictUndone(Name(*key), hub))
        else:
            self.abroad.send_fact(UNDONE, key, hub)

    def on_ended(self, key: QuestionKey) -> None:
        """A device has recorded the outcome of this question: no hub will be asked for it any more."""
        self.weather.fates.pop(key, None)
        for hub in self.hubs.values():
            hub.disk.mark_over(key)
        self.abroad.send_over(key)

    # Changes by faults and by operators

    def use_policy(self, text: str, numbers: Iterable[int] | None = None) -> None:
        """Put a policy into force on these devices; `numbers` None: on all of this region."""
        policy = parse_policy(text).compile()
        if numbers is None:
            self.policy = policy
            self.customs.set_policy(text, self.kernel.now)
            self.herd.use_policy(policy)
            return
        some = tuple(numbers)
        self.customs.set_policy(text, self.kernel.now, map(format_device_name, some))
        self.herd.use_policy(policy, some)

    def restart_broker(self, hub: SimulatedHub) -> None:
        """Restart a hub's broker: whoever has lost it tries again."""
        hub.air.restart()
        self.herd.wires.retry_all(self.line_of(hub.name))

    def move_devices(self, numbers: Iterable[int], *, away: bool) -> None:
        """Take devices out of the rollout's selection, or bring them back."""
        if self.rollout is not None:
            self.rollout.move_devices(numbers, away=away)

    def replay_assignments(self, numbers: Iterable[int], lasts_s: float, dice: Random) -> None:
        """Deliver to devices every assignment once more that each was ever sent, at random within `lasts_s`."""
        if self.rollout is not None:
            self.rollout.replay_assignments(numbers, lasts_s, dice)

    def begin_storm(self, numbers: Iterable[int], until_s: float) -> None:
        """Until `until_s` these devices are unsure of every sample."""
        self._storms.append((numbers if isinstance(numbers, range) else frozenset(numbers), until_s))

    def confidence_of(self, number: int, drawn: float) -> float:
        """Confidence of a device in a sample: as drawn, or below the threshold during a storm."""
        now = self.kernel.now
        return self._unsure if any(number in some and now < until_s for some, until_s in self._storms) else drawn

    def _make_lane(self, number: int) -> BulkLane | None:
        """The bulk lane, where one process of one hub serves the region and there is no rollout."""
        region = self.scenario.regions[number]
        if self.rollout is not None or len(self._names) > 1 or region.members > 1:
            return None
        return BulkLane(self, partial(self._make_specimen, region), np.random.default_rng([self.seed, number, _LANE]))

    def _make_specimen(self, region: Region, kind: int) -> "SimulatedRegion":
        """A region of one device in calm weather, at this time of the week, with the same hub, policy and model."""
        calm = replace(region.link, climate=IDEAL_CONDITIONS, metered_share=float(kind))
        scenario = replace(
            self.scenario,
            devices=1,
            duration_s=LOOK_AROUND_S,
            regions=(replace(region, share=1.0, link=calm),),
            events=(),
            begins_minute=int(self.scenario.begins_minute + self.kernel.now // 60) % 10_080,
            policy=self.scenario.policy_text,
        )
        return SimulatedRegion(scenario, 0, self.cores)

    def _core_setup(self, scenario: Scenario) -> CoreSetup:
        regions = {name: region.name for region in scenario.regions for name in region.hub_names}
        sites = tuple(HubSite(name, regions[name]) for name in self._names)
        lines = {name: line for name, line in self._lines.items() if line}
        return CoreSetup((FEATURES,), sites, FRAME_BYTES, OutboxLimits(), lines=lines)


def _failover_hubs(scenario: Scenario, region: Region) -> dict[str, str]:
    """Hubs of the regions that take over for this one, with their regions."""
    return {name: other.name for other in scenario.regions if other.name in region.failover for name in other.hub_names}
