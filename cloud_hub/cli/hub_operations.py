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

from cloud_hub.api.admin import (
    CaRequest,
    CaStep,
    InviteTrust,
    StateRequest,
    change_state,
    device_json,
    invite_json,
    step_rotation,
)
from cloud_hub.api.admin_models import in_use_message, key_json, notice_json, users_json
from cloud_hub.api.costs import bill_json
from cloud_hub.database.connection import open_part, sqlite_file
from cloud_hub.database.parts import QUESTIONS
from cloud_hub.enrollment.ca_rotation import CaRotation
from cloud_hub.registry.access import AccessError, ApiKeys, KeyRequest
from cloud_hub.registry.audit import AuditLog
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.registry.orders_store import open_orders
from cloud_hub.registry.presence import DeviceActivity
from cloud_hub.registry.registry import DeviceInvitation, Registry, RegistryError
from cloud_hub.runtime.bootstrap import trust_anchor
from cloud_hub.runtime.config import HubConfig
from cloud_hub.security.authorities import RotatingAuthority, RotationError
from cloud_hub.security.authority import utc_now
from cloud_hub.security.hub_keys import load_or_create_keys
from cloud_hub.storage.costs import read_costs_aside
from cloud_hub.storage.ledger_log import LedgerLog
from cloud_hub.storage.ledger_service import export_heads
from cloud_hub.storage.retention import DAY_MS, publish_tallies
from cloud_hub.storage.store import read_tallies_aside
from cloud_hub.storage.versions import ModelUsageStore
from cloud_hub.system.client import ApiAddress, call_hub_api, read_running_address
from cloud_hub.system.state_folder import StateDir
from wire.errors import LocalError
from wire.process.config import find_nearest_key
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError

AUDIT_SHOWN = 200
PATIENCE_S = 5.0  # for a hub that is just starting or stopping, or another command at work
_POLL_S = 0.1
_NOT_RUNNING = DeviceActivity(online=False)

T = TypeVar("T")


