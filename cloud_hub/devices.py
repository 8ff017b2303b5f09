"""The seam to the registry: all that the hub asks about a device, on every message and so from memory."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from cloud_hub.standing import DeviceState

Standing = DeviceState  # the states under the name the hub's core uses


class Device(Protocol):
    """One enrolled device. What its state means: `cloud_hub.standing`."""

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


@dataclass(frozen=True)
class Enrolled:
    """A device of `MemoryRegistry`."""

    id: str
    signing_key: Ed25519PublicKey
    hpke_key: X25519PublicKey
    state: Standing = Standing.ACTIVE
    device_class: str = ""
    region: str = ""


class MemoryRegistry:
    """A `Registry` without a file: the shipped double for tests and simulations."""

    def __init__(self, devices: Iterable[Enrolled] = ()) -> None:
        self._devices = {device.id: device for device in devices}

    def device(self, device: str, /) -> Enrolled | None:
        return self._devices.get(device)

    def suspect(self, device: str, now_ms: int, /) -> bool:
        del now_ms
        found = self._devices.get(device)
        if found is None or found.state is not Standing.ACTIVE:
            return False
        self.put(replace(found, state=Standing.SUSPENDED))
        return True

    def put(self, device: Enrolled) -> None:
        self._devices[device.id] = device
