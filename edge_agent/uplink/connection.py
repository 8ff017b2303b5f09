"""MQTT connections of a device to its hubs' brokers: one for each line, which subscribes, receives and reconnects.

Rule: a connection neither verifies what it receives nor guarantees delivery of what it sends; its listener does both.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from math import inf
from typing import Protocol

from edge_agent.identity.identity import Identity
from edge_agent.question.questions import HOME, OpenQuestions
from edge_agent.system.clock import HubClock
from edge_agent.system.settings import AgentSettings
from policies.monitoring import backoff
from policies.monitoring.backoff import compute_taken_over_pause
from wire.process.exit_codes import ExitError
from wire.process.logging import JsonLog, LinkLog, safe_name
from wire.process.time_limits import StepTimeoutError, limit_step
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.base import DeliveryOutcome, IncomingMessage, LinkLostError, SessionTakenOverError, Transport
from wire.transport.mqtt import DeviceMqttTransport

Connect = Callable[[], Awaitable[Transport]]
MAX_SPREAD_S = 300.0
_CONNECT_STEPS = 6  # TCP and CONNECT at a proxy, TCP, TLS, WebSocket, CONNECT of MQTT
_ERROR_CHARS = 200


class ConnectionListener(Protocol):
    """Callbacks of a `Connection`, each with the name of its line. They return soon and raise nothing."""

    def on_up(self, line: str) -> None:
        """Connected to the broker and subscribed."""
        ...

    def on_down(self, line: str) -> None:
        """The connection is lost, or was closed."""
        ...

    def on_batch(self, batch: list[IncomingMessage], line: str) -> None:
        """Messages of the reply topic, in the order of their arrival."""
        ...

    def on_order(self, payload: bytes, line: str) -> None:
        """A message of the topic `down/desired`: empty (a hint to look for updates), or a hub's signed order."""
        ...


class Connection:
    """One line's MQTT connection, made anew with exponential backoff and full jitter whenever it ends.

    `device`: our name on this line. `up`: connected and subscribed.
    """

    def __init__(
        self,
        device: str,
        connect: Connect,
        settings: AgentSettings,
        counts: Counter[str],
        *,
        log: JsonLog,
        line: str = HOME,
    ) -> None:
        self.line = line
        self._changes = LinkLog(log, safe_name(line or "home"))
        self._connect = connect
        self._settings = settings
        self._counts = counts
        self._reply = build_topic(device, TopicChannel.REPLY)
        self._hint = build_topic(device, TopicChannel.DESIRED)
        self._topics = {
            channel: build_topic(device, channel)
            for channel in (TopicChannel.QUESTION, TopicChannel.ASK, TopicChannel.REPORT)
        }
        self._transport: Transport | None = None
        self._deliveries: deque[asyncio.Future[DeliveryOutcome]] = deque()  # of this connection, not counted yet
        self._attempt = 0
        self._spread_s = 0.0
        self._at_once = False
        self._sent_before = 0  # by connections that have ended
        self.last_error = ""

    @property
    def title(self) -> str:
        """Name of the task that keeps it."""
        return f"link-{self.line}" if self.line else "link"

    def use_settings(self, settings: AgentSettings) -> None:
        """Go by these pauses and limits from now on."""
        self._settings = settings

    @property
    def up(self) -> bool:
        """Whether it is connected and subscribed."""
        return self._transport is not None

    @property
    def sent_bytes(self) -> int:
        """Bytes its sockets have sent since the start, TLS and MQTT included."""
        return self._sent_before + (self._transport.sent_bytes if self._transport is not None else 0)

    async def run(self, listener: ConnectionListener) -> None:
        """Connect, serve and reconnect until cancelled."""
        while True:
            try:
                await self._serve_connection(listener)
            except (LinkLostError, StepTimeoutError) as error:
                self.last_error = str(error)[:_ERROR_CHARS]
                if not self._at_once:  # else it was closed on purpose, to connect with a new certificate
                    self._changes.on_failed(self.last_error)
                self._counts["link_lost"] += 1
                self._sent_before += getattr(error, "sent_bytes", 0)
                if isinstance(error, SessionTakenOverError) and not self._at_once:
                    await asyncio.sleep(compute_taken_over_pause(random.random()))  # noqa: S311 - jitter keeps no secret
            await asyncio.sleep(self._next_pause_s())

    def post(self, channel: TopicChannel, payload: bytes) -> bool:
        """Hand a payload to the MQTT client without waiting for the broker.

        Returns False if there is no connection. Raises LocalError if the broker would refuse its size.
        """
        if self._transport is None:
            return False
        try:
            delivery = self._transport.post(self._topics[channel], payload)
        except LinkLostError:
            self._counts["post_link_lost"] += 1
            return False
        self._counts["sent_bytes"] += len(payload)
        self._deliveries.append(delivery)
        self._count_deliveries()
        return True

    def set_reconnect_spread(self, spread_s: float) -> None:
        """Reconnect at a random time within `spread_s` seconds, as the hub asks: a whole fleet must not return at once.

        Values above 300 s are cut; NaN, infinite and negative ones are ignored.
        """
        if 0 <= spread_s < inf:
            self._spread_s = min(spread_s, MAX_SPREAD_S)

    async def reset_connection(self) -> None:
        """Close the connection; `run` makes another at once, without backoff: no other device has lost its own."""
        if self._transport is not None:
            self._at_once = True
            await self._transport.close()

    async def _serve_connection(self, listener: ConnectionListener) -> None:
        limit_s = self._settings.connect_timeout_s
        # Each step of it has the limit for itself; this one is for a client that cannot tell them apart.
        async with limit_step("connection to the broker", limit_s * _CONNECT_STEPS):
            transport = await self._connect()
        try:
            async with limit_step("SUBSCRIBE", limit_s * 2):
                await transport.subscribe((self._reply, self._hint))
            self._transport = transport
            self._counts["link_up"] += 1
            self._changes.on_up()
            listener.on_up(self.line)
            while True:
                batch = await transport.receive()
                self._count_deliveries()
                self._attempt = 0  # not at the handshake: a broker that accepts and drops us must not be hammered
                listener.on_batch([each for each in batch if each.topic == self._reply], self.line)
                for order in [each.payload for each in batch if each.topic == self._hint]:
                    listener.on_order(order, self.line)
        finally:
            if self._transport is transport:
                self._transport = None
                listener.on_down(self.line)
            await transport.close()
            self._count_deliveries()
            self._deliveries.clear()
            self._sent_before += transport.sent_bytes

    def _next_pause_s(self) -> float:
        base_s = max(self._settings.reconnect_base_s, self._spread_s)
        cap_s = max(self._settings.reconnect_cap_s, base_s)
        pause = backoff.compute_delay(self._attempt, random.random(), base_s, cap_s)  # noqa: S311 - jitter keeps no secret
        self._attempt += 1
        at_once, self._at_once = self._at_once, False
        return 0.0 if at_once else pause

    def _count_deliveries(self) -> None:
        """Count what the broker has acknowledged; called now and then, as a callback each would wake the event loop."""
        while self._deliveries and self._deliveries[0].done():
            ended = self._deliveries.popleft()
            if not ended.cancelled() and ended.exception() is None:
                self._counts[f"delivery_{ended.result()}"] += 1


