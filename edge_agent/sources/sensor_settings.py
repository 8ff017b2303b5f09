"""The `[[sensor]]` table of the agent's configuration, and what of it cannot be meant."""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from edge_agent.sources.sensor_payload import TimeUnit, check_layout, parse_path
from edge_agent.system.site_broker import BROKER_PATHS, BrokerSection, validate_broker
from wire.process.exit_codes import ExitCode, ExitError

MAX_SENSORS = 16
SENSOR_PATHS = BROKER_PATHS
_Topic = Annotated[str, Field(min_length=1, max_length=500)]
_Path = Annotated[str, Field(min_length=1, max_length=200)]


class SensorSection(BrokerSection):
    """Sensors of one topic filter, or several, of the site's own broker. Each topic has windows of its own.

    `channels`: JSON paths, one a channel, or one to a list of all. `layout`: a binary layout instead, of Python's
    `struct`. `time`, or `time_field` of a layout: the event time, in `time_unit`; without one it is that of arrival.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")
    topics: tuple[_Topic, ...] = Field(min_length=1, max_length=32)
    channels: tuple[_Path, ...] = Field(default=(".",), min_length=1, max_length=1024)
    layout: str = Field(default="", max_length=200)
    time: str = Field(default="", max_length=200)
    time_field: int = Field(default=-1, ge=-1, le=1024)
    time_unit: TimeUnit = TimeUnit.S
    data_class: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$")
    max_topics: int = Field(default=256, ge=1, le=65_536)
    max_bytes: int = Field(default=262_144, ge=16, le=1 << 20)

    @model_validator(mode="after")
    def check_keys(self) -> Self:
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
            return self
        if self.time or self.channels != (".",):
            raise ValueError("channels and time are paths into JSON; a layout has time_field")
        numbers = check_layout(self.layout)
        if self.time_field >= numbers or (self.time_field >= 0 and numbers < 2):
            raise ValueError("time_field: the layout has no number at that place, or none beside it")
        return self


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
