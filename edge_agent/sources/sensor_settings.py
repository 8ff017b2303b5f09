"""The `[[sensor]]` table of the agent's configuration, and what of it cannot be meant."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from edge_agent.sources.sensor_payload import TimeUnit, check_layout, parse_path
from edge_agent.system.site_broker import BROKER_PATHS, BrokerSection, validate_broker
from wire.process.exit_codes import ExitCode, ExitError

MAX_SENSORS = 16
SENSOR_PATHS = BROKER_PATHS
_Topic = Annotated[str, Meta(min_length=1, max_length=500)]
_Path = Annotated[str, Meta(min_length=1, max_length=200)]


class SensorSection(BrokerSection, frozen=True, kw_only=True):
    """Sensors of one topic filter, or several, of the site's own broker. Each topic has windows of its own.

    `channels`: JSON paths, one a channel, or one to a list of all. `layout`: a binary layout instead, of Python's
    `struct`. `time`, or `time_field` of a layout: the event time, in `time_unit`; without one it is that of arrival.
    `retained`: the reading that the broker has kept of a topic is answered too, once, with the first connection.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}\Z")]
    topics: Annotated[tuple[_Topic, ...], Meta(min_length=1, max_length=32)]
    channels: Annotated[tuple[_Path, ...], Meta(min_length=1, max_length=1024)] = (".",)
    layout: Annotated[str, Meta(max_length=200)] = ""
    time: Annotated[str, Meta(max_length=200)] = ""
    time_field: Annotated[int, Meta(ge=-1, le=1024)] = -1
    time_unit: TimeUnit = TimeUnit.S
    data_class: Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?\Z")] = ""
    retained: bool = False
    max_topics: Annotated[int, Meta(ge=1, le=65_536)] = 256
    max_bytes: Annotated[int, Meta(ge=16, le=1 << 20)] = 262_144

    def __post_init__(self) -> None:
        """Refuse paths, layouts and filters that are none, and keys of the other kind of payload."""
        if not self.broker:
            raise ValueError("a sensor needs broker")
        for topic in self.topics:
            _check_filter(topic)
        if not self.layout:
            for path in (*self.channels, *((self.time,) if self.time else ())):
                parse_path(path)
            if self.time_field >= 0:
                raise ValueError("time_field belongs to a layout; JSON has time")
            return
        if self.time or self.channels != (".",):
            raise ValueError("channels and time are paths into JSON; a layout has time_field")
        numbers = check_layout(self.layout)
        if self.time_field >= numbers or (self.time_field >= 0 and numbers < 2):
            raise ValueError("time_field: the layout has no number at that place, or none beside it")


def _check_filter(topic: str) -> None:
    """Raise ValueError for what is no topic filter (MQTT 5.0, 4.7), or a shared subscription."""
    levels = topic.split("/")
    wild = any("+" in level and level != "+" for level in levels) or "#" in topic[:-1]
    if wild or (topic.endswith("#") and levels[-1] != "#") or "\0" in topic or topic.startswith("$share/"):
        raise ValueError(f"topics: '{topic[:60]}' is no topic filter")


def validate_sensors(sensors: Sequence[SensorSection], *, airgap: bool) -> None:
    """Raise ExitError(CONFIG) for a broker that this device may not reach, or two sensors of one name."""
    names = [each.name for each in sensors]
    for sensor in sensors:
        if names.count(sensor.name) > 1:
            raise ExitError(ExitCode.CONFIG, f"sensor: two are named '{sensor.name}'")
        validate_broker(sensor, f"sensor '{sensor.name}'", airgap=airgap)
