"""Rollout inside a simulated region: the machines of `simulations.rollout.fleet`, fed with the region's real samples.

Rule: a device that is watched is awake. What it audits goes to the hub as any question does and is counted when the
verdict is there; what the candidate gets wrong, its callers get.
"""

from collections.abc import Iterable
from random import Random

import msgspec

from edge_agent.update.types import InstallLimits, InstallRow
from models.update.trust import Refusal
from simulations.checking.events import CandidateCommitted, CandidateServed, WaveAllowed
from simulations.kernel.world import format_device_name, parse_device_number
from simulations.nodes.device_disk import SampleTruth
from simulations.nodes.fleet import SimulatedFleet
from simulations.nodes.services import RegionServices
from simulations.report.outcome import RolloutRecord
from simulations.rollout.device import RolloutDevice
from simulations.rollout.fleet import OLD, STEP_S, RolloutCourse, RolloutFleet, parse_rollout_rules
from simulations.rollout.orders import COUNTER_BEFORE, SignedOrders
from simulations.rollout.versions import build_stated_pair
from simulations.scenario.types import Rollout
from wire.protocol.rollout import Assignment, DeviceSignals, InstallReport

AGAIN_S = 30.0  # until a message without a connection is tried again


class SampledDevice(RolloutDevice):
    """Device of a rollout that counts the samples it is given to answer."""

    fleet: "RegionRollout"

    def count_answers(self) -> None:
        """Nothing to do: samples were counted as they came."""

    def apply_candidate(self, said: tuple[int, int, int], sure: float, luck: float) -> tuple[int, int, int]:
        """Labels of device and hub for a sample, and the committed head's label if it is audited (else -1).

        `said`: truth, edge label and hub label of the committed version; `sure`: the edge's confidence; `luck`:
        uniform random number that selects audits.
        """
        truth, edge, tail = said
        label = self.fleet.candidate_label(truth, edge) if self.candidate else edge
        audited = self.watched is not None and luck < self.cell.share
        unsure = sure < self.fleet.threshold
        seen = self.seen
        self.seen = msgspec.structs.replace(
            seen,
            inferences=seen.inferences + 1,
            escalated=seen.escalated + unsure,
            confidence=seen.confidence + sure,
            confidence_sq=seen.confidence_sq + sure * sure,
            p95_us=4000,
        )
        if audited:
            return label, tail, edge
        spoilt = self.candidate and self.fleet.plan.tail and label != edge
        return label, label if spoilt else tail, -1

    def on_verdict(self, sampled: SampleTruth) -> None:
        """Count an audit: the committed model's tail has answered."""
        if sampled.committed < 0 or self.watched is None:
            return
        right, other = sampled.edge == sampled.hub, sampled.committed == sampled.hub
        cell = self.cell
        self.cell = msgspec.structs.replace(
            cell,
            audited=cell.audited + 1,
            agreed=cell.agreed + right,
            worse=cell.worse + (other and not right),
            better=cell.better + (right and not other),
        )

    def begin_watching(self, assignment: Assignment | None, seen: DeviceSignals) -> None:
        """Start or stop to count, and have the device simulated sample by sample meanwhile."""
        super().begin_watching(assignment, seen)
        self.fleet.update_sampling(self)


