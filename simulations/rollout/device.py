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
    Activate,
    Activated,
    AssignmentReceived,
    Check,
    Checked,
    Command,
    Commit,
    Done,
    Event,
    Examine,
    Examined,
    Fetch,
    Fetched,
    InstallRow,
    Limits,
    Observed,
    Reached,
    Report,
    RollBack,
    Watch,
)
from models.update.slots import Slot
from simulations.kernel.kernel import Kernel
from simulations.rollout.versions import Pair
from wire.protocol.rollout import Agreement, Assignment, Cohort, InstallReport, InstallState, Quality, Signals

CHECK_S = 2.0
TEST_S = 8.0
DATA_CLASS = "open"
_ERRAND = (InstallState.VERIFYING, InstallState.STAGED, InstallState.SELF_TEST)


class Manners(msgspec.Struct, frozen=True):
    """Behaviour of devices. `download_s`: mean; `look_s`: how often a device evaluates what it has counted."""

    samples_per_s: float = 0.1
    download_s: float = 45.0
    latency_s: float = 0.05
    look_s: float = 60.0


class Surroundings(Protocol):
    """What a device needs of the fleet that it belongs to."""

    kernel: Kernel
    rng: np.random.Generator
    pair: Pair
    manners: Manners
    zero_s: float

    def serves(self, device: str, *, candidate: bool) -> None:
        """A device began, or ended, to serve the candidate."""

    def report(self, device: str, report: InstallReport) -> None:
        """A device's install report leaves for the hub."""

    def says(self, device: str, quality: Quality) -> Quality:
        """Quality as a device reports it."""

    def version_of(self, digest: str) -> int:
        """Version number of a model digest."""


class RolloutDevice:
    """One device with its install machine. `digest`: of the model that serves; `before`: of the committed one."""

    def __init__(self, name: str, digest: str, fleet: Surroundings) -> None:
        self.name = name
        self.digest = digest
        self.before = digest
        self.core = InstallMachine(name, InstallRow(), Limits())
        self.fleet = fleet
        self._seq = 0
        self.watched: Assignment | None = None
        self._since_s = 0.0
        self.seen = Signals()
        self.cell = Agreement(DATA_CLASS, 1.0)
        self._looking = False
        self._begun = 0  # number of the latest download: results of an older one are ignored

    @property
    def candidate(self) -> bool:
        """Whether the model that serves is not the committed one."""
        return self.digest != self.before

    def hear(self, assignment: Assignment) -> None:
        """An assignment of the hub arrived."""
        self._on(AssignmentReceived(assignment))

    def _on(self, event: Event) -> None:
        for command in self.core.on(event, self._now_ms()):
            self._obey(command)

    def _now_ms(self) -> int:
        return int((self.fleet.zero_s + self.fleet.kernel.now) * 1000)

    # Commands

    def _obey(self, command: Command) -> None:
        match command:
            case Check(assignment):
                target = Slot(assignment.path, assignment.version, assignment.digest)
                self._later(CHECK_S, Checked(target, length=1 << 20, jitter=float(self.fleet.rng.random())))
            case Fetch(target):
                self._fetch(target)
            case Activate(target):
                self._later(1.0, None, target)
            case Watch(assignment, seen, _):
                self.watch(assignment, seen)
            case Report():
                self._report(command)
            case Examine():
                self._later(1.0, Examined(same=True))
            case Commit():
                self.before = self.digest
                self._on(Done())
            case RollBack():
                self._serve(self.before)
                self._on(Done())

    def _later(self, delay_s: float, event: Event | None, target: Slot | None = None) -> None:
        self.fleet.kernel.after(delay_s, self._happens, self._begun, event, target)

    def _happens(self, begun: int, event: Event | None, target: Slot | None) -> None:
        if event is not None:
            if not isinstance(event, Reached | Fetched) or begun == self._begun:
                self._on(event)
        elif target is not None and self.core.row.state is InstallState.ACTIVATING:
            self._serve(target.digest)
            self._on(Activated(before=self._usual()))

    def _fetch(self, target: Slot) -> None:
        self._begun += 1
        took_s = self.fleet.manners.download_s * float(0.5 + self.fleet.rng.exponential(0.5))
        for place, state in enumerate(_ERRAND):
            self._later(took_s + place, Reached(state))
        self._later(took_s + TEST_S, Fetched(target))

    def _serve(self, digest: str) -> None:
        was = self.candidate
        self.digest = digest
        if was is not self.candidate:
            self.fleet.serves(self.name, candidate=self.candidate)

    # Counting

    def watch(self, assignment: Assignment | None, seen: Signals) -> None:
        """Start to count for this assignment, from `seen` on; None: stop."""
        self.watched = assignment
        self._since_s = self.fleet.kernel.now
        if assignment is None:
            return
        self.seen = seen
        self.cell = Agreement(DATA_CLASS, assignment.audit_share)
        if not self._looking:
            self._looking = True
            self.fleet.kernel.after(self.fleet.manners.look_s, self._look)

    def _look(self) -> None:
        if self.watched is None:
            self._looking = False
            return
        self.count()
        quality = self.fleet.says(self.name, Quality((self.cell,)))
        self._on(Observed(self.seen, quality, hub_ms=self._now_ms(), serving=self.digest))
        self.fleet.kernel.after(self.fleet.manners.look_s, self._look)

    def count(self) -> None:
        """Draw what has happened since the last call, and add it to the signals."""
        fleet, now = self.fleet, self.fleet.kernel.now
        answers = int(fleet.rng.poisson((now - self._since_s) * fleet.manners.samples_per_s))
        self._since_s = now
        if not answers:
            return
        pair, rng, seen, candidate = fleet.pair, fleet.rng, self.seen, self.candidate
        self._audit(int(rng.binomial(answers, self.cell.share)) if self.cell.share > 0 else 0)
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

    def _audit(self, drawn: int) -> None:
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

    def _usual(self) -> Signals:
        """Signals of the committed model over the last hour."""
        answers = int(self.fleet.manners.samples_per_s * 3600)
        unsure = int(self.fleet.rng.binomial(answers, self.fleet.pair.unsure_before))
        return Signals(inferences=answers, escalated=unsure, p95_us=9000, rss_bytes=100 << 20)

    def _report(self, command: Report) -> None:
        status, figures = command.status, command.figures
        self._seq += 1
        control = self.watched is not None and self.watched.cohort is Cohort.CONTROL
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
            cohort=Cohort.CONTROL if control else Cohort.CANDIDATE,
            quality=self.fleet.says(self.name, Quality((self.cell,))) if figures else None,
            signals=self.seen if figures else None,
        )
        self.fleet.kernel.after(self.fleet.manners.latency_s, self.fleet.report, self.name, report)
