"""Rollout inside a simulated region: the machines of `simulations.rollout.fleet`, fed with the region's real samples.

Rule: a device that is watched is awake. What it audits goes to the hub as any question does and is counted when the
verdict is there; what the candidate gets wrong, its callers get.
"""

import msgspec

from simulations.checking.events import Allowed, Exposed
from simulations.kernel.world import number_of
from simulations.nodes.device_disk import Sampled
from simulations.nodes.fleet import Herd
from simulations.nodes.services import RegionServices
from simulations.report.outcome import RolloutSeen
from simulations.rollout.device import RolloutDevice
from simulations.rollout.fleet import OLD, STEP_S, Course, RolloutFleet, rules_of
from simulations.rollout.versions import stated
from simulations.scenario.types import Rollout
from wire.protocol.rollout import Assignment, InstallReport, Signals

AGAIN_S = 30.0  # until a message without a connection is tried again


class SampledDevice(RolloutDevice):
    """Device of a rollout that counts the samples it is given to answer."""

    fleet: "Actor"

    def count(self) -> None:
        """Nothing to do: samples were counted as they came."""

    def answers(self, said: tuple[int, int, int], sure: float, luck: float) -> tuple[int, int, int]:
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

    def verdict(self, sampled: Sampled) -> None:
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

    def watch(self, assignment: Assignment | None, seen: Signals) -> None:
        """Start or stop to count, and have the device simulated sample by sample meanwhile."""
        super().watch(assignment, seen)
        self.fleet.stir(self)


class Actor(RolloutFleet):
    """Rollout of a region's devices. `plan`: the scenario's."""

    devices: dict[str, SampledDevice]  # type: ignore[assignment]

    def __init__(self, ground: RegionServices, herd: Herd, plan: Rollout) -> None:
        self.plan = plan
        self.begins_s = plan.at_s
        self._ground = ground
        self._herd = herd
        self.threshold = ground.policy.base.threshold if ground.policy else 0.0
        self._name = f"r{ground.seed}"
        names = len(herd.numbers)
        course = Course(names, ground.seed, stated(0.0), msgspec.to_builtins(rules_of(plan)))
        super().__init__(course, kernel=ground.kernel, zero_s=ground.zero_s)

    def device(self, name: str) -> SampledDevice:
        """Make the rollout's part of a device of the region."""
        return SampledDevice(name, OLD.digest, self)

    def begin(self) -> None:
        """Let the rollout machine tick from now on, until the rollout is over."""
        self.tick()
        if not self.over():
            self.kernel.after(STEP_S, self.begin)

    def seen(self) -> RolloutSeen:
        """Record of the rollout for the outcome."""
        return self.story().seen(self._name, self._ground.scenario.step_s)

    def candidate_label(self, truth: int, edge: int) -> int:
        """Label of the candidate's head, where the committed one answers `edge`."""
        plan, luck = self.plan, self._ground.dice.random()
        if edge == truth and luck < plan.harm + plan.churn:
            return (truth + 1) % self._ground.scenario.model.labels
        return truth if edge != truth and luck < plan.churn else edge

    # The region

    def stir(self, device: SampledDevice) -> None:
        """Simulate a device sample by sample while it is watched or serves the candidate."""
        awake = self._herd[number_of(device.name)]
        busy = device.watched is not None or device.digest != OLD.digest
        awake.trial = device if busy else None
        if not busy:
            self._herd.settle(awake)

    def serves(self, device: str, *, candidate: bool) -> None:
        """A device began or ended to serve the candidate; the history checker is told."""
        super().serves(device, candidate=candidate)
        self.stir(self.devices[device])
        if candidate:
            self._ground.judge.see(Exposed(self._name, device))

    def allowed(self, devices: int) -> None:
        """A wave opened; the history checker is told how many devices it permits."""
        self._ground.judge.see(Allowed(self._name, devices))

    def carry(self, device: str, assignment: Assignment) -> None:
        """Send an assignment over the device's own connection, again later if it has none."""
        if self._reaches(device):
            super().carry(device, assignment)
        else:
            self.kernel.after(AGAIN_S, self.carry, device, assignment)

    def report(self, device: str, report: InstallReport) -> None:
        """Send an install report over the device's own connection, again later if it has none."""
        if self._reaches(device):
            super().report(device, report)
        else:
            self.kernel.after(AGAIN_S, self.report, device, report)

    def _reaches(self, device: str) -> bool:
        number = number_of(device)
        return self._herd.is_alive(number) and any(self._herd.wires.ups(number))
