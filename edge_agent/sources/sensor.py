"""MQTT sensors as a source of samples: messages of a topic filter become windows, one stream for each topic.

Rule: nothing that a sensor sends ends the source or grows without bound: topics, steps and messages are limited, and
what is not used is counted with its reason.
"""

import random
import time
from collections import Counter, OrderedDict
from functools import lru_cache, partial
from typing import Any, NamedTuple

from edge_agent.question.records import NoModelError
from edge_agent.sources.counts import DropReason
from edge_agent.sources.feed import PreparationError, SampleFeed
from edge_agent.sources.sensor_payload import BinaryPayload, JsonPayload, SensorPayloadError, spread_times
from edge_agent.sources.sensor_settings import SensorSection
from edge_agent.sources.source import Intake, Overflow, Reading, SourceError
from edge_agent.system.site_connection import SiteConnection, connect_broker
from models.bundle.manifest import InputSpec
from models.bundle.preparation import complete_preparation
from models.bundle.signal_preparation import SignalPreparation
from models.runtime.runner import Sample as SampleArray
from models.runtime.runner import SampleError, check_values
from models.runtime.signals import prepare_signal
from models.runtime.windows import StepLoss, Steps, WindowStream, open_windows
from policies.monitoring.backoff import compute_taken_over_pause
from wire.process.logging import JsonLog, safe_name
from wire.transport.base import IncomingMessage, LinkLostError, SessionTakenOverError

QUEUED_WINDOWS = 256
_IDLE_S = 600.0  # a topic that was silent so long gives its place to a new one
_LOG_EVERY_S = 60.0
_LOSSES = {StepLoss.LATE: DropReason.LATE, StepLoss.CLOCK: DropReason.CLOCK, StepLoss.GAP: DropReason.GAP}


class _TopicStream(NamedTuple):
    """The windows of one topic, and when it was last heard, in seconds of the monotonic clock."""

    windows: WindowStream
    heard_s: float


