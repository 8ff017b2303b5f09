"""MQTT link of the hub: connection with reconnect, inbound batches, and the publisher of everything sent to devices.

Rule: nothing is promised and nothing is queued here. What could not be sent is dropped and counted; the device's
`StatusRequest` heals it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from cloud_hub.core import commands
from cloud_hub.registry.device_states import DeviceLookup
from cloud_hub.registry.orders import DenyNotice
from cloud_hub.rollout.controller import RolloutController
from cloud_hub.security.envelopes import HubEnvelopes, choose_note_channel
from cloud_hub.storage.ledger_log import ReceivedHead
from cloud_hub.storage.ledger_service import LedgerLogService
from policies.monitoring.backoff import compute_delay, compute_taken_over_pause
from wire.errors import LocalError
from wire.process.logging import JsonLog, LinkLog, safe_name
from wire.protocol.messages import DownNote
from wire.protocol.rollout import ReportReceipt
from wire.protocol.topics import TopicChannel, build_shard_filter, build_topic, list_hub_filters
from wire.transport.base import IncomingMessage, LinkLostError, SessionTakenOverError, Transport

TransportFactory = Callable[[], Awaitable[Transport]]
RECONNECT_BASE_S = 0.1
RECONNECT_CAP_S = 10.0
STEADY_S = 20.0  # after so long a connection the next attempt is the first again
MAX_EARLY = 4096  # messages that wait for the first connection


class HubLink:
    """The hub's connection to the broker. `up` = connected and subscribed.

    `on_up` is called whenever it is connected anew. `dice` gives numbers in 0..1 for the reconnect's full jitter.
    `counts`: connections, losses and unsent messages.
    """

    def __init__(
        self,
        connect: TransportFactory,
        on_batch: Callable[[list[IncomingMessage]], None],
        dice: Callable[[], float],
        log: JsonLog,
        on_up: Callable[[], None] = lambda: None,
    ) -> None:
        self.up = False
        self.counts: Counter[str] = Counter()
        self._connect = connect
        self._on_batch = on_batch
        self._on_up = on_up
        self._dice = dice
        self._changes = LinkLog(log, safe_name("broker"))
        self._early: list[tuple[str, bytes]] = []
        self._transport: Transport | None = None
        self._wanted = frozenset(list_hub_filters())
        self._subscribed: frozenset[str] = frozenset()
        self._subscribing = asyncio.Lock()

    async def run(self) -> None:
        """Connect, receive, and connect again after a loss, until cancelled."""
        attempt = 0
        loop = asyncio.get_running_loop()
        while True:
            began, taken_over_s = loop.time(), 0.0
            try:
                await self._run_connection()
            except LinkLostError as error:
                self._changes.on_failed(str(error))
                # Not at the handshake: a broker that accepts and drops us, for another hub of this name, say.
                attempt = 0 if self.up and loop.time() - began > STEADY_S else attempt + 1
                self.counts["link.lost" if self.up else "link.refused"] += 1
                if isinstance(error, SessionTakenOverError):  # by another hub of this name
                    taken_over_s = compute_taken_over_pause(self._dice())
            finally:
                await self._close_transport()
            delay_s = compute_delay(attempt, self._dice(), RECONNECT_BASE_S, RECONNECT_CAP_S)
            await asyncio.sleep(taken_over_s + delay_s)

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message if the link is up; otherwise it is dropped and counted.

        What is published before the first connection (to devices whose questions a restart cannot open) waits for it.
        """
        if self._transport is None or not self.up:
            if not self.counts["link.connected"] and len(self._early) < MAX_EARLY:
                self._early.append((topic, payload))
            else:
                self.counts["link.unsent"] += 1
            return
        try:
            self._transport.post(topic, payload)
        except (LinkLostError, LocalError):
            self.counts["link.unsent"] += 1

    def serve_by_lease(self) -> None:
        """Subscribe to the shards that are added from now on, and to no other."""
        self._wanted = frozenset()

    def add_shards(self, shards: frozenset[int]) -> None:
        """Subscribe to these shards at the next `synchronize`, and whenever it is connected anew."""
        self._wanted |= frozenset(map(build_shard_filter, shards))

    def remove_shards(self, shards: frozenset[int]) -> None:
        """Unsubscribe from these shards at the next `synchronize`."""
        self._wanted -= frozenset(map(build_shard_filter, shards))

    async def synchronize(self) -> None:
        """Subscribe and unsubscribe at the broker; a link that is down does so when it is up again."""
        if self._transport is not None and self.up:
            try:
                await self._subscribe(self._transport)
            except LinkLostError:
                self.counts["link.unsubscribed"] += 1  # `run` notices that the connection has ended

    async def _subscribe(self, transport: Transport) -> None:
        """Make what is subscribed equal to what is wanted, which may change meanwhile."""
        async with self._subscribing:
            while self._wanted != self._subscribed:
                more, less = self._wanted - self._subscribed, self._subscribed - self._wanted
                if more:
                    await transport.subscribe(tuple(sorted(more)))
                if less:
                    await transport.unsubscribe(tuple(sorted(less)))
                self._subscribed = (self._subscribed | more) - less

    async def _run_connection(self) -> None:
        """Serve one connection from its beginning to its loss."""
        self._transport = await self._connect()
        self._subscribed = frozenset()
        await self._subscribe(self._transport)
        self.up = True
        self.counts["link.connected"] += 1
        self._changes.on_up()
        self._on_up()
        early, self._early = self._early, []
        for topic, payload in early:
            self.publish(topic, payload)
        while True:
            self._on_batch(await self._transport.receive())
            await asyncio.sleep(0)  # a full inbox never suspends: sockets, store and engines must get their turn

    async def _close_transport(self) -> None:
        self.up = False
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()


