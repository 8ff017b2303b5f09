"""Simulated device of a rollout: the production `InstallMachine` with its loop replaced by calls in virtual time.

Rule: what it counts is drawn for a whole stretch of time at once, from the shares of a `VersionPair`; when it counts,
what it reports and when it rolls back is decided by the machine. Every change of what it serves is reported to the
fleet.
"""

from typing import Protocol

import msgspec
import numpy as np

from edge_agent.update.machine import InstallMachine
from edge_agent.update.types import (
    ActionDone,
    ActivateModel,
    AssignmentChecked,
    AssignmentReceived,
    BundleFetched,
    CheckAssignment,
    CheckGoldenSet,
    CommitModel,
    FetchBundle,
    GoldenSetChecked,
    HealthObserved,
    InstallCommand,
    InstallEvent,
    InstallLimits,
    InstallRow,
    ModelActivated,
    RefuseAssignment,
    ReportStatus,
    RollBackModel,
    StateReached,
    WatchTrial,
)
from models.update.slots import Slot
from models.update.trust import Refusal
from simulations.kernel.kernel import Kernel
from simulations.rollout.versions import VersionPair
from wire.protocol.rollout import (
    Assignment,
    AuditAgreement,
    AuditQuality,
    DeviceSignals,
    InstallReport,
    InstallState,
    RolloutCohort,
)

CHECK_S = 2.0
TEST_S = 8.0
DATA_CLASS = "open"
_ERRAND = (InstallState.VERIFYING, InstallState.STAGED, InstallState.SELF_TEST)


class DeviceBehaviour(msgspec.Struct, frozen=True):
    """Behaviour of devices. `download_s`: mean; `look_s`: how often a device evaluates what it has counted."""

    samples_per_s: float = 0.1
    download_s: float = 45.0
    latency_s: float = 0.05
    look_s: float = 60.0


class RolloutDeviceHost(Protocol):
    """What a device needs of the fleet that it belongs to."""

    kernel: Kernel
    rng: np.random.Generator
    pair: VersionPair
    manners: DeviceBehaviour
    zero_s: float

    def on_serving(self, device: str, *, candidate: bool) -> None:
        """A device began, or ended, to serve the candidate."""

    def on_committed(self, device: str, digest: str) -> None:
        """A device keeps a model for good."""

    def send_report(self, device: str, report: InstallReport) -> None:
        """A device's install report leaves for the hub."""

    def reported_quality(self, device: str, quality: AuditQuality) -> AuditQuality:
        """Quality as a device reports it."""

    def on_refused(self, refusal: Refusal) -> None:
        """A device refused an assignment."""

    def version_of(self, digest: str) -> int:
        """Version number of a model digest."""


