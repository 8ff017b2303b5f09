"""Which of the two MQTT clients carries a connection, by its name in a configuration.

Both keep the same promises (`base.Transport`); a client is imported when it is first used.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wire.transport.mqtt import MqttTransport
    from wire.transport.paho import PahoTransport


class MqttClient(StrEnum):
    """`built_in`: `wire.transport.mqtt`. `paho`: the former one, on aiomqtt and paho-mqtt."""

    BUILT_IN = "built_in"
    PAHO = "paho"


def find_transport(client: MqttClient, *, of_device: bool) -> "type[MqttTransport | PahoTransport]":
    """The transport of a client. `of_device`: with the will of a device."""
    if client is MqttClient.PAHO:
        from wire.transport import paho  # noqa: PLC0415 - 10 MB that the other client does not need

        return paho.DevicePahoTransport if of_device else paho.PahoTransport
    from wire.transport import mqtt  # noqa: PLC0415

    return mqtt.DeviceMqttTransport if of_device else mqtt.MqttTransport
