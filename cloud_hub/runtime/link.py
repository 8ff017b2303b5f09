"""MQTT link of the hub: connection with reconnect, inbound batches, and the publisher of everything sent to devices.

Rule: nothing is promised and nothing is queued here. What could not be sent is dropped and counted; the device's `Ask`
heals it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from cloud_hub.core import commands as c
from cloud_hub.registry.orders import Notice
from cloud_hub.security.envelopes import HubEnvelopes, channel_of
from cloud_hub.storage.ledger_log import Received
from cloud_hub.storage.ledger_service import LedgerLogService
from policies.monitoring.backoff import delay
from wire.errors import LocalError
from wire.protocol.messages import DownNote
from wire.protocol.rollout import Assignment, InstallReport, ReportSeen
from wire.protocol.topics import Channel, hub_filters, topic
from wire.transport.base import Incoming, LinkLostError, Transport

TransportFactory = Callable[[], Awaitable[Transport]]
BASE_S = 0.1
CAP_S = 10.0


class Link:
    """The hub's connection to the broker. `up` = connected and subscribed.

    `dice` gives numbers in 0..1 for the reconnect's full jitter. `counts`: connections, losses and unsent messages.
    """

    def __init__(
        self, connect: TransportFactory, on_batch: Callable[[list[Incoming]], None], dice: Callable[[], float]
    ) -> None:
        self.up = False
        self.counts: Counter[str] = Counter()
        self._connect = connect
        self._on_batch = on_batch
        self._dice = dice
        self._transport: Transport | None = None

    async def run(self) -> None:
        """Connect, receive, and connect again after a loss, until cancelled."""
        attempt = 0
        while True:
            try:
                await self._once()
            except LinkLostError:
                attempt = 0 if self.up else attempt + 1
                self.counts["link.lost" if self.up else "link.refused"] += 1
            finally:
                await self._leave()
            await asyncio.sleep(delay(attempt, self._dice(), BASE_S, CAP_S))

    def post(self, topic: str, payload: bytes) -> None:
        """Publish a message if the link is up; otherwise it is dropped and counted."""
        if self._transport is None or not self.up:
            self.counts["link.unsent"] += 1
            return
        try:
            self._transport.post(topic, payload)
        except (LinkLostError, LocalError):
            self.counts["link.unsent"] += 1

    async def _once(self) -> None:
        """Serve one connection from its beginning to its loss."""
        self._transport = await self._connect()
        await self._transport.subscribe(hub_filters())
        self.up = True
        self.counts["link.connected"] += 1
        while True:
            self._on_batch(await self._transport.receive())
            await asyncio.sleep(0)  # a full inbox never suspends: sockets, store and engines must get their turn

    async def _leave(self) -> None:
        self.up = False
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()


class RolloutsFace(Protocol):
    """The rollout controller as the link sees it; implemented by `cloud_hub.rollout.controller`."""

    def report(self, device: str, report: InstallReport) -> None:
        """Take in a report; `Voice.seen` is called once it is stored."""
        ...

    def heard(self, device: str) -> None:
        """Note that a device is reachable."""
        ...

    def assignments_for(self, device: str) -> tuple[Assignment, ...]:
        """Return the assignments to be sent to a device again."""
        ...


class Voice:
    """Publishes signed notes, stored verdicts, hints, notices and assignments; passes on ledger heads and reports.

    Works without ledger and rollouts too: a hub attaches what it has, since both publish through it.
    """

    def __init__(self, link: Link, envelopes: HubEnvelopes, now: Callable[[], float]) -> None:
        self.ledger: LedgerLogService | None = None
        self._rollouts: RolloutsFace | None = None
        self._link = link
        self._envelopes = envelopes
        self._now = now

    def attach_ledger(self, ledger: LedgerLogService) -> None:
        """Pass devices' ledger heads to this log from now on."""
        self.ledger = ledger

    def attach_rollouts(self, rollouts: RolloutsFace) -> None:
        """Pass devices' reports to these rollouts from now on."""
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
        """Send a notice to these devices now; a device that misses it gets it with its next hello."""
        for device in devices:
            self.tell(device, notice.note())

    def log_heads(self, command: c.Log) -> None:
        if self.ledger is not None:
            self.ledger.put(Received(command.device, command.key, command.heads, int(self._now() * 1000)))

    def greet(self, command: c.Greeted) -> None:
        """Send the open assignments to a device that has just connected."""
        if self._rollouts is not None:
            self._rollouts.heard(command.device)
            for assignment in self._rollouts.assignments_for(command.device):
                self.tell(command.device, assignment)

    def hand_report(self, command: c.Reported) -> None:
        """Pass on a report. Without rollouts it is not acknowledged: the device repeats it."""
        if self._rollouts is not None:
            self._rollouts.heard(command.device)
            self._rollouts.report(command.device, command.report)

    def seen(self, device: str, seq: int) -> None:
        """Acknowledge the reports of a device up to `seq`: they are on disk."""
        self.tell(device, ReportSeen(0, seq))