class ConnectionPool:
    """All connections of a device by the name of their line, and when each last received anything.

    The home line comes first.
    """

    def __init__(self, settings: AgentSettings, clock: HubClock, counts: Counter[str], log: JsonLog) -> None:
        self._log = log
        self._settings = settings
        self._clock = clock
        self._counts = counts
        self._by_line: dict[str, Connection] = {}
        self._heard_at: dict[str, float] = {}

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._by_line.values())

    def add_line(self, line: str, device: str, connect: Connect) -> None:
        """Create the connection of one more line. `device`: our name on it."""
        self._by_line[line] = Connection(device, connect, self._settings, self._counts, log=self._log, line=line)
        self._heard_at[line] = 0.0

    def use_settings(self, settings: AgentSettings) -> None:
        """Go by these pauses and limits from now on, on all lines."""
        self._settings = settings
        for connection in self:
            connection.use_settings(settings)

    def connection_for(self, line: str) -> Connection:
        """The connection of a line. KeyError if there is none."""
        return self._by_line[line]

    @property
    def home(self) -> Connection:
        """The connection to the home broker: the one whose enrolment lies in the agent's own state folder."""
        return self._by_line[HOME]

    @property
    def sent_bytes(self) -> int:
        """Bytes that the sockets of all lines have sent since the start."""
        return sum(connection.sent_bytes for connection in self)

    def mark_received(self, line: str) -> None:
        """Note that something was received on this line just now."""
        self._heard_at[line] = self._clock.now()

    def find_silent_lines(self, questions: OpenQuestions, after_s: float) -> list[str]:
        """Lines that are up but received nothing for `after_s` seconds while an answer is owed on them.

        Each silence is named once.
        """
        found = []
        for line, connection in self._by_line.items():
            if not questions.waits_on(line):
                self.mark_received(line)  # no answer is owed: an idle connection is not a silent one
            elif connection.up and self._clock.now() - self._heard_at[line] > after_s:
                self.mark_received(line)
                found.append(line)
        return found


class Credentials(Protocol):
    """The identity to connect with; a certificate renewal replaces it."""

    @property
    def identity(self) -> Identity:
        """The identity of this moment."""
        ...

    def on_link_refused(self, error: str) -> None:
        """The broker closed the connection during the handshake; `error` says how."""
        ...


def make_connector(credentials: Credentials, settings: AgentSettings) -> Connect:
    """A factory of TLS connections to the broker, each with the certificate that is valid at that moment.

    The returned function raises LinkLostError if it cannot connect.
    """

    async def connect() -> Transport:
        identity = credentials.identity
        try:
            context = identity.tls_context()
            where = (identity.broker_host, identity.broker_port, identity.device)
            return await DeviceMqttTransport.connect_by(
                settings.route, *where, context, timeout_s=settings.connect_timeout_s
            )
        except ExitError as stop:
            raise LinkLostError(str(stop)) from None
        except LinkLostError as lost:
            credentials.on_link_refused(str(lost))
            raise

    return connect
