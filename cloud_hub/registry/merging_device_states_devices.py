"""The seam to the registry: all that the hub asks about a device, on every message and so from memory."""

from enum import StrEnum
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from cloud_hub.registry.merging_device_states_standing import DeviceState

Standing = DeviceState  # the states under the name the hub's core uses


class Device(Protocol):
    """One enrolled device. What its state means: `cloud_hub.registry.merging_device_states_standing`."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> StrEnum: ...
    @property
    def signing_key(self) -> Ed25519PublicKey: ...
    @property
    def hpke_key(self) -> X25519PublicKey: ...
    @property
    def device_class(self) -> str: ...
    @property
    def region(self) -> str: ...


class Registry(Protocol):
    """Answers in microseconds, with the truth of this moment: a revocation counts for the next message."""

    def device(self, device: str, /) -> Device | None: ...

    def suspect(self, device: str, now_ms: int, /) -> bool:
        """Two machines speak with its keys: suspend it. False if there was nothing to suspend."""
        ...
