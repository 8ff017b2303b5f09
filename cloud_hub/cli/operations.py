"""Operations on a hub for the CLI: over the API of the hub that runs, or on its state folder while none does.

Rule: a running hub is the only writer of its folder. Its lock tells whether one runs; who holds the lock may write.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import to_builtins

from cloud_hub.api.admin import CaRequest, StateRequest, Step, Trust, change, device_json, invite_json, turn
from cloud_hub.api.admin_models import key_json, order_json, spoke_json, still_spoken
from cloud_hub.enrollment.ca_rotation import Rotation
from cloud_hub.registry.access import AccessError, Keys, Wanted
from cloud_hub.registry.audit import Audit
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.registry.orders import Orders
from cloud_hub.registry.registry import Registry, RegistryError, Welcome
from cloud_hub.runtime.bootstrap import anchor_of
from cloud_hub.runtime.config import HubConfig
from cloud_hub.security.authorities import Authorities, RotationError
from cloud_hub.security.authority import utc_now
from cloud_hub.security.hub_keys import load_or_create
from cloud_hub.storage.ledger_log import HubLog
from cloud_hub.storage.ledger_service import export
from cloud_hub.storage.retention import DAY_MS, published
from cloud_hub.storage.store import read_aside
from cloud_hub.storage.versions import Spoken
from cloud_hub.system.client import Address, ask, running_at
from cloud_hub.system.state_folder import StateDir
from wire.errors import LocalError
from wire.process.daemon import Lock
from wire.process.exit_codes import Exit, ExitError

AUDIT_SHOWN = 200
PATIENCE_S = 5.0  # for a hub that is just starting or stopping, or another command at work
_POLL_S = 0.1

T = TypeVar("T")


class Office:
    """Operations on one configured hub, running or not.

    A running hub is asked over its API with the admin token; otherwise the operation works on the state folder's files.
    Results are the same JSON-able fields either way. ExitError(CONFIG) if the hub has no state folder,
    ExitError(LOCKED) if another command holds it for too long.
    """

    def __init__(self, config: HubConfig) -> None:
        self._config = config
        self._state = config.state_dir()
        if not self._state.root.is_dir():
            raise ExitError(Exit.CONFIG, f"no hub has its state in {self._state.root}: `skerry hub init` makes one")

    def invite(self, welcome: Welcome, expires_s: float) -> dict[str, Any]:
        """Create an invite: `invite`, `device`, `expires_ms`. `expires_s` in seconds."""
        body = {**asdict(welcome), "expires_s": expires_s}
        return self._do(
            lambda hub: ask(hub, "POST", "/v1/admin/invites", body), lambda: self._invite(welcome, expires_s)
        )

    def devices(self) -> list[dict[str, Any]]:
        """Return every device that ever enrolled."""
        return self._do(
            lambda hub: list(ask(hub, "GET", "/v1/admin/devices")["devices"]),
            lambda: self._with(lambda registry: [device_json(device) for device in registry.devices()]),
        )

    def device(self, device: str) -> dict[str, Any]:
        """Return one device. ExitError(NOT_FOUND) if it never enrolled."""
        for found in self.devices():
            if found["device"] == device:
                return found
        raise ExitError(Exit.NOT_FOUND, f"no device '{device}': `skerry devices list` shows all")

    def set_state(self, device: str, state: DeviceState, drain_s: float = 0.0) -> dict[str, Any]:
        """Change a device's state and return the device; `drain_s` in seconds.

        ExitError(NOT_FOUND) if it never enrolled, ExitError(CHECK_FAILED) if its state may not change so.
        """
        self.device(device)
        asked = StateRequest(state, drain_s)
        body = {"state": state.value, "drain_s": drain_s}
        return self._do(
            lambda hub: ask(hub, "POST", f"/v1/admin/devices/{device}/state", body),
            lambda: self._with(
                lambda registry: device_json(change(registry, device, asked, _now_ms())), Exit.CHECK_FAILED
            ),
        )

    def deny_all(self, scope: str, why: str) -> dict[str, Any]:
        """Create a deny-all notice: `counter`, `scope`, `why`, `issued_ms`, `told` (number of devices it was sent to).

        ExitError(USAGE) for a bad scope.
        """
        body = {"scope": scope, "why": why}
        return self._do(lambda hub: ask(hub, "POST", "/v1/admin/deny-all", body), lambda: self._deny_all(scope, why))

    def keys(self) -> list[dict[str, Any]]:
        """Return every API key, without its token."""
        return self._do(
            lambda hub: list(ask(hub, "GET", "/v1/admin/keys")["keys"]),
            lambda: self._keyed(lambda keys: [key_json(key, _now_ms()) for key in keys.all()]),
        )

    def create_key(self, wanted: Wanted) -> dict[str, Any]:
        """Create an API key and return it with its `token`, which is never shown again.

        ExitError(USAGE) if it may not be.
        """
        body = {**to_builtins(wanted)}
        return self._do(
            lambda hub: ask(hub, "POST", "/v1/admin/keys", body), lambda: self._keyed(lambda keys: _made(keys, wanted))
        )

    def revoke_key(self, key: str) -> dict[str, Any]:
        """Revoke an API key. ExitError(NOT_FOUND) if there is none of this id."""
        return self._do(
            lambda hub: ask(hub, "DELETE", f"/v1/admin/keys/{key}"),
            lambda: self._keyed(lambda keys: key_json(keys.revoke(key, _now_ms()), _now_ms()), Exit.NOT_FOUND),
        )

    def retire_model(self, model: str, *, force: bool) -> dict[str, Any]:
        """Retire a model version: `retired`, `spoke`.

        ExitError(CHECK_FAILED) while devices use it, ExitError(NOT_FOUND) if the hub has no such version.
        """
        if "@" not in model:
            raise ExitError(Exit.USAGE, f"{model!r}: name one version, MODEL@VERSION")
        path = f"/v1/admin/models/{quote(model, safe='')}/retire"
        return self._do(
            lambda hub: ask(hub, "POST", path, {"force": force}),
            lambda: self._with(lambda registry: self._retire_model(registry, model, force=force)),
        )

    def _retire_model(self, registry: Registry, model: str, *, force: bool) -> dict[str, Any]:
        """Retire a version while no hub runs, so that the hub does not serve it at its next start."""
        now_ms = _now_ms()
        with contextlib.closing(Spoken.open(self._state.versions)) as spoken:
            speaking = spoken.speaking(model, now_ms, registry)
            if speaking and not force:
                raise ExitError(Exit.CHECK_FAILED, still_spoken(model, speaking))
            spoken.retire(model, now_ms)
        return {"retired": model, "spoke": spoke_json(speaking)}

    def aggregates(self) -> list[dict[str, Any]]:
        """Return verdict counts of days that are over: `day` (since 1970), `model`, `label`, `count`."""
        return self._do(lambda hub: list(ask(hub, "GET", "/v1/admin/aggregates")["aggregates"]), self._aggregates)

    def _aggregates(self) -> list[dict[str, Any]]:
        if not self._state.store.exists():
            return []
        found = published(read_aside(f"sqlite:///{self._state.store}"), _now_ms() // DAY_MS)
        return [msgspec.structs.asdict(each) for each in found]

    def audit(self) -> list[dict[str, Any]]:
        """Return the newest audit entries, oldest first."""
        return [to_builtins(entry) for entry in Audit(self._state.audit).last(AUDIT_SHOWN)]

    def ca(self) -> dict[str, Any]:
        """Return the state of the CA rotation: `ca`, `coming`, `waiting_for`."""
        return self._do(
            lambda hub: ask(hub, "GET", "/v1/admin/ca"), lambda: self._rotation(lambda found: found.status())
        )

    def turn_ca(self, step: Step, *, force: bool = False) -> dict[str, Any]:
        """Take a step of a CA rotation and return its state.

        `force`: finish although devices are cut off. ExitError(CHECK_FAILED) if the step cannot be taken now.
        """
        asked = CaRequest(step, force)
        return self._do(
            lambda hub: ask(hub, "POST", "/v1/admin/ca", {"step": step.value, "force": force}),
            lambda: self._rotation(lambda found: asyncio.run(turn(found, asked))),
        )

    def _rotation(self, work: Callable[[Rotation], T]) -> T:
        """Run `work` on a CA rotation. ExitError(CHECK_FAILED) if it refuses."""
        authorities = Authorities.open(self._state.certificates, utc_now())
        try:
            return self._with(lambda registry: work(Rotation(authorities, registry)))
        except RotationError as error:
            raise ExitError(Exit.CHECK_FAILED, str(error)) from None

    def status(self) -> dict[str, Any]:
        """Return the running hub's status. ExitError(HUB) if none runs."""
        address = running_at(self._state.running)
        if address is None:
            raise ExitError(Exit.HUB, f"no hub runs on {self._state.root}: `skerry hub run` starts it")
        return ask(address, "GET", "/v1/admin/status")

    def _deny_all(self, scope: str, why: str) -> dict[str, Any]:
        try:
            return order_json(Orders(self._state.orders).deny_all(scope, why, _now_ms()), 0)
        except LocalError as error:
            raise ExitError(Exit.USAGE, str(error)) from None

    def _invite(self, welcome: Welcome, expires_s: float) -> dict[str, Any]:
        """Create an invite while no hub runs."""
        authorities = Authorities.open(self._state.certificates, utc_now())
        url = self._config.public_url(self._config.api.port)
        now_ms = _now_ms()
        invite = self._with(lambda registry: registry.invite(welcome, now_ms, expires_s))
        return invite_json(invite, Trust(url, authorities.sha256, anchor_of(self._config).sha256(), now_ms))

    def _keyed(self, work: Callable[[Keys], T], refused: Exit = Exit.USAGE) -> T:
        """Run `work` on the opened key store; an AccessError becomes ExitError(`refused`)."""
        keys = Keys.open(self._state.access)
        try:
            return work(keys)
        except AccessError as error:
            raise ExitError(refused, str(error)) from None
        finally:
            keys.close()

    def _with(self, work: Callable[[Registry], T], refused: Exit = Exit.USAGE) -> T:
        """Run `work` on the opened device registry; a RegistryError becomes ExitError(`refused`)."""
        registry = Registry.open(self._state.devices)
        try:
            return work(registry)
        except RegistryError as error:
            raise ExitError(refused, str(error)) from None
        finally:
            registry.close()

    def heads(self, device: str) -> dict[str, Any]:
        """Return what the hub has logged of a device's egress ledger: `hub`, `key`, `checkpoint`, `heads`.

        Each head comes with its inclusion proof in the signed checkpoint.
        """
        return self._do(lambda hub: ask(hub, "GET", f"/v1/admin/ledger/{device}"), lambda: self._heads(device))

    def _heads(self, device: str) -> dict[str, Any]:
        with contextlib.closing(HubLog.open(self._state.ledger, _now_ms())) as log:
            return export(log, self._config.hub.name, load_or_create(self._state.keys).signing, device)

    def _do(self, running: Callable[[Address], T], alone: Callable[[], T]) -> T:
        """Run `running` with a running hub's address, or `alone` under the folder's lock; wait up to 5 s for either."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with Lock(StateDir(self._state.root).prepare().root):
                    return alone()
            except ExitError as stop:
                if stop.code is not Exit.LOCKED:
                    raise
                address = running_at(self._state.running)
                if address is not None:
                    return running(address)
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)


def _made(keys: Keys, wanted: Wanted) -> dict[str, Any]:
    """Create a key and return it with its token."""
    key, token = keys.create(wanted, _now_ms())
    return {**key_json(key, _now_ms()), "token": token}


def _now_ms() -> int:
    return int(time.time() * 1000)
