"""What the hub's commands do to a state folder: through the hub that runs on it, or by hand while none does.

Rule: a running hub is the only writer of its folder. Its lock tells whether one runs; who holds the lock may write.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from cloud_hub.api.admin import CaRequest, StateRequest, Step, Trust, change, device_json, invite_json, turn
from cloud_hub.authorities import Authorities, RotationError
from cloud_hub.client import Address, ask, running_at
from cloud_hub.config import HubConfig
from cloud_hub.ground import anchor_of
from cloud_hub.pki import utc_now
from cloud_hub.registry import Registry, RegistryError, Welcome
from cloud_hub.rotation import Rotation
from cloud_hub.standing import DeviceState
from cloud_hub.state import StateDir
from wire.daemon import Lock
from wire.exits import Exit, Stop

PATIENCE_S = 5.0  # for a hub that is just starting or stopping, or another command at work
_POLL_S = 0.1

T = TypeVar("T")


class Office:
    """One configured hub, running or not."""

    def __init__(self, config: HubConfig) -> None:
        self._config = config
        self._state = config.state_dir()
        if not self._state.root.is_dir():
            raise Stop(Exit.CONFIG, f"no hub has its state in {self._state.root}: `skerry hub init` makes one")

    def invite(self, welcome: Welcome, expires_s: float) -> dict[str, Any]:
        """`invite`, `device`, `expires_ms`."""
        body = {**asdict(welcome), "expires_s": expires_s}
        return self._do(
            lambda hub: ask(hub, "POST", "/v1/admin/invites", body), lambda: self._invite(welcome, expires_s)
        )

    def devices(self) -> list[dict[str, Any]]:
        return self._do(
            lambda hub: list(ask(hub, "GET", "/v1/admin/devices")["devices"]),
            lambda: self._with(lambda registry: [device_json(device) for device in registry.devices()]),
        )

    def device(self, device: str) -> dict[str, Any]:
        """Stop(NOT_FOUND) if it never enrolled."""
        for found in self.devices():
            if found["device"] == device:
                return found
        raise Stop(Exit.NOT_FOUND, f"no device '{device}': `skerry devices list` shows all")

    def set_state(self, device: str, state: DeviceState, drain_s: float = 0.0) -> dict[str, Any]:
        """Stop(NOT_FOUND) if it never enrolled, Stop(CHECK_FAILED) if its state may not change so."""
        self.device(device)
        asked = StateRequest(state, drain_s)
        body = {"state": state.value, "drain_s": drain_s}
        return self._do(
            lambda hub: ask(hub, "POST", f"/v1/admin/devices/{device}/state", body),
            lambda: self._with(
                lambda registry: device_json(change(registry, device, asked, _now_ms())), Exit.CHECK_FAILED
            ),
        )

    def ca(self) -> dict[str, Any]:
        """`ca`, `coming`, `waiting_for`."""
        return self._do(
            lambda hub: ask(hub, "GET", "/v1/admin/ca"), lambda: self._rotation(lambda found: found.status())
        )

    def turn_ca(self, step: Step, *, force: bool = False) -> dict[str, Any]:
        """As `ca`, after the step. Stop(CHECK_FAILED) if it cannot be taken now."""
        asked = CaRequest(step, force)
        return self._do(
            lambda hub: ask(hub, "POST", "/v1/admin/ca", {"step": step.value, "force": force}),
            lambda: self._rotation(lambda found: asyncio.run(turn(found, asked))),
        )

    def _rotation(self, work: Callable[[Rotation], T]) -> T:
        authorities = Authorities.open(self._state.certificates, utc_now())
        try:
            return self._with(lambda registry: work(Rotation(authorities, registry)))
        except RotationError as error:
            raise Stop(Exit.CHECK_FAILED, str(error)) from None

    def status(self) -> dict[str, Any]:
        """Stop(HUB) if none runs."""
        address = running_at(self._state.running)
        if address is None:
            raise Stop(Exit.HUB, f"no hub runs on {self._state.root}: `skerry hub run` starts it")
        return ask(address, "GET", "/v1/admin/status")

    def _invite(self, welcome: Welcome, expires_s: float) -> dict[str, Any]:
        authorities = Authorities.open(self._state.certificates, utc_now())
        url = self._config.public_url(self._config.api.port)
        now_ms = _now_ms()
        invite = self._with(lambda registry: registry.invite(welcome, now_ms, expires_s))
        return invite_json(invite, Trust(url, authorities.sha256, anchor_of(self._config).sha256(), now_ms))

    def _with(self, work: Callable[[Registry], T], refused: Exit = Exit.USAGE) -> T:
        registry = Registry.open(self._state.devices)
        try:
            return work(registry)
        except RegistryError as error:
            raise Stop(refused, str(error)) from None
        finally:
            registry.close()

    def _do(self, running: Callable[[Address], T], alone: Callable[[], T]) -> T:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with Lock(StateDir(self._state.root).prepare().root):
                    return alone()
            except Stop as stop:
                if stop.code is not Exit.LOCKED:
                    raise
                address = running_at(self._state.running)
                if address is not None:
                    return running(address)
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)


def _now_ms() -> int:
    return int(time.time() * 1000)