class RegionRollout(RolloutFleet):
    """Rollout of a region's devices. `plan`: the scenario's."""

    devices: dict[str, SampledDevice]  # type: ignore[assignment]

    def __init__(self, ground: RegionServices, herd: SimulatedFleet, plan: Rollout) -> None:
        self.plan = plan
        self.begins_s = plan.at_s
        self._ground = ground
        self._herd = herd
        self.threshold = ground.policy.base.threshold if ground.policy else 0.0
        self._name = f"r{ground.seed}"
        names = len(herd.numbers)
        course = RolloutCourse(
            names, ground.seed, build_stated_pair(0.0), msgspec.to_builtins(parse_rollout_rules(plan))
        )
        self._away: set[str] = set()
        self.orders = SignedOrders(ground.kernel, ground.zero_s, ground.cores.orders)
        super().__init__(course, ground.cores.gate, kernel=ground.kernel, zero_s=ground.zero_s)

    def make_device(self, name: str) -> SampledDevice:
        """Make the rollout's part of a device of the region."""
        row = InstallRow(counter=COUNTER_BEFORE)
        return SampledDevice(name, OLD.digest, self, self._ground.cores.install(name, row, InstallLimits()))

    def run_ticks(self) -> None:
        """Let the rollout machine tick from now on, until the rollout is over."""
        self.tick()
        if not self.is_over():
            self.kernel.schedule_after(STEP_S, self.run_ticks)

    def rollout_record(self) -> RolloutRecord:
        """Record of the rollout for the outcome."""
        return self.build_trace().to_record(self._name, self._ground.scenario.step_s)

    def candidate_label(self, truth: int, edge: int) -> int:
        """Label of the candidate's head, where the committed one answers `edge`."""
        plan, luck = self.plan, self._ground.dice.random()
        if edge == truth and luck < plan.harm + plan.churn:
            return (truth + 1) % self._ground.scenario.model.labels
        return truth if edge != truth and luck < plan.churn else edge

    # The region

    def update_sampling(self, device: SampledDevice) -> None:
        """Simulate a device sample by sample while it is watched or serves the candidate."""
        awake = self._herd[parse_device_number(device.name)]
        busy = device.watched is not None or device.digest != OLD.digest
        awake.trial = device if busy else None
        if not busy:
            self._herd.rest_if_idle(awake)

    def on_serving(self, device: str, *, candidate: bool) -> None:
        """A device began or ended to serve the candidate; the history checker is told."""
        super().on_serving(device, candidate=candidate)
        self.update_sampling(self.devices[device])
        if candidate:
            self._ground.judge.on_event(CandidateServed(self._name, device))

    def on_committed(self, device: str, digest: str) -> None:
        """A device keeps the candidate; the history checker is told how much worse it is."""
        super().on_committed(device, digest)
        if digest != OLD.digest:
            self._ground.judge.on_event(CandidateCommitted(self._name, device, self.plan.harm))

    def move_devices(self, numbers: Iterable[int], *, away: bool) -> None:
        """Take devices out of the rollout's selection, as when they are revoked or moved; or bring them back."""
        moved = {name for name in self.devices if parse_device_number(name) in set(numbers)}
        self._away = self._away | moved if away else self._away - moved
        self._execute_all(self.core.on_members(frozenset(self.devices) - self._away, self._now()))

    def on_wave_allowed(self, devices: int) -> None:
        """A wave opened; the history checker is told how many devices it permits."""
        self._ground.judge.on_event(WaveAllowed(self._name, devices))

    def deliver_assignment(self, device: str, assignment: Assignment) -> None:
        """Sign an assignment, and send it over the device's own connection, again later if it has none."""
        self._deliver_frame(device, self.orders.sign(device, assignment))

    def replay_assignments(self, numbers: Iterable[int], lasts_s: float, dice: Random) -> None:
        """Have the broker's owner send devices all that each was ever assigned again, at random within `lasts_s`."""
        for device in map(format_device_name, numbers):
            for frame in self.orders.shuffle_copies(device, self.core.plan, self.core.rules, dice):
                self.kernel.schedule_after(dice.uniform(0.0, lasts_s), self._deliver_frame, device, frame)

    def on_refused(self, refusal: Refusal) -> None:
        """Count an assignment that a device refused."""
        self.orders.counts[f"refused_{refusal.failure}"] += 1

    def _deliver_frame(self, device: str, frame: bytes) -> None:
        if self._is_reachable(device):
            self.kernel.schedule_after(self.manners.latency_s, self._open_frame, device, frame)
        else:
            self.kernel.schedule_after(AGAIN_S, self._deliver_frame, device, frame)

    def _open_frame(self, device: str, frame: bytes) -> None:
        assignment = self.orders.open(device, frame)
        if assignment is not None:
            self.devices[device].on_assignment(assignment)

    def send_report(self, device: str, report: InstallReport) -> None:
        """Send an install report over the device's own connection, again later if it has none."""
        if self._is_reachable(device):
            super().send_report(device, report)
        else:
            self.kernel.schedule_after(AGAIN_S, self.send_report, device, report)

    def _is_reachable(self, device: str) -> bool:
        number = parse_device_number(device)
        return self._herd.is_alive(number) and any(self._herd.wires.links_up(number))