class SensorSource:
    """One `[[sensor]]`: a connection of its own to the site's broker."""

    overflow = Overflow.NEWEST  # a broker cannot be made to wait: it would drop by itself, and count nothing
    queue_size = QUEUED_WINDOWS
    parallel = 32  # answers that wait for the disk or the hub share its time

    def __init__(self, section: SensorSection, feed: SampleFeed, client: str, log: JsonLog) -> None:
        self.name = f"sensor-{section.name}"
        self.messages = 0
        self._section = section
        self._feed = feed
        self._client_id = f"skerry-{client}-{self.name}"
        self._takes_retained = section.retained  # of the first connection alone
        self._log = log
        self._payload = (
            BinaryPayload(section.layout, section.time_field, section.time_unit)
            if section.layout
            else JsonPayload(section.channels, section.time, section.time_unit)
        )
        self._topics: OrderedDict[str, _TopicStream] = OrderedDict()
        self._prepared_for = ""  # the model that the streams were opened for
        self._preparation: SignalPreparation | None = None
        self._refused: Counter[str] = Counter()
        self._logged_s = -_LOG_EVERY_S
        self._listened = False

    async def run(self, intake: Intake) -> None:
        """Connect, subscribe, and put windows in until cancelled. SourceError when the broker is away."""
        try:
            transport = await connect_broker(self._section, self._client_id, wants_retained=self._takes_retained)
            try:
                await self._listen(transport, intake)
            finally:
                await transport.close()
        except SessionTakenOverError as error:
            raise SourceError(str(error), compute_taken_over_pause(random.random())) from None  # noqa: S311
        except LinkLostError as error:
            raise SourceError(str(error)) from None
        finally:
            self._takes_retained = self._takes_retained and not self._listened

    async def _listen(self, transport: SiteConnection, intake: Intake) -> None:
        await transport.subscribe(tuple(self._section.topics))
        intake.note_alive()
        self._listened = True
        while True:
            for message in await transport.receive():
                await self._take_message(message, intake)

    async def _take_message(self, message: IncomingMessage, intake: Intake) -> None:
        """Put the windows of a message in. A defect is the supervisor's to count; it costs a new connection."""
        self.messages += 1
        try:
            self._check_retained(message)
            preparation = self._choose_preparation()
            _check_size(message.payload, self._section.max_bytes)
            stream = self._find_stream(message.topic, preparation)
            windows = self._read_windows(message.payload, stream, preparation)
        except SensorPayloadError as error:
            self._refuse(intake, DropReason.GARBLED, error.reason)
        except _RefusedError as error:
            self._refuse(intake, error.drop, error.reason)
        else:
            self._count_lost(stream, intake)
            for window in windows:
                await intake.put(Reading(partial(_parse_window, window, preparation), self._section.data_class))

    def _check_retained(self, message: IncomingMessage) -> None:
        """Refuse what the broker had kept and was not to send: it may be one that knows no Retain Handling."""
        if message.retained and not self._takes_retained:
            raise _RefusedError(DropReason.RETAINED, "retained")

    def _read_windows(self, payload: bytes, stream: WindowStream, preparation: SignalPreparation) -> list[Steps]:
        given = self._payload.read(payload, preparation.channels)
        rate_hz = preparation.rate_hz
        return stream.add(given.steps, spread_times(given, rate_hz, time.time()) if rate_hz else ())

    def _choose_preparation(self) -> SignalPreparation:
        """How windows become samples of the model that answers now; another model begins every window anew."""
        try:
            manifest = self._feed.manifest
            if self._preparation is None or manifest.model != self._prepared_for:
                found = self._feed.preparation
                if not isinstance(found, SignalPreparation):
                    raise _RefusedError(DropReason.UNPREPARED, "input_is_no_signal")
                self._preparation = complete_preparation(found, manifest.input.shape)  # type: ignore[assignment]
                self._prepared_for = manifest.model
                self._topics.clear()
        except NoModelError:
            raise _RefusedError(DropReason.NO_MODEL, "no_model") from None
        except PreparationError:
            raise _RefusedError(DropReason.UNPREPARED, "input_and_bundle_differ") from None
        except ValueError:
            raise _RefusedError(DropReason.UNFIT, "input_is_not_of_the_models_shape") from None
        assert self._preparation is not None
        return self._preparation

    def _find_stream(self, topic: str, preparation: SignalPreparation) -> WindowStream:
        """The stream of a topic. A new one takes the place of one that has been silent for ten minutes, or none."""
        now = time.monotonic()
        found = self._topics.pop(topic, None)
        if found is None:
            if len(self._topics) >= self._section.max_topics:
                oldest, stream = next(iter(self._topics.items()))
                if now - stream.heard_s < _IDLE_S:
                    raise _RefusedError(DropReason.TOPICS, "too_many_topics")
                del self._topics[oldest]
            found = _TopicStream(open_windows(preparation), now)
        self._topics[topic] = found._replace(heard_s=now)
        return found.windows

    @staticmethod
    def _count_lost(stream: WindowStream, intake: Intake) -> None:
        if stream.lost:
            for loss, count in stream.lost.items():
                intake.skip(_LOSSES[loss], count)
            stream.lost.clear()

    def _refuse(self, intake: Intake, drop: DropReason, reason: str) -> None:
        """Count a message, with at most one log line a minute for each reason of all that time."""
        intake.skip(drop)
        self._refused[reason] += 1
        now = time.monotonic()
        if now - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now
            for why, count in self._refused.items():
                name = safe_name(self.name)
                self._log.warning("sensor_refused", source=name, reason=safe_name(why), messages=count)
            self._refused.clear()

    # Status

    def to_json(self) -> dict[str, Any]:
        """What the status says of it beside the counters of every source."""
        return {"messages": self.messages, "topics": len(self._topics)}


class _RefusedError(Exception):
    """A message is not used; `reason` is a fixed word for the log."""

    def __init__(self, drop: DropReason, reason: str) -> None:
        super().__init__(reason)
        self.drop = drop
        self.reason = reason


def _check_size(payload: bytes, max_bytes: int) -> None:
    if len(payload) > max_bytes:
        raise _RefusedError(DropReason.TOO_LARGE, "too_large")


def _parse_window(window: Steps, preparation: SignalPreparation, spec: InputSpec) -> SampleArray:
    """The sample of a window for a model's input. SampleError if it does not fit it."""
    try:
        x = prepare_signal(window, _complete(preparation, spec.shape), spec.dtype)
    except ValueError as error:
        raise SampleError(str(error)) from None
    check_values(x, spec)
    return x


@lru_cache(maxsize=16)
def _complete(preparation: SignalPreparation, shape: tuple[int, ...]) -> SignalPreparation:
    return complete_preparation(preparation, shape)  # type: ignore[return-value]
