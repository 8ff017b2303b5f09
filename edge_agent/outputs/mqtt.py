"""Output to a topic of the site's own MQTT broker, with the discovery of Home Assistant where it is asked for.

Rule: a record counts as handed on once the broker has acknowledged it (QoS 1).
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from edge_agent.outputs.announced import AnnouncedTopics, Announcement
from edge_agent.outputs.delivery import DeliveryError, OutputMessage
from edge_agent.outputs.home_assistant import OFFLINE, ONLINE, DiscoverySource, build_discovery, make_id
from edge_agent.outputs.settings import OutputSection, fill_topic
from edge_agent.system.site_broker import BrokerSection
from edge_agent.system.site_connection import SiteConnection, connect_broker
from models.bundle.manifest import Manifest
from policies.monitoring import backoff
from wire.errors import LocalError
from wire.process.exit_codes import ExitError
from wire.process.logging import JsonLog, LinkLog, safe_name
from wire.transport.base import DeliveryOutcome, LinkLostError, SessionTakenOverError

_WAIT_S = 10.0  # for a connection, before a batch is judged anew
_ACKNOWLEDGED_S = 30.0
_RETRY_BASE_S, _RETRY_CAP_S = 0.5, 30.0
_LASTED_S = 10.0  # a connection that stood so long begins the backoff anew


class MqttOwner(NamedTuple):
    """Who publishes: the device, its name at the broker, our version, the manifest of the model that answers now."""

    device: str
    client: str
    software: str
    manifest: Callable[[], Manifest | None]
    announced: AnnouncedTopics


class MqttOutput:
    """Publishes records to `topic` of a broker; keeps its own connection, made anew with backoff."""

    def __init__(self, section: OutputSection, owner: MqttOwner, log: JsonLog) -> None:
        self._section = section
        self._owner = owner
        self._transport: SiteConnection | None = None
        self._up = asyncio.Event()
        self.trouble = "not connected yet"
        self._described = ""  # the model that was announced
        self._link = LinkLog(log, safe_name(f"output:{section.name}:broker"))
        self._base = f"skerry/{make_id(owner.device)}/{section.name}"
        self._availability = f"{self._base}/availability" if section.home_assistant else ""

    async def run(self) -> None:
        """Connect, announce and connect again until cancelled; then say that we are away, and disconnect."""
        attempt = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._keep_connection()
            except (LinkLostError, ExitError) as error:
                self.trouble = str(error)[:200]
                self._link.on_failed(self.trouble)
                if isinstance(error, SessionTakenOverError):
                    await asyncio.sleep(backoff.compute_taken_over_pause(random.random()))  # noqa: S311 - jitter
            attempt = 0 if loop.time() - began > _LASTED_S else attempt + 1
            pause = backoff.compute_delay(attempt, random.random(), _RETRY_BASE_S, _RETRY_CAP_S)  # noqa: S311 - jitter
            await asyncio.sleep(pause)

    async def _keep_connection(self) -> None:
        transport = await connect_broker(
            self._section, f"skerry-{make_id(self._owner.client)}-{self._section.name}",
            will_topic=self._availability, will_payload=OFFLINE,
        )  # fmt: skip
        try:
            if self._availability:
                await self._announce(transport)
            self._transport = transport
            self._up.set()
            self.trouble = ""
            self._link.on_up()
            while True:
                await transport.receive()  # nothing is subscribed to: it returns when the link ends
        finally:
            self._transport = None
            self._up.clear()
            self._described = ""
            if self._availability:
                with contextlib.suppress(LinkLostError, LocalError):
                    transport.post(self._availability, OFFLINE, retained=True)
            await transport.close()

    async def send(self, batch: Sequence[OutputMessage]) -> Mapping[str, int]:
        """Publish a batch and wait for the broker's acknowledgements. DeliveryError while there is no connection."""
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._up.wait()
        except TimeoutError:
            raise DeliveryError(self.trouble or "not connected", waited=True) from None
        transport = self._transport
        if transport is None:
            raise DeliveryError(self.trouble or "not connected")
        try:
            if self._availability and self._describe_model() != self._described:
                await self._announce(transport)
            return await self._publish(transport, batch)
        except (LinkLostError, ExitError) as error:
            raise DeliveryError(str(error)) from None

    async def _publish(self, transport: SiteConnection, batch: Sequence[OutputMessage]) -> dict[str, int]:
        refused: dict[str, int] = {}
        waiting = []
        for message in batch:
            try:
                waiting.append(transport.post(self._topic_for(message), message.body, retained=self._section.retain))
            except LocalError:
                refused["too_large"] = refused.get("too_large", 0) + 1
        for outcome in await _wait_acknowledged(transport, waiting):
            if outcome is DeliveryOutcome.LOST:
                raise LinkLostError("the link went before the broker had acknowledged")
            if outcome is DeliveryOutcome.DENIED:
                refused["denied_by_broker"] = refused.get("denied_by_broker", 0) + 1
        return refused

    def _topic_for(self, message: OutputMessage) -> str:
        record = message.record
        values = {
            "device": self._owner.device, "model": record.prediction.model.rpartition("@")[0],
            "label": str(message.content.get("label_name") or record.prediction.label), "kind": record.kind.value,
            "data_class": record.data_class, "source": record.source.value,
        }  # fmt: skip
        return fill_topic(self._section.topic, values)

    # Home Assistant

    def _describe_model(self) -> str:
        manifest = self._owner.manifest()
        return manifest.model if manifest else ""

    async def _announce(self, transport: SiteConnection) -> None:
        """Announce the entities of the model that answers, take away those of earlier ones, and say that we are here.

        Without a model there is nothing to announce yet. Raises LinkLostError, or ExitError(DISK).
        """
        manifest, announced, name = self._owner.manifest(), self._owner.announced, self._section.name
        messages = {} if manifest is None else build_discovery(self._make_source(), manifest)
        before = announced.topics_for(name, self._section)
        topics = (*messages, self._availability)
        announced.replace(name, self._section, tuple(dict.fromkeys((*before, *topics))))
        sent = {topic: msgspec.json.encode(content) for topic, content in messages.items()}
        sent |= {topic: b"" for topic in before if topic not in topics}
        waiting = [transport.post(topic, body, retained=True) for topic, body in sent.items()]
        waiting.append(transport.post(self._availability, ONLINE, retained=True))
        if DeliveryOutcome.LOST not in await _wait_acknowledged(transport, waiting):
            announced.replace(name, self._section, topics)
            self._described = self._describe_model()

    def _make_source(self) -> DiscoverySource:
        section, owner = self._section, self._owner
        return DiscoverySource(
            prefix=section.home_assistant.strip("/"), device=owner.device, output=section.name,
            title=section.home_assistant_name, state_topic=fill_topic(section.topic, {"device": owner.device}),
            availability_topic=self._availability, software=owner.software,
        )  # fmt: skip