class OutboundPublisher:
    """Publishes signed notes, stored verdicts, hints, notices and assignments; passes on ledger heads and reports.

    Works without ledger and rollouts too: a hub attaches what it has, since both publish through it.
    """

    def __init__(
        self, link: HubLink, envelopes: HubEnvelopes, registry: DeviceLookup, now: Callable[[], float]
    ) -> None:
        self.ledger: LedgerLogService | None = None
        self._rollouts: RolloutController | None = None
        self._link = link
        self._envelopes = envelopes
        self._registry = registry
        self._now = now

    @property
    def is_connected(self) -> bool:
        """Whether what is published goes to the broker now."""
        return self._link.up

    def attach_ledger(self, ledger: LedgerLogService) -> None:
        """Pass devices' ledger heads to this log from now on."""
        self.ledger = ledger

    def attach_rollouts(self, rollouts: RolloutController) -> None:
        """Pass devices' reports to these rollouts from now on."""
        self._rollouts = rollouts

    def publish_note(self, device: str, note: DownNote) -> None:
        """Sign a note and send it. An order is signed for the keys that the device has now, and for nobody else."""
        channel = choose_note_channel(note)
        receiver = self._registry.device(device) if channel is TopicChannel.DESIRED else None
        if channel is TopicChannel.DESIRED and receiver is None:
            return  # it is not enrolled any more
        self._link.publish(build_topic(device, channel), self._envelopes.sign_note(device, note, self._now(), receiver))

    def publish_stored(self, command: commands.SendFrame) -> None:
        self._link.publish(build_topic(command.device, TopicChannel.REPLY), command.frame)

    def publish_hint(self, device: str) -> None:
        """Send an empty message: there is something new in the update repository."""
        self._link.publish(build_topic(device, TopicChannel.DESIRED), b"")

    def publish_notice(self, notice: DenyNotice, devices: Iterable[str]) -> None:
        """Send a notice to these devices now; a device that misses it gets it with its next hello."""
        for device in devices:
            self.publish_note(device, notice.to_message())

    def take_flaws(self, devices: Iterable[str]) -> None:
        """Other hubs have logged heads of these devices that contradict one another."""
        if self.ledger is not None:
            self.ledger.flawed.update(devices)

    def log_heads(self, command: commands.LogLedgerHead) -> None:
        if self.ledger is not None:
            self.ledger.add_head(ReceivedHead(command.device, command.key, command.heads, int(self._now() * 1000)))

    def on_hello(self, command: commands.ResendAssignments) -> None:
        """Send the open assignments to a device that has just connected."""
        if self._rollouts is not None:
            self._rollouts.on_heard(command.device)
            for assignment in self._rollouts.assignments_for(command.device):
                self.publish_note(command.device, assignment)

    def on_report(self, command: commands.RecordInstallReport) -> None:
        """Pass on a report. Without rollouts it is not acknowledged: the device repeats it."""
        if self._rollouts is not None:
            self._rollouts.on_heard(command.device)
            self._rollouts.on_report(command.device, command.report)

    def acknowledge_report(self, device: str, seq: int) -> None:
        """Acknowledge the reports of a device up to `seq`: they are on disk."""
        self.publish_note(device, ReportReceipt(0, seq))