class HubOperations:
    """Operations on one configured hub, running or not.

    A running hub is asked over its API with the admin token; otherwise the operation works on the state folder's files.
    Results are the same JSON-able fields either way. ExitError(CONFIG) if the hub has no state folder,
    ExitError(LOCKED) if another command holds it for too long.
    """

    def __init__(self, config: HubConfig) -> None:
        self._config = config
        self._state = config.state_dir()
        self._urls = config.database_urls()
        if not self._state.root.is_dir():
            raise ExitError(ExitCode.MISSING, f"{self._state.root}: no such folder; `skerry hub init` makes a hub's")

    def create_invite(self, welcome: DeviceInvitation, expires_s: float) -> dict[str, Any]:
        """Create an invite: `invite`, `device`, `expires_ms`. `expires_s` in seconds."""
        body = {**asdict(welcome), "expires_s": expires_s}
        return self._run_or_ask(
            lambda hub: call_hub_api(hub, "POST", "/v1/admin/invites", body),
            lambda: self._create_invite(welcome, expires_s),
        )

    def list_devices(self) -> list[dict[str, Any]]:
        """Return every device that ever enrolled."""
        return self._run_or_ask(
            lambda hub: list(call_hub_api(hub, "GET", "/v1/admin/devices")["devices"]),
            lambda: self._with_registry(self._describe_devices),
        )

    def _describe_devices(self, registry: Registry) -> list[dict[str, Any]]:
        """Describe every device while no hub runs: none is online."""
        with contextlib.closing(ModelUsageStore.open(self._urls.versions)) as store:
            uses = store.read_uses()
        known = {
            device: DeviceActivity(online=False, last_seen_ms=use.at_ms, models=use.versions())
            for device, use in uses.items()
        }
        return [device_json(device, known.get(device.id, _NOT_RUNNING)) for device in registry.devices()]

    def find_device(self, device: str) -> dict[str, Any]:
        """Return the device of this id, or of this name if only one tenant has one.

        ExitError(NOT_FOUND) if none enrolled, ExitError(USAGE) if several tenants have one of this name.
        """
        known = {found["device"]: found for found in self.list_devices()}
        meant = [device] if device in known else [each for each in known if each.partition("--")[2] == device]
        if len(meant) > 1:
            raise ExitError(ExitCode.USAGE, f"{device!r} is ambiguous: {', '.join(sorted(meant))}")
        if not meant:
            near = find_nearest_key(device, {word for each in known for word in (each, each.partition("--")[2])})
            hint = f", did you mean {near}?" if near else ""
            raise ExitError(ExitCode.NOT_FOUND, f"no device '{device}'{hint} `skerry devices list` shows all")
        return known[meant[0]]

    def set_state(self, device: str, state: DeviceState, drain_s: float = 0.0) -> dict[str, Any]:
        """Change a device's state and return the device; `drain_s` in seconds.

        ExitError(NOT_FOUND) if it never enrolled, ExitError(CHECK_FAILED) if its state may not change so.
        """
        device = self.find_device(device)["device"]
        asked = StateRequest(state, drain_s)
        body = {"state": state.value, "drain_s": drain_s}
        return self._run_or_ask(
            lambda hub: call_hub_api(hub, "POST", f"/v1/admin/devices/{device}/state", body),
            lambda: self._with_registry(
                lambda registry: device_json(change_state(registry, device, asked, _now_ms()), _NOT_RUNNING),
                ExitCode.CHECK_FAILED,
            ),
        )

    def deny_all(self, scope: str, why: str) -> dict[str, Any]:
        """Create a deny-all notice: `counter`, `scope`, `why`, `issued_ms`, `told` (number of devices it was sent to).

        ExitError(USAGE) for a bad scope.
        """
        body = {"scope": scope, "why": why}
        return self._run_or_ask(
            lambda hub: call_hub_api(hub, "POST", "/v1/admin/deny-all", body), lambda: self._deny_all(scope, why)
        )

    def list_keys(self) -> list[dict[str, Any]]:
        """Return every API key, without its token."""
        return self._run_or_ask(
            lambda hub: list(call_hub_api(hub, "GET", "/v1/admin/keys")["keys"]),
            lambda: self._with_keys(lambda keys: [key_json(key, _now_ms()) for key in keys.list_keys()]),
        )

    def create_key(self, wanted: KeyRequest) -> dict[str, Any]:
        """Create an API key and return it with its `token`, which is never shown again.

        ExitError(USAGE) if it may not be.
        """
        body = {**to_builtins(wanted)}
        return self._run_or_ask(
            lambda hub: call_hub_api(hub, "POST", "/v1/admin/keys", body),
            lambda: self._with_keys(lambda keys: _create_key(keys, wanted)),
        )

    def revoke_key(self, key: str) -> dict[str, Any]:
        """Revoke an API key. ExitError(NOT_FOUND) if there is none of this id."""
        return self._run_or_ask(
            lambda hub: call_hub_api(hub, "DELETE", f"/v1/admin/keys/{key}"),
            lambda: self._with_keys(lambda keys: key_json(keys.revoke(key, _now_ms()), _now_ms()), ExitCode.NOT_FOUND),
        )

    def retire_model(self, model: str, *, force: bool) -> dict[str, Any]:
        """Retire a model version: `retired`, `spoke`.

        ExitError(CHECK_FAILED) while devices use it, ExitError(NOT_FOUND) if the hub has no such version.
        """
        if "@" not in model:
            raise ExitError(ExitCode.USAGE, f"{model!r}: name one version, MODEL@VERSION")
        path = f"/v1/admin/models/{quote(model, safe='')}/retire"
        return self._run_or_ask(
            lambda hub: call_hub_api(hub, "POST", path, {"force": force}),
            lambda: self._with_registry(lambda registry: self._retire_model(registry, model, force=force)),
        )

    def _retire_model(self, registry: Registry, model: str, *, force: bool) -> dict[str, Any]:
        """Retire a version while no hub runs, so that the hub does not serve it at its next start."""
        now_ms = _now_ms()
        with contextlib.closing(ModelUsageStore.open(self._urls.versions)) as spoken:
            speaking = spoken.devices_using(model, now_ms, registry)
            if speaking and not force:
                raise ExitError(ExitCode.CHECK_FAILED, in_use_message(model, speaking))
            spoken.retire(model, now_ms)
        return {"retired": model, "spoke": users_json(speaking)}

    def list_aggregates(self) -> list[dict[str, Any]]:
        """Return verdict counts of days that are over: `day` (since 1970), `model`, `label`, `count`."""
        return self._run_or_ask(
            lambda hub: list(call_hub_api(hub, "GET", "/v1/admin/aggregates")["aggregates"]), self._read_aggregates
        )

    def _read_aggregates(self) -> list[dict[str, Any]]:
        file = sqlite_file(self._urls.questions)
        if file is not None and not file.exists():
            return []
        open_part(self._urls.questions, QUESTIONS).dispose()  # a new server has no tables yet
        found = publish_tallies(read_tallies_aside(self._urls.questions), _now_ms() // DAY_MS)
        return [msgspec.structs.asdict(each) for each in found]

    def read_costs(self, days: int) -> dict[str, Any]:
        """Return the bill of today and the days before it: `currency`, `total`, `costs`."""
        return self._run_or_ask(
            lambda hub: call_hub_api(hub, "GET", f"/v1/costs?days={days}"), lambda: self._read_costs(days)
        )

    def _read_costs(self, days: int) -> dict[str, Any]:
        file = sqlite_file(self._urls.questions)
        if file is not None and not file.exists():
            return bill_json([], self._config.price_list())
        open_part(self._urls.questions, QUESTIONS).dispose()  # a new server has no tables yet
        found = read_costs_aside(self._urls.questions, _now_ms() // DAY_MS - days + 1)
        return bill_json(found, self._config.price_list())

    def read_audit(self) -> list[dict[str, Any]]:
        """Return the newest audit entries, oldest first."""
        return [to_builtins(entry) for entry in AuditLog(self._state.audit).last_entries(AUDIT_SHOWN)]

    def ca_status(self) -> dict[str, Any]:
        """Return the state of the CA rotation: `ca`, `coming`, `waiting_for`."""
        return self._run_or_ask(
            lambda hub: call_hub_api(hub, "GET", "/v1/admin/ca"),
            lambda: self._with_rotation(lambda found: found.status()),
        )

    def step_ca(self, step: CaStep, *, force: bool = False) -> dict[str, Any]:
        """Take a step of a CA rotation and return its state.

        `force`: finish although devices are cut off. ExitError(CHECK_FAILED) if the step cannot be taken now.
        """
        asked = CaRequest(step, force)
        return self._run_or_ask(
            lambda hub: call_hub_api(hub, "POST", "/v1/admin/ca", {"step": step.value, "force": force}),
            lambda: self._with_rotation(lambda found: asyncio.run(step_rotation(found, asked))),
        )

    def _with_rotation(self, work: Callable[[CaRotation], T]) -> T:
        """Run `work` on a CA rotation. ExitError(CHECK_FAILED) if it refuses."""
        authorities = RotatingAuthority.open(self._state.certificates, utc_now())
        try:
            return self._with_registry(lambda registry: work(CaRotation(authorities, registry)))
        except RotationError as error:
            raise ExitError(ExitCode.CHECK_FAILED, str(error)) from None

    def status(self) -> dict[str, Any]:
        """Return the running hub's status with the `hubs` of its region. ExitError(HUB) if none runs.

        `hubs_fault` says why these are not known.
        """
        found = self._ask_running("/v1/admin/status")
        try:
            return {**found, "hubs": self._ask_running("/v1/admin/hubs")["hubs"], "hubs_fault": ""}
        except ExitError as error:  # the region's database does not answer: the hub's own status is what is wanted then
            return {**found, "hubs": [], "hubs_fault": str(error)}

    def list_models(self) -> list[dict[str, Any]]:
        """Return every version of the running hub, and what it computes on. ExitError(HUB) if none runs."""
        return list(self._ask_running("/v1/admin/models")["models"])

    def list_language_models(self) -> list[dict[str, Any]]:
        """Return every language model of the running hub, with its replicas. ExitError(HUB) if none runs."""
        return list(self._ask_running("/v1/admin/language-models")["models"])

    def ask_jobs(self, method: str, path: str) -> dict[str, Any]:
        """Ask the running hub about jobs: `path` below /v1/jobs. ExitError(HUB) if none runs."""
        return self._ask_running(f"/v1/jobs{path}", method)

    def make_console_code(self) -> dict[str, Any]:
        """Return `url` of the running hub, and `path` with a one-time code for its console. ExitError(HUB) if none."""
        address = self._find_running()
        return {"url": address.url, **call_hub_api(address, "POST", "/v1/session/code", {})}

    def _ask_running(self, path: str, method: str = "GET") -> dict[str, Any]:
        return call_hub_api(self._find_running(), method, path)

    def _find_running(self) -> ApiAddress:
        address = read_running_address(self._state.running)
        if address is None:
            raise ExitError(ExitCode.HUB, f"no hub runs on {self._state.root}: `skerry hub run` starts it")
        return address

    def _deny_all(self, scope: str, why: str) -> dict[str, Any]:
        try:
            store, orders = open_orders(self._urls.registry, self._state.orders)
            with contextlib.closing(store):
                return notice_json(orders.deny_all(scope, why, _now_ms()), 0)
        except LocalError as error:
            raise ExitError(ExitCode.USAGE, str(error)) from None

    def _create_invite(self, welcome: DeviceInvitation, expires_s: float) -> dict[str, Any]:
        """Create an invite while no hub runs."""
        authorities = RotatingAuthority.open(self._state.certificates, utc_now())
        url = self._config.public_url(self._config.api.port)
        now_ms = _now_ms()
        invite = self._with_registry(lambda registry: registry.invite(welcome, now_ms, expires_s))
        return invite_json(
            invite, InviteTrust(url, authorities.sha256, trust_anchor(self._config).root_sha256(), now_ms)
        )

    def _with_keys(self, work: Callable[[ApiKeys], T], refused: ExitCode = ExitCode.USAGE) -> T:
        """Run `work` on the opened key store; an AccessError becomes ExitError(`refused`)."""
        keys = ApiKeys.open(self._urls.access)
        try:
            return work(keys)
        except AccessError as error:
            raise ExitError(refused, str(error)) from None
        finally:
            keys.close()

    def _with_registry(self, work: Callable[[Registry], T], refused: ExitCode = ExitCode.USAGE) -> T:
        """Run `work` on the opened device registry; a RegistryError becomes ExitError(`refused`)."""
        registry = Registry.open(self._urls.registry)
        try:
            return work(registry)
        except RegistryError as error:
            raise ExitError(refused, str(error)) from None
        finally:
            registry.close()

    def export_heads(self, device: str) -> dict[str, Any]:
        """Return what the hub has logged of a device's egress ledger: `hub`, `key`, `checkpoint`, `heads`.

        Each head comes with its inclusion proof in the signed checkpoint.
        """
        device = device if "--" in device else self.find_device(device)["device"]
        return self._run_or_ask(
            lambda hub: call_hub_api(hub, "GET", f"/v1/admin/ledger/{device}"), lambda: self._export_heads(device)
        )

    def _export_heads(self, device: str) -> dict[str, Any]:
        with contextlib.closing(LedgerLog.open(self._urls.ledger, _now_ms())) as log:
            return export_heads(log, self._config.hub.name, load_or_create_keys(self._state.keys).signing, device)

    def _run_or_ask(self, running: Callable[[ApiAddress], T], alone: Callable[[], T]) -> T:
        """Run `running` with a running hub's address, or `alone` under the folder's lock; wait up to 5 s for either."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with FolderLock(StateDir(self._state.root).prepare().root):
                    self._config.check_database()
                    return alone()
            except ExitError as stop:
                if stop.code is not ExitCode.LOCKED:
                    raise
                address = read_running_address(self._state.running)
                if address is not None:
                    return running(address)
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)


def _create_key(keys: ApiKeys, wanted: KeyRequest) -> dict[str, Any]:
    """Create a key and return it with its token."""
    key, token = keys.create(wanted, _now_ms())
    return {**key_json(key, _now_ms()), "token": token}


def _now_ms() -> int:
    return int(time.time() * 1000)