async def _wait_acknowledged(
    transport: SiteConnection, waiting: "Sequence[asyncio.Future[DeliveryOutcome]]"
) -> list[DeliveryOutcome]:
    """What the broker said of each message; a broker that says nothing is given up."""
    try:
        async with asyncio.timeout(_ACKNOWLEDGED_S):
            return await asyncio.gather(*waiting)
    except TimeoutError:
        await transport.close()
        raise LinkLostError(f"no acknowledgement within {_ACKNOWLEDGED_S:g} s") from None


async def remove_announced(announcement: Announcement, announced: AnnouncedTopics, client_id: str) -> None:
    """Take away the retained messages of an output that is configured no longer, however long its broker is away."""
    broker: BrokerSection = announcement.broker
    attempt = 0
    while True:
        with contextlib.suppress(LinkLostError, ExitError, LocalError):
            transport = await connect_broker(broker, client_id)
            try:
                waiting = [transport.post(topic, b"", retained=True) for topic in announcement.topics]
                outcomes = await _wait_acknowledged(transport, waiting)
            finally:
                await transport.close()
            if DeliveryOutcome.LOST not in outcomes:
                announced.replace(announcement.output, broker, ())
                return
        pause_s = backoff.compute_delay(attempt, random.random(), _RETRY_BASE_S, 300.0)  # noqa: S311 - jitter
        attempt += 1
        await asyncio.sleep(pause_s)
