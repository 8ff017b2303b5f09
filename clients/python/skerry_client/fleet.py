"""Devices and model versions of a hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skerry_client.exchange.commands import Request, Steps, build_path, fetch_object, post_json
from skerry_client.exchange.operations import AsyncCalls, BlockingCalls, operation
from skerry_client.reading import read_list, read_value

_DEVICES = ("v1", "admin", "devices")
_MODELS = ("v1", "admin", "models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device of the registry. `online` None: not known here; times in ms since 1970, 0 = never.

    `state`: active, suspended, retiring, retired or revoked; `models`: what it has announced.
    """

    device: str
    tenant: str
    state: str
    online: bool | None
    last_seen_ms: int
    models: tuple[str, ...] = ()
    why: str = ""
    enrolled_ms: int = 0
    changed_ms: int = 0
    retire_at_ms: int = 0
    certificate_ends_ms: int = 0
    hardware: str = ""
    device_class: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invite:
    """A one-time invite: the text that `skerry agent enrol` takes. `updates`: whether the device will get any."""

    invite: str
    device: str
    expires_ms: int
    updates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """A version that the hub has. `speaking`: how many devices use it; `setup`: what it runs on."""

    model: str
    state: str
    reason: str = ""
    speaking: int = 0
    setup: dict[str, Any] | None = None


class DeviceOperations:
    """Devices: who is there, and who may be."""

    @operation
    def list(self) -> Steps[tuple[Device, ...]]:
        """Return the devices that this key may see."""
        request = Request("GET", build_path(*_DEVICES), safe=True)
        return read_list(Device, (yield from fetch_object(request)), "devices", request.where)

    @operation
    def get(self, device: str) -> Steps[Device]:
        """Return one device. NotFoundError for an unknown one, or another tenant's."""
        return (yield from _fetch_device(Request("GET", build_path(*_DEVICES, device), safe=True)))

    @operation
    def invite(
        self,
        device: str,
        *,
        expires_s: float = 3600.0,
        device_class: str = "",
        region: str = "",
        hardware: Sequence[str] = (),
        replace: bool = False,
    ) -> Steps[Invite]:
        """Make a one-time invite for a device, `tenant--name`.

        `hardware`: what the machine must say of itself; `replace`: a device of this name gets new keys.
        """
        asked = {"device": device, "expires_s": expires_s, "device_class": device_class, "region": region}
        request = post_json("/v1/admin/invites", {**asked, "hardware": [*hardware], "replace": replace})
        return read_value(Invite, (yield from fetch_object(request)), request.where)

    @operation
    def set_state(self, device: str, state: str, *, drain_s: float | None = None) -> Steps[Device]:
        """Change a device's state: `suspended`, `active`, `retiring`, `retired`, `revoked`.

        ConflictError if it may not become so. `drain_s`: for how long a retiring device gets the answers it is owed.
        """
        asked = {"state": state, **({} if drain_s is None else {"drain_s": drain_s})}
        return (yield from _fetch_device(post_json(build_path(*_DEVICES, device, "state"), asked)))


def _fetch_device(request: Request) -> Steps[Device]:
    return read_value(Device, (yield from fetch_object(request)), request.where)


class ModelOperations:
    """Model versions of the hub."""

    @operation
    def list(self) -> Steps[tuple[ModelVersion, ...]]:
        """Return every version, its state, and how many devices use it."""
        request = Request("GET", build_path(*_MODELS), safe=True)
        return read_list(ModelVersion, (yield from fetch_object(request)), "models", request.where)

    @operation
    def retire(self, model: str, *, force: bool = False) -> Steps[None]:
        """Retire `NAME@VERSION`. ConflictError names the devices that still use it, unless `force`."""
        yield from fetch_object(post_json(build_path(*_MODELS, model, "retire"), {"force": force}))


class Devices(DeviceOperations, BlockingCalls):
    """Devices of a hub; each call blocks until its reply is there."""


class AsyncDevices(DeviceOperations, AsyncCalls):
    """Devices of a hub, on asyncio."""


class Models(ModelOperations, BlockingCalls):
    """Model versions of a hub; each call blocks until its reply is there."""


class AsyncModels(ModelOperations, AsyncCalls):
    """Model versions of a hub, on asyncio."""
