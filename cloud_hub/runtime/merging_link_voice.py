"""What the hub says over the link: signed notes, verdicts, hints, orders, assignments; heads and reports it hands on.

Rule: nothing is queued for a link that is down: what a device did not hear it asks for.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from cloud_hub.core import commands as c
from cloud_hub.registry.orders import Notice
from cloud_hub.runtime.merging_link_link import Link
from cloud_hub.security.envelopes import HubEnvelopes, channel_of
from cloud_hub.storage.ledger_log import Received
from cloud_hub.storage.merging_ledger_service_ledger_clerk import LedgerLogService
from wire.protocol.messages import DownNote
from wire.protocol.rollout import Assignment, InstallReport, ReportSeen
from wire.protocol.topics import Channel, topic


class RolloutsFace(Protocol):
    """What devices' words are to the rollouts; `cloud_hub.rollout.controller` is it."""

    def report(self, device: str, report: InstallReport) -> None:
        """Keep it; then somebody calls `Voice.seen`."""
        ...

    def heard(self, device: str) -> None:
        """It is there."""
        ...

    def assignments_for(self, device: str) -> tuple[Assignment, ...]:
        """What it has to be told again."""
        ...


class Voice:
    """Speaks without ledger and rollouts too: a hub attaches what it has, since both speak through it."""

    def __init__(self, link: Link, envelopes: HubEnvelopes, now: Callable[[], float]) -> None:
        self.ledger: LedgerLogService | None = None
        self._rollouts: RolloutsFace | None = None
        self._link = link
        self._envelopes = envelopes
        self._now = now

    def attach_ledger(self, ledger: LedgerLogService) -> None:
        """Devices' ledger heads go to this log from now on."""
        self.ledger = ledger

    def attach_rollouts(self, rollouts: RolloutsFace) -> None:
        """Devices' reports go to these rollouts from now on."""
        self._rollouts = rollouts

    def tell(self, device: str, note: DownNote) -> None:
        """Sign a note and send it."""
        frame = self._envelopes.note(device, note, self._now())
        self._link.post(topic(device, channel_of(note)), frame)

    def resend(self, command: c.Resend) -> None:
        self._link.post(topic(command.device, Channel.REPLY), command.frame)

    def hint(self, device: str) -> None:
        """Send an empty message: there is something new in the update repository."""
        self._link.post(topic(device, Channel.DESIRED), b"")

    def announce(self, notice: Notice, devices: Iterable[str]) -> None:
        """Tell these devices now; whoever misses it is told when it next says hello."""
        for device in devices:
            self.tell(device, notice.note())

    def log_heads(self, command: c.Log) -> None:
        if self.ledger is not None:
            self.ledger.put(Received(command.device, command.key, command.heads, int(self._now() * 1000)))

    def greet(self, command: c.Greeted) -> None:
        """Say again what is assigned to a device that has just come."""
        if self._rollouts is not None:
            self._rollouts.heard(command.device)
            for assignment in self._rollouts.assignments_for(command.device):
                self.tell(command.device, assignment)

    def hand_report(self, command: c.Reported) -> None:
        """A hub without rollouts says nothing: the device tells again, for whoever has them."""
        if self._rollouts is not None:
            self._rollouts.heard(command.device)
            self._rollouts.report(command.device, command.report)

    def seen(self, device: str, seq: int) -> None:
        """Everything that this device reported up to `seq` is on disk here."""
        self.tell(device, ReportSeen(0, seq))