class RolloutDevice:
    """One device with its install machine. `digest`: of the model that serves; `before`: of the committed one."""

    def __init__(self, name: str, digest: str, fleet: RolloutDeviceHost, core: InstallMachine | None = None) -> None:
        self.name = name
        self.digest = digest
        self.before = digest
        self.core = core or InstallMachine(name, InstallRow(), InstallLimits())
        self.fleet = fleet
        self._seq = 0
        self.watched: Assignment | None = None
        self._since_s = 0.0
        self.seen = DeviceSignals()
        self.cell = AuditAgreement(DATA_CLASS, 1.0)
        self._looking = False
        self._begun = 0  # number of the latest download: results of an older one are ignored

    @property
    def candidate(self) -> bool:
        """Whether the model that serves is not the committed one."""
        return self.digest != self.before

    def on_assignment(self, assignment: Assignment) -> None:
        """An assignment of the hub arrived."""
        self._dispatch_event(AssignmentReceived(assignment))

    def _dispatch_event(self, event: InstallEvent) -> None:
        for command in self.core.handle_event(event, self._now_ms()):
            self._execute(command)

    def _now_ms(self) -> int:
        return int((self.fleet.zero_s + self.fleet.kernel.now) * 1000)

    # Commands

    def _execute(self, command: InstallCommand) -> None:
        match command:
            case CheckAssignment(assignment):
                target = Slot(assignment.path, assignment.version, assignment.digest)
                self._schedule_event(
                    CHECK_S, AssignmentChecked(target, length=1 << 20, jitter=float(self.fleet.rng.random()))
                )
            case FetchBundle(target):
                self._simulate_fetch(target)
            case ActivateModel(target):
                self._schedule_event(1.0, None, target)
            case WatchTrial(assignment, seen, _):
                self.begin_watching(assignment, seen)
            case ReportStatus():
                self._send_report(command)
            case RefuseAssignment(refusal):
                self.fleet.on_refused(refusal)
            case CheckGoldenSet():
                self._schedule_event(1.0, GoldenSetChecked(same=True))
            case CommitModel():
                self.before = self.digest
                self.fleet.on_committed(self.name, self.digest)
                self._dispatch_event(ActionDone())
            case RollBackModel():
                self._switch_serving(self.before)
                self._dispatch_event(ActionDone())

    def _schedule_event(self, delay_s: float, event: InstallEvent | None, target: Slot | None = None) -> None:
        self.fleet.kernel.schedule_after(delay_s, self._fire_event, self._begun, event, target)

    def _fire_event(self, begun: int, event: InstallEvent | None, target: Slot | None) -> None:
        if event is not None:
            if not isinstance(event, StateReached | BundleFetched) or begun == self._begun:
                self._dispatch_event(event)
        elif target is not None and self.core.row.state is InstallState.ACTIVATING:
            self._switch_serving(target.digest)
            self._dispatch_event(ModelActivated(before=self._baseline_signals()))

    def _simulate_fetch(self, target: Slot) -> None:
        self._begun += 1
        took_s = self.fleet.manners.download_s * float(0.5 + self.fleet.rng.exponential(0.5))
        for place, state in enumerate(_ERRAND):
            self._schedule_event(took_s + place, StateReached(state))
        self._schedule_event(took_s + TEST_S, BundleFetched(target))

    def _switch_serving(self, digest: str) -> None:
        was = self.candidate
        self.digest = digest
        if was is not self.candidate:
            self.fleet.on_serving(self.name, candidate=self.candidate)

    # Counting

    def begin_watching(self, assignment: Assignment | None, seen: DeviceSignals) -> None:
        """Start to count for this assignment, from `seen` on; None: stop."""
        self.watched = assignment
        self._since_s = self.fleet.kernel.now
        if assignment is None:
            return
        self.seen = seen
        self.cell = AuditAgreement(DATA_CLASS, assignment.audit_share)
        if not self._looking:
            self._looking = True
            self.fleet.kernel.schedule_after(self.fleet.manners.look_s, self._observe)

    def _observe(self) -> None:
        if self.watched is None:
            self._looking = False
            return
        self.count_answers()
        quality = self.fleet.reported_quality(self.name, AuditQuality((self.cell,)))
        self._dispatch_event(HealthObserved(self.seen, quality, hub_ms=self._now_ms(), serving=self.digest))
        self.fleet.kernel.schedule_after(self.fleet.manners.look_s, self._observe)

    def count_answers(self) -> None:
        """Draw what has happened since the last call, and add it to the signals."""
        fleet, now = self.fleet, self.fleet.kernel.now
        answers = int(fleet.rng.poisson((now - self._since_s) * fleet.manners.samples_per_s))
        self._since_s = now
        if not answers:
            return
        pair, rng, seen, candidate = fleet.pair, fleet.rng, self.seen, self.candidate
        self._count_audits(int(rng.binomial(answers, self.cell.share)) if self.cell.share > 0 else 0)
        spread = (pair.sure_sq - pair.sure**2) ** 0.5 * float(rng.standard_normal()) * answers**0.5
        self.seen = msgspec.structs.replace(
            seen,
            inferences=seen.inferences + answers,
            escalated=seen.escalated + int(rng.binomial(answers, pair.unsure if candidate else pair.unsure_before)),
            confidence=min(float(seen.inferences + answers), max(0.0, seen.confidence + answers * pair.sure + spread)),
            confidence_sq=seen.confidence_sq + answers * pair.sure_sq,
            p95_us=9000,
            rss_bytes=100 << 20,
        )

    def _count_audits(self, drawn: int) -> None:
        if not drawn:
            return
        pair, cell = self.fleet.pair, self.cell
        shares = (pair.worse, pair.better, pair.both, max(0.0, 1 - pair.worse - pair.better - pair.both))
        worse, better, both, _ = (int(count) for count in self.fleet.rng.multinomial(drawn, shares))
        if not self.candidate:
            worse, better, both = 0, 0, both + worse
        self.cell = msgspec.structs.replace(
            cell,
            audited=cell.audited + drawn,
            agreed=cell.agreed + both + better,
            worse=cell.worse + worse,
            better=cell.better + better,
        )

    def _baseline_signals(self) -> DeviceSignals:
        """Signals of the committed model over the last hour."""
        answers = int(self.fleet.manners.samples_per_s * 3600)
        unsure = int(self.fleet.rng.binomial(answers, self.fleet.pair.unsure_before))
        return DeviceSignals(inferences=answers, escalated=unsure, p95_us=9000, rss_bytes=100 << 20)

    def _send_report(self, command: ReportStatus) -> None:
        status, figures = command.status, command.figures
        self._seq += 1
        control = self.watched is not None and self.watched.cohort is RolloutCohort.CONTROL
        report = InstallReport(
            epoch=1,
            seq=self._seq,
            counter=status.counter,
            rollout=status.rollout,
            family=status.family,
            state=status.state,
            failure=status.failure,
            version=self.fleet.version_of(self.digest),
            running=self.digest,
            at_ms=self._now_ms(),
            cohort=RolloutCohort.CONTROL if control else RolloutCohort.CANDIDATE,
            quality=self.fleet.reported_quality(self.name, AuditQuality((self.cell,))) if figures else None,
            signals=self.seen if figures else None,
            trial_passed=status.trial_passed,
        )
        self.fleet.kernel.schedule_after(self.fleet.manners.latency_s, self.fleet.send_report, self.name, report)
